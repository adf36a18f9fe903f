"""Text to plain values, by the rules of YAML 1.2's core schema: `1e-6` is a number, `on` and `0-3` are text.

PyYAML follows YAML 1.1, which reads `1e-6` as text, `no` as false and `1:30` as 90.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from roll_ray.errors import SettingsError


class _CoreSchemaLoader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's scalars; a key that stands twice in one mapping is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, yaml.Mark] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    f"first given here: {key}", seen[key], f"{key} is given twice", key_node.start_mark
                )
            seen[key] = key_node.start_mark
        return super().construct_mapping(node, deep)


_CoreSchemaLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?[0-9]+$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+.0123456789"),
    ),
):
    _CoreSchemaLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def _construct_int(loader: _CoreSchemaLoader, node: yaml.ScalarNode) -> int:
    return int(node.value)  # YAML 1.1 reads 010 as octal


_CoreSchemaLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


class _CoreSchemaDumper(yaml.SafeDumper):
    """Quotes exactly the texts that `_CoreSchemaLoader` would read as something else."""


_CoreSchemaDumper.yaml_implicit_resolvers = _CoreSchemaLoader.yaml_implicit_resolvers


def to_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that `read_yaml` reads back as it was; keys keep their order."""
    return str(yaml.dump(dict(data), Dumper=_CoreSchemaDumper, sort_keys=False, width=110))


def shown(value: Any) -> str:
    """A plain value as a person writes it in YAML: `null`, `false`, `[0, 1]`; text without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def parse_value(text: str) -> Any:
    """The value of a `key=value` word: a list or mapping in YAML's flow form, quoted text, or a scalar.

    Raises yaml.YAMLError where a bracket or quote is not closed.
    """
    text = text.strip()
    if text.startswith(("[", "{", '"', "'")):
        return yaml.load(text, _CoreSchemaLoader)
    loader = _CoreSchemaLoader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    return loader.construct_object(yaml.ScalarNode(tag, text))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a settings file holds; an empty file holds none. Errors name the file and the line."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _CoreSchemaLoader)
    except OSError as error:
        raise SettingsError(
            f"the settings file {path} cannot be read: {error.strerror}", next_step="check the path"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise SettingsError(
            f"{place}: {getattr(error, 'problem', None) or error}",
            why="the file is not YAML that roll-ray reads",
            next_step="mend that line; a setting is written `prompts_per_step: 8`",
        ) from error
    if data is None:
        return {}
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise SettingsError(
            f"{path} does not hold settings but {type(data).__name__}",
            next_step="write one `name: value` a line, for example `prompts_per_step: 8`",
        )
    return dict(data)


def lines_of(path: Path) -> dict[str, int]:
    """The line of every setting, by dotted name, in a file that `read_yaml` has read."""
    return dict(_lines(yaml.compose(path.read_text(encoding="utf-8"), _CoreSchemaLoader), ""))


def _lines(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield f"{prefix}{key.value}", key.start_mark.line + 1
            yield from _lines(value, f"{prefix}{key.value}.")
