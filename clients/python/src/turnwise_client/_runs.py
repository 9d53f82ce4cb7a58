"""One run of a job: from its claim to the end that is sent."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import math
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._convert import dump
from ._http import encode
from ._spec import microseconds
from .app import Task
from .context import AsyncContext, Context, RunState, StopKind, current
from .errors import Cancelled, Fail, RetryAfter, Snooze
from .middleware import around_run
from .models import AcceptedJob

# The API's limits, which a message or a trace may exceed.
MAX_REASON_CHARS = 10_000
MAX_TRACE_CHARS = 60_000
MAX_CLASS_CHARS = 200
LONGEST_SNOOZE_MS = 315_360_000_000
LONGEST_RETRY_MS = 31_536_000_000


@dataclass
class End:
    """The end of a run, which is sent until the server has answered. It is encoded once, and so cannot change."""

    run: Run
    kind: str
    entry: bytes


class Run:
    """A run of a job by this worker."""

    def __init__(self, task: Task[..., Any], given: AcceptedJob) -> None:
        self.task = task
        self.given = given
        self.id = given["id"]
        self.claim = given["claim"]
        self.state = RunState(given)
        # The coroutine's, if it is one.
        self.running: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        # How long other jobs of its rates are to wait, if it said so.
        self.rate_pause_ms: int | None = None

    def stop(self, kind: StopKind) -> None:
        """Asks the function to stop. Only on the loop."""
        if self.state.stop(kind) and self.running is not None:
            self.running.cancel()

    def call(self, context: Context) -> End | None:
        """Runs a plain function, in a thread."""
        current.set(context)
        result = None
        try:
            with around_run(self.task.app.middleware, context):
                arguments = self._arguments()
                leading = (context,) if self.task.signature.takes_context else ()
                result = self.task.function(*leading, **arguments)
        except BaseException as error:
            return self.failed(error)
        return self.stopped() if self.state.seen else self.finished(result)

    async def call_async(self, context: AsyncContext) -> End | None:
        """Runs a coroutine function, on the loop."""
        current.set(context)
        result = None
        try:
            with around_run(self.task.app.middleware, context):
                arguments = self._arguments()
                leading = (context,) if self.task.signature.takes_context else ()
                result = await self.task.function(*leading, **arguments)
        except BaseException as error:
            return self.failed(error)
        return self.stopped() if self.state.seen else self.finished(result)

    def _arguments(self) -> dict[str, Any]:
        try:
            return self.task.signature.arguments(self.given["options"])
        except Exception as error:
            # Another attempt would get the same options.
            raise Fail(f"the options are not what {self.task.name} takes: {error}", error_class="BadOptions") from error

    def stopped(self) -> End | None:
        """The end of a run that has stopped because it had to."""
        kind = self.state.stop_kind
        if kind == "lost":
            return None
        if kind == "deadline":
            reason = f"it ran longer than its timeout of {self.given.get('timeout_ms', 0) / 1000:g} s"
            return self._end("fail", {"class": "Timeout", "reason": reason})
        return self._end("release", {})

    def finished(self, result: Any) -> End | None:
        if self.state.stop_kind == "lost":
            return None
        try:
            if isinstance(result, (bytes, bytearray)):
                return self._end("finish", {"data": base64.b64encode(result).decode()})
            return self._end("finish", {"result": dump(result)})
        except Exception as error:
            return self.failed(error)

    def failed(self, error: BaseException) -> End | None:
        kind = self.state.stop_kind
        if kind is not None and isinstance(error, (asyncio.CancelledError, Cancelled)) or kind == "lost":
            return self.stopped()
        if isinstance(error, Snooze):
            until = error.until
            try:
                body: dict[str, Any] = {"for_ms": _ms(error.delay, LONGEST_SNOOZE_MS)}
                return self._end("snooze", body if until is None else {**body, "until_us": microseconds(until)})
            except (TypeError, ValueError) as wrong:
                error = wrong
        if isinstance(error, RetryAfter):
            try:
                after = _ms(error.delay, LONGEST_RETRY_MS)
                if error.pause_rate:
                    self.rate_pause_ms = min(after, 3_600_000)
                return self._end("fail", {**_described(error), "retry_after_ms": after})
            except (TypeError, ValueError) as wrong:
                error = wrong
        if isinstance(error, Fail):
            described = {**_described(error), "class": error.error_class[:MAX_CLASS_CHARS] or "Fail"}
            return self._end("fail", {**described, "retry": False})
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return self._end("fail", {**_described(error), "trace": _clean(trace[-MAX_TRACE_CHARS:])})

    def _end(self, kind: str, body: dict[str, Any]) -> End:
        # The body first: if it is no JSON, the lines of log are not lost.
        encode(body)
        return End(self, kind, encode({"id": self.id, "claim": self.claim, **body, **self.state.take()}))

    def refused(self, reason: str) -> End:
        """The end in place of one that the server has refused: a result that is too large, for example."""
        body = {"class": "Refused", "reason": f"the server refused its end: {reason[:500]}", "retry": False}
        return End(self, "fail", encode({"id": self.id, "claim": self.claim, **body}))


def _described(error: BaseException) -> dict[str, str]:
    return {"class": type(error).__name__[:MAX_CLASS_CHARS], "reason": _clean(str(error)[:MAX_REASON_CHARS]) or type(error).__name__}


def _clean(text: str) -> str:
    """Without what UTF-8 cannot express."""
    return text.encode(errors="replace").decode()


def _ms(seconds: float, most: int) -> int:
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is no time")
    return min(max(0, round(seconds * 1000)), most)


class Threads:
    """Threads that run functions, started as they are needed. Unlike those of the standard library's pool, they do not keep the
    process from ending."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0
        self._count = 0

    def submit(self, function: Callable[[], None]) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
            else:
                self._count += 1
                threading.Thread(target=self._work, name=f"turnwise-{self._count}", daemon=True).start()
        self._queue.put(function)

    def _work(self) -> None:
        while True:
            function = self._queue.get()
            # Each run has its own variables of context.
            contextvars.Context().run(function)
            with self._lock:
                self._free += 1
