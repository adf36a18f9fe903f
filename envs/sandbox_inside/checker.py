"""The process of the tests: runs them against a program that lives in another process, and reports the verdict.

It reads the tests itself, from the descriptor that leads out of the sandbox, after the program's process was forked:
they are in no memory that a program ever had. Tests take from the program the names of `entry_points`, if any are
given; else what they import from `solution`; else what neither they nor Python define.
"""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import sys
import traceback
import types
from typing import Any

from envs.sandbox_inside import pytest_like
from envs.sandbox_inside.remote import Peer
from envs.sandbox_inside.wire import PeerGone, receive_frame

ENDED_EARLY = "the program ended before its tests did"
_FILE = "<tests>"
_MAX_REASON_CHARS = 500


def check(tests_fd: int, program_fd: int) -> str:
    """Why the program fails the tests that are read from `tests_fd`; empty if it passes."""
    tests = json.loads(receive_frame(tests_fd))
    peer = Peer(program_fd, trusted=True)
    try:
        state = peer.receive()
        if state[0] != "loaded":
            return f"the program could not be loaded: {str(state[1])[:_MAX_REASON_CHARS]}"
        _run(tests, peer)
    except PeerGone:
        return ENDED_EARLY
    except BaseException as error:  # the boundary: whatever a test raises is its verdict
        return _reason(error)
    return ""


def _run(tests: dict[str, Any], peer: Peer) -> None:
    source = tests["setup"] + "\n" + tests["code"]
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    tree = ast.parse(source, _FILE)
    entry_points = set(tests["entry_points"])
    given = _names_of_program(peer, tree, entry_points)
    if missing := sorted(entry_points - given.keys()):
        raise NameError(f"the program does not define {', '.join(missing)}")
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    sys.modules["solution"] = solution = types.ModuleType("solution")
    solution.__dict__.update(given)
    sys.modules.setdefault("pytest", pytest_like.as_module())
    namespace = module.__dict__
    if not _imports_solution(tree):
        namespace.update(given)
    setup_lines = tests["setup"].count("\n") + 1
    setup = [node for node in tree.body if node.lineno <= setup_lines]
    _execute(setup, namespace)
    namespace.update({name: given[name] for name in entry_points})
    _execute([node for node in tree.body if node.lineno > setup_lines], namespace)
    if tests["call"]:
        pytest_like.call(namespace, tests["call"])


def _execute(nodes: list[ast.stmt], namespace: dict[str, Any]) -> None:
    exec(compile(ast.Module(nodes, []), _FILE, "exec"), namespace)


def _names_of_program(peer: Peer, tree: ast.Module, entry_points: set[str]) -> dict[str, Any]:
    """What the program has under the names that the tests use; `entry_points` alone where they are known."""
    wanted = entry_points or _mentioned(tree) - vars(builtins).keys()
    given = peer.request("names", 0, sorted(wanted))
    return {name: given[name] for name in wanted if name in given}


def _imports_solution(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and node.module == "solution")
        or (isinstance(node, ast.Import) and any(alias.name == "solution" for alias in node.names))
        for node in ast.walk(tree)
    )


def _mentioned(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == "solution":
            found.update(alias.name for alias in node.names)
    return found


def _reason(error: BaseException) -> str:
    """The line of the tests that failed, and the exception if it says more than that."""
    said = f"{type(error).__name__}: {error}".rstrip(": ")
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    where = lines[-1].line if lines else None
    if isinstance(error, AssertionError) and not str(error) and where:
        return where[:_MAX_REASON_CHARS]
    return (f"{said} in: {where}" if where else said)[:_MAX_REASON_CHARS]
