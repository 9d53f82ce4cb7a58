//! The memory that requests cost the built binary: many of the worst ones concurrently.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use turnwise_testkit::process;

use crate::server::{Home, PATIENCE, Server};

/// The number of concurrent requests.
const AT_ONCE: usize = 64;
/// The limit of the process's memory meanwhile.
const ALLOWED_MB: f64 = 1_000.0;
const BODY_BYTES: usize = 16 << 20;

/// `begin`, as many of `part` as fit, separated by commas, and `end`.
fn body(begin: &str, part: impl Fn(usize) -> String, end: &str) -> Bytes {
    let mut body = begin.to_owned();
    for n in 0.. {
        let part = part(n);
        if body.len() + part.len() + end.len() + 1 > BODY_BYTES {
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

/// Status, and whether the answer has `Retry-After`. `None` if the server closed the connection after it refused the
/// body and dropped some of it.
async fn post(server: &Server, path: &str, body: Bytes) -> Option<(u16, bool)> {
    let request = turnwise_testkit::client().post(format!("{}{path}", server.url())).timeout(PATIENCE);
    // The test needs only the head of the answer, so it does not read the body.
    let answer = request.header("content-type", "application/json").body(body).send().await.ok()?;
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
    let cases: [(&str, Bytes, &[u16]); 4] = [
        ("_bulk_docs", zeros(), &[400]),
        ("_bulk_docs", documents(), &[201]),
        ("_bulk_get", ids(), &[200]),
        ("_revs_diff", revs(), &[200]),
    ];
    for (path, body, expected) in cases {
        let home = Home::new("");
        let server = home.serve().await;
        let pid = process::listener(server.address().rsplit_once(':').unwrap().1.parse().unwrap()).unwrap();
        let path = format!("/_replicator/{path}");
        let posted = join_all((0..AT_ONCE).map(|_| post(&server, &path, body.clone())));
        let mut slowest = Duration::ZERO;
        let looking = async {
            loop {
                let asked = Instant::now();
                assert_eq!(
                    turnwise_testkit::client()
                        .get(format!("{}/_up", server.url()))
                        .send()
                        .await
                        .unwrap()
                        .status(),
                    200
                );
                slowest = slowest.max(asked.elapsed());
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let answers = tokio::select! { answers = posted => answers, () = looking => unreachable!() };
        let peak = process::peak_memory_mb(pid).unwrap();
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        let done = answers.iter().filter(|(status, _)| expected.contains(status)).count();
        println!("{path}: {peak} MB at most, {done} of {AT_ONCE} done, /_up after {slowest:?} at most");
        assert!(peak < ALLOWED_MB, "{path}: {peak} MB");
        assert!(done > 0, "{path}: {answers:?}");
        for (status, later) in answers {
            assert!(expected.contains(&status) || (status == 503 && later), "{path}: {status}");
        }
    }
}
