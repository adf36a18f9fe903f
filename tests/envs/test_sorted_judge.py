"""What the tiny judge is taught is true: its scores are the task's own rewards, and faulty answers are faulty."""

import random

from envs import sort_letters, sorted_judge
from envs.judge_score import parse_score
from envs.task import ScoredView
from roll_ray.sample import Prompt


def test_the_score_to_learn_is_the_true_reward_and_stands_after_the_right_answer():
    questions = sort_letters.training_prompts(300, seed=2)
    by_text = {q.text: q for q in questions}
    examples = sorted_judge.judgements(questions, seed=0)
    scores = []
    for example in examples:
        question = by_text[example.text.partition(">")[0] + ">"]
        answer = example.text.removeprefix(question.text).removesuffix("?")
        score = parse_score(example.reference)
        assert score == sort_letters.reward(ScoredView(question, answer)).value
        scores.append(score)
    assert 0.4 < sum(scores) / len(scores) < 0.6


def test_a_judgement_looks_letter_by_letter_and_ends_at_the_first_difference():
    question = Prompt("q", text="fbca>", reference="abcf")
    for answer, judged in [
        ("abcf", "aa=bb=cc=ff= 10/10"),
        ("abfc", "aa=bb=cf. 0/10"),
        ("abc", "aa=bb=cc=f-. 0/10"),
        ("abcff", "aa=bb=cc=ff=-f. 0/10"),
        ("", "a-. 0/10"),
    ]:
        assert sorted_judge.judgement(question, answer).reference == judged
    longest = sorted_judge.judgement(Prompt("q", text="aaaaaaa>", reference="a" * 7), "a" * 7).reference
    assert len(longest) + 1 <= sorted_judge.MAX_JUDGEMENT_TOKENS


def test_faulty_answers_are_of_every_kind_and_never_right():
    rng = random.Random(0)
    questions = sort_letters.heldout_prompts()
    answers = [(q, sorted_judge.wrong_answer(q, rng)) for q in questions]
    assert all(answer != q.reference for q, answer in answers)
    kinds = {
        "swapped": sum(sorted(a) == sorted(q.reference) for q, a in answers),
        "missing": sum(len(a) < len(q.reference) for q, a in answers),
        "doubled": sum(len(a) > len(q.reference) for q, a in answers),
    }
    assert all(n > 20 for n in kinds.values()), kinds


def test_the_judge_is_shown_question_and_answer_and_nothing_else():
    question = sort_letters.heldout_prompts(1)[0]
    shown = sorted_judge.judge_reward().question(ScoredView(question, "abc"))
    assert shown == f"{question.text}abc?" == sorted_judge.judgement(question, "abc").text
