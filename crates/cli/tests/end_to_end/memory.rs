//! The memory that requests cost the built binary: many of the worst ones concurrently.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use reqwest::Method;
use turnwise_client::protocol::MAX_BATCH_BODY_BYTES;
use turnwise_testkit::process;

use crate::server::{Home, PATIENCE, Server};

/// The number of concurrent requests.
const AT_ONCE: usize = 64;
/// The limit of the process's memory meanwhile.
const ALLOWED_MB: f64 = 1_000.0;
const BODY_BYTES: usize = 16 << 20;
/// The pieces of a body whose length is not known before.
const PIECE_BYTES: usize = 64 << 10;
/// How many looks make a median.
const LOOKS: usize = 10;
/// The most that `GET /_up` takes meanwhile, at the median.
const ALLOWED_WAIT: Duration = Duration::from_millis(200);

/// `begin`, as many of `part` as fit, separated by commas, and `end`.
fn body(begin: &str, part: impl Fn(usize) -> String, end: &str) -> Bytes {
    sized(BODY_BYTES, begin, part, end)
}

fn sized(bytes: usize, begin: &str, part: impl Fn(usize) -> String, end: &str) -> Bytes {
    let mut body = begin.to_owned();
    for n in 0.. {
        let part = part(n);
        if body.len() + part.len() + end.len() + 1 > bytes {
            break;
        }
        if n > 0 {
            body.push(',');
        }
        body.push_str(&part);
    }
    body.push_str(end);
    body.into()
}

/// A request that many clients send at the same time.
struct Case {
    method: Method,
    path: &'static str,
    body: Bytes,
    /// Whether its length is not known before its end.
    chunked: bool,
    expected: &'static [u16],
}

/// Status, and whether the answer has `Retry-After`. `None` if the server closed the connection after it refused the
/// body and dropped some of it.
async fn send(server: &Server, case: &Case, n: usize) -> Option<(u16, bool)> {
    let path = case.path.replace("{n}", &n.to_string());
    let request = turnwise_testkit::client().request(case.method.clone(), format!("{}{path}", server.url()));
    let body = match case.chunked {
        false => case.body.clone().into(),
        true => {
            let body = case.body.clone();
            let pieces = (0..body.len()).step_by(PIECE_BYTES);
            let pieces = pieces.map(move |at| body.slice(at..body.len().min(at + PIECE_BYTES)));
            reqwest::Body::wrap_stream(futures::stream::iter(pieces.map(Ok::<_, std::io::Error>)))
        }
    };
    let request = request.timeout(PATIENCE).header("content-type", "application/json").body(body);
    // The test needs only the head of the answer, so it does not read the body.
    let answer = request.send().await.ok()?;
    Some((answer.status().as_u16(), answer.headers().contains_key("retry-after")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_of_the_worst_requests_fit_into_memory_and_others_are_answered() {
    let zeros = || body("{\"docs\":[", |_| "0".to_owned(), "]}");
    let document = |n: usize| {
        format!(
            "{{\"_id\":\"d{n}\",\"source\":\"http://s/a\",\"target\":\"http://t/b\",\"x\":[{}0]}}",
            "0,".repeat(90_000)
        )
    };
    let documents = || body("{\"docs\":[", document, "]}");
    let ids = || body("{\"docs\":[", |_| "{\"id\":\"\"}".to_owned(), "]}");
    let revs = || body("{", |n| format!("\"{n}\":[\"1-a\"]"), "}");
    let jobs = |bytes| {
        let job = |_| format!("{{\"type\":\"t\",\"options\":[{}0]}}", "0,".repeat(10_000));
        sized(bytes, "{\"jobs\":[", job, "]}")
    };
    let job = || body("{\"options\":[", |_| "0".to_owned(), "]}");
    let one = || {
        let begin = "{\"source\":\"http://s/a\",\"target\":\"http://t/b\",\"x\":[";
        body(begin, |_| "0".to_owned(), "]}")
    };
    let post = |path, body, expected| Case { method: Method::POST, path, body, chunked: false, expected };
    let put = |path, body, chunked| Case { method: Method::PUT, path, body, chunked, expected: &[413] };
    let cases = [
        post("/_replicator/_bulk_docs", zeros(), &[400]),
        post("/_replicator/_bulk_docs", documents(), &[201]),
        post("/_replicator/_bulk_get", ids(), &[200]),
        post("/_replicator/_revs_diff", revs(), &[200]),
        // The longest body that this route takes, and a longer one.
        Case { chunked: true, ..post("/v1/jobs", jobs(MAX_BATCH_BODY_BYTES), &[200]) },
        post("/v1/jobs", jobs(BODY_BYTES), &[413]),
        post("/v1/jobs/t", job(), &[413]),
        put("/_replicator/d{n}", one(), false),
        put("/_replicator/d{n}", one(), true),
    ];
    for case in &cases {
        let home = Home::new("");
        let server = home.serve().await;
        let pid = process::listener(server.address().rsplit_once(':').unwrap().1.parse().unwrap()).unwrap();
        let sent = join_all((0..AT_ONCE).map(|n| send(&server, case, n)));
        let mut waits = Vec::new();
        let looking = async {
            loop {
                let asked = Instant::now();
                let up = server.client().get(format!("{}/_up", server.url())).send().await.unwrap();
                assert_eq!(up.status(), 200);
                waits.push(asked.elapsed());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let answers = tokio::select! { answers = sent => answers, () = looking => unreachable!() };
        let peak = process::peak_memory_mb(pid).unwrap();
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        let done = answers.iter().filter(|(status, _)| case.expected.contains(status)).count();
        waits.sort_unstable();
        let at = |percent: usize| waits.get(waits.len() * percent / 100).copied().unwrap_or_default();
        let what = format!("{} {}{}", case.method, case.path, if case.chunked { " chunked" } else { "" });
        println!(
            "{what}: {peak} MB at most, {done} of {AT_ONCE} done, {} answered; {} times /_up, {:?} at the median, {:?} at p99",
            answers.len(),
            waits.len(),
            at(50),
            at(99)
        );
        assert!(peak < ALLOWED_MB, "{what}: {peak} MB");
        assert!(done > 0, "{what}: {answers:?}");
        // Bodies that are refused at once leave no time to look.
        let has_median = waits.len() >= LOOKS;
        assert!(!has_median || at(50) < ALLOWED_WAIT, "{what}: /_up after {:?} at the median", at(50));
        for (status, later) in answers {
            assert!(case.expected.contains(&status) || (status == 503 && later), "{what}: {status}");
        }
    }
}
