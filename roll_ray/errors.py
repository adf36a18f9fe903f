"""One kind of error for what a user can mend: it says what, where, why and what to do next."""

from __future__ import annotations


class RollRayError(Exception):
    """A fault that the user can act on; the command line prints it without a traceback.

    `what` is one sentence, with the place in it. `why` and `next_step` are a sentence each.
    """

    def __init__(self, what: str, *, why: str = "", next_step: str = "") -> None:
        self.what, self.why, self.next_step = what, why, next_step
        lines = [what]
        if why:
            lines.append(f"  why:  {why}")
        if next_step:
            lines.append(f"  next: {next_step}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.why, self.next_step)


def _rebuild(cls: type[RollRayError], what: str, why: str, next_step: str) -> RollRayError:
    return cls(what, why=why, next_step=next_step)


class SettingsError(RollRayError):
    """A setting that is unknown, malformed or in contradiction with another."""


class DataError(RollRayError):
    """A data file that cannot be read as prompts."""


class WeightUpdateError(RollRayError):
    """A weight update whose commit was refused: a hash, a missing tensor or the canary."""


class WorkerDiedError(RollRayError):
    """An actor died and does not come back; names it and gives its last log lines."""
