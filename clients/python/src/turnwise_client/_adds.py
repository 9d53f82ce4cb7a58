"""Adds that coroutines ask for at the same time share requests: a request costs client and server several times as much as a job in it.

The first adds are sent at once. While `REQUESTS_AT_ONCE` are on their way, later ones wait for the next request, which takes all of them. Jobs of different
types or tenants share nothing: while one tenant has as many waiting jobs as it may, the server refuses each request that has a job of it."""

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


class _Lane:
    """The adds of jobs of one type and tenant."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.sending: set[asyncio.Task[Any]] = set()


class Adds:
    """The adds of one client on one event loop."""

    def __init__(self, core: Core, run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]]) -> None:
        self.loop = asyncio.get_running_loop()
        self._core = core
        self._run = run
        self._lanes: dict[tuple[Any, Any], _Lane] = {}

    async def add(self, adding: Adding) -> AddedJob:
        """Adds a job, which is harmless to add again."""
        future: asyncio.Future[AddedJob] = self.loop.create_future()
        (job,) = adding.jobs
        key = (job["type"], job.get("tenant"))
        self._lanes.setdefault(key, _Lane()).waiting.append((adding, future))
        self._next(key)
        return await future

    def _next(self, key: tuple[Any, Any]) -> None:
        lane = self._lanes[key]
        if lane.waiting and len(lane.sending) < REQUESTS_AT_ONCE:
            # It begins after the coroutines that are ready now: what they add is sent with it.
            task = self.loop.create_task(self._send(lane))
            lane.sending.add(task)
            task.add_done_callback(lambda task: self._sent(key, task))
        elif not lane.sending:
            del self._lanes[key]

    def _sent(self, key: tuple[Any, Any], task: asyncio.Task[Any]) -> None:
        self._lanes[key].sending.discard(task)
        self._next(key)

    async def _send(self, lane: _Lane) -> None:
        batch, lane.waiting = lane.waiting[:JOBS_PER_REQUEST], lane.waiting[JOBS_PER_REQUEST:]
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
