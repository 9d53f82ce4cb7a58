"""What a client states of a job, in Python's words, and the same in the API's."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict, Union

Seconds = Union[float, datetime.timedelta]
Backoff = Union[float, Sequence[float], "Exponential"]


class AnyHandle(Protocol):
    """The handle of a job, of either client."""

    type: str
    id: str


class Exponential(TypedDict):
    """Waits that grow with each crash, in seconds."""

    first: float
    factor: float
    most: float


class JobOptions(TypedDict, total=False):
    """How a job is added. Times are seconds or `timedelta`; what is left out is what the task, the type or the server states."""

    id: str
    task: str
    tenant: str
    user: str
    priority: int
    delay: Seconds
    not_before: datetime.datetime
    after: Sequence[Union[AnyHandle, Mapping[str, Any]]]
    inputs: Mapping[str, Union[AnyHandle, Mapping[str, Any]]]
    group: str
    tags: Sequence[str]
    reasons: Sequence[str]
    summary: Mapping[str, Any]
    # `True`: of all options. A text: this key. Otherwise as the API states it.
    unique: Union[bool, str, Mapping[str, Any]]
    # `100/60s`, or `100/60s:name`. By default, the name is that of the type and the task.
    rate: str
    locks: Mapping[str, Any]
    backoff: Backoff
    max_attempts: int
    max_snoozes: int
    jitter: bool
    timeout: Seconds
    heartbeat_timeout: Seconds
    start_within: Seconds
    keep: Seconds
    on_lost: str
    if_exists: str


_TIMES = ("timeout", "heartbeat_timeout", "start_within", "keep", "delay")
_AS_THEY_ARE = (
    "id task tenant user priority group summary locks max_attempts max_snoozes jitter on_lost if_exists".split()
)


def milliseconds(value: Seconds) -> int:
    seconds = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    return round(seconds * 1000)


def microseconds(value: datetime.datetime) -> int:
    """A time as the API states it. A time without a zone would depend on the machine's."""
    if value.tzinfo is None:
        raise ValueError("a time needs a time zone: `datetime.now(timezone.utc)`, for example")
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return (value - epoch) // datetime.timedelta(microseconds=1)


def backoff_of(value: Backoff) -> dict[str, Any]:
    if isinstance(value, (int, float)):
        return {"fixed_ms": milliseconds(value)}
    if isinstance(value, Mapping):
        ends = {"first_ms": milliseconds(value["first"]), "most_ms": milliseconds(value["most"])}
        return {"exponential": {**ends, "factor": value["factor"]}}
    return {"list_ms": [milliseconds(each) for each in value]}


def new_job(job_type: str, options: Any, stated: JobOptions) -> dict[str, Any]:
    """A job as a request states it."""
    unknown = stated.keys() - JobOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"a job has no {', '.join(sorted(unknown))}")
    given: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
    job: dict[str, Any] = {"type": job_type}
    job.update({name: given[name] for name in _AS_THEY_ARE if name in given})
    job.update({f"{name}_ms": milliseconds(given[name]) for name in _TIMES if name in given})
    if options is not None:
        job["options"] = options
    if "not_before" in given:
        job["not_before_us"] = microseconds(given["not_before"])
    if "backoff" in given:
        job["backoff"] = backoff_of(given["backoff"])
    if "tags" in given:
        job["tags"] = list(given["tags"])
    if "after" in given:
        job["after"] = [
            dict(each) if isinstance(each, Mapping) else {"type": each.type, "id": each.id} for each in given["after"]
        ]
    if "inputs" in given:
        job["inputs"] = {
            name: dict(each) if isinstance(each, Mapping) else {"job": f"{each.type}/{each.id}"}
            for name, each in given["inputs"].items()
        }
    if given.get("unique"):
        job["unique"] = unique_of(given["unique"], "task" if "task" in given else "type")
    reasons = list(given.get("reasons", ()))
    if "rate" in given:
        rate: str = given["rate"]
        name = f"{job_type}.{given['task']}" if "task" in given else job_type
        reasons.append("rate:" + (rate if ":" in rate else f"{rate}:{name}"))
    if reasons:
        job["reason"] = reasons
    return job


def unique_of(unique: bool | str | Mapping[str, Any], within: str) -> dict[str, Any]:
    if isinstance(unique, Mapping):
        return dict(unique)
    stated = {"mode": "until_end", "within": within}
    return stated if unique is True else {**stated, "key": str(unique)}


def terms(stated: Mapping[str, Any]) -> dict[str, Any]:
    """What a worker states of a task when it registers."""
    terms = {name: stated[name] for name in ("max_attempts", "max_snoozes", "jitter", "on_lost") if name in stated}
    for name in ("timeout", "heartbeat_timeout", "start_within", "keep"):
        if name in stated:
            terms[f"{name}_ms"] = milliseconds(stated[name])
    if "backoff" in stated:
        terms["backoff"] = backoff_of(stated["backoff"])
    if "final_errors" in stated:
        terms["final_errors"] = list(stated["final_errors"])
    return terms


TERMS = frozenset(
    "max_attempts max_snoozes jitter on_lost timeout heartbeat_timeout start_within keep backoff final_errors".split()
)


def when(text: str | float | Mapping[str, Any]) -> dict[str, Any]:
    """When a schedule fires: a cron expression with an IANA zone behind it, seconds between two fires, or what the API states."""
    if isinstance(text, Mapping):
        return dict(text)
    if isinstance(text, (int, float)):
        return {"every_ms": milliseconds(text)}
    words = text.split()
    if len(words) > 1 and re.fullmatch(r"[A-Z][A-Za-z_]+(/[A-Za-z0-9_+-]+)+|UTC", words[-1]):
        return {"cron": " ".join(words[:-1]), "zone": words[-1]}
    return {"cron": text}


def new_id() -> str:
    return os.urandom(16).hex()
