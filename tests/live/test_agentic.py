"""A run of many turns with real engines and trainers: GiGPO on guess-a-number, two steps, recorded."""

import asyncio
import json

import numpy as np
import pytest

from envs.guess_number import COMPACT_CHARACTERS, COMPACT_LETTERS
from recipes.agentic_guess import Settings, build
from recipes.tiny_models import make_character_qwen3
from roll_ray.recording import load_batch
from roll_ray.sample import Role
from roll_ray.settings_io import read_settings
from tests.live.runs import metrics_of
from workers.tokenizer import load_tokenizer


@pytest.mark.engine
def test_two_steps_of_an_agent_with_advantages_by_turn(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLL_RAY_HOME", str(tmp_path / "home"))
    words = [
        "max_steps=2",
        "prompts_per_step=4",
        "samples_per_prompt=8",
        "adv_estimator=gigpo",
        "gamma=0.9",
        "shaping.format_penalty=0.1",
        f"record={tmp_path / 'record'}",
    ]
    settings = read_settings(Settings, words).model_copy(
        update={"run_dir": tmp_path / "run", "run_name": "agentic"}
    )
    assert settings.problems() == []
    result = asyncio.run(build(settings).run())
    assert result.step == 2
    rows = metrics_of(tmp_path / "run")
    assert [row["step_skipped"] for row in rows if row["step"]] == [0, 0]
    assert all(row["entropy"] > 1 for row in rows if row["step"])
    assert rows[-1]["logprob_difference_max"] < 1e-3, "the trainer reads every turn as the engine did"
    receipts = json.loads((tmp_path / "record" / "step-000002" / "receipts.json").read_text())
    assert len(receipts) == 32
    for receipt in receipts:
        turns = receipt["turns"]
        assert 1 <= len(turns) <= 4
        assert sum(reward for _, reward, _ in turns) == pytest.approx(receipt["reward"])
        assert sum(tokens for tokens, _, _ in turns) == receipt["n_policy_tokens"] == len(turns)
    first_states = {receipt["turns"][0][2] for receipt in receipts}
    assert len(first_states) == 1, "every game begins with nothing known"
    _check_tokens(tmp_path / "record" / "step-000002", tmp_path)


def _check_tokens(folder, tmp_path):
    """Prompt, then a token of the policy and one of the environment in turns; no end that nobody reads."""
    tokenizer = load_tokenizer(str(make_character_qwen3(tmp_path / "same", COMPACT_CHARACTERS, context=64)))
    for path in sorted(folder.glob("*.npz")):
        batch = load_batch(path)
        for i in range(len(batch)):
            span = batch.token_span(i)
            roles = batch.roles_T[span].tolist()
            assert roles == [Role.PROMPT] + [Role.POLICY, Role.ENVIRONMENT] * (len(roles) // 2 - 1) + [
                Role.POLICY
            ]
            said = tokenizer.decode(batch.tokens_T[span][batch.roles_T[span] == Role.ENVIRONMENT].tolist())
            assert set(said) <= set("<>?")
            assert set(tokenizer.decode(batch.tokens_T[span].tolist())) <= set(
                COMPACT_CHARACTERS + COMPACT_LETTERS
            )
            written = batch.roles_T[span] == Role.POLICY
            assert (batch.logprobs_T[span][written] < 0).all()
            assert np.all(batch.versions_T[span][written] == 1)
