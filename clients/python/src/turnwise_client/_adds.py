"""Adds that coroutines ask for at the same time share requests: a request costs client and server several times as much as a job in it.

The first adds are sent at once. While `REQUESTS_AT_ONCE` are on their way, later ones wait for the next request, which takes all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from . import _api
from ._http import Core, Steps
from .errors import Refused
from .middleware import Adding
from .models import AddedJob

REQUESTS_AT_ONCE = 2
# As many fit into one transaction of all stores but etcd.
JOBS_PER_REQUEST = 100

Waiting = tuple[Adding, "asyncio.Future[AddedJob]"]


class Adds:
    """The adds of one client on one event loop."""

    def __init__(self, core: Core, run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]]) -> None:
        self.loop = asyncio.get_running_loop()
        self._core = core
        self._run = run
        self._waiting: list[Waiting] = []
        self._sending: set[asyncio.Task[Any]] = set()

    async def add(self, adding: Adding) -> AddedJob:
        """Adds a job, which is harmless to add again."""
        future: asyncio.Future[AddedJob] = self.loop.create_future()
        self._waiting.append((adding, future))
        self._next()
        return await future

    def _next(self) -> None:
        if self._waiting and len(self._sending) < REQUESTS_AT_ONCE:
            # It begins after the coroutines that are ready now: what they add is sent with it.
            task = self.loop.create_task(self._send())
            self._sending.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[Any]) -> None:
        self._sending.discard(task)
        self._next()

    async def _send(self) -> None:
        batch, self._waiting = self._waiting[:JOBS_PER_REQUEST], self._waiting[JOBS_PER_REQUEST:]
        if len(batch) > 1:
            try:
                jobs = [adding.jobs[0] for adding, _ in batch]
                new_ids = frozenset().union(*(adding.new_ids for adding, _ in batch))
                added = await self._run(_api.add_many(self._core, Adding(jobs, new_ids=new_ids)))
            except (Refused, TypeError, ValueError):
                # One of them is at fault: each gets an answer of its own.
                await asyncio.gather(*(self._alone(*each) for each in batch))
            except BaseException as error:
                _fail(batch, error)
            else:
                for (_, future), each in zip(batch, added):
                    if not future.done():
                        future.set_result(each)
        elif batch:
            await self._alone(*batch[0])

    async def _alone(self, adding: Adding, future: asyncio.Future[AddedJob]) -> None:
        try:
            added = await self._run(_api.add(self._core, adding))
        except BaseException as error:
            _fail([(adding, future)], error)
        else:
            if not future.done():
                future.set_result(added)


def _fail(batch: list[Waiting], error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)
    if not isinstance(error, Exception):
        raise error
