"""Middleware around adds and runs: an own one, OpenTelemetry's spans, and Sentry's events, with their real SDKs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from conftest import Server, eventually
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

import traced
from turnwise_client import Adding, AsyncContext, Client, Context, JobFailed, Middleware, Refused, Worker, outbox
from turnwise_client.opentelemetry import OpenTelemetry
from turnwise_client.sentry import Sentry


@pytest.fixture(autouse=True)
def working(server: Server, client: Client) -> Iterator[None]:
    """A worker in a thread of this process, so that tests see its middleware."""
    traced.app.connect(server.url)
    worker = Worker(traced.app)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    eventually(lambda: worker._session is not None)
    yield
    worker.stop()
    thread.join(20)
    assert not thread.is_alive()
    traced.app.middleware.clear()
    traced.app.close()


current: contextvars.ContextVar[str] = contextvars.ContextVar("current", default="")


class Notes(Middleware):
    """Notes what it sees, and gives jobs a tag."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    @contextlib.contextmanager
    def add(self, adding: Adding) -> Iterator[None]:
        self.notes.append(f"{self.name}: {len(adding.jobs)}")
        for job in adding.jobs:
            job["tags"] = [*job.get("tags", ()), self.name]
        try:
            yield
        except Refused as error:
            self.notes.append(f"{self.name}: {error.error}")
            raise

    @contextlib.contextmanager
    def run(self, context: Context | AsyncContext) -> Iterator[None]:
        before = current.get()
        current.set(f"{before}{self.name}")
        self.notes.append(f"begin {current.get()} {context.task} {context.attempt}")
        try:
            yield
        except Exception as error:
            self.notes.append(f"{self.name} {type(error).__name__}")
            raise
        finally:
            self.notes.append(f"end {current.get()}")
            current.set(before)


def test_middleware_is_around_adds_and_runs_of_both_kinds(client: Client) -> None:
    notes: list[str] = []
    traced.app.middleware += [Notes("a", notes), Notes("b", notes)]
    handle = traced.fails_once.add("x")
    assert handle.result(20) == "x"
    assert handle.job()["tags"] == ["a", "b"]
    begun = ["a: 1", "b: 1", "begin a fails_once 1", "begin ab fails_once 1"]
    ended = ["b ValueError", "end ab", "a ValueError", "end a", "begin a fails_once 2", "begin ab fails_once 2", "end ab", "end a"]
    assert notes == begun + ended

    notes.clear()
    with pytest.raises(Refused):
        traced.answers.using(priority=99).add()
    assert notes == ["a: 1", "b: 1", "b: bad_request", "a: bad_request"]

    async def on_a_loop() -> None:
        handle = await traced.answers.add_async()
        assert await handle.result(20) == ""
        assert (await handle.job())["tags"] == ["a", "b"]
        for many in await traced.answers.add_many_async([{}, {}]):
            await many.result(20)
        await traced.app.async_client.close()

    notes.clear()
    asyncio.run(on_a_loop())
    assert sorted(notes) == sorted(["a: 1", "b: 1", "a: 2", "b: 2", *3 * ["begin a answers 1", "begin ab answers 1", "end ab", "end a"]])


def test_middleware_is_around_adds_to_an_outbox() -> None:
    notes: list[str] = []
    traced.app.middleware.append(Notes("a", notes))
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        outbox.create_table(connection)
        traced.answers.add_in(connection)
        (row,) = connection.execute("SELECT job FROM turnwise_outbox").fetchone()
    assert json.loads(row)["tags"] == ["a"] and notes == ["a: 1"]


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """What the middleware of the app exports."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traced.app.middleware.append(OpenTelemetry(provider))
    yield exporter
    provider.shutdown()


def ids(span: ReadableSpan) -> tuple[int, int, int | None]:
    """The trace, the span and its parent."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id, span.parent.span_id if span.parent else None


def ended(spans: InMemorySpanExporter, count: int) -> list[ReadableSpan]:
    """The spans as soon as there are so many."""
    eventually(lambda: len(spans.get_finished_spans()) >= count)
    return sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)


def test_runs_are_spans_below_the_one_that_adds_the_job(spans: InMemorySpanExporter) -> None:
    handle = traced.fails_once.add("x")
    assert handle.result(20) == "x"
    add, first, second = ended(spans, 3)
    assert [span.name for span in (add, first, second)] == ["add traced", "run traced.fails_once", "run traced.fails_once"]
    assert [span.kind for span in (add, first, second)] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER]
    trace, parent, above = ids(add)
    assert above is None
    for span in (first, second):
        assert (ids(span)[0], ids(span)[2]) == (trace, parent)
    assert first.status.description == "ValueError: the first time" and first.events[0].name == "exception"
    assert second.status.is_unset
    assert second.attributes is not None
    assert second.attributes["turnwise.attempt"] == 2 and second.attributes["messaging.message.id"] == handle.id


def test_a_span_of_the_application_is_above_that_of_an_async_add(spans: InMemorySpanExporter) -> None:
    async def add() -> list[str]:
        with TracerProvider().get_tracer("test").start_as_current_span("request"):
            handles = await traced.answers.add_many_async([{}, {}])
        seen = [await handle.result(20) for handle in handles]
        await traced.app.async_client.close()
        return seen

    seen = asyncio.run(add())
    added, *runs = ended(spans, 3)
    trace, parent, above = ids(added)
    assert above is not None
    assert [(ids(run)[0], ids(run)[2]) for run in runs] == [(trace, parent)] * 2
    # Without an exporter of its own, the server hands on what the client sent.
    assert seen == [f"00-{trace:032x}-{parent:016x}-01"] * 2


def test_a_run_of_a_trace_that_is_not_sampled_is_a_trace_of_its_own(client: Client, spans: InMemorySpanExporter) -> None:
    with Client(traced.app._url, middleware=[OpenTelemetry(TracerProvider(sampler=ALWAYS_OFF))]) as unsampled:
        assert unsampled.add("traced", task="answers").result(20) == ""
    (run,) = ended(spans, 1)
    assert run.parent is None


def test_a_run_that_is_snoozed_or_cancelled_is_no_error(spans: InMemorySpanExporter) -> None:
    traced.ends.add("snooze").wait(20)
    stopped = traced.ends.add("cancel")
    eventually(lambda: stopped.status() == "running")
    stopped.cancel()
    assert stopped.wait(20)["state"] == "cancelled"
    traced.ends.add("fail").wait(20)
    runs = [span for span in ended(spans, 7) if span.kind is SpanKind.CONSUMER]
    assert [run.status.is_unset for run in runs] == [True, True, True, False]


class Collected(Transport):
    """Keeps the events in place of sending them."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events.append(envelope.get_event())


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """What Sentry is sent."""
    collected = Collected()
    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=collected, default_integrations=False)
    yield collected.events
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def test_sentry_gets_the_errors_of_runs_without_their_payload(events: list[Any]) -> None:
    traced.app.middleware.append(Sentry())
    handle = traced.fails_once.using(tenant="acme").add("hunter2")
    assert handle.result(20) == "hunter2"
    (event,) = events
    tags = {"turnwise.job": f"traced/{handle.id}", "turnwise.tenant": "acme", "turnwise.task": "fails_once", "turnwise.attempt": 1}
    assert event["tags"] == tags
    assert event["transaction"] == "traced.fails_once"
    error = event["exception"]["values"][-1]
    assert (error["type"], error["value"]) == ("ValueError", "the first time")
    assert error["stacktrace"]["frames"][-1]["function"] == "fails_once"
    assert "hunter2" not in json.dumps(event)
    # Outside of the run, nothing has the tags of a job.
    sentry_sdk.capture_message("elsewhere")
    assert not events[-1].get("tags")


def test_sentry_gets_the_payload_if_that_is_stated(events: list[Any]) -> None:
    traced.app.middleware.append(Sentry(payload=True))
    traced.fails_once.add("hunter2").result(20)
    assert "hunter2" in json.dumps(events[0])


def test_sentry_gets_no_ends_that_are_no_errors(events: list[Any]) -> None:
    traced.app.middleware.append(Sentry())
    for how in ("snooze", "later"):
        traced.ends.add(how).result(20)
    stopped = traced.ends.add("cancel")
    eventually(lambda: stopped.status() == "running")
    stopped.cancel()
    assert stopped.wait(20)["state"] == "cancelled"
    assert events == []
    with pytest.raises(JobFailed):
        traced.ends.add("fail").result(20)
    assert [event["exception"]["values"][-1]["type"] for event in events] == ["Fail"]
