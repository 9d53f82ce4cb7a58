# pyright: strict
"""What type checkers know of tasks. This file is checked, and does not run. Each line with `ignore` has an error that every checker must find:
an `ignore` that ignores nothing is an error, too."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import assert_type

from turnwise_client import App, AsyncContext, AsyncHandle, Context, Handle

app = App("types")


@dataclass
class Order:
    id: int


@app.task(max_attempts=3, backoff=[5, 30], schedule="30 2 * * * Europe/Berlin")
def plain(context: Context, to: str, count: int = 1) -> int:
    return count


@app.task()
async def coroutine(context: AsyncContext, order: Order) -> list[str]:
    return [str(order.id)]


@app.task()
async def bare(to: str) -> bytes:
    return to.encode()


assert_type(plain.add("a", count=2), Handle[int])
assert_type(plain.using(delay=60, tenant="acme").add("a").result(timeout=1), int)
assert_type(coroutine.add(order=Order(1)), Handle[list[str]])
assert_type(bare.add("a").result(), bytes)


async def on_a_loop() -> None:
    assert_type(await bare.add_async("a"), AsyncHandle[bytes])
    assert_type(await (await coroutine.add_async(Order(1))).result(), list[str])
    await bare.add_async(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # ty: ignore[invalid-argument-type]


wrong: Handle[str] = plain.add("a")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # ty: ignore[invalid-assignment]
plain.add(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # ty: ignore[invalid-argument-type]
plain.add("a", count="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # ty: ignore[invalid-argument-type]
coroutine.add()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # ty: ignore[missing-argument]
coroutine.add({"id": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # ty: ignore[invalid-argument-type]
bare.add("a", later=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # ty: ignore[unknown-argument]
bare.add("a", "b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # ty: ignore[too-many-positional-arguments]
app.task(max_attempts="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # ty: ignore[invalid-argument-type]
plain.using(delay="soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # ty: ignore[invalid-argument-type]
