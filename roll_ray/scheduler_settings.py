"""The settings of the rollout schedulers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roll_ray.algorithm_settings import StrictModel
from schedulers.tail_batching import over_launched

SchedulerName = Literal["synchronous", "tail_batching"]


class TailBatchingSettings(StrictModel):
    """RollPacker's tail batching (2509.21009): short rounds over-launch, what is left over waits for a long round."""

    eta_prompts: float = Field(
        1.25,
        ge=1,
        description="A short round launches so many times prompts_per_step; the prompts that are not among the first "
        "to be complete wait for a long round. 1: none.",
    )
    eta_responses: float = Field(
        1.25,
        ge=1,
        description="A short round launches so many times samples_per_prompt responses of each prompt and trains the "
        "first. 1: none.",
    )

    def sentence(self, prompts: int, samples: int) -> str:
        """What follows for a batch of `prompts` x `samples`."""
        launched, each = over_launched(prompts, self.eta_prompts), over_launched(samples, self.eta_responses)
        if (launched, each) == (prompts, samples):
            return "tail batching launches no more than the batch, as synchronous rollouts do"
        short = f"a short round launches {launched} prompts x {each} and trains the first"
        if launched == prompts:
            return short
        often = f"{prompts / (launched - prompts):.3g} short rounds for each long one"
        return f"{short}; the other prompts wait for a long round of {prompts} x {samples} ({often})"
