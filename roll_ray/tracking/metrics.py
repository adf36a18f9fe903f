"""Each metric is declared once: name, unit, how parts combine, what it means. Recording any other is an error.

A family is declared once for all its members: `reward_mean/maths` is the member `maths` of the family `reward_mean`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

Reduction = Literal["mean", "sum", "max", "min", "last"]
Section = Literal["learning", "policy update", "rollout", "engine and trainer", "speed"]

SECTIONS: tuple[Section, ...] = ("learning", "policy update", "rollout", "engine and trainer", "speed")

Value = float | int | None
"""None: not measured in this step."""


@dataclass(frozen=True, slots=True)
class Metric:
    """`reduction` is how the step's value follows from its samples, tokens or seconds."""

    name: str
    unit: str
    reduction: Reduction
    meaning: str
    section: Section


class MetricsSink(Protocol):
    """Something that takes the numbers of a finished step."""

    def record(self, step: int, metrics: Mapping[str, Value]) -> None: ...


class UndeclaredMetricError(LookupError):
    """A number without a declaration: nobody could say what it means."""


DECLARED: dict[str, Metric] = {}


def declare(name: str, unit: str, reduction: Reduction, meaning: str, section: Section) -> Metric:
    """Declare a metric. The same declaration may be made again (a module is imported in many processes)."""
    metric = Metric(name, unit, reduction, meaning, section)
    if DECLARED.setdefault(name, metric) != metric:
        raise ValueError(f"metric {name} is declared twice, as {DECLARED[name]} and {metric}")
    return metric


FAMILIES: dict[str, Metric] = {}


def declare_family(name: str, unit: str, reduction: Reduction, meaning: str, section: Section) -> None:
    """Declare all `name/member` at once; `meaning` has a `{}` where the member's name belongs."""
    FAMILIES[name] = Metric(name, unit, reduction, meaning, section)


def metric_of(name: str) -> Metric:
    """What is declared of a metric or of a member of a family. Raises `UndeclaredMetricError`."""
    if name in DECLARED:
        return DECLARED[name]
    check_declared([name])
    family, _, member = name.partition("/")
    common = FAMILIES[family]
    return replace(common, name=name, meaning=common.meaning.format(member))


def in_order(names: Collection[str]) -> list[str]:
    """Declared metrics in the order of their declaration, each followed by its members that are among `names`."""
    members = sorted(name for name in names if name not in DECLARED)
    heads = (*DECLARED, *(family for family in FAMILIES if family not in DECLARED))
    ordered = [
        name for head in heads for name in (head, *(m for m in members if m.partition("/")[0] == head))
    ]
    return [name for name in ordered if name in names]


def check_declared(names: Iterable[str]) -> None:
    """Raise `UndeclaredMetricError` for every name that is not declared, all at once."""
    unknown = sorted(
        name
        for name in set(names) - set(DECLARED)
        if name.partition("/")[0] not in FAMILIES or not name.partition("/")[2]
    )
    if unknown:
        raise UndeclaredMetricError(
            f"undeclared metrics {', '.join(unknown)}: declare each with roll_ray.tracking.metrics.declare"
        )


def _declare_all(section: Section, rows: Iterable[tuple[str, str, Reduction, str]]) -> None:
    for name, unit, reduction, meaning in rows:
        declare(name, unit, reduction, meaning, section)


REQUIRED = (
    "reward_mean",
    "heldout_accuracy",
    "tokens_per_s",
    "logprob_difference_max",
    "weight_version",
)
"""In every line of metrics.jsonl, null where not measured."""

_MEAN_AND_MAX: tuple[tuple[str, Reduction, str], ...] = (("", "mean", "Mean"), ("_max", "max", "Largest"))

_declare_all(
    "learning",
    [
        ("reward_mean", "reward", "mean", "Reward of the batch's samples, invalid ones left out."),
        ("reward_std", "reward", "mean", "Standard deviation of the valid rewards of the batch."),
        (
            "heldout_accuracy",
            "share",
            "mean",
            "Mean reward on held-out prompts, at the weight version of the step.",
        ),
        ("heldout_invalid_share", "share", "mean", "Held-out answers whose reward is invalid."),
        ("heldout_tokens_mean", "tokens", "mean", "Length of held-out answers."),
        (
            "no_signal_share",
            "share",
            "mean",
            "Prompts whose samples all have one reward: no advantage, no gradient.",
        ),
        ("advantage_mean", "", "mean", "Advantage over the batch's samples."),
        ("advantage_std", "", "mean", "Standard deviation of the advantages."),
        ("advantage_abs_max", "", "max", "Largest absolute advantage."),
    ],
)
_declare_all(
    "policy update",
    [
        ("loss", "", "mean", "Loss of the optimizer step: the summed loss over its denominator."),
        ("loss_sum", "", "sum", "Sum of weighted per-token losses, before the denominator."),
        ("denominator", "", "last", "What the loss sum was divided by."),
        ("grad_norm", "", "last", "Gradient norm before clipping."),
        ("learning_rate", "", "last", "Learning rate of the optimizer step."),
        ("step_skipped", "", "sum", "Optimizer steps skipped because no valid token was left."),
        ("optimizer_steps", "", "sum", "Optimizer steps taken."),
        ("entropy", "nats", "mean", "Entropy of the policy over its tokens."),
        *(
            (
                f"kl_{name}{end}",
                "nats",
                reduction,
                f"{what} {name} estimate of the KL to the reference, a token.",
            )
            for name in ("k1", "k2", "abs", "straight_through")
            for end, reduction, what in _MEAN_AND_MAX
        ),
        ("kl_k3", "nats", "mean", "k3 estimate of the KL to the reference, a token."),
        ("kl_k3_max", "nats", "max", "Largest k3 value of a token (it is not clamped)."),
        ("ratio_mean", "", "mean", "Importance ratio of new to old policy, raw."),
        ("ratio_max", "", "max", "Largest importance ratio, raw."),
        ("ratio_clipped_mean", "", "mean", "Importance ratio after clipping."),
        ("ratio_clipped_max", "", "max", "Largest importance ratio after clipping."),
        (
            "clip_fraction",
            "share",
            "mean",
            "Policy tokens whose ratio is clipped with effect on the gradient.",
        ),
        ("clip_fraction_low", "share", "mean", "Of those, tokens that the lower bound holds."),
        ("clip_fraction_high", "share", "mean", "Of those, tokens that the upper bound holds."),
        ("topr_positive_fraction", "share", "mean", "topr: policy tokens of samples with a reward above 0."),
        ("sapo_gate_mean", "", "mean", "sapo: the soft gate over the policy tokens."),
        (
            "correction_weight_mean",
            "",
            "mean",
            "Weight that the correction gives a token; masked ones count 0.",
        ),
        ("corrected_fraction", "share", "mean", "Policy tokens whose loss the correction changed."),
        ("rejected_sequences", "samples", "sum", "Responses that the correction rejected."),
        ("rejected_denominator", "", "sum", "What they would have added to the denominator."),
        ("kl", "nats", "mean", "KL to the reference, a token, by the estimator chosen."),
        ("kl_coefficient", "", "last", "Weight of the KL in this step."),
        ("dual_clip_fraction", "share", "mean", "Policy tokens held by the dual clip."),
        (
            "logprob_mean",
            "nats",
            "mean",
            "Log-probability of the policy tokens under the weights of the step.",
        ),
        ("policy_tokens", "tokens", "sum", "Tokens trained on."),
    ],
)
_declare_all(
    "rollout",
    [
        ("response_tokens_mean", "tokens", "mean", "Policy tokens of a response."),
        ("response_tokens_max", "tokens", "max", "Policy tokens of the longest response."),
        ("truncated_share", "share", "mean", "Responses cut at their token limit."),
        ("invalid_share", "share", "mean", "Responses scored for the step whose reward is invalid."),
        ("retries", "attempts", "sum", "Attempts of the step that were launched again."),
        (
            "wasted_tokens",
            "tokens",
            "sum",
            "Tokens of aborted, invalid, filtered and lost responses, as heard of since the step before.",
        ),
        ("deferred_prompts", "prompts", "last", "Prompts that wait for a long round (tail batching)."),
        (
            "kept_length_ratio",
            "",
            "last",
            "Mean length of trained over that of all launched responses so far; below 1, short ones are preferred.",
        ),
        (
            "staleness_max",
            "versions",
            "max",
            "Most weight versions between sampling a token and training on it.",
        ),
    ],
)
_declare_all(
    "engine and trainer",
    [
        (
            "logprob_difference_max",
            "nats",
            "max",
            "Largest difference of a token's log-probability, engine to trainer.",
        ),
        ("logprob_difference_mean", "nats", "mean", "Mean of that difference over the policy tokens."),
        ("weight_version", "", "last", "Weight version after the step."),
    ],
)
_declare_all(
    "speed",
    [
        ("tokens_per_s", "tokens/s", "last", "Policy tokens of the batch over the whole step's wall time."),
        ("samples_per_s", "samples/s", "last", "Samples of the batch over the whole step's wall time."),
        ("step_s", "s", "sum", "Wall time of the step, evaluation and checkpoint left out."),
        (
            "rollout_s",
            "s",
            "sum",
            "Waiting for samples: generation, and rewards where they are the last to end.",
        ),
        ("reward_s", "s", "mean", "Reward time of a sample."),
        ("train_s", "s", "sum", "Advantages, forward, backward, optimizer."),
        ("update_s", "s", "sum", "Weights from the trainer into the engines, checked."),
        ("control_s", "s", "sum", "The rest of the step: what the controller itself takes."),
        ("evaluation_s", "s", "sum", "Held-out evaluation."),
        ("checkpoint_s", "s", "sum", "Writing the checkpoint."),
    ],
)

BY_DOMAIN: tuple[tuple[str, str, Section, str], ...] = (
    (
        "reward_mean",
        "reward",
        "learning",
        "Reward of the batch's samples of domain {}, invalid ones left out.",
    ),
    ("heldout_accuracy", "share", "learning", "Mean reward on held-out prompts of domain {}."),
    ("heldout_invalid_share", "share", "learning", "Held-out answers of domain {} whose reward is invalid."),
    ("heldout_tokens_mean", "tokens", "learning", "Length of held-out answers of domain {}."),
    ("no_signal_share", "share", "learning", "Prompts of domain {} whose samples all have one reward."),
    ("response_tokens_mean", "tokens", "rollout", "Policy tokens of a response of domain {}."),
    ("truncated_share", "share", "rollout", "Responses of domain {} cut at their token limit."),
    (
        "invalid_share",
        "share",
        "rollout",
        "Responses of domain {} scored for the step whose reward is invalid.",
    ),
    ("batch_share", "share", "rollout", "Samples of the batch that are of domain {}."),
    ("reward_s", "s", "speed", "Reward time of a sample of domain {}."),
)
"""Of runs that mix domains: the metric of each domain beside that of the whole."""

for _name, _unit, _section, _meaning in BY_DOMAIN:
    declare_family(_name, _unit, "mean", _meaning, _section)
declare_family(
    "reward_part",
    "reward",
    "mean",
    "Part {} of the reward, over the samples whose reward has it.",
    "learning",
)
