"""Reading prompts.

loaded = load_prompts("train.jsonl", max_prompt_tokens=512, length_of=lambda p: len(tokens_of(p)))
loaded.prompts, loaded.counts.sentence()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from roll_ray.data_files import read_rows
from roll_ray.data_layouts import prompt_of
from roll_ray.errors import DataError
from roll_ray.sample import Prompt


@dataclass(slots=True)
class DataCounts:
    """What became of the rows of a source."""

    read: int = 0
    kept: int = 0
    too_long: int = 0
    repeated: int = 0
    without_reference: int = 0

    def sentence(self) -> str:
        dropped = [
            f"{count} {what}"
            for count, what in (
                (self.too_long, "over the length limit"),
                (self.repeated, "repeated"),
                (self.without_reference, "without a reference answer"),
            )
            if count
        ]
        return f"{self.kept} of {self.read} prompts" + (f", dropped: {', '.join(dropped)}" if dropped else "")


@dataclass(frozen=True, slots=True)
class LoadedPrompts:
    """Prompts in the order of the source, each id once."""

    prompts: list[Prompt]
    counts: DataCounts


def check_rows(source: str | Path, n: int) -> None:
    """Raise DataError unless `source` is there, can be read, and its first `n` rows are prompts."""
    rows = list(islice(read_rows(source), n))
    if not rows:
        raise _no_rows(str(source))
    for where, row in rows:
        prompt_of(row, where, as_chat=False, suffix="")


def load_prompts(
    source: str | Path,
    *,
    max_prompt_tokens: int | None = None,
    length_of: Callable[[Prompt], int] | None = None,
    as_chat: bool = False,
    suffix: str = "",
    needs_reference: bool = True,
) -> LoadedPrompts:
    """Prompts of a JSONL or Parquet file, a folder of them or a hub data set (layouts: `roll_ray.data_layouts`).

    `length_of` gives the tokens of a rendered prompt; those longer than `max_prompt_tokens` are dropped and
    counted, as are repeated rows and, where a reward `needs_reference`, rows without one. `as_chat` turns a
    question given as text into a user message, after adding `suffix`. Raises DataError.
    """
    counts = DataCounts()
    kept: dict[str, tuple[Prompt, str]] = {}
    longest, shortest_dropped = max_prompt_tokens, None
    for where, row in read_rows(source):
        counts.read += 1
        prompt = prompt_of(row, where, as_chat=as_chat, suffix=suffix)
        if needs_reference and not prompt.reference:
            counts.without_reference += 1
        elif prompt.id in kept:
            _check_same(prompt, where, *kept[prompt.id])
            counts.repeated += 1
        elif longest is not None and length_of is not None and (length := length_of(prompt)) > longest:
            counts.too_long += 1
            shortest_dropped = min(length, shortest_dropped or length)
        else:
            kept[prompt.id] = prompt, where
    counts.kept = len(kept)
    if not kept:
        raise _nothing_left(str(source), counts, max_prompt_tokens, shortest_dropped)
    return LoadedPrompts([prompt for prompt, _ in kept.values()], counts)


def _check_same(prompt: Prompt, where: str, earlier: Prompt, earlier_where: str) -> None:
    if (prompt.messages, prompt.text, prompt.reference) != (
        earlier.messages,
        earlier.text,
        earlier.reference,
    ):
        raise DataError(
            f"{where}: the id {prompt.id!r} belongs to another prompt already, {earlier_where}",
            why="visits, groups and checkpoints are told apart by the prompt's id",
            next_step="give every prompt an id of its own, or drop the id column",
        )


def _nothing_left(source: str, counts: DataCounts, limit: int | None, shortest: int | None) -> DataError:
    if not counts.read:
        return _no_rows(source)
    if counts.too_long:
        return DataError(
            f"{source}: no prompt is left, {counts.sentence()}",
            why=f"max_prompt_tokens={limit}, and the shortest prompt dropped has {shortest} tokens",
            next_step=f"set max_prompt_tokens to {shortest} or more",
        )
    return DataError(
        f"{source}: no prompt is left, {counts.sentence()}",
        why="a reward needs a reference answer, and no row has one",
        next_step="name its column reference, ground_truth or answer",
    )


def _no_rows(source: str) -> DataError:
    return DataError(f"{source} holds no rows", next_step="name data that holds some")
