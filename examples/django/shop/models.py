from django.db import models


class Invoice(models.Model):
    customer = models.CharField(max_length=100)
    sent_at = models.DateTimeField(null=True)
