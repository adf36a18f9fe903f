"""What a policy loss is: a function of per-token terms, registered under a name. Loads no torch.

A loss of one's own, in a file of one's own:

    from roll_ray.algorithms.losses import TokenLoss, policy_loss

    @policy_loss("mine", uses_ratio=False)
    def mine(terms, settings):
        return TokenLoss(-terms.advantages_T * terms.logprobs_T)

Masking, correction, the KL term, aggregation and the common metrics are added around it by `build_loss`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from roll_ray.algorithms.loss_settings import LossSettings

if TYPE_CHECKING:
    import torch

    from roll_ray.algorithms.segments import Segments


@dataclass(frozen=True)
class Terms:
    """Per-token inputs of a policy loss, shape [T] each, over the tokens to train on and no others: policy
    tokens of samples that were not left out, one sample after another.

    `logprobs_T`: of the policy, with gradient. `old_logprobs_T`: of the proximal policy, `behaviour_logprobs_T`:
    of the engine that sampled. `advantages_T`, `rewards_T` (of the token's sample): 0 for a loss that needs
    none; samples with an invalid reward are left out of a loss that needs rewards.
    """

    logprobs_T: torch.Tensor
    old_logprobs_T: torch.Tensor
    behaviour_logprobs_T: torch.Tensor
    advantages_T: torch.Tensor
    rewards_T: torch.Tensor
    segments: Segments

    @property
    def mask_T(self) -> torch.Tensor:
        """True everywhere: what is masked is not here."""
        return self.logprobs_T.detach().isnan().fill_(True)

    @cached_property
    def log_ratio_T(self) -> torch.Tensor:
        """log rho = log p - log p_old, with gradient."""
        return self.logprobs_T - self.old_logprobs_T

    @cached_property
    def ratio_T(self) -> torch.Tensor:
        """rho, with gradient; held at e^80, which float32 can still multiply, and which shows in `ratio_max`."""
        return bounded_exp(self.log_ratio_T)

    @cached_property
    def log_weight_T(self) -> torch.Tensor:
        """log w = log p_old - log p_behaviour, without gradient."""
        return (self.old_logprobs_T - self.behaviour_logprobs_T).detach()

    def sequence_sum(self, x_T: torch.Tensor) -> torch.Tensor:
        """The sum of x over the token's own sample, [T], with gradient."""
        return self.segments.sum_T(x_T)

    def sequence_mean(self, x_T: torch.Tensor) -> torch.Tensor:
        """The mean of x over the token's own sample, [T], with gradient."""
        return self.segments.mean_T(x_T)


def bounded_exp(x_T: torch.Tensor) -> torch.Tensor:
    """min(exp(x), e^80); the gradient beyond is that at the bound."""
    from roll_ray.algorithms.bounded_exp import BoundedExp

    return BoundedExp.apply(x_T)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss per token [T]; of `means` (per token [T], bool or float) the mean and of `maxima` the largest become
    metrics."""

    loss_T: torch.Tensor
    means: Mapping[str, torch.Tensor] = field(default_factory=dict)
    maxima: Mapping[str, torch.Tensor] = field(default_factory=dict)


TokenLossFunction = Callable[[Terms, LossSettings], TokenLoss]


@dataclass(frozen=True, slots=True)
class RegisteredLoss:
    """`needs`: fields that a batch must carry. `uses_ratio`: compares log-probabilities of two policies, and so
    is refused where sampling was truncated. `corrects`: has its own engine-trainer correction."""

    name: str
    function: TokenLossFunction
    needs: frozenset[str]
    uses_ratio: bool
    corrects: bool = False


LOSSES: dict[str, RegisteredLoss] = {}


def policy_loss(
    name: str, *, needs: Iterable[str] = ("advantages",), uses_ratio: bool = True, corrects: bool = False
) -> Callable[[TokenLossFunction], TokenLossFunction]:
    """Register a per-token loss under the name that settings use."""

    def register(function: TokenLossFunction) -> TokenLossFunction:
        if name in LOSSES:
            raise ValueError(f"loss {name!r} is registered twice")
        LOSSES[name] = RegisteredLoss(name, function, frozenset(needs), uses_ratio, corrects)
        return function

    return register
