"""The data sets of reasoning-gym: prompts from its generators, rewards from its own scorers.

    from envs.adapters import reasoning_gym as rg
    train = rg.prompts("chain_sum", 1000, seed=1, max_terms=4)
    task = Task(train, rewards={"chain_sum": rg.reward})

Single-turn. The answer is the last `<answer>...</answer>` of a response, else everything behind `</think>`; the
scorer gives it 0 to 1 (some give 0.01 to any answer). A data set is known by name, seed and configuration, so an
entry is made anew where it is scored, and nothing but these travels.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
import sys
import threading
from types import ModuleType
from typing import Any, NoReturn

from envs.adapters.packages import load_package
from envs.task import ScoredView
from roll_ray.errors import RollRayError
from roll_ray.sample import Prompt, Reward

PACKAGE = "reasoning-gym"
INSTRUCTION = "Give your final answer between <answer> and </answer>."

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_INFO = "reasoning_gym"
_SOLVER = "pycosat"
_importing = threading.Lock()


def prompts(
    name: str,
    count: int,
    *,
    seed: int,
    instruction: str = INSTRUCTION,
    domain: str | None = None,
    **config: Any,
) -> list[Prompt]:
    """The first `count` entries of data set `name` with `seed`, as chats. `config` is the data set's own, of values
    that JSON knows. Other seeds give other entries: keep some for evaluation."""
    settings = json.dumps({**config, "seed": seed}, sort_keys=True)
    digest = hashlib.blake2b(settings.encode(), digest_size=4).hexdigest()
    data_set = _data_set(name, settings, count)
    found = []
    for index in range(count):
        entry = data_set[index]
        content = f"{entry['question']}\n{instruction}".strip()
        found.append(
            Prompt(
                id=f"{name}/{digest}/{index}",
                messages=({"role": "user", "content": content},),
                domain=domain or name,
                reference=None if entry["answer"] is None else str(entry["answer"]),
                info={_INFO: {"name": name, "settings": settings, "size": count, "index": index}},
            )
        )
    return found


def reward(view: ScoredView) -> Reward:
    """What the data set's own scorer gives the answer of a response."""
    source = view.prompt.info.get(_INFO)
    if source is None:
        return Reward.invalid("the prompt is none of envs.adapters.reasoning_gym.prompts")
    answer = answer_of(view.response_text)
    data_set = _data_set(source["name"], source["settings"], source["size"])
    score = float(data_set.score_answer(answer, data_set[source["index"]]))
    return Reward(score, f"{source['name']} scores it {score:g}", extracted=answer)


def answer_of(response: str) -> str:
    """The last `<answer>`, else everything behind the reasoning."""
    marked = _ANSWER.findall(response)
    return (marked[-1] if marked else response.rpartition("</think>")[2]).strip()


@functools.lru_cache(maxsize=64)
def _data_set(name: str, settings: str, size: int) -> Any:
    library = _library()
    known = library.factory.DATASETS
    if name not in known:
        raise RollRayError(
            f"reasoning-gym has no data set {name!r}", why=f"it has: {', '.join(sorted(known))}"
        )
    try:
        return library.create_dataset(name, **{**json.loads(settings), "size": size})
    except (TypeError, AssertionError, ValueError) as error:
        raise RollRayError(
            f"reasoning-gym does not take these settings for {name}: {settings}",
            why=str(error) or type(error).__name__,
            next_step=f"see the fields of {known[name][1].__name__} in reasoning_gym",
        ) from None


def _library() -> Any:
    """reasoning_gym, also without pycosat: it imports the solver for its zebra puzzles, and nothing else needs it."""
    with _importing:
        if "reasoning_gym" in sys.modules or importlib.util.find_spec(_SOLVER) is not None:
            return load_package("reasoning_gym", PACKAGE)
        sys.modules[_SOLVER] = _placeholder()
        try:
            return load_package("reasoning_gym", PACKAGE)
        finally:
            del sys.modules[_SOLVER]  # others who look for the solver shall not find ours


def _placeholder() -> ModuleType:
    def missing(*_: Any) -> NoReturn:
        raise RollRayError(
            "zebra puzzles of reasoning-gym need the solver pycosat, which is not installed",
            next_step="pip install pycosat (it is compiled: a C compiler is needed)",
        )

    module = ModuleType(_SOLVER)
    module.__dict__.update(solve=missing, itersolve=missing)
    return module
