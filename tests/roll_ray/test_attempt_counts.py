"""The invalid share of a step is what was scored since the last, also when the manager began to count anew."""

from roll_ray.attempt_counts import AttemptCounts


def test_a_step_is_the_difference_of_running_counts():
    counts = AttemptCounts()
    first = {"retries": 2, "scored/maths": 8, "invalid/maths": 2, "scored/code": 2, "invalid/code": 2}
    assert counts.step(first) == {
        "retries": 2,
        "invalid_share": 0.4,
        "invalid_share/code": 1.0,
        "invalid_share/maths": 0.25,
    }
    second = {**first, "retries": 3, "scored/maths": 18, "invalid/maths": 3}
    assert counts.step(second) == {"retries": 1, "invalid_share": 0.1}


def test_a_manager_that_restarts_counts_from_0():
    counts = AttemptCounts()
    counts.step({"retries": 5, "scored/d": 100, "invalid/d": 10})
    assert counts.step({"retries": 1, "scored/d": 4, "invalid/d": 1}) == {"retries": 1, "invalid_share": 0.25}


def test_nothing_scored_is_no_share():
    assert AttemptCounts().step({"retries": 0}) == {"retries": 0}


def test_waste_is_of_the_step_and_what_tail_batching_says_is_as_it_stands() -> None:
    counts = AttemptCounts()
    first = {"wasted_tokens": 5, "visits_queued": 2, "kept_tokens_mean": 0, "launched_tokens_mean": 4}
    assert counts.step(first) == {"retries": 0, "wasted_tokens": 5, "deferred_prompts": 2}
    then = {"wasted_tokens": 7, "visits_queued": 1, "kept_tokens_mean": 3, "launched_tokens_mean": 4}
    said = {"retries": 0, "wasted_tokens": 2, "deferred_prompts": 1, "kept_length_ratio": 0.75}
    assert counts.step(then) == said
