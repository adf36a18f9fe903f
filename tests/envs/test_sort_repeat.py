"""The task with a long tail of lengths."""

import pytest

from envs import sort_repeat
from envs.task import ScoredView


def view(answer, reference="abcabc", finish_reason="stop"):
    prompt = sort_repeat.Prompt(id="p", text="cab2>", domain=sort_repeat.DOMAIN, reference=reference)
    return ScoredView(prompt, answer, finish_reason)


@pytest.mark.parametrize(
    ("answer", "finish_reason", "value", "reason"),
    [
        ("abcabc", "stop", 1.0, "sorted and repeated"),
        ("abcabc", "length", 0.0, "did not end after the answer"),
        ("abc", "stop", 0.0, "3 letters, 6 are right: too few"),
        ("abcabcabc", "stop", 0.0, "9 letters, 6 are right: too many"),
        ("", "stop", 0.0, "another order or other letters than asked: ''"),
        ("acbacb", "stop", 0.0, "another order or other letters than asked: 'acbacb'"),
    ],
)
def test_only_the_exact_answer_that_ends_is_right(answer, finish_reason, value, reason):
    reward = sort_repeat.reward(view(answer, finish_reason=finish_reason))
    assert (reward.value, reward.reason) == (value, reason)


def test_a_prompt_asks_for_its_letters_sorted_so_many_times():
    prompt = sort_repeat.training_prompts(1, seed=3)[0]
    letters, repeats = prompt.text[:-2], int(prompt.text[-2])
    assert prompt.reference == "".join(sorted(letters)) * repeats


def test_a_tenth_of_the_prompts_is_long_and_none_is_held_out():
    prompts = sort_repeat.training_prompts(3000, seed=1)
    letters = [{p.text.rstrip(">0123456789") for p in ps} for ps in (prompts, sort_repeat.heldout_prompts())]
    assert letters[0].isdisjoint(letters[1])
    long = sum(len(p.reference) >= 4 * min(sort_repeat.LONG_REPEATS) for p in prompts) / len(prompts)
    assert 0.07 < long < 0.13
    assert max(len(p.reference) for p in prompts) < sort_repeat.MAX_ANSWER_TOKENS


def test_equal_seeds_give_equal_prompts():
    assert sort_repeat.training_prompts(50, seed=2) == sort_repeat.training_prompts(50, seed=2)
    assert sort_repeat.training_prompts(50, seed=2) != sort_repeat.training_prompts(50, seed=4)
