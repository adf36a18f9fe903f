"""The system calls that a sandboxed program is refused, as the filter program that the kernel runs (seccomp).

Namespaces hide files, processes and the network. What they leave is refused here: memory that no process's size
shows (memfd, System V segments), new namespaces, keyrings, tracing, io_uring, bpf, sockets that are not of the
sandbox's own network (vsock reaches the host of a virtual machine), and changing another process's limits or
priority, which would reach the supervisor. Numbers: Linux, arch/*/entry/syscalls and include/uapi.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32_BIT = 0x40000000
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEW*: user, pid, net, ipc, uts, cgroup, mount, time
_OWN_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6


@dataclass(frozen=True)
class _Architecture:
    audit_number: int
    calls: dict[str, int]


_ARCHITECTURES = {
    "x86_64": _Architecture(
        0xC000003E,
        {
            "shmget": 29, "socket": 41, "socketpair": 53, "clone": 56, "semget": 64, "msgget": 68,
            "ptrace": 101, "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144,
            "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166, "sched_setaffinity": 203,
            "io_setup": 206, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
            "perf_event_open": 298, "prlimit64": 302, "open_by_handle_at": 304, "setns": 308,
            "process_vm_readv": 310, "process_vm_writev": 311, "sched_setattr": 314, "memfd_create": 319,
            "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425, "clone3": 435, "memfd_secret": 447,
        },
    ),
    "aarch64": _Architecture(
        0xC00000B7,
        {
            "shmget": 194, "socket": 198, "socketpair": 199, "clone": 220, "semget": 190, "msgget": 186,
            "ptrace": 117, "setpriority": 140, "sched_setparam": 118, "sched_setscheduler": 119,
            "pivot_root": 41, "chroot": 51, "mount": 40, "umount2": 39, "sched_setaffinity": 122,
            "io_setup": 0, "add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97,
            "perf_event_open": 241, "prlimit64": 261, "open_by_handle_at": 265, "setns": 268,
            "process_vm_readv": 270, "process_vm_writev": 271, "sched_setattr": 274, "memfd_create": 279,
            "bpf": 280, "userfaultfd": 282, "io_uring_setup": 425, "clone3": 435, "memfd_secret": 447,
        },
    ),
}  # fmt: skip
_CONDITIONAL = ("clone", "clone3", "socket", "socketpair", "prlimit64", "setpriority")
_SCHEDULING = ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")


def system_call_filter() -> bytes:
    """The filter for this machine; empty where its architecture is not known here."""
    architecture = _ARCHITECTURES.get(platform.machine())
    return b"" if architecture is None else _program(architecture)


def _program(architecture: _Architecture) -> bytes:
    calls = architecture.calls
    refused = [n for n in calls if n not in _CONDITIONAL and n not in _SCHEDULING]
    return b"".join(
        [
            _load(_ARCHITECTURE_AT),
            _instruction(_JUMP_EQUAL, architecture.audit_number, 1, 0),
            _instruction(_RETURN, _KILL),
            _load(_NUMBER_AT),
            _instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
            _instruction(_RETURN, _KILL),
            *(_when(calls[name], _error(errno.EPERM)) for name in refused),
            # a C library that is told so falls back to clone, whose flags can be seen here
            _when(calls["clone3"], _error(errno.ENOSYS)),
            _when(calls["clone"], _argument(0), _if_any_bit(_NEW_NAMESPACES, errno.EPERM)),
            *(_when(calls[n], _argument(0), _unless_family(errno.EAFNOSUPPORT)) for n in ("socket", "socketpair")),
            *(_when(calls[n], _argument(0), _unless_zero(errno.EPERM)) for n in ("prlimit64", *_SCHEDULING)),
            _when(
                calls["setpriority"], _argument(0), _unless_zero(errno.EPERM, last=False),
                _argument(1), _unless_zero(errno.EPERM),
            ),
            _instruction(_RETURN, _ALLOW),
        ]
    )  # fmt: skip


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _argument(index: int) -> bytes:
    """Load the low half of an argument: those looked at here are ints."""
    return _load(_ARGUMENTS_AT + 8 * index)


def _error(number: int) -> bytes:
    return _instruction(_RETURN, _REFUSE | number)


def _when(call: int, *body: bytes) -> bytes:
    """The body for one call, which it must end with a return; the number is still loaded for the others."""
    whole = b"".join(body)
    return _instruction(_JUMP_EQUAL, call, 0, len(whole) // 8) + whole


def _if_any_bit(bits: int, number: int) -> bytes:
    return _instruction(_JUMP_ANY_BIT, bits, 0, 1) + _error(number) + _instruction(_RETURN, _ALLOW)


def _unless_zero(number: int, *, last: bool = True) -> bytes:
    return (
        _instruction(_JUMP_EQUAL, 0, 1, 0) + _error(number) + (_instruction(_RETURN, _ALLOW) if last else b"")
    )


def _unless_family(number: int) -> bytes:
    n = len(_OWN_FAMILIES)
    tests = b"".join(_instruction(_JUMP_EQUAL, f, n - i, 0) for i, f in enumerate(_OWN_FAMILIES))
    return tests + _error(number) + _instruction(_RETURN, _ALLOW)
