"""What the settings of an algorithm become: scheduler, advantages, weights of samples, loss, token stage."""

import asyncio

import numpy as np
import pytest

from recipes.rules import (
    advantage_settings_of,
    default_rules,
    loss_settings_of,
    scheduler_of,
    token_stage_of,
    trained_B,
    visit_filter_of,
)
from roll_ray.actors import Pool
from roll_ray.algorithms.adaptive_kl import AdaptiveKl
from roll_ray.algorithms.advantages import ESTIMATORS, Normalisation
from roll_ray.algorithms.aggregation import AGGREGATIONS, denominator
from roll_ray.algorithms.corrections import CORRECTIONS
from roll_ray.algorithms.losses import LOSSES, build_loss
from roll_ray.algorithms.token_stage import TokenStage
from roll_ray.algorithms.whitening import NOT_WHITENED
from roll_ray.parts import Part
from roll_ray.receipts import Cut, Receipt
from roll_ray.scoring import Scorer
from roll_ray.settings import RunSettings
from roll_ray.settings_io import load_settings
from schedulers.protocol import SampleId, Visit
from schedulers.tail_batching import TailBatching
from schedulers.visit_filter import VisitFilter

RUNNABLE = [name for name, e in ESTIMATORS.items() if not e.needs]


class Settings(RunSettings):
    model: str = "m"


def settings(*words):
    return load_settings(Settings, words)


def receipt(prompt, index, reward, tokens=4, truncated=False):
    sample = SampleId(Visit(prompt, 0), index)
    return Receipt(sample, 0, "s", tokens + 2, tokens, truncated, reward, "", "d", 0, 0, 0.0, 0.0)


CUT = Cut(
    1,
    (
        receipt("a", 0, 1.0, 2),
        receipt("a", 1, 0.0, 4),
        receipt("a", 2, 0.0, 6, truncated=True),
        receipt("b", 0, 3.0, 8),
        receipt("b", 1, 1.0, 1),
        receipt("b", 2, None, 5),
        receipt("b", 3, 2.0, 0),
    ),
)


def advantages(*words):
    return default_rules(settings(*words)).estimator(CUT).advantages_B


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("reinforce", [1, 0, 0, 3, 1]),
        ("grpo", [2 / 3 / 3**-0.5, -1 / 3 / 3**-0.5, -1 / 3 / 3**-0.5, 2**-0.5, -(2**-0.5)]),
        ("dr_grpo", [2 / 3, -1 / 3, -1 / 3, 1, -1]),
        ("rloo", [1, -0.5, -0.5, 2, -2]),
        ("lite_ppo", np.asarray([2 / 3, -1 / 3, -1 / 3, 1, -1]) / np.std([1, 0, 0, 3, 1], ddof=1)),
        ("opo", [1 - 1 / 6, -1 / 6, -1 / 6, 3 - 25 / 9, 1 - 25 / 9]),
        ("maxrl", [2, -1, -1, 0.5, -0.5]),
    ],
)
def test_an_estimator_named_in_settings_gives_its_formula_and_nothing_to_unusable_samples(name, expected):
    assert advantages(f"adv_estimator={name}") == pytest.approx([*expected, 0, 0], abs=1e-5)


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_estimator_that_needs_no_more_makes_rules_and_finite_advantages(name):
    rules = default_rules(settings(f"adv_estimator={name}"))
    estimate = rules.estimator(CUT)
    assert np.isfinite(estimate.advantages_B).all()
    assert estimate.advantages_B[[5, 6]].tolist() == [0, 0]
    assert (rules.token_stage is not None) == ESTIMATORS[name].tokenwise


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_every_estimator_passes_plan_or_is_refused_with_what_it_needs(name):
    found = settings(f"adv_estimator={name}").problems()
    assert len(found) == len(ESTIMATORS[name].needs)
    assert all(sentence.startswith(f"adv_estimator={name} needs ") for sentence in found)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
def test_every_loss_with_every_aggregation_is_built_from_settings(name, aggregation):
    given = settings(f"loss={name}", f"aggregation={aggregation}")
    assert given.problems() == []
    loss = build_loss(default_rules(given).loss, default_rules(given).registered_loss)
    assert (loss.settings.name, loss.settings.aggregation) == (name, aggregation)


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
def test_every_correction_has_its_own_bounds_unless_settings_give_others(name):
    own = build_loss(loss_settings_of(settings(f"correction.name={name}"))).band
    assert (own.low, own.high) == next(iter(CORRECTIONS[name].bounds.values()))
    words = [f"correction.name={name}", "correction.low=0.25", "correction.high=1.5"]
    assert settings(*words).problems() == []
    given = build_loss(loss_settings_of(settings(*words))).band
    assert (given.level, given.low, given.high) == (own.level, 0.25, 1.5)


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
def test_the_settings_that_a_run_stores_can_be_read_again(name):
    """A run is resumed from its settings.yaml, where every default is written out."""
    stored = Settings.model_validate(settings(f"correction.name={name}").plain())
    assert stored.problems() == []


def test_constants_of_the_loss_arrive_where_they_belong():
    words = ["clip_low=0.1", "clip_high=0.3", "dual_clip=3", "loss_options.gmpo_clip=0.7", "proximal=engine"]
    loss = loss_settings_of(settings(*words, "kl_coefficient=0.5", "kl_estimator=abs"))
    assert (loss.clip_low, loss.clip_high, loss.dual_clip, loss.gmpo_clip) == (0.1, 0.3, 3, 0.7)
    assert (loss.proximal, loss.kl_coefficient, loss.kl_estimator) == ("engine", 0.5, "abs")
    assert loss.aggregation_length == 64
    assert loss_settings_of(settings("aggregation_length=9")).aggregation_length == 9


def test_a_normalisation_that_is_not_set_is_the_estimators_own():
    assert advantage_settings_of(settings()).normalisation == Normalisation("group", "group", 1e-6)
    half = advantage_settings_of(settings("normalisation.std=batch", "normalisation.eps=0.5"))
    assert half.normalisation == Normalisation("group", "batch", 0.5)
    assert advantage_settings_of(settings("adv_estimator=opo")).normalisation is None


def test_presets_are_normalisations_that_can_be_spelled_out():
    spelled = ["adv_estimator=reinforce", "normalisation.mean=group", "normalisation.std=batch"]
    assert (advantages(*spelled) == advantages("adv_estimator=lite_ppo")).all()
    assert (advantages(*spelled) != advantages("adv_estimator=grpo")).any()


def test_rewards_are_clipped_before_and_advantages_after_the_estimator():
    clipped = advantages("adv_estimator=dr_grpo", "reward_clip=1")
    assert clipped == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0, 0, 0, 0])
    ended = advantages("adv_estimator=rloo", "advantage_clip=0.75")
    assert ended == pytest.approx([0.75, -0.5, -0.5, 0.75, -0.75, 0, 0])


def test_whitening_counts_each_sample_as_often_as_it_has_trained_tokens():
    white = advantages("adv_estimator=reinforce_plus_plus")
    tokens = np.repeat([1.0, 0, 0, 3, 1], [2, 4, 6, 8, 1])
    expected = (np.asarray([1, 0, 0, 3, 1]) - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)
    assert white == pytest.approx([*expected, 0, 0], rel=1e-5)
    filtered = advantages("adv_estimator=reinforce_plus_plus", "filters.overlong=true")
    tokens = np.repeat([1.0, 0, 3, 1], [2, 4, 8, 1])  # without the truncated one
    assert filtered[0] == pytest.approx((1 - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8), rel=1e-5)
    off = advantages("adv_estimator=reinforce_plus_plus", "whiten_advantages=false")
    assert (off == advantages("adv_estimator=reinforce")).all()


def test_with_a_token_stage_the_scalars_are_left_for_the_ranks_to_finish():
    rules = default_rules(settings("adv_estimator=reinforce_plus_plus", "gamma=0.9", "advantage_clip=0.5"))
    assert rules.token_stage == TokenStage(gamma=0.9, kl_estimator="k3")
    assert rules.estimator(CUT).advantages_B.tolist() == [1, 0, 0, 3, 1, 0, 0]
    assert (rules.finish.whiten, rules.finish.clip) == (True, 0.5)


@pytest.mark.parametrize(
    ("words", "stage"),
    [
        ([], None),
        (["kl_coefficient=0.1"], None),
        (["kl_in=reward"], None),
        (["kl_coefficient=0.1", "kl_in=reward", "kl_estimator=k1"], TokenStage(1.0, False, 0.1, "k1")),
        (["adv_estimator=segment_returns", "gamma=0.5"], TokenStage(0.5, True, 0.0, "k3")),
    ],
)
def test_a_token_stage_is_there_only_where_advantages_differ_within_a_response(words, stage):
    assert token_stage_of(settings(*words)) == stage


def test_the_kl_goes_to_one_place():
    reward = default_rules(settings("kl_coefficient=0.1", "kl_in=reward"))
    assert (reward.loss.kl_coefficient, reward.token_stage.kl_coefficient) == (0.0, 0.1)
    loss = default_rules(settings("kl_coefficient=0.1", "kl_target=0.02", "kl_horizon=50"))
    assert (loss.loss.kl_coefficient, loss.token_stage) == (0.1, None)
    assert loss.adaptive_kl == AdaptiveKl(0.1, 0.02, 50)
    assert reward.adaptive_kl is None


# --- which samples weigh what ------------------------------------------------------------------------


def weighed(*words):
    return default_rules(settings(*words)).weigh(CUT.receipts)


def test_invalid_rewards_leave_loss_and_denominator():
    weights = weighed()
    assert weights.denominator == 2 + 4 + 6 + 8 + 1
    assert weights.extra_B["trained"].tolist() == [True] * 5 + [False, True]


def test_a_batch_of_valid_rewards_carries_no_mask():
    weights = default_rules(settings()).weigh(CUT.receipts[:5])
    assert weights.denominator == 21
    assert weights.extra_B == {}


def test_the_overlong_filter_takes_truncated_responses_out_of_both():
    weights = weighed("filters.overlong=true")
    assert weights.denominator == 2 + 4 + 8 + 1
    assert weights.extra_B["trained"].tolist() == [True, True, False, True, True, False, True]
    assert trained_B(CUT.receipts, False)[2]
    kept = default_rules(settings("filters.overlong=true")).estimator(CUT).advantages_B
    assert (kept == advantages()).all(), "its reward stays in the statistics of its group"


def test_prompt_mean_carries_the_trained_tokens_of_each_prompt():
    weights = weighed("aggregation=prompt_mean", "filters.overlong=true")
    assert weights.extra_B["prompt_tokens"].tolist() == [6, 6, 6, 9, 9, 9, 9]
    assert weights.denominator == 2


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
def test_the_denominator_is_that_of_the_batch_without_what_is_not_trained(aggregation):
    rules = default_rules(settings(f"aggregation={aggregation}", "filters.overlong=true"))
    left = [CUT.receipts[i] for i in (0, 1, 3, 4, 6)]
    tokens, visits = [r.n_policy_tokens for r in left], [r.sample.visit for r in left]
    alone = denominator(aggregation, np.asarray(tokens), groups_B=visits, length=64)
    assert rules.weigh(CUT.receipts).denominator == alone > 0


# --- the scheduler ------------------------------------------------------------------------------------


def test_a_filter_is_made_of_the_settings_and_given_to_the_scheduler():
    assert visit_filter_of(settings()) is None
    assert visit_filter_of(settings("filters.overlong=true")) is None
    words = ["filters.dynamic_sampling=true", "filters.max_filtered_batches=3"]
    assert visit_filter_of(settings(*words)) == VisitFilter(True, None, None, 3)
    band = ["filters.difficulty_low=0.1", "filters.difficulty_high=0.95"]
    assert visit_filter_of(settings(*band)) == VisitFilter(False, 0.1, 0.95, 10)
    assert default_rules(settings(*band)).scheduler().keep == VisitFilter(False, 0.1, 0.95, 10)


def test_what_cannot_be_whitened_stays_as_it_is_and_is_said_once():
    rules, said = default_rules(settings("adv_estimator=reinforce_plus_plus")), []
    scorer = Scorer(
        rules.estimator, rules.weigh, Pool("actor-train", []), keeps_proximal=False, say=said.append
    )
    one_token = Part(Cut(1, (receipt("a", 0, 0.7, tokens=1),)), ())
    assert rules.estimator(one_token.cut).advantages_B == pytest.approx([0.7])
    for _ in range(2):
        asyncio.run(scorer(one_token))
    assert said == [NOT_WHITENED]
    assert rules.estimator(Cut(1, (receipt("a", 0, 0.7), receipt("a", 1, 0.1)))).notes == ()


def test_the_scheduler_is_the_one_named_with_its_settings_and_the_filter():
    words = ("prompts_per_step=4", "samples_per_prompt=4", "filters.dynamic_sampling=true")
    assert scheduler_of(settings(*words))().prompts_wanted() == 4
    tail = scheduler_of(settings(*words, "scheduler=tail_batching", "tail_batching.eta_prompts=1.5"))()
    assert isinstance(tail, TailBatching)
    assert (tail.prompts_wanted(), tail.samples_per_prompt, tail.keep) == (6, 4, VisitFilter(True))


def test_tail_batching_says_what_it_launches_and_refuses_to_be_deterministic():
    words = ("scheduler=tail_batching", "prompts_per_step=128", "samples_per_prompt=8")
    said = settings(*words).batch_sentence(100.0)
    assert "a short round launches 160 prompts x 10 and trains the first" in said
    assert "a long round of 128 x 8 (4 short rounds for each long one)" in said
    both = settings(*words, "deterministic=true").problems()
    assert any("deterministic=true with scheduler=tail_batching" in problem for problem in both)
