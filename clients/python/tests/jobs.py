"""The tasks of the tests' workers."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import pathlib
import time
from typing import Any

from turnwise_client import App, AsyncContext, Context, Fail, RetryAfter, Snooze

app = App("test")
log = logging.getLogger(__name__)


def note(text: str) -> None:
    """Writes a line that the test reads, also if the process is killed."""
    with (pathlib.Path(os.environ["TURNWISE_TEST_FOLDER"]) / "notes").open("a") as file:
        file.write(f"{text}\n")


@dataclasses.dataclass
class Order:
    id: int
    lines: list[str]


@app.task()
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task()
async def add_async(a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


@app.task()
def order(order: Order) -> Order:
    assert isinstance(order, Order)
    return Order(order.id + 1, [*order.lines, "done"])


@app.task()
def big(size: int) -> str:
    return "x" * size


@app.task()
def picture(size: int) -> bytes:
    return b"\x89" * size


@app.task(max_attempts=3, backoff=[0.1, 0.2])
def crash(context: Context, until: int) -> int:
    note(f"crash {context.id} {context.attempt}")
    if context.attempt < until:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@app.task()
def fail() -> None:
    raise Fail("no such customer", error_class="NoCustomer")


@app.task()
async def snooze(context: AsyncContext) -> str:
    if context.last_report is None:
        context.progress("snoozed")
        raise Snooze(0.2)
    return f"{context.last_report}, attempt {context.attempt}"


@app.task(backoff=60.0)
def retry_after(context: Context) -> int:
    if context.attempt == 1:
        raise RetryAfter(0.2, "the other side is busy", pause_rate=True)
    return context.attempt


@app.task()
def talk(context: Context) -> None:
    log.info("from %s", "logging")
    context.log("from the context", "warn", count=3)
    context.progress({"done": 1})
    try:
        raise KeyError("inside")
    except KeyError:
        log.exception("a trace")


@app.task()
async def talk_async() -> None:
    log.info("on the loop")


@app.task()
async def sleep_async(context: AsyncContext, seconds: float) -> str:
    note(f"start {context.id}")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(f"cancelled {context.id}")
        raise
    note(f"end {context.id}")
    return "slept"


@app.task()
def sleep(context: Context, seconds: float) -> str:
    note(f"start {context.id}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        context.pause(0.05)
    note(f"end {context.id}")
    return "slept"


@app.task()
def deaf(context: Context, seconds: float) -> str:
    """Never looks whether it has to stop."""
    note(f"start {context.id}")
    time.sleep(seconds)
    note(f"end {context.id}")
    return "slept"


@app.task(timeout=0.5, max_attempts=1)
async def too_long() -> None:
    await asyncio.sleep(60)


@app.task(max_attempts=5)
async def block_once(context: AsyncContext, seconds: float) -> str:
    """Blocks the event loop of the first worker that runs it."""
    note(f"start {context.id} {os.getpid()}")
    marker = pathlib.Path(os.environ["TURNWISE_TEST_FOLDER"]) / "blocked"
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        pass
    else:
        time.sleep(seconds)
    return str(os.getpid())


@app.task(max_attempts=5)
async def pid(context: AsyncContext, seconds: float) -> str:
    note(f"start {context.id} {os.getpid()}")
    await asyncio.sleep(seconds)
    return str(os.getpid())


@app.task(max_attempts=3, backoff=0.1)
def steps(context: Context) -> list[int]:
    def first() -> int:
        note("first")
        return 1

    def second() -> int:
        note("second")
        if context.attempt < 3:
            raise ValueError("not yet")
        return 2

    return [context.step("first", first), context.step("second", second)]


@app.task(max_attempts=2, backoff=0.1)
async def steps_async(context: AsyncContext) -> list[int]:
    async def first() -> int:
        note("first")
        return 1

    values = [await context.step("first", first), await context.step("second", lambda: 2)]
    if context.attempt == 1:
        context.progress("half")
        raise ValueError("not yet")
    assert context.last_report == "half"
    return values


@app.task()
def total(context: Context, inputs: list[str]) -> int:
    return sum(context.input(name) for name in inputs)


@app.task()
def kinds(context: Context) -> dict[str, list[Any]]:
    """The inputs, each with its kind and its length, and whether it came with the job or is fetched."""
    values = {name: context.input(name) for name in context.inputs}
    return {name: [type(value).__name__, len(value), "url" in context.inputs[name]] for name, value in values.items()}


@app.task()
async def kinds_async(context: AsyncContext) -> dict[str, list[Any]]:
    values = {name: await context.input(name) for name in context.inputs}
    return {name: [type(value).__name__, len(value), "url" in context.inputs[name]] for name, value in values.items()}


@app.task(schedule="0 0 1 1 * Europe/Berlin", tags=["yearly"])
def yearly() -> str:
    return "happy new year"


@app.task(unique=lambda a: f"one-{a}", priority=-3, tags=["only"], rate="1000/1s")
def only(a: int) -> int:
    return a


@app.task()
def guarded(context: Context) -> str:
    context.lock("instance", "web1")
    context.unlock("instance", "web1")
    return "locked"


@app.task(locks=lambda name, seconds: {"instance": {"exclusive": [name]}})
def holds(context: Context, name: str, seconds: float) -> None:
    note(f"start {context.id}")
    context.pause(seconds)


@app.task(locks={"instance": {"exclusive": "unknown"}})
def takes(context: Context, name: str, seconds: float) -> None:
    """Holds a lock for a part of its run."""
    note(f"start {context.id}")
    context.lock("instance", name)
    note(f"locked {context.id}")
    context.unlock("instance", name)
    context.pause(seconds)


@app.task(locks={"instance": {"exclusive": "unknown"}})
async def takes_async(context: AsyncContext, name: str, seconds: float) -> None:
    note(f"start {context.id}")
    await context.lock("instance", name)
    note(f"locked {context.id}")
    await context.unlock("instance", name)
    await asyncio.sleep(seconds)
