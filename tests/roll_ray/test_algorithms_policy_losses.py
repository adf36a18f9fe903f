"""Every policy loss: values and gradients by hand, and against plain formulas with finite differences."""

import math

import numpy as np
import pytest
import torch

from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import LOSSES
from roll_ray.algorithms.segments import Segments
from tests.roll_ray.loss_cases import batch_of, evaluate, terms_of

E = math.e


def run_one(name, ratio, advantage, reward=1.0, lp=-2.0, behaviour_ratio=1.0, **options):
    """One response of one token with p / p_old = ratio and p_old / p_behaviour = behaviour_ratio."""
    old = lp - math.log(ratio)
    batch = batch_of([old - math.log(behaviour_ratio)], advantages=[advantage], old_logprobs=[old])
    batch.rewards_B[:] = reward
    value, grad_T, metrics = evaluate(batch, [lp], name=name, **options)
    return value, float(grad_T[0]), metrics


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("name", "options", "ratio", "advantage", "reward", "value", "gradient"),
    [
        # one token a response: the sequence ratio is the token's
        ("gspo", {"clip_low": 3e-4, "clip_high": 4e-4}, 1.0003, 2.0, 1, -2.0006, -2.0006),
        ("gspo", {"clip_low": 3e-4, "clip_high": 4e-4}, 1.001, 2.0, 1, -2.0008, 0.0),
        ("gspo", {"clip_low": 3e-4, "clip_high": 4e-4}, 0.999, -2.0, 1, 2 * 0.9997, 0.0),
        ("gspo", {"clip_low": 3e-4, "clip_high": 4e-4}, 1.5, -2.0, 1, 3.0, 3.0),
        ("cispo", {}, 1.0, 3.0, 1, 6.0, -3.0),
        ("cispo", {}, 2.0, 3.0, 1, 1.2 * 3 * 2, -1.2 * 3),  # clipped, and the gradient stays
        ("cispo", {}, 0.5, -3.0, 1, -0.8 * 3 * 2, 0.8 * 3),
        ("tis_reinforce", {}, 2.0, 3.0, 1, 6.0, -3.0),
        ("tis_reinforce", {}, 0.25, 3.0, 1, 1.5, -0.75),
        ("tis_reinforce", {"tis_low": 0.5}, 0.25, -4.0, 1, -4.0, 2.0),
        ("topr", {}, 0.5, 3.0, 1, 6.0, -3.0),  # positive: no ratio
        ("topr", {}, 0.5, 3.0, 0, 3.0, -1.5),  # reward 0 is negative, whatever A says
        ("topr", {}, 2.0, -3.0, -1, -6.0, 3.0),
        ("topr", {"topr_positive_weight": 0.5}, 2.0, 3.0, 1, 3.0, -1.5),
        ("topr", {"topr_negative_weight": 0.25}, 0.5, -4.0, -1, -1.0, 0.5),
        ("reinforce", {}, 2.0, 3.0, 1, 6.0, -3.0),
        ("reinforce", {}, 0.1, -0.5, 1, -1.0, 0.5),
        ("kimi15", {}, E, 3.0, 1, 6.0 + 0.05, -3.0 + 0.1),
        ("kimi15", {"kimi_tau": 2.0}, E**-3, 0.0, 1, 9.0, -6.0),
        ("sapo", {}, 1.0, 3.0, 1, -6.0, -3.0),  # f(1) = 2 / tau, f'(1) = 1
        ("sapo", {}, 1.0, -3.0, 1, 6 / 1.05, 3.0),
        (
            "sapo",
            {"sapo_tau_positive": 2.0},
            2.0,
            1.0,
            1,
            -2 * sigmoid(2),
            -8 * sigmoid(2) * (1 - sigmoid(2)),
        ),
        ("gmpo", {}, E**0.2, 2.0, 1, -2 * E**0.2, -2 * E**0.2),
        ("gmpo", {}, E, 2.0, 1, -2 * E**0.4, 0.0),
        ("gmpo", {}, 1 / E, 2.0, 1, -2 / E, -2 / E),
        ("gmpo", {}, 1 / E, -2.0, 1, 2 * E**-0.4, 0.0),
        ("gmpo", {}, E, -2.0, 1, 2 * E, 2 * E),
        ("sft", {}, 2.0, 3.0, 1, 2.0, -1.0),
    ],
)
def test_by_hand(name, options, ratio, advantage, reward, value, gradient):
    seen, grad, _ = run_one(name, ratio, advantage, reward, **options)
    assert seen == pytest.approx(value, rel=2e-6)
    assert grad == pytest.approx(gradient, rel=2e-6, abs=1e-7)


@pytest.mark.parametrize(("w", "weight"), [(0.5, 0.5), (1.0, 1.0), (3.0, 2.0)])
@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [(1.1, 2.0, -2.2, -2.2), (2.0, 2.0, -2.4, 0.0), (2.0, -2.0, 4.0, 4.0)],
)
def test_decoupled_ppo_is_ppo_times_the_capped_weight(w, weight, ratio, advantage, value, gradient):
    seen, grad, metrics = run_one("decoupled_ppo", ratio, advantage, behaviour_ratio=w, decoupled_cap=2.0)
    assert seen == pytest.approx(weight * value, rel=1e-6)
    assert grad == pytest.approx(weight * gradient, rel=1e-6, abs=1e-7)
    assert metrics["correction_weight_mean"].value == pytest.approx(weight)
    assert metrics["corrected_fraction"].value == float(w > 2)


def test_cispo_anchored_at_the_behaviour_policy_takes_its_ratio():
    _, proximal, _ = run_one("cispo", 1.1, 1.0, behaviour_ratio=0.5)
    _, behaviour, metrics = run_one("cispo", 1.1, 1.0, behaviour_ratio=0.9, cispo_anchor="behaviour")
    assert (proximal, behaviour) == (pytest.approx(-1.1), pytest.approx(-0.99))
    assert metrics["clip_fraction"].value == 0.0


def test_gspo_has_one_ratio_a_response():
    # log-ratios 0.2 and 0.0 of the first: s = exp(0.1); the second response is not moved
    batch = batch_of([-1.2, -1.0], [-1.0], advantages=[1.0, -1.0])
    value, grad_T, metrics = evaluate(batch, [-1.0, -1.0, -1.0], name="gspo", proximal="engine")
    s = math.exp(0.1)
    assert value == pytest.approx(-2 * s + 1, rel=1e-6)
    assert grad_T == pytest.approx([-s, -s, 1.0], rel=1e-6)
    assert metrics["ratio_clipped_max"].value == pytest.approx(s)
    assert metrics["ratio_max"].value == pytest.approx(math.exp(0.2))


def test_gmpo_spreads_its_gradient_over_the_tokens_that_are_not_clipped():
    batch = batch_of([-2.0, -1.1], advantages=[1.0])  # log-ratios 1.0, held at 0.4, and 0.1
    value, grad_T, metrics = evaluate(batch, [-1.0, -1.0], name="gmpo", proximal="engine")
    mean = math.exp(0.25)
    assert value == pytest.approx(-2 * mean, rel=1e-6)
    assert grad_T == pytest.approx([0.0, -mean], rel=1e-6)
    assert metrics["clip_fraction"].value == 0.5


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("ppo", 1 / 6, 2 / 6), ("gspo", 1 / 6, 2 / 6), ("cispo", 2 / 6, 3 / 6)],  # cispo clips whatever the sign
)
def test_clip_fractions_count_each_side(name, low, high):
    """In ppo and gspo (here of responses of one token) where the clip takes the gradient, in cispo all."""
    ratios, advantages = (1.5, 1.5, 0.5, 1.5, 0.5, 1.0), [1, 1, 1, -1, -1, 1]
    batch = batch_of(*[[-2 - math.log(r)] for r in ratios], advantages=[0.0] * 6)
    batch.extra_T["advantages"] = np.asarray(advantages, np.float32)  # wins over the sample's
    value, grad_T, metrics = evaluate(batch, [-2.0] * 6, name=name, proximal="engine")
    if name != "cispo":
        assert value == pytest.approx(-1.2 - 1.2 - 0.5 + 1.5 + 0.8 - 1.0)
        assert grad_T == pytest.approx([0, 0, -0.5, 1.5, 0, -1], abs=1e-7)
    names = ("clip_fraction_low", "clip_fraction_high", "clip_fraction")
    assert [metrics[n].value for n in names] == pytest.approx([low, high, low + high])
    assert metrics["ratio_clipped_mean"].value == pytest.approx((3 * 1.2 + 2 * 0.8 + 1) / 6)


def test_sums_and_means_over_a_sample_have_their_gradient():
    lengths, random = [3, 1, 0, 5], np.random.default_rng(0)
    zeros = [0.0] * 9
    terms = terms_of(lengths, zeros, zeros, zeros, [0.0] * 4, [0.0] * 4)
    same = np.equal.outer(*[np.repeat(np.arange(4), lengths)] * 2).astype(np.float64)
    x, cotangent = (torch.tensor(random.normal(size=9)) for _ in range(2))
    for function, matrix in (
        (terms.sequence_sum, torch.tensor(same)),
        (terms.sequence_mean, torch.tensor(same / same.sum(1, keepdims=True))),
    ):
        leaf = x.clone().requires_grad_()
        result = function(leaf)
        assert result.tolist() == pytest.approx((matrix @ x).tolist())
        result.backward(cotangent)
        assert leaf.grad.tolist() == pytest.approx((matrix.T @ cotangent).tolist())


# --- against plain formulas -----------------------------------------------------------------------------


def plain_ppo(r, A, s):
    clipped = min(max(r, 1 - s.clip_low), 1 + s.clip_high)
    value = -min(r * A, clipped * A)
    return min(value, -s.dual_clip * A) if s.dual_clip is not None and A < 0 else value


def plain(s, lp, frozen, old, beh, A, reward):
    """Losses of one response's tokens, from numbers; `frozen`: lp where the gradient is stopped."""
    n = len(lp)
    out = []
    for t in range(n):
        r, sg = math.exp(lp[t] - old[t]), math.exp(frozen[t] - old[t])
        w = math.exp(old[t] - beh[t])
        if s.name == "cispo" and s.cispo_anchor == "behaviour":
            sg = math.exp(frozen[t] - beh[t])
        if s.name == "ppo":
            out.append(plain_ppo(r, A, s))
        elif s.name == "decoupled_ppo":
            out.append(min(w, s.decoupled_cap) * plain_ppo(r, A, s))
        elif s.name == "gspo":  # the paper's equation 5: one ratio of the whole response
            out.append(plain_ppo(math.exp(sum(a - b for a, b in zip(lp, old, strict=True)) / n), A, s))
        elif s.name == "cispo":
            out.append(-min(max(sg, 1 - s.clip_low), 1 + s.clip_high) * A * lp[t])
        elif s.name == "tis_reinforce":
            out.append(-min(max(sg, s.tis_low), s.tis_high) * A * lp[t])
        elif s.name == "topr":
            factor = s.topr_positive_weight if reward > 0 else s.topr_negative_weight * min(max(sg, 0), 1)
            out.append(-factor * A * lp[t])
        elif s.name == "reinforce":
            out.append(-A * lp[t])
        elif s.name == "kimi15":
            out.append(-A * lp[t] + s.kimi_tau / 2 * (lp[t] - old[t]) ** 2)
        elif s.name == "sapo":
            tau = s.sapo_tau_positive if A > 0 else s.sapo_tau_negative
            out.append(-4 / tau * sigmoid(tau * (r - 1)) * A)
        elif s.name == "gmpo":
            c = s.gmpo_clip
            logs = [min(a - b, c) if A > 0 else max(a - b, -c) for a, b in zip(lp, old, strict=True)]
            out.append(-A * math.exp(sum(logs) / n))
        elif s.name == "sft":
            out.append(-lp[t])
    return out


CASES = [
    *({"name": name} for name in sorted(LOSSES)),
    {"name": "ppo", "dual_clip": 1.5, "clip_high": 0.28},
    {"name": "gspo", "clip_low": 0.05, "clip_high": 0.1},
    {"name": "cispo", "cispo_anchor": "behaviour", "clip_low": 0.3},
    {"name": "topr", "topr_positive_weight": 0.7, "topr_negative_weight": 0.4},
    {"name": "decoupled_ppo", "decoupled_cap": 1.1, "dual_clip": 1.2},
    {"name": "sapo", "sapo_tau_positive": 0.5, "sapo_tau_negative": 2.0},
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", CASES, ids=lambda o: "-".join(str(v) for v in o.values()))
def test_values_and_gradients_are_those_of_the_plain_formula(options, seed):
    random, s = np.random.default_rng(seed), LossSettings(**options)
    lengths = [3, 1, 0, 5]
    n, starts = sum(lengths), np.cumsum([0, *lengths])
    lp = -random.random(n) * 3
    old, beh = lp + random.normal(0, 0.4, n), lp + random.normal(0, 0.4, n)
    A_B, rewards_B = random.normal(0, 1.5, 4), random.choice([-1.0, 0.0, 1.0], 4)

    def total(x):
        tokens = []
        for i in range(4):
            span = slice(starts[i], starts[i + 1])
            tokens += plain(s, x[span], lp[span], old[span], beh[span], A_B[i], rewards_B[i])
        return np.asarray(tokens)

    terms = terms_of(lengths, lp, old, beh, A_B, rewards_B)
    loss_T = LOSSES[s.name].function(terms, s).loss_T
    assert loss_T.detach().numpy() == pytest.approx(total(lp), rel=1e-9, abs=1e-12)
    (grad_T,) = torch.autograd.grad(loss_T.sum(), terms.logprobs_T)
    step = 1e-6
    expected = [(total(lp + step * e).sum() - total(lp - step * e).sum()) / (2 * step) for e in np.eye(n)]
    assert grad_T.numpy() == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("log_ratio", [-80.0, 80.0, -200.0, 200.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_extreme_ratios_are_finite_and_counted(name, advantage, log_ratio):
    batch = batch_of([-300.0, -1.0], advantages=[advantage], old_logprobs=[-300.0, -1.0])
    value, grad_T, metrics = evaluate(batch, [-300.0 + log_ratio, -1.0], name=name)
    assert math.isfinite(value)
    assert np.isfinite(grad_T).all()
    if name == "gspo":
        log_ratio /= 2
    assert metrics["ratio_max"].value >= (math.exp(80) * 0.999 if log_ratio >= 80 else 1.0)
    if name == "ppo":
        held = (log_ratio > 0) == (advantage > 0)
        assert metrics["clip_fraction"].value == (0.5 if held else 0.0)
        assert grad_T[0] == pytest.approx(0.0 if held else math.exp(min(log_ratio, 80)), rel=1e-3)


def test_a_sample_with_an_invalid_reward_is_left_out_of_a_loss_that_needs_rewards():
    batch = batch_of([-1.0], [-1.0], advantages=[1.0, 1.0])
    batch.rewards_B[1] = np.nan
    value, grad_T, metrics = evaluate(batch, [-2.0, -3.0], name="topr")
    assert (value, grad_T.tolist(), metrics["policy_tokens"].value) == (2.0, [-1.0, 0.0], 1.0)
    value, _, metrics = evaluate(batch, [-2.0, -3.0], name="reinforce")
    assert (value, metrics["policy_tokens"].value) == (5.0, 2.0)


def test_sums_over_a_sample_do_not_depend_on_its_neighbours_in_a_bit():
    x = torch.rand(9000) * 0.1
    alone = Segments(torch.tensor([9000]), 9000).sums_B(x)
    beside = Segments(torch.tensor([3, 9000, 0, 1]), 9004).sums_B(
        torch.cat([torch.rand(3), x, torch.rand(1)])
    )
    assert beside[1] == alone[0] == pytest.approx(float(x.double().sum()), rel=1e-7)
    assert beside[2] == 0
