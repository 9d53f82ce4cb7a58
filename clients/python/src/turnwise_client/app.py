"""Tasks: functions that run jobs, and that add them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, Union, overload

from . import outbox
from ._convert import Signature
from ._spec import TERMS, Backoff, JobOptions, Seconds, terms
from .aio import AsyncClient, AsyncHandle
from .client import Client, Handle
from .context import AsyncContext, Context
from .middleware import Middleware

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
R = TypeVar("R")
Key = Union[bool, str, Mapping[str, Any], Callable[..., Union[bool, str, Mapping[str, Any]]]]


class TaskOptions(TypedDict, total=False):
    """What holds for the jobs of a task. Times are seconds or `timedelta`."""

    name: str
    # The most jobs of this task that a worker runs at the same time.
    slots: int
    max_attempts: int
    backoff: Backoff
    timeout: Seconds
    heartbeat_timeout: Seconds
    start_within: Seconds
    keep: Seconds
    max_snoozes: int
    jitter: bool
    on_lost: str
    # Classes of errors after which a job is not tried again.
    final_errors: Sequence[str]
    # `True`, a key, what the API states, or a function of the arguments that returns one of these.
    unique: Key
    locks: Union[Mapping[str, Any], Callable[..., Mapping[str, Any]]]
    rate: str
    priority: int
    tags: Sequence[str]
    tenant: str
    # A cron expression with an IANA zone behind it, or seconds between two fires. The worker writes the schedule when it starts.
    schedule: Union[str, float]


class App:
    """The tasks of one job type, and the server that has their jobs. The clients are made when they are first used."""

    def __init__(
        self, type: str, url: str | None = None, token: str | None = None, *, middleware: Iterable[Middleware] = ()
    ) -> None:
        self.type = type
        # Around the adds and the runs of its tasks. The first is the outermost.
        self.middleware = list(middleware)
        self.tasks: dict[str, Task[..., Any]] = {}
        self._url = url
        self._token = token
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._async_client: AsyncClient | None = None

    def __repr__(self) -> str:
        return f"App({self.type!r}, tasks={list(self.tasks)!r})"

    @property
    def client(self) -> Client:
        """The client of `add`."""
        with self._lock:
            if self._client is None:
                self._client = Client(self._url, self._token, middleware=self.middleware)
            return self._client

    @property
    def async_client(self) -> AsyncClient:
        """The client of `add_async`."""
        with self._lock:
            if self._async_client is None:
                self._async_client = AsyncClient(self._url, self._token, middleware=self.middleware)
            return self._async_client

    def connect(self, url: str | None = None, token: str | None = None) -> None:
        """States the server, in place of what was stated before."""
        self.close()
        with self._lock:
            self._url, self._token, self._async_client = url, token, None

    def close(self) -> None:
        """Closes the connections of `client`. Those of `async_client` are closed by its own `close`, on its loop."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def task(self, **stated: Unpack[TaskOptions]) -> Decorator:
        """Makes a function a task: its arguments are the options of a job, its value is the result. A first argument that is annotated
        as `Context` (or `AsyncContext`, of a coroutine function) is not one of them."""
        unknown = stated.keys() - TaskOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"a task has no {', '.join(sorted(unknown))}")
        return Decorator(self, stated)


class Decorator:
    """What `App.task` returns."""

    def __init__(self, app: App, stated: TaskOptions) -> None:
        self._app = app
        self._stated = stated

    @overload
    def __call__(self, function: Callable[Concatenate[AsyncContext, P], Awaitable[R]]) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]]) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R]) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Task[..., Any]:
        task: Task[..., Any] = Task(self._app, function, self._stated)
        if task.name in self._app.tasks:
            raise ValueError(f"the type {self._app.type} has two tasks {task.name}")
        self._app.tasks[task.name] = task
        return task


class Task(Generic[P, R]):
    """A task. `function` is the function itself."""

    def __init__(self, app: App, function: Callable[..., Any], stated: TaskOptions, using: JobOptions | None = None) -> None:
        self.app = app
        self.function = function
        self.stated = stated
        self.name: str = stated.get("name", getattr(function, "__name__", ""))
        self.is_async = inspect.iscoroutinefunction(function)
        kinds = (AsyncContext, Context) if self.is_async else (Context, AsyncContext)
        self.signature = Signature(function, *kinds)
        self._using: JobOptions = using or {}
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"Task({self.app.type!r}, {self.name!r})"

    def using(self, **stated: Unpack[JobOptions]) -> Task[P, R]:
        """The same task, whose jobs are added so: `send.using(delay=60, tenant="acme").add(…)`."""
        return Task(self.app, self.function, self.stated, {**self._using, **stated})

    def new(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, Any, JobOptions]:
        """A job of this task, for `Client.add_many`, a group or a schedule."""
        return self._new(args, dict(kwargs))

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any, JobOptions]:
        options = self.signature.options(args, kwargs)
        # Terms are stated by workers; this is what belongs to each job.
        of_task: dict[str, Any] = dict(self.stated)
        stated: dict[str, Any] = {"task": self.name}
        for name in ("rate", "priority", "tags", "tenant"):
            if name in of_task:
                stated[name] = of_task[name]
        for name in ("unique", "locks"):
            value = of_task.get(name)
            if value is not None:
                stated[name] = value(*args, **kwargs) if callable(value) else value
        job_options: Any = {**stated, **self._using}
        return self.app.type, options, job_options

    def add(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Adds a job with these arguments."""
        job_type, options, stated = self._new(args, dict(kwargs))
        added = self.app.client.add(job_type, options, **stated)
        return self.handle(added.id, added.added)

    def add_in(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Adds a job with the transaction of this connection to a database, through its outbox: `turnwise_client.outbox`."""
        job = self._new(args, dict(kwargs))
        return self.handle(outbox.add_in(connection, *job, middleware=self.app.middleware))

    def add_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[Handle[R]]:
        """Adds a job for each of these named arguments: all or none, if they fit into one transaction of the store. At most 1,000."""
        added = self.app.client.add_many([self._new((), dict(each)) for each in arguments])
        return [self.handle(each.id, each.added) for each in added]

    def handle(self, id: str, added: str | None = None) -> Handle[R]:
        """The handle of a job of this task. This sends nothing."""
        handle: Handle[R] = Handle(self.app.client, self.app.type, id, load=self.signature.result)
        handle.added = added
        return handle

    async def add_async(self, *args: P.args, **kwargs: P.kwargs) -> AsyncHandle[R]:
        """Adds a job with these arguments."""
        job_type, options, stated = self._new(args, dict(kwargs))
        added = await self.app.async_client.add(job_type, options, **stated)
        return self.handle_async(added.id, added.added)

    async def add_in_async(self, connection: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncHandle[R]:
        """The same for a connection of `asyncpg`, or an `AsyncConnection` of `psycopg`."""
        job = self._new(args, dict(kwargs))
        return self.handle_async(await outbox.add_in_async(connection, *job, middleware=self.app.middleware))

    async def add_many_async(self, arguments: Iterable[Mapping[str, Any]]) -> list[AsyncHandle[R]]:
        """Adds a job for each of these named arguments: all or none, if they fit into one transaction of the store. At most 1,000."""
        added = await self.app.async_client.add_many([self._new((), dict(each)) for each in arguments])
        return [self.handle_async(each.id, each.added) for each in added]

    def handle_async(self, id: str, added: str | None = None) -> AsyncHandle[R]:
        """The handle of a job of this task. This sends nothing."""
        handle: AsyncHandle[R] = AsyncHandle(self.app.async_client, self.app.type, id, load=self.signature.result)
        handle.added = added
        return handle

    def terms(self) -> dict[str, Any]:
        """What a worker states of this task when it registers."""
        return terms({name: value for name, value in self.stated.items() if name in TERMS})

    @property
    def schedule_name(self) -> str:
        """The name of the schedule that `schedule` stands for."""
        return f"{self.app.type}.{self.name}"
