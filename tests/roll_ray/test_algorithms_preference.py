"""DPO, IPO and the critic's loss: values and gradients by hand."""

import math

import pytest
import torch

from roll_ray.algorithms.preference import dpo, ipo, response_deltas
from roll_ray.algorithms.value_loss import clipped_value_loss, value_clip_fraction

NAN = math.nan


def doubles(*x):
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_dpo_by_hand(beta, smoothing):
    chosen, rejected = doubles(1.0, -2.0, 0.0, 5000.0), doubles(0.5, 1.0, 0.0, -5000.0)
    loss_P = dpo(chosen, rejected, beta, smoothing)
    h = [0.5, -3.0, 0.0]
    expected = [
        -(1 - smoothing) * math.log(sigmoid(beta * x)) - smoothing * math.log(sigmoid(-beta * x)) for x in h
    ]
    assert loss_P[:3].tolist() == pytest.approx(expected)
    assert loss_P[3].item() == pytest.approx(smoothing * beta * 10_000)  # finite
    loss_P[:3].sum().backward()
    slopes = [beta * (smoothing * sigmoid(beta * x) - (1 - smoothing) * sigmoid(-beta * x)) for x in h]
    assert chosen.grad.tolist()[:3] == pytest.approx(slopes)
    assert rejected.grad.tolist()[:3] == pytest.approx([-x for x in slopes])


def test_dpo_of_equal_responses_is_log_2():
    assert dpo(doubles(1.0), doubles(1.0)).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_ipo_by_hand(beta):
    chosen, rejected = doubles(1.0, -2.0, 5.0), doubles(0.5, 1.0, 0.0)
    loss_P = ipo(chosen, rejected, beta)
    off = [x - 1 / (2 * beta) for x in (0.5, -3.0, 5.0)]
    assert loss_P.tolist() == pytest.approx([x * x for x in off])
    loss_P.sum().backward()
    assert chosen.grad.tolist() == pytest.approx([2 * x for x in off])
    assert rejected.grad.tolist() == pytest.approx([-2 * x for x in off])


@pytest.mark.parametrize("junk", [NAN, math.inf, 1e30])
def test_the_delta_of_a_response_sums_its_policy_tokens_and_nothing_else(junk):
    logprobs_T = torch.tensor([junk, -1.0, -2.0, junk, -3.0], requires_grad=True)
    reference_T = torch.tensor([junk, -1.5, -1.0, junk, -2.0])
    mask_T = torch.tensor([False, True, True, False, True])
    delta_B = response_deltas(logprobs_T, reference_T, mask_T, torch.tensor([0, 0, 0, 1, 1]), 3)
    assert delta_B.tolist() == [-0.5, -1.0, 0.0]
    (delta_B * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert logprobs_T.grad.tolist() == [0, 1, 1, 0, 2]


@pytest.mark.parametrize(
    ("value", "old", "returned", "loss", "gradient"),
    [
        (1.0, 1.0, 3.0, 2.0, -2.0),  # inside the clip
        (1.5, 1.0, 3.0, 0.5 * 1.8**2, 0.0),  # moved too far towards the return: 1.2 counts
        (1.5, 1.0, 0.0, 0.5 * 1.5**2, 1.5),  # moved away from it: the gradient stays
        (0.5, 1.0, 0.0, 0.5 * 0.8**2, 0.0),
        (0.5, 1.0, 2.0, 0.5 * 1.5**2, -1.5),
    ],
)
def test_value_loss_by_hand(value, old, returned, loss, gradient):
    values_T = doubles(value)
    loss_T = clipped_value_loss(values_T, doubles(old).detach(), doubles(returned).detach(), 0.2)
    assert loss_T.tolist() == pytest.approx([loss])
    loss_T.sum().backward()
    assert values_T.grad.tolist() == pytest.approx([gradient])
    held = value_clip_fraction(values_T.detach(), doubles(old).detach(), doubles(returned).detach())
    assert held == float(gradient == 0)


def test_value_clip_fraction_of_nothing_is_0():
    assert value_clip_fraction(torch.empty(0), torch.empty(0), torch.empty(0)) == 0.0
