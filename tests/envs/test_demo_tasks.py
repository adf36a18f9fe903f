"""The demo tasks: prompts, held-out sets, rewards."""

from __future__ import annotations

import pytest

from envs import addition, letter_a, reverse_letters, sort_letters
from envs.task import ScoredView
from roll_ray.sample import Prompt


def view(prompt: Prompt, text: str, finish: str = "stop") -> ScoredView:
    return ScoredView(prompt, text, finish)


def test_sort_letters_prompts_are_what_the_task_says() -> None:
    prompts = sort_letters.training_prompts(500, seed=3)
    for prompt in prompts:
        letters = (prompt.text or "")[:-1]
        assert prompt.text == letters + ">"
        assert 4 <= len(letters) <= 7
        assert set(letters) <= set("abcdefghij")
        assert prompt.reference == "".join(sorted(letters))
    assert {len(p.text or "") for p in prompts} == {5, 6, 7, 8}
    assert len({p.id for p in prompts}) == 500


@pytest.mark.parametrize("seed", [0, 1, 20_000_003])
def test_held_out_prompts_are_never_trained_on(seed: int) -> None:
    heldout = {p.id for p in sort_letters.heldout_prompts()}
    assert len(heldout) == 400
    assert not heldout & {p.id for p in sort_letters.training_prompts(10_000, seed)}


def test_equal_seeds_give_equal_prompts() -> None:
    assert sort_letters.training_prompts(50, 1) == sort_letters.training_prompts(50, 1)
    assert sort_letters.training_prompts(50, 1) != sort_letters.training_prompts(50, 2)
    assert sort_letters.heldout_prompts(10) == sort_letters.heldout_prompts()[:10]


def test_sort_letters_reward_is_one_for_the_exact_answer_only() -> None:
    prompt = Prompt(id="p", text="fbca>", reference="abcf")
    assert sort_letters.reward(view(prompt, "abcf")).value == 1.0
    for text, reason in [
        ("abfc", "right letters, wrong order"),
        ("abc", "other letters than asked: 'abc'"),
        ("abcf ", "other letters than asked: 'abcf '"),
        ("", "empty answer"),
    ]:
        reward = sort_letters.reward(view(prompt, text))
        assert (reward.value, reward.reason) == (0.0, reason)
    cut = sort_letters.reward(view(prompt, "abcf", "length"))
    assert (cut.value, cut.reason) == (0.0, "did not end after the answer")


def test_addition_holds_out_24_of_100_pairs() -> None:
    train, heldout = addition.training_prompts(), addition.heldout_prompts()
    assert (len(train), len(heldout)) == (76, 24)
    assert len({p.id for p in train + heldout}) == 100
    (message,) = heldout[0].messages or ()
    a, b = map(int, heldout[0].id.removeprefix("addition/").split("+"))
    assert message["content"] == f"What is {a}+{b}? Answer with the number only."
    assert heldout[0].reference == str(a + b)


def test_addition_takes_the_last_number_of_the_response() -> None:
    prompt = Prompt(id="p", text="x", reference="7")
    for text in (" 7\n", "3 + 4 = 7", "The answer is 7."):
        assert addition.reward(view(prompt, text)).value == 1.0
    for text, reason in [
        ("8", "8 is not 7"),
        ("7 = 3 + 4", "4 is not 7"),
        ("-7", "-7 is not 7"),
        ("7.5", "7.5 is not 7"),
        ("seven", "no number in the response"),
        ("", "no number in the response"),
    ]:
        reward = addition.reward(view(prompt, text))
        assert (reward.value, reward.reason) == (0.0, reason)


def test_letter_a_rewards_the_share_of_the_letter() -> None:
    prompts = letter_a.prompts()
    assert len({p.id for p in prompts}) == 64
    assert letter_a.reward(view(prompts[0], "abaa")).value == 0.75
    assert letter_a.reward(view(prompts[0], "")).value == 0.0


def test_a_prompt_without_reference_is_invalid_not_wrong() -> None:
    prompt = Prompt(id="p", text="x")
    assert not sort_letters.reward(view(prompt, "abcf")).valid
    assert not addition.reward(view(prompt, "7")).valid


def test_reverse_letters_holds_400_prompts_out_and_rewards_the_exact_answer() -> None:
    heldout, train = reverse_letters.heldout_prompts(), reverse_letters.training_prompts(3_000, seed=1)
    assert (len({p.id for p in heldout}), len({p.id for p in train})) == (400, 3_000)
    assert not {p.id for p in heldout} & {p.id for p in train}
    assert reverse_letters.training_prompts(50, seed=2) != reverse_letters.training_prompts(50, seed=1)
    for prompt in [*heldout, *train]:
        letters = (prompt.text or "").removesuffix("<")
        assert 4 <= len(letters) <= 8
        assert prompt.reference == letters[::-1]
    prompt = Prompt(id="p", text="fbca<", reference="acbf")
    assert reverse_letters.reward(view(prompt, "acbf")).value == 1.0
    for text, finish, reason in [
        ("acfb", "stop", "wrong from letter 3 on: 'acfb'"),
        ("acb", "stop", "wrong from letter 4 on: 'acb'"),
        ("acbff", "stop", "wrong from letter 5 on: 'acbff'"),
        ("", "stop", "wrong from letter 1 on: ''"),
        ("acbf", "length", "did not end after the answer"),
    ]:
        reward = reverse_letters.reward(view(prompt, text, finish))
        assert (reward.value, reward.reason) == (0.0, reason)
