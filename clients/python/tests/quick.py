"""A task of a type of its own, for tests with many jobs."""

from __future__ import annotations

from jobs import note as write
from turnwise_client import App, Context

app = App("quick")


@app.task()
def note(context: Context, n: int) -> None:
    write(context.id)
