"""Sokoban: push every box onto a target; boxes cannot be pulled, and one at a time is pushed.

Levels are made by playing backwards from the solved room, pulling boxes off their targets, so each has a
solution (as in Racanière et al., arXiv 1707.06203, app. A.1, for larger rooms). Rewards are those of gym-sokoban
(Schrader, 2018): -0.1 a step, 1 for a box pushed onto a target, -1 for one pushed off, 10 more for the last one.
A response that names no direction costs a step and is told so.

Rooms are written in the usual signs: `#` wall, `-` floor, `.` target, `$` box, `*` box on a target, `@` the
player, `+` the player on a target.
"""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import dataclass, field, replace

from envs.directions import STEPS, direction_in
from envs.replies import needed, reply
from envs.task import Observation, StepResult, Turn
from roll_ray.sample import Prompt, Reward

DOMAIN = "sokoban"
SIZE, BOXES, MAX_STEPS = 6, 1, 40
STEP_REWARD, ON_TARGET_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0
HELDOUT_COUNT = 256

_HELDOUT_SEED = 20_000_003  # fixed: the same rooms are held out whatever seed a run trains with
_SEEDS_PER_RUN_SEED = 1_000_000
_WALL_SHARE, _PULL_SHARE = 0.1, 0.8
_BACKWARD_MOVES, _ROOMS_TRIED = MAX_STEPS, 2_000
_OPPOSITE = {"L": "R", "R": "L", "U": "D", "D": "U"}
_RULES = (
    "You are @ in a storeroom and push boxes by walking against them. # is a wall, - floor, . a target, $ a box, "
    "* a box on a target, + you on a target. Push every box onto a target; you cannot pull, nor push two at once. "
    "Answer each time with one word: left, down, right or up. You have {max_steps} steps."
)

Cell = tuple[int, int]
"""Row and column."""


@dataclass(frozen=True, slots=True)
class Room:
    """A room and what stands in it. Every cell that is no floor is wall."""

    floor: frozenset[Cell]
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets

    def pushed(self, direction: str) -> Room:
        """The room after the player walks or pushes; the same where the way is blocked."""
        there = _next(self.player, direction)
        behind = _next(there, direction)
        if there not in self.boxes:
            return replace(self, player=there) if there in self.floor else self
        if behind not in self.floor or behind in self.boxes:
            return self
        return replace(self, player=there, boxes=self.boxes - {there} | {behind})

    def pulled(self, direction: str, *, pull: bool) -> Room:
        """Backwards: the player walks, and with `pull` a box that stands behind comes along."""
        there, box = _next(self.player, direction), _next(self.player, _OPPOSITE[direction])
        if there not in self.floor or there in self.boxes:
            return self
        moved = self.boxes - {box} | {self.player} if pull and box in self.boxes else self.boxes
        return replace(self, player=there, boxes=moved)

    def view(self) -> str:
        """The rows on lines, in the usual signs."""
        height, width = (max(cell[axis] for cell in self.floor) + 2 for axis in (0, 1))
        return "\n".join("".join(self._sign((r, c)) for c in range(width)) for r in range(height))

    def _sign(self, cell: Cell) -> str:
        if cell == self.player:
            return "+" if cell in self.targets else "@"
        if cell in self.boxes:
            return "*" if cell in self.targets else "$"
        return "." if cell in self.targets else "-" if cell in self.floor else "#"

    @staticmethod
    def read(rows: str) -> Room:
        """A room from its rows."""
        signs = {(r, c): sign for r, row in enumerate(rows.split("\n")) for c, sign in enumerate(row)}

        def cells(wanted: str) -> frozenset[Cell]:
            return frozenset(cell for cell, sign in signs.items() if sign in wanted)

        (player,) = cells("@+")
        return Room(cells("-.$*@+"), cells(".*+"), cells("$*"), player)


def make_room(seed: int, size: int = SIZE, boxes: int = BOXES) -> tuple[Room, str]:
    """A random room of `size` x `size` cells, walls included, with every box off its target, and a solution
    of at most `MAX_STEPS` moves.

    Raises ValueError where so many boxes find no room.
    """
    if size < 5 or boxes < 1:
        raise ValueError(f"size={size}, boxes={boxes}: at least 5 and at least 1")
    rng = random.Random(seed)
    for _ in range(_ROOMS_TRIED):
        floor = [
            (r, c) for r in range(1, size - 1) for c in range(1, size - 1) if rng.random() >= _WALL_SHARE
        ]
        if len(floor) < 2 * boxes + 2:
            continue
        *targets, player = rng.sample(floor, boxes + 1)
        solved = Room(frozenset(floor), frozenset(targets), frozenset(targets), player)
        if (found := _played_backwards(solved, rng)) is not None:
            return found
    raise ValueError(f"no room of size {size} was found for {boxes} boxes: take a larger size or fewer boxes")


def _played_backwards(solved: Room, rng: random.Random) -> tuple[Room, str] | None:
    """The last room with every box off its target that random backward moves lead to, and the way back."""
    room, way_back = solved, ""
    found = None
    for _ in range(_BACKWARD_MOVES):
        move = rng.choice(list(STEPS))
        before, room = room, room.pulled(move, pull=rng.random() < _PULL_SHARE)
        if room is not before:
            way_back = _OPPOSITE[move] + way_back
        if not room.boxes & room.targets:
            found = room, way_back
    return found


def training_prompts(
    count: int, seed: int = 0, size: int = SIZE, boxes: int = BOXES, max_steps: int = MAX_STEPS
) -> list[Prompt]:
    """`count` rooms, none of them held out; equal seeds give equal lists."""
    heldout = set(_heldout(size, boxes))
    seeds = itertools.count(seed * _SEEDS_PER_RUN_SEED)
    fresh = ((s, rows) for s in seeds if (rows := make_room(s, size, boxes)[0].view()) not in heldout)
    return [_prompt(f"{size}/{boxes}/{s}", rows, max_steps) for s, rows in itertools.islice(fresh, count)]


def heldout_prompts(
    count: int = HELDOUT_COUNT, size: int = SIZE, boxes: int = BOXES, max_steps: int = MAX_STEPS
) -> list[Prompt]:
    """The first `count` of the held-out rooms, in their fixed order."""
    if not 0 < count <= HELDOUT_COUNT:
        raise ValueError(f"count={count}: 1 to {HELDOUT_COUNT} rooms are held out")
    rooms = enumerate(_heldout(size, boxes)[:count], _HELDOUT_SEED)
    return [_prompt(f"{size}/{boxes}/{s}", rows, max_steps) for s, rows in rooms]


@functools.cache
def _heldout(size: int, boxes: int) -> tuple[str, ...]:
    return tuple(make_room(_HELDOUT_SEED + i, size, boxes)[0].view() for i in range(HELDOUT_COUNT))


def _prompt(name: str, rows: str, max_steps: int) -> Prompt:
    content = f"{_RULES.format(max_steps=max_steps)}\n{rows}"
    return Prompt(
        id=f"{DOMAIN}/{name}",
        messages=({"role": "user", "content": content},),
        domain=DOMAIN,
        info={"rows": rows, "max_steps": max_steps},
    )


@dataclass(slots=True)
class Sokoban:
    """The room of one prompt. The prompt's info says `rows` and `max_steps`.

    The episode's reward is the sum of the steps'; `state` is the room before the step.
    """

    _prompt: Prompt = field(init=False)
    _room: Room = field(init=False)
    _steps_left: int = field(init=False)
    _return: float = field(init=False)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._prompt, self._room = prompt, Room.read(needed(prompt, "rows"))
        self._steps_left, self._return = int(needed(prompt, "max_steps")), 0.0
        return Observation.of(prompt)

    async def step(self, response: Turn) -> StepResult:
        before = self._room
        self._steps_left -= 1
        direction = direction_in(response.text)
        if direction is not None:
            self._room = before.pushed(direction)
        solved = self._room.solved
        step_reward = _reward_of(before, self._room)
        self._return += step_reward
        truncated = not solved and self._steps_left == 0
        return StepResult(
            observation=self._observation(direction is None),
            reward=self._verdict() if solved or truncated else None,
            step_reward=step_reward,
            terminated=solved,
            truncated=truncated,
            state=before.view(),
            info={"success": solved, "malformed": direction is None},
        )

    def _observation(self, malformed: bool) -> Observation:
        fault = "That is no direction. Answer with left, down, right or up.\n" if malformed else ""
        return reply(self._prompt, fault + self._room.view())

    def _verdict(self) -> Reward:
        on_target = len(self._room.boxes & self._room.targets)
        reason = (
            "solved" if self._room.solved else f"{on_target} of {len(self._room.boxes)} boxes on a target"
        )
        return Reward(self._return, reason)


def _reward_of(before: Room, after: Room) -> float:
    gained = len(after.boxes & after.targets) - len(before.boxes & before.targets)
    return STEP_REWARD + ON_TARGET_REWARD * gained + SOLVED_REWARD * after.solved


def _next(cell: Cell, direction: str) -> Cell:
    step = STEPS[direction]
    return cell[0] + step[0], cell[1] + step[1]
