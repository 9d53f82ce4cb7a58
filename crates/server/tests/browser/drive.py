"""Drives the pages of a server in Chromium: every page, every action, every key.

usage: drive.py URL AXE FOLDER

The server must be new and open. Each page is checked with axe-core (the file AXE) in both themes. No request may leave the
server, and the console must stay empty. FOLDER gets a screenshot of each page: light, dark, and 400 pixels wide.
"""

import contextlib
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from playwright.sync_api import expect, sync_playwright

CHROMIUM = os.environ.get("TURNWISE_TEST_CHROMIUM", "/usr/bin/chromium")
# Longer than any step takes on a machine that is busy compiling.
PATIENCE_MS = 60_000
HOSTILE = '"><script>alert(1)</script>'
RIGHT_TO_LEFT = "mail-\u202etxt.exe"
LONG = "l" * 500
# What a page violates: WCAG 2.1 A and AA, and what axe calls best practices.
AXE_OPTIONS = {"resultTypes": ["violations"]}
# With the jobs of `seed`: five types, 40 tenants and 20,000 jobs, as on a server that is in use.
BACKLOG = {"scan": 9_000, "sync": 7_000, "thumbs": 4_000}
TENANTS = 37
REPLICATIONS = 200


def call(url, method, path, body=None):
    """A request to the API."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + path, data=data, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def part(text):
    return urllib.parse.quote(text, safe="")


def job_path(job_type, job_id):
    return f"/ui/job?type={urllib.parse.quote_plus(job_type)}&id={urllib.parse.quote_plus(job_id)}"


def ping(url, path):
    """Keeps the worker registered, until the store is closed."""
    try:
        while True:
            call(url, "POST", f"{path}/ping", {})
            time.sleep(2)
    except urllib.error.HTTPError:
        pass


def seed(url):
    """Jobs in every state, with texts that pages must not trip over."""
    def add(job_type, job_id, **job):
        call(url, "POST", f"/v1/jobs/{job_type}", {"id": job_id, **job})

    for tenant, jobs in [("acme", 40), ("beta", 12), ("gamma ltd", 5)]:
        for n in range(jobs):
            add("mail", f"{tenant[:4]}-{n:03}", tenant=tenant, summary={"to": f"person-{n}@example.org"}, max_attempts=3)
    add("report", "monthly", tenant="acme")
    add("report", "yearly", tenant="acme", after=[{"type": "report", "id": "monthly", "otherwise": "cancel"}])
    add("report", "next-week", tenant="beta", delay_ms=7 * 86_400_000)
    add("mail", HOSTILE, tenant=HOSTILE, summary={"html": HOSTILE}, delay_ms=3_600_000)
    add("mail", RIGHT_TO_LEFT, tenant="beta", delay_ms=3_600_000)
    add("mail", LONG, tenant="t" * 120, delay_ms=3_600_000)
    add("mail", "a/../b", tenant="beta", delay_ms=3_600_000)
    worker = call(url, "POST", "/v1/workers/mail", {"name": "sender", "slots": 6})["worker"]
    path = f"/v1/workers/mail/{worker}"
    threading.Thread(target=ping, args=(url, path), daemon=True).start()
    received = 0
    for turn in range(4):
        jobs = call(url, "POST", f"{path}/accept", {"received": received, "limit": 6, "wait_ms": 30_000})["jobs"]
        received = max(job["claim"] for job in jobs)
        if turn == 3:
            # These run on.
            call(url, "POST", f"{path}/jobs/{part(jobs[0]['id'])}/update", {"claim": jobs[0]["claim"], "info": {"sent": "50 %"}})
            break
        for n, job in enumerate(jobs):
            one = f"{path}/jobs/{part(job['id'])}"
            if n == 0:
                reason = HOSTILE + " the server of the receiver does not answer " + "w" * 300
                call(url, "POST", f"{one}/fail", {"claim": job["claim"], "reason": reason, "retry": turn == 0})
            else:
                result = {"message": job["id"], "log": "connected\naccepted\nclosed\n"}
                call(url, "POST", f"{one}/finish", {"claim": job["claim"], "result": result})
    backlog(url)
    document = {"source": "http://a.example/x", "target": "http://b.example/x", "_replication_state": "failed"}
    call(url, "PUT", f"/_replicator/{part(HOSTILE)}", document)
    call(url, "PUT", "/v1/filters/quiet-hours", {"action": "pause", "when": "type = mail and tenant = \"gamma ltd\"", "note": "until 7:00"})
    call(url, "PUT", "/v1/webhooks/chat", {"url": "http://127.0.0.1:9/hooks", "secret": "k" * 32, "types": ["mail"], "events": ["failed", "cancelled"]})


def backlog(url):
    """Many jobs of many tenants, and replications whose sources do not answer."""
    for job_type, jobs in BACKLOG.items():
        for first in range(0, jobs, 1_000):
            batch = [{"type": job_type, "id": f"{job_type}-{n:05}", "tenant": f"tenant-{n % TENANTS:02}", "options": {"n": n}}
                     for n in range(first, min(first + 1_000, jobs))]
            call(url, "POST", "/v1/jobs", {"jobs": batch})
    # The discard port: the connection is refused.
    nowhere = [{"_id": f"copy-{n:03}", "source": f"http://127.0.0.1:9/from-{n}", "target": f"http://127.0.0.1:9/to-{n}", "continuous": n % 2 == 0}
               for n in range(REPLICATIONS)]
    call(url, "POST", "/_replicator/_bulk_docs", {"docs": nowhere})
    scanner = call(url, "POST", "/v1/workers/scan", {"name": "scanner", "slots": 8})["worker"]
    path = f"/v1/workers/scan/{scanner}"
    threading.Thread(target=ping, args=(url, path), daemon=True).start()
    call(url, "POST", f"{path}/accept", {"received": 0, "limit": 8, "wait_ms": 30_000})
    # A chain, and several jobs that wait for one.
    def add(job_id, *after):
        call(url, "POST", "/v1/jobs/report", {"id": job_id, "tenant": "acme", "after": [{"type": "report", "id": of} for of in after]})

    add("collect-1")
    add("collect-2")
    add("merge", "collect-1", "collect-2")
    for n in range(6):
        add(f"print-{n}", "merge")
    add("archive", *[f"print-{n}" for n in range(6)])


class Driver:
    def __init__(self, page, url, axe, folder):
        self.page, self.url, self.axe, self.folder = page, url, axe, folder
        self.problems = []
        page.on("console", lambda said: said.type in ("error", "warning") and self.problems.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("request", self.left)
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))

    def left(self, request):
        if not request.url.startswith((self.url + "/", "data:")):
            self.problems.append(f"a request left the server: {request.url}")

    def open(self, path):
        self.page.goto(self.url + path)
        return self.page

    def check(self, name):
        """The page in both themes and narrow: axe-core, and a screenshot of each."""
        for theme in ("light", "dark"):
            self.page.emulate_media(color_scheme=theme)
            self.page.evaluate(self.axe)
            found = self.page.evaluate("options => axe.run(document, options)", AXE_OPTIONS)["violations"]
            for violation in found:
                nodes = [node["html"][:200] for node in violation["nodes"][:3]]
                self.problems.append(f"{name} {theme}: axe {violation['id']}: {violation['help']}: {nodes}")
            self.page.screenshot(path=f"{self.folder}/{name}-{theme}.png", full_page=True)
        self.page.emulate_media(color_scheme="light")
        wide = self.page.viewport_size
        self.page.set_viewport_size({"width": 400, "height": 800})
        scroll = self.page.evaluate("document.documentElement.scrollWidth")
        if scroll > 400:
            self.problems.append(f"{name}: {scroll} pixels wide in a window of 400")
        self.page.screenshot(path=f"{self.folder}/{name}-narrow.png", full_page=True)
        self.page.set_viewport_size(wide)

    @contextlib.contextmanager
    def refused(self):
        """A request that the server refuses: Chromium reports its status itself."""
        before = len(self.problems)
        yield
        self.problems[before:] = [one for one in self.problems[before:] if "Failed to load resource" not in one]

    def text(self, text):
        expect(self.page.locator("#main")).to_contain_text(text, timeout=PATIENCE_MS)

    def click(self, name):
        self.page.get_by_role("button", name=name).click()


def pages(driver, failed):
    """Every page, as it is read."""
    page = driver.page
    for name, path, text in [
        ("overview", "/ui/", "No worker for report"),
        ("jobs", "/ui/jobs?order=id", "acme-000"),
        ("queue", "/ui/jobs?view=queue", "Why"),
        ("nothing", "/ui/jobs?type=report&q=nothing-has-this", "No job matches."),
        ("failed-job", job_path("mail", failed), "failed"),
        ("waiting-job", job_path("mail", "acme-039"), "Before it"),
        ("blocked-job", job_path("report", "yearly"), "It waits for:"),
        ("graph-job", job_path("report", "merge"), "From left to right"),
        ("hostile-job", job_path("mail", HOSTILE), HOSTILE),
        ("dots-job", job_path("mail", "a/../b"), "beta"),
        ("long-job", job_path("mail", LONG), LONG),
        ("all-jobs", "/ui/jobs?type=scan&state=pending&tenant=tenant-03", "For all that match"),
        ("ask", "/ui/bulk/ask?action=remove&where=type+%3D+scan", "Would change"),
        ("new-job", "/ui/jobs/new?type=mail", "What it is"),
        ("operations", "/ui/bulk", "There is none."),
        ("tenants", "/ui/tenants?type=scan", "tenant-03"),
        ("shares", "/ui/tenants/shares?type=scan", "A simulation of the present queue"),
        ("new-shares", "/ui/tenants/shares?type=scan&shares:tenant-03=900&shares:tenant-04=400", "with the new shares"),
        ("history", "/ui/history", "Last hour"),
        ("replications", "/ui/replications", HOSTILE),
        ("replication", f"/ui/replication?db=_replicator&doc={urllib.parse.quote_plus(HOSTILE)}", "failed"),
        ("new-replication", "/ui/replications/new", "URL of the database"),
        ("indexes", "/ui/indexes", "There are no indexes."),
        ("locks", "/ui/locks", "No job holds a lock"),
        ("workers", "/ui/workers", "sender"),
        ("filters", "/ui/filters", "quiet-hours"),
        ("webhooks", "/ui/webhooks", "chat"),
        ("schedules", "/ui/schedules", "There are no schedules here."),
        ("groups", "/ui/groups", "There are no groups here."),
        ("settings", "/ui/settings", "max_jobs"),
        ("identities", "/ui/identities", "There are no users."),
        ("audit", "/ui/audit", "keeps no audit log"),
        ("help", "/ui/help", "States of jobs"),
    ]:
        driver.open(path)
        driver.text(text)
        driver.check(name)
    # A job of the graph is a link.
    driver.open(job_path("report", "merge"))
    page.locator("svg.graph a").first.click()
    expect(page.locator("#main h1")).not_to_have_text("merge", timeout=PATIENCE_MS)
    # Why a job does not run: two clicks from the overview.
    driver.open("/ui/")
    page.get_by_role("link", name="report", exact=True).click()
    page.locator("#main tbody tr", has_text="monthly").get_by_role("link", name="monthly").click()
    driver.text("No worker of type report")


def actions(driver, failed):
    """What changes jobs and tenants."""
    page = driver.page
    driver.open(job_path("mail", failed))
    driver.click("Run again")
    driver.text("Made pending: 1 job.")
    driver.open(job_path("report", "next-week"))
    page.get_by_label("Priority").fill("-5")
    driver.click("Set priority")
    driver.text("Changed the priority: 1 job.")
    driver.click("Run now")
    driver.text("Made pending: 1 job.")
    driver.click("Cancel…")
    driver.text("Cancel 1 job?")
    driver.check("confirm")
    page.get_by_role("link", name="Back").click()
    driver.text("next-week")
    driver.click("Cancel…")
    driver.click("Cancel 1 job")
    driver.text("Cancelled, or being stopped: 1 job.")
    driver.click("Remove…")
    driver.click("Remove 1 job")
    driver.text("Removed, or being stopped first: 1 job.")
    driver.open("/ui/jobs?type=mail&tenant=acme&state=pending")
    for row in page.locator("tbody input[type=checkbox]").all()[:3]:
        row.check()
    # A refresh keeps what is selected.
    page.keyboard.press("r")
    page.wait_for_timeout(300)
    assert page.locator("tbody input:checked").count() == 3, "a refresh has lost the selection"
    driver.click("Cancel…")
    driver.text("Cancel 3 jobs?")
    driver.click("Cancel 3 jobs")
    driver.text("Cancelled, or being stopped: 3 jobs.")
    assert "tenant=acme" in page.url, page.url
    # The page says of each job what its state does not allow.
    driver.open("/ui/jobs?type=mail&state=completed")
    page.get_by_label("Select all").check()
    driver.click("Run now or again")
    driver.text("it is completed, and so it is unchanged")
    driver.check("not-done")
    driver.open("/ui/jobs")
    with driver.refused():
        driver.click("Cancel…")
        driver.text("No job is selected.")
    page.go_back()
    driver.open("/ui/tenants?type=mail")
    page.locator("tr", has_text="acme").locator("summary").click()
    page.get_by_label("Shares of acme").fill("250")
    driver.click("Set")
    expect(page.locator("tr", has_text="acme").locator("summary")).to_contain_text("250", timeout=PATIENCE_MS)


def output(driver):
    """The lines of a running job follow at once, and a job is added with a form."""
    page = driver.page
    job = call(driver.url, "GET", "/v1/jobs?type=mail&state=running")["jobs"][0]
    update = f"/v1/workers/mail/{job['worker']}/jobs/{part(job['id'])}/update"

    def log(message, level="info"):
        fields = {"of": HOSTILE, "n": 12345678901234567}
        call(driver.url, "POST", update, {"claim": job["claim"], "log": [{"message": message, "level": level, "fields": fields}]})

    log("first")
    driver.open(job_path("mail", job["id"]))
    driver.text("first")
    # Without the refresh: the lines come from the stream.
    page.evaluate("delete document.querySelector('#main').dataset.refresh")
    log(HOSTILE, "warn")
    expect(page.locator("#log .entry.warn")).to_contain_text(HOSTILE, timeout=PATIENCE_MS)
    expect(page.locator("#log .entry")).to_have_count(2)
    # A refresh loses none, and repeats none.
    page.reload()
    log("third", "error")
    expect(page.locator("#log .entry.error")).to_have_count(1, timeout=PATIENCE_MS)
    page.keyboard.press("r")
    page.wait_for_timeout(500)
    expect(page.locator("#log .entry")).to_have_count(3)
    expect(page.locator("#log .entry .more").last).to_contain_text("12345678901234567")
    driver.check("running-job")
    driver.open("/ui/jobs?type=report")
    page.get_by_role("link", name="Add a job").click()
    page.get_by_label("Id", exact=True).fill("by-form")
    page.get_by_label("Task").fill("weekly")
    page.get_by_label("Options").fill('{"to":\n 1 2}')
    with driver.refused():
        driver.click("Add the job")
        driver.text("line 2, column 4")
    driver.check("new-job-mistake")
    page.get_by_label("Options").fill('{"to": 1.50}')
    driver.click("Add the job")
    driver.text("Added.")
    driver.text('"to": 1.50')
    driver.click("Cancel…")
    driver.click("Cancel 1 job")
    page.get_by_role("link", name="Run again with changes").click()
    page.get_by_label("Task").fill("monthly")
    driver.click("Run again")
    driver.text("It is pending with these values.")
    driver.text("monthly")


def many(driver):
    """What changes all jobs that match, and shares that are tried before they are saved."""
    page = driver.page
    driver.open("/ui/jobs?type=scan&tenant=tenant-05&state=pending")
    page.get_by_text("For all that match").click()
    driver.check("for-all")
    page.get_by_role("button", name="Cancel…").last.click()
    driver.text("Some of them")
    matched = int(page.locator("#main h1").inner_text().split(":")[1].split()[0].replace(",", ""))
    assert 200 < matched < 300, matched
    page.get_by_role("button", name=f"Cancel {matched} jobs").click()
    driver.text(f"Changed {matched} jobs.")
    driver.check("operation")
    page.get_by_role("link", name="Back to the jobs").click()
    expect(page.locator("#main h1")).to_have_text("Jobs", timeout=PATIENCE_MS)
    assert page.locator("#main tbody tr").count() == 0, "a cancelled job is still pending"
    driver.open("/ui/bulk")
    driver.text("tenant-05")
    driver.check("operations-some")
    driver.open("/ui/tenants?type=scan")
    page.get_by_role("link", name="scan", exact=True).click()
    page.get_by_label("Shares of tenant-07").fill("700")
    driver.click("Simulate")
    driver.text("now 100")
    driver.click("Save the shares of 1 tenant")
    driver.text("Saved.")
    expect(page.locator("tr", has_text="tenant-07").locator("summary")).to_contain_text("700", timeout=PATIENCE_MS)


def workers(driver):
    """Quiet, drain and resume."""
    page = driver.page
    row = page.locator("tr", has_text="scanner")
    driver.open("/ui/workers?type=scan")
    row.get_by_role("button", name="Quiet").click()
    driver.text("It takes no new jobs until it is resumed.")
    driver.open("/ui/workers")
    expect(row).to_contain_text("quiet: takes no new jobs")
    driver.check("quiet")
    driver.open(job_path("scan", "scan-00100"))
    driver.text("may take no new jobs")
    driver.check("quiet-job")
    driver.open("/ui/")
    driver.text("All workers are quiet for scan")
    driver.open("/ui/workers")
    row.get_by_role("button", name="Drain…").click()
    driver.text("Drain this?")
    driver.check("drain")
    driver.click("Drain")
    expect(row).to_contain_text("draining")
    row.get_by_role("button", name="Resume").click()
    expect(row).not_to_contain_text("draining")
    node = page.get_by_role("region", name="Nodes")
    node.get_by_role("button", name="Quiet").click()
    expect(node).to_contain_text("its workers take no new jobs")
    node.get_by_role("button", name="Resume").click()
    expect(node).not_to_contain_text("its workers take no new jobs")


def keys(driver):
    page = driver.page
    driver.open("/ui/")
    for key, heading in [("j", "Jobs"), ("t", "Tenants"), ("o", "Overview")]:
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.locator("#main h1")).to_have_text(heading, timeout=PATIENCE_MS)
    page.keyboard.press("/")
    page.keyboard.type("acme-03")
    page.keyboard.press("Enter")
    driver.text("acme-030")
    assert page.url.endswith("/ui/jobs?q=acme-03"), page.url
    page.keyboard.press("Escape")
    page.locator("#main").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("States of jobs", timeout=PATIENCE_MS)
    page.keyboard.press("Escape")
    page.go_back()
    expect(page.locator("#main h1")).to_have_text("Overview", timeout=PATIENCE_MS)
    # A page is refreshed by itself, until it is paused.
    call(driver.url, "POST", "/v1/jobs/fresh", {"id": "one"})
    driver.text("fresh")
    driver.click("Pause")
    call(driver.url, "POST", "/v1/jobs/later", {"id": "one"})
    page.wait_for_timeout(6_500)
    assert page.locator("#main", has_text="later").count() == 0, "a paused page was refreshed"
    driver.click("Continue")
    driver.text("later")
    for theme in ("light", "dark"):
        page.locator("#theme").click()
        page.reload()
        assert page.locator("html").get_attribute("data-theme") == theme
    page.locator("#theme").click()


def without_script(browser, url):
    """Everything that changes something, with plain links and forms."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(url + job_path("report", "monthly"))
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel 1 job").click()
    expect(page.locator("#main")).to_contain_text("Cancelled, or being stopped: 1 job.")
    page.goto(url + "/ui/jobs?type=thumbs&tenant=tenant-09")
    page.get_by_text("For all that match").click()
    page.get_by_role("button", name="Remove…").last.click()
    page.get_by_role("button", name="Remove 1").click()
    for _ in range(100):
        if page.locator("h1", has_text="done").count():
            break
        page.wait_for_timeout(200)
        page.reload()
    expect(page.locator("#main")).to_contain_text("Changed 1")
    page.goto(url + "/ui/workers?type=scan")
    page.get_by_role("button", name="Quiet").first.click()
    expect(page.locator("#main")).to_contain_text("quiet: takes no new jobs")
    page.get_by_role("button", name="Resume").first.click()
    expect(page.locator("#main")).to_contain_text("It takes new jobs again.")
    context.close()


def closed(driver):
    """With identities: the login, and back to the page that was asked for."""
    page = driver.page
    call(driver.url, "POST", "/v1/users", {"name": "jan", "password": "eleven words", "scopes": ["admin"]})
    time.sleep(2)
    driver.open("/ui/jobs?type=mail&order=id")
    driver.text("Log in")
    driver.check("login")
    page.get_by_label("Name").fill("jan")
    page.get_by_label("Password").fill("wrong")
    with driver.refused():
        driver.click("Log in")
        driver.text("Name or password is incorrect.")
    page.get_by_label("Password").fill("eleven words")
    driver.click("Log in")
    driver.text("acme-000")
    assert page.url.endswith("/ui/jobs?type=mail&order=id"), page.url
    driver.click("Log out")
    driver.text("Log in")


def main():
    url, axe, folder = sys.argv[1:4]
    os.makedirs(folder, exist_ok=True)
    with open(axe, encoding="utf-8") as file:
        axe = file.read()
    seed(url)
    failed = call(url, "GET", "/v1/jobs?state=failed")["jobs"][0]["id"]
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        page = browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB").new_page()
        page.set_default_timeout(PATIENCE_MS)
        driver = Driver(page, url, axe, folder)
        pages(driver, failed)
        actions(driver, failed)
        output(driver)
        many(driver)
        workers(driver)
        keys(driver)
        without_script(browser, url)
        closed(driver)
        browser.close()
    for problem in driver.problems:
        print(problem)
    if driver.problems:
        sys.exit(1)
    print("the pages work")


main()
