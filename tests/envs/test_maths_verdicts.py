"""The maths verifier's verdicts, each with the answer it found and a reason."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.maths import MathsVerifier, score
from envs.task import ScoredView
from roll_ray.sample import Prompt

verifier = MathsVerifier()


def value(response: str, reference: str, **options: bool) -> float | None:
    return MathsVerifier(**options).verdict(response, reference).value


def boxed(answer: str) -> str:
    return f"So it is $\\boxed{{{answer}}}$."


RIGHT = [
    (r"\frac12", "0.5"),
    ("1/2", r"\frac12"),
    (r"\dfrac{1}{2}", "1/2"),
    ("1,000", "1000"),
    (r"1{,}000", "1000"),
    (r"1\,000", "1000"),
    ("1000", "1,000"),
    (r"\$18", "18"),
    ("$18$", "18"),
    ("18 dollars", "18"),
    (r"3\text{ cm}", "3"),
    ("3 cm", "3"),
    (r"3 \text{ cm}^2", "3"),
    ("3", r"3\text{ cm}"),
    (r"90^\circ", "90"),
    (r"90^{\circ}", "90"),
    ("x=5", "5"),
    ("5", "x = 5"),
    ("f(x)=2x", "2x"),
    ("-3", "−3"),
    ("0.333333", "1/3"),
    (r"4\frac{1}{2}", "4.5"),
    ("4 1/2", "9/2"),
    (r"50\%", "0.5"),
    (r"50\%", r"50\%"),
    (r"\text{Tuesday}", "tuesday"),
    (r"\text{no solution}", "No solution"),
    (r"\left(1,2\right)", "(1, 2)"),
    ("5m", "5 m"),
]
WRONG = [
    ("0.333", "1/3"),
    ("0.33333", "1/3"),
    ("5", "4"),
    (r"50\%", "50"),
    ("50", r"50\%"),
    ("2 x", "2"),
    ("2x", "2"),
    ("x=5", "y=5"),
    ("11_2", "11_3"),
    ("41/2", "4 1/2"),
    ("12", "1 2"),
]
SYMBOLIC_RIGHT = [
    ("(x+1)^2", "x^2+2x+1"),
    (r"2\sqrt{2}", r"\sqrt8"),
    ("2^{10}", "1024"),
    (r"\pi/2", r"\frac{\pi}{2}"),
    (r"\{2,1\}", r"\{1,2\}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"\frac{\sqrt4}{4}", "0.5"),
]
SYMBOLIC_WRONG = [
    ("3x", "3y"),
    ("x^2", "x^3"),
    (r"\sqrt{2}", "1.414"),
    (r"\text{yes}", "no"),
    ("(2,1)", "(1,2)"),
]


@pytest.mark.parametrize(("answer", "reference"), RIGHT + SYMBOLIC_RIGHT)
def test_right(answer: str, reference: str) -> None:
    reward = verifier.verdict(boxed(answer), reference)
    assert (reward.value, reward.reason, reward.extracted) == (1.0, "right", answer)


@pytest.mark.parametrize(("answer", "reference"), WRONG + SYMBOLIC_WRONG)
def test_wrong_with_the_answer_in_the_reason(answer: str, reference: str) -> None:
    reward = verifier.verdict(boxed(answer), reference)
    assert reward.value == 0.0
    assert reward.extracted == answer
    assert answer in reward.reason


@pytest.mark.parametrize(
    "answer", ["B", "(B)", r"\text{B}", r"\text{(B)}", r"\textbf{(B) }17", "B.", "B) 17"]
)
def test_choice_letters(answer: str) -> None:
    assert value(boxed(answer), "B") == value(boxed(answer), "(B)") == 1.0
    assert value(boxed(answer), "C") == 0.0


def test_a_word_that_begins_with_the_letter_is_no_choice() -> None:
    assert value(boxed("Because"), "B") == value(boxed("B or C"), "B") == 0.0


def test_the_last_box_counts() -> None:
    assert value(r"\boxed{3}, no, \boxed{4}", "4") == 1.0
    assert value(r"\boxed{3}, no, \boxed{4}", "3") == 0.0


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (r"\boxed{4", "unclosed box"),
        (r"\boxed{4} or rather \boxed{5", "unclosed box"),
        (r"\boxed{\frac{1}{2}", "unclosed box"),
        (r"\boxed{}", "empty answer"),
        ("I do not know.", "no answer found"),
        ("", "no answer found"),
        (r"<think>\boxed{4}", "unfinished thinking"),
        (r"<think>a</think> \boxed{4} <think> hm", "unfinished thinking"),
        (r"\boxed{" + "1+" * 300 + "1}", "the answer has 601 characters, over 500"),
    ],
)
def test_an_answer_that_is_not_there_is_wrong_with_a_reason(response: str, reason: str) -> None:
    reward = verifier.verdict(response, "4")
    assert (reward.value, reward.reason) == (0.0, reason)


@pytest.mark.parametrize(
    "response",
    [
        r"The answer is \boxed{4}.",
        r"\boxed{4}" + "\n\nI hope this helps! Let me know if you have 2 or 3 more questions.",
        r"\[ \boxed{4} \]",
        "#### 4",
        "So the answer is 4.",
        "The final answer is: $4$.",
        "**Answer:** 4",
    ],
)
def test_where_the_answer_may_stand(response: str) -> None:
    assert verifier.verdict(response, "4").value == 1.0


def test_thinking_does_not_count() -> None:
    response = r"<think>\boxed{5}</think> \boxed{4}"
    assert value(response, "4") == 1.0
    assert value(response, "5") == 0.0
    assert value(r"\boxed{5}</think> \boxed{4}", "4") == 1.0, "a template may have opened the thought"
    assert value(r"<think>\boxed{5}</think> nothing", "5") == 0.0


def test_a_thought_that_the_prompt_opened_must_be_closed() -> None:
    prompt = Prompt(id="p", text="1+3? <think>\n", reference="4")
    assert score(ScoredView(prompt, r"\boxed{4}")).reason == "unfinished thinking"
    assert score(ScoredView(prompt, r"hm</think>\boxed{4}")).value == 1.0


def test_percent_as_number() -> None:
    assert value(boxed(r"50\%"), "50", percent_as_number=True) == 1.0
    assert value(boxed("50"), r"50\%", percent_as_number=True) == 1.0
    assert value(boxed(r"50\%"), "0.5", percent_as_number=True) == 1.0
    assert value(boxed(r"50\%"), "5", percent_as_number=True) == 0.0
    assert value(boxed(r"\frac{100}{2}\%"), "0.5") == 1.0


def test_references_as_data_sets_have_them() -> None:
    assert value(boxed("72"), "24 clips.\n#### 72") == 1.0
    assert value(boxed("72"), r"so \boxed{72}.") == 1.0


def test_no_reference_is_invalid_not_wrong() -> None:
    assert not score(ScoredView(Prompt(id="p", text="x"), boxed("4"))).valid
    assert not verifier.verdict(boxed("4"), "").valid


def test_an_unreadable_answer_is_wrong_and_says_so() -> None:
    reward = verifier.verdict(boxed(r"\frac{"), "4")
    assert reward.value == 0.0
    reward = verifier.verdict(boxed(r"\@\@"), "4")
    assert reward.value == 0.0
    assert "unreadable" in reward.reason


@settings(max_examples=300, deadline=None)
@given(response=st.text(alphabet=st.sampled_from("\\boxed{}<think>/ #answer is:4.,%$^_12"), max_size=80))
def test_no_text_raises(response: str) -> None:
    reward = MathsVerifier(limit_s=2).verdict(response, "4")
    assert reward.reason


@given(a=st.integers(-(10**9), 10**9), b=st.integers(-(10**9), 10**9))
def test_integers_are_right_exactly_when_equal(a: int, b: int) -> None:
    assert value(boxed(f"{a:,}"), str(b)) == float(a == b)
    assert value(boxed(str(a)), f"{a:,}") == 1.0


def test_plain_answers_are_judged_at_500_a_second() -> None:
    text = "Let us compute step by step. " * 60
    started_s = time.process_time()
    for i in range(1000):
        verifier.verdict(f"{text} The answer is \\boxed{{{i * 37}}}.", str(i * 36))
    assert 1000 / (time.process_time() - started_s) >= 500
