"""The supervised loop: the trainer backend of the reinforcement runs, alone in this process, with loss "sft"."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers.utils.logging import disable_progress_bar

from envs import sort_letters
from envs.task import Observation
from recipes.greedy import greedy_accuracy
from recipes.model_folder import check_model_folder
from roll_ray.algorithms.aggregation import denominator
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import build_loss
from roll_ray.batch import Batch
from roll_ray.data import load_prompts
from roll_ray.data_stream import PromptStream
from roll_ray.errors import RollRayError
from roll_ray.sample import Prompt, Reward, Role, Sample, SamplingDistribution, TrajectoryBuilder
from schedulers.protocol import SampleId, Visit
from workers.backends.base import OptimizerSettings
from workers.backends.fsdp2 import FSDP2Backend
from workers.backends.process_group import join_alone, leave
from workers.hf_model import save_hf_folder
from workers.tokenizer import ModelTokenizer, load_tokenizer

PLAIN_LINE_EVERY_STEPS = 20


class LoopSettings(Protocol):
    """What the loop wants to know."""

    steps: int
    examples_per_step: int
    learning_rate: float
    warmup_steps: int
    tokens_per_device: int
    seed: int


class SftSettings(LoopSettings, Protocol):
    """And what the data wants to know (`recipes.sft_warmup.Settings`)."""

    data: str | None
    max_prompt_tokens: int


def train(settings: SftSettings, model: str, folder: Path) -> dict[str, Any]:
    """Train `model` on the settings' data, write it to `folder`, and report.

    Deterministic for a seed and a thread count. The report: loss of the last step (mean over tokens), seconds,
    held-out greedy accuracy (None for data of one's own).
    """
    started_s = time.monotonic()
    check_model_folder(model)
    tokenizer = load_tokenizer(model)
    loss = teach(settings, model, folder, _batches(settings, tokenizer))
    accuracy = None
    if settings.data is None:
        accuracy = greedy_accuracy(
            str(folder),
            sort_letters.heldout_prompts(),
            sort_letters.reward,
            max_new_tokens=sort_letters.MAX_ANSWER_TOKENS,
        )
    return {"loss": loss, "heldout_accuracy": accuracy, "seconds": round(time.monotonic() - started_s, 2)}


def teach(settings: LoopSettings, model: str, folder: Path, batches: Iterator[Batch]) -> float:
    """Train `model` on policy tokens of the next `steps` batches as they stand, write it to `folder`; the last loss."""
    disable_progress_bar()  # of loading: what takes long here is shown below
    join_alone()
    try:
        backend = FSDP2Backend(
            model, _optimizer(settings), tokens_per_device=settings.tokens_per_device, seed=settings.seed
        )
        with deterministic_torch():
            loss = _last_shown(_losses(backend, itertools.islice(batches, settings.steps)), settings.steps)
        tensors = {name: tensor.clone() for name, tensor in backend.named_tensors()}
        save_hf_folder(model, backend.config, tensors, str(folder))
    finally:
        leave()
    return loss


def _optimizer(settings: LoopSettings) -> OptimizerSettings:
    return OptimizerSettings(
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        total_steps=settings.steps,
    )


def _examples(settings: SftSettings, tokenizer: ModelTokenizer) -> list[Prompt]:
    """Prompts whose reference is the answer to learn."""
    if settings.data is None:
        return sort_letters.training_prompts(settings.steps * settings.examples_per_step, settings.seed)
    loaded = load_prompts(
        settings.data,
        max_prompt_tokens=settings.max_prompt_tokens,
        length_of=lambda prompt: len(Observation.of(prompt).tokens(tokenizer)),
    )
    print(loaded.counts.sentence(), flush=True)
    return loaded.prompts


def _batches(settings: SftSettings, tokenizer: ModelTokenizer) -> Iterator[Batch]:
    """Without end."""
    end = tokenizer.end_token_ids()
    if not end:
        raise RollRayError("the tokenizer has no end token, and an answer could not be taught to end")
    stream = PromptStream(_examples(settings, tokenizer), settings.seed)
    while True:
        drawn = stream.draw(settings.examples_per_step)
        yield Batch.of([_sample(visit, prompt, tokenizer, end[0]) for visit, prompt in drawn])


def _losses(backend: FSDP2Backend, batches: Iterable[Batch]) -> Iterator[float]:
    """Train, a step each time the next loss (mean over tokens, before the update) is asked for."""
    loss = build_loss(LossSettings(name="sft"))
    for batch in batches:
        sums = backend.accumulate(batch, loss)
        tokens = denominator("token_mean", batch.policy_tokens_B)
        backend.step(tokens)
        yield sums["loss_sum"].total / tokens


def _sample(visit: Visit, prompt: Prompt, tokenizer: ModelTokenizer, end_token: int) -> Sample:
    """The reference answer as if the policy had written it."""
    tokens = TrajectoryBuilder()
    tokens.append_given(Observation.of(prompt).tokens(tokenizer), Role.PROMPT)
    answer = [*tokenizer.encode(prompt.reference or ""), end_token]
    tokens.append_policy(answer, [0.0] * len(answer), [0] * len(answer))
    return Sample(
        id=SampleId(visit, 0),
        attempt=0,
        reward=Reward(1.0, "given"),
        finish_reason="stop",
        sampling=SamplingDistribution(),
        **tokens.arrays(),
    )


def _last_shown(losses: Iterator[float], steps: int) -> float:
    """The last loss; on the way a progress bar on a terminal, and a line now and then elsewhere."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("warm-up"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    loss = 0.0
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=steps)
        for step, loss in enumerate(losses, 1):
            progress.update(task, advance=1, description=f"loss {loss:.3f}")
            if not console.is_terminal and (step % PLAIN_LINE_EVERY_STEPS == 0 or step == steps):
                console.print(f"step {step} of {steps}: loss {loss:.3f}", highlight=False)
    return loss


@contextlib.contextmanager
def deterministic_torch() -> Iterator[None]:
    """One thread: sums over threads are in no fixed order, and a small model gains nothing from a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
