"""The worker: it claims jobs, runs their tasks, and sends the ends.

A worker has one registration at a time (`_Session`). All of it happens on one event loop, except plain functions, which run in
threads, and heartbeats, which have a thread of their own: it stops when the loop has hung for longer than the health timeout, so that
the server gives the jobs to other workers."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

from . import _api
from ._http import RETRY_FOR_S, Core, Request, encode, path
from ._logging import JobLogHandler
from ._runs import End, Run, Threads
from ._transport import AsyncTransport, Transport
from .app import App
from .context import AsyncContext, Context
from .errors import Expired, Halted, Refused, TurnwiseError
from .models import Accepted, AcceptedJob, EndedRun, Pinged, Registered, Updated

log = logging.getLogger("turnwise_client.worker")

ACCEPT_WAIT_S = 20.0
# The server takes 12 MB in one request, and 1,000 ends.
ENDS_PER_REQUEST = 200
BYTES_PER_REQUEST = 4_000_000
# Progress and lines of log are sent no more often than this.
FLUSH_INTERVAL_S = 1.0
FLUSHES_AT_ONCE = 8
# After `grace`, functions have this time to stop, and then ends this time to be sent.
STOP_WAIT_S = 2.0
LAST_ENDS_S = 10.0
PING_TIMEOUT_S = 10.0
JOBS_SENT_AGAIN = 10


class Worker:
    """A worker of an app. `run` works until `stop`, or until an operator drains it."""

    def __init__(
        self,
        app: App,
        *,
        slots: int = 8,
        grace: float = 30.0,
        name: str | None = None,
        tasks: Iterable[str] | None = None,
        url: str | None = None,
        token: str | None = None,
        schedules: bool = True,
    ) -> None:
        self.app = app
        self.slots = slots
        self.grace = grace
        self.name = (name or f"{socket.gethostname()}/{os.getpid()}")[:120]
        names = list(app.tasks if tasks is None else tasks)
        unknown = [name for name in names if name not in app.tasks]
        if unknown or not names:
            raise ValueError(f"{app.type} has no task {unknown[0]}" if unknown else f"{app.type} has no tasks")
        self.tasks = {name: app.tasks[name] for name in names}
        self.schedules = schedules
        self.core = Core(url or app._url, token if token is not None else app._token, math.inf)
        self.transport = AsyncTransport(self.core)
        # Heartbeats, reports and functions have an end to repetitions.
        own = Core([server.url for server in self.core.servers], self.core.token, RETRY_FOR_S)
        own.servers = self.core.servers
        self.sync, self.limited = Transport(own), AsyncTransport(own)
        self.threads = Threads()
        # Runs of lost claims whose functions still run in threads: they keep their slots.
        self.leftovers: set[Run] = set()
        self.stopping = False
        # Set for the process: the server has refused the worker.
        self.failed: TurnwiseError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._session: _Session | None = None

    def stop(self) -> None:
        """Takes no more jobs, waits `grace` for those that run, gives the others back, and ends. Other threads and signal handlers may
        call it."""
        # First: the loop may run `_stop` at once.
        self.stopping = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        assert self._loop is not None
        if self._session is None:
            # It is not registered yet.
            if self._main is not None:
                self._main.cancel()
            return
        self._session.wake.set()
        self._loop.call_later(self.grace, self._session.give_back)

    async def run(self) -> None:
        """Works. Raises the error if the server refuses the worker."""
        self._loop = asyncio.get_running_loop()
        self._main = self._loop.create_task(self._work())
        handler = JobLogHandler()
        logging.getLogger().addHandler(handler)
        try:
            await self._main
        except asyncio.CancelledError:
            if not self.stopping:
                raise
        finally:
            logging.getLogger().removeHandler(handler)
            if not self._main.done():
                self._main.cancel()
            await self.transport.close()
            await self.limited.close()
            # Functions that still run may use the other connections, which end with the process.
            if not self.leftovers:
                self.sync.close()

    async def _work(self) -> None:
        if self.schedules and not self.stopping:
            await self._put_schedules()
        while not self.stopping:
            registered: Registered = await self.transport.run(self.core.read(self._registration()))
            log.info("registered as %s for %s", registered["worker"], ", ".join(self.tasks))
            self._session = _Session(self, registered)
            drained = await self._session.work()
            self._session = None
            if self.failed is not None:
                raise self.failed
            if drained:
                log.info("drained")
                return

    async def _put_schedules(self) -> None:
        for task in self.tasks.values():
            if "schedule" in task.stated:
                stated = {"when": task.stated["schedule"], "job": task.new()}
                await self.transport.run(_api.put_schedule(self.core, task.schedule_name, stated))

    def _registration(self) -> Request:
        slots = {name: task.stated["slots"] for name, task in self.tasks.items() if "slots" in task.stated}
        terms = {name: task.terms() for name, task in self.tasks.items()}
        body = {
            "name": self.name,
            "slots": self.slots,
            "tasks": list(self.tasks),
            "task_slots": slots,
            "task_terms": {name: stated for name, stated in terms.items() if stated},
        }
        return Request("POST", path("workers", self.app.type), body=encode(body))


class _Session:
    """A worker under one id: from its registration until it leaves, or the server has removed it."""

    def __init__(self, worker: Worker, registered: Registered) -> None:
        self.worker = worker
        self.core = worker.core
        self.loop = asyncio.get_running_loop()
        self.path = path("workers", worker.app.type, registered["worker"])
        self.ping_s = registered["ping_interval_ms"] / 1000
        self.health_s = registered["health_timeout_ms"] / 1000
        self.runs: dict[int, Run] = {}
        self.ends: list[End] = []
        self.received = 0
        self.expired = False
        self.draining = False
        self.gave_back = False
        self.wake = asyncio.Event()
        self.over = threading.Event()
        self.loop_seen = time.monotonic()
        self.sync, self.limited = worker.sync, worker.limited

    @property
    def closing(self) -> bool:
        return self.worker.stopping or self.draining

    async def work(self) -> bool:
        """Works until the worker stops, is drained, or has been removed. Returns whether it was drained."""
        beats = threading.Thread(target=self._beat, name="turnwise-heartbeats", daemon=True)
        tasks = [self.loop.create_task(self._tick()), self.loop.create_task(self._flush())]
        beats.start()
        exchange = self.loop.create_task(self._exchange())
        self._exchanging = exchange
        try:
            await exchange
        except asyncio.CancelledError:
            if not self.gave_back:
                raise
        except Expired:
            self.expire()
        except TurnwiseError as error:
            self.worker.failed = error
        finally:
            self.over.set()
            for task in tasks:
                task.cancel()
            for run in list(self.runs.values()):
                self._forget(run, "lost" if self.expired else "stop")
            await asyncio.gather(*tasks, return_exceptions=True)
        if not self.expired:
            await self._leave()
        return self.draining and not self.expired

    # What the loop does with the server.

    async def _exchange(self) -> None:
        """Sends ends and receives jobs: ends go with the next request for jobs, if none waits."""
        poll: asyncio.Task[Accepted] | None = None
        try:
            while not self.expired:
                self.wake.clear()
                if poll is not None and poll.done():
                    done, poll = poll, None
                    self._start(done.result())
                free = self.worker.slots - len(self.runs) - len(self.worker.leftovers) + len(self.ends)
                if self.closing and poll is not None and self.worker.stopping:
                    poll.cancel()
                    await asyncio.gather(poll, return_exceptions=True)
                    poll = None
                    await self._return_undelivered()
                elif self.ends:
                    batch = self._batch()
                    free -= len(self.ends)
                    if poll is None and not self.closing and free > 0:
                        await self._send(batch, free)
                    else:
                        await self._send(batch, 0)
                elif self.closing and poll is None and not self.runs:
                    return
                else:
                    if poll is None and not self.closing and free > 0:
                        poll = self.loop.create_task(self.worker.transport.run(self.core.read(self._accepting(b"", free))))
                        poll.add_done_callback(lambda _: self.wake.set())
                    await self.wake.wait()
        finally:
            if poll is not None:
                poll.cancel()
                await asyncio.gather(poll, return_exceptions=True)

    def _accepting(self, ends: bytes, limit: int) -> Request:
        received, wait = self.received, 0.0 if ends else ACCEPT_WAIT_S

        def body(wait_ms: int) -> bytes:
            head = encode({"received": received, "limit": min(limit, 1000), "wait_ms": wait_ms})
            return head[:-1] + b',"ends":' + ends + b"}" if ends else head

        return Request("POST", self.path + "/accept", body=body, wait=wait)

    def _batch(self) -> list[End]:
        """The first ends, as many as fit into one request."""
        left, count = BYTES_PER_REQUEST, 0
        for end in self.ends[:ENDS_PER_REQUEST]:
            left -= len(end.entry)
            if left < 0 and count > 0:
                break
            count += 1
        batch, self.ends = self.ends[:count], self.ends[count:]
        return batch

    async def _send(self, batch: list[End], limit: int) -> None:
        """Sends ends until they have an answer: with a request for up to `limit` jobs, or alone if it is 0."""
        kinds: dict[str, list[bytes]] = {}
        for end in batch:
            kinds.setdefault(end.kind, []).append(end.entry)
        members = [b'"%s":[%s]' % (kind.encode(), b",".join(entries)) for kind, entries in kinds.items()]
        body = b"{" + b",".join(members) + b"}"
        request = self._accepting(body, limit) if limit else Request("POST", self.path + "/end", body=body)
        try:
            answer = await self.worker.transport.run(self.core.read(request))
        except Expired:
            raise
        except TurnwiseError as error:
            await self._refused(batch, error)
            return
        self._ended(batch, answer.get("ended", []))
        if limit:
            self._start(answer)

    async def _refused(self, batch: list[End], error: TurnwiseError) -> None:
        """The server has refused ends together: one of them is at fault."""
        if len(batch) > 1:
            for end in batch:
                await self._send([end], 0)
        elif batch[0].kind == "finish" or b'"log":' in batch[0].entry:
            await self._send([batch[0].run.refused(str(error))], 0)
        else:
            log.error("the end of %s is lost: %s", batch[0].run.id, error)
            self._drop(batch[0].run)

    def _ended(self, batch: list[End], answers: list[EndedRun]) -> None:
        lost = {answer["claim"]: answer["error"] for answer in answers if "error" in answer}
        for end in batch:
            if end.run.claim in lost:
                log.warning("the claim on %s is lost: %s", end.run.id, lost[end.run.claim].get("reason"))
            self._drop(end.run)

    async def _return_undelivered(self) -> None:
        """Gives back jobs that the server has claimed for a request that was given up."""
        while True:
            answer: Accepted = await self.worker.transport.run(self.core.read(self._accepting(b'{"finish":[]}', 1)))
            jobs = answer["jobs"]
            for given in jobs:
                self.received = max(self.received, given["claim"])
            if jobs:
                entries = [{"id": given["id"], "claim": given["claim"]} for given in jobs]
                body = encode({"release": entries})
                await self.worker.transport.run(self.core.read(Request("POST", self.path + "/end", body=body)))
            if len(jobs) < JOBS_SENT_AGAIN:
                return

    async def _leave(self) -> None:
        """Gives every job back that is left, so that other workers get it before the health timeout."""
        try:
            await self.limited.run(self.core.read(Request("POST", self.path + "/leave", retry_for=5.0)))
            log.info("left")
        except TurnwiseError as error:
            log.warning("could not leave; the server removes this worker after the health timeout: %s", error)

    # Runs.

    def _start(self, answer: Accepted) -> None:
        if answer.get("mode") == "drain":
            self.draining = True
        for given in answer["jobs"]:
            # A response that was lost is sent again.
            if given["claim"] > self.received:
                self.received = given["claim"]
                self._run(given)

    def _run(self, given: AcceptedJob) -> None:
        run = Run(self.worker.tasks[given.get("task") or ""], given)
        self.runs[run.claim] = run
        if "timeout_ms" in given:
            run.timer = self.loop.call_later(given["timeout_ms"] / 1000, run.stop, "deadline")
        arguments = (self.path, self.worker.app.type, given, run.state)
        if run.task.is_async:
            run.running = self.loop.create_task(self._run_async(run, AsyncContext(self.limited, *arguments)))
        else:
            context = Context(self.sync, *arguments)
            self.worker.threads.submit(lambda: self._run_in_thread(run, context))

    async def _run_async(self, run: Run, context: AsyncContext) -> None:
        self._over(run, await run.call_async(context))

    def _run_in_thread(self, run: Run, context: Context) -> None:
        end = run.call(context)
        try:
            self.loop.call_soon_threadsafe(self._over, run, end)
        except RuntimeError:
            # The loop is closed: the worker has ended.
            pass

    def _over(self, run: Run, end: End | None) -> None:
        """A function has returned."""
        if run.timer is not None:
            run.timer.cancel()
        self.worker.leftovers.discard(run)
        if self.worker._session is not None:
            self.worker._session.wake.set()
        if self.runs.get(run.claim) is not run:
            return
        if end is None or self.expired:
            self._drop(run)
        elif run.rate_pause_ms is not None:
            run.running = self.loop.create_task(self._pause_rate(run, end))
        else:
            self.ends.append(end)

    async def _pause_rate(self, run: Run, end: End) -> None:
        try:
            body = encode({"claim": run.claim, "rate_pause_ms": run.rate_pause_ms})
            await self.limited.run(self.core.read(Request("POST", self._of(run, "update"), body=body, retry_for=2.0)))
        except TurnwiseError as error:
            log.warning("the rate of %s is not paused: %s", run.id, error)
        self.ends.append(end)
        self.wake.set()

    def _of(self, run: Run, what: str) -> str:
        return self.path + "/jobs/" + path(run.id, what)[len("/v1/") :]

    def _drop(self, run: Run) -> None:
        self.runs.pop(run.claim, None)
        self.wake.set()

    def _forget(self, run: Run, kind: Any) -> None:
        """The server does not wait for this run any more. If its function does not stop, it keeps its slot."""
        run.stop(kind)
        if not any(end.run is run for end in self.ends) and not run.task.is_async:
            self.worker.leftovers.add(run)
        self._drop(run)

    def expire(self) -> None:
        """The server has removed this worker."""
        if not self.expired:
            log.warning("removed by the server: registering again")
            self.expired = True
            for run in list(self.runs.values()):
                self._forget(run, "lost")
            self.wake.set()

    def give_back(self) -> None:
        """The time of the runs is over: those that do not stop now are given back without their functions' consent."""
        self.gave_back = True
        for run in list(self.runs.values()):
            run.stop("stop")
        self.wake.set()
        self.loop.call_later(STOP_WAIT_S, self._give_up)

    def _give_up(self) -> None:
        ended = {end.run for end in self.ends}
        for run in list(self.runs.values()):
            if run not in ended and not run.task.is_async:
                log.warning("%s does not stop, and is given back", run.id)
                self._drop(run)
        self.loop.call_later(LAST_ENDS_S, self._exchanging.cancel)

    # What goes on beside it.

    async def _tick(self) -> None:
        """Shows the thread of the heartbeats that the loop does not hang."""
        while True:
            self.loop_seen = time.monotonic()
            await asyncio.sleep(min(self.ping_s / 2, 0.25))

    def _beat(self) -> None:
        """Sends heartbeats while the loop does not hang. It has a thread of its own."""
        hangs = False
        while not self.over.wait(self.ping_s):
            silent = time.monotonic() - self.loop_seen
            if silent > self.health_s:
                if not hangs:
                    log.error("the event loop hangs for %.1f s: no heartbeats, so that other workers get the jobs", silent)
                hangs = True
                continue
            hangs = False
            request = Request("POST", self.path + "/ping", body=b"{}", timeout=PING_TIMEOUT_S, retry_for=0.0)
            try:
                answer: Pinged = self.sync.run(self.sync.core.read(request))
                self.loop.call_soon_threadsafe(self._pinged, answer)
            except Expired:
                self.loop.call_soon_threadsafe(self.expire)
                return
            except TurnwiseError as error:
                if not self.over.is_set():
                    log.warning("no heartbeat: %s", error)
            except RuntimeError:
                # The loop is closed.
                return

    def _pinged(self, answer: Pinged) -> None:
        if answer.get("mode") == "drain" and not self.draining:
            self.draining = True
            self.wake.set()
        for claim in answer["cancel"]:
            if claim in self.runs:
                self.runs[claim].stop("cancel")

    async def _flush(self) -> None:
        """Sends progress and lines of log."""
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            ended = {end.run for end in self.ends}
            runs = [run for run in self.runs.values() if run not in ended and run.state.stop_kind != "lost"]
            for first in range(0, len(runs), FLUSHES_AT_ONCE):
                await asyncio.gather(*(self._report(run) for run in runs[first : first + FLUSHES_AT_ONCE]))

    async def _report(self, run: Run) -> None:
        # While a step's value is sent, the next turn takes the report.
        if not run.state.sending.acquire(blocking=False):
            return
        try:
            await self._send_report(run)
        finally:
            run.state.sending.release()

    async def _send_report(self, run: Run) -> None:
        taken = run.state.take()
        if not taken:
            return
        try:
            body = encode({"claim": run.claim, **taken})
            request = Request("POST", self._of(run, "update"), body=body, timeout=PING_TIMEOUT_S, retry_for=0.0)
            answer: Updated = await self.limited.run(self.core.read(request))
        except Expired:
            self.expire()
        except Halted:
            self._forget(run, "lost")
        except Refused as error:
            log.warning("a report of %s is refused: %s", run.id, error)
        except TurnwiseError:
            # The next report, or the end, takes it.
            run.state.give_back(taken)
        else:
            if answer["answer"] == "cancel":
                run.stop("cancel")
