"""FrozenLake: walk over the ice from the top left corner to the goal, around the holes.

The rules and the way maps are drawn are those of Gymnasium's toy text FrozenLake-v1 (each cell is ice with a
probability, drawn anew until the goal can be reached; when slippery, a third of the moves each go as meant and to
either side); the text is our own. The reward is 1 for reaching the goal, else 0; a response that names no
direction costs a step and is told so.

Every observation shows the whole map with the walker, so that it is all that a policy must look at. Two
renderings: a chat with rows on lines, answered by a letter or word; *compact* for tiny models of one token a
character: the rows in one run and `?` (17 tokens at size 4), after a malformed answer `!` before them, and one of
L, D, R, U as the answer. `COMPACT_CHARACTERS` are all that it uses.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from envs.directions import STEPS, direction_in
from envs.replies import needed, reply
from envs.task import Observation, StepResult, Turn
from roll_ray.sample import Prompt, Reward

DOMAIN = "frozen_lake"
ICE, HOLE, GOAL, WALKER = "FHGA"
SIZE, ICE_SHARE = 4, 0.8
HELDOUT_COUNT = 256
COMPACT_ASK, COMPACT_MALFORMED = "?!"
COMPACT_CHARACTERS = ICE + HOLE + GOAL + WALKER + COMPACT_ASK + COMPACT_MALFORMED + "".join(STEPS)

_HELDOUT_SEED = 20_000_003  # fixed: the same maps are held out whatever seed a run trains with
_SEEDS_PER_RUN_SEED = 1_000_000
_DRAWS_PER_MAP = 1_000
_VIEW = re.compile(rf"([{ICE}{HOLE}{GOAL}{WALKER}]+(?:\n[{ICE}{HOLE}{GOAL}{WALKER}]+)*)\??\s*$")
_RULES = (
    "You walk on a frozen lake. A is where you are, F is ice, H is a hole that you must not step into, G is the goal. "
    "Answer each time with one word: left, down, right or up. You have {max_steps} steps.{slippery}"
)
_SLIPPERY = " The ice is slippery: you may slide to either side of where you meant to go."

Position = tuple[int, int]
"""Row and column, from 0 at the top left."""
START: Position = (0, 0)


@dataclass(frozen=True, slots=True)
class Lake:
    """A square map; `rows` are of F (ice), H (hole) and G (the goal)."""

    rows: tuple[str, ...]

    def cell(self, position: Position) -> str:
        return self.rows[position[0]][position[1]]

    def after(self, position: Position, direction: str) -> Position:
        """Where a move leads; at the edge of the lake it leads nowhere."""
        row, column = position[0] + STEPS[direction][0], position[1] + STEPS[direction][1]
        inside = 0 <= row < len(self.rows) and 0 <= column < len(self.rows)
        return (row, column) if inside else position

    def distances(self) -> dict[Position, int]:
        """Steps to the goal from each cell that is no hole and from which it can be reached."""
        cells: list[Position] = [(r, c) for r, row in enumerate(self.rows) for c in range(len(row))]
        goals = [cell for cell in cells if self.cell(cell) == GOAL]
        distance, frontier = dict.fromkeys(goals, 0), deque(goals)
        while frontier:
            here = frontier.popleft()
            for there in (self.after(here, direction) for direction in STEPS):
                if there not in distance and self.cell(there) != HOLE:
                    distance[there] = distance[here] + 1
                    frontier.append(there)
        return distance

    def view(self, walker: Position) -> str:
        """The rows on lines, with the walker."""
        return "\n".join(
            "".join(WALKER if (r, c) == walker else cell for c, cell in enumerate(row))
            for r, row in enumerate(self.rows)
        )

    @staticmethod
    def read(observation: str) -> tuple[Lake, Position]:
        """The map and the walker's place at the end of an observation of either rendering."""
        match = _VIEW.search(observation)
        if match is None:
            raise ValueError(f"no map at the end of {observation!r}")
        cells = match[1].replace("\n", "")
        size = round(len(cells) ** 0.5)
        rows = tuple(cells[i : i + size].replace(WALKER, ICE) for i in range(0, size * size, size))
        return Lake(rows), divmod(cells.index(WALKER), size)


def make_lake(seed: int, size: int = SIZE, ice_share: float = ICE_SHARE) -> Lake:
    """A random map on which the goal, at the bottom right, can be reached."""
    if size < 2 or not 0 < ice_share <= 1:
        raise ValueError(f"size={size}, ice_share={ice_share}: at least 2, and above 0 up to 1")
    rng = random.Random(seed)
    while True:
        cells = [ICE if rng.random() < ice_share else HOLE for _ in range(size * size)]
        cells[0], cells[-1] = ICE, GOAL
        lake = Lake(tuple("".join(cells[i : i + size]) for i in range(0, size * size, size)))
        if START in lake.distances():
            return lake


def demonstrated_move(observation: str, rng: random.Random, skill: float = 1.0) -> str:
    """A move along a shortest path with probability `skill`, else any move onto ice: to warm a model up with."""
    lake, walker = Lake.read(observation)
    distance = lake.distances()
    safe = {d: there for d in STEPS if (there := lake.after(walker, d)) in distance and there != walker}
    best = [d for d, there in safe.items() if distance[there] < distance[walker]]
    return rng.choice(best if rng.random() < skill else list(safe))


def training_prompts(
    count: int,
    seed: int = 0,
    size: int = SIZE,
    *,
    max_steps: int | None = None,
    slippery: bool = False,
    compact: bool = False,
) -> list[Prompt]:
    """`count` maps, none of them held out; equal seeds give equal lists. `max_steps`: by default 3 x `size`."""
    heldout = {lake for _, lake in _heldout(size)}
    seeds = itertools.count(seed * _SEEDS_PER_RUN_SEED)
    fresh = ((s, lake) for s in seeds if (lake := make_lake(s, size)) not in heldout)
    return [_prompt(s, lake, max_steps, slippery, compact) for s, lake in itertools.islice(fresh, count)]


def heldout_prompts(
    count: int = HELDOUT_COUNT,
    size: int = SIZE,
    *,
    max_steps: int | None = None,
    slippery: bool = False,
    compact: bool = False,
) -> list[Prompt]:
    """The first `count` of the held-out maps, all different, in their fixed order."""
    if not 0 < count <= len(_heldout(size)):
        raise ValueError(f"count={count}: 1 to {len(_heldout(size))} maps of size {size} are held out")
    return [_prompt(s, lake, max_steps, slippery, compact) for s, lake in _heldout(size)[:count]]


@functools.cache
def _heldout(size: int) -> tuple[tuple[int, Lake], ...]:
    """Seeds and maps: 256, at most a quarter of the different maps where there are few."""
    found: dict[Lake, int] = {}
    for seed in range(_HELDOUT_SEED, _HELDOUT_SEED + HELDOUT_COUNT * _DRAWS_PER_MAP):
        found.setdefault(make_lake(seed, size), seed)
        if len(found) == _heldout_count(size):
            break
    return tuple((seed, lake) for lake, seed in found.items())


def _heldout_count(size: int) -> int:
    return min(HELDOUT_COUNT, 2 ** (size * size - 4))


def _prompt(seed: int, lake: Lake, max_steps: int | None, slippery: bool, compact: bool) -> Prompt:
    size = len(lake.rows)
    limit = 3 * size if max_steps is None else max_steps
    rules = _RULES.format(max_steps=limit, slippery=_SLIPPERY if slippery else "")
    content = f"{rules}\n{lake.view(START)}"
    return Prompt(
        id=f"{DOMAIN}/{size}/{seed}",
        text=_compact(lake, START) if compact else None,
        messages=None if compact else ({"role": "user", "content": content},),
        domain=DOMAIN,
        info={"rows": list(lake.rows), "max_steps": limit, "slippery": slippery, "compact": compact},
    )


def _compact(lake: Lake, walker: Position) -> str:
    return lake.view(walker).replace("\n", "") + COMPACT_ASK


def _quarter_turns(rng: random.Random) -> Iterator[int]:
    """By how many quarter turns each slippery move misses."""
    while True:
        yield rng.choice((-1, 0, 1))


@dataclass(slots=True)
class FrozenLake:
    """The walk of one prompt. The prompt's info says `rows` and `max_steps`, and may say `slippery`, `compact`.

    Where the ice is slippery the seed decides the slides. `state` is the map with the walker before the step.
    """

    _prompt: Prompt = field(init=False)
    _lake: Lake = field(init=False)
    _walker: Position = field(init=False)
    _steps_left: int = field(init=False)
    _slides: Iterator[int] = field(init=False)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._prompt, self._lake = prompt, Lake(tuple(needed(prompt, "rows")))
        self._walker, self._steps_left = START, int(needed(prompt, "max_steps"))
        slippery = prompt.info.get("slippery", False)
        self._slides = _quarter_turns(random.Random(seed)) if slippery else itertools.repeat(0)
        return Observation.of(prompt)

    async def step(self, response: Turn) -> StepResult:
        state = self._lake.view(self._walker)
        self._steps_left -= 1
        direction = self._direction(response.text)
        if direction is not None:
            self._walker = self._lake.after(self._walker, self._slid(direction))
        cell = self._lake.cell(self._walker)
        terminated = cell in (HOLE, GOAL)
        truncated = not terminated and self._steps_left == 0
        return StepResult(
            observation=self._observation(direction is None),
            reward=_verdict(cell) if terminated or truncated else None,
            step_reward=float(cell == GOAL),
            terminated=terminated,
            truncated=truncated,
            state=state,
            info={"success": cell == GOAL, "malformed": direction is None},
        )

    def _direction(self, text: str) -> str | None:
        if self._prompt.info.get("compact", False):
            return text.strip() if text.strip() in STEPS else None
        return direction_in(text)

    def _slid(self, direction: str) -> str:
        order = list(STEPS)
        return order[(order.index(direction) + next(self._slides)) % len(order)]

    def _observation(self, malformed: bool) -> Observation:
        if self._prompt.info.get("compact", False):
            return Observation(text=COMPACT_MALFORMED * malformed + _compact(self._lake, self._walker))
        fault = "That is no direction. Answer with left, down, right or up.\n" if malformed else ""
        return reply(self._prompt, fault + self._lake.view(self._walker))


def _verdict(cell: str) -> Reward:
    reasons = {GOAL: "reached the goal", HOLE: "stepped into a hole", ICE: "not at the goal in time"}
    return Reward(float(cell == GOAL), reasons[cell])
