from django.core.management.base import BaseCommand
from turnwise_client.cli import main


class Command(BaseCommand):
    help = "Runs jobs, with the options of turnwise-worker."

    def run_from_argv(self, argv: list[str]) -> None:
        main(["shop.jobs", *argv[2:]])
