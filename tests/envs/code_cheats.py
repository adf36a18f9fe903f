"""Programs that go for their verdict: `assert answer() == 7` tests each, none returns 7, and each must be wrong.

The reason is a regular expression.
"""

from __future__ import annotations

from tests.envs.code_attacks import Attack

CHEATS = [
    Attack("exits early", "import sys\nsys.exit(0)", "could not be loaded: SystemExit"),
    Attack("exits early for good", "import os\nos._exit(0)", r"ended before its tests did \(exit status 0\)"),
    Attack("exits when it is called", "import sys\ndef answer(): sys.exit(0)", "raised SystemExit"),
    Attack(
        "exits for good when it is called",
        "import os\ndef answer(): os._exit(0)",
        r"ended before its tests did \(exit status 0\)",
    ),
    Attack(
        "equals everything",
        "class A:\n  def __eq__(self, other): return True\ndef answer(): return A()",
        "assert answer",
    ),
    Attack(
        "a number that equals everything",
        "class A(int):\n  def __eq__(self, other): return True\ndef answer(): return A(8)",
        "assert answer",
    ),
    Attack(
        "a list that equals everything",
        "class A(list):\n  def __eq__(self, other): return True\ndef answer(): return A()",
        "assert answer",
    ),
    Attack(
        "breaks assertions",
        "import builtins\nbuiltins.AssertionError = type('E', (BaseException,), {})\ndef answer(): return 8",
        "assert answer",
    ),
    Attack(
        "breaks exec and comparison",
        "import builtins\nbuiltins.exec = builtins.compile = print\ndef answer(): return 8",
        "assert answer",
    ),
    Attack(
        "is code when it arrives",
        "class A:\n  def __reduce__(self): return exec, ('import os; os._exit(0)',)\ndef answer(): return A()",
        "assert answer",
    ),
    Attack(
        "sends code by hand",
        "import os, pickle, struct\n"
        "class A:\n  def __reduce__(self): return exec, ('raise SystemExit',)\n"
        "p = pickle.dumps(('value', A(), None))\n"
        "def answer(): os.write(3, struct.pack('>I', len(p)) + p)",
        "may not cross",
    ),
    Attack(
        "changes a class of the tests",
        "import os, struct\n"
        "p = b'\\x80\\x05(\\x8c\\x05valueccollections\\nCounter\\n(N}\\x8c\\x06__eq__cbuiltins\\nbool\\nstbNt.'\n"
        "def answer(): os.write(3, struct.pack('>I', len(p)) + p)",
        "may not be set",
    ),
    Attack(
        "claims to have passed",
        "import os\n"
        "print('passed')\n"
        "for fd in range(4, 99):\n"
        '  try: os.write(fd, b\'\\0\\0\\0\\x0ev{"reason": ""}\')\n'
        "  except OSError: pass\n"
        "def answer(): return 8",
        "assert answer",
    ),
    Attack(
        "claims an empty reason",
        'import os\nos.write(1, b\'\\0\\0\\0\\x0ev{"reason": ""}\')\ndef answer(): return 8',
        "assert answer",
    ),
    Attack(
        "looks for the tests in memory",
        "import re\n"
        "def answer():\n"
        "  for line in open('/proc/self/maps'):\n"
        "    span, rights = line.split()[:2]\n"
        "    if rights.startswith('rw'):\n"
        "      start, end = (int(x, 16) for x in span.split('-'))\n"
        "      with open('/proc/self/mem', 'rb') as f:\n"
        "        f.seek(start)\n"
        "        if re.search(rb'assert answer\\(\\) =[=] 7', f.read(end - start)): return 7\n"
        "  return 8",
        "assert answer",
    ),
    Attack(
        "looks for the tests in the callers",
        "import sys\n"
        "def answer():\n"
        "  f = sys._getframe()\n"
        "  while f:\n"
        "    if '=' + '= 7' in repr(f.f_locals): return 7\n"
        "    f = f.f_back",
        "assert answer",
    ),
    Attack("kills the tests", "import os\ndef answer(): os.kill(-1, 9)", "tests"),
    Attack(
        "stops the tests",
        "import os\n"
        "def answer():\n"
        "  for p in range(2, 99):\n"
        "    try: p != os.getpid() and os.kill(p, 19)\n"
        "    except OSError: pass\n"
        "  return 8",
        "time-out",
        0.7,
    ),
    Attack("never answers", "def answer():\n  while True: pass", "time-out", 0.7),
    Attack("answers too much", "def answer(): return 'x' * (1 << 30)", "MemoryError|memory"),
    Attack(
        "answers without end",
        "def answer():\n  x = []\n  x.append(x)\n  return x",
        "assert answer|RecursionError",
    ),
]
