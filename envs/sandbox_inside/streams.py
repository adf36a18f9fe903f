"""Standard output and error of a program: passed on to the outside as they come, and counted.

Nothing of them stays in the memory of this process, a copy of which every later program gets.
"""

from __future__ import annotations

import os
import select

from envs.sandbox_inside.wire import STDERR, STDOUT, send_frame

_PIECE_BYTES = 1 << 16


class Streams:
    """Two pipes whose contents go on to `outside_fd`, each piece a frame that begins with its stream's letter.

    `child_ends` are the program's; `close_child_ends` once it has them. `over` is true from the moment that both
    streams together are above `max_bytes`.
    """

    def __init__(self, outside_fd: int, max_bytes: int) -> None:
        self._outside_fd = outside_fd
        self._left_bytes = max_bytes
        out, child_out = os.pipe()
        err, child_err = os.pipe()
        self.child_ends = (child_out, child_err)
        self._letters = {out: STDOUT, err: STDERR}
        self._piece = bytearray(_PIECE_BYTES)

    @property
    def over(self) -> bool:
        return self._left_bytes < 0

    def close_child_ends(self) -> None:
        for fd in self.child_ends:
            os.close(fd)

    def register(self, poller: select.poll) -> None:
        for fd in self._letters:
            poller.register(fd, select.POLLIN)

    def handle(self, fd: int, poller: select.poll) -> None:
        """Pass on what has come; a stream that has ended is taken from the poller."""
        if fd in self._letters and not self._pass_on(fd):
            poller.unregister(fd)
            self._close(fd)

    def finish(self) -> None:
        """Pass on what is left and close. Every process that could write has ended."""
        for fd in list(self._letters):
            while not self.over and self._pass_on(fd):
                pass
            self._close(fd)
        self._piece[:] = bytes(_PIECE_BYTES)

    def _pass_on(self, fd: int) -> bool:
        n_bytes = os.readv(fd, [self._piece])
        if n_bytes:
            self._left_bytes -= n_bytes
            send_frame(self._outside_fd, self._letters[fd], memoryview(self._piece)[:n_bytes])
        return n_bytes > 0

    def _close(self, fd: int) -> None:
        del self._letters[fd]
        os.close(fd)
