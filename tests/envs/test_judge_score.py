"""What a judge wrote is read as a score in [0, 1], or as none: in many formats, in a documented order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.judge_score import parse_score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 8/10", 0.8),
        ("8/10", 0.8),
        ("[[8]]", 0.8),
        ("Rating: [[9/10]]", 0.9),
        ("<score>0.8</score>", 0.8),
        ("<score>8</score>", 0.8),
        ("<score> 4 / 5 </score>", 0.8),
        ('{"score": 8}', 0.8),
        ('```json\n{"reason": "fine", "score": "8/10"}\n```', 0.8),
        ('{"rating": 0.5}', 0.5),
        ("Rating: 4 out of 5", 0.8),
        ("4 out of 5 stars", 0.8),
        ("**Score:** 8", 0.8),
        ("**Score: 8/10**", 0.8),
        ("Score (out of 10): 8", 0.8),
        ("score = 80%", 0.8),
        ("Grade: **7/10**.", 0.7),
        ("The score is 7.", 0.7),
        ("My rating is **7/10**", 0.7),
        ("8", 0.8),
        (" 8. ", 0.8),
        ("0.8", 0.8),
        ("1.0", 1.0),
        ("1", 0.1),
        ("10", 1.0),
        ("0", 0.0),
        ("75%", 0.75),
        ("abcf 10/10", 1.0),
        ("<think>maybe Score: 2/10</think>Score: 8/10", 0.8),
        ("Clarity score: 9/10. Truth score: 3/10.\nScore: 5/10", 0.5),
        ("I would give 3/10 for style.\nScore: 8/10", 0.8),
        ("yes", 1.0),
        ("No.", 0.0),
        ("**Correct**", 1.0),
        ("Verdict: incorrect", 0.0),
        ("It misses the point.\nVerdict: wrong\nThank you", 0.0),
        ("The steps are fine.\n\nYes", 1.0),
        ("No, the sum is 5.", 0.0),
    ],
)
def test_a_score_in_any_of_these_formats_is_read(text: str, score: float) -> None:
    assert parse_score(text) == pytest.approx(score)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot judge this.",
        "Score: high",
        "12/10",
        "Score: 11",
        "Score: 3/0",
        "<think>Score: 8/10",
        "it was written on 3/4/2024",
        "notably good",
        '{"score": true}',
        "-3",
        "Score: -3/10",
    ],
)
def test_an_answer_without_a_score_in_range_has_none(text: str) -> None:
    assert parse_score(text) is None


def test_of_two_kinds_the_earlier_in_the_order_counts() -> None:
    assert parse_score('Score: 2/10\n{"score": 9}') == 0.9
    assert parse_score("[[7]] but yes, 3/10") == 0.7
    assert parse_score("2/10 at first, then Score: 6/10") == 0.6


def test_a_number_alone_is_so_many_of_the_scale() -> None:
    assert parse_score("Score: 4", scale=5) == 0.8
    assert parse_score("[[60]]", scale=100) == 0.6
    assert parse_score("Score: 1", scale=1) == 1.0
    assert parse_score("Score: 4/10", scale=5) == 0.4, "what is written beats what was asked for"


PIECES = [
    "score",
    "Score:",
    "8",
    "/",
    "10",
    "0.5",
    "%",
    "out of",
    "[[",
    "]]",
    "<score>",
    "</score>",
    "<think>",
]
PIECES += ["</think>", "{", "}", '"score":', "yes", "no", "is", "-", "**", " ", "\n"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_no_text_raises_and_no_score_leaves_its_range(text: str) -> None:
    score = parse_score(text)
    assert score is None or 0.0 <= score <= 1.0


@settings(deadline=None)
@given(
    n=st.integers(0, 20),
    of=st.integers(1, 20),
    before=st.sampled_from(["", "It is ok. ", "Reasons:\n- one\n"]),
)
def test_a_fraction_is_read_exactly(n: int, of: int, before: str) -> None:
    assert parse_score(f"{before}Score: {n}/{of}") == (n / of if n <= of else None)
