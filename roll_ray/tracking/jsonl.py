"""Files of one JSON object a line, flushed line by line: a crash costs at most the line being written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO


class LineWriter:
    """Appends objects to `path`, each flushed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file; a last line that a crash cut short is left out. No file: nothing."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.endswith("\n") and line.strip():
                yield json.loads(line)


def keep_lines(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> int:
    """Rewrite `path` with the lines that are wanted, atomically. Gives how many were dropped."""
    if not path.is_file():
        return 0
    rows = list(read_lines(path))
    kept = [row for row in rows if wanted(row)]
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return len(rows) - len(kept)
