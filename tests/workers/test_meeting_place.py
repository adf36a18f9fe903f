"""Where trainer ranks meet: a port that is held from the start, and errors that name rank and address."""

import socket
import subprocess
import sys

import pytest

from roll_ray.errors import RollRayError
from workers.backends.process_group import join, leave, meeting_place, total

OTHER = """
import sys
from workers.backends.process_group import join, leave, total
join(1, 2, sys.argv[1], int(sys.argv[2]), "cpu", 60)
print(total(2.0)); leave()
"""


def test_the_port_is_taken_from_the_moment_it_is_named_and_ranks_meet_there():
    host, port = meeting_place()
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind((host, port))
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, host, str(port)], stdout=subprocess.PIPE, text=True
    )
    join(0, 2, host, port, "cpu", 60)
    try:
        assert total(1.0) == 3.0
        assert other.communicate(timeout=60)[0].strip() == "3.0"
    finally:
        leave()
        other.kill()


def test_a_port_in_use_is_an_error_that_names_it():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            RollRayError, match=f"rank 0 of 2 could not meet the others at 127.0.0.1:{port}"
        ) as e:
            join(0, 2, "127.0.0.1", port, "cpu", 5)
    assert "in use" in e.value.why
