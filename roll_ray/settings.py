"""The typed settings of a run. Every field has a description: docs/settings.md is generated from them.

Values come from the defaults of a recipe, then a YAML file, then `key.sub=value` words of the command
line (`roll_ray.settings_io`). Nothing that the user set is changed behind their back: a contradiction
is a `SettingsError` that names both settings and a legal value (`RunSettings.problems`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from roll_ray.algorithm_checks import algorithm_problems, shaping_problems
from roll_ray.algorithm_settings import AlgorithmSettings, StrictModel
from roll_ray.devices import Devices
from roll_ray.judge_settings import JudgeSettings
from roll_ray.sample import SamplingDistribution
from roll_ray.scheduler_settings import SchedulerName, TailBatchingSettings
from roll_ray.weight_transfer import transfer_problems

Weight = Annotated[float, Field(ge=0)]


class SamplingSettings(StrictModel):
    """How responses are drawn."""

    temperature: float = Field(1.0, ge=0, description="Softmax temperature; 0 is greedy (evaluation only).")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Nucleus mass. Refused with ratio-based losses unless 1."
    )
    top_k: int = Field(
        0, ge=0, description="Keep the k likeliest tokens, 0: all. Refused with ratio-based losses unless 0."
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Drop tokens below this share of the likeliest. Refused with ratio-based losses unless 0.",
    )
    max_new_tokens: int = Field(64, gt=0, description="Token limit of one response.")
    stop_token_ids: list[int] = Field(
        default_factory=list, description="Token ids that end a response, beside the end token."
    )
    ignore_eos: bool = Field(
        False, description="The end token does not end a response: each runs to its limit (for measurements)."
    )

    def distribution(self) -> SamplingDistribution:
        return SamplingDistribution(self.temperature, self.top_k, self.top_p, self.min_p)


class EvaluationSettings(StrictModel):
    """Held-out evaluation: its own data, its own sampling, a recorded weight version."""

    data: str | None = Field(
        None,
        description="Evaluation data: a file, folder or hub name; recipes with a task of their own hold out "
        "prompts instead.",
    )
    every_steps: int = Field(
        25, ge=0, description="Evaluate every so many steps, before the first and after the last; 0: never."
    )
    max_prompts: int = Field(400, gt=0, description="Use at most so many held-out prompts.")
    sampling: SamplingSettings = Field(
        default_factory=lambda: SamplingSettings(temperature=0.0),
        description="Sampling of evaluation; greedy unless said.",
    )


class EngineSettings(StrictModel):
    """Rollout engines (vLLM)."""

    tensor_parallel: int = Field(1, gt=0, description="Devices per engine.")
    max_model_len: int | None = Field(
        None, gt=0, description="Context of the engine in tokens; default: what the model allows."
    )
    max_running_requests: int = Field(256, gt=0, description="Requests that one engine runs at once.")
    kv_cache_mb: int = Field(
        64, gt=0, description="KV cache of one engine in MiB (CPU; on GPU see gpu_memory_utilization)."
    )
    gpu_memory_utilization: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of a GPU's memory that an engine may take. Where the GPU trains "
        "too, the trainer's weights and optimizer stay beside it.",
    )
    enforce_eager: bool = Field(True, description="Run vLLM without compilation and CUDA graphs.")
    update_mode: Literal["keep", "abort"] = Field(
        "keep",
        description="What a weight update does with requests in flight: they go on under the new version (keep), "
        "or are re-submitted with their prefix (abort).",
    )
    weight_transfer: Literal["auto", "shm", "ipc", "nccl"] = Field(
        "auto",
        description="How weights reach the engines: buckets in shared memory (shm), or on GPUs vLLM's own engines: "
        "ipc where every engine's devices also train, nccl where the first training device does not roll out. auto: "
        "shm on CPUs; on GPUs ipc, else nccl, else shm, the first that can be.",
    )


class DeviceSettings(StrictModel):
    """Who sits where. A device is a GPU, or on a CPU machine a slot of the custom Ray resource `device`; on a CPU
    cluster without that resource, a CPU."""

    rollout: Devices = Field((0, 1), description="Devices of the rollout engines.")
    train: Devices = Field(
        (0, 1), description="Devices of the policy trainer; may be the rollout's (colocated, in turns)."
    )
    kind: Literal["auto", "cpu", "gpu"] = Field("auto", description="cpu, gpu, or what the machine has.")
    threads_per_device: int = Field(
        1, gt=0, description="CPU threads of a worker per device slot (CPU machines)."
    )
    ray_address: str | None = Field(
        None,
        description="Address of a running Ray cluster; default: the job's cluster, else a local one is started.",
    )


class RunSettings(AlgorithmSettings):
    """What every recipe understands. Recipes derive from it and may add their own fields."""

    model: str = Field(..., description="Hugging Face causal language model: a folder or a hub name.")
    data: str | None = Field(
        None,
        description="Training data: JSONL, Parquet, a folder of them or a hub name; a recipe may make its own.",
    )
    max_prompt_tokens: int = Field(512, gt=0, description="Prompts longer than this are dropped and counted.")
    domain_weights: dict[str, Weight] = Field(
        default_factory=dict,
        description="How the data's domains are mixed, for example {maths: 0.7, code: 0.3}: each gives its share of "
        "the prompts, whatever its size; 0 leaves one out. Empty: as they stand in the data.",
    )

    prompts_per_step: int = Field(8, gt=0, description="P: prompts in the batch of one step.")
    samples_per_prompt: int = Field(8, gt=0, description="R: responses of each prompt.")
    optimizer_steps_per_batch: int = Field(
        1,
        gt=0,
        description="The batch is cut into so many mini-batches of whole prompts, each closed by its own "
        "optimizer step.",
    )
    tokens_per_device: int = Field(
        4096, gt=0, description="The memory knob: at most so many tokens in one micro-batch of one device."
    )
    max_steps: int = Field(300, gt=0, description="Training steps of the run.")

    learning_rate: float = Field(1e-6, ge=0, description="AdamW learning rate.")
    warmup_steps: int = Field(0, ge=0, description="Linear warm-up over so many optimizer steps.")
    lr_schedule: Literal["constant", "linear"] = Field(
        "constant", description="After warm-up: constant, or linear decay to 0 at the end of the run."
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Dtype of the engine's weights and of the trainer's forward pass; master weights are float32.",
    )
    trainer: Literal["fsdp2"] = Field("fsdp2", description="Trainer backend.")

    scheduler: SchedulerName = Field("synchronous", description="Rollout scheduler.")
    tail_batching: TailBatchingSettings = Field(
        default_factory=TailBatchingSettings, description="Of scheduler=tail_batching."
    )
    sampling: SamplingSettings = Field(
        default_factory=SamplingSettings, description="Sampling of training rollouts."
    )
    evaluation: EvaluationSettings = Field(
        default_factory=EvaluationSettings, description="Held-out evaluation."
    )
    engine: EngineSettings = Field(default_factory=EngineSettings, description="Rollout engines.")
    devices: DeviceSettings = Field(default_factory=DeviceSettings, description="Device mapping.")
    reward_workers: int = Field(1, gt=0, description="Reward worker processes of each domain.")
    reward_slots: int = Field(
        4,
        gt=0,
        description="Rewards that one reward worker computes at once, in threads; those that are awaited (async "
        "functions) are 16 times as many.",
    )
    reward_timeout_s: float = Field(
        60.0, gt=0, description="A reward that takes longer is invalid; waiting for a slot does not count."
    )
    judge: JudgeSettings = Field(
        default_factory=JudgeSettings, description="The language model that judges, where the task has one."
    )
    episode_runners: int = Field(
        1, gt=0, description="Episode runner processes on each node that has engines."
    )
    episode_timeout_s: float = Field(
        600.0, gt=0, description="An attempt that takes longer fails and is launched again."
    )
    env_step_timeout_s: float = Field(
        120.0,
        gt=0,
        description="An environment that answers a turn later fails; the attempt is launched again.",
    )
    max_turns: int | None = Field(
        None,
        gt=0,
        description="An episode is truncated after so many turns of the policy; none: its environment and the context "
        "decide.",
    )

    seed: int = Field(0, ge=0, description="Seeds data order, sampling and the trainer.")
    deterministic: bool = Field(
        False,
        description="Seed every request and order everything by id; slower. See the docs for what it gives.",
    )
    run_name: str | None = Field(
        None, description="Name of the run; default: the recipe's name and the time."
    )
    run_dir: Path | None = Field(None, description="Where the run is written; default: runs/<run_name>.")
    resume: bool = Field(False, description="Go on from the last checkpoint of this run if there is one.")
    checkpoint_every_steps: int = Field(
        25, ge=0, description="Checkpoint interval; 0: only at the end and on Ctrl-C."
    )
    keep_checkpoints: int = Field(2, gt=0, description="How many checkpoints are kept.")
    record: Path | None = Field(None, description="Record every batch into this folder.")
    replay: Path | None = Field(
        None, description="Train from batches recorded in this folder, without engines."
    )

    @property
    def samples_per_step(self) -> int:
        return self.prompts_per_step * self.samples_per_prompt

    def problems(self) -> list[str]:
        """Contradictions between settings, a sentence each; empty when the settings can run together."""
        found: list[str] = []
        if self.prompts_per_step % self.optimizer_steps_per_batch:
            found.append(
                f"prompts_per_step={self.prompts_per_step} is not a multiple of "
                f"optimizer_steps_per_batch={self.optimizer_steps_per_batch}: "
                f"set optimizer_steps_per_batch to a divisor of {self.prompts_per_step}, for example 1"
            )
        n_rollout = len(self.devices.rollout)
        if n_rollout % self.engine.tensor_parallel:
            found.append(
                f"devices.rollout has {n_rollout} devices and engine.tensor_parallel="
                f"{self.engine.tensor_parallel}: {n_rollout} is not a multiple of {self.engine.tensor_parallel}"
            )
        found += self.judge.problems(self.reward_timeout_s)
        found += algorithm_problems(self, self.samples_per_prompt, self.sampling.distribution())
        found += shaping_problems(self, self.sampling.max_new_tokens)
        if self.sampling.temperature == 0:
            found.append(
                "sampling.temperature=0 gives equal responses and no signal: set it above 0, for example 1"
            )
        held_out = self.evaluation.sampling
        if held_out.stop_token_ids or held_out.ignore_eos:
            found.append(
                "evaluation.sampling.stop_token_ids and evaluation.sampling.ignore_eos cannot differ from training: "
                "set sampling.stop_token_ids and sampling.ignore_eos, which hold for both"
            )
        if self.scheduler == "tail_batching" and self.deterministic:
            found.append(
                "deterministic=true with scheduler=tail_batching: which responses are the first depends on time; "
                "set scheduler=synchronous, or deterministic=false"
            )
        if self.record is not None and self.replay is not None:
            found.append("record and replay are both set: a replayed run has nothing new to record; drop one")
        if (
            self.engine.max_model_len is not None
            and self.engine.max_model_len <= self.sampling.max_new_tokens
        ):
            found.append(
                f"engine.max_model_len={self.engine.max_model_len} leaves no room for a prompt before "
                f"sampling.max_new_tokens={self.sampling.max_new_tokens}"
            )
        on_gpu = {"cpu": False, "gpu": True, "auto": None}[self.devices.kind]
        return found + transfer_problems(self, on_gpu)

    def unread_data(self, instead: str) -> list[str]:
        """For `problems` of a recipe that makes its own prompts: data that it would pass over is refused."""
        named = {"data": self.data, "evaluation.data": self.evaluation.data}
        return [
            f"{name}={source} would not be read, this recipe makes its own prompts: leave it out, or {instead}"
            for name, source in named.items()
            if source is not None
        ]

    def plan_lines(self) -> list[str]:
        """What a recipe wants `roll-ray plan` to say beside the settings, a line each."""
        return []

    def plan_problems(self) -> list[str]:
        """What is wrong with a program of more than one run, such as a study, beside `problems`."""
        return []

    def batch_sentence(self, mean_sample_tokens: float) -> str:
        """What follows from the batch knobs, in one sentence."""
        per_step = self.samples_per_step // self.optimizer_steps_per_batch
        ranks = len(self.devices.train)
        tokens = per_step * mean_sample_tokens / ranks
        micro = max(1, -(-int(tokens) // self.tokens_per_device))
        steps = self.optimizer_steps_per_batch
        launched = ""
        if self.scheduler == "tail_batching":
            launched = "; " + self.tail_batching.sentence(self.prompts_per_step, self.samples_per_prompt)
        return (
            f"{self.prompts_per_step} prompts x {self.samples_per_prompt} = {self.samples_per_step} samples, "
            f"{steps} optimizer step{'s' * (steps > 1)} of {per_step}, about {micro} micro-batch{'es' * (micro > 1)} "
            f"on each of {ranks} device{'s' * (ranks > 1)}{launched}"
        )

    def plain(self) -> dict[str, Any]:
        """Plain data of all resolved settings, for YAML and JSON."""
        return self.model_dump(mode="json")
