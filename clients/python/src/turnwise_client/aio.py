"""The client for event loops: the same as `Client`, with `await`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from . import _api
from ._api import GroupJob, NewJob
from ._http import RETRY_FOR_S, Core, query
from ._spec import JobOptions, Seconds, milliseconds
from ._transport import AsyncTransport
from .middleware import Middleware, around_add
from .models import AddedJob, FiredSchedule, Group, Job, LogLine, Retried, Schedule, State, StreamEvent

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")


class AsyncClient:
    """An asynchronous client of a turnwise server, or of several on one store. Close it, or use it in `async with`.

    `url` is one URL, several, or several with commas between them; by default that of `TURNWISE_SERVER`. `token` is by default that of
    `TURNWISE_TOKEN`. Requests are repeated for `retry_for` seconds while repeating them is harmless."""

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        *,
        retry_for: float = RETRY_FOR_S,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._middleware = middleware
        self._core = Core(url, token, retry_for)
        self._transport = AsyncTransport(self._core)

    def __repr__(self) -> str:
        return f"AsyncClient({self._core!r})"

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def add(self, type: str, options: Any = None, /, **stated: Unpack[JobOptions]) -> AsyncHandle[Any]:
        """Adds a job. One without an id gets one here, so that it is added once, however often the request is repeated."""
        with around_add(self._middleware, _api.adding([(type, options, stated)])) as adding:
            added = await self._transport.add(adding)
        return AsyncHandle(self, added["type"], added["id"], added)

    async def add_many(self, jobs: Iterable[NewJob]) -> list[AsyncHandle[Any]]:
        """Adds jobs, each as `(type, options, {...})`: all or none, if they fit into one transaction of the store. At most 1,000."""
        with around_add(self._middleware, _api.adding(jobs)) as adding:
            added = await self._transport.run(_api.add_many(self._core, adding))
        return [AsyncHandle(self, each["type"], each["id"], each) for each in added]

    def handle(self, type: str, id: str) -> AsyncHandle[Any]:
        """The handle of a job that was added before. This sends nothing."""
        return AsyncHandle(self, type, id)

    async def job(self, type: str, id: str) -> Job:
        """Reads a job."""
        return await self._transport.run(_api.job(self._core, type, id))

    def jobs(
        self,
        *,
        type: str | None = None,
        state: State | None = None,
        tenant: str | None = None,
        tag: str | None = None,
        where: str | None = None,
        order: Literal["newest", "oldest", "id"] | None = None,
    ) -> AsyncIterator[Job]:
        """The jobs of which all this is true, page by page."""
        parameters = _api.jobs_query(type, state, tenant, tag, where, order)
        return self._transport.iterate(_api.pages(self._core, "jobs", "jobs", parameters))

    async def cancel(self, type: str, id: str) -> State:
        """Cancels a job. Its state stays `running` until its worker has stopped it."""
        return await self._transport.run(_api.cancel(self._core, type, id))

    async def retry(self, type: str, id: str, *, with_dependents: bool = False) -> Retried:
        """Makes a job pending at once that waits, has failed, or was cancelled."""
        return await self._transport.run(_api.retry(self._core, type, id, with_dependents))

    async def remove(self, type: str, id: str) -> bool:
        """Removes a job. Returns whether it is gone; if not, it goes as soon as its worker has stopped it."""
        return await self._transport.run(_api.remove(self._core, type, id))

    async def wait(self, type: str, id: str, timeout: float | None = None) -> Job:
        """Waits until a job has ended, in whatever way. Raises `NotEnded` after `timeout` seconds."""
        return await self._transport.run(_api.wait(self._core, type, id, timeout))

    async def result(self, type: str, id: str, timeout: float | None = None) -> Any:
        """Waits for a job's result. Raises `JobFailed` if it has none, and `NotEnded` after `timeout` seconds."""
        return await self._transport.run(_api.result(self._core, type, id, timeout))

    def logs(self, type: str, id: str, *, start: int = 0, follow: bool = False) -> AsyncIterator[LogLine]:
        """The lines of a job's log from this number on; with `follow`, until the job has ended."""
        return self._transport.iterate(_api.logs(self._core, type, id, start, follow))

    def events(
        self,
        *,
        since: str | None = None,
        types: Sequence[str] = (),
        tenant: str | None = None,
        states: Sequence[str] = (),
        events: Sequence[str] = (),
    ) -> AsyncIterator[StreamEvent]:
        """What happens to jobs from now on, or after the event with the `seq` that `since` states; `oldest` begins with the first that
        is kept. It has no end."""
        parameters = _api.events_query(types, tenant, states, events)
        return self._transport.iterate(_api.events(self._core, since, parameters))

    async def add_group(
        self,
        name: str,
        *,
        tenant: str | None = None,
        open: bool | None = None,
        at_once: int | None = None,
        keep: Seconds | None = None,
        parent: str | None = None,
        on_complete: GroupJob | None = None,
        on_success: GroupJob | None = None,
        on_first_failure: GroupJob | None = None,
    ) -> Group:
        """Creates a group, which is open until `close_group`. When its last job has ended, it adds the jobs that it states."""
        group = {"name": name, "tenant": tenant, "open": open, "at_once": at_once, "parent": parent}
        calls = {"on_complete": on_complete, "on_success": on_success, "on_first_failure": on_first_failure}
        kept = {"keep_ms": None if keep is None else milliseconds(keep)}
        return await self._transport.run(_api.put_group(self._core, {**group, **calls, **kept}))

    async def group(self, name: str, *, tenant: str = "default") -> Group:
        """A group, with the numbers of its jobs."""
        return await self._transport.run(_api.group(self._core, tenant, name))

    def groups(self, *, tenant: str | None = None, state: str | None = None) -> AsyncIterator[Group]:
        """The groups, by tenant and name."""
        return self._transport.iterate(_api.pages(self._core, "groups", "groups", query(tenant=tenant, state=state)))

    async def close_group(self, name: str, *, tenant: str = "default") -> Group:
        """Closes a group: it ends with the last of its jobs."""
        return await self._transport.run(_api.close_group(self._core, tenant, name))

    async def wait_group(self, name: str, *, tenant: str = "default", timeout: float | None = None) -> Group:
        """Waits until a group has ended."""
        return await self._transport.run(_api.wait_group(self._core, tenant, name, timeout))

    async def remove_group(self, name: str, *, tenant: str = "default") -> None:
        """Removes a group that has ended. Its jobs stay."""
        await self._transport.run(_api.remove_group(self._core, tenant, name))

    async def put_schedule(
        self,
        name: str,
        when: str | float | Mapping[str, Any],
        job: GroupJob,
        *,
        overlap: Literal["skip", "allow", "queue", "cancel_running"] | None = None,
        missed: Literal["one", "skip", "all"] | None = None,
        jitter: Seconds | None = None,
        pause_after: int | None = None,
        paused: bool | None = None,
        note: str | None = None,
    ) -> Schedule:
        """Creates a schedule, or replaces the one with this name. `when` is a cron expression, with an IANA zone behind it if it is not
        UTC; or seconds between two fires; or what the API states."""
        stated = {"when": when, "job": job, "overlap": overlap, "missed": missed, "pause_after": pause_after}
        more = {"paused": paused, "note": note, "jitter_ms": None if jitter is None else milliseconds(jitter)}
        return await self._transport.run(_api.put_schedule(self._core, name, {**stated, **more}))

    async def schedule(self, name: str) -> Schedule:
        """A schedule, with its last fires."""
        return await self._transport.run(_api.schedule(self._core, name))

    def schedules(self, *, tenant: str | None = None) -> AsyncIterator[Schedule]:
        """The schedules, by name."""
        return self._transport.iterate(_api.pages(self._core, "schedules", "schedules", query(tenant=tenant)))

    async def pause_schedule(self, name: str) -> Schedule:
        """Pauses a schedule, which fires no more until it is resumed."""
        return await self._transport.run(_api.act_on_schedule(self._core, name, "pause"))

    async def resume_schedule(self, name: str) -> Schedule:
        """Resumes a schedule, which fires from now on."""
        return await self._transport.run(_api.act_on_schedule(self._core, name, "resume"))

    async def fire_schedule(self, name: str) -> FiredSchedule:
        """Fires a schedule now."""
        return await self._transport.run(_api.fire_schedule(self._core, name))

    async def remove_schedule(self, name: str) -> None:
        """Removes a schedule. Its jobs stay."""
        await self._transport.run(_api.remove_schedule(self._core, name))


class AsyncHandle(Generic[R]):
    """A job that was added. `added` states what became of the request, if this is the handle of one."""

    def __init__(
        self,
        client: AsyncClient,
        type: str,
        id: str,
        added: AddedJob | None = None,
        load: Callable[[Any], R] | None = None,
    ) -> None:
        self._client = client
        self._load = load
        self.type = type
        self.id = id
        self.added = None if added is None else added["added"]

    def __repr__(self) -> str:
        return f"AsyncHandle({self.type!r}, {self.id!r})"

    async def job(self) -> Job:
        """The job's record."""
        return await self._client.job(self.type, self.id)

    async def status(self) -> State:
        """The job's state."""
        return (await self.job())["state"]

    async def wait(self, timeout: float | None = None) -> Job:
        """Waits until the job has ended, in whatever way. Raises `NotEnded` after `timeout` seconds."""
        return await self._client.wait(self.type, self.id, timeout)

    async def result(self, timeout: float | None = None) -> R:
        """Waits for the result. Raises `JobFailed` if there is none, and `NotEnded` after `timeout` seconds."""
        result = await self._client.result(self.type, self.id, timeout)
        return result if self._load is None else self._load(result)

    async def cancel(self) -> State:
        """Cancels the job. Its state stays `running` until its worker has stopped it."""
        return await self._client.cancel(self.type, self.id)

    async def retry(self) -> Retried:
        """Makes the job pending at once if it waits, has failed, or was cancelled."""
        return await self._client.retry(self.type, self.id)

    async def remove(self) -> bool:
        """Removes the job. Returns whether it is gone; if not, it goes as soon as its worker has stopped it."""
        return await self._client.remove(self.type, self.id)

    def logs(self, *, start: int = 0, follow: bool = False) -> AsyncIterator[LogLine]:
        """The lines of the job's log from this number on; with `follow`, until the job has ended."""
        return self._client.logs(self.type, self.id, start=start, follow=follow)
