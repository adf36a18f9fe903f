"""Prompts with a difficulty of their own, and the lengths of their responses.

Most responses are of ordinary length, lognormal; a share of them is long, uniform in the upper half of what is
allowed. How likely a long one is belongs to the prompt, and is kept over rounds and epochs: hard prompts stay long,
which is what tail batching by prompt lives on (RollPacker, 2509.21009, section 6.3). Its figure 2 gives a P75 of
755 to 1,100 tokens and a longest response of 25 to 32 times the median; a lognormal alone does not reach that.

Lengths are functions of (seed, prompt, visit, attempt, index) alone. So two schedulers see the same responses, and a
response launched beside others is as long as without them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from schedulers.protocol import Visit

_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class LengthMix:
    """`long_share` of all responses is long. The share of a prompt is Beta(long_share k, (1 - long_share) k), k being
    `long_spread`: near 0 a prompt is all long or all short, towards infinity prompts are alike. The variance of an
    ordinary log-length is `sigma`² in all, of which `prompt_share` lies between prompts."""

    longest_tokens: int = 16_384
    median_tokens: float = 550.0
    sigma: float = 0.73
    prompt_share: float = 0.5
    long_share: float = 0.025
    long_spread: float = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """What a prompt is: `log_tokens` the log-median of its ordinary responses, `long_share` its chance of a long one,
    `accuracy` that of a correct one."""

    prompt_id: str
    domain: str
    prompt_tokens: int
    log_tokens: float
    long_share: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Ramp:
    """Lengths that grow: the limit by `per_step` tokens each step, up to `last_tokens`, and all lengths with it."""

    per_step: int
    last_tokens: int


class Workload:
    """An endless stream of visits over `n_prompts` prompts, epoch after epoch, in the same order."""

    def __init__(
        self,
        mix: LengthMix,
        domains: dict[str, float],
        seed: int = 0,
        n_prompts: int = 50_000,
        prompt_tokens: int = 150,
        ramp: Ramp | None = None,
    ) -> None:
        """`domains` gives the share of prompts of each domain."""
        self.mix, self.seed, self.ramp = mix, seed, ramp
        self.n_prompts, self.prompt_tokens = n_prompts, prompt_tokens
        self.longest_tokens = mix.longest_tokens
        self._domains = list(domains)
        self._domain_weights = list(domains.values())
        self._tasks: dict[str, Task] = {}
        self._next = 0

    def take(self, count: int) -> list[tuple[Visit, str]]:
        """The next visits and their domains."""
        numbers = range(self._next, self._next + count)
        self._next += count
        visits = [Visit(f"p{i % self.n_prompts}", i // self.n_prompts) for i in numbers]
        return [(visit, self.task(visit.prompt_id).domain) for visit in visits]

    def at_step(self, step: int) -> None:
        """Set the limit of step `step`, counted from 0, where limits grow."""
        if self.ramp is not None:
            grown = self.mix.longest_tokens + step * self.ramp.per_step
            self.longest_tokens = min(grown, self.ramp.last_tokens)

    def task(self, prompt_id: str) -> Task:
        if prompt_id not in self._tasks:
            self._tasks[prompt_id] = self._draw(prompt_id)
        return self._tasks[prompt_id]

    def lengths(self, visit: Visit, attempt: int, count: int) -> list[int]:
        """Tokens of the responses 0 .. count - 1 of an attempt; a larger count only adds to them."""
        task, mix = self.task(visit.prompt_id), self.mix
        random = self._random(task.prompt_id, 1 + visit.number, attempt)
        sigma = mix.sigma * math.sqrt(1 - mix.prompt_share)
        longest, lengths = self.longest_tokens, []
        log_tokens = task.log_tokens + math.log(longest / mix.longest_tokens)
        for _ in range(count):
            is_long, place = random.random() < task.long_share, random.random()
            ordinary = math.exp(log_tokens + sigma * random.gauss(0.0, 1.0))
            tokens = longest * (1 + place) / 2 if is_long else min(ordinary, longest)
            lengths.append(max(1, math.ceil(tokens)))
        return lengths

    def _draw(self, prompt_id: str) -> Task:
        random, mix = self._random(prompt_id, 0, 0), self.mix
        k = mix.long_spread
        return Task(
            prompt_id,
            random.choices(self._domains, self._domain_weights)[0],
            self.prompt_tokens,
            math.log(mix.median_tokens) + mix.sigma * math.sqrt(mix.prompt_share) * random.gauss(0.0, 1.0),
            random.betavariate(mix.long_share * k, (1 - mix.long_share) * k) if mix.long_share else 0.0,
            random.random(),
        )

    def _random(self, prompt_id: str, visit: int, attempt: int) -> Random:
        number = int(prompt_id[1:])
        return Random((((self.seed * _MIX + number) * _MIX + visit) * _MIX + attempt) & (2**128 - 1))
