"""A shop: an order, and the job that ships it, are committed together, or neither is."""

import os
import sqlite3
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from turnwise_client import App, AsyncContext, NotEnded, NotFound, outbox

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")
TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, pieces INTEGER NOT NULL CHECK (pieces >= 0));
INSERT INTO stock VALUES ('teapot', 3) ON CONFLICT DO NOTHING;
"""

shipping = App("shipping")


@shipping.task(max_attempts=10, backoff=[1, 10, 60])
async def ship(context: AsyncContext, order: int) -> str:
    context.log("a parcel is packed", order=order)
    return f"order {order} is on its way"


def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(DATABASE, timeout=30, check_same_thread=False)
    try:
        yield connection
    finally:
        connection.close()


def create_tables() -> None:
    connection = sqlite3.connect(DATABASE)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(TABLES)
    outbox.create_table(connection)
    connection.commit()
    connection.close()


create_tables()
api = FastAPI()


@api.post("/orders", status_code=202)
def order(item: str, connection: Annotated[sqlite3.Connection, Depends(database)]) -> dict[str, str]:
    try:
        with connection:
            number = connection.execute("INSERT INTO orders (item) VALUES (?)", [item]).lastrowid
            assert number is not None
            handle = ship.add_in(connection, number)
            # If this fails, there is neither an order nor a job.
            connection.execute("UPDATE stock SET pieces = pieces - 1 WHERE item = ?", [item])
    except sqlite3.IntegrityError:
        raise HTTPException(409, f"no {item} is left") from None
    return {"job": handle.id}


@api.get("/orders/{job}")
async def shipped(job: str) -> dict[str, str]:
    try:
        return {"result": await ship.handle_async(job).result(timeout=20)}
    except (NotFound, NotEnded):
        # The relay has not passed it on yet, or it still runs.
        raise HTTPException(425, "ask again") from None
