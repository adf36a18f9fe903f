"""Named semaphores of this process, which a SIGKILL would leave in /dev/shm for good."""

from __future__ import annotations

from multiprocessing import util
from multiprocessing.synchronize import SemLock


def forget_names() -> int:
    """Unlink the names of all semaphores that this process has made; how many.

    The semaphores go on working here and in processes that have opened them; no other process can open them any
    more. To be called when those that shall have them are up. Python itself does it at the end of a process (under
    the start method "spawn", which vLLM's processes inherit) and a killed process has no end: vLLM's executor and
    tqdm each make one in every engine process.
    """
    unlink = SemLock._cleanup  # type: ignore[attr-defined]
    waiting = list(util._finalizer_registry.values())  # type: ignore[attr-defined]
    unlinking = [finalizer for finalizer in waiting if finalizer._callback is unlink]
    for finalizer in unlinking:
        finalizer()
    return len(unlinking)
