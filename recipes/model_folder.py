"""Whether a model folder can be trained on, before anything heavy starts."""

from __future__ import annotations

from pathlib import Path

from roll_ray.errors import RollRayError


def check_model_folder(model: str) -> None:
    """Raise RollRayError unless configuration, weights and a tokenizer that fits them are there.

    `model` is a folder or a hub name. Loads the configuration and the tokenizer, not the weights.
    """
    from workers.tokenizer import load_tokenizer

    _check_files(model)
    load_tokenizer(model)
    tokenizer_tokens, embedding_rows = _vocabulary_sizes(model)
    if tokenizer_tokens > embedding_rows:
        raise RollRayError(
            f"model {model}: its tokenizer has {tokenizer_tokens} tokens, its embedding {embedding_rows} rows",
            why="a token without an embedding row would stop or corrupt training and generation",
            next_step="use the tokenizer that belongs to the model, or resize the embedding "
            "(model.resize_token_embeddings) and save both again",
        )


def _check_files(model: str) -> None:
    """A folder needs config.json and weights; a hub name is left to the hub."""
    folder = Path(model).expanduser()
    if not folder.exists():
        if model.startswith((".", "/", "~")) or model.count("/") > 1:
            raise RollRayError(f"there is no model folder {model}", next_step="check model=")
        return
    if not folder.is_dir():
        raise RollRayError(
            f"model {model} is a file", next_step="name the folder that it is in, or convert it to a folder"
        )
    if not (folder / "config.json").is_file():
        raise RollRayError(
            f"{model} is not a model folder",
            why="there is no config.json in it",
            next_step="name a folder that save_pretrained wrote",
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        raise RollRayError(
            f"{model} has no weights",
            why="there is neither a .safetensors file nor a pytorch_model.bin in it",
            next_step="copy the weights into the folder, or name another one",
        )


def _vocabulary_sizes(model: str) -> tuple[int, int]:
    """The tokenizer's largest id + 1, and the rows that the configuration gives the embedding."""
    from transformers import AutoConfig, AutoTokenizer

    vocabulary = AutoTokenizer.from_pretrained(model).get_vocab()
    config = AutoConfig.from_pretrained(model)
    return max(vocabulary.values(), default=-1) + 1, int(config.get_text_config().vocab_size)
