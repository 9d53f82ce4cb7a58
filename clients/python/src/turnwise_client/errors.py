"""The errors of requests, by what the caller does next, and what a task raises to end its run."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .models import Job


class TurnwiseError(Exception):
    """A request failed. `error` is a stable code, `reason` says what went wrong, `hint` what the caller can do."""

    def __init__(self, error: str, reason: str, hint: str = "", *, status: int | None = None) -> None:
        super().__init__(error, reason, hint)
        self.error = error
        self.reason = reason
        self.hint = hint
        self.status = status
        # What the server tells a worker about a job: `halt`, for example.
        self.answer: str | None = None

    def __str__(self) -> str:
        return f"{self.error}: {self.reason}" + (f" ({self.hint})" if self.hint else "")

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return False

    @property
    def may_have_worked(self) -> bool:
        """Whether the request may have taken effect despite the error."""
        return False


class Refused(TurnwiseError):
    """The server refused the request: correct it, or read the message."""


class NotFound(Refused):
    """There is no such job, or no such other object."""


class Halted(Refused):
    """The worker has lost its claim on the job."""


class Expired(Refused):
    """The worker is no longer registered."""


class Unavailable(TurnwiseError):
    """The server cannot answer now: try again later."""

    @property
    def may_pass(self) -> bool:
        return True

    @property
    def may_have_worked(self) -> bool:
        return self.error == "unknown_outcome"


class NoAnswer(TurnwiseError):
    """There was no answer: the request may have taken effect."""

    def __init__(self, server: str, cause: str, *, maybe_sent: bool) -> None:
        super().__init__("no_answer", f"no answer from {server}: {cause}", "check that the server runs")
        self.maybe_sent = maybe_sent

    @property
    def may_pass(self) -> bool:
        return True

    @property
    def may_have_worked(self) -> bool:
        return self.maybe_sent


class Foreign(TurnwiseError):
    """The answer is not one of turnwise's API: the URL may be wrong."""

    def __init__(self, server: str, status: int, problem: str) -> None:
        reason = f"{server} answered {status} as turnwise does not: {problem}"
        super().__init__("foreign", reason, "is the URL right?", status=status)


class JobFailed(TurnwiseError):
    """The job has no result: it has failed, or was cancelled. `job` is its record."""

    def __init__(self, job: Job) -> None:
        what = f"{job['type']}/{job['id']} has {'failed' if job['state'] == 'failed' else 'been cancelled'}"
        super().__init__(job["state"], f"{what}: {job.get('reason') or 'no reason is stated'}", "see the job's log")
        self.job = job


class NotEnded(TurnwiseError, TimeoutError):
    """The job has not ended in time. `job` is its record."""

    def __init__(self, job: Job, timeout: float) -> None:
        reason = f"{job['type']}/{job['id']} is {job['state']} after {timeout:g} s"
        super().__init__("not_ended", reason, "wait longer, or ask why it waits")
        self.job = job


class End(Exception):
    """What a task raises to end its run in another way than by a result or a crash."""


class Snooze(End):
    """It is too early. The job runs again after `delay` seconds, or at `until`. That is no attempt."""

    def __init__(self, delay: float = 0, *, until: datetime.datetime | None = None) -> None:
        super().__init__(f"again in {delay:g} s" if until is None else f"again at {until.isoformat()}")
        self.delay = delay
        self.until = until


class RetryAfter(End):
    """An error that may pass: the job is tried again after `delay` seconds, in place of its backoff. It is an attempt.
    With `pause_rate`, no other job of its rates starts before that, either."""

    def __init__(self, delay: float, reason: str = "", *, pause_rate: bool = False) -> None:
        super().__init__(reason or f"again in {delay:g} s")
        self.delay = delay
        self.pause_rate = pause_rate


class Fail(End):
    """An error that will not pass: the job is not tried again."""

    def __init__(self, reason: str, *, error_class: str = "Fail") -> None:
        super().__init__(reason)
        self.error_class = error_class


class Cancelled(End):
    """The run stops, because the job is cancelled, its time is over, the claim is lost, or the worker ends."""

    def __init__(self, reason: str = "the run has to stop") -> None:
        super().__init__(reason)
