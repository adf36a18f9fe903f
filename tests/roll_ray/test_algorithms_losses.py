"""Losses: values and gradients by hand, junk at masked places, any cut of the batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_ray.algorithms.aggregation import denominator
from roll_ray.algorithms.kl import k3
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import LOSSES, TokenLoss, build_loss, policy_loss
from roll_ray.algorithms.metric_sums import merge_sums
from roll_ray.algorithms.token_batch import PolicyOutput
from roll_ray.batch import Batch
from roll_ray.errors import SettingsError
from roll_ray.sample import Role
from tests.roll_ray.loss_cases import batch_of, evaluate, sample

LOG2 = math.log(2.0)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 2.0, -2.56, 0.0),  # clipped at 1.28
        (1.5, -2.0, 3.0, 3.0),  # the clip never helps a bad token
        (0.5, 2.0, -1.0, -1.0),
        (0.5, -2.0, 1.6, 0.0),  # clipped at 0.8
        (1.1, 0.0, 0.0, 0.0),
    ],
)
def test_ppo_by_hand(ratio, advantage, loss, gradient):
    batch = batch_of([-1.0], advantages=[advantage])
    value, grad_T, metrics = evaluate(
        batch, [-1.0 + math.log(ratio)], proximal="engine", clip_low=0.2, clip_high=0.28
    )
    assert value == pytest.approx(loss, rel=1e-6)
    assert grad_T == pytest.approx([gradient], rel=1e-6, abs=1e-7)
    assert metrics["clip_fraction"].value == float(gradient == 0.0 and advantage != 0)
    assert metrics["ratio_mean"].value == pytest.approx(ratio)
    assert metrics["ratio_clipped_max"].value == pytest.approx(min(max(ratio, 0.8), 1.28))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (5.0, -1.0, 3.0, 0.0),  # min(5, 3)
        (2.0, -1.0, 2.0, 2.0),
        (0.5, -1.0, 0.8, 0.0),
        (5.0, 1.0, -1.2, 0.0),  # no bound where A > 0
    ],
)
def test_dual_clip_by_hand(ratio, advantage, loss, gradient):
    batch = batch_of([-3.0], advantages=[advantage])
    value, grad_T, metrics = evaluate(batch, [-3.0 + math.log(ratio)], proximal="engine", dual_clip=3.0)
    assert value == pytest.approx(loss, rel=1e-6)
    assert grad_T == pytest.approx([gradient], rel=1e-6, abs=1e-7)
    assert metrics["dual_clip_fraction"].value == float(ratio > 3 and advantage < 0)


def test_k3_by_hand():
    # d = log 2: 1/2 - 1 + log 2; gradient by log p: 1 - exp(-d)
    logprobs_T = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    kl_T = k3(logprobs_T, torch.tensor([-1.0 - LOG2, -1.0 + LOG2, -1.0]))
    assert kl_T.tolist() == pytest.approx([LOG2 - 0.5, 1 - LOG2, 0.0])
    kl_T.sum().backward()
    assert logprobs_T.grad.tolist() == pytest.approx([0.5, -1.0, 0.0])


def test_k3_is_not_clamped_and_its_maximum_is_reported():
    batch = batch_of([-30.0, -1.0], advantages=[0.0], reference_logprobs=[-1.0, -1.0])
    value, _, metrics = evaluate(batch, [-30.0, -1.0], kl_coefficient=0.1)
    assert metrics["kl_k3_max"].value == pytest.approx(math.exp(29) - 30, rel=1e-5)
    assert value == pytest.approx(0.1 * (math.exp(29) - 30), rel=1e-5)


def test_kl_is_added_to_the_policy_loss():
    batch = batch_of([-1.0], advantages=[2.0], reference_logprobs=[-1.0 - LOG2])
    value, grad_T, _ = evaluate(batch, [-1.0], kl_coefficient=0.5)
    assert value == pytest.approx(-2.0 + 0.5 * (LOG2 - 0.5))
    assert grad_T == pytest.approx([-2.0 + 0.25])


def test_sft_is_cross_entropy_and_needs_no_advantage():
    batch = Batch.of([sample(0, [0, 0, 0], [Role.PROMPT, Role.POLICY, Role.POLICY])])
    value, grad_T, _ = evaluate(batch, [-9.0, -1.0, -2.5], name="sft")
    assert value == pytest.approx(3.5)
    assert grad_T.tolist() == [0, -1, -1]


@pytest.mark.parametrize(
    ("aggregation", "mean"),
    [
        ("token_mean", -(3 * 1 + 1 * 5) / 4),
        ("seq_mean_token_mean", -(1 + 5) / 2),
        ("seq_mean_token_sum", -(3 + 5) / 2),
    ],
)
def test_aggregations_by_hand(aggregation, mean):
    # two responses, of 3 tokens with advantage 1 and of 1 token with advantage 5, ratio 1
    batch = batch_of([-1.0] * 3, [-2.0], advantages=[1.0, 5.0])
    value, _, _ = evaluate(batch, [-1.0] * 3 + [-2.0], aggregation=aggregation)
    assert value / denominator(aggregation, batch.policy_tokens_B) == pytest.approx(mean)


@pytest.mark.parametrize("proximal", ["trainer", "engine"])
@pytest.mark.parametrize("junk", [NAN, INF, -INF, 1e30])
def test_junk_at_masked_places_changes_neither_value_nor_gradient(proximal, junk):
    roles = [[Role.PROMPT, Role.POLICY, Role.ENVIRONMENT, Role.POLICY]]

    def run(x):
        batch = batch_of(
            [x, -1.0, x, -2.0],
            advantages=[1.5],
            roles=roles,
            old_logprobs=[x, -1.1, x, -2.2],
            reference_logprobs=[x, -1.2, x, -2.0],
        )
        return evaluate(batch, [x, -1.05, x, -2.1], proximal=proximal, kl_coefficient=0.3, dual_clip=3.0)

    value, grad_T, metrics = run(junk)
    clean_value, clean_grad_T, clean_metrics = run(-1.0)
    assert value == clean_value
    assert (grad_T == clean_grad_T).all()
    assert grad_T[[0, 2]].tolist() == [0, 0]
    assert metrics == clean_metrics


def test_junk_entropy_at_masked_places_is_not_counted():
    batch = batch_of([0.0, -1.0], advantages=[1.0], roles=[[Role.PROMPT, Role.POLICY]])
    loss = build_loss(LossSettings())
    output = PolicyOutput(torch.tensor([NAN, -1.0]), entropy_T=torch.tensor([NAN, 0.5]))
    assert loss(loss.tensors(batch), output).metrics["entropy"].value == 0.5


def test_old_logprobs_are_the_trainers_own_unless_given():
    batch = batch_of([-1.0, -1.0], advantages=[1.0])
    _, _, metrics = evaluate(batch, [-1.3, -1.5])
    assert metrics["ratio_max"].value == metrics["ratio_mean"].value == 1.0
    assert metrics["logprob_difference_max"].value == pytest.approx(0.5)
    assert metrics["logprob_difference_mean"].value == pytest.approx(0.4)
    batch.extra_T["old_logprobs"] = np.asarray([-1.3 - LOG2, -1.5], np.float32)
    _, _, metrics = evaluate(batch, [-1.3, -1.5])
    assert metrics["ratio_max"].value == pytest.approx(2.0)
    assert metrics["logprob_difference_max"].value == pytest.approx(0.3 + LOG2)


def test_with_the_engines_logprobs_as_proximal_the_difference_is_still_the_trainers():
    batch = batch_of([-1.0], advantages=[1.0], old_logprobs=[-1.25])
    _, _, metrics = evaluate(batch, [-1.0 + LOG2], proximal="engine")
    assert metrics["ratio_max"].value == pytest.approx(2.0)
    assert metrics["logprob_difference_max"].value == pytest.approx(0.25)


def test_read_only_arrays_are_not_written_and_not_warned_about(recwarn):
    batch = batch_of([-1.0, -1.0], advantages=[1.0], old_logprobs=[-1.0, -1.0])
    for array in (
        batch.roles_T,
        batch.logprobs_T,
        batch.extra_B["advantages"],
        batch.extra_T["old_logprobs"],
    ):
        array.flags.writeable = False
    evaluate(batch, [-1.0, -1.0])
    assert not recwarn.list


def test_a_batch_without_what_the_loss_needs_is_an_error_that_names_it():
    batch = Batch.of([sample(0, [-1.0])])
    with pytest.raises(ValueError, match=r"extra_B\['advantages'\]"):
        evaluate(batch, [-1.0])
    batch.extra_B["advantages"] = np.ones(1, np.float32)
    with pytest.raises(ValueError, match=r"extra_T\['reference_logprobs'\]"):
        evaluate(batch, [-1.0], kl_coefficient=0.1)


def test_an_unknown_loss_names_the_known_ones():
    with pytest.raises(SettingsError, match="'ppo'"):
        build_loss(LossSettings(name="pp0"))


def test_a_loss_is_one_function_and_one_registration():
    @policy_loss("test_only")
    def reinforce(terms, settings):
        return TokenLoss(-terms.advantages_T * terms.logprobs_T)

    try:
        value, grad_T, _ = evaluate(batch_of([-1.0], advantages=[2.0]), [-3.0], name="test_only")
        assert (value, grad_T.tolist()) == (6.0, [-2.0])
        with pytest.raises(ValueError, match="registered twice"):
            policy_loss("ppo")(reinforce)
    finally:
        del LOSSES["test_only"]


numbers = st.floats(-3, 0, width=32)


@st.composite
def cut_batches(draw):
    """A batch, current log-probabilities, and a way to cut it into parts in any order."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    rows, roles, current = [], [], []
    for n in lengths:
        rows.append(draw(st.lists(numbers, min_size=n, max_size=n)))
        current.append(draw(st.lists(numbers, min_size=n, max_size=n)))
        roles.append(draw(st.lists(st.sampled_from(list(Role)), min_size=n, max_size=n)))
    total = sum(lengths)
    batch = batch_of(
        *rows,
        advantages=draw(st.lists(st.floats(-2, 2, width=32), min_size=len(lengths), max_size=len(lengths))),
        roles=roles,
        reference_logprobs=draw(st.lists(numbers, min_size=total, max_size=total)),
    )
    order = draw(st.permutations(range(len(lengths))))
    cuts = sorted(draw(st.sets(st.integers(1, len(lengths)))) | {len(lengths)})
    parts = [list(order[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)]
    return batch, current, parts


@settings(max_examples=60, deadline=None)
@given(
    cut_batches(),
    st.sampled_from(["token_mean", "seq_mean_token_mean", "seq_mean_token_sum"]),
    st.sampled_from([None, 3.0]),
)
def test_any_order_and_any_cut_gives_the_same_loss_gradient_and_metrics(case, aggregation, dual_clip):
    """Case 8 at the level of the loss."""
    batch, current, parts = case
    options = {
        "aggregation": aggregation,
        "dual_clip": dual_clip,
        "kl_coefficient": 0.2,
        "proximal": "engine",
    }
    whole, grad_T, metrics = evaluate(batch, np.concatenate(current), **options)
    total, merged = 0.0, []
    for part in parts:
        value, part_grad_T, part_metrics = evaluate(
            batch.select(part), np.concatenate([current[i] for i in part]), **options
        )
        total += value
        merged.append(part_metrics)
        expected = np.concatenate([grad_T[batch.token_span(i)] for i in part])
        assert part_grad_T == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert total == pytest.approx(whole, rel=1e-5, abs=1e-5)
    for name, metric in merge_sums(merged).items():
        assert metric.count == (metrics[name].count if metric.reduction != "sum" else len(parts))
        assert metric.total == pytest.approx(metrics[name].total, rel=1e-5, abs=1e-5), name
