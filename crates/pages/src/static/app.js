// Makes the pages quicker: follows links and sends forms without loading everything again, refreshes pages with live
// data, shows lines of log as they are logged, shows local times, and adds keys. Without it every page works, too. Pages are fetched under the URL that the
// browser would load, and what differs is changed in place, so that focus, selection and scroll position stay.
"use strict";

const PAGES = "/ui/";
const KEY_MS = 1500;
const NEWS_MS = 6000;
const THEME_S = 365 * 86400;
// As many lines as a job keeps.
const MAX_LINES = 1000;

let paused = localStorage.getItem("turnwise_paused") === "1";
// The request whose page is shown when it arrives. A later one replaces it.
let current = null;

const at = (selector) => document.querySelector(selector);
const main = () => at("#main");

// Times

const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
// For lines of log.
const fine = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });

function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const when = new Date(time.dateTime);
    if (Number.isNaN(when.valueOf())) continue;
    const utc = time.title || time.textContent;
    if ("ago" in time.dataset) {
      time.title = `${local.format(when)} (${utc})`;
    } else {
      time.textContent = ("fine" in time.dataset ? fine : local).format(when);
      time.title = utc;
    }
  }
}

// Changes in place

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.k || "" : "");
const alike = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
// What the person has changed, and the server does not know.
const OWN = { DETAILS: ["open"], DIALOG: ["open"], INPUT: ["value", "checked"], OPTION: ["selected"], BUTTON: ["hidden"] };

function morph(old, now) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== now.data) old.data = now.data;
    return;
  }
  const own = OWN[old.nodeName] || [];
  for (const { name } of [...old.attributes]) {
    if (!now.hasAttribute(name) && !own.includes(name)) old.removeAttribute(name);
  }
  for (const { name, value } of now.attributes) {
    if (old.getAttribute(name) !== value && !own.includes(name)) old.setAttribute(name, value);
  }
  // The lines of a log that is followed come from its stream.
  if (old.nodeName === "DIALOG" || (old === stream?.log && now.dataset.follow)) return;
  const kept = new Map([...old.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  let next = old.firstChild;
  for (const want of [...now.childNodes]) {
    const same = kept.get(keyOf(want));
    if (same && same !== next) {
      old.insertBefore(same, next);
      next = same;
    }
    if (next && alike(next, want)) {
      morph(next, want);
      next = next.nextSibling;
    } else {
      old.insertBefore(want, next);
    }
  }
  while (next) {
    const after = next.nextSibling;
    next.remove();
    next = after;
  }
}

// Pages

function tell(text) {
  const news = at("#news");
  news.textContent = text;
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => (news.textContent = ""), NEWS_MS);
}

// Shows the page of a request. `how`: "visit" adds a step to the history, "back" does not, "refresh" changes what differs.
async function show(url, how, form) {
  current?.abort();
  const asked = (current = new AbortController());
  if (how !== "refresh") main().classList.add("busy");
  try {
    const response = await fetch(url, {
      method: form ? "POST" : "GET",
      body: form && new URLSearchParams(form),
      signal: asked.signal,
      headers: { accept: "text/html" },
    });
    if (!(response.headers.get("content-type") || "").startsWith("text/html")) {
      location.assign(response.url);
      return;
    }
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (asked.signal.aborted) return;
    if (how === "refresh" && response.status >= 500) {
      tell("The server failed to refresh this page. It shows what was there before.");
      return;
    }
    const to = new URL(response.url);
    if (response.redirected && to.pathname === `${PAGES}login`) {
      location.assign(`${PAGES}login?then=${encodeURIComponent(location.pathname + location.search)}`);
      return;
    }
    // The server has another release: its script and style belong to its pages.
    if (page.querySelector("script")?.src !== at("script").src) {
      location.reload();
      return;
    }
    // What was done is told until the next refresh.
    if (to.searchParams.has("did")) to.searchParams.delete("did");
    localise(page);
    document.title = page.title;
    // What a form is answered with has no URL of its own, unless the answer was a redirect.
    if (how === "visit" && (!form || response.redirected)) history.pushState(null, "", to);
    if (how !== "refresh") main().replaceChildren();
    morph(document.body, page.body);
    if (how !== "refresh") {
      main().focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    arrived();
  } catch (error) {
    if (asked.signal.aborted) return;
    tell(form ? "The server did not answer. It is unknown whether this was done." : "The server does not answer. The page shows what was there before.");
  } finally {
    if (current === asked) {
      current = null;
      main().classList.remove("busy");
    }
  }
}

// After the body has changed: what only the script knows.
function arrived() {
  const pause = at("#pause");
  pause.hidden = !main().dataset.refresh;
  pause.textContent = paused ? "Continue" : "Pause";
  pause.title = paused ? "The page is not refreshed" : "The page is refreshed every few seconds";
  const theme = at("#theme");
  theme.hidden = false;
  theme.textContent = { light: "Light", dark: "Dark" }[document.documentElement.dataset.theme] || "Auto";
  theme.title = "Light, dark, or as the system";
  for (const all of document.querySelectorAll("[data-all]")) all.hidden = false;
  follow();
}

const isOurs = (url) => url.origin === location.origin && url.pathname.startsWith(PAGES) && !url.pathname.startsWith(`${PAGES}static/`);

document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const link = event.target.closest("a[href]");
  if (!link || link.target || "full" in link.dataset || link.getAttribute("href").startsWith("#")) return;
  // Not `link.href`: that of a link in SVG is no string.
  const url = new URL(link.getAttribute("href"), location.href);
  if (!isOurs(url)) return;
  event.preventDefault();
  at("#help").close();
  show(url, "visit");
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || "full" in form.dataset) return;
  // Not `form.action`: a field may have that name.
  const url = new URL(form.getAttribute("action"), location.href);
  const fields = new FormData(form, event.submitter);
  event.preventDefault();
  if (form.getAttribute("method") === "post") {
    show(url, "visit", fields);
  } else {
    url.search = new URLSearchParams([...fields].filter(([, value]) => value !== ""));
    show(url, "visit");
  }
});

// Choosing from a list of a filter is enough.
document.addEventListener("change", (event) => {
  const field = event.target;
  if (field.matches("[data-all]")) {
    for (const box of field.closest("form").querySelectorAll("tbody input[type=checkbox]")) box.checked = field.checked;
  } else if (field.matches("select[data-submit]")) {
    field.form.requestSubmit();
  }
});

addEventListener("popstate", () => show(location.href, "back"));

// Refresh

const isTyping = () => document.activeElement?.matches("#main input:not([type=checkbox]), #main select") || at("dialog[open]");

function refresh() {
  if (!current && main().dataset.refresh) show(location.href, "refresh");
}

let last = Date.now();
setInterval(() => {
  const every = Number(main().dataset.refresh) * 1000;
  if (!every || paused || document.hidden || isTyping() || Date.now() - last < every) return;
  last = Date.now();
  refresh();
}, 500);

function pause() {
  paused = !paused;
  localStorage.setItem("turnwise_paused", paused ? "1" : "0");
  arrived();
}

function theme() {
  const root = document.documentElement;
  const next = { "": "light", light: "dark", dark: "" }[root.dataset.theme || ""];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  document.cookie = `turnwise_theme=${next}; Path=/ui; SameSite=Strict; Max-Age=${next ? THEME_S : 0}`;
  arrived();
}

document.addEventListener("click", (event) => {
  if (event.target.id === "pause") pause();
  else if (event.target.id === "theme") theme();
});

// The log of a job that runs

// The stream of the log that the page shows, while somebody may see it: browsers allow few connections to a server.
let stream = null;

function follow() {
  const log = at("#log");
  const url = !paused && !document.hidden && log?.dataset.follow;
  if (stream && (stream.log !== log || stream.url !== url)) {
    stream.source.close();
    stream = null;
  }
  // The newest lines are at the end.
  if (log && !("seen" in log)) {
    log.seen = true;
    log.scrollTop = log.scrollHeight;
  }
  if (!url || stream) return;
  const next = log.lastElementChild ? Number(log.lastElementChild.dataset.k) + 1 : Number(log.dataset.next);
  const source = new EventSource(`${url}&from=${next}`);
  stream = { log, url, source };
  source.addEventListener("line", ({ data }) => add(log, data));
  // The browser connects again, unless the server refuses: then each refresh shows the lines, and tries again.
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED && stream?.source === source) stream = null;
  });
  for (const last of ["end", "removed"]) {
    source.addEventListener(last, () => {
      source.close();
      if (stream?.source === source) stream = null;
      refresh();
    });
  }
}

function add(log, data) {
  const line = JSON.parse(data);
  const last = log.lastElementChild;
  if (last && Number(last.dataset.k) >= line.number) return;
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.append(entry(line, data));
  while (log.childElementCount > MAX_LINES) log.firstElementChild.remove();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

// A line, as the server shows it. What a worker has sent is text, and never HTML.
function entry({ number, at_us, level, message, fields }, data) {
  const make = (name, className, ...inside) => {
    const node = document.createElement(name);
    node.className = className;
    node.append(...inside);
    return node;
  };
  const time = make("time", "");
  time.dateTime = new Date(at_us / 1000).toISOString();
  time.dataset.fine = "";
  time.textContent = time.dateTime.replace("T", " ").replace("Z", " UTC");
  const said = make("span", "said", make("bdi", "", message));
  if (fields) said.append(" ", make("code", "more", make("bdi", "", asWritten(data, "fields"))));
  const line = make("div", `entry ${level}`, time, make("span", "level", level), said);
  line.dataset.k = number;
  localise(line);
  return line;
}

// A member as JSON. Its numbers are as they were written, if the browser can do that: a double has no room for some.
function asWritten(data, name) {
  const exact = (_, value, context) => (typeof value === "number" && context && JSON.rawJSON ? JSON.rawJSON(context.source) : value);
  return JSON.stringify(JSON.parse(data, exact)[name]);
}

document.addEventListener("visibilitychange", follow);

// Keys

async function help() {
  const dialog = at("#help");
  const page = new DOMParser().parseFromString(await (await fetch(`${PAGES}help`)).text(), "text/html");
  dialog.replaceChildren(...page.querySelector("#main").childNodes);
  dialog.showModal();
}

at("#help").addEventListener("close", () => at("#help").replaceChildren());

let afterG = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const field = event.target.closest("input:not([type=checkbox]), select, textarea");
  if (field) {
    if (event.key === "Escape") field.blur();
    return;
  }
  const isGoing = Date.now() - afterG < KEY_MS;
  afterG = 0;
  const link = isGoing && [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === event.key);
  if (link) link.click();
  else if (event.key === "g") afterG = Date.now();
  else if (event.key === "/") at("#search")?.focus();
  else if (event.key === "?") help();
  else if (event.key === "r") refresh();
  else if (event.key === "p" && main().dataset.refresh) pause();
  else return;
  event.preventDefault();
});

localise(document);
arrived();
