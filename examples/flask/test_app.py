from unittest.mock import MagicMock

import app
import pytest


@pytest.fixture
def turnwise_apps():
    return [app.mail]


@pytest.fixture
def smtp(monkeypatch):
    monkeypatch.setattr(app.smtplib, "SMTP", MagicMock())
    return app.smtplib.SMTP


def test_a_mail_is_tried_again(turnwise_server, smtp):
    smtp.side_effect = [ConnectionRefusedError, smtp.return_value]
    app.site.test_client().post("/people", data={"address": "bob@example.org"})
    turnwise_server.assert_added(app.send, to="bob@example.org")
    assert turnwise_server.drain()[0]["state"] == "crashing"
    turnwise_server.advance(seconds=6)
    assert turnwise_server.drain()[0]["state"] == "completed"


def test_the_news_go_out_every_day(turnwise_server, smtp):
    turnwise_server.advance(hours=24)
    turnwise_server.drain()
    turnwise_server.assert_added(app.send, to="ann@example.org", subject="News of today")
