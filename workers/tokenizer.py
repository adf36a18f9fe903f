"""The tokenizer of a model folder, behind the small protocol that tasks and runners know."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from roll_ray.errors import RollRayError

CACHED, SHORT = 4096, 64
"""So many texts and responses of up to so many characters or tokens are remembered: environments of many turns say the
same few things over and over, and a call of the tokenizer takes 0.2 ms."""


class ModelTokenizer:
    """A Hugging Face tokenizer. Text and chats are turned into exactly the tokens that they spell."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer, self._name = tokenizer, name
        self._encoded = functools.lru_cache(CACHED)(self._encode)
        self._decoded = functools.lru_cache(CACHED)(self._decode)

    def encode(self, text: str) -> list[int]:
        return list(self._encoded(text) if len(text) <= SHORT else self._encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        tokens = tuple(token_ids)
        return self._decoded(tokens) if len(tokens) <= SHORT else self._decode(tokens)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, token_ids: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode(self.render_chat(messages))

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        if not self.has_chat_template:
            raise RollRayError(
                f"the tokenizer of {self._name} has no chat template, and a prompt is a list of messages",
                next_step="give prompts as text, or use a model whose tokenizer has a chat template",
            )
        text = self._tokenizer.apply_chat_template(
            [dict(m) for m in messages], add_generation_prompt=True, tokenize=False
        )
        return str(text)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def largest_token_id(self) -> int:
        """The largest id that encoding can give; vocabularies may have holes."""
        return max(self._tokenizer.get_vocab().values(), default=-1)

    def end_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a response: what the model's generation settings say, and the tokenizer's own."""
        from transformers import GenerationConfig

        try:
            said = GenerationConfig.from_pretrained(self._name).eos_token_id
        except OSError:
            said = None  # a model folder need not have generation settings
        ids = said if isinstance(said, list) else [said]
        return tuple(sorted({int(i) for i in (*ids, self._tokenizer.eos_token_id) if i is not None}))


def load_tokenizer(model: str) -> ModelTokenizer:
    """The tokenizer of a model folder or hub name."""
    from transformers import AutoTokenizer

    try:
        return ModelTokenizer(AutoTokenizer.from_pretrained(model), model)
    except (OSError, ValueError) as error:
        raise RollRayError(
            f"model {model} has no tokenizer that can be loaded",
            why=str(error).splitlines()[0],
            next_step="put the tokenizer's files (tokenizer.json, tokenizer_config.json) into the model folder",
        ) from error
