"""Errors of runs in Sentry: `App("mail", middleware=[Sentry()])`. It needs `pip install 'turnwise-client[sentry]'`, and the application's own
`sentry_sdk.init(…)`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Union

import sentry_sdk

from .context import AsyncContext, Context
from .errors import RetryAfter
from .middleware import Middleware, is_failure

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint


class Sentry(Middleware):
    """Reports the errors of runs with the job as tags. An error that may pass (`RetryAfter`) is not reported.

    Events have no payload: the values of local variables, among which are the arguments of the task, are left out unless `payload` is true."""

    def __init__(self, *, payload: bool = False) -> None:
        self._payload = payload

    @contextmanager
    def run(self, context: Union[Context, AsyncContext]) -> Generator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_transaction_name(f"{context.type}.{context.task}")
            scope.set_tag("turnwise.job", f"{context.type}/{context.id}")
            scope.set_tag("turnwise.tenant", context.tenant)
            scope.set_tag("turnwise.task", context.task)
            scope.set_tag("turnwise.attempt", context.attempt)
            if not self._payload:
                scope.add_event_processor(_without_variables)
            try:
                yield
            except BaseException as error:
                if is_failure(error) and not isinstance(error, RetryAfter):
                    sentry_sdk.capture_exception(error)
                raise


def _without_variables(event: Event, _: Hint) -> Event:
    stacks: list[Any] = [event.get("stacktrace")]
    for where in ("exception", "threads"):
        within: Any = event.get(where) or {}
        stacks += [value.get("stacktrace") for value in within.get("values", ())]
    for stack in stacks:
        for frame in (stack or {}).get("frames", ()):
            frame.pop("vars", None)
    return event
