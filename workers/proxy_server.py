"""An OpenAI-compatible server on the loopback interface, in the event loop of an episode runner.

Invariant. A key belongs to one episode and is worth nothing once that is over.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from workers.proxy_calls import Call, RefusedError, chat_call, chunks_of, models, response_of, text_call
from workers.proxy_session import Session

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 64 * 1024 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AgentProxy:
    """Serves the calls of foreign agents. `open` starts the server when the first episode needs it."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()
        self._port = 0

    @property
    def base_url(self) -> str:
        """What a client takes as its `base_url`."""
        return f"http://{LOOPBACK}:{self._port}/v1"

    async def open(self) -> Session:
        """A session for a new episode, with an unguessable key."""
        async with self._starting:
            if self._runner is None:
                await self._start()
        session = Session(secrets.token_urlsafe(32))
        self._sessions[session.key] = session
        return session

    def revoke(self, session: Session, reason: str) -> None:
        """The episode is over: its key is not known any more, and a call that waits is told the reason."""
        self._sessions.pop(session.key, None)
        session.close(reason)

    async def close(self) -> None:
        """Stop serving."""
        for session in list(self._sessions.values()):
            self.revoke(session, "the proxy is closed")
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _start(self) -> None:
        app = web.Application(middlewares=[_errors_as_json], client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._text)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, 0).start()
        self._port = self._runner.addresses[0][1]

    # --- the calls -------------------------------------------------------------------------------------

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self._session_of(request)
        return web.json_response(models())

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat_call)

    async def _text(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, text_call)

    async def _answer(self, request: web.Request, read: Callable[[Any, bool], Call]) -> web.StreamResponse:
        session = self._session_of(request)
        call = read(await _body(request), request.headers.get("x-stainless-retry-count", "0") != "0")
        answer = await session.answer(call)
        if not call.stream:
            return web.json_response(response_of(call, answer))
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        for chunk in chunks_of(call, answer):
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def _session_of(self, request: web.Request) -> Session:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        session = self._sessions.get(key.strip())
        if scheme.lower() != "bearer" or session is None:
            raise RefusedError(
                401, "the key is not that of an episode that is going on", code="invalid_api_key"
            )
        return session


async def _body(request: web.Request) -> Any:
    try:
        return await request.json()
    except ValueError as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusedError as error:
        return _refusal(error)
    except web.HTTPException as error:
        return _refusal(RefusedError(error.status, f"{request.method} {request.path}: {error.reason}"))
    except Exception as error:  # the boundary to the client
        log.exception("%s %s failed", request.method, request.path)
        return _refusal(RefusedError(500, f"{type(error).__name__}: {error}"))


def _refusal(error: RefusedError) -> web.Response:
    """To ask again would not help, and OpenAI's client would, on its own, after 409 and 503."""
    return web.json_response(error.body(), status=error.status, headers={"x-should-retry": "false"})
