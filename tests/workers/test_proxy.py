"""A foreign agent's calls through OpenAI's client become trajectories with exact tokens and log-probabilities."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from roll_ray.sample import Prompt, Reward, Role, Sample
from schedulers.protocol import Aborted, Failed, Scored
from tests.workers.proxy_bench import ANSWER_TOKENS, bench, play
from tests.workers.scripted_engine import logprob_at, token_at
from workers.proxy import ForeignAgent

PROMPT = Prompt("p", text="7 7 7")
N = ANSWER_TOKENS


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def ask(client: openai.OpenAI, messages: list[Any], **how: Any) -> Any:
    """The answer, which is appended to the messages as agents do."""
    response = client.chat.completions.create(model="any", messages=messages, **how)
    messages.append(response.choices[0].message)
    return response


def two_turns(base_url: str, api_key: str, prompt: Prompt) -> float:
    client = openai.OpenAI(base_url=base_url, api_key=api_key)
    first = int(str(prompt.text).split()[0])
    messages: list[Any] = [{"role": "system", "content": f"{first} 1"}, user("2")]
    ask(client, messages)
    messages.append(user("3 4"))
    ask(client, messages)
    return float(first)


def expected(first: int, given: list[list[int]]) -> tuple[list[int], list[int]]:
    """Tokens and roles of a trajectory in which the scripted engine answers each of these givens."""
    tokens: list[int] = []
    roles: list[int] = []
    for i, tokens_given in enumerate(given):
        tokens += tokens_given
        roles += [int(Role.ENVIRONMENT if i else Role.PROMPT)] * len(tokens_given)
        tokens += [token_at(first, p) for p in range(len(tokens), len(tokens) + N)]
        roles += [int(Role.POLICY)] * N
    return tokens, roles


def check(sample: Sample, first: int, given: list[list[int]]) -> None:
    """The sample is what the scripted engine wrote, with its log-probabilities and versions."""
    tokens, roles = expected(first, given)
    assert sample.tokens_T.tolist() == tokens
    assert sample.roles_T.tolist() == roles
    policy = sample.roles_T == Role.POLICY
    wanted = [logprob_at(p) if policy[p] else 0.0 for p in range(len(tokens))]
    np.testing.assert_array_equal(sample.logprobs_T, np.float32(wanted))
    assert sample.versions_T.tolist() == [0 if p else -1 for p in policy]


def test_two_turns_of_a_plain_client_are_one_exact_trajectory_with_the_agents_reward() -> None:
    (sample,) = play(two_turns, PROMPT)
    check(sample, 7, [[7, 1, 2], [3, 4]])
    assert sample.reward.value == 7.0


def test_episodes_at_the_same_time_do_not_mix() -> None:
    firsts = range(3, 9)
    samples = play(two_turns, *(Prompt(f"p{i:02d}", text=f"{i} 0") for i in firsts))
    for first, sample in zip(firsts, samples, strict=True):
        check(sample, first, [[first, 1, 2], [3, 4]])
        assert sample.reward.value == first


def test_an_async_agent_without_a_verdict_leaves_it_to_the_reward_function() -> None:
    async def agent(base_url: str, api_key: str, prompt: Prompt) -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            answer = await client.chat.completions.create(model="m", messages=[user("7 5")])
            messages = [user("7 5"), {"role": "assistant", "content": answer.choices[0].message.content}]
            await client.chat.completions.create(model="m", messages=[*messages, user("6")])

    (sample,) = play(agent, PROMPT)
    check(sample, 7, [[7, 5], [6]])
    assert sample.reward.value == 2.0


def test_a_text_that_is_continued_is_one_trajectory() -> None:
    def agent(base_url: str, api_key: str, prompt: Prompt) -> Reward:
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        first = client.completions.create(model="m", prompt="7 8", logprobs=0)
        assert first.choices[0].logprobs.token_logprobs == [logprob_at(p) for p in range(2, 2 + N)]
        client.completions.create(model="m", prompt="7 8" + first.choices[0].text + " 9")
        return Reward(0.5, "half")

    (sample,) = play(agent, PROMPT)
    check(sample, 7, [[7, 8], [9]])
    assert (sample.reward.value, sample.reward.reason) == (0.5, "half")


def test_an_answer_has_its_text_usage_and_log_probabilities_and_a_call_may_lower_the_limit() -> None:
    seen: list[Any] = []

    def agent(base_url: str, api_key: str, prompt: Prompt) -> float:
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        assert [model.id for model in client.models.list()] == ["policy"]
        messages: list[Any] = [user("7 7")]
        seen.append(ask(client, messages, logprobs=True))
        messages.append(user("1"))
        seen.append(ask(client, messages, max_tokens=2))
        return 1.0

    (sample,) = play(agent, PROMPT)
    whole, cut = seen
    drawn = [token_at(7, p) for p in range(2, 2 + N)]
    assert whole.choices[0].message.content == " ".join(map(str, drawn))
    assert whole.choices[0].finish_reason == "stop"
    content = whole.choices[0].logprobs.content
    assert [c.token for c in content] == [f"token_id:{t}" for t in drawn]
    assert [c.logprob for c in content] == [logprob_at(p) for p in range(2, 2 + N)]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, N)
    assert (cut.choices[0].finish_reason, cut.choices[0].logprobs) == ("length", None)
    assert (cut.usage.prompt_tokens, cut.usage.completion_tokens) == (2 + N + 1, 2)
    assert sample.tokens_T.tolist()[-2:] == [token_at(7, p) for p in range(3 + N, 5 + N)]


def test_a_stream_has_the_text_the_end_and_the_usage() -> None:
    seen: list[Any] = []

    def agent(base_url: str, api_key: str, prompt: Prompt) -> float:
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        seen.extend(client.chat.completions.create(model="m", messages=[user("7")], **options))
        return 1.0

    play(agent, PROMPT)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in seen if chunk.choices)
    assert text == " ".join(str(token_at(7, p)) for p in range(1, 1 + N))
    assert [c.choices[0].finish_reason for c in seen if c.choices] == [None, "stop"]
    assert seen[-1].usage.completion_tokens == N


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda m: [user("8"), m[1], user("1")],
            r"messages\[0\] is user: '8', but what was said there is user: '7'",
        ),
        (
            lambda m: [m[0], {"role": "assistant", "content": "no"}, user("1")],
            r"messages\[1\] is assistant: 'no'",
        ),
        (lambda m: [user("7")], r"messages\[1\], assistant: .* is missing"),
        (
            lambda m: [*m, {"role": "assistant", "content": "1"}, user("1")],
            r"messages\[2\], assistant: '1', is not",
        ),
    ],
)
def test_edited_history_is_refused_and_named_and_the_trajectory_goes_on(edit: Any, words: str) -> None:
    def agent(base_url: str, api_key: str, prompt: Prompt) -> float:
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        messages: list[Any] = [user("7")]
        ask(client, messages)
        messages[1] = {"role": "assistant", "content": f"\n{messages[1].content} "}
        with pytest.raises(openai.ConflictError, match=words):
            ask(client, edit(messages))
        ask(client, [*messages, user("1")])
        return 1.0

    (sample,) = play(agent, PROMPT)
    check(sample, 7, [[7], [1]])


def test_a_key_is_worth_nothing_if_it_is_wrong_or_its_episode_over() -> None:
    keys: list[tuple[str, str]] = []

    def agent(base_url: str, api_key: str, prompt: Prompt) -> float:
        keys.append((base_url, api_key))
        with pytest.raises(openai.AuthenticationError, match="not that of an episode"):
            ask(openai.OpenAI(base_url=base_url, api_key=api_key + "x"), [user("7")])
        ask(openai.OpenAI(base_url=base_url, api_key=api_key), [user("7")])
        return 1.0

    async def story() -> None:
        async with bench(agent) as made:
            await made.played(PROMPT, Prompt("q", text="1"))
            assert len({key for _, key in keys}) == 2
            for base_url, key in keys:
                assert base_url.startswith("http://127.0.0.1:")
                client = openai.AsyncOpenAI(base_url=base_url, api_key=key)
                with pytest.raises(openai.AuthenticationError):
                    await client.chat.completions.create(model="m", messages=[user("7")])  # type: ignore[list-item]

    asyncio.run(story())


def raises(base_url: str, api_key: str, prompt: Prompt) -> float:
    ask(openai.OpenAI(base_url=base_url, api_key=api_key), [user("7")])
    raise ZeroDivisionError("this agent cannot count")


def exits(base_url: str, api_key: str, prompt: Prompt) -> float:
    ask(openai.OpenAI(base_url=base_url, api_key=api_key), [user("7")])
    sys.exit(3)


async def exits_async(base_url: str, api_key: str, prompt: Prompt) -> float:
    sys.exit(4)


async def cancels_itself(base_url: str, api_key: str, prompt: Prompt) -> float:
    raise asyncio.CancelledError


def never_calls(base_url: str, api_key: str, prompt: Prompt) -> float:
    return 1.0


def calls_with_tools(base_url: str, api_key: str, prompt: Prompt) -> float:
    ask(openai.OpenAI(base_url=base_url, api_key=api_key), [user("7")], temperature=0.5)
    return 1.0


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (raises, "prompt p: the agent raised ZeroDivisionError: this agent cannot count"),
        (exits, "prompt p: the agent raised AgentExitedError: 3"),
        (exits_async, "prompt p: the agent raised AgentExitedError: 4"),
        (cancels_itself, "prompt p: the agent raised CancelledError"),
        (never_calls, "prompt p: the agent ended without a call"),
        (calls_with_tools, "temperature=0.5 is not supported"),
    ],
)
def test_an_agent_that_fails_is_a_failed_attempt_with_the_reason(agent: Any, words: str) -> None:
    (event,) = play(agent, PROMPT)
    assert isinstance(event, Failed)
    assert words in event.reason


def test_a_reward_that_is_no_number_is_invalid() -> None:
    def agent(base_url: str, api_key: str, prompt: Prompt) -> Any:
        ask(openai.OpenAI(base_url=base_url, api_key=api_key), [user("7")])
        return "very good"

    (event,) = play(agent, PROMPT)
    assert isinstance(event, Scored)
    assert "very good" in event.reason


def test_an_agent_that_hangs_is_ended_by_the_episodes_time_out_and_its_next_call_refused() -> None:
    refused = threading.Event()

    over = threading.Event()

    def agent(base_url: str, api_key: str, prompt: Prompt) -> float:
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        over.wait(20.0)
        try:
            ask(client, [user("7")])
        except openai.AuthenticationError:
            refused.set()
        return 1.0

    async def story() -> Any:
        async with bench(agent, episode_timeout_s=0.3) as made:
            (event,) = await made.played(PROMPT)
            over.set()
            assert await asyncio.to_thread(refused.wait, 5.0)
            return event

    event = asyncio.run(story())
    assert isinstance(event, Failed)
    assert "episode_timeout_s=0.3" in event.reason


def test_an_episode_at_its_last_turn_is_truncated_and_scored_and_its_agent_told() -> None:
    refusals: list[str] = []

    def agent(base_url: str, api_key: str, prompt: Prompt) -> float:
        client = openai.OpenAI(base_url=base_url, api_key=api_key)
        messages: list[Any] = [user("7")]
        ask(client, messages)
        try:
            ask(client, [*messages, user("1")])
        except openai.InternalServerError as error:
            refusals.append(error.message)
        return 100.0

    (sample,) = play(agent, PROMPT, max_turns=1)
    check(sample, 7, [[7]])
    assert (sample.finish_reason, sample.reward.value) == ("length", 1.0)
    assert "the episode is over" in refusals[0]


def test_a_coroutine_that_blocks_its_loop_does_not_hold_up_the_runner() -> None:
    async def agent(base_url: str, api_key: str, prompt: Prompt) -> float:
        ask(openai.OpenAI(base_url=base_url, api_key=api_key), [user("7")])  # not an async client
        return 1.0

    samples = play(agent, *(Prompt(f"p{i}", text="7") for i in range(3)))
    for sample in samples:
        check(sample, 7, [[7]])


def test_an_aborted_episode_ends_its_agent_and_answers_the_call_that_waits() -> None:
    ended: list[str] = []

    async def agent(base_url: str, api_key: str, prompt: Prompt) -> float:
        try:
            async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
                await client.chat.completions.create(model="m", messages=[user("7")])  # type: ignore[list-item]
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return 1.0

    refusals: list[int] = []

    def in_a_thread(base_url: str, api_key: str, prompt: Prompt) -> float:
        try:
            ask(openai.OpenAI(base_url=base_url, api_key=api_key), [user("7")])
        except openai.InternalServerError as error:
            refusals.append(error.status_code)
        return 1.0

    async def story(kind: Any, happened: list[Any]) -> None:
        async with bench(kind) as made:
            made.engine.hold = True
            samples = await made.launch([PROMPT])
            while not made.engine.submitted:
                await asyncio.sleep(0.01)
            await made.runner.abort(samples)
            (event,) = await made.outcomes(samples)
            assert isinstance(event, Aborted)
            async with asyncio.timeout(5.0):
                while not happened:
                    await asyncio.sleep(0.01)

    asyncio.run(story(agent, ended))
    asyncio.run(story(in_a_thread, refusals))
    assert (ended, refusals) == (["cancelled"], [503])


def test_calls_of_an_episode_go_one_after_another_and_a_call_sent_again_gets_the_first_answer() -> None:
    seen: list[Any] = []

    async def agent(base_url: str, api_key: str, prompt: Prompt) -> float:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:

            async def call(retries: str) -> Any:
                again = {"x-stainless-retry-count": retries}
                how: dict[str, Any] = {"model": "m", "messages": [user("7")], "extra_headers": again}
                return (await client.chat.completions.create(**how)).choices[0].message.content

            first = asyncio.create_task(call("0"))
            await asyncio.sleep(0.1)
            seen.extend(await asyncio.gather(first, call("0"), call("1"), return_exceptions=True))
            seen.append(await call("1"))
        return 1.0

    (sample,) = play(agent, PROMPT, tick_s=0.1)
    first, parallel, again, later = seen
    assert first == again == later == " ".join(str(token_at(7, p)) for p in range(1, 1 + N))
    assert isinstance(parallel, openai.ConflictError)
    assert "one after another" in parallel.message
    check(sample, 7, [[7]])


PROGRAM = """
import json, os, sys, urllib.request
prompt = json.load(sys.stdin)
body = {"messages": [{"role": "user", "content": prompt["text"]}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


def test_a_program_finds_url_and_key_in_its_environment_and_prints_its_reward() -> None:
    verdict = "print(json.dumps({'reward': 0.25, 'reason': 'a quarter'}))"
    (sample,) = play([sys.executable, "-c", PROGRAM + verdict], PROMPT)
    check(sample, 7, [[7, 7, 7]])
    assert (sample.reward.value, sample.reward.reason) == (0.25, "a quarter")


@pytest.mark.parametrize(
    ("last", "words"),
    [("sys.exit('no luck')", "ended with status 1: no luck"), ("print('fine')", "is no reward: 'fine'")],
)
def test_a_program_that_fails_says_why(last: str, words: str) -> None:
    (event,) = play([sys.executable, "-c", PROGRAM + last], PROMPT)
    assert isinstance(event, Failed)
    assert words in event.reason


def test_a_program_whose_episode_ends_is_killed_with_what_it_started(tmp_path: Path) -> None:
    seen = tmp_path / "pids"
    sleeper = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(seen)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}.")
time.sleep(60)
"""

    async def story() -> None:
        async with bench([sys.executable, "-c", sleeper]) as made:
            samples = await made.launch([PROMPT])
            while not seen.exists() or not seen.read_text().endswith("."):
                await asyncio.sleep(0.02)
            await made.runner.abort(samples)
            assert isinstance((await made.outcomes(samples))[0], Aborted)
            for pid in seen.read_text().rstrip(".").split():
                assert not await asyncio.to_thread(_running, int(pid))

    asyncio.run(asyncio.wait_for(story(), 30.0))


def _running(pid: int) -> bool:
    """Zombies, whose parent has not asked for them yet, do not run."""
    deadline_s = time.monotonic() + 5.0
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


def test_a_factory_travels_to_its_runner_before_it_has_served() -> None:
    assert pickle.loads(pickle.dumps(ForeignAgent(two_turns))).agent is two_turns
