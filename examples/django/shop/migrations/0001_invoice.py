from django.db import migrations, models
from turnwise_client import outbox


class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel(
            "Invoice",
            [
                ("id", models.AutoField(primary_key=True)),
                ("customer", models.CharField(max_length=100)),
                ("sent_at", models.DateTimeField(null=True)),
            ],
        ),
        # With PostgreSQL: outbox.POSTGRESQL.
        migrations.RunSQL(outbox.SQLITE, "DROP TABLE turnwise_outbox"),
    ]
