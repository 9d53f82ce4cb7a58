//! Secrets in every place of a replication, and peers that repeat them in every form: nothing that the server shows, logs or
//! stores contains one.
//!
//! Each secret begins with [`canary::MARK`], so a text that was cut behind its beginning is found as well.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::stream::{self, StreamExt as _};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use turnwise_testkit::{Asked, Fake, Reply, Step, canary, process};

use crate::server::{Home, Server, clean, turnwise};

/// A password that every encoding changes.
const PASSWORD: &str = "hunter2-p@ss/ +%\"\\&=;\u{e9} word";
/// The value of a header, and of a part of one.
const TOKEN: &str = "hunter2-t0ken/+=x";
const KEYS: &str = "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";

const STATUSES: [u16; 7] = [401, 403, 404, 500, 200, 302, 413];
/// The requests of a replication, of which one is answered by the echo.
const PHASES: [&str; 9] = [
    "",
    "/_session",
    "/_local",
    "/_changes",
    "/_revs_diff",
    "/_bulk_get",
    "/_bulk_docs",
    "/_ensure_full_commit",
    "/_design",
];

/// How a peer repeats what it was sent.
#[derive(Debug, Clone, Copy)]
struct Echo {
    encoding: Encoding,
    cut: Cut,
    shape: Shape,
    status: u16,
    phase: &'static str,
    /// Which of the secrets that were sent.
    which: usize,
}

#[derive(Debug, Clone, Copy)]
enum Encoding {
    Plain,
    /// All characters.
    Percent,
    Form,
    /// `\u0068`, all characters.
    Escaped,
    /// The scheme and the parts of a header's value are removed, and base64 is decoded.
    Decoded,
}

#[derive(Debug, Clone, Copy)]
enum Cut {
    None,
    /// The secret begins shortly before this byte.
    At(usize),
    /// The peer's own text ends within the secret.
    Short,
    /// The connection ends within the secret.
    Broken,
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    Reason,
    Nested,
    Text,
    BrokenJson,
}

const ENCODINGS: [Encoding; 5] =
    [Encoding::Plain, Encoding::Percent, Encoding::Form, Encoding::Escaped, Encoding::Decoded];
/// The bounds of an error's text, and of the excerpt that it is made from.
const CUTS: [Cut; 5] = [Cut::None, Cut::At(500), Cut::At(4 << 10), Cut::Short, Cut::Broken];
const SHAPES: [Shape; 4] = [Shape::Reason, Shape::Nested, Shape::Text, Shape::BrokenJson];

/// A request as a peer receives it: all texts of it that may hold a secret.
fn sent(line: &str, headers: &[(String, String)], body: &[u8]) -> Vec<String> {
    let headers = headers.iter().map(|(name, value)| format!("{name}: {value}"));
    let all =
        [line.to_owned()].into_iter().chain(headers).chain([String::from_utf8_lossy(body).into_owned()]);
    all.filter(|text| canary::find(text).is_some()).collect()
}

/// What a program that has understood the header would show: `Basic` decoded, a cookie's value, a token without its scheme.
fn decoded(text: &str) -> String {
    let value = text.split_once(": ").map_or(text, |(_, value)| value);
    if let Some((_, cookie)) = value.split_once("AuthSession=") {
        return cookie.split(';').next().unwrap_or_default().to_owned();
    }
    let last = value.rsplit(' ').next().unwrap_or(value);
    if let Ok(login) = BASE64_STANDARD.decode(last)
        && let Ok(login) = String::from_utf8(login)
    {
        return login.split_once(':').map_or(login.clone(), |(_, password)| password.to_owned());
    }
    last.to_owned()
}

impl Echo {
    fn text(&self, sent: &[String]) -> String {
        let Some(text) = sent.get(self.which % sent.len().max(1)) else { return "nothing".to_owned() };
        match self.encoding {
            Encoding::Plain => text.clone(),
            Encoding::Percent => text.bytes().map(|byte| format!("%{byte:02x}")).collect(),
            Encoding::Form => url_form(text),
            Encoding::Escaped => text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect(),
            Encoding::Decoded => decoded(text),
        }
    }

    /// Where the secret's beginning ends in a text.
    fn begins(text: &str) -> usize {
        let forms = [
            canary::MARK.to_owned(),
            canary::MARK.bytes().map(|byte| format!("%{byte:02x}")).collect(),
            canary::MARK.bytes().map(|byte| format!("\\u{byte:04x}")).collect(),
        ];
        let found = forms.iter().find_map(|form| text.find(form).map(|at| at + form.len()));
        // Base64 of a login: some characters of it.
        found.unwrap_or_else(|| text.rfind(' ').map_or(text.len(), |at| (at + 25).min(text.len())))
    }

    /// The body, and after how many bytes the connection ends.
    fn body(&self, sent: &[String]) -> (String, Option<usize>) {
        let mut text = self.text(sent);
        let head = match self.shape {
            Shape::Reason => "{\"error\":\"e\",\"reason\":\"",
            Shape::Nested => "{\"error\":\"e\",\"reason\":{\"request\":[\"",
            Shape::Text => "<p>",
            Shape::BrokenJson => "{\"results\":[{\"id\":",
        };
        if let Cut::At(bytes) = self.cut {
            // Only the text of a reason counts, or the whole body.
            let before = match self.shape {
                Shape::Reason | Shape::Nested => 0,
                Shape::Text | Shape::BrokenJson => head.len(),
            };
            let padding = bytes.saturating_sub(before + Self::begins(&text) + 4);
            // Spaces become one space, so that even the end of a long text is shown.
            let filling = if bytes > 1_000 { " " } else { "x" };
            text.insert_str(0, &filling.repeat(padding));
        }
        if matches!(self.cut, Cut::Short) {
            text.truncate(text.floor_char_boundary(Self::begins(&text) + 1));
        }
        let is_escaped = matches!(self.encoding, Encoding::Escaped);
        let quoted = match is_escaped {
            true => text.clone(),
            false => {
                let quoted = serde_json::to_string(&text).unwrap();
                quoted[1..quoted.len() - 1].to_owned()
            }
        };
        let body = match self.shape {
            Shape::Reason => format!("{head}{quoted}\"}}"),
            Shape::Nested => format!("{head}{quoted}\"]}}}}"),
            Shape::Text | Shape::BrokenJson => format!("{head}{text}"),
        };
        let end = matches!(self.cut, Cut::Broken).then(|| head.len() + Self::begins(&body[head.len()..]) + 2);
        (body, end)
    }

    fn reply(&self, sent: &[String]) -> Reply {
        let (body, end) = self.body(sent);
        let reply = Reply::steps(self.status, [Step::Send(body.into())]);
        match end {
            Some(bytes) => reply.cut(bytes),
            None => reply,
        }
    }

    /// Whether it answers this request.
    fn answers(&self, asked: &Asked) -> bool {
        match self.phase {
            "" => asked.path.is_empty() && !is_login(asked),
            "/_session" => is_login(asked),
            phase => asked.path.starts_with(phase),
        }
    }

    fn heard(asked: &Asked) -> Vec<String> {
        sent(&format!("{} {}", asked.method, asked.target), &asked.headers, &asked.body)
    }
}

fn is_login(asked: &Asked) -> bool {
    asked.target.ends_with("/_session")
}

fn url_form(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b' ' => "+".to_owned(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    encoded.collect()
}

fn percent(text: &str) -> String {
    url_form(text).replace('+', "%20")
}

/// All echoes, each combination of encoding, cut and shape once. The rest is spread over them.
fn echoes(seed: usize) -> Vec<Echo> {
    let mut all = Vec::new();
    for encoding in ENCODINGS {
        for cut in CUTS {
            for shape in SHAPES {
                // Numbers without a common factor meet each other in the end.
                let n = all.len() + seed * 37;
                let phase = PHASES[(n / 3 + n) % PHASES.len()];
                let status = STATUSES[n % STATUSES.len()];
                all.push(Echo { encoding, cut, shape, status, phase, which: n / 2 });
            }
        }
    }
    all
}

/// Two databases of which one answers some requests with an echo.
struct Pair {
    source: Fake,
    target: Fake,
}

impl Pair {
    async fn start(next: impl Fn() -> Echo + Send + Sync + 'static) -> Pair {
        let (source, target) = (Fake::start().await, Fake::start().await);
        source.put([json!({ "_id": "d", "pass": true })]);
        let next = Arc::new(next);
        for fake in [&source, &target] {
            let next = Arc::clone(&next);
            fake.rule(move |asked| {
                let echo = next();
                match echo.answers(asked) {
                    true => Some(echo.reply(&Echo::heard(asked))),
                    // Without sessions, the password is sent with each request.
                    false => is_login(asked).then(|| Reply::error(404, "not_found")),
                }
            });
        }
        Pair { source, target }
    }
}

/// A replication between two databases, with secrets in one place.
fn replication(place: usize, source: &str, target: &str, proxy: &str) -> Value {
    let password = percent(PASSWORD);
    let with_login = |url: &str| url.replace("://", &format!("://jan:{password}@"));
    let basic = BASE64_STANDARD.encode(format!("jan:{PASSWORD}"));
    let auth = json!({ "basic": { "username": "jan", "password": PASSWORD } });
    let headers = |authorization: &str| {
        json!({
            "Authorization": authorization, "Cookie": format!("a=b; AuthSession={TOKEN}; c=d"),
            "X-Token": TOKEN, "X-Custom": format!("key {TOKEN}"), "X-Login": format!("jan:{TOKEN}"),
        })
    };
    match place {
        0 => json!({ "source": with_login(source), "target": with_login(target) }),
        1 => json!({ "source": { "url": source, "auth": auth }, "target": { "url": target, "auth": auth } }),
        2 => json!({
            "source": { "url": source, "headers": headers(&format!("Basic {basic}")) },
            "target": { "url": target, "headers": headers(&format!("basic {basic}")) },
        }),
        3 => json!({
            "source": { "url": source, "headers": headers(&format!("Bearer {TOKEN}")) },
            "target": { "url": target, "headers": headers(&format!("Bearer {TOKEN}")) },
        }),
        4 => json!({
            "source": source, "target": target, "filter": "d/f",
            "query_params": { "token": TOKEN, "password": PASSWORD },
        }),
        _ => json!({
            "source": with_login(source), "target": with_login(target),
            "proxy": proxy.replace("://", &format!("://jan:{password}@")),
        }),
    }
}

const PLACES: usize = 6;

/// A proxy that answers everything itself.
async fn proxy(echoes: Vec<Echo>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let (echoes, count) = (echoes.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(connection.read_u8().await?);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let mut lines = head.lines();
                let line = lines.next().unwrap_or_default().to_owned();
                let headers = lines.filter_map(|line| line.split_once(": "));
                let headers: Vec<_> =
                    headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                let echo = echoes[count.fetch_add(1, Ordering::Relaxed) % echoes.len()];
                let (body, end) = echo.body(&sent(&line, &headers, &[]));
                let answer = format!(
                    "HTTP/1.1 {} Proxy\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    echo.status,
                    body.len()
                );
                connection.write_all(answer.as_bytes()).await?;
                connection.write_all(&body.as_bytes()[..end.unwrap_or(body.len()).min(body.len())]).await?;
                connection.shutdown().await
            });
        }
    });
    format!("http://{address}")
}

/// All findings, which the test shows together.
static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn search(what: &str, text: &str) {
    if let Some(line) = canary::find(text) {
        FOUND.lock().unwrap().push(format!("{what}: {line}"));
    }
}

/// A request with a token, whose answer must hold no secret.
async fn ask(
    server: &Server,
    token: &str,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> (StatusCode, String) {
    let mut request = server.client().request(method, format!("{}{path}", server.url()));
    if !token.is_empty() {
        request = request.bearer_auth(token);
    }
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body.to_string());
    }
    let answer = request.send().await.unwrap();
    let headers = format!("{:?}", answer.headers());
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    search(path, &headers);
    search(path, &text);
    (status, text)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The command lines of a process and of the processes that it has started.
fn command_lines(pid: u32) -> Vec<String> {
    let text =
        |pid: u32, name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let children = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flat_map(|task| {
        let path = task.unwrap().path().join("children");
        let pids = std::fs::read_to_string(path).unwrap_or_default();
        pids.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()).collect::<Vec<_>>()
    });
    std::iter::once(pid).chain(children).map(|pid| text(pid, "cmdline")).collect()
}

/// Everything that can be read, as one that may read it all, and as another tenant.
async fn read_everything(server: &Server, token: &str, may: bool) -> String {
    let mut paths: Vec<String> = [
        "/",
        "/_up",
        "/_all_dbs",
        "/_active_tasks",
        "/_scheduler/jobs",
        "/_scheduler/docs",
        "/_scheduler/docs/_replicator",
        "/_replicator",
        "/_replicator/_all_docs?include_docs=true",
        "/_replicator/_changes?include_docs=true&style=all_docs",
        "/_replicator/_changes?feed=continuous&include_docs=true&timeout=1",
        "/_replicator/_local_docs",
        "/_node/_local/_config",
        "/_session",
        "/v1/me",
        "/v1/jobs",
        "/v1/jobs?limit=1000&type=replication",
        "/v1/tenants",
        "/v1/queue",
        "/v1/locks",
        "/v1/types",
        "/v1/filters",
        "/v1/workers",
        "/v1/nodes",
        "/v1/store",
        "/v1/users",
        "/v1/tokens",
    ]
    .map(str::to_owned)
    .into();
    for id in ids() {
        paths.extend([
            format!("/_replicator/{id}?revs=true&meta=true&attachments=true"),
            format!("/_replicator/{id}?open_revs=all"),
            format!("/_scheduler/docs/_replicator/{id}"),
            format!("/v1/documents/_replicator/{id}/why"),
        ]);
    }
    if may {
        let (_, jobs) = ask(server, token, Method::GET, "/_scheduler/jobs", None).await;
        let jobs: Value = serde_json::from_str(&jobs).unwrap();
        for job in jobs["jobs"].as_array().unwrap() {
            let id = job["id"].as_str().unwrap().replace('+', "%2B");
            paths.extend([
                format!("/_scheduler/jobs/{id}"),
                format!("/v1/jobs/replication/{id}"),
                format!("/v1/jobs/replication/{id}/why"),
                format!("/v1/jobs/replication/{id}/wait?timeout_ms=0"),
            ]);
        }
    }
    let mut all = String::new();
    for path in paths {
        let (_, text) = ask(server, token, Method::GET, &path, None).await;
        all.push_str(&text);
    }
    for path in ["/_replicator/_bulk_get", "/_replicator/_all_docs?include_docs=true"] {
        let docs: Vec<Value> = ids().map(|id| json!({ "id": id })).collect();
        let keys: Vec<String> = ids().collect();
        let (_, text) =
            ask(server, token, Method::POST, path, Some(&json!({ "docs": docs, "keys": keys }))).await;
        all.push_str(&text);
    }
    all
}

/// The ids of the documents.
fn ids() -> impl Iterator<Item = String> {
    (0..PLACES).map(|place| format!("place{place}"))
}

/// The first event of a job.
async fn event(server: &Server, token: &str, path: &str) -> String {
    let request = server.client().get(format!("{}{path}", server.url())).bearer_auth(token);
    let mut answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    let mut text = String::new();
    while !text.contains("data:") {
        let chunk = tokio::time::timeout(crate::server::PATIENCE, answer.chunk()).await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk.unwrap_or_else(|| panic!("{path} ends: {text}"))).unwrap());
    }
    search(path, &text);
    text
}

/// Documents, which are tried again and again, with another echo each time. They have failed several times when this returns.
async fn failing_documents(server: &Server, admin: &str, proxy: &str, home: &Home) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (place, id) in ids().enumerate() {
        // Its first request fails, so that no run goes on for long.
        let all: Vec<_> = echoes(place).into_iter().map(|echo| Echo { phase: "", ..echo }).collect();
        let count = AtomicUsize::new(0);
        let pair = Pair::start(move || all[count.fetch_add(7, Ordering::Relaxed) % all.len()]).await;
        let mut body = replication(place, &pair.source.url(), &pair.target.url(), proxy);
        if body["query_params"].is_object() {
            // A document shows them to its readers.
            body["query_params"] = json!({ "x": "y" });
        }
        body["continuous"] = json!(true);
        let path = format!("/_replicator/{id}");
        let (status, text) = ask(server, admin, Method::PUT, &path, Some(&body)).await;
        assert_eq!(status, 201, "{text}");
        pairs.push(pair);
    }
    for id in ids() {
        let path = format!("/_scheduler/docs/_replicator/{id}");
        // Several runs, or several attempts to read the filter.
        let fails = async {
            loop {
                let (_, text) = ask(server, admin, Method::GET, &path, None).await;
                let doc: Value = serde_json::from_str(&text).unwrap();
                if doc["error_count"].as_u64().is_some_and(|errors| errors >= 3) {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        let failed = tokio::time::timeout(crate::server::PATIENCE, fails).await;
        failed.unwrap_or_else(|_| panic!("{id} does not fail: {}", home.log()));
    }
    pairs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_peers_repeat_is_in_no_answer_no_log_and_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.jsonl");
    let mut home = Home::new(&format!(
        "[audit]\nfile = {}\n[command]\nenabled = true\nallow_root = true\n",
        audit.display()
    ));
    // A level alone would leave other crates at `warn`.
    home.log_level = "trace,turnwise=trace";
    let keys = home.seal(KEYS);
    // Open until it has the first token.
    let server = home.serve().await;
    let pid = process::listener(server.address().rsplit_once(':').unwrap().1.parse().unwrap()).unwrap();

    let (_, made) = server.request(Method::POST, "/v1/tokens", Some(&json!({ "scopes": ["admin"] }))).await;
    let admin = made["token"].as_str().unwrap();
    let (_, made) =
        ask(&server, admin, Method::POST, "/v1/tokens", Some(&json!({ "scopes": ["client:other"] }))).await;
    let made: Value = serde_json::from_str(&made).unwrap();
    let other = made["token"].as_str().unwrap();
    let user = json!({ "name": "jan", "password": PASSWORD, "scopes": ["read:*"] });
    assert_eq!(ask(&server, admin, Method::POST, "/v1/users", Some(&user)).await.0, 201);
    for (password, status) in [(PASSWORD, 200), (TOKEN, 401)] {
        let login = json!({ "name": "jan", "password": password });
        assert_eq!(ask(&server, "", Method::POST, "/_session", Some(&login)).await.0, status);
    }
    let job = json!({ "options": { "password": PASSWORD }, "summary": { "for": "x" } });
    assert!(ask(&server, admin, Method::POST, "/v1/jobs/mail", Some(&job)).await.0.is_success());

    // One request per place and echo.
    let proxy = proxy(echoes(0)).await;
    let cases = (0..PLACES).flat_map(|place| echoes(place).into_iter().map(move |echo| (place, echo)));
    let answers = stream::iter(cases).map(|(place, echo)| {
        let (server, proxy) = (&server, &proxy);
        async move {
            let pair = Pair::start(move || echo).await;
            let body = replication(place, &pair.source.url(), &pair.target.url(), proxy);
            let (status, text) = ask(server, admin, Method::POST, "/_replicate", Some(&body)).await;
            let job = json!({ "options": body });
            ask(server, admin, Method::POST, "/v1/jobs/replication", Some(&job)).await;
            (status, text)
        }
    });
    let answers: Vec<_> = answers.buffer_unordered(8).collect().await;
    let failed: Vec<_> = answers.iter().filter(|(status, _)| !status.is_success()).collect();
    assert!(failed.len() > answers.len() / 3, "{} of {} have met an echo", failed.len(), answers.len());
    // The test has covered its subject: there are errors of each status, and texts with stars in place of a secret.
    let told = failed.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n");
    for expected in ["401", "403", "404", "500", "302", "cannot be understood", "*****"] {
        assert!(told.contains(expected), "{expected} is missing in\n{told}");
    }

    let _pairs = failing_documents(&server, admin, &proxy, &home).await;
    let shown = read_everything(&server, admin, true).await;
    for expected in ["jan:*****@", "\"crashed\"", "place0"] {
        assert!(shown.contains(expected), "{expected} is missing in\n{shown}");
    }
    let theirs = read_everything(&server, other, false).await;
    // The ids of documents are in the requests themselves.
    assert!(!theirs.contains("jan:") && !theirs.contains("\"crashed\""), "{theirs}");
    let (_, jobs) = ask(&server, admin, Method::GET, "/_scheduler/jobs", None).await;
    let jobs: Value = serde_json::from_str(&jobs).unwrap();
    let id = jobs["jobs"][0]["id"].as_str().unwrap().replace('+', "%2B");
    event(&server, admin, &format!("/v1/jobs/replication/{id}/events")).await;
    for line in command_lines(pid) {
        search("a command line", &line);
        assert!(!line.contains(KEYS), "{line}");
    }
    assert!(server.terminate().await.success());

    let log = home.log();
    assert!(log.contains("TRACE") && log.contains("hyper"), "the log has only its own crates");
    search("the log", &log);
    let lines = std::fs::read_to_string(&audit).unwrap();
    assert!(lines.contains("/_replicator/place0"), "{lines}");
    search("the audit log", &lines);
    // Neither are the server's own credentials anywhere.
    let tokens = [admin, other].map(|token| &token[16..]);
    for (what, text) in [("the log", &log), ("the audit log", &lines)] {
        assert!(!tokens.iter().any(|token| text.contains(token)), "{what} has a token");
        assert!(!text.contains(KEYS), "{what} has a key");
    }
    let data = files(&home.data_dir());
    assert!(data.len() > 3, "{data:?}");
    for file in data {
        let bytes = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
        search(&file.display().to_string(), &bytes);
        assert!(!tokens.iter().any(|token| bytes.contains(token)), "{}", file.display());
    }
    let url = format!("embedded:{}", home.data_dir().display());
    let mut command = turnwise();
    let dump = clean(command.args(["store", "dump", &url, "--seal-keys"]).arg(&keys).output().await.unwrap());
    let dumped = String::from_utf8(dump.stdout).unwrap();
    assert!(dump.status.success() && dumped.contains("place0"), "{dumped}");
    let found = FOUND.lock().unwrap();
    assert!(found.is_empty(), "{} texts tell a secret:\n{}", found.len(), found.join("\n"));
}
