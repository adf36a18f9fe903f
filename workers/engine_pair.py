"""An engine and the policy that it should agree with, side by side: for the self-check and the engine tests.

The engine is vLLM as a run uses it, the other side the policy model as a run trains it; both in float32 on a
random Qwen3 of 0.7 M parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from roll_ray.generation import Canary, GenerationRequest
from roll_ray.sample import SamplingDistribution
from roll_ray.weights.buckets import write_buckets
from roll_ray.weights.folders import remove_run, run_folder
from roll_ray.weights.manifest import WeightManifest
from workers.engine_spec import CommitReport, EngineSpec
from workers.hf_model import PackedInput, PolicyModel, load_policy
from workers.rollout_engine import RolloutEngine

CANARY_TOLERANCE = 1e-4
_VOCABULARY = 64
_CLIENT = "selfcheck"


def make_tiny_model(folder: Path | str, *, tied: bool, seed: int = 0) -> None:
    """A random Qwen3 with 4 layers, hidden size 128, heads of 32 and 64 tokens in its vocabulary."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


@dataclass(slots=True)
class Answer:
    """All that an engine gave for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str = ""


@dataclass(slots=True)
class Pair:
    """An engine and the policy that it should agree with."""

    engine: RolloutEngine
    policy: PolicyModel
    folder: str
    tied: bool
    version: int = 0
    _requests: int = 0

    # ---- the trainer's side ----

    @torch.no_grad()
    def trainer_logprobs(self, tokens: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probabilities of tokens 1..n-1 as the trainer computes them."""
        packed = PackedInput.of_tokens(list(tokens))
        packed = replace(packed, temperatures_N=torch.full_like(packed.temperatures_N, temperature))
        return [float(x) for x in self.policy(packed)[0]]

    @torch.no_grad()
    def change_every_parameter(self, seed: int) -> None:
        """As after a (large) optimizer step."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.policy.parameters():
            parameter += 0.04 * torch.randn(parameter.shape, generator=generator)

    def named_tensors(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, p.detach()) for name, p in self.policy.hf.named_parameters()]

    def publish(self, tensors: list[tuple[str, torch.Tensor]] | None = None) -> WeightManifest:
        """Write the policy's weights (or other tensors in their stead) as the next version, with a canary."""
        self.version += 1
        manifest = write_buckets(self.folder, self.version, tensors or self.named_tensors())
        tokens = tuple(sequences(1, 32, seed=9)[0])
        return manifest.with_canary(Canary(tokens, tuple(self.trainer_logprobs(tokens)), CANARY_TOLERANCE))

    async def update(self) -> CommitReport:
        return await self.engine.update_weights(self.publish())

    # ---- the engine's side ----

    def requests(
        self, n: int, max_new_tokens: int, temperature: float = 1.0, seed: int | None = 0
    ) -> list[GenerationRequest]:
        """Requests of 4 to 11 prompt tokens; the k-th of any two such lists differ in their ids alone."""
        self._requests += 1
        return [
            GenerationRequest(
                id=f"{self._requests}/{i}",
                client=_CLIENT,
                prompt_token_ids=tuple(sequences(1, 4 + i % 8, seed=i)[0]),
                sampling=SamplingDistribution(temperature=temperature),
                max_new_tokens=max_new_tokens,
                seed=None if seed is None else seed + i,
            )
            for i in range(n)
        ]

    async def gather(
        self, requests: Sequence[GenerationRequest], answers: dict[str, Answer] | None = None
    ) -> list[Answer]:
        """Collect until all of `requests` have ended; `answers` may hold what was collected before."""
        answers = answers if answers is not None else {}
        ids = [request.id for request in requests]
        while not all(i in answers and answers[i].finish for i in ids):
            await self.collect_into(answers, 10.0)
        return [answers[i] for i in ids]

    async def collect_into(self, answers: dict[str, Answer], timeout_s: float) -> None:
        for delta in await self.engine.collect(_CLIENT, timeout_s):
            answer = answers.setdefault(delta.id, Answer())
            answer.tokens += delta.tokens
            answer.logprobs += delta.logprobs
            answer.versions += delta.versions
            answer.finish, answer.error = delta.finish, delta.error

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        await self.engine.submit(requests)
        return await self.gather(requests)

    async def made(self, n_tokens: int) -> None:
        """Wait until the engine has made so many tokens more."""
        start = (await self.engine.stats()).generated_tokens
        while (await self.engine.stats()).generated_tokens < start + n_tokens:
            await asyncio.sleep(0.001)

    # ---- both ----

    async def difference(self, n: int = 4, length: int = 48, temperature: float = 1.0) -> float:
        """Largest difference in nats on fixed sequences that the engine scores."""
        worst = 0.0
        for tokens in sequences(n, length, seed=3):
            engine = await self.engine.score(tokens, temperature)
            worst = max(worst, _largest(engine, self.trainer_logprobs(tokens, temperature)))
        return worst

    async def sampled_difference(self, temperature: float, n: int = 16, new_tokens: int = 24) -> float:
        """The same on tokens that the engine sampled: how far log-ratios are from 0."""
        requests = self.requests(n, new_tokens, temperature)
        worst = 0.0
        for request, answer in zip(requests, await self.generate(requests), strict=True):
            prompt = list(request.prompt_token_ids)
            trainer = self.trainer_logprobs(prompt + answer.tokens, temperature)
            worst = max(worst, _largest(answer.logprobs, trainer[len(prompt) - 1 :]))
        return worst


def sequences(n: int, length: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(_VOCABULARY, (n, length), generator=generator).tolist()


def _largest(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


async def open_pair(folder: Path | str, *, tied: bool, name: str = "selfcheck") -> Pair:
    """Make the model below `folder`, start an engine on it and load the policy beside it."""
    model = Path(folder) / ("tied" if tied else "untied")
    make_tiny_model(model, tied=tied)
    engine = RolloutEngine(EngineSpec(str(model), name=name, kv_cache_mb=64, seeded_requests=True))
    await engine.start()
    return Pair(engine, load_policy(str(model)), run_folder(f"{name}-{model.name}"), tied)


async def close_pair(pair: Pair) -> None:
    await pair.engine.shutdown()
    remove_run(pair.folder)
