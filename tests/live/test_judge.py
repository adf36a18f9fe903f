"""A judge in engines of its own, in a real run: its scores are the rewards, and one that is killed comes back."""

import asyncio
import json

import pytest

from envs.judge import JudgeReward
from recipes.rlvr_judge import JUDGED
from recipes.task import Task
from roll_ray.sample import Prompt
from tests.live.runs import kill, leftovers, metrics_of, run_pipeline, settings_for, step_reached

STEPS = 8
ONE_DEVICE = ["devices.rollout=0", "devices.train=0", "judge.devices=0"]
"""Policy, judge and trainer on a third of one device each."""


def letters_that_the_judge_repeats(text, scale):
    """A score from any words, so that a judge which was taught nothing can be asked."""
    return len(set(text)) / 16 if text else None


def trajectories_of(run_dir):
    return [json.loads(line) for line in (run_dir / "trajectories.jsonl").read_text().splitlines()]


@pytest.mark.engine
def test_a_judge_that_is_killed_comes_back_and_every_reward_is_its_score(letter_model, tmp_path):
    words = [*ONE_DEVICE, f"judge.model={letter_model}", "judge.max_new_tokens=8", f"max_steps={STEPS}"]
    settings = settings_for(letter_model, tmp_path / "judged", *words)
    reward = JudgeReward(template="judge {answer}:", parse=letters_that_the_judge_repeats)
    train = [Prompt(id=f"train-{i:02d}", text="say aaa: ", domain=JUDGED) for i in range(10)]
    said = []

    async def sabotage(pipeline):
        await step_reached(settings.run_dir, 1)
        (judge,) = pipeline.staff.judges
        pipeline.staff.listen(said.append)
        steps = metrics_of(settings.run_dir)[-1]["step"]
        await kill(judge)
        await step_reached(settings.run_dir, steps + 3)

    result = run_pipeline(settings, Task(train, rewards={JUDGED: reward}), sabotage)
    assert result.step == STEPS
    assert any(text.startswith("judge-0 died") for text in said), said
    assert any(text.startswith("judge-0 is back") for text in said), said
    shown = trajectories_of(settings.run_dir)
    assert len(shown) >= STEPS
    for row in shown:
        assert row["reason"].startswith("the judge: ")
        assert 0 < row["reward"] <= 1
    assert all(row["samples_per_s"] > 0 for row in metrics_of(settings.run_dir) if row["step"])
    assert leftovers("judged") == []


@pytest.mark.engine
def test_two_steps_of_the_demo_with_the_tiny_judge_as_its_reward(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLL_RAY_HOME", str(tmp_path / "home"))
    from recipes import judge_warmup, rlvr_judge
    from roll_ray.settings_io import read_settings

    judge = judge_warmup.judge_model(judge_warmup.Settings(steps=80))
    words = [
        *ONE_DEVICE,
        f"judge.model={judge}",
        "max_steps=2",
        "prompts_per_step=4",
        "evaluation.max_prompts=8",
        f"run_dir={tmp_path / 'run'}",
    ]
    settings = read_settings(rlvr_judge.Settings, words)
    result = asyncio.run(rlvr_judge.build(settings).run())
    assert result.step == 2
    assert 0 <= result.last_evaluation["heldout_accuracy"] <= 1
    for row in trajectories_of(tmp_path / "run"):
        assert row["domain"] == JUDGED
        assert row["reward"] in (0.0, 1.0)
        assert row["reason"].endswith(("10/10", " 0/10"))
    assert set(judge_warmup.agreement(str(judge), None)) == {"right", "faulty"}
