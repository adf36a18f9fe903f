"""Search over documents: the model asks for passages until it can answer the question.

A response with `<search>query</search>` (the first one in it counts) is answered with the best passages in
`<information>...</information>`; one with `<answer>text</answer>` ends the episode (the format of Search-R1, arXiv
2503.09516). The reward is 1 when the answer equals one of the right ones after normalisation: case, punctuation,
articles and spacing do not count (Rajpurkar et al., arXiv 1606.05250). A response with neither costs a turn and is
told so.

    index = DocumentIndex(load_documents(Path("documents.jsonl")))
    environments={document_search.DOMAIN: partial(DocumentSearch, index)}
"""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from envs.replies import reply
from envs.task import Observation, StepResult, Turn
from roll_ray.errors import DataError, RollRayError
from roll_ray.sample import Prompt, Reward

DOMAIN = "document_search"
MAX_TURNS, N_PASSAGES = 4, 3
RULES = (
    "Answer the question with the help of a document search. To search, write <search>your query</search> and end "
    "your turn; the best passages come back in <information>...</information>. When you know the answer, write "
    "<answer>the answer alone</answer>. You have {max_turns} turns.\nQuestion: {question}"
)

_SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_TERM = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    text: str

    def shown(self) -> str:
        return f"{self.title}: {self.text}" if self.title else self.text


class DocumentIndex:
    """BM25 over documents (Robertson and Zaragoza, 2009, eq. 3.15, with the idf of Lucene, which is never negative).

    `k1`: how soon more of a term counts no further; `b`: how much long documents are discounted.
    """

    def __init__(self, documents: Sequence[Document], k1: float = 1.2, b: float = 0.75) -> None:
        if not documents:
            raise RollRayError("a document index needs at least one document")
        self.documents = tuple(documents)
        counts = [Counter(_terms(document.shown())) for document in documents]
        lengths_N = np.array([count.total() for count in counts], np.float64)
        norms_N = k1 * (1 - b + b * lengths_N / max(1.0, lengths_N.mean()))
        postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, count in enumerate(counts):
            for term, n in count.items():
                postings[term].append((number, n))
        self._postings: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] = {}
        for term, posting in postings.items():
            ids_D, counts_D = np.array(posting).T
            idf = math.log(1 + (len(documents) - len(ids_D) + 0.5) / (len(ids_D) + 0.5))
            self._postings[term] = ids_D, idf * counts_D * (k1 + 1) / (counts_D + norms_N[ids_D])

    def search(self, query: str, n_passages: int = N_PASSAGES) -> list[Document]:
        """The best documents, best first; those that share no term with the query are not among them."""
        scores_N = np.zeros(len(self.documents))
        for term in set(_terms(query)):
            if term in self._postings:
                ids_D, weights_D = self._postings[term]
                scores_N[ids_D] += weights_D
        best = np.argsort(-scores_N, kind="stable")[:n_passages]
        return [self.documents[i] for i in best if scores_N[i] > 0]


def load_documents(path: Path) -> list[Document]:
    """Documents of a JSON-lines file with `text` and, if there is one, `title`. Raises DataError with the line."""
    documents = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                documents.append(Document(str(row.get("title", "")), row["text"]))
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise DataError(
                    f"{path}, line {number}: not a document",
                    why=f"{type(error).__name__}: {error}",
                    next_step='write one JSON object a line, with "text" and perhaps "title"',
                ) from None
    return documents


def prompts(questions: Sequence[tuple[str, Sequence[str]]], max_turns: int = MAX_TURNS) -> list[Prompt]:
    """Chats for questions given with their right answers, any of which will do."""
    return [
        Prompt(
            id=f"{DOMAIN}/{i}",
            messages=({"role": "user", "content": RULES.format(max_turns=max_turns, question=question)},),
            domain=DOMAIN,
            reference=answers[0],
            info={"answers": list(answers), "max_turns": max_turns},
        )
        for i, (question, answers) in enumerate(questions)
    ]


@dataclass(slots=True)
class DocumentSearch:
    """One question. Right answers: the prompt's reference, and `info["answers"]`; `info["max_turns"]` is the limit."""

    index: DocumentIndex
    n_passages: int = N_PASSAGES
    _prompt: Prompt = field(init=False)
    _turns_left: int = field(init=False)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._prompt, self._turns_left = prompt, int(prompt.info.get("max_turns", MAX_TURNS))
        return Observation.of(prompt)

    async def step(self, response: Turn) -> StepResult:
        self._turns_left -= 1
        if answer := _ANSWER.search(response.text):
            reward = self._verdict(answer[1].strip())
            info = {"success": reward.value == 1.0}
            return StepResult(reward=reward, step_reward=reward.value or 0.0, terminated=True, info=info)
        search = _SEARCH.search(response.text)
        observation = reply(self._prompt, self._answer(search[1] if search else None))
        info = {"success": False, "malformed": search is None}
        if self._turns_left == 0:
            return StepResult(observation, Reward(0.0, "no answer in time"), truncated=True, info=info)
        return StepResult(observation, info=info)

    def _answer(self, query: str | None) -> str:
        if query is None:
            return "Write <search>your query</search>, or <answer>the answer alone</answer>."
        found = self.index.search(query, self.n_passages)
        shown = "\n".join(f"({i}) {document.shown()}" for i, document in enumerate(found, 1))
        left = f"{self._turns_left} turn{'s' * (self._turns_left != 1)} left."
        return f"<information>\n{shown or 'Nothing was found.'}\n</information>\n{left}"

    def _verdict(self, answer: str) -> Reward:
        right = [*self._prompt.info.get("answers", ()), *filter(None, [self._prompt.reference])]
        if not right:
            return Reward.invalid("the prompt has no right answer")
        equal = normalised(answer) in {normalised(text) for text in right}
        return Reward(float(equal), "right" if equal else f"{answer} is not {right[0]}", extracted=answer)


def normalised(answer: str) -> str:
    """Lower case, without punctuation, articles and needless spaces."""
    bare = "".join(c for c in answer.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def _terms(text: str) -> list[str]:
    return _TERM.findall(text.lower())
