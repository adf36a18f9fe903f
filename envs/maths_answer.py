"""The answer of a maths response: where it stands, and its plain form.

Everything here is text and exact numbers, linear in the length of the text. What it cannot decide goes to
`envs.maths_equal`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from roll_ray.boxed import UnclosedBox, last_box

MAX_ANSWER_CHARACTERS = 500

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_HASHES = re.compile(r"^\s*####[ \t]*(.+?)\s*$", re.MULTILINE)
_SAID = re.compile(r"\banswer[ \t*]*(?:is|:|=)[ \t*:]*(?:\\\(|\$)?([^\n]+)", re.IGNORECASE)

_WRAPPERS = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|operatorname|mbox|boldsymbol|rm|bf)\s*\{([^{}]*)\}"
)
_TRAILING_UNIT = re.compile(
    r"(?<=[0-9}).])(?:\s*\\(?:text|textrm|mathrm|mbox|rm)\s*\{\s*(?P<wrapped>[^{}]+)\}"
    r"|(?P<space>\s*)(?P<bare>[A-Za-z][A-Za-z. ]*))(?:\s*\^\s*\{?[23]\}?)?$"
)
_SHORT_UNITS = re.compile("[mgshlLJNVWAKCF]|[ckm]m|[km]g|m[lL]|ft|in|lb|oz|hr|[ap]m|Hz|Pa|eV")
_DEGREES = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree|°")
_SPACES = re.compile(r"\\[,;:! ]|\\q?quad(?![a-zA-Z])|~|\s+")
_DELIMITERS = re.compile(r"\\(?:left|right|bigg?|Bigg?)(?![a-zA-Z])")
_FRACTION_NAMES = re.compile(r"\\[dtc]frac")
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]+)\}|(\d))\s*(?:\{([^{}]+)\}|(\d))")
_ASSIGNMENT = re.compile(r"^(\\?[A-Za-z](?:_\{?\w+\}?|\([A-Za-z]\))?)\s*=\s*([^=]+)$")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
_MIXED = re.compile(r"([+-]?)(\d+) ?\\frac\{(\d+)\}\{(\d+)\}|([+-]?)(\d+) (\d+)/(\d+)")
_SPACED_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_RATIO = re.compile(r"([+-]?)(?:\\frac\{([+-]?\d+)\}\{([+-]?\d+)\}|([+-]?\d+)/([+-]?\d+))")
_PERCENT = re.compile(r"\s*(?:\\?%|(?:\\text\{\s*)?percent\}?)$", re.IGNORECASE)
_MONEY = re.compile(r"^(?:\\?\$|\\text\{\$\}|[€£¥])\s*(?=[\d.\\-])")
_CHOICE = re.compile(r"\(?\s*([A-Z])\s*(?:\)|[.:](?!\d)|(?=$))\s*.*", re.DOTALL)
_BASE = re.compile(r"(\w+)_\{?(\d+)\}?")
_ROUNDED_DECIMALS = 6
_UNICODE = str.maketrans({"−": "-", "π": "\\pi ", "∞": "\\infty ", "×": "\\times ", "·": "\\cdot "})


class NoAnswer(ValueError):
    """There is no answer to judge; the message is the reason."""


def find_answer(response: str, *, thinking_begun: bool = False) -> str:
    """The answer as written: the last `\\boxed{}`; without a box what follows `####` or "the answer is".

    What stands inside `<think>...</think>` does not count; `thinking_begun` says that the prompt opened it.
    Raises NoAnswer: unfinished thinking, unclosed box, empty box, no answer found, too long.
    """
    text = _after_thinking(response, thinking_begun)
    try:
        answer = last_box(text)
    except UnclosedBox:
        raise NoAnswer("unclosed box") from None
    if answer is None:
        found = _last_match(_HASHES, text) or _last_match(_SAID, text)
        if found is None:
            raise NoAnswer("no answer found")
        answer = _without_sentence_end(found)
    if not answer.strip():
        raise NoAnswer("empty answer")
    if len(answer) > MAX_ANSWER_CHARACTERS:
        raise NoAnswer(f"the answer has {len(answer)} characters, over {MAX_ANSWER_CHARACTERS}")
    return answer.strip()


def _after_thinking(response: str, begun: bool) -> str:
    close = response.rfind(_THINK_CLOSE)
    rest = response if close < 0 else response[close + len(_THINK_CLOSE) :]
    if _THINK_OPEN in rest or (begun and close < 0):
        raise NoAnswer("unfinished thinking")
    return rest


def _last_match(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.findall(text)
    return found[-1] if found else None


def _without_sentence_end(text: str) -> str:
    """`4.` and `$4$.` and `**4**` as 4; `4. Well done` as 4."""
    text = re.split(r"[.!?](?=\s|$)", text.strip(), maxsplit=1)[0]
    text = text.strip().strip("*").strip()
    for end in ("$", "\\)", "\\]"):
        text = text.removesuffix(end)
    return text.strip()


@dataclass(frozen=True, slots=True)
class Plain:
    """The plain form of an answer. `text`: without wrapping, units and spacing; `with_unit`: as `text`, unit kept;
    `number`: its exact value where it is one; `is_percent`: a percent sign was taken off; `variable`: x of `x=5`;
    `decimals`: places after the point, None unless it is a decimal."""

    text: str
    number: Fraction | None
    with_unit: str = ""
    is_percent: bool = False
    variable: str | None = None
    decimals: int | None = None


def plain(answer: str) -> Plain:
    """`1,000`, `\\$18`, `3\\text{ cm}`, `90^\\circ`, `x=5`, `\\frac12`, `\\text{(B)}` in their plain forms."""
    text = answer.strip().translate(_UNICODE)
    if len(text) > 1 and text.startswith("$") and text.endswith("$") and not text.endswith("\\$"):
        text = text.strip("$")
    text = _DELIMITERS.sub("", text.replace("{,}", ",").replace("\\!", ""))
    text = _SPACES.sub(" ", text).strip().rstrip(".").strip()
    text = _DEGREES.sub("", text)
    variable = None
    if match := _ASSIGNMENT.match(text):
        variable, text = match[1], match[2]
    text = re.sub(r"\s*\\?\$$", "", _MONEY.sub("", text))
    without_percent = _PERCENT.sub("", text)
    is_percent = without_percent != text and bool(without_percent)
    full = without_percent if is_percent else text
    text = _FRACTION_NAMES.sub(r"\\frac", _unwrapped(_without_unit(full)))
    text = _SHORT_FRACTION.sub(_long_fraction, text)
    number, decimals = _number(text)
    return Plain(text, number, _unwrapped(full), is_percent, variable, decimals)


def choice_letter(text: str) -> str | None:
    """The letter of `B`, `(B)`, `B.`, `(B) 42`; None for anything else."""
    match = _CHOICE.fullmatch(text.strip())
    return match[1] if match else None


def is_choice(reference: str) -> bool:
    """Whether a plain reference is a choice letter, as in `B` or `(B)`."""
    return re.fullmatch(r"\(?[A-J]\)?\.?", reference.strip()) is not None


def same_text(a: str, b: str) -> bool:
    """Equal but for spacing (not between digits) and, where both are words, for case."""
    a, b = _squeezed(a), _squeezed(b)
    return a == b or (a.isalpha() and b.isalpha() and len(a) > 2 and a.lower() == b.lower())


def _squeezed(text: str) -> str:
    return re.sub(r"(?<!\d) | (?!\d)", "", text)


def same_number(answer: Plain, reference: Plain) -> bool:
    """Equal exactly, or one is the other rounded to six or more decimals (0.333333 for 1/3, never 0.333)."""
    a, b = answer.number, reference.number
    assert a is not None
    assert b is not None
    if a == b:
        return True
    return any(
        places is not None and places >= _ROUNDED_DECIMALS and rounded == round(exact, places)
        for rounded, places, exact in ((a, answer.decimals, b), (b, reference.decimals, a))
    )


def other_bases(a: str, b: str) -> bool:
    """`11_2` and `11_3` are different numbers, whatever a parser makes of the subscript."""
    first, second = _BASE.fullmatch(a.replace(" ", "")), _BASE.fullmatch(b.replace(" ", ""))
    return first is not None and second is not None and first[2] != second[2]


def _unwrapped(text: str) -> str:
    return _WRAPPERS.sub(r"\1", text).strip()


def _without_unit(text: str) -> str:
    """Words after a number are a unit; a letter or two may be variables unless they are a known unit."""
    match = _TRAILING_UNIT.search(text)
    if match is None:
        return text
    if match["bare"] is not None:
        word = match["bare"].strip(" .")
        known = _SHORT_UNITS.fullmatch(word) and (match["space"] or len(word) > 1)
        if not known and (len(word) < 3 or not match["space"]):
            return text
    return text[: match.start()].strip()


def _long_fraction(match: re.Match[str]) -> str:
    return f"\\frac{{{match[1] or match[2]}}}{{{match[3] or match[4]}}}"


def _number(text: str) -> tuple[Fraction | None, int | None]:
    """The exact value of an integer, a decimal or a fraction of integers, and the decimals of a decimal."""
    text = re.sub(r"\s*([/{}+-])\s*", r"\1", text)
    if _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if _DECIMAL.fullmatch(text):
        return Fraction(text), len(text.partition(".")[2]) if "." in text else None
    if match := _MIXED.fullmatch(text):
        sign, whole, top, bottom = [part or "" for part in match.groups() if part is not None]
        return _signed(sign, int(whole), int(top), int(bottom)), None
    if match := _RATIO.fullmatch(text):
        return _signed(match[1], 0, int(match[2] or match[4]), int(match[3] or match[5])), None
    return None, None


def _signed(sign: str, whole: int, top: int, bottom: int) -> Fraction | None:
    if bottom == 0:
        return None
    return (whole + Fraction(top, bottom)) * (-1 if sign == "-" else 1)
