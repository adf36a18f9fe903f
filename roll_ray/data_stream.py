"""The order in which prompts are used: a pure function of the seed and of how many were drawn.

Every epoch has an order of its own, sorted by a hash of (seed, epoch, prompt id): the order in which the data
was read plays no part. An epoch that a batch does not divide goes on into the next one. `DomainMix` draws several
domains by weight.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any

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

    def prompt(self, prompt_id: str) -> Prompt:
        return self._prompts[prompt_id]

    def state(self) -> dict[str, int]:
        """Where the stream stands, and of which prompts: a few integers, for a checkpoint."""
        return {
            "seed": self._seed,
            "position": self._position,
            "prompts": len(self._prompts),
            "fingerprint": self._fingerprint(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Raises DataError if seed or prompts are others than then."""
        if "weights" in state:
            raise DataError(
                f"the run to go on with mixed its domains by weight ({_said(state['weights'])}), this one does not",
                why="where each domain's prompts stand cannot be carried over",
                next_step="give the run its domain_weights back, or start a new run from its last weights",
            )
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


class DomainMix:
    """Several domains drawn by weight, each in the order of a `PromptStream` of its own.

    Smooth weighted round-robin over whole numbers: at each draw every domain is credited its weight, and the
    one with most credit (ties: the first by name) pays the sum of the weights and gives its next prompt. So of any
    W draws in a row that begin at a multiple of W, W the sum, each domain gives exactly its weight, and
    none waits longer than that: a small domain begins its next epoch earlier, a large one later.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int, weights: Mapping[str, float]) -> None:
        by_domain: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            by_domain.setdefault(prompt.domain, []).append(prompt)
        _check_weights(weights, by_domain)
        self._weights = whole_weights(weights)
        self._streams = {name: PromptStream(by_domain[name], seed) for name in self._weights}
        self._prompts = {p.id: p for p in prompts}
        self._credits = dict.fromkeys(self._weights, 0)

    def draw(self, n: int) -> list[tuple[Visit, Prompt]]:
        """The next `n` visits with their prompts."""
        return [self._streams[self._next_domain()].draw(1)[0] for _ in range(n)]

    def prompt(self, prompt_id: str) -> Prompt:
        return self._prompts[prompt_id]

    def state(self) -> dict[str, Any]:
        """Where the mix and each domain's stream stand: a few integers, for a checkpoint."""
        return {
            "weights": dict(self._weights),
            "credits": dict(self._credits),
            "domains": {name: stream.state() for name, stream in self._streams.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Raises DataError if seed, prompts or weights are others than then."""
        then = state.get("weights")
        if then != self._weights:
            raise DataError(
                f"domain_weights are {_said(self._weights)} now, and the run to go on with began with {_said(then)}",
                why="how many prompts each domain has given follows from the weights",
                next_step="give the run its weights back, or start a new run from its last weights",
            )
        for name, stream in self._streams.items():
            stream.restore(state["domains"][name])
        self._credits = {name: int(state["credits"][name]) for name in self._weights}

    def _next_domain(self) -> str:
        for name, weight in self._weights.items():
            self._credits[name] += weight
        chosen = max(self._weights, key=lambda name: self._credits[name])
        self._credits[chosen] -= sum(self._weights.values())
        return chosen


def prompt_stream(
    prompts: Sequence[Prompt], seed: int, weights: Mapping[str, float]
) -> PromptStream | DomainMix:
    """Prompts in the order of their data's hashes, or, with `weights`, domains mixed by weight."""
    return DomainMix(prompts, seed, weights) if weights else PromptStream(prompts, seed)


def whole_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers in the proportion of `weights` as they are written, by name; domains of weight 0 are left out.

    0.7 and 0.3 are 7 and 3: the decimal that was written counts, not its nearest binary fraction."""
    fractions = {name: Fraction(str(weight)) for name, weight in sorted(weights.items()) if weight > 0}
    factor = math.lcm(*(f.denominator for f in fractions.values()))
    whole = {name: int(f * factor) for name, f in fractions.items()}
    divisor = math.gcd(*whole.values())
    return {name: weight // divisor for name, weight in whole.items()}


def _check_weights(weights: Mapping[str, float], domains: Collection[str]) -> None:
    known = ", ".join(sorted(domains)) or "none"
    if lacking := sorted(set(weights) - set(domains)):
        raise DataError(
            f"domain_weights names {', '.join(map(repr, lacking))}, and the data has no such domain",
            why=f"the data's domains are {known}",
            next_step="correct the name, or name data that has that domain",
        )
    if missing := sorted(set(domains) - set(weights)):
        raise DataError(
            f"domain_weights has no weight for {', '.join(map(repr, missing))}, which the data has",
            why=f"the data's domains are {known}, and none is left out in silence",
            next_step="give each a weight; 0 leaves it out",
        )
    if not any(weight > 0 for weight in weights.values()):
        raise DataError(
            "domain_weights are all 0, so there is no prompt to train on",
            next_step=f"give at least one of {known} a weight above 0",
        )


def _said(weights: Mapping[str, int] | None) -> str:
    return ":".join(map(str, weights.values())) + f" ({', '.join(weights)})" if weights else "none"


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
