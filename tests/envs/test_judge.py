"""A judge's verdict is its score; what fails three times is invalid with the reason, never 0 (case 17)."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from envs.judge import Ask, JudgeFailedError, JudgeReward, needs_judge
from envs.judge_endpoint import EndpointJudge
from envs.reward_parts import OverlongCharacters, WeightedReward
from envs.task import ScoredView
from roll_ray.sample import Prompt, Reward

VIEW = ScoredView(Prompt("p", text="2 + 2 = {?}", reference="4"), "it is {4}")


def judged(*answers: str | Exception, **options: Any) -> tuple[Reward, list[str]]:
    """The reward by a judge that gives these answers in turn, and what it was asked."""
    asked: list[str] = []
    left = list(answers)

    async def ask(text: str) -> str:
        asked.append(text)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    reward = asyncio.run(JudgeReward(ask, pause_s=0.0, **options)(VIEW))
    return reward, asked


def test_the_score_is_the_reward_and_its_words_are_the_reason() -> None:
    reward, (question,) = judged("Right.\nScore: 8/10")
    assert reward == Reward(0.8, "the judge: Right. Score: 8/10", extracted="it is {4}")
    for shown in ("2 + 2 = {?}", "\n4\n", "it is {4}", "Score: n/10"):
        assert shown in question


def test_three_failed_calls_are_invalid_and_say_so() -> None:
    reward, asked = judged(*[JudgeFailedError("it did not answer within 15 s")] * 3)
    assert (reward.value, reward.reason) == (None, "judge failed: it did not answer within 15 s")
    assert len(asked) == 3


def test_an_answer_without_a_score_is_a_failed_call() -> None:
    assert judged("hm", JudgeFailedError("busy"), "7/10")[0].value == 0.7
    reward, asked = judged("hm", "hm", "let me think")
    assert reward.reason == "judge failed: no score in its answer 'let me think'"
    assert len(asked) == 3


def test_what_another_call_cannot_change_is_not_asked_again() -> None:
    reward, asked = judged(JudgeFailedError("401: wrong key", again=False))
    assert reward.reason == "judge failed: 401: wrong key"
    assert len(asked) == 1


def test_a_template_and_a_parser_of_ones_own() -> None:
    reward, asked = judged(
        "ok", template="{question}{answer}?", parse=lambda text, scale: float(text == "ok")
    )
    assert (reward.value, asked) == (1.0, ["2 + 2 = {?}it is {4}?"])


@pytest.mark.parametrize(
    ("template", "message"),
    [("{answer} {grade}", r"\['grade'\]; known are question"), ("{question}", "nothing to")],
)
def test_a_template_that_cannot_be_filled_is_refused_at_once(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JudgeReward(template=template)


def test_the_runs_judge_is_given_to_whoever_has_none_also_inside_a_weighted_reward() -> None:
    async def ask(text: str) -> str:
        return "5/10"

    async def other(text: str) -> str:
        return "1/10"

    waiting = WeightedReward({"judge": (2.0, JudgeReward()), "length": (1.0, OverlongCharacters(100, 10))})
    assert needs_judge(waiting)
    assert not needs_judge(JudgeReward(other))
    reward = asyncio.run(_awaited(waiting.with_judge(ask)))
    assert (reward.value, reward.parts) == (1.0, {"judge": 1.0, "length": 0.0})
    own = JudgeReward(other).with_judge(ask)
    assert asyncio.run(own(VIEW)).value == 0.1


async def _awaited(function: Any) -> Reward:
    return await function(VIEW)


# --- a server -------------------------------------------------------------------------------------


class Server:
    """Speaks as much of the OpenAI protocol as a judge needs; `answer` gives status and body of each call."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.answer: Callable[[], tuple[int, Any]] = lambda: (200, chat("Score: 8/10"))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                outer.asked.append(json.loads(self.rfile.read(length)))
                outer.keys.append(self.headers["Authorization"])
                status, body = outer.answer()
                payload = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


def chat(text: str | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def ask_endpoint(judge: Ask, n: int = 1) -> list[Reward]:
    async def story() -> list[Reward]:
        return list(await asyncio.gather(*(JudgeReward(judge, pause_s=0.0)(VIEW) for _ in range(n))))

    return asyncio.run(story())


def test_an_endpoint_is_asked_with_model_and_key_and_many_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    judge = pickle.loads(pickle.dumps(EndpointJudge("big-judge", server.url, "JUDGE_KEY", max_new_tokens=9)))
    rewards = ask_endpoint(judge, 8)
    assert [r.value for r in rewards] == [0.8] * 8
    first = server.asked[0]
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("big-judge", 0.0, 9)
    assert "it is {4}" in first["messages"][0]["content"]
    assert set(server.keys) == {"Bearer secret"}
    assert "secret" not in repr(judge)


@pytest.mark.parametrize(
    ("answers", "calls", "reason"),
    [
        ([(500, {})], 3, "answered 500"),
        ([(401, {"error": {"message": "no"}})], 1, r"answered 401 \(JUDGE_KEY is not set\)"),
        ([(200, chat(None))], 3, "an answer without text"),
        ([(200, {"choices": []})], 3, "an answer without text"),
    ],
)
def test_what_an_endpoint_refuses_is_the_reason(
    server: Server, monkeypatch: pytest.MonkeyPatch, answers: list[Any], calls: int, reason: str
) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    server.answer = lambda: answers[0]
    (reward,) = ask_endpoint(EndpointJudge("m", server.url, "JUDGE_KEY"))
    assert reward.value is None
    assert reward.reason.startswith("judge failed: http://127.0.0.1")
    assert re.search(reason, reward.reason)
    assert len(server.asked) == calls


def test_an_endpoint_that_is_slow_or_not_there_is_the_reason(server: Server) -> None:
    release = threading.Event()

    def late() -> tuple[int, Any]:
        release.wait(5)
        return 200, chat("1/10")

    server.answer = late
    (reward,) = ask_endpoint(EndpointJudge("m", server.url, timeout_s=0.05))
    release.set()
    assert reward.reason.endswith("did not answer within 0.05 s")
    (reward,) = ask_endpoint(EndpointJudge("m", "http://127.0.0.1:9/v1", timeout_s=2))
    assert "judge failed: http://127.0.0.1:9/v1: Connection error" in reward.reason
