"""The tokenizer of a model folder, behind the small protocol that tasks and runners know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roll_ray.errors import RollRayError


class ModelTokenizer:
    """A Hugging Face tokenizer. Text and chats are turned into exactly the tokens that they spell."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer, self._name = tokenizer, name

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

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
