"""An agent that answers a question. Its calls of a model are steps of one job: a step that is done is never paid for twice."""

import os

import httpx2
from turnwise_client import App, Context

MODEL = os.environ.get("MODEL_URL", "http://127.0.0.1:11434/v1/chat/completions")
agents = App("agents")


def ask(prompt: str) -> str:
    """The answer of a model, by the API that most servers of models have."""
    body = {"model": os.environ.get("MODEL", "llama3.2"), "messages": [{"role": "user", "content": prompt}]}
    response = httpx2.post(MODEL, json=body, timeout=120).raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


@agents.task(max_attempts=5, backoff=[1, 10, 60], timeout=900)
def research(context: Context, question: str) -> str:
    plan = context.step("plan", lambda: ask(f"Three shorter questions, one per line, whose answers answer: {question}"))
    notes = []
    for number, part in enumerate(plan.splitlines(), 1):
        context.check()
        notes.append(context.step(f"part {number}", lambda: ask(part)))
        context.progress({"answered": number})
    return context.step("answer", lambda: ask(f"{question}\nWhat is known:\n" + "\n".join(notes)))
