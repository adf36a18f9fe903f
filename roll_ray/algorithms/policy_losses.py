"""The policy losses of the field, each a function of per-token terms. They use methods of tensors only.

Notation: lp current, old proximal, beh behaviour log-probability; rho = exp(lp - old); w = exp(old - beh); A
advantage; sg stops the gradient; lo, hi the clip of settings. Shapes [T]; losses are minimised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roll_ray.algorithms.loss_registry import Terms, TokenLoss, bounded_exp, policy_loss
from roll_ray.algorithms.loss_settings import LossSettings

if TYPE_CHECKING:
    import torch


def clipped_loss(terms: Terms, ratio_T: torch.Tensor, settings: LossSettings) -> TokenLoss:
    """-min(ratio A, clip(ratio, 1 - lo, 1 + hi) A), and how often which side of the clip took the gradient."""
    A_T, values_T = terms.advantages_T, ratio_T.detach()
    clipped_T = values_T.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    # Signs and products instead of masks: on a CPU a comparison or a `where` costs five times a float operation.
    side_T = (values_T - clipped_T).sign()  # 1 above the clip, -1 below
    held_T = (side_T * A_T).sign().relu()  # 1 where the clipped value is the smaller one
    high_T = (held_T * side_T).relu()
    effective_T = (clipped_T * held_T).addcmul(ratio_T, 1 - held_T)
    return TokenLoss(
        -effective_T * A_T,
        means={
            "clip_fraction": held_T,
            "clip_fraction_low": held_T - high_T,
            "clip_fraction_high": high_T,
            "ratio_clipped_mean": clipped_T,
        },
        maxima={"ratio_clipped_max": clipped_T},
    )


@policy_loss("ppo")
def ppo(terms: Terms, settings: LossSettings) -> TokenLoss:
    """-min(rho A, clip(rho, 1 - lo, 1 + hi) A) (PPO 1707.06347, equation 7; clip-higher: DAPO 2503.14476).

    With `dual_clip` = c, the loss is at most -c A where A < 0 (1912.09729, equation 5; c = 3 there).
    """
    clipped = clipped_loss(terms, terms.ratio_T, settings)
    if settings.dual_clip is None:
        return clipped
    bound_T = terms.advantages_T * -settings.dual_clip
    held_T = (clipped.loss_T.detach() - bound_T).relu().sign() * (-terms.advantages_T).sign().relu()
    loss_T = (bound_T * held_T).addcmul(clipped.loss_T, 1 - held_T)
    return TokenLoss(loss_T, {**clipped.means, "dual_clip_fraction": held_T}, clipped.maxima)


@policy_loss("gspo")
def gspo(terms: Terms, settings: LossSettings) -> TokenLoss:
    """One ratio a response, s = exp(mean over its tokens of lp - old), then clipped as in ppo (2507.18071).

    Token form (equations 13 and 14): sg(s) exp(lp - sg(lp)), equal to equation 5 in value and gradient where A
    is one number a response. The clip is meant for means: about 3e-4 and 4e-4.
    """
    lp_T = terms.logprobs_T
    log_s_T = terms.sequence_mean(terms.log_ratio_T.detach())
    return clipped_loss(terms, bounded_exp(log_s_T + (lp_T - lp_T.detach())), settings)


@policy_loss("cispo")
def cispo(terms: Terms, settings: LossSettings) -> TokenLoss:
    """-sg(clip(rho, 1 - lo, 1 + hi)) A lp (MiniMax-M1 2506.13585, equation 4): every token keeps a gradient.

    `cispo_anchor` "behaviour": rho = exp(lp - beh) instead.
    """
    ratio_T = terms.ratio_T.detach()
    if settings.cispo_anchor == "behaviour":
        ratio_T = bounded_exp((terms.logprobs_T - terms.behaviour_logprobs_T).detach())
    return _weighted(terms, ratio_T, 1 - settings.clip_low, 1 + settings.clip_high)


@policy_loss("tis_reinforce")
def tis_reinforce(terms: Terms, settings: LossSettings) -> TokenLoss:
    """-sg(clip(rho, tis_low, tis_high)) A lp: REINFORCE with a truncated importance ratio (0 and 1)."""
    return _weighted(terms, terms.ratio_T.detach(), settings.tis_low, settings.tis_high)


@policy_loss("topr", needs=("advantages", "rewards"))
def topr(terms: Terms, settings: LossSettings) -> TokenLoss:
    """r > 0: -w_pos A lp; r <= 0: -w_neg sg(clip(rho, 0, 1)) A lp (2503.14286, tapered ratios of negatives).

    The sign is that of the reward, not of the advantage. Weights other than 1: weighted TOPR.
    """
    positive_T = terms.rewards_T.sign().relu()
    clipped_T = terms.ratio_T.detach().clamp(max=1.0)
    tapered_T = clipped_T * (1 - positive_T) * settings.topr_negative_weight
    factor_T = positive_T * settings.topr_positive_weight + tapered_T
    return TokenLoss(
        -factor_T * terms.advantages_T * terms.logprobs_T,
        means={"topr_positive_fraction": positive_T, "ratio_clipped_mean": clipped_T},
        maxima={"ratio_clipped_max": clipped_T},
    )


@policy_loss("decoupled_ppo", corrects=True)
def decoupled_ppo(terms: Terms, settings: LossSettings) -> TokenLoss:
    """sg(min(w, cap)) x ppo with rho against the proximal policy (2110.00641, equation 5; AReaL 2505.24298)."""
    inner = ppo(terms, settings)
    raw_T = bounded_exp(terms.log_weight_T)
    weight_T = raw_T.clamp(max=settings.decoupled_cap)
    means = {"correction_weight_mean": weight_T, "corrected_fraction": (raw_T - weight_T).sign()}
    return TokenLoss(weight_T * inner.loss_T, {**inner.means, **means}, inner.maxima)


@policy_loss("reinforce", uses_ratio=False)
def reinforce(terms: Terms, settings: LossSettings) -> TokenLoss:
    """-A lp (Williams 1992)."""
    return TokenLoss(-terms.advantages_T * terms.logprobs_T)


@policy_loss("kimi15")
def kimi15(terms: Terms, settings: LossSettings) -> TokenLoss:
    """-A lp + tau / 2 (lp - old)^2 (Kimi k1.5 2501.12599, equation 3; tau 0.1)."""
    d_T = terms.log_ratio_T
    return TokenLoss(
        -terms.advantages_T * terms.logprobs_T + (0.5 * settings.kimi_tau) * d_T * d_T,
    )


@policy_loss("sapo")
def sapo(terms: Terms, settings: LossSettings) -> TokenLoss:
    """-f(rho) A with f(x) = (4 / tau) sigmoid(tau (x - 1)), a soft gate (2511.20347); tau 1.0 for A > 0, 1.05 else."""
    A_T = terms.advantages_T
    positive_T = A_T.sign().relu()
    tau_T = (
        positive_T * (settings.sapo_tau_positive - settings.sapo_tau_negative) + settings.sapo_tau_negative
    )
    gate_T = (tau_T * (terms.ratio_T - 1)).sigmoid()
    return TokenLoss(gate_T * (A_T * -4 / tau_T), means={"sapo_gate_mean": gate_T})


@policy_loss("gmpo")
def gmpo(terms: Terms, settings: LossSettings) -> TokenLoss:
    """-A exp(mean over the response's tokens of the clipped lp - old) (2507.20673, equations 4 and 5).

    A token's log-ratio is clipped on the pessimistic side: at +clip where A > 0, at -clip where A < 0 (0.4).
    """
    A_T, log_ratio_T = terms.advantages_T, terms.log_ratio_T
    towards_T = A_T.sign() * log_ratio_T.detach()
    held_T = (towards_T - settings.gmpo_clip).relu().sign()
    bound_T = A_T.sign() * settings.gmpo_clip
    mean_T = bounded_exp(terms.sequence_mean((bound_T * held_T).addcmul(log_ratio_T, 1 - held_T)))
    return TokenLoss(
        -A_T * mean_T,
        means={"clip_fraction": held_T, "ratio_clipped_mean": mean_T},
        maxima={"ratio_clipped_max": mean_T},
    )


@policy_loss("sft", needs=(), uses_ratio=False)
def sft(terms: Terms, settings: LossSettings) -> TokenLoss:
    """Cross-entropy of the policy tokens: -lp. No advantage, no ratio."""
    return TokenLoss(-terms.logprobs_T)


def _weighted(terms: Terms, ratio_T: torch.Tensor, lowest: float, highest: float) -> TokenLoss:
    """-clip(ratio) A lp, the ratio without gradient."""
    clipped_T = ratio_T.clamp(lowest, highest)
    side_T = (ratio_T - clipped_T).sign()
    high_T = side_T.relu()
    return TokenLoss(
        -clipped_T * terms.advantages_T * terms.logprobs_T,
        means={
            "clip_fraction": side_T.abs(),
            "clip_fraction_low": high_T - side_T,
            "clip_fraction_high": high_T,
            "ratio_clipped_mean": clipped_T,
        },
        maxima={"ratio_clipped_max": clipped_T},
    )
