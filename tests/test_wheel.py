"""A wheel builds, installs into an empty environment, and `roll-ray plan` works from it.

`plan` needs these pure packages (and what they need) and nothing else: numpy, pydantic, PyYAML, rich,
platformdirs, xxhash. They are lent to the empty environment as links, so that no index is asked.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schedulers", "roll_ray", "envs", "workers", "recipes")
PLAN_NEEDS = (
    *("numpy", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"),
    *("PyYAML", "rich", "markdown-it-py", "mdurl", "Pygments", "platformdirs", "xxhash"),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left behind in the source tree."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source)
    (source / "tests").mkdir()
    (source / "tests" / "stray.py").write_text("")
    build = ["wheel", "-qq", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out), "."]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *build], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and the packages that `plan` needs, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    install = ["install", "-qq", "--no-deps", "--no-index", "--prefix", str(folder), str(wheel)]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), *install], check=True
    )
    for name in PLAN_NEEDS:
        for top in {
            Path(f).parts[0] for f in importlib.metadata.files(name) or () if Path(f).parts[0] != ".."
        }:
            there = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            if there.exists() and there.name != "__pycache__":
                (site / top).symlink_to(there)
    return folder / "bin" / "python"


def test_the_wheel_holds_the_five_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == set(PACKAGES)


def test_plan_works_from_the_wheel_in_an_empty_environment(bare_python: Path, tmp_path: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    program = bare_python.with_name("roll-ray")
    for command in ([program, "plan", "grpo_qwen"], [bare_python, "-m", "recipes.cli", "plan", "grpo_qwen"]):
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Who sits where" in done.stdout
    where = [bare_python, "-c", "import roll_ray, torch"]
    done = subprocess.run(where, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in done.stderr, "the environment really is empty"
