//! Metrics: a real scrape, its labels, who may read it, and CouchDB's names.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use turnwise_testkit::{CouchDb, canary, free_ports};

use crate::common::{As, TestServer};

impl As<'_> {
    /// The text under a path, its status, and its content type.
    async fn text(&self, path: &str, accept: &str) -> (u16, String, String) {
        let request = self.server.request("GET", path).header("accept", accept);
        let request = match self.authorization.is_empty() {
            true => request,
            false => request.header("authorization", &self.authorization),
        };
        let answer = request.send().await.unwrap();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        canary::assert_none(path, &text);
        (status, kind, text)
    }

    async fn scrape(&self) -> String {
        let (status, _, text) = self.text("/metrics", "text/plain").await;
        assert_eq!(status, 200, "{text}");
        text
    }
}

/// The value of a sample.
fn value(text: &str, sample: &str) -> f64 {
    let found = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {sample} in {text}")).parse().unwrap()
}

/// `promtool`, if it is installed.
fn promtool(arguments: &[&str]) -> Option<Command> {
    if Command::new("promtool").arg("--version").output().is_err() {
        let _ =
            writeln!(std::io::stderr(), "SKIPPED: promtool is not installed (Debian's package prometheus)");
        return None;
    }
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/prometheus"));
    Some(command)
}

/// A server on which jobs have completed, crashed, and wait, for some tenants.
async fn busy() -> TestServer {
    let server = TestServer::start_with("[prometheus]\ntenants = 2\n").await;
    for (id, tenant) in [("a", "acme"), ("b", "acme"), ("c", "beta"), ("d", "gamma"), ("e", "a \"b\"\\ c")] {
        let added = server.post("/v1/jobs/mail", &json!({"id": id, "tenant": tenant, "task": "send"})).await;
        assert_eq!(added.status, 201, "{}", added.body);
    }
    let worker = server.post("/v1/workers/mail", &json!({"slots": 3})).await.body;
    let path = format!("/v1/workers/mail/{}", worker["worker"].as_str().unwrap());
    let wanted = json!({"received": 0, "limit": 3, "wait_ms": 0});
    let accepted = server.post(&format!("{path}/accept"), &wanted).await.body;
    let jobs = accepted["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 3);
    for (job, end) in jobs.iter().zip(["finish", "fail"]) {
        let path = format!("{path}/jobs/{}/{end}", job["id"].as_str().unwrap());
        let body = json!({"claim": job["claim"], "reason": "a fault", "retry": true});
        let body = if end == "finish" { json!({"claim": job["claim"], "result": 1}) } else { body };
        let ended = server.post(&path, &body).await;
        assert_eq!(ended.status, 200, "{}", ended.body);
    }
    server
}

#[tokio::test]
async fn a_scrape_has_the_numbers_of_a_busy_server_and_passes_the_check() {
    let server = busy().await;
    let text = server.nobody().scrape().await;
    let of = |sample: &str| value(&text, sample);
    for (state, jobs) in [("pending", 2.0), ("running", 1.0), ("crashing", 1.0), ("completed", 1.0)] {
        assert_eq!(of(&format!("turnwise_jobs{{type=\"mail\",state=\"{state}\"}}")), jobs, "{state}");
    }
    assert_eq!(of(r#"turnwise_job_claims_total{type="mail"}"#), 3.0);
    assert_eq!(of(r#"turnwise_job_wait_seconds_count{type="mail"}"#), 3.0);
    assert_eq!(of(r#"turnwise_job_run_seconds_count{type="mail"}"#), 2.0);
    assert_eq!(of(r#"turnwise_job_runs_total{type="mail",result="completed"}"#), 1.0);
    assert_eq!(of(r#"turnwise_task_runs_total{type="mail",task="send",result="crashed"}"#), 1.0);
    assert_eq!(of(r#"turnwise_task_run_seconds_count{type="mail",task="send"}"#), 2.0);
    assert_eq!(of(r#"turnwise_job_crashes_total{type="mail",kind="error"}"#), 1.0);
    assert_eq!(of(r#"turnwise_slots{type="mail"}"#), 3.0);
    assert_eq!(of(r#"turnwise_slots_used{type="mail"}"#), 1.0);
    assert!(of(r#"turnwise_oldest_pending_job_age_seconds{type="mail"}"#) > 0.0);
    assert!(of("turnwise_store_commit_seconds_count") >= of("turnwise_store_log_write_seconds_count"));
    assert!(of("turnwise_store_log_write_seconds_count") > 0.0);
    let added = r#"turnwise_http_requests_total{route="/v1/jobs/{type}",method="POST",status="2xx"}"#;
    assert_eq!(of(added), 5.0);
    // Two tenants have metrics of their own, and the others are a sum.
    let tenants: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix(r#"turnwise_tenant_demand_jobs{type="mail",tenant=""#))
        .filter_map(|rest| rest.split_once("\"}"))
        .map(|(tenant, _)| tenant)
        .collect();
    assert!(tenants.len() == 3 && tenants.contains("other"), "{tenants:?}");
    for id in ["\"a\"", "\"b\"", "/v1/jobs/mail", worker_like()] {
        assert!(!text.contains(id), "a label has an id: {id}");
    }
    let Some(mut check) = promtool(&["check", "metrics"]) else { return };
    let mut check =
        check.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let checked = check.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");
}

/// The beginning of a worker's id: the time when it was registered.
fn worker_like() -> &'static str {
    "\"0006"
}

#[tokio::test]
async fn open_metrics_are_written_to_those_who_accept_them() {
    let server = busy().await;
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.2";
    let (_, kind, text) = server.nobody().text("/metrics", accept).await;
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(text.ends_with("\n# EOF\n") && text.contains("# TYPE turnwise_job_claims counter\n"));
    let (_, kind, text) = server.nobody().text("/metrics", "*/*").await;
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(!text.contains("# EOF") && text.contains("# TYPE turnwise_job_claims_total counter\n"));
    let families: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let once: BTreeSet<&&str> = families.iter().collect();
    assert_eq!(families.len(), once.len(), "a family is there twice");
}

#[tokio::test]
async fn the_rules_are_valid_and_pass_their_tests() {
    for arguments in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]] {
        let Some(mut command) = promtool(&arguments) else { return };
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
    }
    let Some(mut command) = promtool(&["check", "config", "prometheus.yml"]) else { return };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Every metric that the dashboard and the rules use exists.
#[tokio::test]
async fn the_dashboard_and_the_rules_use_metrics_that_exist() {
    let server = busy().await;
    let text = server.nobody().scrape().await;
    // A family may have no samples yet.
    let families: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let is_there = |name: &&&str| families.contains(name.strip_suffix("_bucket").unwrap_or(name));
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    for file in ["grafana/turnwise.json", "prometheus/alerts.yml"] {
        let file = std::fs::read_to_string(format!("{examples}/{file}")).unwrap();
        let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let used: BTreeSet<&str> = file
            .split(|character: char| !is_name(character))
            .filter(|word| word.starts_with("turnwise_"))
            .collect();
        assert!(used.len() > 5);
        let missing: Vec<_> = used.iter().filter(|name| !is_there(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
    let dashboard = std::fs::read_to_string(format!("{examples}/grafana/turnwise.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
}

#[tokio::test]
async fn the_additional_port_serves_the_metrics_and_nothing_else() {
    let port = free_ports(1)[0];
    let server =
        TestServer::start_with(&format!("[prometheus]\nadditional_port = true\nport = {port}\n")).await;
    let admin = server.close().await;
    assert_eq!(server.nobody().text("/metrics", "*/*").await.0, 401);
    assert_eq!(server.with(&admin).text("/metrics", "*/*").await.0, 200);
    for (scope, status) in [("metrics", 200), ("operator", 200), ("client:*", 403), ("worker:*", 403)] {
        let token = server.with(&admin).token(&[scope]).await;
        for path in ["/metrics", "/_node/_local/_prometheus"] {
            assert_eq!(server.with(&token).text(path, "*/*").await.0, status, "{scope} {path}");
        }
        // CouchDB's name for the scope.
        let roles = server.with(&token).get("/_session").await.body["userCtx"]["roles"].clone();
        assert_eq!(roles == json!(["_metrics"]), scope == "metrics", "{roles}");
    }
    let url = format!("http://127.0.0.1:{port}");
    let get = async |path: &str| {
        let answer = server.client.get(format!("{url}{path}")).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    for (path, part) in [
        ("/metrics", "turnwise_build_info"),
        ("/_node/_local/_prometheus", "couchdb_couch_replicator_jobs_running 0"),
        ("/_node/_local/_stats", "\"couch_replicator\""),
        ("/_node/_local/_system", "\"uptime\""),
    ] {
        let (status, text) = get(path).await;
        assert!(status == 200 && text.contains(part), "{path}: {status} {text}");
    }
    for path in ["/", "/_all_dbs", "/v1/jobs", "/_node/_local/_config", "/_node/_local"] {
        assert_eq!(get(path).await.0, 404, "{path}");
    }
    let posted = server.client.post(format!("{url}/metrics")).send().await.unwrap();
    assert_eq!(posted.status().as_u16(), 405);
    let rebound = server.client.get(format!("{url}/metrics")).header("host", "evil.example");
    assert_eq!(rebound.send().await.unwrap().status().as_u16(), 421);
}

#[tokio::test]
async fn couchdbs_statistics_have_its_shapes_under_both_names_of_the_node() {
    let server = TestServer::start().await;
    let leaf = server.get("/_node/_local/_stats/couch_replicator/jobs/running").await;
    let expected = json!({"value": 0, "type": "gauge", "desc": "replicator scheduler running jobs"});
    assert_eq!((leaf.status, leaf.body), (200, expected));
    let all = server.get(&format!("/_node/{}/_stats", server.name())).await.body;
    assert_eq!(all["couch_replicator"]["checkpoints"]["success"]["type"], "counter");
    let requests = &all["couchdb"]["httpd"]["requests"]["value"];
    assert_eq!((requests, &all["couchdb"]["httpd_status_codes"]["200"]["value"]), (&json!(1), &json!(1)));
    assert_eq!(server.get("/_node/_local/_stats/couch_replicator/no").await.error(), (404, "not_found"));
    assert_eq!(server.get("/_node/nobody@nowhere/_stats").await.status, 404);
    let system = server.get("/_node/_local/_system").await.body;
    assert!(system["memory"]["other"].as_u64().unwrap() > 1 << 20 && system["uptime"].is_u64());
}

/// The names and the kinds of the statistics of replications.
fn replicator_families(text: &str) -> BTreeSet<String> {
    // CouchDB 3.5 writes HELP and TYPE of some families on one line.
    let types = text.split("# TYPE ").skip(1).filter_map(|rest| rest.lines().next());
    types.filter(|family| family.starts_with("couchdb_couch_replicator_")).map(str::to_owned).collect()
}

/// The paths and descriptions under an object of `_stats`.
fn leaves(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value.as_object() {
        Some(object) if object.contains_key("desc") => {
            found.insert(format!("{path}: {} {}", object["type"], object["desc"]));
        }
        Some(object) => {
            object.iter().for_each(|(name, value)| leaves(value, &format!("{path}/{name}"), found))
        }
        None => panic!("{path} is no object"),
    }
}

#[tokio::test]
async fn the_statistics_of_replications_have_the_names_of_a_real_couchdb() {
    let Some(couchdb) = CouchDb::shared().await else { return };
    let server = TestServer::start().await;
    let client = turnwise_testkit::client();
    let (path, stats) = ("/_node/_local/_prometheus", "/_node/_local/_stats/couch_replicator");
    let theirs = client.get(format!("{}{path}", couchdb.url())).send().await.unwrap().text().await.unwrap();
    let (_, _, ours) = server.nobody().text(path, "*/*").await;
    let (theirs, ours) = (replicator_families(&theirs), replicator_families(&ours));
    assert!(ours.len() > 30);
    assert_eq!(ours, theirs);
    let (mut theirs, mut ours) = (BTreeSet::new(), BTreeSet::new());
    let (_, body) = couchdb.request(reqwest::Method::GET, stats, None).await;
    leaves(&body, "", &mut theirs);
    leaves(&server.get(stats).await.body, "", &mut ours);
    assert_eq!(ours, theirs);
}
