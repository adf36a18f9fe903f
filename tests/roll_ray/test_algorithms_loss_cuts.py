"""However a batch is cut, ordered and spread, each loss gives one sum and one gradient. Junk changes neither."""

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roll_ray.algorithms import loss_pieces
from roll_ray.algorithms.aggregation import AGGREGATIONS, denominator, prompt_tokens
from roll_ray.algorithms.corrections import CORRECTIONS
from roll_ray.algorithms.kl import KL_ESTIMATORS
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import LOSSES, build_loss
from roll_ray.algorithms.metric_sums import merge_sums
from roll_ray.batch import Batch
from roll_ray.sample import Role
from tests.roll_ray.loss_cases import evaluate, sample

EXTRA_T = ("old_logprobs", "reference_logprobs")


def random_batch(seed, n_samples, junk=-1.0):
    """Samples of up to 9 tokens of all roles, and current log-probabilities; `junk` at masked places."""
    random = np.random.default_rng(seed)
    samples = []
    for i in range(n_samples):
        n = int(random.integers(1, 10))
        roles = random.choice([Role.PROMPT, Role.ENVIRONMENT, *[Role.POLICY] * 4], n)
        reward = random.choice([1.0, 0.0, -1.0, None], p=[0.4, 0.3, 0.2, 0.1])
        samples.append(sample(i, -3 * random.random(n), roles, reward, f"p{i // 3}"))
    batch = Batch.of(samples)
    n_tokens, groups = len(batch.tokens_T), list(batch.visits)
    for name in EXTRA_T:
        batch.extra_T[name] = (batch.logprobs_T + random.normal(0, 0.4, n_tokens)).astype(np.float32)
    current_T = (batch.logprobs_T + random.normal(0, 0.4, n_tokens)).astype(np.float32)
    trained_B = random.random(n_samples) > 0.2
    batch.extra_B = {
        "advantages": random.normal(size=n_samples).astype(np.float32),
        "trained": trained_B,
        "prompt_tokens": prompt_tokens(batch.policy_tokens_B, groups, trained_B),
    }
    masked_T = ~(batch.policy_mask_T & np.repeat(trained_B, batch.lengths_B))
    for array in (batch.logprobs_T, current_T, *batch.extra_T.values()):
        array[masked_T] = junk
    return batch, current_T


def choices():
    """Settings of any loss, aggregation, correction and KL term that may be combined."""
    return st.fixed_dictionaries(
        {
            "name": st.sampled_from(sorted(LOSSES)),
            "aggregation": st.sampled_from(sorted(AGGREGATIONS)),
            "aggregation_length": st.just(16),
            "correction": st.sampled_from(["none", "none", *sorted(CORRECTIONS)]),
            "correction_level": st.sampled_from(["token", "sequence"]),
            "kl_coefficient": st.sampled_from([0.0, 0.2]),
            "kl_estimator": st.sampled_from(sorted(KL_ESTIMATORS)),
            "dual_clip": st.sampled_from([None, 1.1]),
        }
    ).filter(
        lambda o: (
            (o["correction"] == "none" or o["name"] != "decoupled_ppo")
            and (o["correction"], o["aggregation"]) != ("rejection", "prompt_mean")
        )
    )


def divided(batch, groups, options, totals, gradients, metrics):
    """Loss and gradient after the single division; the driver's denominator less what was rejected."""
    divisor = denominator(
        options["aggregation"],
        batch.policy_tokens_B,
        groups_B=groups,
        trained_B=batch.extra_B["trained"],
        length=options["aggregation_length"],
    )
    if "rejected_denominator" in metrics:
        divisor -= metrics["rejected_denominator"].value
    return (math.fsum(totals) / divisor, gradients / divisor) if divisor > 0 else (0.0, gradients * 0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.integers(0, 10**6), st.integers(1, 9), choices(), st.data())
def test_any_order_micro_batching_and_number_of_ranks(seed, n_samples, options, data):
    batch, current_T = random_batch(seed, n_samples)
    groups = list(batch.visits)
    value, grad_T, metrics = evaluate(batch, current_T, **options)
    expected, expected_T = divided(batch, groups, options, [value], grad_T, metrics)

    order = data.draw(st.permutations(range(n_samples)))
    n_ranks = data.draw(st.integers(1, 4))
    rank_of = data.draw(st.lists(st.integers(0, n_ranks - 1), min_size=n_samples, max_size=n_samples))
    micro = data.draw(st.integers(1, 3))
    piece_tokens = data.draw(st.sampled_from([1, 5, 1 << 17]))
    totals, parts, spread_T = [], [], np.zeros_like(grad_T)
    for rank in range(n_ranks):
        mine = [i for i in order if rank_of[i] == rank]
        for part in [mine[a : a + micro] for a in range(0, len(mine), micro)]:
            tokens = np.concatenate([np.arange(batch.offsets[i], batch.offsets[i + 1]) for i in part])
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(loss_pieces.PIECE_TOKENS, "cpu", piece_tokens)
                part_value, part_T, part_metrics = evaluate(batch.select(part), current_T[tokens], **options)
            totals.append(part_value)
            parts.append(part_metrics)
            spread_T[tokens] = part_T
    merged = merge_sums(parts)
    seen, seen_T = divided(batch, groups, options, totals, spread_T, merged)
    scale = 1 + sum(abs(x) for x in totals)
    assert seen == pytest.approx(expected, rel=1e-6, abs=1e-6 * scale)
    assert seen_T == pytest.approx(expected_T, rel=1e-6, abs=1e-9)
    for name, metric in metrics.items():
        if metric.count and metric.reduction != "sum":
            assert merged[name].count == metric.count, name
        if name in merged:
            assert merged[name].total == pytest.approx(metric.total, rel=1e-5, abs=1e-5), name


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.integers(0, 10**6), choices(), st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e30]))
def test_junk_at_masked_places_changes_neither_value_nor_gradient_nor_metrics(seed, options, junk):
    clean, current_T = random_batch(seed, 5)
    value, grad_T, metrics = evaluate(clean, current_T, **options)
    dirty, dirty_T = random_batch(seed, 5, junk)
    dirty.extra_B["advantages"][~dirty.extra_B["trained"]] = junk
    seen, seen_T, seen_metrics = evaluate(dirty, dirty_T, **options)
    assert (seen, seen_metrics) == (value, metrics)
    assert (seen_T == grad_T).all()


def test_a_registration_reaches_another_process_and_wins_over_the_name():
    shipped = pickle.loads(pickle.dumps(LOSSES["reinforce"]))
    assert build_loss(LossSettings(name="of my own"), shipped).registered == LOSSES["reinforce"]


def test_naming_the_losses_and_what_they_need_loads_no_torch():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from roll_ray.algorithms.losses import LOSSES, build_loss\n"
        "from roll_ray.algorithms.loss_settings import LossSettings\n"
        "for name in LOSSES: build_loss(LossSettings(name=name))\n"
        "print({n: sorted(r.needs) for n, r in LOSSES.items() if r.needs != {'advantages'}})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'topr': ['advantages', 'rewards'], 'sft': []}"
