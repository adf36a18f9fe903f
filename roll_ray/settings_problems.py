"""What is wrong with single settings, in a person's words: what was given and where, what is legal, what to write."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from roll_ray.errors import SettingsError
from roll_ray.settings_values import shown

_LIST = "`roll-ray plan RECIPE` shows every setting, docs/settings.md explains them"


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault; the three parts of a `RollRayError`."""

    what: str
    why: str = ""
    next_step: str = ""

    def listed(self) -> str:
        """As an item of a list of faults."""
        lines = [f"  - {self.what}"]
        lines += [f"      why:  {self.why}"] if self.why else []
        lines += [f"      next: {self.next_step}"] if self.next_step else []
        return "\n".join(lines)


def raise_all(problems: Sequence[Problem]) -> None:
    """Raise SettingsError with everything that is wrong, if anything is."""
    if len(problems) == 1:
        (problem,) = problems
        raise SettingsError(problem.what, why=problem.why, next_step=problem.next_step)
    if problems:
        listed = [problem.listed() for problem in problems]
        raise SettingsError("\n".join([f"{len(problems)} settings are wrong", *listed]))


def unknown(name: str, known: Sequence[str], given: str) -> Problem:
    """A name that no setting has. `given` says where it was given."""
    if meant := nearest(name, known):
        return Problem(
            f"unknown setting {name}, did you mean {' or '.join(meant)}?",
            given,
            f"write {meant[0]}, or look it up: {_LIST}",
        )
    return Problem(f"unknown setting {name}", given, _LIST)


def below_a_value(name: str, single: str, given: str) -> Problem:
    return Problem(
        f"unknown setting {name}: {single} is a single value, not a group of settings",
        given,
        f"write {single}=...",
    )


def given_twice(name: str, texts: Iterable[str]) -> Problem:
    both = " and ".join(f"{name}={text}" for text in texts)
    return Problem(f"{name} is given twice", f"the command line has {both}", "give it once")


def unreadable(name: str, text: str, fault: str, given: str) -> Problem:
    return Problem(
        f"{name}={text} cannot be read: {fault}", given, "close every bracket and quote, or leave them out"
    )


def group_as_value(name: str, value: object, member: str, given: str) -> Problem:
    return Problem(
        f"{name}={shown(value)}: {name} is a group of settings",
        given,
        f"set one of them, for example {name}.{member}=...",
    )


def not_set(name: str, meaning: str) -> Problem:
    return Problem(f"{name} is not set", f"it has no default: {meaning}", f"add {name}=...")


def illegal(name: str, value: str, fault: str, given: str, legal: str, example: str | None) -> Problem:
    """A value that a setting cannot have. `legal` describes those that it can, `example` is its default."""
    ending = "" if example is None else f", for example {name}={example} (the default)"
    return Problem(f"{name}={value}: {fault}", given, f"{name} is {legal}{ending}")


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
