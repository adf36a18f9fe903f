"""Each need that a run cannot supply and each contradiction has its sentence, with what to set instead."""

import pytest

from roll_ray.algorithm_settings import AlgorithmSettings
from roll_ray.algorithms.advantages import ESTIMATORS, estimator
from roll_ray.algorithms.losses import LOSSES, policy_loss
from roll_ray.errors import SettingsError
from roll_ray.settings import RunSettings
from roll_ray.settings_io import load_settings, read_settings


class Settings(RunSettings):
    model: str = "m"


def problems(*words):
    return load_settings(Settings, words).problems()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("adv_estimator=gae", "values of a critic"),
        ("adv_estimator=remax", "greedy response"),
        ("adv_estimator=step_returns", "rewards of single turns"),
        (
            "adv_estimator=opo normalisation.mean=batch",
            "normalisation.mean is set and adv_estimator=opo has its",
        ),
        ("adv_estimator=maxrl normalisation.std=group", "normalisation.std is set"),
        ("sampling.top_p=0.9", "sampling is truncated"),
        ("sampling.top_k=20 loss=reinforce correction.name=icepop", "and the correction uses ratios"),
        ("proximal=engine correction.name=truncated_is", "there is nothing to compare"),
        ("loss=decoupled_ppo correction.name=icepop", "would apply it twice"),
        (
            "loss=cispo loss_options.cispo_anchor=behaviour correction.name=truncated_is",
            "would apply it twice",
        ),
        ("loss=decoupled_ppo proximal=engine", "loss=decoupled_ppo compares the trainer with the engine"),
        ("correction.name=rejection aggregation=prompt_mean", "weight of a rejected response's siblings"),
        ("correction.high=3", "correction.high is set and correction.name=none"),
        ("correction.low=0.5", "correction.low is set and correction.name=none"),
        ("correction.level=sequence", "correction.level is set and correction.name=none"),
        ("correction.name=icepop correction.level=sequence", "is nothing that icepop knows: use token"),
        ("correction.name=icepop correction.low=6", "keeps ratios from 6.0 to 5.0, which are none"),
        ("correction.name=rejection correction.level=sequence correction.high=0.5", "from 0.8 to 0.5"),
        (
            "adv_estimator=reinforce filters.dynamic_sampling=true samples_per_prompt=1",
            "would filter every prompt",
        ),
        ("filters.difficulty_low=0.9 filters.difficulty_high=0.2", "is not below filters.difficulty_high"),
        ("shaping.overlong_cache_tokens=65", "is more than sampling.max_new_tokens=64"),
        ("samples_per_prompt=1", "every advantage would be 0"),
        ("samples_per_prompt=1 adv_estimator=rloo", "every advantage would be 0"),
        ("loss=gspo dual_clip=3", "dual_clip=3.0 is read by loss=ppo and decoupled_ppo only, not by gspo"),
        ("loss_options.kimi_tau=0.2", "is read by loss=kimi15 only"),
        ("gae_lambda=0.9", "is read by adv_estimator=gae only"),
        ("gigpo_omega=0.5", "is read by adv_estimator=gigpo only"),
        ("aggregation_length=9", "is read by aggregation=seq_mean_token_sum_norm only"),
        ("kl_in=reward", "set kl_coefficient above 0"),
        ("kl_target=0.1", "adapts kl_coefficient, which is 0"),
        ("kl_in=reward kl_coefficient=0.1 kl_estimator=straight_through", "is about gradients"),
    ],
)
def test_what_cannot_run_together_is_said_in_one_sentence(words, sentence):
    (found,) = problems(*words.split())
    assert sentence in found
    assert any(word in found for word in ("set ", "use ", "unset", "for example")), "and what to do about it"


def test_gigpo_lacks_two_things_and_both_are_said():
    states, steps = problems("adv_estimator=gigpo")
    assert "states that episodes visit" in states
    assert "rewards of single turns" in steps


@pytest.mark.parametrize(
    "words",
    [
        "",
        "sampling.top_p=0.9 loss=reinforce",
        "sampling.top_p=0.9 loss=sft",
        "loss=cispo loss_options.cispo_anchor=behaviour",
        "loss=cispo correction.name=truncated_is",
        "correction.name=truncated_is correction.level=sequence",
        "correction.name=rejection correction.level=sequence",
        "filters.dynamic_sampling=true samples_per_prompt=2",
        "shaping.overlong_cache_tokens=64",
        "kl_coefficient=0.1 kl_target=0.1",
        "kl_coefficient=0.1 kl_estimator=straight_through",
        "normalisation.mean=leave_one_out normalisation.std=batch",
        "adv_estimator=opo normalisation.eps=0.1",
    ],
)
def test_what_can_run_is_not_refused(words):
    assert problems(*words.split()) == []


@pytest.fixture
def wants():
    """Registers an estimator and a loss of a user, which need these fields."""
    made = []

    def register(*needs):
        estimator("of_mine", needs=needs)(lambda outcomes, settings: outcomes.rewards_B)
        policy_loss("of_mine", needs=needs)(lambda terms, settings: None)
        made.append(needs)

    yield register
    for registry in (ESTIMATORS, LOSSES) if made else ():
        del registry["of_mine"]


@pytest.mark.parametrize(
    ("need", "sentence"),
    [
        ("reference_logprobs", "a reference model: set kl_coefficient above 0"),
        ("values", "values of a critic"),
        ("greedy_rewards", "greedy response"),
        ("steps", "rewards of single turns"),
        ("states", "states that episodes visit"),
        ("pairs", "pairs of a preferred and a rejected response"),
        ("moonlight", "'moonlight', which nothing here supplies"),
    ],
)
def test_needs_of_a_users_own_estimator_and_loss_are_checked(wants, need, sentence):
    wants(need, "rewards", "advantages", "old_logprobs")
    found = problems("adv_estimator=of_mine", "loss=of_mine")
    assert [s.split(" needs ")[0] for s in found] == ["adv_estimator=of_mine", "loss=of_mine"]
    assert all(sentence in s for s in found)


def test_a_reference_is_supplied_where_there_is_a_kl(wants):
    wants("reference_logprobs")
    assert problems("adv_estimator=of_mine", "loss=of_mine", "kl_coefficient=0.1") == []


@pytest.mark.parametrize("name", ["adv_estimator", "loss", "aggregation", "kl_estimator", "correction.name"])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(name):
    with pytest.raises(SettingsError, match="should be") as error:
        read_settings(Settings, [f"{name}=nonsense"])
    assert name in str(error.value)


def test_every_default_is_described():
    for field in AlgorithmSettings.model_fields.values():
        assert field.description


class Agentic(Settings):
    reported = frozenset({"steps", "states"})


@pytest.mark.parametrize("name", ["gigpo", "step_returns", "segment_returns"])
def test_estimators_of_turns_are_accepted_where_the_recipes_environments_report_turns(name):
    assert load_settings(Agentic, [f"adv_estimator={name}", "gamma=0.9"]).problems() == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("adv_estimator=step_returns reward_clip=1", "reads those of turns"),
        ("adv_estimator=gigpo kl_in=reward kl_coefficient=0.1", "reads rewards of turns: set kl_in=loss"),
    ],
)
def test_what_turns_do_not_have_is_refused(words, sentence):
    (found,) = load_settings(Agentic, words.split()).problems()
    assert sentence in found


def test_a_recipe_without_environments_says_which_needs_are_not_met():
    found = "; ".join(problems("adv_estimator=gigpo"))
    assert "rewards of single turns" in found
    assert "the states that episodes visit" in found
