"""The settings of the algorithm: advantages, loss, corrections, KL, filters, shaping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from roll_ray.algorithms.advantages import ESTIMATORS
from roll_ray.algorithms.losses import LOSSES


class StrictModel(BaseModel):
    """Unknown keys are errors; `settings_io` adds the nearest known name to them."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


def _registered(registry: Mapping[str, object]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in registry:
            raise ValueError(f"should be one of {', '.join(sorted(registry))}")
        return name

    return check


EstimatorName = Annotated[str, AfterValidator(_registered(ESTIMATORS))]
LossName = Annotated[str, AfterValidator(_registered(LOSSES))]


class NormalisationSettings(StrictModel):
    """What a reward is compared with and divided by: (r - mean) / (std + eps)."""

    mean: Literal["none", "group", "batch", "leave_one_out"] | None = Field(
        None, description="What is subtracted; default: what the estimator names."
    )
    std: Literal["none", "group", "batch"] | None = Field(
        None,
        description="Whose standard deviation (unbiased) divides; default: what the estimator names.",
    )
    eps: float = Field(1e-6, gt=0, description="Added to the standard deviation.")


class LossOptionSettings(StrictModel):
    """Constants that one loss has and others do not."""

    cispo_anchor: Literal["proximal", "behaviour"] = Field(
        "proximal", description="cispo: the policy that its ratio is taken against."
    )
    topr_positive_weight: float = Field(1.0, ge=0, description="topr: weight of samples with reward above 0.")
    topr_negative_weight: float = Field(1.0, ge=0, description="topr: weight of the others.")
    kimi_tau: float = Field(0.1, ge=0, description="kimi15: weight of the squared log-ratio (2501.12599).")
    sapo_tau_positive: float = Field(1.0, gt=0, description="sapo: temperature where the advantage is > 0.")
    sapo_tau_negative: float = Field(1.05, gt=0, description="sapo: temperature elsewhere (2511.20347).")
    gmpo_clip: float = Field(0.4, gt=0, description="gmpo: clip of the log-ratio (2507.20673).")
    tis_low: float = Field(0.0, ge=0, description="tis_reinforce: lower bound of the ratio.")
    tis_high: float = Field(1.0, gt=0, description="tis_reinforce: upper bound of the ratio.")
    decoupled_cap: float = Field(
        5.0, gt=0, description="decoupled_ppo: cap of the behaviour weight (2505.24298)."
    )


class CorrectionSettings(StrictModel):
    """What is done about tokens that the trainer finds less or more likely than the engine that sampled them."""

    name: Literal[
        "none",
        "truncated_is",
        "icepop",
        "geometric_band",
        "product_band",
        "outlier_token",
        "rejection",
    ] = Field("none", description="Correction by w = exp(trainer's log-probability - engine's).")
    level: Literal["token", "sequence"] | None = Field(
        None,
        description="truncated_is: w of a token, or the product over its response; rejection: see "
        "docs/algorithms.md. Default: the first that the correction knows.",
    )
    low: float | None = Field(None, ge=0, description="Lower bound of w; default: the correction's own.")
    high: float | None = Field(None, gt=0, description="Upper bound of w; default: the correction's own.")


class FilterSettings(StrictModel):
    """Which samples are not trained on."""

    dynamic_sampling: bool = Field(
        False, description="Replace a prompt whose rewards are all equal by another (DAPO, 2503.14476)."
    )
    difficulty_low: float | None = Field(
        None, description="Replace a prompt whose mean reward is not above this (for example 0.1)."
    )
    difficulty_high: float | None = Field(
        None, description="Replace a prompt whose mean reward is not below this (for example 0.95)."
    )
    max_filtered_batches: int = Field(
        10, gt=0, description="The run ends when a step filters more than so many times its prompts."
    )
    overlong: bool = Field(
        False,
        description="Responses cut at their token limit leave the loss and its denominator (their rewards stay "
        "in the group's statistics).",
    )

    @property
    def by_prompt(self) -> bool:
        """Whether prompts may be filtered, so that others have to take their place."""
        return self.dynamic_sampling or self.difficulty_low is not None or self.difficulty_high is not None


class ShapingSettings(StrictModel):
    """What is added to a valid reward of training. Each part is in the trajectories by itself."""

    overlong_cache_tokens: int = Field(
        0,
        ge=0,
        description="Soft overlong punishment (DAPO, equation 13): from so many tokens before the limit the reward "
        "falls linearly, by 1 at the limit; 0: off.",
    )
    repetition_weight: float = Field(
        0.0, ge=0, description="Weight of the share of repeated n-grams, subtracted from the reward."
    )
    repetition_ngram: int = Field(4, gt=0, description="Tokens of such an n-gram.")
    format_penalty: float = Field(
        0.0, ge=0, description="Subtracted for each turn that the environment calls malformed."
    )


class AlgorithmSettings(StrictModel):
    """Advantages, loss and what goes with them. `reported`: what a recipe's environments say of single turns, `steps`
    (their rewards) and `states`, for the estimators that need it."""

    reported: ClassVar[frozenset[str]] = frozenset()

    adv_estimator: EstimatorName = Field(
        "grpo",
        description="Advantage estimator; docs/algorithms.md lists them. A recipe may register its own.",
    )
    normalisation: NormalisationSettings = Field(
        default_factory=NormalisationSettings, description="Mean and standard deviation of the group family."
    )
    gamma: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Discount of a later policy token's reward; of a later turn's with segment_returns, step_returns "
        "and gigpo.",
    )
    gae_lambda: float = Field(1.0, ge=0, le=1, description="gae: lambda (1506.02438).")
    gigpo_omega: float = Field(
        1.0, ge=0, description="gigpo: weight of the step advantage beside the episode's (2505.10978)."
    )
    whiten_advantages: bool | None = Field(
        None,
        description="Advantages to mean 0 and variance 1 over all policy tokens of the batch; default: as the "
        "estimator does.",
    )
    reward_clip: float | None = Field(
        None, gt=0, description="Rewards are clipped to [-this, this] before the estimator; none: off."
    )
    advantage_clip: float | None = Field(
        None, gt=0, description="Advantages are clipped to [-this, this] at the end; none: off."
    )

    loss: LossName = Field(
        "ppo", description="Policy loss; docs/algorithms.md lists them. A recipe may register its own."
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="The ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(
        0.2, gt=0, description="The ratio is clipped above at 1 + clip_high (0.28: DAPO's clip-higher)."
    )
    dual_clip: float | None = Field(
        None, gt=1, description="Dual clip constant c for negative advantages (1912.09729: 3); none: off."
    )
    loss_options: LossOptionSettings = Field(
        default_factory=LossOptionSettings, description="Constants of single losses."
    )
    aggregation: Literal[
        "token_mean",
        "seq_mean_token_mean",
        "seq_mean_token_sum",
        "seq_mean_token_sum_norm",
        "prompt_mean",
    ] = Field("token_mean", description="How per-token losses become one number.")
    aggregation_length: int | None = Field(
        None,
        gt=0,
        description="seq_mean_token_sum_norm: the fixed length that divides; default: sampling.max_new_tokens.",
    )
    entropy_coefficient: float = Field(
        0.0,
        ge=0,
        description="Weight of the policy's entropy, which the loss rewards token by token; 0: off.",
    )
    kl_coefficient: float = Field(
        0.0, ge=0, description="Weight of the KL against the reference model; 0: no reference is kept."
    )
    kl_estimator: Literal["k1", "k2", "k3", "abs", "straight_through"] = Field(
        "k3", description="Estimator of the KL of a token (Schulman 2020)."
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss", description="Where the KL goes: into the loss, or into each policy token's reward."
    )
    kl_target: float | None = Field(
        None, gt=0, description="Adapt kl_coefficient towards this KL a token (1909.08593); none: fixed."
    )
    kl_horizon: int = Field(10_000, gt=0, description="Samples over which kl_coefficient adapts.")
    proximal: Literal["trainer", "engine"] = Field(
        "trainer",
        description="Where the ratio's old log-probabilities come from: the trainer at the start of the step, "
        "or the engine that sampled.",
    )
    correction: CorrectionSettings = Field(
        default_factory=CorrectionSettings, description="Correction of the engine-trainer mismatch."
    )
    filters: FilterSettings = Field(
        default_factory=FilterSettings, description="Dynamic sampling and filters."
    )
    shaping: ShapingSettings = Field(default_factory=ShapingSettings, description="Parts added to rewards.")

    @property
    def token_stage(self) -> bool:
        """Whether advantages differ within a response, so that the trainer ranks compute them."""
        estimator = ESTIMATORS[self.adv_estimator]
        return self.gamma < 1 or estimator.tokenwise or (self.kl_coefficient > 0 and self.kl_in == "reward")

    @property
    def whitened(self) -> bool:
        own = ESTIMATORS[self.adv_estimator].whiten
        return own if self.whiten_advantages is None else self.whiten_advantages
