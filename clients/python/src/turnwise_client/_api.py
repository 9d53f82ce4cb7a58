"""The requests of a client, as steps: each is written once for `Client` and `AsyncClient`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

from . import _spec
from ._http import Core, Item, Pause, Request, Steps, encode, path, query
from .errors import JobFailed, NotEnded, NotFound, TurnwiseError
from .middleware import Adding
from .models import FINAL_STATES, AddedJob, FiredSchedule, Group, Job, LogLine, Retried, Schedule, State, StreamEvent

# How long one request waits on the server at most: many gateways cut a request that is not answered for 30 or 60 s.
WAIT_PER_REQUEST_S = 25.0
WAIT_AMONG_SERVERS_S = 10.0
# A server may limit waits to less. The client repeats a wait no sooner than this.
SHORTEST_WAIT_S = 0.5
# How long the follower of a log waits between two looks.
LOOK_S = 1.0
MAX_PAGE = 1000

# A type, the options, and how the job is added.
NewJob = tuple[str, Any, _spec.JobOptions]
GroupJob = Union[NewJob, Mapping[str, Any]]


def _fresh(job: Mapping[str, Any]) -> str:
    """The result of adding a job where an earlier attempt added it but its answer was lost."""
    if job.get("after") or job.get("inputs"):
        return "blocked"
    return "delayed" if "delay_ms" in job or "not_before_us" in job else "queued"


def is_idempotent(job: Mapping[str, Any]) -> bool:
    """Of jobs that are added again, one may end between two attempts, and would then run twice."""
    again = job.get("if_exists") == "again"
    return not again and job.get("unique", {}).get("on_conflict") != "after"


def group_job(job: GroupJob) -> dict[str, Any]:
    """A job that a group adds or a schedule fires."""
    return _spec.new_job(*job) if isinstance(job, tuple) else dict(job)


def adding(jobs: Iterable[NewJob]) -> Adding:
    """The request that adds these jobs. Those without an id get one."""
    made = [_spec.new_job(*job) for job in jobs]
    new_ids = []
    for job in made:
        if "id" not in job:
            job["id"] = _spec.new_id()
            new_ids.append(job["id"])
    return Adding(made, new_ids=frozenset(new_ids))


def add(core: Core, adding: Adding) -> Steps[AddedJob]:
    """Adds the one job of this request."""
    job = dict(adding.jobs[0])
    request = _adding(path("jobs", job.pop("type")), encode(job), adding)
    answer, worked = yield from core.call(request)
    added: AddedJob = answer.json()
    return _added(adding, [added], worked)[0]


def add_many(core: Core, adding: Adding) -> Steps[list[AddedJob]]:
    request = _adding(path("jobs"), encode({"jobs": adding.jobs}), adding)
    answer, worked = yield from core.call(request)
    return _added(adding, answer.json()["jobs"], worked)


def _adding(where: str, body: bytes, adding: Adding) -> Request:
    idempotent = all(is_idempotent(job) for job in adding.jobs)
    return Request("POST", where, body=body, headers=tuple(adding.headers.items()), idempotent=idempotent)


def _added(adding: Adding, added: list[AddedJob], worked: bool) -> list[AddedJob]:
    """What the server answered. An earlier attempt may have added the jobs, but its answer was lost."""
    for each, job in zip(added, adding.jobs):
        if worked and job["id"] in adding.new_ids and each["added"] == "exists":
            each["added"] = _fresh(job)
    return added


def add_texts(core: Core, jobs: Sequence[str]) -> Steps[None]:
    """Adds jobs that are JSON already, each with an id. One attempt at each server: the caller tries again."""
    body = ('{"jobs":[' + ",".join(jobs) + "]}").encode()
    yield from core.call(Request("POST", path("jobs"), body=body, retry_for=0))


def job(core: Core, job_type: str, id: str) -> Steps[Job]:
    answer: Job = yield from core.read(Request("GET", path("jobs", job_type, id)))
    return answer


def pages(core: Core, where: str, rows: str, parameters: tuple[tuple[str, str], ...]) -> Steps[None]:
    """All rows of all pages."""
    after: tuple[tuple[str, str], ...] = ()
    while True:
        page = yield from core.read(Request("GET", path(where), query=(*parameters, *after)))
        for row in page[rows]:
            yield Item(row)
        if page.get("next") is None:
            return
        after = (("after", page["next"]),)


def cancel(core: Core, job_type: str, id: str) -> Steps[State]:
    answer = yield from core.read(Request("POST", path("jobs", job_type, id, "cancel")))
    state: State = answer["state"]
    return state


def retry(core: Core, job_type: str, id: str, with_dependents: bool) -> Steps[Retried]:
    body = encode({"with_dependents": True}) if with_dependents else None
    answer: Retried = yield from core.read(Request("POST", path("jobs", job_type, id, "retry"), body=body))
    return answer


def remove(core: Core, job_type: str, id: str) -> Steps[bool]:
    """Whether the job is gone; if not, it goes as soon as its worker has stopped it."""
    started = False
    try:
        removing = core.call(Request("DELETE", path("jobs", job_type, id)))
        outcome = None
        while True:
            step = removing.send(outcome)
            outcome = yield step
            started |= isinstance(outcome, TurnwiseError) and outcome.may_have_worked
    except StopIteration as end:
        return bool(end.value[0].json()["removed"])
    except NotFound:
        if started:
            # The job is gone because an earlier attempt removed it.
            return True
        raise


def wait(core: Core, job_type: str, id: str, timeout: float | None) -> Steps[Job]:
    """Waits until the job has ended, however long requests may wait, and also while a server restarts."""
    started = time.monotonic()
    longest = WAIT_AMONG_SERVERS_S if len(core.servers) > 1 else WAIT_PER_REQUEST_S
    while True:
        left = longest if timeout is None else max(0.0, timeout - (time.monotonic() - started))
        wait = min(left, longest)
        asked = time.monotonic()
        request = Request("GET", path("jobs", job_type, id, "wait"), wait=wait, wait_parameter="timeout_ms")
        answer = yield from core.read(request)
        ended: Job = answer["job"]
        if answer["finished"]:
            if ended["state"] == "failed":
                # The answer has no errors. The record may be gone by now.
                try:
                    return (yield from job(core, job_type, id))
                except NotFound:
                    pass
            return ended
        if timeout is not None and time.monotonic() - started >= timeout:
            raise NotEnded(ended, timeout)
        yield Pause(max(0.0, min(SHORTEST_WAIT_S, wait) - (time.monotonic() - asked)))


def result(core: Core, job_type: str, id: str, timeout: float | None) -> Steps[Any]:
    """Waits for the end, and returns the result: what the JSON states, or bytes of another media type."""
    ended = yield from wait(core, job_type, id, timeout)
    if ended["state"] != "completed":
        raise JobFailed(ended)
    if "result" in ended:
        return ended["result"]
    if "result_bytes" not in ended and "result_type" not in ended:
        return None
    answer, _ = yield from core.call(Request("GET", path("jobs", job_type, id, "result")))
    return answer.json() if answer.media_type == "application/json" else answer.body


def logs(core: Core, job_type: str, id: str, start: int, follow: bool) -> Steps[None]:
    """The lines of a job's log from this number on; with `follow`, until the job has ended."""
    at = start
    ended = not follow
    while True:
        parameters = query(**{"from": at, "limit": MAX_PAGE})
        page = yield from core.read(Request("GET", path("jobs", job_type, id, "logs"), query=parameters))
        lines: list[LogLine] = page["lines"]
        for line in lines:
            at = max(at, line["number"] + 1)
            yield Item(line)
        if lines:
            continue
        if ended:
            return
        looking = Request("GET", path("jobs", job_type, id, "wait"), wait=LOOK_S, wait_parameter="timeout_ms")
        looked = time.monotonic()
        ended = (yield from core.read(looking))["finished"]
        if not ended:
            yield Pause(max(0.0, SHORTEST_WAIT_S - (time.monotonic() - looked)))


def events(core: Core, since: str | None, parameters: tuple[tuple[str, str], ...]) -> Steps[None]:
    """What happens to jobs, without an end."""
    after = query(since=since)
    while True:
        asked = time.monotonic()
        request = Request("GET", path("events"), query=(*parameters, *after), wait=WAIT_PER_REQUEST_S, wait_parameter="wait_ms")
        page = yield from core.read(request)
        events: list[StreamEvent] = page["events"]
        after = (("since", page["next"]),)
        for event in events:
            yield Item(event)
        if not events and not page["more"]:
            yield Pause(max(0.0, SHORTEST_WAIT_S - (time.monotonic() - asked)))


def put_group(core: Core, group: Mapping[str, Any]) -> Steps[Group]:
    body = {name: value for name, value in group.items() if value is not None}
    for name in ("on_complete", "on_success", "on_first_failure"):
        if name in body:
            body[name] = group_job(body[name])
    answer: Group = yield from core.read(Request("POST", path("groups"), body=encode(body)))
    return answer


def group(core: Core, tenant: str, name: str) -> Steps[Group]:
    answer: Group = yield from core.read(Request("GET", path("groups", tenant, name)))
    return answer


def close_group(core: Core, tenant: str, name: str) -> Steps[Group]:
    answer: Group = yield from core.read(Request("POST", path("groups", tenant, name, "close")))
    return answer


def remove_group(core: Core, tenant: str, name: str) -> Steps[None]:
    yield from core.read(Request("DELETE", path("groups", tenant, name), idempotent=False))


def wait_group(core: Core, tenant: str, name: str, timeout: float | None) -> Steps[Group]:
    """Waits until the group has ended. The server has no long poll of groups, so this looks at it again and again."""
    started = time.monotonic()
    pause = 0.05
    while True:
        found = yield from group(core, tenant, name)
        if found["state"] in FINAL_STATES:
            return found
        left = float("inf") if timeout is None else timeout - (time.monotonic() - started)
        if left <= 0:
            raise TurnwiseError("not_ended", f"the group {name} is {found['state']}", "close it, or wait longer")
        yield Pause(min(pause, left))
        pause = min(pause * 1.5, 2.0)


def put_schedule(core: Core, name: str, schedule: Mapping[str, Any]) -> Steps[Schedule]:
    body = {member: value for member, value in schedule.items() if value is not None}
    body["job"] = group_job(body["job"])
    body["when"] = _spec.when(body["when"])
    answer: Schedule = yield from core.read(Request("PUT", path("schedules", name), body=encode(body)))
    return answer


def schedule(core: Core, name: str) -> Steps[Schedule]:
    answer: Schedule = yield from core.read(Request("GET", path("schedules", name)))
    return answer


def act_on_schedule(core: Core, name: str, what: str) -> Steps[Schedule]:
    answer: Schedule = yield from core.read(Request("POST", path("schedules", name, what)))
    return answer


def fire_schedule(core: Core, name: str) -> Steps[FiredSchedule]:
    answer: FiredSchedule = yield from core.read(Request("POST", path("schedules", name, "fire"), idempotent=False))
    return answer


def remove_schedule(core: Core, name: str) -> Steps[None]:
    yield from core.read(Request("DELETE", path("schedules", name), idempotent=False))


def jobs_query(
    type: str | None, state: str | None, tenant: str | None, tag: str | None, where: str | None, order: str | None
) -> tuple[tuple[str, str], ...]:
    return query(type=type, state=state, tenant=tenant, tag=tag, where=where, order=order, limit=MAX_PAGE)


def events_query(
    types: Sequence[str], tenant: str | None, states: Sequence[str], events: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    joined = {"type": ",".join(types), "state": ",".join(states), "event": ",".join(events)}
    given = {name: value for name, value in joined.items() if value}
    return query(**given, tenant=tenant, limit=MAX_PAGE)
