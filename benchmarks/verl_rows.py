"""What is compared with verl: each row prepares the same computation on both sides of a random batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.verl_cases import Array, Case
from benchmarks.verl_side import Config
from roll_ray.algorithms.adaptive_kl import AdaptiveKl
from roll_ray.algorithms.advantages import ESTIMATORS, AdvantageSettings, estimate
from roll_ray.algorithms.aggregation import denominator
from roll_ray.algorithms.kl import KL_ESTIMATORS
from roll_ray.algorithms.loss_settings import LossSettings
from roll_ray.algorithms.losses import build_loss
from roll_ray.algorithms.returns import gae, returns_to_go
from roll_ray.algorithms.token_batch import PolicyOutput
from roll_ray.algorithms.value_loss import clipped_value_loss
from roll_ray.algorithms.whitening import Moments, whiten

GAMMA, LAMBDA, BETA = 0.99, 0.95, 0.05
CAP = 2.0
LENGTH = 64
Arrays = list[Array]
Prepared = Callable[[], Arrays]


@dataclass(frozen=True)
class Row:
    """`ours` and `theirs` prepare a case; what they return computes and gives what is compared."""

    name: str
    ours: Callable[[Case], Prepared]
    theirs: Callable[[Case], Prepared]


def our_scalars(name: str) -> Callable[[Case], Prepared]:
    def prepare(case: Case) -> Prepared:
        outcomes, tokens_B = case.outcomes, case.policy_tokens_B

        def run() -> Arrays:
            advantages_B = estimate(name, outcomes, AdvantageSettings()).advantages_B
            if ESTIMATORS[name].whiten:
                advantages_B = whiten(advantages_B, Moments.of(advantages_B, tokens_B))
            return [np.repeat(advantages_B, tokens_B)]

        return run

    return prepare


def verl_scalars(function: Any, **options: Any) -> Callable[[Case], Prepared]:
    def prepare(case: Case) -> Prepared:
        rewards, mask = case.padded(case.score_T), case.padded(case.mask_T)
        index = np.asarray(case.groups_B)
        return lambda: [case.at_policy(function(rewards, mask, index, **options)[0])]

    return prepare


def our_reinforce_plus_plus(case: Case) -> Prepared:
    kl_T = -BETA * (case.old_T - case.ref_T)

    def run() -> Arrays:
        returns_T = returns_to_go(case.rewards_B, case.mask_T, case.offsets, GAMMA, kl_T)
        return [whiten(returns_T, Moments.of(returns_T, case.mask_T))[case.mask_T]]

    return run


def our_gae(case: Case) -> Prepared:
    rewards_T = case.score_T - BETA * (case.old_T - case.ref_T)

    def run() -> Arrays:
        advantages_T, returns_T = gae(rewards_T, case.values_T, case.mask_T, case.offsets, GAMMA, LAMBDA)
        white_T = whiten(advantages_T, Moments.of(advantages_T, case.mask_T))
        return [white_T[case.mask_T], returns_T[case.mask_T]]

    return run


def advantage_rows(verl: Any) -> list[Row]:
    def verl_kl_rewards(case: Case) -> torch.Tensor:
        score, old, ref = (case.padded(x) for x in (case.score_T, case.old_T, case.ref_T))
        return verl.compute_rewards(score, old, ref, BETA)

    def verl_gae(case: Case) -> Prepared:
        rewards, values, mask = verl_kl_rewards(case), case.padded(case.values_T), case.padded(case.mask_T)
        return lambda: [
            case.at_policy(x) for x in verl.compute_gae_advantage_return(rewards, values, mask, GAMMA, LAMBDA)
        ]

    def verl_reinforce_plus_plus(case: Case) -> Prepared:
        rewards, mask = verl_kl_rewards(case), case.padded(case.mask_T)
        function, config = verl.compute_reinforce_plus_plus_outcome_advantage, Config(gamma=GAMMA)
        return lambda: [case.at_policy(function(rewards, mask, config)[0])]

    def verl_remax(case: Case) -> Prepared:
        rewards, mask = case.padded(case.score_T), case.padded(case.mask_T)
        greedy = torch.from_numpy(case.greedy_B)
        return lambda: [case.at_policy(verl.compute_remax_outcome_advantage(rewards, greedy, mask)[0])]

    grpo, grpo_v = verl.compute_grpo_outcome_advantage, verl.compute_grpo_vectorized_outcome_advantage
    baseline = verl.compute_reinforce_plus_plus_baseline_outcome_advantage
    return [
        Row("grpo", our_scalars("grpo"), verl_scalars(grpo)),
        Row("grpo (verl's vectorized)", our_scalars("grpo"), verl_scalars(grpo_v)),
        Row("dr_grpo", our_scalars("dr_grpo"), verl_scalars(grpo, norm_adv_by_std_in_grpo=False)),
        Row("rloo", our_scalars("rloo"), verl_scalars(verl.compute_rloo_outcome_advantage)),
        Row(
            "rloo (verl's vectorized)",
            our_scalars("rloo"),
            verl_scalars(verl.compute_rloo_vectorized_outcome_advantage),
        ),
        Row("opo", our_scalars("opo"), verl_scalars(verl.compute_opo_outcome_advantage)),
        Row("remax", our_scalars("remax"), verl_remax),
        Row(
            "reinforce_plus_plus_baseline",
            our_scalars("reinforce_plus_plus_baseline"),
            verl_scalars(baseline),
        ),
        Row("reinforce_plus_plus, KL in reward", our_reinforce_plus_plus, verl_reinforce_plus_plus),
        Row("gae, whitened, and returns", our_gae, verl_gae),
    ]


def our_loss(settings: LossSettings) -> Callable[[Case], Prepared]:
    def prepare(case: Case) -> Prepared:
        loss = build_loss(settings)
        tensors = loss.tensors(case.batch())
        divisor = denominator(
            settings.aggregation,
            case.policy_tokens_B,
            groups_B=case.groups_B,
            length=settings.aggregation_length,
        )
        lp_T = torch.from_numpy(case.lp_T).requires_grad_()

        def run() -> Arrays:
            lp_T.grad = None
            value = loss(tensors, PolicyOutput(lp_T)).loss / divisor
            value.backward()
            assert lp_T.grad is not None
            return [value.detach().numpy(), lp_T.grad.numpy()[case.mask_T] * divisor]

        return run

    return prepare


def verl_loss(function: Callable[..., Any], settings: LossSettings) -> Callable[[Case], Prepared]:
    """`function(case, lp, old, advantages, mask)` gives the loss."""

    def prepare(case: Case) -> Prepared:
        old, advantages, mask = (case.padded(x) for x in (case.old_T, case.advantages_T, case.mask_T))
        lp = case.padded(case.lp_T).requires_grad_()
        divisor = denominator(
            settings.aggregation,
            case.policy_tokens_B,
            groups_B=case.groups_B,
            length=settings.aggregation_length,
        )

        def run() -> Arrays:
            lp.grad = None
            value = function(case, lp, old, advantages, mask)
            value.backward()
            assert lp.grad is not None
            return [value.detach().numpy(), case.at_policy(lp.grad) * divisor]

        return run

    return prepare


def loss_rows(verl: Any) -> list[Row]:
    def row(
        label: str, verl_name: str, ours: dict[str, Any], theirs: dict[str, Any], weighted: bool = False
    ) -> Row:
        settings = LossSettings(**ours)
        policy_loss, config = verl.get_policy_loss_fn(verl_name), Config(**theirs)
        mode = settings.aggregation.replace("_", "-")

        def function(case: Case, lp: Any, old: Any, advantages: Any, mask: Any) -> Any:
            weights = (old - case.padded(case.beh_T)).exp().clamp(max=CAP) if weighted else None
            return policy_loss(old, lp, advantages, mask, mode, config, weights)[0]

        return Row(label, our_loss(settings), verl_loss(function, settings))

    clips = {"clip_low": 0.2, "clip_high": 0.28}
    verl_clips = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
    ppo, off = {**clips, "dual_clip": 3.0}, {**verl_clips, "clip_ratio_c": 1e9}
    fixed = {"aggregation": "seq_mean_token_sum_norm", "aggregation_length": LENGTH}
    gspo = {"name": "gspo", "clip_low": 0.05, "clip_high": 0.08}
    mean_of_means = {"aggregation": "seq_mean_token_mean"}
    return [
        row("ppo", "vanilla", clips, off),
        row("ppo, dual clip 3", "vanilla", ppo, verl_clips),
        *(
            row(f"ppo, {mode}", "vanilla", {**ppo, "aggregation": mode}, verl_clips)
            for mode in ("seq_mean_token_mean", "seq_mean_token_sum")
        ),
        row(
            "ppo, seq_mean_token_sum_norm",
            "vanilla",
            {**ppo, **fixed},
            {**verl_clips, "global_batch_info": {"loss_scale_factor": LENGTH}},
        ),
        row(
            "ppo + truncated_is", "vanilla", {**ppo, "correction": "truncated_is"}, verl_clips, weighted=True
        ),
        row(
            "decoupled_ppo",
            "vanilla",
            {**ppo, "name": "decoupled_ppo", "decoupled_cap": CAP},
            verl_clips,
            True,
        ),
        row("gspo", "gspo", {**gspo, **mean_of_means}, {"clip_ratio_low": 0.05, "clip_ratio_high": 0.08}),
        row("cispo", "cispo", {"name": "cispo", **clips}, verl_clips),
        row("sapo", "sapo", {"name": "sapo", **mean_of_means}, {}),
        row(
            "gmpo",
            "geo_mean",
            {"name": "gmpo", **mean_of_means},
            {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4},
        ),
        row("reinforce", "gpg", {"name": "reinforce"}, {}),
        row("kimi15", "dro", {"name": "kimi15"}, {"policy_loss": SimpleNamespace(dro_beta=0.1)}),
    ]


def token_rows(verl: Any) -> list[Row]:
    """Per-token functions: KL estimators and the value loss, summed, in value and gradient."""

    def graded(function: Callable[[torch.Tensor], torch.Tensor], x_T: Array) -> Prepared:
        def run() -> Arrays:
            x = torch.from_numpy(x_T).requires_grad_()
            y = function(x)
            y.sum().backward()
            assert x.grad is not None
            return [y.detach().numpy(), x.grad.numpy()]

        return run

    def kl(name: str, verl_name: str) -> Row:
        def prepared(case: Case, function: Any, *words: str) -> Prepared:
            ref = torch.from_numpy(case.ref_T)
            return graded(lambda lp: function(lp, ref, *words), case.lp_T)

        return Row(
            f"KL {name}",
            lambda case: prepared(case, KL_ESTIMATORS[name]),
            lambda case: prepared(case, verl.kl_penalty, verl_name),
        )

    def our_value(case: Case) -> Prepared:
        old, returns = torch.from_numpy(case.old_T), torch.from_numpy(case.ref_T)
        return graded(lambda v: clipped_value_loss(v, old, returns, 0.2).sum(), case.lp_T)

    def verl_value(case: Case) -> Prepared:
        old, returns = torch.from_numpy(case.old_T), torch.from_numpy(case.ref_T)
        ones = torch.ones_like(old)
        return graded(lambda v: verl.compute_value_loss(v, returns, old, ones, 0.2)[0] * len(v), case.lp_T)

    names = {"k1": "k1", "k2": "k2", "k3": "k3", "abs": "abs", "straight_through": "k3+"}
    return [*(kl(*pair) for pair in names.items()), Row("value loss", our_value, verl_value)]


def adaptive_row(verl: Any) -> Row:
    def updates(update: Callable[[float, int], None], value: Callable[[], float], case: Case) -> Arrays:
        for kl in case.values_T[:20]:
            update(abs(float(kl)), 64)
        return [np.asarray(value())]

    def ours(case: Case) -> Prepared:
        kl = AdaptiveKl(0.1, 0.7, 1000)
        return lambda: updates(kl.update, lambda: kl.coefficient, case)  # type: ignore[arg-type]

    def theirs(case: Case) -> Prepared:
        kl = verl.AdaptiveKLController(0.1, 0.7, 1000)
        return lambda: updates(kl.update, lambda: kl.value, case)

    return Row("adaptive KL, 20 steps", ours, theirs)


def all_rows(verl: Any) -> list[Row]:
    return [*advantage_rows(verl), *loss_rows(verl), *token_rows(verl), adaptive_row(verl)]
