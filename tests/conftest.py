"""Fixtures that start nothing: a tiny model in a folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# a suite in the background of a shell has SIGINT ignored, and so would the programs that tests interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def letter_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The untrained letter-a Qwen2, 0.4 M parameters, with a character tokenizer."""
    from recipes.tiny_models import make_letter_a_qwen2

    return make_letter_a_qwen2(tmp_path_factory.mktemp("models") / "letter-a")
