"""The fixtures of pytest, which finds them by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .app import App
from .testing import Server, server


@pytest.fixture
def turnwise_apps() -> list[App]:
    """The apps of `turnwise_server`: a project replaces this fixture by its own."""
    return []


@pytest.fixture
def turnwise_server(turnwise_apps: list[App]) -> Iterator[Server]:
    """A server for one test."""
    with server(*turnwise_apps) as running:
        yield running
