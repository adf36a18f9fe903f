"""The prompts of a runner's visits: handles that lead to them, resolved once, and their tokens, made once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.task import Tokenizer
from roll_ray.sample import Prompt
from schedulers.protocol import Visit


@dataclass(slots=True, eq=False)
class _Book:
    """One handle: a mapping of prompts by id, or a list that holds an awaitable of it (an object reference)."""

    handle: Any
    prompts: asyncio.Future[Mapping[str, Prompt]] | None = None


class PromptBooks:
    """Prompts by visit, through opaque handles."""

    def __init__(self) -> None:
        self._books: dict[Visit, _Book] = {}

    def add(self, visits: Sequence[Visit], handle: Any) -> None:
        """These visits' prompts are in the mapping that `handle` leads to."""
        new = [visit for visit in visits if visit not in self._books]
        if new:
            book = next((b for b in self._books.values() if _same(b.handle, handle)), None) or _Book(handle)
            self._books.update(dict.fromkeys(new, book))

    async def prompt(self, visit: Visit) -> Prompt:
        book = self._books[visit]
        if book.prompts is None:
            book.prompts = asyncio.ensure_future(_resolve(book.handle))
        prompts = await asyncio.shield(book.prompts)
        if visit.prompt_id not in prompts:
            raise LookupError(f"the prompts offered hold no prompt {visit.prompt_id!r}")
        return prompts[visit.prompt_id]

    def handles(self) -> tuple[tuple[tuple[Visit, ...], Any], ...]:
        """Every handle with the visits that it is for."""
        by_book: dict[int, tuple[list[Visit], Any]] = {}
        for visit, book in self._books.items():
            by_book.setdefault(id(book), ([], book.handle))[0].append(visit)
        return tuple((tuple(visits), handle) for visits, handle in by_book.values())

    def forget(self, visits: Sequence[Visit]) -> None:
        for visit in visits:
            self._books.pop(visit, None)


def _same(a: Any, b: Any) -> bool:
    """Handles arrive as new lists around equal references."""
    if a is b:
        return True
    return isinstance(a, list) and isinstance(b, list) and len(a) == len(b) == 1 and bool(a[0] == b[0])


async def _resolve(handle: Any) -> Mapping[str, Prompt]:
    inner = handle[0] if isinstance(handle, list) else handle
    return await inner if inspect.isawaitable(inner) else inner


@dataclass(slots=True)
class _OneVisit:
    """A tokenizer that remembers the prompt of one visit: siblings have it tokenised once."""

    whole: TokenCache
    visit: Visit

    def encode(self, text: str) -> list[int]:
        return self._once(("text", text), lambda: self.whole.uncached.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.whole.uncached.decode(token_ids)

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self._once(("messages", messages), lambda: self.whole.uncached.apply_chat_template(messages))

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        return self.whole.uncached.render_chat(messages)

    def _once(self, key: Any, make: Any) -> list[int]:
        known = self.whole.first.get(self.visit)
        if known is None:
            known = self.whole.first[self.visit] = (key, make())
        return list(known[1]) if known[0] == key else make()


@dataclass(slots=True)
class TokenCache:
    """The tokens of each open visit's first observation."""

    tokenizer: Tokenizer | None = None
    first: dict[Visit, tuple[Any, list[int]]] = field(default_factory=dict)

    @property
    def uncached(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RuntimeError("the tokenizer is not loaded yet")
        return self.tokenizer

    def of(self, visit: Visit) -> Tokenizer:
        return _OneVisit(self, visit)

    def forget(self, visits: Sequence[Visit]) -> None:
        for visit in visits:
            self.first.pop(visit, None)
