"""A judge behind an OpenAI-compatible server, asked by the `openai` package's async client."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from envs.judge import JudgeFailedError
from roll_ray.errors import RollRayError

_HOPELESS = (400, 401, 403, 404, 422)
"""HTTP statuses that another call will not change."""


@dataclass(slots=True)
class EndpointJudge:
    """Asks `model` at `endpoint` (a base URL that ends in /v1), at temperature 0.

    The key is in the environment variable `key_variable` of the process that asks; a server that wants none may do
    without. The connection is opened at the first call, so the judge can travel to a worker.
    """

    model: str
    endpoint: str
    key_variable: str = "OPENAI_API_KEY"
    max_new_tokens: int = 256
    timeout_s: float = 15.0
    _client: Any = field(default=None, init=False, repr=False, compare=False)

    async def __call__(self, text: str) -> str:
        """Raises JudgeFailedError; RollRayError without the package."""
        openai = _openai()
        if self._client is None:
            self._client = openai.AsyncOpenAI(
                base_url=self.endpoint,
                api_key=os.environ.get(self.key_variable) or "none",
                timeout=self.timeout_s,
                max_retries=0,  # the caller counts its attempts
            )
        try:
            answer = await self._client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": text}],
                temperature=0.0,
                max_tokens=self.max_new_tokens,
            )
        except openai.APITimeoutError:
            raise JudgeFailedError(f"{self.endpoint} did not answer within {self.timeout_s:g} s") from None
        except openai.APIStatusError as error:
            raise JudgeFailedError(self._refusal(error), error.status_code not in _HOPELESS) from None
        except openai.APIError as error:
            raise JudgeFailedError(f"{self.endpoint}: {error}") from None
        if not answer.choices or answer.choices[0].message.content is None:
            raise JudgeFailedError(f"{self.endpoint} gave an answer without text")
        return str(answer.choices[0].message.content)

    def _refusal(self, error: Any) -> str:
        unset = "" if os.environ.get(self.key_variable) else f" ({self.key_variable} is not set)"
        keyless = unset if error.status_code in (401, 403) else ""
        return f"{self.endpoint} answered {error.status_code}{keyless}: {error.message}"


def _openai() -> Any:
    try:
        import openai
    except ImportError:
        raise RollRayError(
            "a judge behind an endpoint needs the package openai",
            next_step="`make envs`, or pip install openai",
        ) from None
    return openai
