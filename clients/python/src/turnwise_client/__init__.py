"""Client and worker of the turnwise job server."""

from ._http import VERSION as __version__
from ._spec import Exponential, JobOptions
from .aio import AsyncClient, AsyncHandle
from .app import App, Task, TaskOptions
from .cli import work
from .client import Client, Handle
from .context import AsyncContext, Context, context
from .errors import (
    Cancelled,
    Expired,
    Fail,
    Foreign,
    Halted,
    JobFailed,
    NoAnswer,
    NotEnded,
    NotFound,
    Refused,
    RetryAfter,
    Snooze,
    TurnwiseError,
    Unavailable,
)
from .middleware import Adding, Middleware
from .worker import Worker

__all__ = [
    "Adding",
    "App",
    "AsyncClient",
    "AsyncContext",
    "AsyncHandle",
    "Cancelled",
    "Client",
    "Context",
    "Expired",
    "Exponential",
    "Fail",
    "Foreign",
    "Halted",
    "Handle",
    "JobFailed",
    "JobOptions",
    "Middleware",
    "NoAnswer",
    "NotEnded",
    "NotFound",
    "Refused",
    "RetryAfter",
    "Snooze",
    "Task",
    "TaskOptions",
    "TurnwiseError",
    "Unavailable",
    "Worker",
    "__version__",
    "context",
    "work",
]
