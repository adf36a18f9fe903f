"""docs/settings.md from the typed settings: `python -m roll_ray.settings_doc docs/settings.md` (make docs)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel

from roll_ray.settings import RunSettings
from roll_ray.settings_io import default_values, group_of
from roll_ray.settings_types import legal_values
from roll_ray.settings_values import shown

_HEAD = """# Settings

Made by `make docs` from the typed settings in `roll_ray/settings.py`; do not edit by hand.

Settings are read in this order, the later winning: the recipe's defaults, YAML files, words on the command line.

```
python recipes/grpo_qwen.py @mine.yaml learning_rate=1e-6 sampling.temperature=0.6 devices.rollout=0-3
```

- A name with a dot is a setting in a group; in YAML it is nested.
- Values are YAML 1.2 scalars and lists: `1e-6` is a number, `null` is none.
- An unknown name is an error that says which one you may have meant. All that is wrong is said at once.
- A recipe may have settings of its own and other defaults: `roll-ray plan RECIPE` shows them all.
"""


def document(cls: type[BaseModel] = RunSettings) -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_section(cls, cls, "")]).rstrip() + "\n"


def _section(root: type[BaseModel], cls: type[BaseModel], prefix: str) -> Iterator[str]:
    """The table of one group, then those of the groups in it."""
    title = f"`{prefix.rstrip('.')}`" if prefix else "Run"
    yield f"## {title}\n\n{_first_paragraph(cls)}\n"
    yield "| setting | type | default | meaning |\n|---|---|---|---|"
    defaults = default_values(root)
    for name, info in cls.model_fields.items():
        full = prefix + name
        if group_of(info) is not None:
            yield f"| `{full}.…` | group | | {info.description} See below. |"
        else:
            default = f"`{shown(defaults[full])}`" if full in defaults else "must be given"
            yield f"| `{full}` | {_escaped(legal_values(info))} | {default} | {_escaped(info.description or '')} |"
    yield ""
    for name, info in cls.model_fields.items():
        if (group := group_of(info)) is not None:
            yield from _section(root, group, f"{prefix}{name}.")


def _first_paragraph(cls: type[BaseModel]) -> str:
    return inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main(arguments: Sequence[str]) -> None:
    Path(arguments[0]).write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
