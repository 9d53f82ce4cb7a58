"""Middleware: what an application does around each request that adds jobs, and around each run.

A middleware is one class for both clients and both kinds of tasks: its methods are context managers, inside which the request is sent or the
function runs. `turnwise_client.opentelemetry` and `turnwise_client.sentry` have two."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from .errors import Cancelled, Snooze

if TYPE_CHECKING:
    from .context import AsyncContext, Context


@dataclass
class Adding:
    """A request that adds jobs, which a middleware may change before it is sent."""

    # The jobs as `POST /v1/jobs` takes them, each with its type and its id.
    jobs: list[dict[str, Any]]
    # Headers of the request: `traceparent`, for example. A job that goes through an outbox has none.
    headers: dict[str, str] = field(default_factory=dict)
    # Which of the ids were made for this request.
    new_ids: frozenset[str] = frozenset()


class Middleware:
    """Override one method, or both. The first middleware of an app is the outermost."""

    def add(self, adding: Adding) -> AbstractContextManager[None]:
        """Inside it, the request is sent. It is left when the server has answered."""
        return nullcontext()

    def run(self, context: Union[Context, AsyncContext]) -> AbstractContextManager[None]:
        """Inside it, the function of a task runs: in a thread, or on the event loop. The errors of the run pass through it."""
        return nullcontext()


def is_failure(error: BaseException) -> bool:
    """Whether a run that ends with this error has failed. It has not if it is to run later, or had to stop."""
    return not isinstance(error, (Snooze, Cancelled, asyncio.CancelledError))


@contextmanager
def around_add(middleware: Sequence[Middleware], adding: Adding) -> Generator[Adding]:
    with ExitStack() as stack:
        for each in middleware:
            stack.enter_context(each.add(adding))
        yield adding


@contextmanager
def around_run(middleware: Sequence[Middleware], context: Union[Context, AsyncContext]) -> Generator[None]:
    with ExitStack() as stack:
        for each in middleware:
            stack.enter_context(each.run(context))
        yield
