"""A disk that fills up while the trainer saves: an error with what, why and next, and a worker that goes on."""

import subprocess
import sys

PROGRAM = """
import resource, sys
from roll_ray.errors import RollRayError
from workers.backends.base import OptimizerSettings
from workers.trainer import PolicyTrainer, TrainerSpec

model, folder = sys.argv[1:]
trainer = PolicyTrainer(TrainerSpec(model, OptimizerSettings(learning_rate=1e-3)))
trainer.start(*trainer.rendezvous_address())
trainer.save(folder + "/first")
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))  # no file can grow beyond it
try:
    trainer.save(folder + "/second")
except RollRayError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
trainer.load(folder + "/first")
print("and it goes on")
trainer.stop()
"""


def test_a_save_that_finds_no_room_is_an_error_for_the_user_and_the_trainer_lives(letter_model, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(letter_model), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"a checkpoint could not be written below {tmp_path}" in done.stdout
    assert "why:" in done.stdout
    assert "next: free some room and `roll-ray resume` the run" in done.stdout
    assert "and it goes on" in done.stdout
