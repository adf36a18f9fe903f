"""Rows of a data source: JSONL, JSON, Parquet, a folder of them, or a data set of the Hugging Face hub."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from roll_ray.errors import DataError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?(:[\w.-]+){0,2}")
_SNIPPET_CHARACTERS = 24


class Row(NamedTuple):
    """One record, and where it stands: `file, line n` or `source, row n`."""

    where: str
    columns: dict[str, Any]


def is_hub_name(source: str | Path) -> bool:
    """Whether `source` means a data set of the hub: nothing of that name is here, and it is not written as a path."""
    name = str(source)
    here = Path(source).expanduser().exists()
    return not here and not name.endswith(SUFFIXES) and _HUB_NAME.fullmatch(name) is not None


def read_rows(source: str | Path) -> Iterator[Row]:
    """Rows of a file, of all data files below a folder (sorted by path), or of a hub data set.

    A hub data set is written `owner/name`, `owner/name:split` or `owner/name:configuration:split`; the split is
    `train` unless said. Raises DataError naming file and line of what cannot be read.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        files = [f for f in sorted(path.rglob("*")) if f.is_file() and f.name.endswith(SUFFIXES)]
        if not files:
            raise DataError(
                f"there is no data file in {path}", next_step=f"put files with {', '.join(SUFFIXES)} there"
            )
        for file in files:
            yield from _file_rows(file)
    elif path.exists():
        yield from _file_rows(path)
    elif is_hub_name(source):
        yield from _hub_rows(str(source))
    else:
        raise DataError(
            f"there is no file or folder {source}",
            why=f"{path.absolute()} does not exist",
            next_step="check the path; a data set of the hub is written owner/name:configuration:split",
        )


def _file_rows(file: Path) -> Iterator[Row]:
    if file.name.endswith((".jsonl", ".jsonl.gz")):
        yield from _jsonl_rows(file)
    elif file.suffix == ".json":
        yield from _json_rows(file)
    elif file.suffix == ".parquet":
        yield from _parquet_rows(file)
    else:
        raise DataError(
            f"{file} is not a data file that can be read", next_step=f"give one with {', '.join(SUFFIXES)}"
        )


def _jsonl_rows(file: Path) -> Iterator[Row]:
    number = 0
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield Row(f"{file}, line {number}", _record(line, f"{file}, line {number}"))
    except (OSError, EOFError) as error:
        raise DataError(f"{file} cannot be read after line {number}", why=str(error)) from error


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8-sig").rstrip("\r\n"))
    except ValueError as error:
        raise DataError(
            f"{where} is not JSON",
            why=_place(error),
            next_step="mend or remove the line: one JSON object a line",
        ) from None
    return _object(record, where)


def _place(error: ValueError) -> str:
    """What a JSON or UTF-8 error is about, where, and the text around the place, which `>>>` points at."""
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        return f"{error.msg}, at {line}column {error.colno}: {_snippet(error.doc, error.pos)}"
    if isinstance(error, UnicodeDecodeError):
        whole = error.object
        before, after = (p.decode("utf-8", "replace") for p in (whole[: error.start], whole[error.start :]))
        place = f"byte 0x{whole[error.start]:02x} at column {len(before.rpartition(chr(10))[2]) + 1}"
        return f"{place} is not UTF-8: {_snippet(before + after, len(before))}"
    return str(error)


def _snippet(text: str, position: int) -> str:
    """The text around a position, on one line and short."""
    first, last = max(0, position - _SNIPPET_CHARACTERS), position + _SNIPPET_CHARACTERS
    before, after = text[first:position], text[position:last].rstrip()
    shown = f"{'...' * (first > 0)}{before} >>> {after or '(end)'}{'...' * (last < len(text.rstrip()))}"
    return shown.replace("\n", " ").strip()


def _object(record: Any, where: str) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise DataError(f"{where} is a {type(record).__name__}, not an object with named columns")
    return record


def _json_rows(file: Path) -> Iterator[Row]:
    try:
        records = json.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"{file} cannot be read", why=str(error)) from error
    except ValueError as error:
        raise DataError(
            f"{file} is not JSON", why=_place(error), next_step="name it .jsonl if it has one object a line"
        ) from None
    if not isinstance(records, list):
        raise DataError(f"{file} holds a {type(records).__name__}, not a list of objects")
    for number, record in enumerate(records, 1):
        yield Row(f"{file}, row {number}", _object(record, f"{file}, row {number}"))


def _parquet_rows(file: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1024):
                for record in batch.to_pylist():
                    number += 1
                    yield Row(f"{file}, row {number}", record)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file} cannot be read after row {number}", why=str(error).splitlines()[0]
        ) from error


def _hub_rows(source: str) -> Iterator[Row]:
    name, *rest = source.split(":")
    configuration, split = (rest[0], rest[1]) if len(rest) == 2 else (None, rest[0] if rest else "train")
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"{source} is no file here, and hub data needs the package datasets",
            next_step="pip install datasets, or download the data and give the file",
        ) from None
    try:
        rows = load_dataset(name, configuration, split=split)
    except Exception as error:  # the hub client raises many kinds; each becomes the user's to mend
        raise DataError(
            f"{source} is no file or folder here and cannot be loaded from the hub",
            why=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}",
            next_step="check the name (owner/name:configuration:split) and the network, or give a file",
        ) from error
    for number, record in enumerate(rows, 1):
        yield Row(f"{source}, row {number}", dict(record))
