"""Prompts, samples and what rides with them. Tokens are the truth; text is a view.

A sample's trajectory is append-only: four arrays of one length T hold, for each token, its id, who
wrote it, the log-probability under which it was sampled and the weight version that sampled it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from schedulers.protocol import SampleId, Visit

NO_VERSION = -1
"""Weight version of a token that no policy wrote."""


class Role(IntEnum):
    """Who wrote a token."""

    PROMPT = 0
    POLICY = 1
    ENVIRONMENT = 2


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked. Exactly one of `messages`, `text` and `token_ids` is given.

    `id` is stable over epochs and runs. `messages` is a chat, rendered with the tokenizer's template;
    `text` is tokenised as it stands. `reference` is the right answer, for the verifier of `domain`.
    """

    id: str
    messages: tuple[dict[str, str], ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    domain: str = "default"
    reference: str | None = None
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = [name for name in ("messages", "text", "token_ids") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"prompt {self.id!r}: exactly one of messages, text, token_ids is needed, given: {given}"
            )

    def shown(self) -> str:
        """The prompt as a person reads it."""
        if self.messages is not None:
            return "\n".join(f"{m['role']}: {m['content']}" for m in self.messages)
        return self.text if self.text is not None else str(list(self.token_ids or ()))


@dataclass(frozen=True, slots=True)
class SamplingDistribution:
    """The distribution that tokens were drawn from; rides with every sample so that a trainer can replay it."""

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def truncated(self) -> bool:
        """Whether anything but the temperature shapes it: a trainer cannot replay that."""
        return self != SamplingDistribution(temperature=self.temperature)


@dataclass(frozen=True, slots=True)
class Reward:
    """A verdict: a value with its reason, or *invalid* (value None) with the reason why there is none."""

    value: float | None
    reason: str = ""
    extracted: str | None = None
    parts: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def invalid(reason: str) -> Reward:
        return Reward(None, reason)

    @property
    def valid(self) -> bool:
        return self.value is not None


@dataclass(frozen=True, slots=True)
class Times:
    """Wall-clock times in seconds since the epoch; 0 where it has not happened."""

    started_s: float = 0.0
    generated_s: float = 0.0
    scored_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn of an episode: the policy wrote tokens `begin` up to `end` of the trajectory.

    `reward`: of this turn alone; the turns' rewards sum up to the sample's. `state`: a number for the environment's
    state before the turn, None where it names none. `malformed`: the environment could not read the turn.
    """

    begin: int
    end: int
    reward: float = 0.0
    state: int | None = None
    malformed: bool = False


@dataclass(slots=True)
class Sample:
    """One attempt at one response, whole: prompt, policy tokens, environment tokens, reward.

    Shapes: `tokens_T` int32, `roles_T` int8 (`Role`), `logprobs_T` float32 (0 where the policy did not
    write), `versions_T` int32 (`NO_VERSION` where it did not). `finish_reason` is "stop", "length" or
    "abort"; a response cut at its token limit, or an episode cut at a limit of its own, is "length" and counts as
    truncated. `turns`: in their order, one for a response without an environment.
    """

    id: SampleId
    attempt: int
    tokens_T: npt.NDArray[np.int32]
    roles_T: npt.NDArray[np.int8]
    logprobs_T: npt.NDArray[np.float32]
    versions_T: npt.NDArray[np.int32]
    reward: Reward
    finish_reason: str
    sampling: SamplingDistribution
    domain: str = "default"
    times: Times = field(default_factory=Times)
    turns: tuple[TurnRecord, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.tokens_T), len(self.roles_T), len(self.logprobs_T), len(self.versions_T)}
        if len(lengths) != 1:
            raise ValueError(f"sample {self.id}: arrays of different lengths {sorted(lengths)}")

    @property
    def visit(self) -> Visit:
        """The group: samples of one visit are siblings, wherever they stand in a batch."""
        return self.id.visit

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"

    @property
    def n_policy_tokens(self) -> int:
        return int((self.roles_T == Role.POLICY).sum())

    def response_tokens(self) -> npt.NDArray[np.int32]:
        """Everything after the prompt, environment tokens included."""
        return self.tokens_T[self.roles_T != Role.PROMPT]


class TrajectoryBuilder:
    """Builds the four arrays of a `Sample` by appending; nothing that was appended ever changes."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self.roles = array("b")
        self.logprobs = array("f")
        self.versions = array("i")

    def append_given(self, tokens: Sequence[int], role: Role) -> None:
        """Tokens of the prompt or the environment."""
        n = len(tokens)
        self.tokens.extend(tokens)
        self.roles.extend(array("b", [int(role)]) * n)
        self.logprobs.extend(array("f", [0.0]) * n)
        self.versions.extend(array("i", [NO_VERSION]) * n)

    def append_policy(
        self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> None:
        if not len(tokens) == len(logprobs) == len(versions):
            raise ValueError(
                f"{len(tokens)} tokens, {len(logprobs)} log-probabilities, {len(versions)} weight versions: "
                "an engine must report one of each per token"
            )
        self.tokens.extend(tokens)
        self.roles.extend(array("b", [int(Role.POLICY)]) * len(tokens))
        self.logprobs.extend(logprobs)
        self.versions.extend(versions)

    def arrays(self) -> dict[str, Any]:
        return {
            "tokens_T": np.array(self.tokens, np.int32),
            "roles_T": np.array(self.roles, np.int8),
            "logprobs_T": np.array(self.logprobs, np.float32),
            "versions_T": np.array(self.versions, np.int32),
        }
