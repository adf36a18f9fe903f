"""The order in which prompts are used: a pure function of the seed and of how many were drawn.

Every epoch has an order of its own, sorted by a hash of (seed, epoch, prompt id): the order in which the data
was read plays no part. An epoch that a batch does not divide goes on into the next one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

from roll_ray.errors import DataError
from roll_ray.sample import Prompt
from schedulers.protocol import Visit


class PromptStream:
    """An endless stream of visits. Visit number n of a prompt is its use in epoch n, counted from 0."""

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        if not prompts:
            raise DataError(
                "there is no prompt to train on", next_step="name data that holds some with data="
            )
        twice = [prompt_id for prompt_id, count in Counter(p.id for p in prompts).items() if count > 1]
        if twice:
            raise DataError(
                f"{len(twice)} prompt ids are used more than once, the first is {twice[0]!r}",
                why="visits, groups and checkpoints are told apart by the prompt's id",
                next_step="give every prompt an id of its own",
            )
        self._prompts = {p.id: p for p in prompts}
        self._seed, self._position = seed, 0
        self._epoch, self._order = -1, [""]

    def draw(self, n: int) -> list[tuple[Visit, Prompt]]:
        """The next `n` visits with their prompts; `n` may exceed the number of prompts."""
        drawn = [self._at(self._position + i) for i in range(n)]
        self._position += n
        return drawn

    def state(self) -> dict[str, int]:
        """Where the stream stands, and of which prompts: a few integers, for a checkpoint."""
        return {
            "seed": self._seed,
            "position": self._position,
            "prompts": len(self._prompts),
            "fingerprint": self._fingerprint(),
        }

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken. Raises DataError if seed or prompts are others than then."""
        now = self.state()
        if state["seed"] != now["seed"]:
            raise DataError(
                f"seed={now['seed']}, and the run to go on with began with seed={state['seed']}",
                why="the order of the data follows from the seed, and some prompts would come twice, some never",
                next_step=f"set seed={state['seed']}, or start a new run",
            )
        if (state["prompts"], state["fingerprint"]) != (now["prompts"], now["fingerprint"]):
            raise DataError(
                f"the data is not what the run began with: {now['prompts']} prompts now, "
                f"{state['prompts']} then"
                + (", with other ids" if state["prompts"] == now["prompts"] else ""),
                why="the order of the data cannot go on over other prompts",
                next_step="give the run its data back, or start a new run from its last weights",
            )
        self._position = state["position"]

    def _at(self, position: int) -> tuple[Visit, Prompt]:
        epoch, index = divmod(position, len(self._prompts))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, sorted(self._prompts, key=lambda name: self._rank(epoch, name))
        prompt_id = self._order[index]
        return Visit(prompt_id, epoch), self._prompts[prompt_id]

    def _rank(self, epoch: int, prompt_id: str) -> tuple[bytes, str]:
        return _hash(f"{self._seed}/{epoch}/{prompt_id}"), prompt_id

    def _fingerprint(self) -> int:
        """A number of 63 bits over all ids, whatever their order."""
        return sum(int.from_bytes(_hash(name), "big") for name in self._prompts) % (1 << 63)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
