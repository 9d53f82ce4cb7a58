"""Performs the steps of requests: with blocking calls, or on an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

import httpx2

from . import _api
from ._adds import Adds
from ._http import CONNECT_TIMEOUT_S, MAX_ANSWER_BYTES, Answer, Attempt, Core, Item, Pause, Steps
from .errors import Foreign, NoAnswer, TurnwiseError
from .middleware import Adding
from .models import AddedJob

T = TypeVar("T")

# The errors of requests that have certainly not reached the server.
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


def _settings(connections: int) -> dict[str, Any]:
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=30)
    # Like the other clients: no proxy of the environment, and no other credentials from there.
    return {"limits": limits, "trust_env": False, "follow_redirects": False}


def _arguments(step: Attempt, token: str | None) -> dict[str, Any]:
    timeout = httpx2.Timeout(step.wait + step.timeout, connect=CONNECT_TIMEOUT_S, pool=step.timeout)
    arguments = {"content": step.body(), "headers": step.headers(token), "timeout": timeout}
    return {"method": step.request.method, "url": step.url(), **arguments}


def _lost(step: Attempt, error: Exception) -> NoAnswer:
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return NoAnswer(step.server.url, cause, maybe_sent=not isinstance(error, _UNSENT))


def _answer(response: httpx2.Response, body: bytes) -> Answer:
    media_type = response.headers.get("content-type", "").split(";")[0].strip().lower()
    return Answer(response.status_code, media_type, body)


def _too_large(step: Attempt, response: httpx2.Response) -> Foreign:
    return Foreign(step.server.url, response.status_code, f"more than {MAX_ANSWER_BYTES} bytes")


class Transport:
    """Performs steps with blocking calls. Threads may share it."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._http = httpx2.Client(**_settings(100))

    def close(self) -> None:
        self._http.close()

    def run(self, steps: Steps[T]) -> T:
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                value: T = end.value
                return value
            outcome = self._perform(step)

    def add(self, adding: Adding) -> AddedJob:
        return self.run(_api.add(self.core, adding))

    def iterate(self, steps: Steps[None]) -> Iterator[Any]:
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration:
                return
            outcome = None
            if isinstance(step, Item):
                yield step.value
            else:
                outcome = self._perform(step)

    def _perform(self, step: Any) -> Answer | TurnwiseError | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        body = bytearray()
        try:
            with self._http.stream(**_arguments(step, self.core.token)) as response:
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > MAX_ANSWER_BYTES:
                        return _too_large(step, response)
                return _answer(response, bytes(body))
        except httpx2.HTTPError as error:
            return _lost(step, error)


class AsyncTransport:
    """Performs steps on the running event loop. A loop has its own connections, so one client may serve several loops in turn."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http: httpx2.AsyncClient | None = None
        self._adds: Adds | None = None

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None and self._loop is asyncio.get_running_loop():
            await http.aclose()

    def _client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._http is None or self._loop is not loop:
                self._loop, self._http = loop, httpx2.AsyncClient(**_settings(100))
            return self._http

    async def run(self, steps: Steps[T]) -> T:
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                value: T = end.value
                return value
            outcome = await self._perform(step)

    async def add(self, adding: Adding) -> AddedJob:
        """Adds a job, in one request with others that are added now if repeating them is harmless."""
        if adding.headers or not _api.is_idempotent(adding.jobs[0]):
            return await self.run(_api.add(self.core, adding))
        if self._adds is None or self._adds.loop is not asyncio.get_running_loop():
            self._adds = Adds(self.core, self.run)
        return await self._adds.add(adding)

    async def iterate(self, steps: Steps[None]) -> AsyncIterator[Any]:
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration:
                return
            outcome = None
            if isinstance(step, Item):
                yield step.value
            else:
                outcome = await self._perform(step)

    async def _perform(self, step: Any) -> Answer | TurnwiseError | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        body = bytearray()
        try:
            async with self._client().stream(**_arguments(step, self.core.token)) as response:
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > MAX_ANSWER_BYTES:
                        return _too_large(step, response)
                return _answer(response, bytes(body))
        except httpx2.HTTPError as error:
            return _lost(step, error)
