"""Search over documents: ranking, the format of turns, the verdict."""

from __future__ import annotations

import asyncio
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from envs.document_search import (
    Document,
    DocumentIndex,
    DocumentSearch,
    load_documents,
    normalised,
    prompts,
)
from envs.scripted import Played, play_scripted, text_of
from roll_ray.errors import DataError, RollRayError
from roll_ray.sample import Prompt

DOCUMENTS = [
    Document("Eiffel Tower", "A tower in Paris, 330 metres high, finished in 1889."),
    Document("Paris", "The capital of France, on the Seine. Paris has two million people."),
    Document("Seine", "A river of France; it flows through Paris and Rouen into the Channel."),
    Document("", "Bread is baked from flour and water."),
]
INDEX = DocumentIndex(DOCUMENTS)


def play(*answers: str, prompt: Prompt | None = None) -> Played:
    script = iter(answers)
    asked = prompt or prompts([("When was the Eiffel Tower finished?", ["1889", "the year 1889"])])[0]
    return asyncio.run(play_scripted(DocumentSearch(INDEX), asked, lambda _: next(script)))


def test_bm25_equals_the_formula() -> None:
    k1, b, lengths = 1.2, 0.75, np.array([12, 13, 14, 7])
    counts = np.array([1, 2, 1, 0])  # of the term paris
    idf = np.log(1 + (4 - 3 + 0.5) / (3 + 0.5))
    expected = idf * counts * (k1 + 1) / (counts + k1 * (1 - b + b * lengths / lengths.mean()))
    ids, weights = INDEX._postings["paris"]
    assert list(ids) == [0, 1, 2]
    assert weights == pytest.approx(expected[:3])


def test_the_best_documents_come_first_and_unrelated_ones_never() -> None:
    assert [d.title for d in INDEX.search("Paris capital")] == ["Paris", "Eiffel Tower", "Seine"]
    assert [d.title for d in INDEX.search("EIFFEL tower", 1)] == ["Eiffel Tower"]
    assert INDEX.search("quantum") == INDEX.search("") == []


def test_a_search_brings_passages_and_the_right_answer_ends_with_reward_1() -> None:
    played = play("I search. <search>Eiffel Tower finished</search>", "<answer>In the YEAR 1889.</answer>")
    assert "(1) Eiffel Tower: A tower in Paris, 330 metres" in text_of(played.observations_N[1])
    assert "3 turns left." in text_of(played.observations_N[1])
    assert (played.last.reward.value, played.last.reward.extracted) == (0.0, "In the YEAR 1889.")  # type: ignore[union-attr]
    played = play("<answer> The year, 1889! </answer>")
    assert (played.last.terminated, played.last.reward.value) == (True, 1.0)  # type: ignore[union-attr]


def test_a_response_with_neither_is_told_so_and_turns_are_limited() -> None:
    played = play("hm", "<search>zzz</search>", "<search>Paris", "still")
    assert text_of(played.observations_N[1]).startswith("Write <search>")
    assert "Nothing was found." in text_of(played.observations_N[2])
    assert [r.info["malformed"] for r in played.results_N] == [True, False, True, True]
    assert (played.last.truncated, played.last.reward.reason) == (True, "no answer in time")  # type: ignore[union-attr]


def test_a_question_without_answers_is_invalid() -> None:
    played = play("<answer>x</answer>", prompt=Prompt("p", text="?"))
    assert played.last.reward.value is None  # type: ignore[union-attr]


def test_answers_are_compared_without_case_punctuation_articles_and_spacing() -> None:
    assert normalised("  The U.S. of an  America ") == "us of america"


def test_documents_are_read_from_lines_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_text('{"title": "a", "text": "b"}\n{"text": "c"}\n')
    assert load_documents(path) == [Document("a", "b"), Document("", "c")]
    path.write_text('{"text": "c"}\n{"title": "a"}\n')
    with pytest.raises(DataError, match=r"line 2: not a document"):
        load_documents(path)
    with pytest.raises(RollRayError, match="at least one document"):
        DocumentIndex([])


def test_the_factory_pickles_with_its_index() -> None:
    make = pickle.loads(pickle.dumps(partial(DocumentSearch, INDEX)))
    assert make().index.search("Rouen")[0].title == "Seine"
