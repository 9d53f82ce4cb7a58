"""A real server for the tests of your own code, in memory, with a clock that the test moves.

```python
from turnwise_client.testing import server

with server(app) as turnwise:
    sign_up("ann@example.org")                       # your code, which adds a job
    turnwise.assert_added(send, to="ann@example.org")
    turnwise.drain()                                 # runs it, in this process
    turnwise.advance(hours=26)                       # delays, backoffs and schedules are over
```

With pytest, the fixture `turnwise_server` is one for each test, with the apps of your own fixture `turnwise_apps`."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Coroutine, Generator, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from ._convert import dump
from ._http import Core, Request, encode, path
from ._logging import JobLogHandler
from ._runs import End, Run
from .app import App, Task
from .client import Client
from .context import AsyncContext, Context
from .errors import NotFound, Refused, TurnwiseError
from .models import Accepted, Job, Registered
from .worker import Worker

log = logging.getLogger("turnwise_client.testing")

# A task that adds itself again would run for ever.
MAX_RUNS = 10_000
STOP_TIMEOUT_S = 10.0
# A clock is moved through all instants of the schedules.
ADVANCE_TIMEOUT_S = 300.0

# Yields the coroutines that must run on an event loop, and gets the ends that they return.
T = TypeVar("T")
_Steps = Generator[Coroutine[Any, Any, "End | None"], "End | None", T]


class Server:
    """A running server. `server` starts one."""

    def __init__(self, url: str, apps: tuple[App, ...]) -> None:
        self.url = url
        self.apps = apps
        self.client = Client(url, token="")
        self._core = Core(url, "", ADVANCE_TIMEOUT_S)

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, timeouts: bool = False
    ) -> datetime:
        """Moves the server's clock forward, as if this time had passed: delays and backoffs are over, each schedule has fired at each of
        its instants, jobs that had to start have failed, old records are removed. Returns the server's time.

        Workers live in real time: they miss no heartbeats. Runs do not grow older, either, unless `timeouts` is true: then those that exceed
        their `timeout` are taken back. Without a time, it only does what is due already."""
        by = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        body = encode({"by_ms": round(by.total_seconds() * 1000), "timeouts": timeouts})
        # It is not repeated: the clock would move twice.
        request = Request("POST", path("test", "advance"), body=body, idempotent=False, timeout=ADVANCE_TIMEOUT_S)
        answer = self.client._transport.run(self._core.read(request))
        return datetime.fromtimestamp(answer["now_us"] / 1_000_000, timezone.utc)

    def drain(self) -> list[Job]:
        """Runs all jobs of the apps that can run, one after the other, in this thread, until none can; also those that they add. A job that waits
        for its time, its backoff or another job stays. Returns the jobs that ran, as they are then. On an event loop, use `drain_async`."""
        steps = self._drain()
        with contextlib.closing(steps):
            try:
                coroutine = next(steps)
                while True:
                    coroutine = steps.send(asyncio.run(coroutine))
            except StopIteration as end:
                jobs: list[Job] = end.value
                return jobs

    async def drain_async(self) -> list[Job]:
        """The same on the running event loop, which runs the coroutines. Plain functions and requests block it."""
        steps = self._drain()
        with contextlib.closing(steps):
            try:
                coroutine = next(steps)
                while True:
                    coroutine = steps.send(await coroutine)
            except StopIteration as end:
                jobs: list[Job] = end.value
                return jobs

    def _drain(self) -> _Steps[list[Job]]:
        if not self.apps:
            raise ValueError("the server knows no apps whose jobs it could run: server(app)")
        ran: dict[tuple[str, str], None] = {}
        with contextlib.ExitStack() as stack:
            drains = [stack.enter_context(_Drain.of(app, self.url)) for app in self.apps if app.tasks]
            while True:
                before = sum(drain.runs for drain in drains)
                # What follows the ends of the jobs before.
                self.advance()
                for drain in drains:
                    yield from drain.run(ran)
                if sum(drain.runs for drain in drains) == before:
                    break
        found: list[Job] = []
        for job_type, id in ran:
            with contextlib.suppress(NotFound):
                found.append(self.client.job(job_type, id))
        return found

    def added(self, task: Task[..., Any], /, **payload: Any) -> list[Job]:
        """The jobs of a task that were added with these options, and perhaps others: oldest first, whatever has become of them."""
        wanted = {name: dump(value) for name, value in payload.items()}
        return [job for job, options in self._jobs(task) if wanted == {name: options[name] for name in wanted if name in options}]

    def assert_added(self, task: Task[..., Any], /, **payload: Any) -> Job:
        """Fails the test unless a job of this task was added with these options. Returns the latest such job."""
        found = self.added(task, **payload)
        if not found:
            others = [options for _, options in self._jobs(task)]
            raise AssertionError(f"no job of {task.name} was added with {payload}, but with {others}")
        return found[-1]

    def _jobs(self, task: Task[..., Any]) -> Iterator[tuple[Job, dict[str, Any]]]:
        for job in self.client.jobs(type=task.app.type, order="oldest"):
            if job.get("task") == task.name:
                shown = Request("GET", path("jobs", job["type"], job["id"], "options"))
                yield job, self.client._transport.run(self._core.read(shown))


class _Drain:
    """A worker that runs the jobs of an app until none can run."""

    def __init__(self, app: App, worker: Worker) -> None:
        self.runs = 0
        self._app = app
        self._worker = worker
        self._over = threading.Event()
        self._received = 0
        registered: Registered = self._send(worker._registration())
        self._path = path("workers", app.type, registered["worker"])
        self._ping_s = registered["ping_interval_ms"] / 1000

    @classmethod
    @contextlib.contextmanager
    def of(cls, app: App, url: str) -> Generator[_Drain]:
        """A drain, which is registered and sends heartbeats."""
        worker = Worker(app, slots=1, url=url, token="", schedules=False)
        drain = cls(app, worker)
        beats = threading.Thread(target=drain._beat, name="turnwise-heartbeats", daemon=True)
        beats.start()
        handler = JobLogHandler()
        logging.getLogger().addHandler(handler)
        try:
            yield drain
        finally:
            logging.getLogger().removeHandler(handler)
            drain._over.set()
            beats.join()
            drain._send(Request("POST", drain._path + "/leave"))
            worker.sync.close()

    def run(self, ran: dict[tuple[str, str], None]) -> _Steps[None]:
        """Runs jobs until none can run, and notes them."""
        while True:
            body = encode({"received": self._received, "limit": 1, "wait_ms": 0})
            answer: Accepted = self._send(Request("POST", self._path + "/accept", body=body))
            if not answer["jobs"]:
                return
            for given in answer["jobs"]:
                self.runs += 1
                if self.runs > MAX_RUNS:
                    raise RuntimeError(f"more than {MAX_RUNS} runs: the last one was of {given['id']}")
                self._received = given["claim"]
                ran[self._app.type, given["id"]] = None
                run = Run(self._worker.tasks[given.get("task") or ""], given)
                arguments = (self._path, self._app.type, given, run.state)
                if run.task.is_async:
                    end = yield self._on_loop(run, AsyncContext(self._worker.limited, *arguments))
                else:
                    # What the function sets in its context does not stay in the test's.
                    end = contextvars.copy_context().run(run.call, Context(self._worker.sync, *arguments))
                if end is not None:
                    self._end(end)

    async def _on_loop(self, run: Run, context: AsyncContext) -> End | None:
        # A task has a context of its own, as above.
        try:
            return await asyncio.create_task(run.call_async(context))
        finally:
            # The next coroutine may have another loop.
            await self._worker.limited.close()

    def _end(self, end: End) -> None:
        if end.kind == "fail":
            described = json.loads(end.entry)
            log.warning("%s %s has failed: %s", end.run.task.name, end.run.id, described.get("trace") or described["reason"])
        if end.run.rate_pause_ms is not None:
            update = self._path + "/jobs/" + path(end.run.id, "update")[len("/v1/") :]
            self._send(Request("POST", update, body=encode({"claim": end.run.claim, "rate_pause_ms": end.run.rate_pause_ms})))
        body = b'{"%s":[%s]}' % (end.kind.encode(), end.entry)
        try:
            [answer] = self._send(Request("POST", self._path + "/end", body=body))["ended"]
        except Refused as error:
            # A result that is too large, for example.
            self._end(end.run.refused(str(error)))
        else:
            if "error" in answer:
                log.warning("%s %s has lost its claim: %s", end.run.task.name, end.run.id, answer["error"].get("reason"))

    def _beat(self) -> None:
        while not self._over.wait(self._ping_s):
            try:
                self._send(Request("POST", self._path + "/ping", body=b"{}"))
            except TurnwiseError as error:
                log.warning("no heartbeat: %s", error)

    def _send(self, request: Request) -> Any:
        return self._worker.sync.run(self._worker.sync.core.read(request))


@contextlib.contextmanager
def server(*apps: App) -> Generator[Server]:
    """Starts a server, and ends it. Until then it is the server of these apps, and of all that read `TURNWISE_SERVER`. The schedules of the apps' tasks are written.

    The program is that of `TURNWISE_BIN`, or `turnwise` on the `PATH`. It also ends when this process does."""
    program = os.environ.get("TURNWISE_BIN") or shutil.which("turnwise")
    if program is None:
        raise FileNotFoundError("there is no program `turnwise` on the PATH: install it, or set TURNWISE_BIN to its path")
    command = [program, "--log", "error", "test-server"]
    # Ctrl-C in a terminal ends the test, which then ends the server.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"`{' '.join(command)}` has ended with {process.wait()}: is it a release that has `test-server`?")
            running = Server(json.loads(line)["url"], apps)
            with running.client, _connected(running):
                yield running
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def _connected(running: Server) -> Generator[None]:
    """Makes it the server of its apps, and of the environment."""
    environment = {name: os.environ.pop(name, None) for name in ("TURNWISE_SERVER", "TURNWISE_TOKEN")}
    os.environ["TURNWISE_SERVER"] = running.url
    before = [(app, app._url, app._token) for app in running.apps]
    try:
        for app in running.apps:
            app.connect(running.url, "")
            if app.tasks:
                # Their terms hold from the first job on.
                with _Drain.of(app, running.url):
                    pass
            for task in app.tasks.values():
                if "schedule" in task.stated:
                    running.client.put_schedule(task.schedule_name, task.stated["schedule"], task.new())
        yield
    finally:
        for app, url, token in before:
            app.connect(url, token)
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
