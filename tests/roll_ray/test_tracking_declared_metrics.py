"""Every number that a loss, a correction or a KL can report is declared: an undeclared one would end a run."""

import itertools

import numpy as np
import pytest

from roll_ray.algorithms.corrections import CORRECTIONS
from roll_ray.algorithms.kl import KL_ESTIMATORS
from roll_ray.algorithms.losses import LOSSES
from roll_ray.tracking.metrics import UndeclaredMetricError, check_declared, in_order, metric_of
from tests.roll_ray.loss_cases import batch_of, evaluate

BATCH = batch_of(
    [-1.0, -2.0, -1.5],
    [-0.5, -1.0],
    advantages=[1.0, -2.0],
    old_logprobs=[-1.1, -1.0, -1.5, -0.4, -3.0],
    reference_logprobs=[-1.0, -1.2, -1.1, -0.6, -0.9],
)
CURRENT_T = [-0.9, -1.4, -1.6, -0.2, -1.2]


def reported(**options):
    return evaluate(BATCH, CURRENT_T, **options)[2]


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_metric_of_every_loss_with_every_correction_and_kl_is_declared(name):
    corrections = ["none"] if LOSSES[name].corrects else ["none", *CORRECTIONS]
    for correction, kl in itertools.product(corrections, ["none", *KL_ESTIMATORS]):
        coefficient = {} if kl == "none" else {"kl_coefficient": 0.1, "kl_estimator": kl}
        metrics = reported(name=name, correction=correction, dual_clip=3.0, **coefficient)
        check_declared(metrics)
        assert all(np.isfinite(m.value) for m in metrics.values())
        assert ("rejected_denominator" in metrics) == (correction == "rejection")
        assert (f"kl_{kl}_max" in metrics) == (kl != "none")


@pytest.mark.parametrize("name", ["ppo", "gspo", "cispo", "topr", "decoupled_ppo", "gmpo", "tis_reinforce"])
def test_raw_and_clipped_ratios_are_both_reported(name):
    metrics = reported(name=name)
    assert {"ratio_mean", "ratio_max", "ratio_clipped_mean", "ratio_clipped_max"} <= set(metrics)
    assert metrics["ratio_max"].value > metrics["ratio_clipped_max"].value


def test_a_metric_of_nobody_is_caught():
    with pytest.raises(UndeclaredMetricError, match="bogus"):
        check_declared(["loss", "bogus"])


def test_a_member_of_a_family_is_declared_with_the_family():
    check_declared(["reward_mean/maths", "reward_part/format", "heldout_accuracy/a/b"])
    assert metric_of("reward_mean/maths").meaning.startswith("Reward of the batch's samples of domain maths")
    assert metric_of("reward_mean/maths").section == metric_of("reward_mean").section
    for name in ("loss/maths", "reward_mean/", "reward_part", "/maths"):
        with pytest.raises(UndeclaredMetricError, match=name):
            metric_of(name)


def test_members_stand_after_their_family_and_in_order():
    names = {"reward_part/b", "reward_mean/maths", "reward_mean", "reward_mean/code", "loss", "unknown"}
    ordered = in_order(names)
    assert ordered == ["reward_mean", "reward_mean/code", "reward_mean/maths", "loss", "reward_part/b"]
