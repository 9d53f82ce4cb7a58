"""Tasks of an app with middleware."""

from __future__ import annotations

import asyncio

from turnwise_client import App, AsyncContext, Context, Fail, RetryAfter, Snooze

app = App("traced")


@app.task(max_attempts=2, backoff=0.1)
def fails_once(context: Context, secret: str) -> str:
    if context.attempt == 1:
        raise ValueError("the first time")
    return secret


@app.task()
async def answers(context: AsyncContext) -> str:
    await asyncio.sleep(0)
    return context.traceparent or ""


@app.task(max_attempts=3)
async def ends(context: AsyncContext, how: str) -> None:
    if how == "snooze" and context.last_report is None:
        context.progress("snoozed")
        raise Snooze(0.1)
    if how == "later" and context.attempt == 1:
        raise RetryAfter(0.1, "busy")
    if how == "fail":
        raise Fail("never")
    if how == "cancel":
        await asyncio.sleep(60)
