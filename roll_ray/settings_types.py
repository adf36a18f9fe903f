"""What values a setting may have, in the words of somebody who writes YAML."""

from __future__ import annotations

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def legal_values(info: FieldInfo) -> str:
    """For example "integer > 0", "`auto` or `cpu` or `gpu`", "text or null"."""
    bounds = [
        f"{sign} {getattr(rule, attribute)}"
        for rule in info.metadata
        for attribute, sign in _BOUNDS.items()
        if isinstance(rule, annotated_types.BaseMetadata) and getattr(rule, attribute, None) is not None
    ]
    kinds = [_name(kind) for kind in _members(info.annotation) if kind is not NoneType]
    null = " or null" if NoneType in _members(info.annotation) else ""
    return " ".join([" or ".join(kinds), ", ".join(bounds)]).strip() + null


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _name(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Annotated:
        return _name(get_args(kind)[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in get_args(kind))
    if origin in (list, tuple):
        return f"list of {_name(get_args(kind)[0])}"
    if origin is dict:
        return "{name: " + _name(get_args(kind)[1]) + ", ...}"
    return {int: "integer", float: "number", str: "text", bool: "true or false", Path: "path"}.get(
        kind, str(kind)
    )
