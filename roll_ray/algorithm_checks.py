"""What an algorithm needs against what a run supplies, and contradictions between algorithm settings."""

from __future__ import annotations

from collections.abc import Iterator

from roll_ray.algorithm_settings import AlgorithmSettings
from roll_ray.algorithms.advantages import ESTIMATORS
from roll_ray.algorithms.corrections import CORRECTIONS
from roll_ray.algorithms.losses import LOSSES
from roll_ray.algorithms.turn_advantages import BY_TURN
from roll_ray.sample import SamplingDistribution

ALWAYS_SUPPLIED = frozenset({"advantages", "rewards", "old_logprobs"})

_WHERE_FROM = {
    "reference_logprobs": "log-probabilities of a reference model: set kl_coefficient above 0",
    "values": "values of a critic, which no trainer of this version has: use an estimator without one, for "
    "example grpo",
    "greedy_rewards": "the reward of each prompt's greedy response, which no scheduler of this version asks for: "
    "use for example rloo",
    "steps": "rewards of single turns, which this recipe has no environment to report (recipes/agentic_guess.py has): "
    "use for example grpo",
    "states": "the states that episodes visit, which this recipe has no environment to report "
    "(recipes/agentic_guess.py has): use for example grpo",
    "pairs": "pairs of a preferred and a rejected response, which no recipe of this version makes: use for example "
    "ppo",
}


def supplied(settings: AlgorithmSettings) -> frozenset[str]:
    """The fields that a run with these settings brings to its estimator and its loss."""
    reference = {"reference_logprobs"} if settings.kl_coefficient > 0 else set[str]()
    return ALWAYS_SUPPLIED | settings.reported | reference


def algorithm_problems(
    settings: AlgorithmSettings, samples_per_prompt: int, sampling: SamplingDistribution
) -> list[str]:
    """A sentence for each need that is not met and each contradiction; empty when there is none."""
    return [
        *_unmet_needs(settings),
        *_by_turn(settings),
        *_normalisation(settings),
        *_ratios(settings, sampling),
        *_filters(settings, samples_per_prompt),
        *_kl(settings),
        *_no_signal(settings, samples_per_prompt),
        *_passed_over(settings),
    ]


def _unmet_needs(settings: AlgorithmSettings) -> Iterator[str]:
    features = {
        f"adv_estimator={settings.adv_estimator}": ESTIMATORS[settings.adv_estimator].needs,
        f"loss={settings.loss}": LOSSES[settings.loss].needs,
    }
    there = supplied(settings)
    for feature, needs in features.items():
        for need in sorted(needs - there):
            yield f"{feature} needs {_WHERE_FROM.get(need, f'{need!r}, which nothing here supplies')}"


def _by_turn(settings: AlgorithmSettings) -> Iterator[str]:
    """What applies to whole responses or single tokens, and not to turns."""
    if settings.adv_estimator not in BY_TURN:
        return
    if settings.reward_clip is not None:
        yield (
            f"reward_clip={settings.reward_clip} clips rewards of whole responses, and adv_estimator="
            f"{settings.adv_estimator} reads those of turns: unset it, or use advantage_clip"
        )
    if settings.kl_in == "reward" and settings.kl_coefficient > 0:
        yield (
            f"kl_in=reward is a cost of single tokens, and adv_estimator={settings.adv_estimator} reads rewards of "
            "turns: set kl_in=loss"
        )


def _normalisation(settings: AlgorithmSettings) -> Iterator[str]:
    given = settings.normalisation
    if ESTIMATORS[settings.adv_estimator].normalisation is None and (given.mean or given.std):
        name = "normalisation.mean" if given.mean else "normalisation.std"
        yield (
            f"{name} is set and adv_estimator={settings.adv_estimator} has its own way: unset it, or use an "
            "estimator of the group family, for example grpo"
        )


def _ratios(settings: AlgorithmSettings, sampling: SamplingDistribution) -> Iterator[str]:
    corrects = settings.correction.name != "none"
    if sampling.truncated and (LOSSES[settings.loss].uses_ratio or corrects):
        what = f"loss={settings.loss}" if LOSSES[settings.loss].uses_ratio else "the correction"
        yield (
            f"sampling is truncated ({sampling}) and {what} uses ratios that a trainer cannot replay under "
            "truncation: set sampling.top_p=1, sampling.top_k=0, sampling.min_p=0"
        )
    if corrects and settings.proximal == "engine":
        yield (
            f"correction.name={settings.correction.name} compares the trainer with the engine, and with "
            "proximal=engine there is nothing to compare: set proximal=trainer or correction.name=none"
        )
    anchored = settings.loss == "cispo" and settings.loss_options.cispo_anchor == "behaviour"
    if corrects and (LOSSES[settings.loss].corrects or anchored):
        yield (
            f"loss={settings.loss} has a behaviour weight of its own, and correction.name="
            f"{settings.correction.name} would apply it twice: set loss=ppo or correction.name=none"
        )
    if LOSSES[settings.loss].corrects and settings.proximal == "engine":
        yield (
            f"loss={settings.loss} compares the trainer with the engine, and with proximal=engine there is nothing "
            "to compare: set proximal=trainer or loss=ppo"
        )
    if settings.correction.name == "rejection" and settings.aggregation == "prompt_mean":
        yield (
            "correction.name=rejection with aggregation=prompt_mean would change the weight of a rejected response's "
            "siblings: set correction.name=geometric_band, which masks, or another aggregation"
        )
    yield from _correction_bounds(settings)


def _correction_bounds(settings: AlgorithmSettings) -> Iterator[str]:
    given = settings.correction
    if given.name == "none":
        for name in ("level", "low", "high"):
            if getattr(given, name) is not None:
                yield f"correction.{name} is set and correction.name=none: name a correction, or unset it"
        return
    levels = CORRECTIONS[given.name].bounds
    if given.level is not None and given.level not in levels:
        yield f"correction.level={given.level} is nothing that {given.name} knows: use {' or '.join(levels)}"
        return
    first = next(iter(levels))
    low, high = levels[given.level or first]
    low = low if given.low is None else given.low
    high = high if given.high is None else given.high
    if low >= high:
        yield (
            f"correction.name={given.name} keeps ratios from {low} to {high}, which are none: set correction.low "
            "below correction.high"
        )


def _filters(settings: AlgorithmSettings, samples_per_prompt: int) -> Iterator[str]:
    filters = settings.filters
    if filters.dynamic_sampling and samples_per_prompt == 1:
        yield (
            "filters.dynamic_sampling=true with samples_per_prompt=1 would filter every prompt, since one reward "
            "equals itself: set samples_per_prompt above 1, for example 8"
        )
    low, high = filters.difficulty_low, filters.difficulty_high
    if low is not None and high is not None and low >= high:
        yield f"filters.difficulty_low={low} is not below filters.difficulty_high={high}: for example 0.1 and 0.95"


def _no_signal(settings: AlgorithmSettings, samples_per_prompt: int) -> Iterator[str]:
    own = ESTIMATORS[settings.adv_estimator].normalisation
    mean = None if own is None else settings.normalisation.mean or own.mean
    if samples_per_prompt == 1 and mean in ("group", "leave_one_out"):
        yield (
            f"adv_estimator={settings.adv_estimator} compares the responses to one prompt, and with "
            "samples_per_prompt=1 every advantage would be 0: set samples_per_prompt above 1, for example 8"
        )


_LOSSES_THAT_READ = {
    "dual_clip": ("ppo", "decoupled_ppo"),
    "loss_options.cispo_anchor": ("cispo",),
    "loss_options.topr_positive_weight": ("topr",),
    "loss_options.topr_negative_weight": ("topr",),
    "loss_options.kimi_tau": ("kimi15",),
    "loss_options.sapo_tau_positive": ("sapo",),
    "loss_options.sapo_tau_negative": ("sapo",),
    "loss_options.gmpo_clip": ("gmpo",),
    "loss_options.tis_low": ("tis_reinforce",),
    "loss_options.tis_high": ("tis_reinforce",),
    "loss_options.decoupled_cap": ("decoupled_ppo",),
}


def _passed_over(settings: AlgorithmSettings) -> Iterator[str]:
    """Values that differ from the defaults and that nothing chosen reads. A loss of the user's own may read any."""
    ours = LOSSES[settings.loss].function.__module__.startswith("roll_ray.")
    for name, losses in _LOSSES_THAT_READ.items():
        *group, leaf = name.split(".")
        holder = settings.loss_options if group else settings
        value = getattr(holder, leaf)
        default = type(holder).model_fields[leaf].get_default(call_default_factory=True, validated_data={})
        if ours and settings.loss not in losses and value != default:
            yield f"{name}={value} is read by loss={' and '.join(losses)} only, not by {settings.loss}: unset it"
    if settings.gae_lambda != 1 and settings.adv_estimator != "gae":
        yield f"gae_lambda={settings.gae_lambda} is read by adv_estimator=gae only: unset it"
    if settings.gigpo_omega != 1 and settings.adv_estimator != "gigpo":
        yield f"gigpo_omega={settings.gigpo_omega} is read by adv_estimator=gigpo only: unset it"
    if settings.aggregation_length is not None and settings.aggregation != "seq_mean_token_sum_norm":
        yield (
            f"aggregation_length={settings.aggregation_length} is read by aggregation=seq_mean_token_sum_norm only: "
            "unset it"
        )
    if settings.kl_in == "reward" and settings.kl_coefficient == 0:
        yield "kl_in=reward and kl_coefficient=0: set kl_coefficient above 0, for example 0.001, or unset kl_in"


def shaping_problems(settings: AlgorithmSettings, max_new_tokens: int) -> list[str]:
    """Contradictions between shaping and the length of responses."""
    cache = settings.shaping.overlong_cache_tokens
    if cache <= max_new_tokens:
        return []
    return [
        f"shaping.overlong_cache_tokens={cache} is more than sampling.max_new_tokens={max_new_tokens}: set it to at "
        f"most {max_new_tokens}"
    ]


def _kl(settings: AlgorithmSettings) -> Iterator[str]:
    if settings.kl_target is not None and settings.kl_coefficient == 0:
        yield (
            f"kl_target={settings.kl_target} adapts kl_coefficient, which is 0: set kl_coefficient to where it "
            "shall begin, for example 0.001"
        )
    if settings.kl_in == "reward" and settings.kl_estimator == "straight_through":
        yield (
            "kl_estimator=straight_through is about gradients, and kl_in=reward has none: set kl_estimator=k1 or "
            "kl_in=loss"
        )
