import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import agent
import pytest
from conftest import eventually


@pytest.fixture
def turnwise_apps():
    return [agent.agents]


class Model:
    """A model that answers what it is asked, and notes it. It does not answer while it is `held` by a prompt."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failing, self.holding, self.free = "", "", threading.Event()
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                prompt = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][0]["content"]
                model.asked.append(prompt)
                if prompt == model.holding:
                    model.free.wait(60)
                if prompt == model.failing:
                    model.failing = ""
                    self.send_error(503)
                    return
                text = "a\nb\nc" if prompt.startswith("Three") else prompt.upper()
                body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/chat/completions"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def model(monkeypatch):
    model = Model()
    monkeypatch.setenv("MODEL_URL", model.url)
    monkeypatch.setattr(agent, "MODEL", model.url)
    yield model
    model.free.set()
    model.server.shutdown()
    model.server.server_close()


def test_an_attempt_after_an_error_goes_on_where_it_was(model, turnwise_server):
    model.failing = "b"
    job = agent.research.add("why?")
    turnwise_server.drain()
    assert job.status() == "crashing" and model.asked[1:] == ["a", "b"]
    turnwise_server.advance(seconds=2)
    turnwise_server.drain()
    assert job.result(timeout=0).startswith("WHY?")
    assert model.asked[1:-1] == ["a", "b", "b", "c"]


def test_a_killed_worker_does_not_pay_twice(model, processes):
    model.holding = "b"
    job = agent.research.add("why?")
    first = processes.start("turnwise-worker", "agent")
    eventually(lambda: "b" in model.asked)
    first.kill()
    model.holding = ""
    model.free.set()
    # The server misses its heartbeats, and gives the job to the next worker.
    processes.start("turnwise-worker", "agent")
    assert job.result(timeout=60).startswith("WHY?")
    assert model.asked[1:-1] == ["a", "b", "b", "c"]
