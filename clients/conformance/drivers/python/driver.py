"""The tasks and the client that the conformance suite drives. `turnwise-worker driver` runs the tasks, `python driver.py` the client."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import pathlib
import sys
import threading
import time
from functools import partial
from typing import Any

from turnwise_client import App, AsyncClient, AsyncContext, Client, Context, Fail, JobFailed, RetryAfter, Snooze, TurnwiseError

TYPE = "suite"
app = App(TYPE)
ME = os.environ["SUITE_NAME"]
GATES = pathlib.Path(os.environ["SUITE_GATES"])
POLL_S = 0.02
writing = threading.Lock()


def say(**line: Any) -> None:
    with writing:
        print(json.dumps(line), flush=True)


def is_open(gate: str) -> bool:
    return (GATES / gate).exists()


def applies(action: dict[str, Any], context: Context | AsyncContext) -> bool:
    """Whether this run does this."""
    return (
        action.get("at", ME) == ME
        and action.get("attempt", context.attempt) == context.attempt
        and (not action.get("fresh") or context.last_report is None)
    )


def began(context: Context | AsyncContext) -> None:
    left = context.time_left
    say(event="start", job=context.id, attempt=context.attempt, left=left, last=context.last_report)


def stepped(context: Context | AsyncContext, name: str) -> str:
    say(event="step", job=context.id, step=name)
    return name


def now(action: dict[str, Any], context: Context | AsyncContext) -> None:
    """What needs no wait."""
    if "block" in action:
        while not is_open(action["block"]):
            time.sleep(POLL_S)
    if "log" in action:
        for n in range(action.get("times", 1)):
            context.log(action["log"].replace("%", str(n)))
    if "progress" in action:
        context.progress(action["progress"])
    if "raise" in action:
        reason, seconds = action.get("reason", "why not"), action.get("seconds", 0)
        errors = {"Fail": lambda: Fail(reason), "Snooze": lambda: Snooze(seconds), "RetryAfter": lambda: RetryAfter(seconds, reason)}
        raise errors.get(action["raise"], lambda: ValueError(reason))()


def returned(action: dict[str, Any]) -> Any:
    if "bytes" in action:
        return b"\x89" * action["bytes"]
    value = ME if action["return"] == "$me" else action["return"]
    return value * action["times"] if "times" in action else value


@app.task(name="script", max_attempts=5, backoff=0.05)
async def script(context: AsyncContext, script: list[dict[str, Any]]) -> Any:
    began(context)
    try:
        for action in [action for action in script if applies(action, context)]:
            if "wait" in action:
                while not is_open(action["wait"]):
                    await asyncio.sleep(POLL_S)
            elif "deaf" in action:
                while not is_open(action["deaf"]):
                    try:
                        await asyncio.sleep(POLL_S)
                    except asyncio.CancelledError:
                        say(event="stop", job=context.id)
            elif "steps" in action:
                await asyncio.gather(*(context.step(name, partial(stepped, context, name)) for name in action["steps"]))
            elif "return" in action or "bytes" in action:
                return returned(action)
            else:
                now(action, context)
    except asyncio.CancelledError:
        say(event="stop", job=context.id)
        raise
    finally:
        say(event="over", job=context.id)


@app.task(name="plain", max_attempts=5, backoff=0.05)
def plain(context: Context, script: list[dict[str, Any]]) -> Any:
    """The same in a thread."""
    began(context)
    try:
        for action in [action for action in script if applies(action, context)]:
            if "wait" in action:
                while not is_open(action["wait"]):
                    try:
                        context.pause(POLL_S)
                    except Exception:
                        say(event="stop", job=context.id)
                        raise
            elif "deaf" in action:
                while not is_open(action["deaf"]):
                    time.sleep(POLL_S)
            elif "steps" in action:
                for name in action["steps"]:
                    context.step(name, partial(stepped, context, name))
            elif "return" in action or "bytes" in action:
                return returned(action)
            else:
                now(action, context)
    finally:
        say(event="over", job=context.id)


async def collect(items: Any, enough: Any = lambda _: False) -> list[Any]:
    """The items of an iterator of either client."""
    found: list[Any] = []
    if hasattr(items, "__aiter__"):
        async for item in items:
            found.append(item)
            if enough(item):
                break
        return found

    def read() -> None:
        for item in items:
            found.append(item)
            if enough(item):
                break

    await asyncio.to_thread(read)
    return found


async def call(client: Any, what: str, given: dict[str, Any]) -> Any:
    async def done(name: str, *arguments: Any, **more: Any) -> Any:
        method = getattr(client, name)
        return await method(*arguments, **more) if inspect.iscoroutinefunction(method) else await asyncio.to_thread(method, *arguments, **more)

    if what == "add":
        handle = await done("add", TYPE, given["options"], **given["terms"])
        return {"id": handle.id, "added": handle.added}
    if what == "add_many":
        return [handle.id for handle in await done("add_many", [(TYPE, options, given["terms"]) for options in given["many"]])]
    if what == "events":
        # The suite's last event is the end of the job that it names.
        def last(event: Any) -> bool:
            return bool(event.get("id") == given["last"] and event["event"] in ("completed", "failed", "cancelled"))

        events = await collect(client.events(types=[TYPE], since="oldest"), last)
        return [[event["event"], event["id"]] for event in events]
    if what == "logs":
        return [line["message"] for line in await collect(client.logs(TYPE, given["id"], follow=True))]
    if what == "retry":
        return (await done("retry", TYPE, given["id"]))["retried"]
    if what in ("wait", "result"):
        value = await done(what, TYPE, given["id"], given["timeout"])
        if what == "wait":
            return value["state"]
        return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
    return await done(what, TYPE, given["id"])


async def answer(client: Any, line: dict[str, Any]) -> None:
    try:
        say(n=line["n"], value=await call(client, line["call"], line))
    except JobFailed as error:
        say(n=line["n"], error="job_failed", text=str(error))
    except TurnwiseError as error:
        say(n=line["n"], error=error.error, text=str(error))


async def main() -> None:
    # `plain`: the client that blocks, in place of the one of the event loop.
    retry_for = float(os.environ["SUITE_RETRY_FOR"])
    client = (Client if sys.argv[1:] == ["plain"] else AsyncClient)(retry_for=retry_for)
    tasks = set()
    while text := await asyncio.to_thread(sys.stdin.readline):
        tasks.add(asyncio.create_task(answer(client, json.loads(text))))


if __name__ == "__main__":
    asyncio.run(main())
