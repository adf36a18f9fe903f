"""Gymnasium environments with discrete actions, played in text: FrozenLake, CliffWalking, Taxi, Blackjack, yours.

    from envs.adapters import gymnasium as gym
    make_taxi = partial(gym.GymnasiumText, "Taxi-v4")
    task = Task(gym.prompts("Taxi-v4", range(1000)), environments={"Taxi-v4": make_taxi})

What the policy reads: for the toy-text environments the map that Gymnasium itself prints (`render_mode="ansi"`, the
coloured cell in brackets) or the observation in words; for others `describe(env, observation)` of yours, else the
printed map or the observation as it is. What it answers: the name of an action (the last one in the response counts),
or an action's number and nothing else. Anything else does nothing in the environment, costs a turn and is told so.

The reward is the sum of Gymnasium's. `info["seed"]` of the prompt seeds `Env.reset`, so siblings begin alike; chance
after that comes from the attempt's seed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from envs.adapters.packages import load_package
from envs.replies import needed, opening, reply
from envs.task import Observation, StepResult, Turn
from roll_ray.errors import RollRayError
from roll_ray.sample import Prompt, Reward

PACKAGE = "gymnasium"
MAX_TURNS = 30

Describe = Callable[[Any, Any], str]
"""Says in words what an environment (unwrapped) and its observation show."""

_COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)
_LAST_ACTION = re.compile(r"^ *\(\w+\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Known:
    """How an environment of toy text is played in text."""

    actions: tuple[str, ...]
    rules: str
    describe: Describe


def prompts(
    environment_id: str,
    seeds: Iterable[int],
    *,
    rules: str | None = None,
    domain: str | None = None,
    max_turns: int = MAX_TURNS,
) -> list[Prompt]:
    """A chat for each seed. `rules` are needed for environments whose rules are not known here; `domain` is by
    default the environment's id."""
    known = _known(environment_id)
    if rules is None and known is None:
        raise RollRayError(
            f"the rules of {environment_id} are not known here", next_step="say them: prompts(..., rules=...)"
        )
    said = rules if rules is not None or known is None else known.rules
    return [
        Prompt(
            id=f"{environment_id}/{seed}",
            messages=({"role": "user", "content": f"{said}\nYou have {max_turns} turns."},),
            domain=domain or environment_id,
            info={"seed": seed, "max_turns": max_turns},
        )
        for seed in seeds
    ]


@dataclass(slots=True)
class GymnasiumText:
    """One episode of a registered environment.

    `options` go to `gymnasium.make`. `actions` name the actions in their order; by default those of toy text, else
    their numbers. `slow` runs reset and steps in a thread. The prompt's info says `seed` and `max_turns`.
    """

    environment_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    actions: Sequence[str] | None = None
    describe: Describe | None = None
    slow: bool = False
    _env: Any = field(init=False, default=None)
    _prompt: Prompt = field(init=False)
    _names: tuple[str, ...] = field(init=False)
    _turns_left: int = field(init=False)
    _seen: str = field(init=False)
    _return: float = field(init=False, default=0.0)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._prompt, self._turns_left = prompt, int(prompt.info.get("max_turns", MAX_TURNS))
        self._return = 0.0
        await self._call(partial(self._begin, int(needed(prompt, "seed")), seed))
        return opening(prompt, f"{self._seen}\n{self._question()}")

    async def step(self, response: Turn) -> StepResult:
        self._turns_left -= 1
        state, action = self._seen, self._action(response.text)
        reward, terminated, truncated = 0.0, False, False
        if action is not None:
            reward, terminated, truncated = await self._call(partial(self._act, action))
        truncated = truncated or (not terminated and self._turns_left == 0)
        self._return += reward
        over = terminated or truncated
        return StepResult(
            observation=self._observation(malformed=action is None),
            reward=Reward(self._return, "terminated" if terminated else "truncated") if over else None,
            step_reward=reward,
            terminated=terminated,
            truncated=truncated,
            state=state,
            info={"malformed": action is None},
        )

    async def close(self) -> None:
        if self._env is not None:
            await self._call(self._env.close)

    async def _call(self, call: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(call) if self.slow else call()

    def _begin(self, prompt_seed: int, attempt_seed: int) -> None:
        gymnasium = load_package("gymnasium", PACKAGE)
        if self._env is None:
            self._env = self._made(gymnasium)
        observation, _ = self._env.reset(seed=prompt_seed)
        self._env.unwrapped.np_random = gymnasium.utils.seeding.np_random(attempt_seed)[0]
        self._seen = self._shown(observation)

    def _made(self, gymnasium: Any) -> Any:
        try:
            spec = gymnasium.spec(self.environment_id)
            env = gymnasium.make(
                self.environment_id, **{"render_mode": _text_mode(gymnasium, spec), **self.options}
            )
        except gymnasium.error.Error as error:
            raise RollRayError(
                f"gymnasium cannot make {self.environment_id}",
                why=str(error),
                next_step="see gymnasium.pprint_registry() for the ids that there are",
            ) from None
        self._names = self._action_names(env)
        return env

    def _action_names(self, env: Any) -> tuple[str, ...]:
        n = getattr(env.action_space, "n", None)
        if n is None:
            raise RollRayError(
                f"{self.environment_id} has actions that are not discrete: {env.action_space}",
                next_step="write an environment of your own that wraps it (docs/environments.md)",
            )
        known = _known(self.environment_id)
        names = tuple(self.actions or (known.actions if known else map(str, range(n))))
        if len(names) != n:
            raise RollRayError(f"{self.environment_id} has {n} actions, and {len(names)} are named: {names}")
        return names

    def _act(self, action: int) -> tuple[float, bool, bool]:
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._seen = self._shown(observation)
        return float(reward), bool(terminated), bool(truncated)

    def _shown(self, observation: Any) -> str:
        known = _known(self.environment_id)
        describe = self.describe or (known.describe if known else _as_it_is)
        return describe(self._env.unwrapped, observation)

    def _action(self, text: str) -> int | None:
        alone = text.strip()
        if alone.isdecimal() and len(alone) < 10 and int(alone) < len(self._names):
            return int(alone)
        names = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
        found = re.findall(rf"(?<!\w)(?:{names})(?!\w)", text, re.IGNORECASE)
        lower = [name.lower() for name in self._names]
        return lower.index(found[-1].lower()) if found else None

    def _question(self) -> str:
        return f"Your action ({', '.join(self._names)}):"

    def _observation(self, *, malformed: bool) -> Observation:
        fault = "That names none of the actions; nothing was done.\n" if malformed else ""
        return reply(self._prompt, f"{fault}{self._seen}\n{self._question()}")


def _text_mode(gymnasium: Any, spec: Any) -> str | None:
    """The render mode that prints, if the environment has it."""
    entry = spec.entry_point
    made_by = entry if callable(entry) else gymnasium.envs.registration.load_env_creator(entry)
    return "ansi" if "ansi" in getattr(made_by, "metadata", {}).get("render_modes", ()) else None


def _known(environment_id: str) -> _Known | None:
    for name, known in _TOY_TEXT.items():
        if environment_id.startswith(name):
            return known
    return None


def _as_it_is(env: Any, observation: Any) -> str:
    return _printed(env, observation) if env.render_mode == "ansi" else str(observation)


def _printed(env: Any, _: Any) -> str:
    """The map as Gymnasium prints it, without its line on the last action, which is no part of the state; a coloured
    cell, where the player is, stands in brackets."""
    return _COLOURED.sub(r"[\1]", _LAST_ACTION.sub("", str(env.render()))).strip()


def _taxi(env: Any, _: Any) -> str:
    """Colours carry three meanings in the printed map, so it is shown without them and they are said."""
    row, column, passenger, destination = (int(i) for i in env.decode(env.s))
    places = {0: "R", 1: "G", 2: "Y", 3: "B"}
    rows = "\n".join("".join(cell.decode() for cell in line) for line in env.desc)
    waits = "is in the taxi" if passenger not in places else f"waits at {places[passenger]}"
    return (
        f"{rows}\nThe taxi is in row {row}, column {column}, counted from 0. The passenger {waits} and wants to go "
        f"to {places[destination]}."
    )


def _blackjack(_: Any, observation: Any) -> str:
    own, dealer, ace = (int(value) for value in observation)
    counted = f"{own}, with an ace as 11" if ace else own
    return f"Your cards count {counted}. The dealer shows {dealer}."


_TOY_TEXT: dict[str, _Known] = {
    "FrozenLake": _Known(
        ("left", "down", "right", "up"),
        "You walk on a frozen lake from S to G; the cell in brackets is where you are. F is ice, H is a hole that you "
        "must not step into. Answer each time with one action: left, down, right or up.",
        _printed,
    ),
    "CliffWalking": _Known(
        ("up", "right", "down", "left"),
        "You are x and walk to T. C is the cliff: who steps there falls, loses 100 points and begins again. Each step "
        "costs a point. Answer each time with one action: up, right, down or left.",
        _printed,
    ),
    "Taxi": _Known(
        ("south", "north", "east", "west", "pickup", "dropoff"),
        "You drive a taxi: fetch the passenger and bring them to where they want to go. R, G, Y and B are the places; "
        "| and - are walls, : is none. Each step costs a point, a wrong pickup or dropoff ten; the right dropoff gives "
        "20. Answer each time with one action: south, north, east, west, pickup or dropoff.",
        _taxi,
    ),
    "Blackjack": _Known(
        ("stick", "hit"),
        "You play Blackjack: come closer to 21 than the dealer, and not above it. Answer each time with one action: "
        "hit to draw a card, or stick to end your turn.",
        _blackjack,
    ),
}
