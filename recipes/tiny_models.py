"""Makes the small models of the demos, from nothing: a tiny Qwen3 that reads characters, and the letter-a Qwen2.

    python -m recipes.tiny_models FOLDER [seed]

A made model is an ordinary Hugging Face folder with its tokenizer. torch and transformers are loaded only
when one is made.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.made_models import made_once

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
PAD_ID, EOS_ID, UNKNOWN_ID = 0, 1, 2

DEMO_CHARACTERS = string.ascii_lowercase + string.digits + " >=<+-*/.,:?\n"
PRINTABLE_CHARACTERS = "".join(map(chr, range(32, 127)))


def make_tiny_qwen3(folder: Path, seed: int = 0) -> Path:
    """The demo model, 0.79 M parameters, random weights; reads lower-case letters, digits and some signs."""
    return made_once(folder, {"model": "tiny_qwen3", "seed": seed}, lambda new: _write_tiny_qwen3(new, seed))


def make_letter_a_qwen2(folder: Path, seed: int = 0) -> Path:
    """The model of the letter-a comparison, in the variant with heads of 32 that vLLM takes on a CPU."""
    return made_once(
        folder, {"model": "letter_a_qwen2", "seed": seed}, lambda new: _write_letter_a_qwen2(new, seed)
    )


def make_character_qwen3(
    folder: Path,
    characters: str,
    seed: int = 0,
    *,
    hidden: int = 64,
    layers: int = 2,
    context: int = 128,
) -> Path:
    """A Qwen3 with random weights and heads of 32 that reads these characters, for agents that speak in few of them."""
    sizes = {"hidden": hidden, "layers": layers, "context": context}
    record = {"model": "character_qwen3", "seed": seed, "characters": characters, **sizes}
    return made_once(
        folder, record, lambda new: _write_character_qwen3(new, characters, seed, hidden, layers, context)
    )


def character_tokenizer(characters: Sequence[str], context: int = 128) -> PreTrainedTokenizerFast:
    """One token a character: pad 0, eos 1, unknown 2, then `characters` in their order. Adds no special token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNKNOWN, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )


def _write_tiny_qwen3(folder: Path, seed: int) -> None:
    from transformers import Qwen3Config

    config = Qwen3Config(
        vocab_size=3 + len(DEMO_CHARACTERS),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=128,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=None,
    )
    _write_random_model(folder, config, DEMO_CHARACTERS, seed)


def _write_character_qwen3(
    folder: Path, characters: str, seed: int, hidden: int, layers: int, context: int
) -> None:
    from transformers import Qwen3Config

    config = Qwen3Config(
        vocab_size=3 + len(characters),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=context,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=None,
    )
    _write_random_model(folder, config, characters, seed)


def _write_letter_a_qwen2(folder: Path, seed: int) -> None:
    from transformers import Qwen2Config

    config = Qwen2Config(
        vocab_size=3 + len(PRINTABLE_CHARACTERS),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=None,
    )
    _write_random_model(folder, config, PRINTABLE_CHARACTERS, seed)


def _write_random_model(folder: Path, config: PreTrainedConfig, characters: str, seed: int) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):  # the caller's random state is not ours to change
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    character_tokenizer(characters, config.max_position_embeddings).save_pretrained(folder)


if __name__ == "__main__":
    print(make_tiny_qwen3(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
