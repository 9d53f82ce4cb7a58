import os
import signal

import pytest
from conftest import eventually


@pytest.fixture
def invoices(processes, tmp_path, monkeypatch):
    """The modules of the project, on an empty database."""
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.db"))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    monkeypatch.syspath_prepend(processes.folder)
    import django

    django.setup()
    assert processes.start("python", "manage.py", "migrate", "--verbosity", "0").wait(60) == 0
    from shop import jobs

    yield jobs
    jobs.connection.close()


def test_the_command_runs_what_was_committed(invoices, processes, turnwise_server):
    first = invoices.bill("Ann")
    with pytest.raises(ZeroDivisionError), invoices.transaction.atomic():
        invoices.bill("Bob")
        1 / 0
    worker = processes.start("python", "manage.py", "turnwise_worker", "--slots", "2", "--outbox", f"sqlite:///{os.environ['SHOP_DATABASE']}")
    eventually(lambda: invoices.Invoice.objects.get(pk=first.pk).sent_at)
    assert [job["state"] for job in turnwise_server.client.jobs(type="invoices")] in (["completed"], ["running"])
    assert invoices.Invoice.objects.count() == 1
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
