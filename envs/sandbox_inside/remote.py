"""Calls between the process of a program and the process of its tests, as far as either may trust the other.

Plain values (numbers, text, containers of the standard library) cross as copies. Everything else crosses as a
reference, a `Remote`, whose uses are sent back to where the object lives. So a test compares copies with its own
`==`: an object of the program that claims to equal everything is a reference, and equals no number. Nothing that
arrives is executed: the unpickler makes plain values and references only.

The tests' process (`trusted=True`) lets the program call what was handed to it, and iterate over it; nothing else.
"""

from __future__ import annotations

import builtins
import io
import operator
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from envs.sandbox_inside.wire import receive_frame, send_frame

PLAIN = {
    "builtins": "NoneType bool int float complex str bytes bytearray list tuple dict set frozenset range slice "
    "ellipsis Ellipsis",
    "collections": "deque Counter OrderedDict defaultdict",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "fractions": "Fraction",
}
_COMMON = {type(None), bool, int, float, str, bytes, list, tuple, dict, set}
_PLAIN_NAMES = {(module, name) for module, names in PLAIN.items() for name in names.split()}
_ERRORS = {n: e for n, e in vars(builtins).items() if isinstance(e, type) and issubclass(e, BaseException)}
_BASES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    **{kind: kind for kind in (list, tuple, dict, set, frozenset)},
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BINARY = (*_COMPARISONS, "add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor")


def _is_plain(cls: type) -> bool:
    return (cls.__module__, cls.__qualname__) in _PLAIN_NAMES


def _plain_base(cls: type) -> type | None:
    """The built-in type that a named tuple, an enumeration of integers and the like are copied as."""
    return next((base for base in _BASES if issubclass(cls, base)), None)


class ProgramExited(Exception):
    """The program asked to end (sys.exit and the like) while a test called it."""


class Refused(TypeError):
    """The program asked for more than a test's object gives it."""


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, peer: Peer) -> None:
        super().__init__(file, protocol=5)
        self.peer = peer

    def persistent_id(self, obj: Any) -> Any:
        cls = type(obj)
        if cls in _COMMON:
            return None
        if isinstance(obj, type):
            return None if _is_plain(obj) or obj in _ERRORS.values() else self._class_id(obj)
        if cls is Remote:
            return ("yours", _id_of(obj))
        if _is_plain(cls) or _plain_base(cls) is not None:
            return None
        return ("mine", self.peer.export(obj))

    def _class_id(self, cls: type) -> Any:
        number = self.peer.export(cls)
        if not issubclass(cls, Exception):
            return ("mine", number)
        base = next(c.__name__ for c in cls.__mro__ if c in _ERRORS.values())
        return ("error", number, cls.__name__, base)

    def reducer_override(self, obj: Any) -> Any:
        base = None if isinstance(obj, type) or _is_plain(type(obj)) else _plain_base(type(obj))
        return NotImplemented if base is None else (base, (_BASES[base](obj),))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, peer: Peer) -> None:
        super().__init__(file)
        self.peer = peer

    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and name in _ERRORS:
            return _ERRORS[name]
        if (module, name) not in _PLAIN_NAMES:
            raise pickle.UnpicklingError(f"{module}.{name} may not cross")
        return getattr(__import__(module), name)

    def persistent_load(self, reference: Any) -> Any:
        kind, number, *rest = reference
        if kind == "yours":
            return self.peer.exported[number]
        if kind == "mine":
            return Remote(self.peer, number)
        return self.peer.error_class(number, *rest)


class Peer:
    """One end of the line. `request` asks the other end; `serve` answers it until it is gone (`PeerGone`)."""

    def __init__(self, fd: int, *, trusted: bool) -> None:
        self.fd = fd
        self.trusted = trusted
        self.exported: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._errors: dict[int, type[Exception]] = {}

    def export(self, obj: Any) -> int:
        """A number under which the other end may use the object; it is kept alive."""
        number = self._numbers.setdefault(id(obj), len(self.exported))
        self.exported[number] = obj
        return number

    def error_class(self, number: int, name: str, base: str) -> type[Exception]:
        """A class here that stands for an exception class there."""
        if number not in self._errors:
            kind = _ERRORS[base] if issubclass(_ERRORS[base], Exception) else Exception
            self._errors[number] = type(name, (kind,), {})
        return self._errors[number]

    def pack(self, message: Any) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self).dump(message)
        return file.getvalue()

    def send(self, *message: Any) -> None:
        send_frame(self.fd, self.pack(message))

    def receive(self) -> Any:
        payload = receive_frame(self.fd)
        if self.trusted and (self.exported or b"Counter" in payload or b"Fraction" in payload):
            _refuse_changes(payload)
        return _Unpickler(io.BytesIO(payload), self).load()

    def request(self, action: str, *operands: Any) -> Any:
        """Have the other end do something; its result, or the exception that it raised."""
        self.send(action, *operands)
        while True:
            answer = self.receive()
            if answer[0] == "value":
                _, value, after = answer
                if after is not None:
                    _take_over(operands[1], after)
                return value
            if answer[0] == "raise":
                raise _as_exception(answer[1], answer[2])
            self.answer(answer)

    def serve(self) -> None:
        while True:
            self.answer(self.receive())

    def answer(self, message: Any) -> None:
        """Do what the other end asks for, and send the result or the exception."""
        try:
            result = self._perform(*message)
        except BaseException as error:  # the boundary to the other process: it gets the exception
            self._send_error(error)
            return
        try:
            self.send("value", *result)
        except (TypeError, ValueError, RecursionError, pickle.PicklingError) as error:
            self._send_error(error)

    def _send_error(self, error: BaseException) -> None:
        arguments = [a for a in error.args if type(a) in (int, float, str, bool, bytes, type(None))]
        try:
            self.send("raise", type(error), arguments)
        except ValueError:
            self.send("raise", type(error), ["(a message too long to be sent)"])

    def _perform(self, action: str, number: int, *operands: Any) -> tuple[Any, Any]:
        """The result, and the arguments of a call if it changed them."""
        target = self.exported[number]
        if action == "call":
            args, kwargs = operands
            before = self.pack(args)
            result = target(*args, **kwargs)
            return result, None if self.pack(args) == before else args
        if action in ("iter", "next"):
            return (iter(target) if action == "iter" else next(target)), None
        if self.trusted:
            raise Refused(
                f"a program may call what a test gives it, and iterate over it, but not use {action!r}"
            )
        return _ACTIONS[action](target, *operands), None


def _refuse_changes(payload: bytes) -> None:
    """No instruction that sets attributes: it could change a class that is written in Python, or a test's object."""
    from pickletools import genops

    if any(instruction.name == "BUILD" for instruction, _, _ in genops(payload)):
        raise pickle.UnpicklingError("attributes may not be set from outside")


def _binary(left: Any, name: str, right: Any) -> Any:
    if name not in _BINARY:
        raise AttributeError(name)
    return getattr(operator, name)(left, right)


_ACTIONS: dict[str, Callable[..., Any]] = {
    "get": getattr,
    "set": setattr,
    "item": operator.getitem,
    "set_item": operator.setitem,
    "len": len,
    "str": str,
    "repr": repr,
    "isinstance": lambda cls, obj: isinstance(obj, cls),
    "binary": _binary,
}


def _take_over(arguments: Any, after: Any) -> None:
    """Give arguments the contents that they have after the call: it may have changed them in place."""
    for old, new in zip(arguments, after, strict=False):
        if type(old) is not type(new):
            continue
        if isinstance(old, list | bytearray):
            old[:] = new
        elif isinstance(old, dict | set):
            old.clear()
            old.update(new)


def _as_exception(cls: Any, arguments: Any) -> Exception:
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        return ProgramExited(f"the program raised {getattr(cls, '__name__', 'something')} when it was called")
    try:
        return cls(*arguments)
    except TypeError:
        return Exception(f"{cls.__name__}: {arguments}")


def _id_of(remote: Remote) -> int:
    return object.__getattribute__(remote, "_number")


def _ask(remote: Remote, action: str, *operands: Any) -> Any:
    return object.__getattribute__(remote, "_peer").request(action, _id_of(remote), *operands)


class Remote:
    """An object of the other process. Compared with, added to or ordered by what is not of that process it is
    simply another object: only a copy can equal a number."""

    __slots__ = ("_number", "_peer")

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _ask(self, "call", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ask(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "set", name, value)

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "set_item", key, value)

    def __len__(self) -> int:
        return int(_ask(self, "len"))

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return _ask(self, "iter")

    def __next__(self) -> Any:
        return _ask(self, "next")

    def __str__(self) -> str:
        return str(_ask(self, "str"))

    def __repr__(self) -> str:
        return str(_ask(self, "repr"))

    def __instancecheck__(self, instance: Any) -> bool:
        return type(instance) is Remote and bool(_ask(self, "isinstance", instance))

    def __hash__(self) -> int:
        return hash(("remote", _id_of(self)))


def _binary_method(name: str) -> Callable[[Remote, Any], Any]:
    def method(self: Remote, other: Any) -> Any:
        return _ask(self, "binary", name, other) if type(other) is Remote else NotImplemented

    return method


for _name in _BINARY:
    setattr(Remote, f"__{_name.rstrip('_')}__", _binary_method(_name))
