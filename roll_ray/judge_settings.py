"""The settings of a judge: a language model that scores responses, in the run or behind an endpoint."""

from __future__ import annotations

from pydantic import Field

from roll_ray.algorithm_settings import StrictModel
from roll_ray.devices import Devices

ATTEMPTS = 3
"""Calls of a judge for one response, before its reward is invalid."""


class JudgeSettings(StrictModel):
    """A language model that scores responses (`envs.judge.JudgeReward`)."""

    model: str | None = Field(
        None,
        description="The judge: a model folder or hub name, or with judge.endpoint the name that the server "
        "knows; none: the run has no judge.",
    )
    endpoint: str | None = Field(
        None,
        description="Base URL of an OpenAI-compatible server (https://host/v1); none: vLLM engines of the run.",
    )
    key_variable: str = Field(
        "OPENAI_API_KEY",
        description="Environment variable that holds the endpoint's key; it is read where the reward workers run.",
    )
    devices: Devices = Field(
        (0,),
        description="Devices of the judge's engines; rollout and training may be on the same ones.",
    )
    tensor_parallel: int = Field(1, gt=0, description="Devices per engine of the judge.")
    max_new_tokens: int = Field(256, gt=0, description="Token limit of one judgement.")
    max_model_len: int | None = Field(
        None, gt=0, description="Context of the judge's engines in tokens; default: what the model allows."
    )
    kv_cache_mb: int = Field(64, gt=0, description="KV cache of one engine of the judge in MiB (CPU).")
    gpu_memory_utilization: float = Field(
        0.3, gt=0, le=1, description="Share of a GPU's memory that an engine of the judge takes and keeps."
    )
    timeout_s: float = Field(
        15.0,
        gt=0,
        description="One call of the judge that takes longer has failed; the third that fails is the last.",
    )

    @property
    def in_the_run(self) -> bool:
        """Whether engines of the run are the judge."""
        return self.model is not None and self.endpoint is None

    def problems(self, reward_timeout_s: float) -> list[str]:
        """What contradicts itself, a sentence each."""
        if self.model is None:
            set_alone = (
                "judge.endpoint is set and judge.model is not: name the model that the server should ask"
            )
            return [set_alone] if self.endpoint is not None else []
        found = []
        if ATTEMPTS * self.timeout_s > reward_timeout_s:
            found.append(
                f"reward_timeout_s={reward_timeout_s:g} leaves no time for {ATTEMPTS} calls of judge.timeout_s="
                f"{self.timeout_s:g}: set reward_timeout_s to {ATTEMPTS * self.timeout_s:g} or more"
            )
        if self.in_the_run and len(self.devices) % self.tensor_parallel:
            found.append(
                f"judge.devices has {len(self.devices)} devices and judge.tensor_parallel={self.tensor_parallel}: "
                f"{len(self.devices)} is not a multiple of {self.tensor_parallel}"
            )
        return found
