"""Engine-trainer corrections: weights and masks by hand, what leaves the denominator, what is refused."""

import math

import numpy as np
import pytest
import torch

from roll_ray.algorithms.aggregation import denominator
from roll_ray.algorithms.corrections import CORRECTIONS
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import build_loss
from roll_ray.errors import SettingsError
from tests.roll_ray.loss_cases import batch_of, evaluate, terms_of

INF, NAN = math.inf, math.nan


def effect(correction, *responses, level="token", low=None, high=None):
    """Weight of each token (0: masked) where the tokens' w are `responses`, and where it was changed."""
    settings = LossSettings(
        correction=correction, correction_level=level, correction_low=low, correction_high=high
    )
    w = [x for response in responses for x in response]
    log_w = [math.log(x) for x in w]
    zeros, lengths = [0.0] * len(w), [len(r) for r in responses]
    terms = terms_of(lengths, zeros, log_w, zeros, [1.0] * len(lengths), [1.0] * len(lengths))
    registered = CORRECTIONS[correction]
    result = registered.function(terms, registered.band(settings))
    weights_T = torch.ones(len(w), dtype=torch.float64) if result.weights_T is None else result.weights_T
    assert not weights_T.requires_grad
    kept_T = torch.ones(len(w)) if result.kept_T is None else result.kept_T
    return (weights_T * kept_T).tolist(), [bool(x) for x in result.changed_T]


@pytest.mark.parametrize(
    ("correction", "options", "responses", "weights", "changed"),
    [
        ("truncated_is", {}, [[0.5, 1.5, 3.0], [2.0]], [0.5, 1.5, 2, 2], [0, 0, 1, 0]),
        ("truncated_is", {"high": 1.2}, [[0.1, 5.0]], [0.1, 1.2], [0, 1]),
        ("truncated_is", {"level": "sequence"}, [[0.5, 1.5], [3.0, 3.0]], [0.75, 0.75, 2, 2], [0, 0, 1, 1]),
        ("icepop", {}, [[0.4, 0.6, 4.9, 5.1]], [0, 0.6, 4.9, 0], [1, 0, 0, 1]),
        ("icepop", {"low": 0.7, "high": 1.4}, [[0.6], [1.0, 1.5]], [0, 1, 0], [1, 0, 1]),
        ("geometric_band", {}, [[0.5, 2.0], [0.5, 1.0], [1.3]], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]),
        ("geometric_band", {"low": 0.6, "high": 1.4}, [[0.5, 1.0], [1.5]], [1, 1, 0], [0, 0, 1]),
        ("product_band", {}, [[1.3, 1.3], [1.5, 1.5], [0.7, 0.7]], [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1]),
        ("product_band", {"low": 0.1}, [[0.4, 0.4], [0.3, 0.3]], [1, 1, 0, 0], [0, 0, 1, 1]),
        ("outlier_token", {}, [[1.0, 101.0], [99.0, 2e-4], [9e-5]], [0, 0, 1, 1, 0], [1, 1, 0, 0, 1]),
        ("outlier_token", {"high": 2.0}, [[1.0, 1.0], [2.1, 1.0]], [1, 1, 0, 0], [0, 0, 1, 1]),
        ("rejection", {}, [[1.0, 101.0], [99.0]], [0, 0, 1], [1, 1, 0]),
        ("rejection", {"level": "sequence"}, [[1.0, 101.0], [0.9, 1.2]], [0, 0, 1, 1], [1, 1, 0, 0]),
    ],
)
def test_by_hand(correction, options, responses, weights, changed):
    seen, where = effect(correction, *responses, **options)
    assert seen == pytest.approx(weights)
    assert where == [bool(x) for x in changed]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", sorted(CORRECTIONS))
def test_extreme_ratios_are_finite_and_counted(correction, level, sign):
    old = [-400.0 + 80 * sign] * 50 + [-1.0]
    batch = batch_of([-400.0] * 50 + [-1.0], advantages=[1.0], old_logprobs=old)
    value, grad_T, metrics = evaluate(batch, old, correction=correction, correction_level=level)
    assert math.isfinite(value)
    assert np.isfinite(grad_T).all()
    tapers = correction == "truncated_is" and sign < 0  # a weight of e^-80 is no truncation
    assert metrics["corrected_fraction"].value == (
        0 if tapers else 50 / 51 if not _whole(correction, level) else 1
    )


def _whole(correction, level):
    return correction not in ("icepop", "truncated_is") or (correction, level) == ("truncated_is", "sequence")


def test_the_weight_multiplies_value_and_gradient_and_not_the_kl_term():
    batch = batch_of(
        [-1.0, -1.0],
        advantages=[2.0],
        old_logprobs=[-1.0 + math.log(3), -1.0 - math.log(2)],
        reference_logprobs=[-1.0, -1.0],
    )
    current = batch.extra_T["old_logprobs"]
    bare, bare_grad_T, _ = evaluate(batch, current, kl_coefficient=0.0, correction="truncated_is")
    assert bare == pytest.approx(-2 * 2 - 2 * 0.5)
    assert bare_grad_T == pytest.approx([-4.0, -1.0])
    value, grad_T, metrics = evaluate(
        batch, current, kl_coefficient=0.1, kl_estimator="k2", correction="truncated_is"
    )
    assert value - bare == pytest.approx(0.05 * (math.log(3) ** 2 + math.log(2) ** 2), rel=1e-5)
    assert grad_T - bare_grad_T == pytest.approx([0.1 * math.log(3), -0.1 * math.log(2)], rel=1e-5)
    assert metrics["correction_weight_mean"].value == pytest.approx(1.25)
    assert metrics["corrected_fraction"].value == 0.5


@pytest.mark.parametrize("name", ["ppo", "gspo", "cispo", "topr", "kimi15", "reinforce", "sapo", "gmpo"])
def test_any_loss_can_be_wrapped(name):
    batch = batch_of([-1.0], advantages=[2.0], old_logprobs=[-1.0 - math.log(2)])
    bare, bare_grad_T, _ = evaluate(batch, [-1.5], name=name)
    value, grad_T, _ = evaluate(batch, [-1.5], name=name, correction="truncated_is")
    assert (value, grad_T[0]) == (pytest.approx(bare / 2), pytest.approx(bare_grad_T[0] / 2))


@pytest.mark.parametrize("wild", [INF, -INF, NAN, 1e30])
@pytest.mark.parametrize("correction", ["icepop", "outlier_token", "rejection"])
def test_the_log_probability_of_what_is_masked_may_be_anything(correction, wild):
    def run(x):
        # the engine said nonsense of the last token of the second response
        batch = batch_of([-1.0], [-1.0, x], advantages=[1.0, 1.0], old_logprobs=[-1.0] * 3)
        return evaluate(batch, [-1.1] * 3, correction=correction)

    value, grad_T, _ = run(wild)
    expected, expected_grad_T, _ = run(-60.0)
    assert (value, grad_T.tolist()) == (expected, expected_grad_T.tolist())


@pytest.mark.parametrize("correction", ["icepop", "outlier_token", "rejection"])
def test_the_loss_of_what_is_masked_may_be_infinite(correction):
    batch = batch_of([-1.0], [-1.0], advantages=[2.0, 1.0], old_logprobs=[-1.0, -INF])
    value, grad_T, _ = evaluate(batch, [-1.5, -INF], name="reinforce", correction=correction)
    assert (value, grad_T.tolist()) == (3.0, [-2.0, 0.0])


@pytest.mark.parametrize(
    ("aggregation", "options", "rejected"),
    [
        ("token_mean", {}, 3.0),
        ("seq_mean_token_mean", {}, 1.0),
        ("seq_mean_token_sum", {}, 1.0),
        ("seq_mean_token_sum_norm", {"aggregation_length": 8}, 8.0),
    ],
)
def test_a_rejected_response_is_as_if_it_had_not_been_sampled(aggregation, options, rejected):
    batch = batch_of(
        [-1.0, -1.0],
        [-1.0, -9.0, -1.0],
        [-1.0],
        advantages=[1.0, 2.0, 3.0],
        old_logprobs=[-1.0] * 6,
        reference_logprobs=[-2.0] * 6,
    )
    options = {"aggregation": aggregation, "correction": "rejection", "kl_coefficient": 0.3, **options}
    value, grad_T, metrics = evaluate(batch, [-1.2] * 6, **options)
    left = batch.select([0, 2])
    expected, expected_grad_T, _ = evaluate(left, [-1.2] * 3, **options)
    assert value == pytest.approx(expected, rel=1e-6)
    assert grad_T.tolist() == [*expected_grad_T[:2], 0, 0, 0, expected_grad_T[2]]
    assert metrics["rejected_sequences"].value == 1
    assert metrics["rejected_denominator"].value == rejected
    length = options.get("aggregation_length")
    whole = denominator(aggregation, batch.policy_tokens_B, length=length)
    assert whole - rejected == denominator(aggregation, left.policy_tokens_B, length=length)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "decoupled_ppo", "correction": "icepop"}, "twice"),
        ({"name": "cispo", "cispo_anchor": "behaviour", "correction": "truncated_is"}, "twice"),
        ({"correction": "truncated_is", "proximal": "engine"}, "nothing to correct"),
        ({"name": "decoupled_ppo", "proximal": "engine"}, "nothing to correct"),
        ({"correction": "rejection", "aggregation": "prompt_mean"}, "cannot be combined"),
        ({"correction": "icepop", "correction_low": 3.0, "correction_high": 2.0}, "none"),
        ({"correction": "tis"}, "unknown correction"),
    ],
)
def test_contradictions_are_refused(options, said):
    with pytest.raises(SettingsError, match=said):
        build_loss(LossSettings(**options))
