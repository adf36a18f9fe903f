"""Advantages per token from the driver's scalars to the loss, over mini-batches and ranks; the KL in the reward;
a KL coefficient that adapts."""

import asyncio
import dataclasses

import numpy as np
import pytest
import torch

from recipes.rules import default_rules
from recipes.staff import trainer_spec_of
from roll_ray.actors import LocalActor, Pool
from roll_ray.algorithms.kl import KL_ESTIMATORS
from roll_ray.batch import Batch
from roll_ray.receipts import TurnNumbers
from roll_ray.sample import Reward, Role
from roll_ray.tracking.metrics import check_declared
from roll_ray.trainers import TrainerGroup
from schedulers.protocol import SampleId, Visit
from tests.workers.trainer_cases import SAMPLES, Settings, part_of, scorer_of, settings_of, starter, step_on
from workers.trainer import PolicyTrainer


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    with starter(tmp_path_factory.mktemp("model")) as start:
        yield start


class Agentic(Settings):
    reported = frozenset({"steps", "states"})


def turns_of(s):
    """A turn for each policy token of a sample, and one without any; states repeat within the group."""
    n = s.n_policy_tokens
    turns = [TurnNumbers(1, float(i % 3), i % 2) for i in range(n)]
    return (TurnNumbers(0, 0.25, 0), *turns)


def kept_by(trainers):
    return {key[0]: values for t in trainers for key, values in t._token_advantages._kept.items()}


def returns_of(s, gamma, costs_T=None):
    """Token by token, from behind; the reward at the last policy token."""
    ahead, returns = 0.0, np.zeros(len(s.tokens_T))
    last = s.reward.value or 0.0
    for t in reversed(np.flatnonzero(s.roles_T == Role.POLICY)):
        cost = 0.0 if costs_T is None else costs_T[t]
        ahead = last - cost + gamma * ahead
        returns[t], last = ahead, 0.0
    return returns


# --- the driver and its ranks ----------------------------------------------------------------------


@pytest.mark.parametrize(("mini_batches", "ranks"), [(1, 1), (2, 1), (1, 2), (4, 2), (2, 5)])
@pytest.mark.parametrize("overlong", [False, True])
def test_whitened_token_advantages_are_those_of_the_whole_batch(mini_batches, ranks, overlong):
    settings = settings_of(
        "adv_estimator=reinforce_plus_plus",
        "gamma=0.8",
        "advantage_clip=1.5",
        f"optimizer_steps_per_batch={mini_batches}",
        f"filters.overlong={str(overlong).lower()}",
    )
    spec = trainer_spec_of(settings, default_rules(settings), "cpu")
    trainers = [PolicyTrainer(spec, rank, ranks) for rank in range(ranks)]  # no forward: none is started
    scorer = scorer_of(settings, *trainers)
    scorer.keeps_proximal = False
    scored = asyncio.run(scorer(part_of(SAMPLES.values(), mini_batches, ranks)))
    assert [m.closes_step for m in scored] == [True] * mini_batches

    trained = [s for s in SAMPLES.values() if s.reward.valid and not (overlong and s.truncated)]
    returns = {s.id: returns_of(s, 0.8)[s.roles_T == Role.POLICY] for s in trained}
    whole = np.concatenate(list(returns.values()))
    kept = kept_by(trainers)
    assert set(kept) == set(SAMPLES)
    for s in trained:
        white = (returns[s.id] - whole.mean()) / np.sqrt(whole.var(ddof=1) + 1e-8)
        here = kept[s.id][s.roles_T == Role.POLICY]
        assert here == pytest.approx(np.clip(white, -1.5, 1.5), abs=1e-5)
    assert scorer.metrics["advantage_mean"] == 0.0
    assert scorer.metrics["advantage_std"] == pytest.approx(1.0, abs=1e-6)
    assert sum(m.denominator for m in scored) == len(whole)


def test_without_whitening_the_metrics_are_the_moments_of_the_token_advantages():
    settings = settings_of("adv_estimator=reinforce", "gamma=0.5")
    trainer = PolicyTrainer(trainer_spec_of(settings, default_rules(settings), "cpu"))
    scorer = scorer_of(settings, trainer)
    asyncio.run(scorer(part_of(SAMPLES.values())))
    trained = [s for s in SAMPLES.values() if s.reward.valid]
    whole = np.concatenate([returns_of(s, 0.5)[s.roles_T == Role.POLICY] for s in trained])
    assert scorer.metrics["advantage_mean"] == pytest.approx(whole.mean())
    assert scorer.metrics["advantage_std"] == pytest.approx(whole.std(ddof=1))
    check_declared(scorer.metrics)


def test_equal_rewards_whiten_to_nothing_and_the_metrics_say_so():
    settings = settings_of("adv_estimator=reinforce_plus_plus", "gamma=0.999999999999")
    trainer = PolicyTrainer(trainer_spec_of(settings, default_rules(settings), "cpu"))
    scorer = scorer_of(settings, trainer)
    equal = [dataclasses.replace(s, reward=Reward(1.0)) for s in SAMPLES.values()]
    asyncio.run(scorer(part_of(equal)))
    assert scorer.metrics["advantage_std"] < 1e-3


def test_turns_are_the_steps_of_time_of_segment_returns():
    settings = settings_of("adv_estimator=segment_returns", "gamma=0.5")
    trainer = PolicyTrainer(trainer_spec_of(settings, default_rules(settings), "cpu"))
    asyncio.run(scorer_of(settings, trainer)(part_of(SAMPLES.values())))
    (s,) = (s for s in SAMPLES.values() if s.id == SampleId(Visit("p0", 0), 1))  # one token, a word, the rest
    assert s.roles_T.tolist()[:5] == [Role.PROMPT, Role.PROMPT, Role.POLICY, Role.ENVIRONMENT, Role.POLICY]
    kept = kept_by([trainer])[s.id]
    assert s.reward.value
    assert kept[2] == pytest.approx(0.5 * s.reward.value)
    assert kept[4:] == pytest.approx(s.reward.value)


@pytest.mark.parametrize(("mini_batches", "ranks"), [(1, 1), (2, 2), (1, 5)])
@pytest.mark.parametrize("name", ["gigpo", "step_returns"])
def test_the_drivers_advantages_of_turns_reach_their_tokens_on_every_rank(name, mini_batches, ranks):
    settings = settings_of(
        f"adv_estimator={name}", "gamma=0.5", f"optimizer_steps_per_batch={mini_batches}", cls=Agentic
    )
    spec = trainer_spec_of(settings, default_rules(settings), "cpu")
    trainers = [PolicyTrainer(spec, rank, ranks) for rank in range(ranks)]
    scorer = scorer_of(settings, *trainers)
    scorer.keeps_proximal = False
    part = part_of(SAMPLES.values(), mini_batches, ranks, turns=turns_of)
    estimate = default_rules(settings).estimator(part.cut)
    asyncio.run(scorer(part))
    kept = kept_by(trainers)
    for receipt, advantages in zip(part.cut.receipts, estimate.turn_advantages_B, strict=True):
        s = SAMPLES[receipt.sample]
        tokens = [turn.n_policy_tokens for turn in receipt.each_turn]
        assert kept[s.id][s.roles_T == Role.POLICY] == pytest.approx(np.repeat(advantages, tokens))
        assert not kept[s.id][s.roles_T != Role.POLICY].any()
    check_declared(scorer.metrics)


def test_advantages_of_turns_reach_the_loss(started):
    words = ["adv_estimator=gigpo", "loss=reinforce", "tokens_per_device=20"]
    settings = settings_of(*words, cls=Agentic)
    trainer = started(*words, cls=Agentic)
    part = part_of(SAMPLES.values(), turns=turns_of)
    before = {s.id: trainer.logprobs(Batch.of([s])) for s in SAMPLES.values()}
    group, scorer = TrainerGroup(Pool("t", [LocalActor(trainer, "t")])), scorer_of(settings, trainer)

    async def train():
        for mini_batch in await scorer(part):
            await group.accumulate(mini_batch)

    asyncio.run(train())
    estimate = default_rules(settings).estimator(part.cut)
    expected = 0.0
    for receipt, advantages in zip(part.cut.receipts, estimate.turn_advantages_B, strict=True):
        s = SAMPLES[receipt.sample]
        if s.reward.valid:
            tokens = [turn.n_policy_tokens for turn in receipt.each_turn]
            expected -= (np.repeat(advantages, tokens) * before[s.id][s.roles_T == Role.POLICY]).sum()
    assert group.take_metrics()["loss_sum"] == pytest.approx(expected, rel=1e-4)


def test_token_advantages_reach_the_loss(started):
    words = ["adv_estimator=reinforce", "loss=reinforce", "gamma=0.5", "tokens_per_device=20"]
    trainer, settings = started(*words), settings_of(*words)
    part = part_of(SAMPLES.values(), 2)
    before = {s.id: trainer.logprobs(Batch.of([s])) for s in SAMPLES.values()}
    group, scorer = TrainerGroup(Pool("t", [LocalActor(trainer, "t")])), scorer_of(settings, trainer)

    async def train():
        for mini_batch in await scorer(part):
            await group.accumulate(mini_batch)

    asyncio.run(train())
    expected = -sum(
        (returns_of(s, 0.5) * before[s.id])[s.roles_T == Role.POLICY].sum()
        for s in SAMPLES.values()
        if s.reward.valid
    )
    metrics = group.take_metrics()
    assert metrics["loss_sum"] == pytest.approx(expected, rel=1e-4)
    assert kept_by([trainer]) == {}, "what was used is forgotten"


def test_a_part_without_a_policy_token_passes_the_token_stage(started):
    words = ["adv_estimator=reinforce_plus_plus", "gamma=0.5", "kl_coefficient=0.1", "kl_in=reward"]
    trainer, settings = started(*words), settings_of(*words)
    group, scorer = TrainerGroup(Pool("t", [LocalActor(trainer, "t")])), scorer_of(settings, trainer)
    (empty,) = [s for s in SAMPLES.values() if s.n_policy_tokens == 0]

    async def train():
        (mini_batch,) = await scorer(part_of([empty]))
        await group.accumulate(mini_batch)
        await group.step(mini_batch.denominator)

    asyncio.run(train())
    assert group.take_metrics()["step_skipped"] == 1.0


# --- the KL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_the_kl_costs_reward_at_every_policy_token(started, estimator):
    words = ["adv_estimator=reinforce", "kl_coefficient=0.5", "kl_in=reward", f"kl_estimator={estimator}"]
    words += ["gamma=0.9", "loss=reinforce"]
    trainer, settings = started(*words), settings_of(*words)
    batch = Batch.of(list(SAMPLES.values()))
    reference_T = trainer.logprobs(batch)
    (first,) = step_on(trainer, settings)
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    now_T = trainer.logprobs(batch)
    kl_T = KL_ESTIMATORS[estimator](torch.from_numpy(now_T), torch.from_numpy(reference_T)).numpy()
    asyncio.run(scorer_of(settings, trainer)(part_of(SAMPLES.values())))
    kept = kept_by([trainer])
    for i, s in enumerate(SAMPLES.values()):
        if s.reward.valid:
            expected = returns_of(s, 0.9, 0.5 * kl_T[batch.token_span(i)])
            assert kept[s.id] == pytest.approx(expected, abs=1e-4)
    trained_T = batch.policy_mask_T & np.repeat(~np.isnan(batch.rewards_B), batch.lengths_B)
    assert trainer._kl.step()["kl"] == pytest.approx(float(kl_T[trained_T].mean()), rel=1e-3)
    assert np.abs(kl_T[trained_T]).max() > 1e-3


@pytest.mark.parametrize("estimator", sorted(KL_ESTIMATORS))
def test_every_kl_of_the_loss_runs_through_trainer_steps(started, estimator):
    words = ["kl_coefficient=0.5", f"kl_estimator={estimator}"]
    first, second = step_on(started(*words), settings_of(*words), steps=2)
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    assert second["kl"] == second[f"kl_{estimator}"] != 0.0
    assert first["kl_coefficient"] == second["kl_coefficient"] == 0.5


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_a_kl_above_its_target_raises_the_coefficient_and_a_checkpoint_keeps_it(started, tmp_path, place):
    words = ["kl_coefficient=0.1", "kl_estimator=k2", f"kl_in={place}", "kl_target=1e-4", "kl_horizon=100"]
    trainer, settings = started(*words), settings_of(*words)
    below, above, last = step_on(trainer, settings, steps=3)
    n = len(SAMPLES)
    assert below["kl_coefficient"] == 0.1
    assert above["kl_coefficient"] == pytest.approx(0.1 * (1 - 0.2 * n / 100))
    assert last["kl_coefficient"] == pytest.approx(above["kl_coefficient"] * (1 + 0.2 * n / 100))
    trainer.save(str(tmp_path))
    (here,) = step_on(trainer, settings)
    other = started(*words)
    other.load(str(tmp_path))
    (there,) = step_on(other, settings)
    assert here == there
    assert here["kl_coefficient"] > last["kl_coefficient"]


def test_the_adapted_coefficient_is_the_one_that_multiplies(started):
    words = ["kl_coefficient=0.1", "kl_target=100", "kl_horizon=24", "kl_estimator=k2", "loss=sft"]
    trainer, settings = started(*words), settings_of(*words)
    _, metrics = step_on(trainer, settings, steps=2)
    assert metrics["kl_coefficient"] == pytest.approx(0.1 * 0.9)
    n = metrics["policy_tokens"]
    expected = -metrics["logprob_mean"] + metrics["kl_coefficient"] * metrics["kl"]
    assert metrics["loss_sum"] / n == pytest.approx(expected, rel=1e-5)


def test_several_optimizer_steps_of_a_batch_are_counted_and_keep_the_kl_of_its_start(started):
    words = ["kl_coefficient=0.1", "kl_in=reward", "optimizer_steps_per_batch=2"]
    _, metrics = step_on(started(*words), settings_of(*words), steps=2)
    assert metrics["optimizer_steps"] == 2.0
    assert metrics["step_skipped"] == 0.0
    assert metrics["kl"] > 0
