"""Imports only point down, and what must stay light stays light."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schedulers", "roll_ray", "envs", "workers", "recipes")
HEAVY = ("torch", "ray", "vllm", "transformers", "deepspeed", "megatron", "datasets")

BLOCKER = f"""
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ImportError(f"{{name}} is blocked by this test")

sys.meta_path.insert(0, Blocker())
"""


def python(program: str, cwd: Path, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(path)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; from importlinter.cli import lint_imports_command; sys.argv[1:] = []; lint_imports_command()"
    return python(program, cwd=folder, path=folder)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_only_point_down(copied: Path) -> None:
    done = lint_imports(copied)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("roll_ray/errors.py", "import workers", "Imports only point down the floors"),
        (
            "schedulers/protocol.py",
            "def f():\n    import roll_ray.errors",
            "Imports only point down the floors",
        ),
        ("schedulers/protocol.py", "import time", "schedulers hold decisions only"),
        ("roll_ray/devices.py", "def f():\n    import ray", "Ray is imported in roll_ray.cluster only"),
        (
            "envs/__init__.py",
            "import torch",
            "torch is imported in roll_ray.algorithms and roll_ray.weights only",
        ),
        ("recipes/plan.py", "def f():\n    import vllm", "vLLM is imported in workers only"),
    ],
)
def test_an_import_that_points_up_or_out_is_caught(copied: Path, file: str, line: str, contract: str) -> None:
    with (copied / file).open("a") as source:
        source.write(f"\n\n{line}\n")
    done = lint_imports(copied)
    assert done.returncode != 0
    assert f"{contract} BROKEN" in " ".join(done.stdout.split())


def test_the_core_loads_neither_torch_nor_ray_nor_vllm(tmp_path: Path) -> None:
    done = python(BLOCKER + "import roll_ray, schedulers, envs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_blocker_of_these_tests_blocks(tmp_path: Path) -> None:
    assert "ray is blocked by this test" in python(BLOCKER + "import ray.util", cwd=tmp_path).stderr


def test_plan_and_report_load_neither_torch_nor_ray_nor_vllm(tmp_path: Path) -> None:
    recipe = ROOT / "recipes" / "grpo_qwen.py"
    program = f"""
from pathlib import Path
from recipes.cli import main
from roll_ray.settings import RunSettings
from roll_ray.tracking.run_folder import RunFolder, RunRecord, prepare

assert main(["plan", {str(recipe)!r}]) == 0
Path("mine").mkdir()
for name in ("config.json", "model.safetensors", "tokenizer.json", "d.jsonl"):
    (Path("mine") / name).write_text('{{"prompt": "a", "answer": "b"}}')
assert main(["plan", {str(recipe)!r}, "model=./mine", "data=mine/d.jsonl"]) == 0
assert main(["plan", {str(recipe)!r}, "model=./none", "data=none.parquet"]) == 1
assert main(["plan", {str(recipe)!r}, "adv_estimator=gae", "correction.name=icepop", "loss=decoupled_ppo"]) == 1
folder = Path("run")
prepare(folder, RunSettings(model="m"), RunRecord.now("toy", Path("toy.py")))
RunFolder(folder).record(1, {{"reward_mean": 0.5}})
assert main(["report", "run"]) == 0
"""
    done = python(BLOCKER + program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Who sits where" in done.stdout
    assert "wrong: adv_estimator=gae needs values of a critic" in done.stdout
    assert "wrong: loss=decoupled_ppo has a behaviour weight of its own" in done.stdout
    assert (tmp_path / "run" / "report.html").stat().st_size > 1_000_000


@pytest.mark.parametrize("package", ["schedulers", "envs", "workers", "recipes"])
@pytest.mark.parametrize("marker", ["__init__.py", ""])
def test_a_users_own_folder_that_shadows_a_package_is_said_at_import(
    tmp_path: Path, package: str, marker: str
) -> None:
    mine = tmp_path / package
    mine.mkdir()
    (mine / (marker or "data.py")).write_text("")
    done = python("import roll_ray", cwd=tmp_path)
    if marker:
        assert done.returncode != 0
        assert f"{mine} shadows {ROOT / package}" in done.stderr
        assert f"rename {mine}" in done.stderr
    else:  # a folder without __init__.py gives way to a package that comes later on the path
        assert done.returncode == 0, done.stderr


def test_a_missing_package_is_said_at_import(copied: Path, tmp_path: Path) -> None:
    shutil.rmtree(copied / "envs")
    program = (
        "import sys, importlib.machinery as m\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "import roll_ray"
    )
    done = python(program, cwd=tmp_path / "schedulers", path=copied)
    assert done.returncode != 0
    assert "the package envs of roll-ray is missing" in done.stderr
