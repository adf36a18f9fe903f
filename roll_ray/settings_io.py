"""From files and words to typed settings, with errors that name the setting, the value and a legal one.

settings = read_settings(Settings, ["@run.yaml", "learning_rate=1e-6", "devices.rollout=0-3"])
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, to_jsonable_python

from roll_ray.errors import SettingsError
from roll_ray.settings import RunSettings
from roll_ray.settings_problems import (
    Problem,
    below_a_value,
    given_twice,
    group_as_value,
    illegal,
    not_set,
    raise_all,
    unknown,
    unreadable,
)
from roll_ray.settings_types import legal_values
from roll_ray.settings_values import lines_of, parse_value, read_yaml, shown

S = TypeVar("S", bound=RunSettings)


def read_settings(
    cls: type[S],
    words: Sequence[str],
    yaml_file: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> S:
    """Settings from `defaults`, then the YAML files, then the `key.sub=value` words, the later winning.

    A word `@file.yaml` or `settings=file.yaml` names a file too. Raises `SettingsError` with everything that
    is wrong: unknown names, illegal values, and what `cls.problems` finds contradictory.
    """
    settings = load_settings(cls, words, yaml_file, defaults)
    raise_all([Problem(sentence) for sentence in settings.problems()])
    return settings


def load_settings(
    cls: type[S],
    words: Sequence[str],
    yaml_file: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> S:
    """As `read_settings`, without asking for contradictions: `plan` shows those beside the settings."""
    files, assignments = _split_words(words)
    given = _Given(data=_group_defaults(cls), files=([yaml_file] if yaml_file else []) + files)
    _merge(given.data, defaults or {})
    for path in given.files:
        _merge(given.data, read_yaml(path))
    fields = dict(dotted_fields(cls))
    wrong = [problem for word in assignments if (problem := given.assign(*word, fields))]
    settings, refused = _validated(cls, given, fields)
    raise_all(wrong + refused)
    assert settings is not None
    return settings


def dotted_fields(cls: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting of `cls` with its dotted name, groups before what is in them."""
    for name, info in cls.model_fields.items():
        yield prefix + name, info
        if (group := group_of(info)) is not None:
            yield from dotted_fields(group, f"{prefix}{name}.")


def group_of(info: FieldInfo) -> type[BaseModel] | None:
    """The model class of a setting that is a group of settings, else None."""
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def takes_names(info: FieldInfo) -> bool:
    """Whether a setting is a mapping from names that the user chooses, such as domains."""
    return get_origin(info.annotation) is dict


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, by dotted names."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def default_values(cls: type[BaseModel]) -> dict[str, Any]:
    """The plain default of every setting by dotted name; a setting that must be given is not in it."""
    found: dict[str, Any] = {}
    for name, info in cls.model_fields.items():
        if not info.is_required():
            default = info.get_default(call_default_factory=True, validated_data={})
            found |= flat({name: to_jsonable_python(default)})
    return found


@dataclass(slots=True)
class _Given:
    """Plain nested data, the files it came from, and the text of each word, by dotted name."""

    data: dict[str, Any]
    files: list[Path]
    texts: dict[str, str] = field(default_factory=dict)

    def assign(self, name: str, text: str, fields: Mapping[str, FieldInfo]) -> Problem | None:
        """Set a dotted name; what keeps it from being set."""
        if name in self.texts:
            return given_twice(name, (self.texts[name], text))
        self.texts[name] = text
        single = name.rpartition(".")[0]
        if single in fields and group_of(fields[single]) is None and not takes_names(fields[single]):
            return below_a_value(name, single, self.where(name))
        try:
            value = parse_value(text)
        except yaml.YAMLError as error:
            return unreadable(name, text, str(getattr(error, "problem", None) or error), self.where(name))
        _merge(self.data, _nested(name, value))
        return None

    def where(self, name: str) -> str:
        """Where a name was given, as a sentence; empty for what no user gave."""
        for word, text in self.texts.items():
            if word == name or word.startswith(f"{name}."):
                return f"the command line has {word}={text}"
        for path in reversed(self.files):
            if line := lines_of(path).get(name):
                return f"it stands in {path}, line {line}"
        return ""

    def text(self, name: str) -> str:
        """What was given, as it was written."""
        return self.texts.get(name, shown(self.value(name)))

    def value(self, name: str) -> Any:
        here: Any = self.data
        for part in name.split("."):
            if not isinstance(here, Mapping) or part not in here:
                return None
            here = here[part]
        return here


def _split_words(words: Sequence[str]) -> tuple[list[Path], list[tuple[str, str]]]:
    files: list[Path] = []
    assignments: list[tuple[str, str]] = []
    for word in words:
        name, equals, text = word.partition("=")
        if word.startswith("@"):
            files.append(Path(word[1:]))
        elif not equals or not name.strip():
            raise SettingsError(
                f"{word!r} is not a setting",
                why="a setting is written name=value, without spaces around the sign",
                next_step="write for example prompts_per_step=8, sampling.temperature=0.6 or @settings.yaml",
            )
        elif name == "settings":
            files.append(Path(text))
        else:
            assignments.append((name.strip(), text))
    return files, assignments


def _group_defaults(cls: type[BaseModel]) -> dict[str, Any]:
    """The plain defaults of the groups: who sets one value of a group keeps the others as the recipe has them,
    not as the group's own class has them."""
    return {
        name: to_jsonable_python(info.get_default(call_default_factory=True, validated_data={}))
        for name, info in cls.model_fields.items()
        if group_of(info) is not None and not info.is_required()
    }


def _validated(
    cls: type[S], given: _Given, fields: Mapping[str, FieldInfo]
) -> tuple[S | None, list[Problem]]:
    """The settings, or None and what is wrong with each illegal value or unknown name."""
    try:
        settings = cls.model_validate(given.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        if _take_texts_as_they_stand(given, details, fields):
            return _validated(cls, given, fields)
        return None, list(dict.fromkeys(_problem(cls, given, detail, fields) for detail in details))
    return settings, _booleans_for_numbers(settings, given, fields)


def _take_texts_as_they_stand(
    given: _Given, details: Sequence[ErrorDetails], fields: Mapping[str, FieldInfo]
) -> bool:
    """`run_name=007` parses as a number; where text is wanted, the word itself is meant. True if any changed."""
    changed = False
    for detail in details:
        name = _setting_of(detail, fields)
        text = given.texts.get(name)
        if detail["type"] in ("string_type", "path_type") and text and given.value(name) != text:
            _merge(given.data, _nested(name, text))
            changed = True
    return changed


def _problem(
    cls: type[BaseModel], given: _Given, detail: ErrorDetails, fields: Mapping[str, FieldInfo]
) -> Problem:
    """One pydantic error in our words."""
    name = _setting_of(detail, fields)
    if detail["type"] == "extra_forbidden":
        written = ".".join(map(str, detail["loc"]))
        return unknown(written, list(fields), given.where(written))
    info = fields[name]
    if detail["type"] == "missing":
        return not_set(name, info.description or "")
    if (group := group_of(info)) is not None:
        return group_as_value(name, given.value(name), next(iter(group.model_fields)), given.where(name))
    fault = detail["msg"].removeprefix("Value error, ").replace("Input should", "should")
    return _illegal(cls, given, name, info, fault)


def _illegal(cls: type[BaseModel], given: _Given, name: str, info: FieldInfo, fault: str) -> Problem:
    defaults = default_values(cls)
    example = json.dumps(defaults[name]).replace(" ", "").strip('"') if name in defaults else None
    return illegal(name, given.text(name), fault, given.where(name), legal_values(info), example)


def _setting_of(detail: ErrorDetails, fields: Mapping[str, FieldInfo]) -> str:
    """The setting that an error belongs to: pydantic goes on into list items and union members."""
    parts = [str(part) for part in detail["loc"]]
    while parts and ".".join(parts) not in fields:
        parts.pop()
    return ".".join(parts)


def _booleans_for_numbers(
    settings: BaseModel, given: _Given, fields: Mapping[str, FieldInfo]
) -> list[Problem]:
    """pydantic reads true as 1; somebody who writes `max_steps=true` means something else."""
    result = flat(settings.model_dump(mode="python"))
    return [
        _illegal(type(settings), given, name, info, "a number is wanted")
        for name, info in fields.items()
        if isinstance(given.value(name), bool) and not isinstance(result.get(name), bool)
    ]


def _nested(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    return dict(value)


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Later values win; groups are merged, everything else is replaced."""
    for name, value in new.items():
        there = into.get(name)
        if isinstance(value, Mapping) and isinstance(there, dict):
            _merge(there, value)
        else:
            into[name] = _copied(value) if isinstance(value, Mapping) else value


def _copied(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in data.items()}
