"""Calls in OpenAI's format as the proxy reads them, and the answers it gives. No server and no state here.

What the run cannot honour is refused with status 400 and the parameter's name; nothing is ignored in silence.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envs.task import Turn

MODEL = "policy"
"""The name of the only model there is. A call may name any: the policy answers."""

ROLES = ("system", "user", "assistant")
_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "logit_bias", "seed", "stop"} | {
    f"{kind}_penalty" for kind in ("presence", "frequency", "repetition")
}
_WITHOUT_EFFECT = ("model", "user", "metadata")


class RefusedError(Exception):
    """A call that gets an error for an answer: HTTP status, sentence, parameter and OpenAI's error code."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True)
class Call:
    """What an agent asks: a whole conversation, or a whole text that the policy goes on from.

    `max_new_tokens` lowers the run's limit. `repeated`: the client says that it sent this call before.
    """

    says: tuple[dict[str, str], ...] | str
    max_new_tokens: int | None = None
    logprobs: bool = False
    stream: bool = False
    stream_usage: bool = False
    repeated: bool = False

    @property
    def chat(self) -> bool:
        return not isinstance(self.says, str)


# --- reading ---------------------------------------------------------------------------------------


def chat_call(body: Any, repeated: bool = False) -> Call:
    """A call to `/v1/chat/completions`. Raises `RefusedError`."""
    fields = _fields(body)
    messages = fields.pop("messages", None)
    limits = [fields.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
    logprobs = _truth(fields, "logprobs")
    _only(fields, "top_logprobs", 0, "the engine reports the tokens that were drawn, not their alternatives")
    _only(fields, "response_format", {"type": "text"}, "the policy writes what it writes")
    stream, usage = _streaming(fields)
    _nothing_else(fields)
    return Call(_messages(messages), _limit(*limits), logprobs, stream, usage, repeated)


def text_call(body: Any, repeated: bool = False) -> Call:
    """A call to `/v1/completions`. Raises `RefusedError`."""
    fields = _fields(body)
    text = fields.pop("prompt", None)
    if not isinstance(text, str) or not text:
        raise RefusedError(400, "prompt must be one string that is not empty", "prompt")
    limit = fields.pop("max_tokens", None)
    logprobs = fields.pop("logprobs", None)
    if logprobs not in (None, 0) or isinstance(logprobs, bool):
        why = "0 gives those of the drawn tokens; the engine does not report their alternatives"
        raise RefusedError(400, f"logprobs={logprobs!r} is not supported: {why}", "logprobs")
    _only(fields, "echo", False, "the answer is what the policy wrote")
    _only(fields, "best_of", 1, "the run decides how many answers a prompt gets")
    _only(fields, "suffix", "", "the policy writes from left to right")
    stream, usage = _streaming(fields)
    _nothing_else(fields)
    return Call(text, _limit(limit), logprobs is not None, stream, usage, repeated)


def _fields(body: Any) -> dict[str, Any]:
    """The parameters that say something, after those whose refusal deserves a sentence of its own."""
    if not isinstance(body, Mapping):
        raise RefusedError(400, "the body of a call is a JSON object")
    fields = {
        name: value for name, value in body.items() if value is not None and name not in _WITHOUT_EFFECT
    }
    for name in fields:
        if name in _SAMPLING:
            why = "how tokens are drawn and where they end is the run's to say (settings `sampling`): leave it out"
            raise RefusedError(400, f"{name}={fields[name]!r} is not supported: {why}", name)
    _only(fields, "n", 1, "the run decides how many answers a prompt gets")
    for name in ("tools", "functions"):
        _only(fields, name, [], "describe tools in a message and read their calls from the text")
    return fields


def _streaming(fields: dict[str, Any]) -> tuple[bool, bool]:
    stream, options = _truth(fields, "stream"), fields.pop("stream_options", {})
    if not isinstance(options, Mapping) or set(options) - {"include_usage"}:
        raise RefusedError(
            400, f"stream_options={options!r}: only include_usage is supported", "stream_options"
        )
    return stream, bool(options.get("include_usage"))


def _truth(fields: dict[str, Any], name: str) -> bool:
    value = fields.pop(name, False)
    if not isinstance(value, bool):
        raise RefusedError(400, f"{name}={value!r} is neither true nor false", name)
    return value


def _only(fields: dict[str, Any], name: str, allowed: Any, why: str) -> None:
    value = fields.pop(name, allowed)
    if value != allowed:
        raise RefusedError(400, f"{name}={value!r} is not supported: {why}", name)


def _nothing_else(fields: Mapping[str, Any]) -> None:
    for name in fields:
        raise RefusedError(400, f"the parameter {name!r} is not supported", name, "unsupported_parameter")


def _limit(*given: Any) -> int | None:
    limits = [value for value in given if value is not None]
    for value in limits:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RefusedError(400, f"max_tokens={value!r} is not a whole number above 0", "max_tokens")
    return min(limits, default=None)


def _messages(messages: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages must be a list that is not empty", "messages")
    read = tuple(_message(i, message) for i, message in enumerate(messages))
    if read[-1]["role"] == "assistant":
        raise RefusedError(400, "the last message is the assistant's: the policy begins its own", "messages")
    return read


def _message(i: int, message: Any) -> dict[str, str]:
    where = f"messages[{i}]"
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        raise RefusedError(400, f"{where} must have a role of {', '.join(ROLES)}", where)
    for name, value in message.items():
        if name not in ("role", "content") and value not in (None, []):
            raise RefusedError(400, f"{where}: {name!r} is not supported", where)
    return {"role": message["role"], "content": _content(where, message.get("content"))}


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [_text_of(part) for part in content] if isinstance(content, list) else [None]
    if None in texts:
        raise RefusedError(400, f"{where}: the content must be text", where)
    return "".join(filter(None, texts))


def _text_of(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    return text if isinstance(text, str) else None


# --- answering -------------------------------------------------------------------------------------


def response_of(call: Call, answer: Turn) -> dict[str, Any]:
    """The whole answer as one JSON object."""
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": answer.finish_reason,
        "logprobs": _logprobs(call, answer),
    }
    if call.chat:
        choice["message"] = {"role": "assistant", "content": answer.text}
    else:
        choice["text"] = answer.text
    kind = "chat.completion" if call.chat else "text_completion"
    return {**_head(call, kind), "choices": [choice], "usage": _usage(answer)}


def chunks_of(call: Call, answer: Turn) -> Iterator[dict[str, Any]]:
    """The answer as a stream: one chunk with all of the text, one that says why it ended, the usage if asked."""
    head = _head(call, "chat.completion.chunk" if call.chat else "text_completion")
    logprobs = _logprobs(call, answer)
    if call.chat:
        said: dict[str, Any] = {"delta": {"role": "assistant", "content": answer.text}}
        nothing: dict[str, Any] = {"delta": {}}
    else:
        said, nothing = {"text": answer.text}, {"text": ""}
    yield {**head, "choices": [{"index": 0, **said, "finish_reason": None, "logprobs": logprobs}]}
    yield {
        **head,
        "choices": [{"index": 0, **nothing, "finish_reason": answer.finish_reason, "logprobs": None}],
    }
    if call.stream_usage:
        yield {**head, "choices": [], "usage": _usage(answer)}


def models() -> dict[str, Any]:
    """The answer to `/v1/models`."""
    return {
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "roll-ray"}],
    }


def _head(call: Call, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl" if call.chat else "cmpl"
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": MODEL}


def _usage(answer: Turn) -> dict[str, int]:
    read, written = answer.n_context_tokens, len(answer.token_ids)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _logprobs(call: Call, answer: Turn) -> dict[str, Any] | None:
    """Each token by its id, since the text of single tokens need not be valid text."""
    if not call.logprobs:
        return None
    tokens = [f"token_id:{token}" for token in answer.token_ids]
    logprobs = [float(logprob) for logprob in answer.logprobs]
    if not call.chat:
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": None}
    content: list[dict[str, Any]] = [
        {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(tokens, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}
