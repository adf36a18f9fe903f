"""Inputs on which our functions and verl's give different answers on purpose, both answers, and who is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.verl_side import Config
from roll_ray.algorithms.advantages import AdvantageSettings, Outcomes, estimate
from roll_ray.algorithms.kl import k3
from roll_ray.algorithms.returns import gae
from roll_ray.algorithms.whitening import Moments, whiten

NAN = float("nan")


@dataclass(frozen=True)
class Difference:
    what: str
    ours: str
    verl: str
    verdict: str


def all_of(verl: Any) -> Iterator[Difference]:
    yield from _groups(verl)
    yield from _masks(verl)
    yield from _limits(verl)
    yield from _denominators(verl)


def _ours(name: str, rewards: list[float], tokens: list[int] | None = None) -> str:
    counts = np.asarray(tokens or [2] * len(rewards))
    outcomes = Outcomes(np.asarray(rewards, np.float32), "a" * len(rewards), counts)
    return _text(estimate(name, outcomes, AdvantageSettings()).advantages_B)


def _verl(function: Any, rewards: list[float], tokens: list[int] | None = None, **options: Any) -> str:
    lengths = torch.tensor(tokens or [2] * len(rewards))
    mask = (torch.arange(2) < lengths[:, None]).float()
    token_rewards = torch.zeros(len(rewards), 2)
    token_rewards[:, 0] = torch.tensor(rewards)
    scored = function(token_rewards, mask, np.zeros(len(rewards), np.int64), **options)[0]
    return _text(scored[:, 0].numpy())


def _text(numbers: Any) -> str:
    return np.array2string(np.asarray(numbers), precision=6, max_line_width=200, separator=", ")


def _tried(run: Callable[[], str]) -> str:
    try:
        return run()
    except ValueError as error:
        return f"ValueError: {error}"


def _groups(verl: Any) -> Iterator[Difference]:
    grpo, rloo = verl.compute_grpo_outcome_advantage, verl.compute_rloo_outcome_advantage
    yield Difference(
        "a group of one, reward 0.7: grpo, rloo, opo",
        ", ".join(_ours(name, [0.7]) for name in ("grpo", "rloo", "opo")),
        ", ".join(_verl(f, [0.7]) for f in (grpo, rloo, verl.compute_opo_outcome_advantage))
        + f"; its vectorized rloo {_verl(verl.compute_rloo_vectorized_outcome_advantage, [0.7])}",
        "ours: without siblings there is no baseline; the raw reward would weigh such a sample by the reward's "
        "scale. verl's two rloo contradict each other.",
    )
    yield Difference(
        "seven equal rewards of 0.1: grpo",
        _ours("grpo", [0.1] * 7),
        f"{_verl(grpo, [0.1] * 7)}; vectorized {_verl(verl.compute_grpo_vectorized_outcome_advantage, [0.1] * 7)}",
        "ours: exactly 0; the rounding of a mean in float32 is no signal, and divided by eps it becomes one.",
    )
    yield Difference(
        "an invalid reward (NaN) beside 1 and 0: grpo",
        _ours("grpo", [1, 0, NAN]),
        _verl(grpo, [1, 0, NAN]),
        "ours: a verifier that failed says nothing of the siblings. verl expects a number from every reward function.",
    )
    yield Difference(
        "a response without a policy token and with reward 9, beside 1 and 0: dr_grpo",
        _ours("dr_grpo", [1, 0, 9], [2, 2, 0]),
        _verl(grpo, [1, 0, 9], [2, 2, 0], norm_adv_by_std_in_grpo=False),
        "ours: what the policy did not write is no sample of the policy, and no baseline either.",
    )


def _masks(verl: Any) -> Iterator[Difference]:
    rewards, values, mask = np.array([0, 0, 1.0]), np.array([0.5, NAN, 0.5]), np.array([True, False, True])
    tensors = [torch.tensor(x[None], dtype=torch.float32) for x in (rewards, values, mask)]
    yield Difference(
        "gae (returns) with NaN as the value of a token that the environment wrote",
        _text(gae(rewards, values, mask, np.array([0, 3]), 1.0, 1.0)[1]),
        _text(verl.compute_gae_advantage_return(*tensors, 1.0, 1.0)[1][0].numpy()),
        "ours: masked values are selected away; a product with 0 keeps NaN.",
    )
    one = np.array([3.0], np.float32)
    yield Difference(
        "whitening of a single valid token",
        f"{_text(whiten(one, Moments.of(one)))}, and `Moments.enough` is False",
        _tried(lambda: _text(_masked_whiten(verl, torch.tensor([3.0, 5.0]), torch.tensor([1.0, 0.0])))),
        "a choice: ours leaves it and tells the caller, verl stops the run.",
    )
    loss = torch.tensor([[1.0, NAN]])
    ones = torch.tensor([[1.0, 0.0]])
    modes = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
    yield Difference(
        "a loss of 1 at a policy token and NaN at a masked one, aggregated",
        "1 in every aggregation: only the policy's tokens are gathered",
        ", ".join(f"{mode} {float(verl.agg_loss(loss, ones, mode)):g}" for mode in modes),
        "ours: verl selects in one mode and multiplies in the others.",
    )


def _masked_whiten(verl: Any, values: torch.Tensor, mask: torch.Tensor) -> Any:
    return verl.verl_F.masked_whiten(values, mask).numpy()


def _limits(verl: Any) -> Iterator[Difference]:
    lp, ref = torch.tensor([-15.0], requires_grad=True), torch.tensor([0.0])
    ours = k3(lp, ref)
    (our_gradient,) = torch.autograd.grad(ours.sum(), lp)
    theirs = verl.kl_penalty(lp, ref, "k3")
    (their_gradient,) = torch.autograd.grad(theirs.sum(), lp)
    yield Difference(
        "k3 of a token 15 nats less likely than under the reference: value, gradient",
        f"{ours.item():.6g}, {our_gradient.item():.6g}",
        f"{theirs.item():.6g}, {their_gradient.item():.6g}",
        "the formula is ours; verl's clamp at 10 takes the gradient where the policy is furthest away. Our "
        "maximum is a metric.",
    )
    log_ratio = torch.tensor([[12.0, 12.0]], requires_grad=True)
    zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
    value = verl.get_policy_loss_fn("gspo")(zeros, log_ratio, -ones, ones, "seq-mean-token-mean", Config())[0]
    (gradient,) = torch.autograd.grad(value, log_ratio)
    yield Difference(
        "gspo, A = -1, a log-ratio of 12 on both tokens: loss, gradient",
        f"{np.exp(12.0):.6g}, {_text(np.full((1, 2), np.exp(12.0) / 2))} (held at e^80 only)",
        f"{value.item():.6g}, {_text(gradient.numpy())} (held at e^10)",
        "the formula is ours; a bound belongs in settings (a correction, a clip), not inside an exponential.",
    )


def _denominators(verl: Any) -> Iterator[Difference]:
    loss, mask = torch.ones(1, 4), torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    mode = "seq-mean-token-sum-norm"
    yield Difference(
        "seq_mean_token_sum_norm without a length: one response of two tokens, padded to two and to four",
        "refused: aggregation_length has to be given (the default of a run is sampling.max_new_tokens)",
        f"{float(verl.agg_loss(loss[:, :2], mask[:, :2], mode)):g} and {float(verl.agg_loss(loss, mask, mode)):g}",
        "ours: padding is no property of the data.",
    )
    old, mask = torch.zeros(2, 2), torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    geo_mean = verl.get_policy_loss_fn("geo_mean")
    yield Difference(
        "gmpo of one response with A = 1 and ratio 1 beside an empty one",
        "-1: a response without a token is not in the mean",
        f"{float(geo_mean(old, old, torch.ones(2, 2), mask, 'token-mean', Config())[0]):g}",
        "ours; verl's other sequence aggregations leave the empty one out as well.",
    )
    advantages = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    sapo = verl.get_policy_loss_fn("sapo")
    found = [
        float(sapo(old, old, advantages, mask, m, Config())[0]) for m in ("token-mean", "seq-mean-token-sum")
    ]
    yield Difference(
        "sapo with aggregation token_mean and seq_mean_token_sum",
        "as told",
        f"{found[0]:g} and {found[1]:g}: always seq-mean-token-mean, whatever the settings say",
        "ours: the aggregation is a setting of its own (the paper's is seq_mean_token_mean).",
    )
