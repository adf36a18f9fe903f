"""The recipe of tail batching: short, and its plan says what a round launches, without torch, Ray or vLLM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).parents[2] / "recipes" / "rollpacker.py"


def test_the_recipe_is_under_100_lines_and_its_plan_says_what_is_launched(tmp_path: Path) -> None:
    assert len(RECIPE.read_text().splitlines()) < 100
    program = (
        "import sys; from recipes.cli import main; code = main(['plan', sys.argv[1]]);"
        "print([m for m in ('torch', 'ray', 'vllm') if m in sys.modules]); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, str(RECIPE)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a short round launches 40 prompts x 10" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
