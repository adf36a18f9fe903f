"""A judge inside the run: engines of its own, asked by the reward workers in tokens, as runners ask rollout engines."""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.judge import JudgeFailedError
from roll_ray.actors import Actor
from roll_ray.errors import WorkerDiedError
from roll_ray.sample import SamplingDistribution
from workers.engine_client import EngineClient
from workers.generation_types import Asked, Engine, GenerationFailedError
from workers.tokenizer import ModelTokenizer, load_tokenizer

GREEDY = SamplingDistribution(temperature=0.0)


@dataclass(slots=True)
class PoolJudge:
    """Asks the judge's engines, greedily. A text is a user's message where the model has a chat template.

    Tokenizer and client are made at the first question, in the process that asks. While an engine is restarted its
    questions go to the others, or wait; what is not answered within `timeout_s` is a failed call.
    """

    model: str
    engines: Sequence[Actor[Engine]]
    max_new_tokens: int = 256
    timeout_s: float = 15.0
    _client: EngineClient | None = field(default=None, init=False, repr=False, compare=False)
    _tokenizer: ModelTokenizer | None = field(default=None, init=False, repr=False, compare=False)
    _ready: asyncio.Task[None] | None = field(default=None, init=False, repr=False, compare=False)
    _numbers: Iterator[int] = field(default_factory=itertools.count, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.engines, self.max_new_tokens, self.timeout_s)

    async def __call__(self, text: str) -> str:
        """Raises JudgeFailedError."""
        await self._start()
        assert self._client is not None
        assert self._tokenizer is not None
        asked = Asked(
            id=f"{self._client.name}/{next(self._numbers)}",
            prompt_tokens=tuple(self._tokens(text)),
            sampling=GREEDY,
            max_new_tokens=self.max_new_tokens,
            stop_token_ids=self._tokenizer.end_token_ids(),
        )
        answer = asyncio.create_task(self._client.generate(asked))
        try:
            if not (await asyncio.wait({answer}, timeout=self.timeout_s))[0]:
                waits = ", ".join(self._client.waiting_for())
                raise JudgeFailedError(f"no answer within {self.timeout_s:g} s from {waits}")
            return self._tokenizer.decode(answer.result().tokens)
        except (GenerationFailedError, WorkerDiedError) as error:
            raise JudgeFailedError(str(error), again=False) from None
        finally:
            answer.cancel()

    async def close(self) -> None:
        """Stop asking (tests)."""
        if self._client is not None:
            await self._client.close()

    def _tokens(self, text: str) -> list[int]:
        assert self._tokenizer is not None
        if self._tokenizer.has_chat_template:
            return self._tokenizer.apply_chat_template([{"role": "user", "content": text}])
        return self._tokenizer.encode(text)

    async def _start(self) -> None:
        if self._ready is None:
            self._ready = asyncio.create_task(self._get_ready())
        try:
            await asyncio.shield(self._ready)
        except Exception:
            self._ready = None  # the next question tries again
            raise

    async def _get_ready(self) -> None:
        if self._tokenizer is None:
            self._tokenizer = await asyncio.to_thread(load_tokenizer, self.model)
        if self._client is None:
            self._client = EngineClient(f"judge-client-{os.getpid()}-{uuid.uuid4().hex[:8]}", self.engines)
        await self._client.start()
