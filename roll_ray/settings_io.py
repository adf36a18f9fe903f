"""From files and words to typed settings, with errors that name the setting, the value and a legal one.

settings = read_settings(Settings, ["@run.yaml", "learning_rate=1e-6", "devices.rollout=0-3"])
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, to_jsonable_python

from roll_ray.errors import SettingsError
from roll_ray.settings import RunSettings
from roll_ray.settings_values import parse_value, read_yaml

S = TypeVar("S", bound=RunSettings)

_LIST = "`roll-ray plan RECIPE` shows every setting, docs/settings.md explains them"


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
    _raise_all(settings.problems())
    return settings


def load_settings(
    cls: type[S],
    words: Sequence[str],
    yaml_file: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> S:
    """As `read_settings`, without asking for contradictions: `plan` shows those beside the settings."""
    files, assignments = _split_words(words)
    given = _Given(data=_group_defaults(cls))
    _merge(given.data, defaults or {})
    for path in ([yaml_file] if yaml_file else []) + files:
        _merge(given.data, read_yaml(path))
    fields = dict(dotted_fields(cls))
    wrong = [problem for word in assignments if (problem := given.assign(*word, fields))]
    settings, illegal = _validated(cls, given, fields)
    _raise_all(wrong + illegal)
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


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, by dotted names."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
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


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Known dotted names that `name` may have meant, the likeliest first: a name right but for its group,
    a slip in the whole name, or a slip in its last part."""
    leaf = name.rsplit(".", 1)[-1]
    if same_leaf := [k for k in known if k.rsplit(".", 1)[-1] == leaf]:
        return same_leaf[:3]
    if close := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return close
    leaves = {k.rsplit(".", 1)[-1]: k for k in reversed(known)}
    return [leaves[match] for match in difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=0.75)]


@dataclass(slots=True)
class _Given:
    """Plain nested data, and the text of each word, by dotted name."""

    data: dict[str, Any]
    texts: dict[str, str] = field(default_factory=dict)

    def assign(self, name: str, text: str, fields: Mapping[str, FieldInfo]) -> str | None:
        """Set a dotted name; a sentence when that is not possible."""
        single = name.rpartition(".")[0]
        if single in fields and group_of(fields[single]) is None:
            return f"unknown setting {name}: {single} is a single value, not a group of settings"
        if name in self.texts:
            return f"{name} is given twice, as {self.texts[name]!r} and {text!r}: give it once"
        self.texts[name] = text
        try:
            value = parse_value(text)
        except yaml.YAMLError as error:
            return f"{name}={text} cannot be read: {getattr(error, 'problem', None) or error}"
        _merge(self.data, _nested(name, value))
        return None

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


def _validated(cls: type[S], given: _Given, fields: Mapping[str, FieldInfo]) -> tuple[S | None, list[str]]:
    """The settings, or None and a sentence for each illegal value or unknown name."""
    try:
        settings = cls.model_validate(given.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        if _take_texts_as_they_stand(given, details, fields):
            return _validated(cls, given, fields)
        return None, list(dict.fromkeys(_sentence(cls, given, detail, fields) for detail in details))
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


def _sentence(
    cls: type[BaseModel], given: _Given, detail: ErrorDetails, fields: Mapping[str, FieldInfo]
) -> str:
    """One pydantic error as a sentence: setting, value, what is wrong, a legal value."""
    name = _setting_of(detail, fields)
    if detail["type"] == "extra_forbidden":
        unknown = ".".join(map(str, detail["loc"]))
        meant = nearest(unknown, list(fields))
        return f"unknown setting {unknown}" + (
            f", did you mean {' or '.join(meant)}?" if meant else f"; {_LIST}"
        )
    info = fields[name]
    if detail["type"] == "missing":
        return f"{name} is not set: {info.description} Add {name}=..."
    if (group := group_of(info)) is not None:
        first = next(iter(group.model_fields))
        return f"{name} is a group of settings: set one of them, for example {name}.{first}=..."
    what = detail["msg"].removeprefix("Value error, ").replace("Input should", "should")
    return f"{name}={given.texts.get(name, given.value(name))}: {what}" + _legal(cls, name)


def _legal(cls: type[BaseModel], name: str) -> str:
    defaults = default_values(cls)
    if name not in defaults:
        return ""
    shown = json.dumps(defaults[name]).replace(" ", "").strip('"')
    return f"; legal is for example {name}={shown} (the default)"


def _setting_of(detail: ErrorDetails, fields: Mapping[str, FieldInfo]) -> str:
    """The setting that an error belongs to: pydantic goes on into list items and union members."""
    parts = [str(part) for part in detail["loc"]]
    while parts and ".".join(parts) not in fields:
        parts.pop()
    return ".".join(parts)


def _booleans_for_numbers(settings: BaseModel, given: _Given, fields: Mapping[str, FieldInfo]) -> list[str]:
    """pydantic reads true as 1; somebody who writes `max_steps=true` means something else."""
    result = flat(settings.model_dump(mode="python"))
    return [
        f"{name}={str(given.value(name)).lower()}: a number is wanted" + _legal(type(settings), name)
        for name in fields
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


def _raise_all(sentences: Sequence[str]) -> None:
    if len(sentences) == 1:
        raise SettingsError(sentences[0])
    if sentences:
        raise SettingsError(
            "\n".join([f"{len(sentences)} settings are wrong", *(f"  - {s}" for s in sentences)])
        )
