"""Whether a model folder can be trained on, before anything heavy starts."""

from __future__ import annotations

from pathlib import Path

from roll_ray.errors import RollRayError
from workers.model_context import vocabulary_size
from workers.tokenizer import load_tokenizer

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


def check_model_folder(model: str) -> None:
    """Raise RollRayError unless configuration, weights and a tokenizer that fits them are there.

    `model` is a folder or a hub name. Loads the configuration and the tokenizer, not the weights.
    """
    check_model_files(model)
    rows, largest = vocabulary_size(model), load_tokenizer(model).largest_token_id()
    if rows is not None and largest >= rows:
        raise RollRayError(
            f"the tokenizer of {model} is not its own",
            why=f"it has token ids up to {largest}, and the model's embedding has {rows} rows (0 to {rows - 1})",
            next_step="put the tokenizer that the model was trained with into its folder; for added tokens, "
            "enlarge the model's embeddings first (resize_token_embeddings)",
        )


def is_hub_name(model: str) -> bool:
    """Whether `model` is neither a folder or file here nor written like a path."""
    written_as_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    return not written_as_path and not Path(model).exists()


def check_model_files(model: str) -> None:
    """Raise RollRayError for a folder without configuration, weights or tokenizer; a hub name is left to the hub.

    Looks at names only and loads nothing.
    """
    if is_hub_name(model):
        return
    folder = Path(model).expanduser()
    if not folder.exists():
        raise RollRayError(
            f"there is no model folder {model}",
            why=f"{folder.absolute()} does not exist",
            next_step="check model=, or name a model of the hub as owner/name",
        )
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
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        # transformers would make an empty tokenizer of the model's kind up, which turns every text into nothing
        raise RollRayError(
            f"{model} has no tokenizer",
            why=f"there is none of {', '.join(_TOKENIZER_FILES)} in it",
            next_step="copy the tokenizer's files from the model it was made from into the folder",
        )
