"""The little of pytest that tests of one function use, for a sandbox in which pytest is not installed.

`raises`, `approx`, `mark.parametrize`, `fixture`, and the call of one test by name. Where a folder that holds the
real pytest is made visible, tests that import it get `raises` and `approx` from there.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any


class _Raised:
    """What `raises` gives: `value` is the exception, once it has come."""

    value: BaseException | None = None


@contextmanager
def raises(expected: Any, *, match: str | None = None) -> Generator[_Raised, None, None]:
    """Pass if the block raises `expected` (a class or a tuple of them) with a message in which `match` is found."""
    raised = _Raised()
    try:
        yield raised
    except expected as error:
        raised.value = error
        if match is not None and not re.search(match, str(error)):
            raise AssertionError(f"{match!r} is not in {str(error)!r}") from None
        return
    raise AssertionError(f"did not raise {expected}")


class approx:  # noqa: N801 - its name in pytest
    """Equal to a number, or a list, tuple or dict of numbers, within `rel` (1e-6) of it or `abs` (1e-12)."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self.expected = expected
        # a tolerance in absolute terms alone means that alone, as in pytest
        self.rel = rel if rel is not None else (1e-6 if abs is None else 0.0)
        self.abs = abs if abs is not None else 1e-12

    def __eq__(self, actual: Any) -> bool:
        return self._close(actual, self.expected)

    def _close(self, actual: Any, expected: Any) -> bool:
        if isinstance(expected, Mapping):
            same = isinstance(actual, Mapping) and actual.keys() == expected.keys()
            return same and all(self._close(actual[k], expected[k]) for k in expected)
        if isinstance(expected, list | tuple):
            same = type(actual) is type(expected) and len(actual) == len(expected)
            return same and all(self._close(a, e) for a, e in zip(actual, expected, strict=True))
        if isinstance(expected, int | float) and isinstance(actual, int | float):
            return actual == expected or math.isclose(actual, expected, rel_tol=self.rel, abs_tol=self.abs)
        return bool(actual == expected)

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"

    __hash__ = None  # type: ignore[assignment]


class _Mark:
    """`mark.parametrize` is kept; every other mark changes nothing."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def mark(*args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and not kwargs and inspect.isroutine(args[0]):
                return args[0]
            return lambda test: _with_parameters(test, *args) if name == "parametrize" else test

        return mark


def _with_parameters(test: Any, names: Any, rows: Any, *_: Any) -> Any:
    keys = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    new = [dict(zip(keys, [row] if len(keys) == 1 else row, strict=True)) for row in rows]
    test.parameters = [old | more for old in getattr(test, "parameters", [{}]) for more in new]
    return test


def fixture(function: Any = None, **_: Any) -> Any:
    """Mark a function that gives tests an argument of its name."""
    if function is None:
        return fixture
    function.is_fixture = True
    return function


def as_module() -> types.ModuleType:
    module = types.ModuleType("pytest")
    module.__dict__.update(raises=raises, approx=approx, mark=_Mark(), fixture=fixture)
    return module


def call(namespace: dict[str, Any], name: str) -> None:
    """Run one test: `test_x`, or `TestY::test_x` (a plain class, or one of unittest), with all its parameters."""
    class_name, _, method = name.rpartition("::")
    if not class_name:
        _call_function(namespace, namespace[method])
        return
    cls = namespace[class_name]
    if hasattr(cls, "debug") and hasattr(cls, "setUpClass"):
        _call_unittest(cls, method)
        return
    instance = cls()
    getattr(instance, "setup_method", lambda: None)()
    try:
        _call_function(namespace, getattr(instance, method))
    finally:
        getattr(instance, "teardown_method", lambda: None)()


def _call_unittest(cls: Any, method: str) -> None:
    cls.setUpClass()
    try:
        cls(method).debug()
    finally:
        cls.tearDownClass()


def _call_function(namespace: dict[str, Any], test: Any) -> None:
    for parameters in getattr(test, "parameters", [{}]):
        with ExitStack() as stack:
            wanted = [n for n in inspect.signature(test).parameters if n not in parameters]
            test(**parameters, **{n: _fixture_value(namespace, n, stack) for n in wanted})


def _fixture_value(namespace: dict[str, Any], name: str, stack: ExitStack) -> Any:
    function: Any = namespace.get(name)
    if not getattr(function, "is_fixture", False):
        raise NameError(f"the tests have no fixture {name!r}")
    others = {n: _fixture_value(namespace, n, stack) for n in inspect.signature(function).parameters}
    if inspect.isgeneratorfunction(function):
        return stack.enter_context(contextmanager(function)(**others))
    return function(**others)
