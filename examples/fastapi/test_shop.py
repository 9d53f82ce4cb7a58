import sqlite3

import httpx2
import pytest
from conftest import Processes, eventually


@pytest.fixture
def shop(processes: Processes, tmp_path, monkeypatch):
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.db"))
    port = processes.free_port()
    processes.start("uvicorn", "shop:api", "--port", str(port), "--log-level", "warning")
    processes.until_listening(port)
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client


def test_an_order_is_shipped_only_if_it_is_committed(shop, processes, tmp_path, turnwise_server):
    orders = [shop.post("/orders", params={"item": "teapot"}) for _ in range(5)]
    assert [each.status_code for each in orders] == [202, 202, 202, 409, 409]
    database = sqlite3.connect(tmp_path / "shop.db")
    assert database.execute("SELECT count(*) FROM turnwise_outbox").fetchone() == (3,)
    processes.start("turnwise-worker", "shop", "--outbox", f"sqlite:///{tmp_path}/shop.db")
    jobs = [each.json()["job"] for each in orders[:3]]
    results = [eventually(lambda: shop.get(f"/orders/{job}").json().get("result")) for job in jobs]
    assert results == [f"order {number} is on its way" for number in (1, 2, 3)]
    assert database.execute("SELECT count(*) FROM orders").fetchone() == (3,)
    assert len(list(turnwise_server.client.jobs(type="shipping"))) == 3
