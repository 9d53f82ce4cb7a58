"""The server's answers, as its description of the API (`docs/openapi.json`) states them. A test compares the two.

Answers are plain dictionaries. They may have more members than these: later servers add some."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

State = Literal[
    "pending", "delayed", "blocked", "paused", "limited", "running", "waiting", "crashing", "completed", "failed", "cancelled"
]
FINAL_STATES: frozenset[str] = frozenset(("completed", "failed", "cancelled"))
LogLevel = Literal["debug", "info", "warn", "error"]


class _Event(TypedDict):
    at_us: int
    type: str


class Event(_Event, total=False):
    """A step in a job's life."""

    reason: str


class _JobError(TypedDict):
    at_us: int
    attempt: int
    message: str


# The syntax of functions, because `class` is a keyword.
_JobErrorMore = TypedDict("_JobErrorMore", {"class": str, "trace": str}, total=False)


class JobError(_JobError, _JobErrorMore):
    """The error of one of a job's runs."""


class _Job(TypedDict):
    added_us: int
    attempts: int
    cancel_requested: bool
    changed_us: int
    history: list[Event]
    id: str
    priority: int
    snoozes: int
    state: State
    summary: Any
    tenant: str
    type: str


class Job(_Job, total=False):
    """A job."""

    backoff: dict[str, Any]
    callback: dict[str, Any]
    claim: int
    errors: list[JobError]
    expires_us: int
    group: dict[str, Any]
    heartbeat_timeout_ms: int
    info: Any
    inputs: dict[str, Any]
    jitter: bool
    keep_ms: int
    limited: dict[str, Any]
    max_attempts: int
    max_snoozes: int
    not_before_us: int
    on_lost: str
    options: Any
    paused_by: str
    reason: str
    reasons: list[str]
    removed_us: int
    result: Any
    result_bytes: int
    result_type: str
    schedule: dict[str, Any]
    start_within_ms: int
    started_us: int
    tags: list[str]
    task: str
    timeout_ms: int
    unique: dict[str, Any]
    unique_held: bool
    unique_until_us: int
    user: str
    version: str
    waits_for: int
    worker: str


class _AddedJob(TypedDict):
    added: str
    id: str
    type: str


class AddedJob(_AddedJob, total=False):
    """A job that was added."""

    found: dict[str, Any]


class _LogLine(TypedDict):
    at_us: int
    level: LogLevel
    message: str
    number: int


class LogLine(_LogLine, total=False):
    """A line of a job's log."""

    fields: dict[str, Any]


class _Retried(TypedDict):
    retried: bool
    state: State


class Retried(_Retried, total=False):
    """The result of retrying a job."""

    dependents: int
    more: bool
    refused: int


class GroupCounts(TypedDict):
    """How many jobs of a group have ended in which way."""

    cancelled: int
    completed: int
    failed: int
    failures: int
    open: int
    removed: int
    total: int


class _Group(TypedDict):
    callbacks: list[str]
    called: list[dict[str, Any]]
    counts: GroupCounts
    created_us: int
    keep_ms: int
    name: str
    retried: int
    state: Literal["open", "closed", "completed", "failed", "cancelled"]
    tenant: str


class Group(_Group, total=False):
    """A group."""

    at_once: int
    by: str
    ended_counts: GroupCounts
    ended_us: int
    parent: str
    removed_us: int


class _Schedule(TypedDict):
    changed_us: int
    created_us: int
    fires: list[dict[str, Any]]
    jitter_ms: int
    job: dict[str, Any]
    missed: str
    name: str
    overlap: str
    state: str
    tenant: str
    when: dict[str, Any]
    zone_data: str


class Schedule(_Schedule, total=False):
    """A schedule."""

    by: str
    derived_locks: dict[str, Any]
    failures: int
    last_success: dict[str, Any]
    most_missed: int
    next: dict[str, Any]
    note: str
    pause_after: int
    paused_by: str
    paused_us: int


class FiredSchedule(TypedDict):
    """The result of a fire by a client."""

    job: str
    outcome: str


class _StreamEvent(TypedDict):
    at_us: int
    event: str
    id: str
    seq: str
    state: str
    tenant: str
    type: str


_StreamEventMore = TypedDict("_StreamEventMore", {"class": str, "reason": str, "tags": list[str], "task": str}, total=False)


class StreamEvent(_StreamEvent, _StreamEventMore):
    """What happened to a job."""


class _GivenInput(TypedDict):
    job: str
    state: str


class GivenInput(_GivenInput, total=False):
    """An input of a job: the result of a job before it, or where it is."""

    bytes: int
    media_type: str
    result: Any
    url: str


class _AcceptedJob(TypedDict):
    attempt: int
    claim: int
    id: str
    options: Any
    summary: Any
    tenant: str


class AcceptedJob(_AcceptedJob, total=False):
    """A job that a worker has claimed."""

    callback: dict[str, Any]
    group: dict[str, Any]
    heartbeat_timeout_ms: int
    info: Any
    inputs: dict[str, GivenInput]
    max_attempts: int
    schedule: dict[str, Any]
    task: str
    timeout_ms: int
    traceparent: str
    user: str


class Registered(TypedDict):
    """A registered worker's id and intervals."""

    health_timeout_ms: int
    ping_interval_ms: int
    worker: str


class _EndedRun(TypedDict):
    claim: int


class EndedRun(_EndedRun, total=False):
    """The result of one of many ends: a state or an error."""

    error: dict[str, Any]
    state: str


class _Accepted(TypedDict):
    jobs: list[AcceptedJob]


class Accepted(_Accepted, total=False):
    """The jobs that a worker has claimed."""

    ended: list[EndedRun]
    mode: str


class EndedRuns(TypedDict):
    """The results of many ends."""

    ended: list[EndedRun]


class _Pinged(TypedDict):
    cancel: list[int]


class Pinged(_Pinged, total=False):
    """The response to a ping."""

    mode: str


class Updated(TypedDict):
    """The response to a report."""

    answer: str


class _AskedLocks(TypedDict):
    state: Literal["held", "waiting"]


class AskedLocks(_AskedLocks, total=False):
    """The result of a request for locks."""

    by: list[dict[str, Any]]
    lock: dict[str, Any]
