"""Foreign agents as environments: what the agent asks is the observation, what the policy answers is the turn.

The agent drives its own loop and calls the policy through OpenAI's API on the loopback interface. The episode
is played as any other, so tokens, log-probabilities, weight versions and limits are those of any other.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import dataclass

from envs.task import Observation, StepResult, Turn
from roll_ray.interruption import cancelled
from roll_ray.sample import Prompt
from workers.episode import EpisodeFailedError
from workers.proxy_agents import Agent, AgentLoop, Verdict, run_agent
from workers.proxy_server import AgentProxy
from workers.proxy_session import Session

log = logging.getLogger(__name__)


class AgentFailedError(EpisodeFailedError):
    """The agent raised, or ended without a call; the message names the prompt and what it raised."""


class ForeignAgent:
    """The environment factory of an agent: `Task(environments={"domain": ForeignAgent(agent)})`.

    `agent(base_url, api_key, prompt)` is a function, async or not, or the words of a command line, which finds
    the first two as OPENAI_BASE_URL and OPENAI_API_KEY. What it returns is the episode's reward; None leaves
    that to the domain's reward function. The server starts with the first episode and lives as long as the runner.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._proxy: AgentProxy | None = None
        self._loop: AgentLoop | None = None
        self._logged: set[str] = set()

    def __call__(self) -> AgentEpisode:
        if self._proxy is None or self._loop is None:
            self._proxy, self._loop = AgentProxy(), AgentLoop()
        return AgentEpisode(self, self._proxy, self._loop)

    def __getstate__(self) -> Agent:
        return self.agent

    def __setstate__(self, agent: Agent) -> None:
        ForeignAgent.__init__(self, agent)

    def log_once(self, prompt_id: str, error: BaseException) -> None:
        """The traceback of a fault, the first time that one comes from its place."""
        place = "".join(traceback.format_tb(error.__traceback__))
        if place not in self._logged:
            self._logged.add(place)
            log.warning("the agent of prompt %s failed", prompt_id, exc_info=error)

    async def close(self) -> None:
        """Stop the server and the agents' loop (tests; a runner's end with its process)."""
        if self._proxy is not None and self._loop is not None:
            await self._proxy.close()
            self._loop.close()
        self._proxy = self._loop = None


@dataclass(frozen=True, slots=True)
class _Begun:
    prompt_id: str
    session: Session
    work: asyncio.Task[Verdict]


class AgentEpisode:
    """One episode of a foreign agent, as an `Environment`."""

    def __init__(self, agents: ForeignAgent, proxy: AgentProxy, loop: AgentLoop) -> None:
        self._agents, self._proxy, self._loop = agents, proxy, loop
        self._begun: _Begun | None = None

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        """Start the agent; its first call is the observation."""
        session = await self._proxy.open()
        agent, url, key = self._agents.agent, self._proxy.base_url, session.key
        work = asyncio.create_task(run_agent(agent, self._loop, url, key, prompt))
        self._begun = _Begun(prompt.id, session, work)
        first = await self._asked(self._begun)
        if first is None:
            raise AgentFailedError(f"prompt {prompt.id}: the agent ended without a call to the policy")
        return first

    async def step(self, response: Turn) -> StepResult:
        """Answer the call; the next one is the observation, and the agent's end is the episode's."""
        begun = self._begun
        assert begun is not None
        begun.session.give(response)
        asked = await self._asked(begun)
        if asked is not None:
            return StepResult(asked)
        return StepResult(reward=begun.work.result(), terminated=True)

    async def close(self) -> None:
        """End the agent, whatever it does, and its key."""
        if self._begun is None:
            return
        session, work = self._begun.session, self._begun.work
        self._proxy.revoke(session, "the episode is over")
        await cancelled(work)
        if work.done() and not work.cancelled():
            work.exception()  # it may have failed while nobody asked

    async def _asked(self, begun: _Begun) -> Observation | None:
        """The next call's new part; None when the agent has ended. Raises `AgentFailedError`."""
        work = begun.work
        asked = asyncio.create_task(begun.session.asked())
        try:
            await asyncio.wait({asked, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return asked.result()
        finally:
            asked.cancel()
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        if error is None:
            return None
        self._agents.log_once(begun.prompt_id, error)
        raise AgentFailedError(
            f"prompt {begun.prompt_id}: the agent raised {type(error).__name__}: {error}"
        ) from error
