"""The games of textarena: alone, or against opponents of yours.

    from envs.adapters import textarena as ta
    make_game = partial(ta.TextArena, "GuessTheNumber-v0")
    task = Task(ta.prompts("GuessTheNumber-v0", range(1000)), environments={"GuessTheNumber-v0": make_game})

The game itself says its rules and judges the moves: it answers the first malformed move in a row with what is
wrong, and ends at the second. The policy reads what is new since its last turn. The reward is the game's (for most
1 for a win, a share for progress); `state` is everything that was said before the turn.

`info["seed"]` of the prompt begins the game, the attempt's seed decides chance after that. textarena draws from the
global random states of Python and numpy, which are lent to it call by call: games played at once do not disturb
each other.

Games that load word lists of nltk are refused where the lists are not there: nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envs.adapters.packages import load_package
from envs.replies import needed, opening, reply
from envs.task import Observation, StepResult, Turn
from roll_ray.errors import RollRayError
from roll_ray.sample import Prompt, Reward

PACKAGE = "textarena"

Opponent = Callable[[str], str]
"""Answers everything that was said to and by its player so far with a move."""

_lending = threading.Lock()
"""Held while the global random states are a game's."""


def prompts(
    game: str, seeds: Iterable[int], *, instruction: str = "", domain: str | None = None
) -> list[Prompt]:
    """A chat for each seed; the game adds its rules behind `instruction`. `domain` is by default the game."""
    return [
        Prompt(
            id=f"{game}/{seed}",
            messages=({"role": "user", "content": instruction},),
            domain=domain or game,
            info={"seed": seed},
        )
        for seed in seeds
    ]


@dataclass(slots=True)
class TextArena:
    """One game; the policy is player 0, and `opponents` are the players after it.

    `options` go to `textarena.make`. `max_turns` counts the policy's turns, beside the game's own limit.
    """

    game: str
    options: Mapping[str, Any] = field(default_factory=dict)
    opponents: tuple[Opponent, ...] = ()
    max_turns: int = 100
    _env: Any = field(init=False)
    _prompt: Prompt = field(init=False)
    _chance: Chance = field(init=False)
    _turns: int = field(init=False)
    _read: dict[int, list[str]] = field(init=False)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        begin = int(needed(prompt, "seed"))
        self._prompt, self._turns, self._chance = prompt, 0, Chance(begin)
        self._read = {player: [] for player in range(len(self.opponents) + 1)}
        await asyncio.to_thread(self._begin, begin)
        self._chance = Chance(seed)
        await asyncio.to_thread(self._until_our_turn)
        return opening(prompt, self._news(0))

    async def step(self, response: Turn) -> StepResult:
        state = "\n".join(self._read[0])
        self._turns += 1
        malformed, done = await asyncio.to_thread(self._moved, response.text)
        truncated = not done and self._turns == self.max_turns
        reward = self._verdict() if done else Reward(0.0, "not over in time") if truncated else None
        return StepResult(
            observation=None if done else reply(self._prompt, self._news(0)),
            reward=reward,
            step_reward=(reward.value or 0.0) if reward else 0.0,
            terminated=done,
            truncated=truncated,
            state=state,
            info={"malformed": malformed},
        )

    def _begin(self, seed: int) -> None:
        library = load_package("textarena", PACKAGE)
        with self._chance.lent():
            self._env = _made(library, self.game, self.options)
            try:
                self._env.reset(num_players=len(self.opponents) + 1, seed=seed)
            except AssertionError as error:
                raise RollRayError(
                    f"{self.game} cannot be played by {len(self.opponents) + 1}",
                    why=str(error),
                    next_step="give TextArena one opponent for each further player, a function from what was "
                    "said to its move: TextArena(game, opponents=(opponent,))",
                ) from None

    def _moved(self, text: str) -> tuple[bool, bool]:
        """Whether the game found the move malformed, and whether it is over after the opponents' moves."""
        errors = self._env.state.error_count
        with self._chance.lent():
            done, _ = self._env.step(text)
        malformed = self._env.state.error_count > errors or self._env.state.game_info[0]["invalid_move"]
        return bool(malformed), bool(done) or self._until_our_turn()

    def _until_our_turn(self) -> bool:
        """Let the opponents move; whether the game is over."""
        done = bool(self._env.state.done)
        while not done and (player := self._env.state.current_player_id) != 0:
            self._news(player)
            move = self.opponents[player - 1]("\n".join(self._read[player]))
            with self._chance.lent():
                done, _ = self._env.step(move)
        return bool(done)

    def _news(self, player: int) -> str:
        """What a player has not read yet, without what it wrote itself."""
        _, messages = self._env.get_observation()
        self._read[player] += [text.strip() for _, text, _ in messages]
        return "\n".join(text.strip() for sender, text, _ in messages if sender != player)

    def _verdict(self) -> Reward:
        rewards, info = self._env.close()
        return Reward(float(rewards[0]), str(info[0].get("reason", "over")))


@dataclass(slots=True)
class Chance:
    """The random states of one game, which are the global ones while they are lent."""

    seed: int
    _python: Any = field(init=False)
    _numpy: Any = field(init=False)

    def __post_init__(self) -> None:
        self._python = random.Random(self.seed).getstate()
        self._numpy = np.random.RandomState(self.seed % (1 << 32)).get_state()

    @contextmanager
    def lent(self) -> Iterator[None]:
        with _lending:
            python, numpy = random.getstate(), np.random.get_state()
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(python)
                np.random.set_state(numpy)


def _made(library: Any, game: str, options: Mapping[str, Any]) -> Any:
    """The game without textarena's wrappers, which repeat the whole history at each turn."""
    registry = library.envs.registration.ENV_REGISTRY
    raw = game if game.endswith("-raw") else f"{game}-raw"
    if raw not in registry:
        raise RollRayError(
            f"textarena has no game {game!r}", next_step="see textarena.pprint_registry_detailed()"
        )
    asked: list[str] = []
    with _no_downloads(asked):
        try:
            return library.make(raw, **options)
        except LookupError:
            if not asked:
                raise
            raise RollRayError(
                f"{game} needs data of nltk that is not here: {', '.join(asked)}",
                next_step=f"download it once yourself: python -m nltk.downloader {' '.join(asked)}",
            ) from None


@contextmanager
def _no_downloads(asked: list[str]) -> Iterator[None]:
    """While a game is made: what it wants to download with nltk is written down and not done."""
    nltk = load_package("nltk", PACKAGE)
    download = nltk.download

    def refused(names: str | list[str], *_: Any, **__: Any) -> bool:
        asked.extend([names] if isinstance(names, str) else names)
        return False

    nltk.download = refused
    try:
        yield
    finally:
        nltk.download = download
