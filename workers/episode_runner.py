"""The episode runner: plays the attempts it is given and reports what happened, as events and receipts.

Invariant. Each attempt that was launched here and not aborted ends in exactly one event, `Scored` or
`Failed`; `Scored` with a reward is reported only when a store holds the sample. Reports are kept until the
rollout manager acknowledges them, so it may restart at any time.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.task import Tokenizer
from roll_ray.actors import Actor
from roll_ray.errors import WorkerDiedError
from roll_ray.sample import NO_VERSION, Prompt, Reward, Role, Sample, SamplingDistribution, Times
from roll_ray.worker_protocols import EvaluationAnswer
from schedulers.protocol import Aborted, Event, Failed, Generated, Launch, SampleId, Scored, Started, Visit
from workers.engine_client import EngineClient
from workers.episode import Episode, EpisodeFailedError, seed_of
from workers.episode_player import EpisodePlayer, RunnerSpec, settled
from workers.generation_types import Engine, GenerationFailedError
from workers.prompt_books import PromptBooks, TokenCache
from workers.reports import Fenced, ReportBox, Reports
from workers.reward_client import RewardClient
from workers.reward_worker import RewardWorker
from workers.sample_store import SampleStore
from workers.store_client import StoreClient
from workers.tokenizer import load_tokenizer

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Attempt:
    """An attempt under way. `phase` says whom it waits for, an episode that is being played knows better."""

    sample: SampleId
    number: int
    since_s: float
    phase: str = "prompt"
    task: asyncio.Task[None] | None = None
    episode: Episode | None = None

    def enters(self, phase: str) -> None:
        self.phase, self.since_s = phase, time.time()

    def waits_for(self) -> tuple[str, float]:
        """The phase, and since when, in seconds since the epoch."""
        if self.phase == "playing" and self.episode is not None:
            return self.episode.phase, self.episode.since_s
        return self.phase, self.since_s


class EpisodeRunner:
    """Plays episodes through engines, reward workers and the store of its node. All methods are async."""

    def __init__(
        self,
        spec: RunnerSpec,
        engines: Sequence[Actor[Engine]],
        rewards: Sequence[Actor[RewardWorker]],
        store: Actor[SampleStore],
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.spec, self.incarnation = spec, uuid.uuid4().hex[:12]
        self._engines = EngineClient(f"{spec.name}/{self.incarnation}", engines)
        self._rewards = RewardClient(rewards, spec.reward_timeout_s)
        self._store = StoreClient(store)
        self._tokens = TokenCache(tokenizer)
        self._player = EpisodePlayer(spec, self._engines, self._rewards, spec.stop_token_ids)
        self._books = PromptBooks()
        self._box = ReportBox(spec.name, self.incarnation)
        self._attempts: dict[SampleId, _Attempt] = {}
        self._evaluations = 0
        self._ready: asyncio.Task[None] | None = None

    # --- what the rollout manager asks -----------------------------------------------------------

    async def launch(self, orders: Sequence[Launch], prompts_ref: Any) -> str:
        """Begin these attempts; `prompts_ref` leads to their prompts by id. Returns this incarnation."""
        await self._start()
        self._books.add([order.visit for order in orders], prompts_ref)
        now_s = time.time()
        for order in orders:
            for index in order.sample_indices:
                attempt = _Attempt(SampleId(order.visit, index), order.attempt, now_s)
                self._stop(self._attempts.pop(attempt.sample, None))
                self._attempts[attempt.sample] = attempt
                attempt.task = asyncio.create_task(self._run(attempt))
        return self.incarnation

    async def keep_prompts(self, visits: Sequence[Visit], prompts_ref: Any) -> None:
        """Remember through which handle these visits' prompts are found, for whoever launches them."""
        self._books.add(visits, prompts_ref)

    async def abort(self, samples: Sequence[SampleId]) -> None:
        """Stop these samples' attempts; `Aborted` is reported for those that were going on."""
        now_s, events = time.time(), list[Event]()
        for sample in samples:
            attempt = self._attempts.pop(sample, None)
            if attempt is not None:
                n_tokens = attempt.episode.n_policy_tokens if attempt.episode else 0
                events.append(Aborted(now_s, sample, attempt.number, n_tokens))
                self._stop(attempt)
        if events:
            self._box.put(events)

    async def reports(self, acknowledged: int, timeout_s: float) -> Reports:
        """What happened after event number `acknowledged`, which the manager has safely logged."""
        return await self._box.fetch(acknowledged, timeout_s)

    async def fence(self) -> Fenced:
        """Stop everything and forget every report: the manager begins anew with this runner."""
        for attempt in self._attempts.values():
            self._stop(attempt)
        self._attempts.clear()
        self._box.clear()
        return Fenced(self.incarnation, self._books.handles())

    async def forget(self, visits: Sequence[Visit]) -> None:
        """These visits are over: their prompts are not needed any more."""
        self._books.forget(visits)
        self._tokens.forget(visits)

    async def waiting_for(self) -> dict[str, Any]:
        """Whom this runner's attempts wait for, how many by phase and worker, and the one that has waited longest:
        `oldest`, since `oldest_s` seconds."""
        waits = [(attempt, *attempt.waits_for()) for attempt in self._attempts.values()]
        oldest, _, since_s = min(waits, key=lambda wait: wait[2], default=(None, "", time.time()))
        return {
            "attempts": len(waits),
            "phases": dict(Counter(phase for _, phase, _ in waits)),
            "engines": self._engines.waiting_for(),
            "rewards": self._rewards.waiting_for(),
            "oldest": "" if oldest is None else self._described(oldest),
            "oldest_s": time.time() - since_s,
        }

    # --- what the driver asks ----------------------------------------------------------------------

    async def weights_version(self, version: int, ready: Sequence[str]) -> None:
        """Weights `version` are published, and the engines named in `ready` hold them; others get nothing."""
        self._engines.weights_version(version, ready)

    async def evaluate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingDistribution,
        max_new_tokens: int,
    ) -> list[EvaluationAnswer]:
        """Play one episode for each prompt, beside the scheduler: judged, but neither stored nor reported."""
        await self._start()
        self._evaluations += 1
        return list(
            await asyncio.gather(
                *(
                    self._evaluate(prompt, SampleId(Visit(prompt.id, i), 0), sampling, max_new_tokens)
                    for i, prompt in enumerate(prompts)
                )
            )
        )

    async def metrics(self) -> dict[str, float]:
        counters = {f"engine_client_{name}": float(n) for name, n in self._engines.counters.items()}
        return {**counters, "attempts": float(len(self._attempts))}

    async def close(self) -> None:
        """Stop everything (tests and the end of a run)."""
        await self.fence()
        await self._engines.close()
        await self._rewards.close()

    # --- one attempt -------------------------------------------------------------------------------

    async def _run(self, attempt: _Attempt) -> None:
        """Play, score, store, report."""
        sample, number = attempt.sample, attempt.number
        try:
            event, receipts = await self._scored(attempt)
        except (EpisodeFailedError, GenerationFailedError, WorkerDiedError) as error:
            event, receipts = Failed(time.time(), sample, number, str(error)), []
        except Exception as error:
            # The boundary to user code (environment, tokenizer) and the store: a fault becomes an event.
            log.exception("%s: attempt %d of %s failed", self.spec.name, number, sample)
            event, receipts = Failed(time.time(), sample, number, f"{type(error).__name__}: {error}"), []
        if self._attempts.get(sample) is attempt:
            del self._attempts[sample]
            self._box.put([event], receipts)

    async def _scored(self, attempt: _Attempt) -> tuple[Event, list[Any]]:
        spec, sample, number = self.spec, attempt.sample, attempt.number
        prompt = await self._books.prompt(sample.visit)
        attempt.episode = episode = Episode(prompt, seed_of(spec.seed, sample, number))
        started_s = time.time()

        def started(version: int) -> None:
            self._box.put([Started(time.time(), sample, number, version)])

        attempt.enters("playing")
        tokenizer, name = self._tokens.of(sample.visit), _name(sample, number)
        await self._player.play(episode, tokenizer, name, spec.sampling, spec.max_new_tokens, started)
        generated_s = time.time()
        n_tokens = episode.n_policy_tokens
        self._box.put([Generated(generated_s, sample, number, n_tokens, episode.finish_reason)])
        attempt.enters("scoring")
        reward = await self._player.reward(episode, sample, number)
        trajectory = episode.trajectory.arrays()
        if spec.shaping is not None:
            policy_tokens = trajectory["tokens_T"][trajectory["roles_T"] == Role.POLICY]
            reward = spec.shaping.shape(reward, policy_tokens, episode.turns)
        scored_s = time.time()
        if reward.value is None:
            return Scored(scored_s, sample, number, None, reward.reason), []
        attempt.enters("storing")
        format_penalty = spec.shaping.format_penalty if spec.shaping is not None else 0.0
        receipt = await self._store.put(
            Sample(
                id=sample,
                attempt=number,
                reward=reward,
                finish_reason=episode.finish_reason,
                sampling=spec.sampling,
                domain=prompt.domain,
                times=Times(started_s, generated_s, scored_s),
                turns=settled(episode.turns, reward.value, format_penalty),
                **trajectory,
            )
        )
        return Scored(scored_s, sample, number, reward.value, reward.reason), [receipt]

    async def _evaluate(
        self, prompt: Prompt, sample: SampleId, sampling: SamplingDistribution, max_new_tokens: int
    ) -> EvaluationAnswer:
        episode = Episode(prompt, seed_of(self.spec.seed, SampleId(Visit(prompt.id, 0), 0), 0))
        name = f"{self.incarnation}/evaluation-{self._evaluations}/{_name(sample, 0)}"
        try:
            await self._player.play(episode, self._tokens.uncached, name, sampling, max_new_tokens)
            reward = await self._player.reward(episode, sample, 0)
        except (EpisodeFailedError, GenerationFailedError) as error:
            reward = Reward.invalid(str(error))
        except WorkerDiedError:
            raise
        except Exception as error:
            # The boundary to user code, as in `_run`: one environment's fault ends one answer.
            log.exception("%s: evaluation of prompt %s failed", self.spec.name, prompt.id)
            reward = Reward.invalid(f"{type(error).__name__}: {error}")
        versions = [NO_VERSION, *episode.trajectory.versions]
        return EvaluationAnswer(prompt.id, episode.text, reward, episode.n_policy_tokens, max(versions))

    # --- means ---------------------------------------------------------------------------------------

    def _described(self, attempt: _Attempt) -> str:
        """An attempt and whom it waits for: of an environment its name, seed and turn."""
        phase, _ = attempt.waits_for()
        episode, prompt_id = attempt.episode, attempt.sample.visit.prompt_id
        if episode is None or phase != "environment":
            return f"{prompt_id} ({phase})"
        return f"{prompt_id} ({episode.environment}, seed {episode.seed}, turn {episode.turn})"

    def _stop(self, attempt: _Attempt | None) -> None:
        if attempt is not None and attempt.task is not None:
            attempt.task.cancel()

    async def _start(self) -> None:
        """Load the tokenizer and greet engines and reward workers, once, however many ask."""
        if self._ready is None:
            self._ready = asyncio.create_task(self._get_ready())
        try:
            await asyncio.shield(self._ready)
        except Exception:
            self._ready = None  # the next call tries again
            raise

    async def _get_ready(self) -> None:
        if self._tokens.tokenizer is None:
            tokenizer = await asyncio.to_thread(load_tokenizer, self.spec.model)
            if not self.spec.ignore_eos:
                ends = {*self._player.stop_token_ids, *tokenizer.end_token_ids()}
                self._player.stop_token_ids = tuple(sorted(ends))
            self._tokens.tokenizer = tokenizer
        await asyncio.gather(self._engines.start(), self._rewards.start())


def _name(sample: SampleId, attempt: int) -> str:
    """Of an attempt, for the requests to the engines."""
    return f"{sample.visit.prompt_id}/{sample.visit.number}/{sample.index}@{attempt}"
