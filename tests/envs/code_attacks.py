"""Programs that attack their sandbox, and the reason with which each must be found wrong.

A program is to print 7, and prints it only if its attack succeeds. `{name}` stands for what the test made on the
host.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    name: str
    program: str
    reason: str
    """A regular expression."""
    timeout_s: float = 10.0


LOOPS = [
    Attack("endless loop", "while True: pass", "time-out", 0.7),
    Attack("sleeps forever", "import time; time.sleep(10**6)", "time-out", 0.7),
    Attack(
        "ignores signals",
        "import signal\n"
        "for s in set(signal.Signals) - set((9, 19)): signal.signal(s, signal.SIG_IGN)\n"
        "while True: pass",
        "time-out",
        0.7,
    ),
    Attack("waits for its child", "import os\nif os.fork(): os.wait()\nwhile True: pass", "time-out", 0.7),
]

RESOURCES = [
    Attack(
        "fork bomb",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        "processes: more than 16",
    ),
    Attack(
        "thread bomb",
        "import threading, time\n"
        "threading.stack_size(1 << 16)\n"
        "while True: threading.Thread(target=time.sleep, args=(99,)).start()",
        "processes: more than 16",
    ),
    Attack("10 GB at once", "bytearray(10 << 30)", "memory: more than 96 MiB"),
    Attack("memory bit by bit", "x = []\nwhile True: x.append(bytes(1 << 20))", "memory: more than 96 MiB"),
    Attack(
        "memory spread over children",
        "import os, time\nfor i in range(8):\n  if os.fork() == 0:\n    x = b'x' * (30 << 20)\n    time.sleep(99)\n"
        "time.sleep(99)",
        "memory: more than 96 MiB",
        30.0,
    ),
    Attack("memory in nameless files", "import os; os.memfd_create('x'); print(7)", "PermissionError"),
    Attack(
        "memory in shared segments",
        "import ctypes\nif ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600) >= 0: print(7)",
        "printed ''",
    ),
    Attack(
        "1 GB of output", "for _ in range(1024): print('x' * (1 << 20))", "output: more than 100000 bytes"
    ),
    Attack(
        "1 GB of errors",
        "import sys\nfor _ in range(1024): print('x' * (1 << 20), file=sys.stderr)",
        "output: more than 100000 bytes",
    ),
    Attack(
        "fills its folder",
        "for i in range(99): open(str(i), 'wb').write(bytes(1 << 20))\nprint(7)",
        "scratch folder: more than 4194304 bytes",
    ),
    Attack(
        "a huge file",
        "f = open('f', 'wb'); f.seek(1 << 40); f.write(b'x'); f.flush(); print(7)",
        "scratch folder: .*too large",
    ),
    Attack("many files", "for i in range(10**7): open(str(i), 'w').close()", "files: more than 200"),
    Attack(
        "deep recursion",
        "import sys\nsys.setrecursionlimit(10**9)\nf = lambda n: [f(n + 1)]\nf(0)",
        "memory|signal: Segmentation|time-out|exit status 1",  # no memory is left to say MemoryError with
        2.0,
    ),
    Attack(
        "raises its own limits",
        "import resource as r\nfor w in (r.RLIMIT_AS, r.RLIMIT_NPROC): r.setrlimit(w, (-1, -1))\nprint(7)",
        "not allowed to raise",
    ),
]

SECRETS = [
    Attack(
        "reads the user's key file",
        "import os; print(7 if open(os.path.expanduser('~/.ssh/id_rsa')) else 0)",
        "FileNotFoundError",
    ),
    Attack("reads a key file by its path", "print(7 if open('{key_file}') else 0)", "FileNotFoundError"),
    Attack(
        "lists the user's home",
        "import os\nif os.listdir('{home}'): print(7)",
        r"FileNotFoundError|printed ''",
    ),
    Attack(
        "lists /root",
        "import os\nif set(os.listdir('/root')) - set(os.__file__.split('/')): print(7)",
        r"FileNotFoundError|printed ''",
    ),
    Attack("reads /etc/shadow", "print(7 if open('/etc/shadow') else 0)", "FileNotFoundError"),
    Attack(
        "reads the parent's variable", "import os\nif '{secret}' in str(os.environ): print(7)", "printed ''"
    ),
    Attack(
        "reads variables of process 1", "print(7 if open('/proc/1/environ').read() else 0)", "PermissionError"
    ),
    Attack(
        "looks for other processes",
        "import os\nif len([p for p in os.listdir('/proc') if p.isdigit()]) > 2: print(7)",
        "printed ''",
    ),
    Attack(
        "reads the supervisor's memory", "print(7 if open('/proc/1/mem', 'rb') else 0)", "PermissionError"
    ),
    Attack(
        "opens the supervisor's pipe", "open('/proc/1/fd/1', 'w').write('x'); print(7)", "PermissionError"
    ),
    Attack(
        "takes the supervisor's pipe",
        "import ctypes, os\nfd = ctypes.CDLL(None).syscall(438, os.pidfd_open(1), 1, 0)\nif fd >= 0: print(7)",
        "printed ''",
    ),
]

ESCAPES = [
    Attack(
        "traces the supervisor",
        "import ctypes\nif ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0: print(7)",
        "printed ''",
    ),
    Attack(
        "kills the supervisor",
        "import os, time\nos.kill(1, 9)\nos.kill(1, 19)\nos.kill(1, 2)\ntime.sleep(0.1)",
        "printed ''",
    ),
    Attack(
        "kills all it sees",
        "import os\nos.kill(-1, 9)\nprint(8)",
        "signal: Killed|printed '8'|No such process",
    ),
    Attack(
        "limits the supervisor",
        "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)); print(7)",
        "PermissionError",
    ),
    Attack(
        "slows the supervisor down",
        "import os; os.setpriority(os.PRIO_PROCESS, 1, 19); print(7)",
        "PermissionError",
    ),
    Attack("pushes ahead", "import os; os.nice(-5); print(7)", "PermissionError"),
    Attack(
        "calls the internet",
        "import socket; socket.create_connection(('1.1.1.1', 80), timeout=3); print(7)",
        "unreachable",
    ),
    Attack(
        "calls a server of the host",
        "import socket; socket.create_connection(('127.0.0.1', {port})); print(7)",
        "refused",
    ),
    Attack(
        "calls the host by an abstract socket",
        "import socket; socket.socket(socket.AF_UNIX).connect('\\0{abstract}'); print(7)",
        "refused",
    ),
    Attack(
        "calls the machine below", "import socket; socket.socket(socket.AF_VSOCK); print(7)", "not supported"
    ),
    Attack(
        "asks the kernel's netlink",
        "import socket; socket.socket(socket.AF_NETLINK, 3, 9); print(7)",
        "not supported",
    ),
    Attack("writes to the root", "open('/x', 'w'); print(7)", "Read-only"),
    Attack("writes to its home", "import os; open(os.environ['HOME'] + '/x', 'w'); print(7)", "Read-only"),
    Attack("writes to the host's folder", "open('{key_file}', 'w'); print(7)", "FileNotFoundError"),
    Attack(
        "writes to the interpreter",
        "import os; open(os.__file__, 'a'); print(7)",
        "Read-only|PermissionError",
    ),
    Attack(
        "writes to the supervisor's program",
        "open('/roll_ray/envs/sandbox_inside/wire.py', 'a'); print(7)",
        "Read-only|PermissionError",
    ),
    Attack(
        "sets where cores go",
        "open('/proc/sys/kernel/core_pattern', 'w').write('|/x'); print(7)",
        "PermissionError|Read-only",
    ),
    Attack(
        "presses the system request key",
        "open('/proc/sysrq-trigger', 'w'); print(7)",
        "PermissionError|FileNotFound|Read-only",
    ),
    Attack(
        "mounts",
        "import ctypes\nif ctypes.CDLL(None).mount(b'x', b'/scratch', b'tmpfs', 0, None) == 0: print(7)",
        "printed ''",
    ),
    Attack(
        "makes everything writable",
        "import ctypes\nif ctypes.CDLL(None).mount(None, b'/', None, 32 | 4096, None) == 0: print(7)",
        "printed ''",
    ),
    Attack(
        "a root user of its own",
        "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == 0: print(7)",
        "printed ''",
    ),
    Attack("a root folder of its own", "import os; os.chroot('/scratch'); print(7)", "PermissionError"),
    Attack("becomes root", "import os; os.setuid(0); print(7)", "PermissionError|Invalid argument"),
    Attack(
        "a setuid program",
        "import os, shutil, subprocess, sys\nshutil.copy(sys.executable, 'p')\nos.chmod('p', 0o4777)\n"
        "if subprocess.run(['./p', '-IS', '-c', 'import os; exit(os.geteuid() != 0)']).returncode == 0: print(7)",
        "printed ''|exit status 1|scratch",
    ),
    Attack("dumps its core", "import os\nos.abort()", "signal: Aborted"),
    Attack(
        "keeps a key in the kernel",
        "import ctypes\nif ctypes.CDLL(None).syscall(248, b'user', b'k', b'v', 1, -4) > 0: print(7)",
        "printed ''",
    ),
]

LEFTOVERS = [
    Attack(
        "a daemon that outlives it",
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    time.sleep(99)\n  os._exit(0)",
        "printed ''",
    ),
    Attack(
        "files in its folder",
        "for f in ('x', '/tmp/y', '/dev/shm/z'): open(f, 'w').write('left')",
        "printed ''",
    ),
    Attack(
        "links out of its folder",
        "import os\nfor t in ('/usr/lib', '/proc/1', '{home}', '../..'): os.symlink(t, t.replace('/', '_'))",
        "printed ''",
    ),
    Attack(
        "a folder that cannot be entered", "import os\nos.makedirs('a/b')\nos.chmod('a', 0)", "printed ''"
    ),
    Attack(
        "a very deep folder",
        "import os\nfor i in range(150): os.mkdir('d' * 200); os.chdir('d' * 200)",
        "printed ''",
    ),
    Attack(
        "a shared lock and segment",
        "import multiprocessing.shared_memory as s\nm = s.SharedMemory('left', True, 1 << 16)\nimport os; os._exit(0)",
        "printed ''",
    ),
]

SCRIPTS = LOOPS + RESOURCES + SECRETS + ESCAPES + LEFTOVERS
