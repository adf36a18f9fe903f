"""What the configuration of a model says, without loading the model (or torch)."""

from __future__ import annotations

from typing import Any

from roll_ray.errors import RollRayError


def context_tokens(model: str) -> int | None:
    """The longest sequence that the model was made for; None when its configuration does not say."""
    tokens = getattr(_text_config(model), "max_position_embeddings", None)
    return None if tokens is None else int(tokens)


def vocabulary_size(model: str) -> int | None:
    """How many tokens the model's embedding has; None when its configuration does not say."""
    tokens = getattr(_text_config(model), "vocab_size", None)
    return None if tokens is None else int(tokens)


def _text_config(model: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model).get_text_config()
    except (OSError, ValueError) as error:
        raise RollRayError(
            f"model={model} cannot be loaded",
            why=str(error).splitlines()[0],
            next_step="set model to a folder that save_pretrained wrote, or to the name of a hub model "
            "(which needs the network, or the hub's cache)",
        ) from error
