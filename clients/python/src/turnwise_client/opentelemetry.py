"""Traces with OpenTelemetry: `App("mail", middleware=[OpenTelemetry()])`. It needs `pip install 'turnwise-client[opentelemetry]'`.

A request that adds jobs is a span, and each run of the jobs is a span below it. If the server exports traces as well, its own spans are in
between."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Union

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from ._http import VERSION
from .context import AsyncContext, Context
from .middleware import Adding, Middleware, is_failure

# What the server reads and hands on is W3C Trace Context, whatever else the application propagates.
_TRACEPARENT = TraceContextTextMapPropagator()


class OpenTelemetry(Middleware):
    """Spans of adds and runs. They go to this provider, or to the global one."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("turnwise_client", VERSION, tracer_provider)

    @contextmanager
    def add(self, adding: Adding) -> Generator[None]:
        jobs = adding.jobs
        types = sorted({job["type"] for job in jobs})
        attributes = {**_attributes(",".join(types), "add", "send"), "messaging.batch.message_count": len(jobs)}
        if len(jobs) == 1:
            attributes["messaging.message.id"] = jobs[0]["id"]
        with self._span(f"add {','.join(types)}", contexts.get_current(), SpanKind.PRODUCER, attributes):
            _TRACEPARENT.inject(adding.headers)
            yield

    @contextmanager
    def run(self, context: Union[Context, AsyncContext]) -> Generator[None]:
        attributes = {
            **_attributes(context.type, "run", "process"),
            "messaging.message.id": context.id,
            "turnwise.tenant": context.tenant,
            "turnwise.task": context.task or "",
            "turnwise.attempt": context.attempt,
        }
        carrier = {"traceparent": context.traceparent} if context.traceparent else {}
        parent = _TRACEPARENT.extract(carrier, contexts.Context())
        with self._span(f"run {context.type}.{context.task}", parent, SpanKind.CONSUMER, attributes):
            yield

    @contextmanager
    def _span(
        self, name: str, parent: contexts.Context, kind: SpanKind, attributes: dict[str, AttributeValue]
    ) -> Generator[None]:
        # Not its own recording of errors: a run that is snoozed or stopped has not failed.
        spanning = self._tracer.start_as_current_span(
            name, parent, kind, attributes, record_exception=False, set_status_on_exception=False
        )
        with spanning as span:
            try:
                yield
            except BaseException as error:
                if is_failure(error):
                    span.record_exception(error)
                    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
                raise


def _attributes(job_type: str, operation: str, operation_type: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "turnwise",
        "messaging.destination.name": job_type,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation_type,
        "turnwise.job.type": job_type,
    }
