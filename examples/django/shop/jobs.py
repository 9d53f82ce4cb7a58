from django.db import close_old_connections, connection, transaction
from django.utils import timezone
from turnwise_client import App

from shop.models import Invoice

invoices = App("invoices")


@invoices.task(max_attempts=5, backoff=[5, 60, 600])
def send(invoice: int) -> None:
    # The thread may have had its connection for hours.
    close_old_connections()
    Invoice.objects.filter(pk=invoice, sent_at=None).update(sent_at=timezone.now())


def bill(customer: str) -> Invoice:
    """An invoice, and the job that sends it: both are there, or neither is."""
    with transaction.atomic():
        invoice = Invoice.objects.create(customer=customer)
        send.add_in(connection.connection, invoice.pk)
        return invoice
