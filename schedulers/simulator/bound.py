"""A bound on rollout time that no rule can beat which trains each prompt once on whole responses of one weight version.

Two arguments, both for a rule that knew every length in advance. (1) A step lasts as long as its longest kept response
takes alone on an engine; the sum over steps is least when prompts are put into batches in the order of that response.
(2) The engines must do the work of all kept responses: each token's own cost, the reading of its context, and its share
of a step that is as full as an engine can be. Waste, waiting and preemption are left out of both.
"""

from __future__ import annotations

from collections.abc import Iterable

from schedulers.protocol import Visit
from schedulers.simulator.engine import SimulatedEngine
from schedulers.simulator.step_time import StepCosts
from schedulers.simulator.workload import Workload


def kept_lengths(workload: Workload, visit: Visit, launched: int, keep: int, attempts: int = 1) -> list[int]:
    """The `keep` shortest of `launched` responses of each of the first `attempts` launches of a visit, sorted: no
    rule that launches it so often keeps shorter ones."""
    lengths = [n for attempt in range(attempts) for n in workload.lengths(visit, attempt, launched)]
    return sorted(lengths)[:keep]


def rollout_bound_s(
    lengths: Iterable[list[int]], prompt_tokens: int, prompts_per_step: int, engines: list[SimulatedEngine]
) -> float:
    """Seconds of rollout for all these visits together, given the lengths kept of each, sorted."""
    kept = list(lengths)
    costs, widest = engines[0].costs, engines[0].max_running
    longest = sorted(max(visit) for visit in kept)
    last_of_batch = longest[prompts_per_step - 1 :: prompts_per_step]
    alone_s = sum(
        costs.decode_s(n, 1, prompt_tokens) + prompt_tokens * costs.prefill_token_s for n in last_of_batch
    )
    work_s = sum(_work_s(costs, n, prompt_tokens, widest) for visit in kept for n in visit)
    return max(alone_s, work_s / len(engines))


def _work_s(costs: StepCosts, length: int, prompt_tokens: int, widest: int) -> float:
    """An engine's seconds for one response as one of `widest` that run."""
    context = prompt_tokens * length + length * (length - 1) / 2
    return (
        length * (costs.base_s / widest + costs.request_s)
        + context * costs.context_token_s
        + prompt_tokens * costs.prefill_token_s
    )
