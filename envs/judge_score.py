"""A judge's score, read from what it wrote.

The first of these that is found counts; of several of one kind the last, for judges reason before they judge:

1. JSON: `{"score": 8}`, also `rating` or `grade`
2. a tag: `<score>0.8</score>`
3. double brackets: `[[8]]`, `[[8/10]]`
4. a label: `Score: 8/10`, `Rating = 4 out of 5`, `**Score:** 8`, then `the score is 8`
5. a fraction by itself: `8/10`, `4 out of 5`
6. a number that is the whole answer: `8`, `0.8`, `80%`
7. a verdict: `Verdict: correct`, a last line `yes`, an answer that begins with `No, ...`

A number over a number is their ratio, `80%` is 0.8. A number alone is a share when it is written with a point
and at most 1 (`0.8`, `1.0`), else so many of `scale`. What is outside of 0 to 1 is no score, and neither is anything
inside `<think>`.
"""

from __future__ import annotations

import json
import re

_NUMBER = r"(?<!-)(?P<value>\d+(?:\.\d+)?|\.\d+)\s*(?:(?:/|out\s+of)\s*(?P<of>\d+(?:\.\d+)?)|(?P<percent>%))?"
_LABEL = r"\b(?:score|rating|grade)\b\W{0,4}(?:\([^)\n]{0,60}\))?"
_BY_KIND = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"<(?:score|rating|grade)>\s*{_NUMBER}\s*</(?:score|rating|grade)>",
        rf"\[\[\s*{_NUMBER}\s*\]\]",
        rf"{_LABEL}\W{{0,4}}[:=]\W{{0,6}}{_NUMBER}",
        rf"{_LABEL}\s+is\W{{1,4}}{_NUMBER}",
        r"(?<![\d./-])(?P<value>\d+(?:\.\d+)?)\s*(?:/|\bout\s+of\b)\s*(?P<of>\d+(?:\.\d+)?)(?P<percent>(?!))?(?![\d/])",
    )
)
_ALONE = re.compile(rf"\W*{_NUMBER}\W*", re.IGNORECASE)
_JSON = re.compile(r"\{[^{}]*\}")
_JSON_KEYS = ("score", "rating", "grade")
_YES, _NO = ("yes", "correct", "right", "true", "pass"), ("no", "incorrect", "wrong", "false", "fail")
_WORD = f"(?P<word>{'|'.join((*_YES, *_NO))})"
_VERDICT = re.compile(rf"\b(?:verdict|judge?ment|decision)\b\W{{0,4}}[:=]\W{{0,6}}{_WORD}\b", re.IGNORECASE)
_LAST_LINE = re.compile(rf"(?:^|\n)\W*{_WORD}\W*$", re.IGNORECASE)
_FIRST_WORD = re.compile(rf"\W*{_WORD}\b", re.IGNORECASE)


def parse_score(text: str, scale: float = 10.0) -> float | None:
    """The score in [0, 1], or None where there is none. `scale`: the best score that the judge was told of."""
    text = _after_thinking(text)
    for candidate in (_json_score(text), *(_last(kind, text) for kind in _BY_KIND), _ALONE.fullmatch(text)):
        if candidate is not None:
            return _share(candidate["value"], candidate["of"], candidate["percent"], scale)
    return _verdict(text)


def _after_thinking(text: str) -> str:
    """Without reasoning; nothing is left of an answer whose reasoning did not end."""
    if "<think>" in text and "</think>" not in text.rpartition("<think>")[2]:
        return ""
    return text.rpartition("</think>")[2].strip()


def _last(kind: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(reversed(list(kind.finditer(text))), None)


def _json_score(text: str) -> re.Match[str] | None:
    """The number of the last flat JSON object that has a score."""
    for match in reversed(_JSON.findall(text)):
        try:
            record = json.loads(match)
        except ValueError:
            continue
        given = next((record[key] for key in _JSON_KEYS if key in record), None)
        if given is not None and not isinstance(given, bool):
            return _ALONE.fullmatch(str(given))
    return None


def _share(value: str, of: str | None, percent: str | None, scale: float) -> float | None:
    number = float(value)
    if of is not None:
        divisor = float(of)
    elif percent:
        divisor = 100.0
    else:
        divisor = 1.0 if "." in value and number <= 1.0 else scale
    return number / divisor if divisor > 0.0 and number <= divisor else None


def _verdict(text: str) -> float | None:
    found = _last(_VERDICT, text) or _LAST_LINE.search(text) or _FIRST_WORD.match(text)
    return None if found is None else float(found["word"].lower() in _YES)
