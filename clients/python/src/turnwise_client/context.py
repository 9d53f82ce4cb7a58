"""What a run knows of its job, and what it can tell the server."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import inspect
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, overload

from ._convert import dump
from ._http import Core, Request, Steps, encode, path, query
from .errors import Cancelled, Expired, Halted, TurnwiseError
from .models import AcceptedJob, AskedLocks, GivenInput, LogLevel

if TYPE_CHECKING:
    from ._transport import AsyncTransport, Transport

T = TypeVar("T")

# Lines that wait to be sent: more are dropped, the oldest first. A line has at most so many characters.
MAX_LINES = 500
MAX_LINE_CHARS = 8000
# Where the last report keeps the values of steps.
STEPS = "$steps"
LOCK_WAIT_S = 5.0
# How often a step on the loop looks whether another report is still on its way.
TURN_POLL_S = 0.01
StopKind = Literal["cancel", "deadline", "stop", "lost"]

current: contextvars.ContextVar[_Context | None] = contextvars.ContextVar("turnwise_context", default=None)


class RunState:
    """A run's reports that were not sent, and whether it has to stop. Threads share it."""

    def __init__(self, given: AcceptedJob) -> None:
        self.lock = threading.Lock()
        # Held by each request with a report or a step's value, so that none overtakes a later one.
        self.sending = threading.Lock()
        self.lines: list[dict[str, Any]] = []
        self.changed = False
        self.report = given.get("info")
        self.steps: dict[str, Any] = {}
        if isinstance(self.report, dict) and isinstance(self.report.get(STEPS), dict):
            self.steps = self.report[STEPS]
            self.report = self.report.get("report")
        self.stopped = threading.Event()
        self.stop_kind: StopKind | None = None
        # Whether the function has learned that it has to stop.
        self.seen = False

    def info(self) -> Any:
        return {STEPS: self.steps, "report": self.report} if self.steps else self.report

    def take(self) -> dict[str, Any]:
        """What is to be sent, which the caller sends."""
        with self.lock:
            taken: dict[str, Any] = {}
            if self.lines:
                taken["log"], self.lines = self.lines, []
            if self.changed:
                taken["info"], self.changed = self.info(), False
            return taken

    def give_back(self, taken: dict[str, Any]) -> None:
        """It was not sent after all."""
        with self.lock:
            self.lines = (taken.get("log", []) + self.lines)[-MAX_LINES:]
            self.changed |= "info" in taken

    def stop(self, kind: StopKind) -> bool:
        """Asks the function to stop. Returns whether this is news."""
        with self.lock:
            if self.stop_kind == "lost" or self.stop_kind is not None and kind != "lost":
                return False
            self.stop_kind = kind
        self.stopped.set()
        return True


class _Context:
    """The run of a job."""

    def __init__(self, core: Core, worker_path: str, job_type: str, given: AcceptedJob, state: RunState) -> None:
        self._core = core
        self._path = worker_path + "/jobs/" + path(given["id"])[len("/v1/") :]
        self._state = state
        self._claim = given["claim"]
        self._ends = time.monotonic() + given["timeout_ms"] / 1000 if "timeout_ms" in given else None
        self.type = job_type
        self.id = given["id"]
        self.task = given.get("task")
        self.tenant = given["tenant"]
        self.user = given.get("user")
        # 1 if the job has not crashed since it was added.
        self.attempt = given["attempt"]
        self.max_attempts = given.get("max_attempts")
        # For the header `traceparent` of requests, so that their traces continue the job's.
        self.traceparent = given.get("traceparent")
        self.inputs: dict[str, GivenInput] = given.get("inputs", {})
        # The last report of an earlier run.
        self.last_report = state.report
        self.schedule = given.get("schedule")
        self.group = given.get("group")
        self.callback = given.get("callback")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.type!r}, {self.id!r}, attempt={self.attempt})"

    @property
    def time_left(self) -> float | None:
        """The seconds until the run's timeout; `None` if it has none. The machine's clock may be set meanwhile."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    @property
    def deadline(self) -> datetime.datetime | None:
        """The end of the run's time, by the machine's clock."""
        left = self.time_left
        return None if left is None else datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=left)

    @property
    def cancelled(self) -> bool:
        """Whether the run has to stop: the job is cancelled, its time is over, its claim is lost, or the worker ends. A function that
        has learned this and returns has stopped: what it returns is no result."""
        stopped = self._state.stopped.is_set()
        self._state.seen |= stopped
        return stopped

    def check(self) -> None:
        """Raises `Cancelled` if the run has to stop."""
        if self.cancelled:
            raise Cancelled

    def log(self, message: object, level: LogLevel = "info", **fields: Any) -> None:
        """Adds a line to the job's log. It is sent within a second or two. The server keeps the last 1,000 lines."""
        line: dict[str, Any] = {"at_us": time.time_ns() // 1000, "level": level, "message": str(message)[:MAX_LINE_CHARS]}
        if fields:
            line["fields"] = fields
        try:
            if len(encode(line)) > 4 * MAX_LINE_CHARS:
                line.pop("fields", None)
        except (TypeError, ValueError):
            line["message"] = line["message"].encode(errors="replace").decode()
            line["fields"] = {name: repr(value)[:1000] for name, value in list(fields.items())[:20]}
        with self._state.lock:
            self._state.lines.append(line)
            del self._state.lines[:-MAX_LINES]

    def progress(self, report: Any) -> None:
        """Reports progress: JSON of at most 12 kB, which the job's page shows. It is sent within a second or two, and replaces
        the report before it. The next attempt finds it in `last_report`."""
        report = dump(report)
        encode(report)
        with self._state.lock:
            self._state.report, self._state.changed = report, True

    def _remember(self, name: str, value: Any) -> Steps[None]:
        """Stores a step's value with the job, before the function goes on."""
        encode(value)
        with self._state.lock:
            self._state.steps[name] = value
            body = encode({"claim": self._claim, "info": self._state.info()})
        try:
            answer = yield from self._core.read(Request("POST", self._path + "/update", body=body))
        except (Halted, Expired):
            self._state.stop("lost")
            raise Cancelled("the claim is lost") from None
        except TurnwiseError:
            with self._state.lock:
                self._state.steps.pop(name, None)
            raise
        if answer["answer"] == "cancel":
            self._state.stop("cancel")

    def _lock(self, wanted: dict[str, Any]) -> Steps[None]:
        """Requests a lock until the job holds it."""
        while True:
            self.check()

            def body(wait_ms: int) -> bytes:
                return encode({"claim": self._claim, "locks": [wanted], "wait_ms": wait_ms})

            try:
                answer: AskedLocks = yield from self._core.read(
                    Request("POST", self._path + "/locks", body=body, wait=LOCK_WAIT_S)
                )
            except (Halted, Expired):
                self._state.stop("lost")
                raise Cancelled("the claim is lost") from None
            if answer["state"] == "held":
                return

    def _unlock(self, level: str, name: str | None) -> Steps[None]:
        which = query(claim=self._claim, level=level, name=name)
        yield from self._core.read(Request("DELETE", self._path + "/locks", query=which))

    def _input(self, name: str) -> Steps[Any]:
        given = self.inputs[name]
        if "url" not in given:
            return given.get("result")
        url, _, parameters = given["url"].partition("?")
        which = tuple(urllib.parse.parse_qsl(parameters))
        answer, _ = yield from self._core.call(Request("GET", url, query=which))
        return answer.json() if answer.media_type == "application/json" else answer.body


def _wanted(level: str, name: str | None, mode: str, units: int) -> dict[str, Any]:
    wanted: dict[str, Any] = {"level": level, "mode": mode}
    if name is not None:
        wanted["name"] = name
    return wanted if units == 1 else {**wanted, "units": units}


class Context(_Context):
    """The run of a task that is a plain function. It is the first argument if that is annotated so."""

    def __init__(self, transport: Transport, *arguments: Any) -> None:
        super().__init__(transport.core, *arguments)
        self._transport = transport

    def pause(self, seconds: float) -> None:
        """Sleeps, but raises `Cancelled` as soon as the run has to stop."""
        self._state.stopped.wait(seconds)
        self.check()

    def step(self, name: str, function: Callable[[], T]) -> T:
        """Runs a function once for the job: the value, as JSON has it, is stored with the job, and the next attempts get it without
        running the function. Values and the last report have at most 12 kB together."""
        if name not in self._state.steps:
            dumped = dump(function())
            with self._state.sending:
                self._transport.run(self._remember(name, dumped))
        value: T = self._state.steps[name]
        return value

    def lock(
        self, level: str, name: str | None = None, mode: Literal["shared", "exclusive"] = "exclusive", units: int = 1
    ) -> None:
        """Waits for a lock, which the job holds until `unlock` or its end."""
        self._transport.run(self._lock(_wanted(level, name, mode, units)))

    def unlock(self, level: str, name: str | None = None) -> None:
        """Releases a lock."""
        self._transport.run(self._unlock(level, name))

    def input(self, name: str) -> Any:
        """The result of the job before this one that is named so."""
        return self._transport.run(self._input(name))


class AsyncContext(_Context):
    """The run of a task that is a coroutine function. It is the first argument if that is annotated so. When the run has to stop,
    the coroutine is cancelled."""

    def __init__(self, transport: AsyncTransport, *arguments: Any) -> None:
        super().__init__(transport.core, *arguments)
        self._transport = transport

    @overload
    async def step(self, name: str, function: Callable[[], Awaitable[T]]) -> T: ...
    @overload
    async def step(self, name: str, function: Callable[[], T]) -> T: ...
    async def step(self, name: str, function: Callable[[], Union[T, Awaitable[T]]]) -> T:
        """Runs a function once for the job: the value, as JSON has it, is stored with the job, and the next attempts get it without
        running the function. Values and the last report have at most 12 kB together."""
        if name not in self._state.steps:
            value = function()
            dumped = dump(await value if inspect.isawaitable(value) else value)
            while not self._state.sending.acquire(blocking=False):
                await asyncio.sleep(TURN_POLL_S)
            try:
                await self._transport.run(self._remember(name, dumped))
            finally:
                self._state.sending.release()
        stored: T = self._state.steps[name]
        return stored

    async def lock(
        self, level: str, name: str | None = None, mode: Literal["shared", "exclusive"] = "exclusive", units: int = 1
    ) -> None:
        """Waits for a lock, which the job holds until `unlock` or its end."""
        await self._transport.run(self._lock(_wanted(level, name, mode, units)))

    async def unlock(self, level: str, name: str | None = None) -> None:
        """Releases a lock."""
        await self._transport.run(self._unlock(level, name))

    async def input(self, name: str) -> Any:
        """The result of the job before this one that is named so."""
        return await self._transport.run(self._input(name))


def context() -> Context | AsyncContext:
    """The context of the run that this code is part of."""
    found = current.get()
    if not isinstance(found, (Context, AsyncContext)):
        raise RuntimeError("no job runs here")
    return found
