import smtplib

from flask import Flask, request
from turnwise_client import App, Fail

mail = App("mail")
people = {"ann@example.org"}  # Your database.


@mail.task(max_attempts=4, backoff=[5, 30, 300], timeout=60)
def send(to: str, subject: str) -> None:
    if "@" not in to:
        raise Fail(f"{to} is no address")  # Another attempt would not help.
    with smtplib.SMTP("localhost") as smtp:  # After an exception, it is tried again in 5, 30 and 300 s.
        smtp.sendmail("news@example.org", to, f"To: {to}\nSubject: {subject}\n")


@mail.task(schedule="30 7 * * * Europe/Berlin")
def news() -> None:
    send.add_many({"to": each, "subject": "News of today"} for each in sorted(people))


site = Flask(__name__)


@site.post("/people")
def sign_up() -> dict[str, str]:
    people.add(request.form["address"])
    return {"job": send.add(request.form["address"], "Welcome").id}
