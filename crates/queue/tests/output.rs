//! The output of runs: results, errors and lines of log, and that nothing of it outlives its job.

use bytes::Bytes;
use proptest::prelude::*;
use turnwise_policy::predictive_queue::locks::Levels;
use turnwise_queue::claims::{self, Ending, Report};
use turnwise_queue::concurrency::Tally;
use turnwise_queue::output::{self, KeptError, Level, MAX_LOG_BYTES, MAX_LOG_LINES};
use turnwise_queue::{
    Claim, Context, Error, Job, JobResult, Kept, LogLine, NewJob, RunError, RunKey, State, Terms, jobs,
    workers,
};
use turnwise_store::Limits;

use crate::common::{T, json, rows_in};

type World = crate::common::World<Output>;

#[derive(Default)]
struct Output;

const KEPT: Kept = Kept { history: 20, errors: 3, result_bytes: 1_000_000 };

impl World {
    async fn add(&self, id: &str) {
        let new = NewJob::new(T, id, json("{}"));
        self.run(async |tx, keys| jobs::add(tx, keys, &new, 1).await).await;
    }

    async fn start(&self, id: &str) -> Claim {
        let claim = self.next_claim("w");
        self.run(async |tx, keys| claims::claim(Context::new(tx, keys, T, 2, 20), id, &claim).await)
            .await
            .unwrap();
        claim
    }

    async fn end(&self, id: &str, claim: &Claim, ending: &Ending, log: &[LogLine]) -> Job {
        self.run(async |tx, keys| {
            let context = Context { kept: KEPT, ..Context::new(tx, keys, T, 3, 20) };
            claims::end_with(context, id, claim, ending, Report { log, ..Report::default() }, None).await
        })
        .await;
        self.find(id).await.unwrap()
    }

    async fn log(&self, id: &str, claim: &Claim, log: &[LogLine]) {
        let report = Report { log, ..Report::default() };
        let run = RunKey::new(T, id, claim);
        self.run(async |tx, keys| claims::report(tx, keys, run, report, 4).await).await;
    }

    async fn lines(&self, id: &str, from: u64, limit: usize) -> output::LogPage {
        output::lines(&self.tx().await, &self.keys, (T, id), from, limit).await.unwrap()
    }

    async fn result(&self, job: &Job) -> Option<JobResult> {
        output::result(&self.tx().await, &self.keys, job).await.unwrap()
    }

    async fn errors(&self, id: &str) -> Vec<KeptError> {
        let job = self.find(id).await.unwrap();
        output::errors(&self.tx().await, &self.keys, &job).await.unwrap()
    }
}

fn line(message: impl Into<String>) -> LogLine {
    LogLine { at_us: 7, level: Level::Info, message: message.into(), fields: None }
}

fn large(bytes: usize) -> Ending {
    Ending::completed(json(&format!("\"{}\"", "x".repeat(bytes - 2))))
}

#[tokio::test]
async fn a_large_result_is_whole_and_a_later_one_replaces_it() {
    let world = World::with_limits(Limits::ETCD).await;
    world.add("a").await;
    let claim = world.start("a").await;
    let job = world.end("a", &claim, &large(1_000_000), &[]).await;
    assert_eq!((job.state(), job.result.is_none()), (State::Completed, true));
    let Some(JobResult::Json(stored)) = world.result(&job).await else { panic!("no result") };
    assert_eq!(stored.get().len(), 1_000_000);

    // A smaller one leaves no piece behind; `check` compares their sizes.
    world.add("a").await;
    let job = world.find("a").await.unwrap();
    assert!(world.result(&job).await.is_none(), "the result of the earlier request");
    let claim = world.start("a").await;
    let bytes = Bytes::from_static(&[0, 255, 7]);
    let ending = Ending::Completed(JobResult::Bytes { media_type: "image/png".into(), bytes: bytes.clone() });
    let job = world.end("a", &claim, &ending, &[]).await;
    match world.result(&job).await {
        Some(JobResult::Bytes { media_type, bytes: stored }) => {
            assert_eq!((media_type.as_str(), stored), ("image/png", bytes));
        }
        other => panic!("{other:?}"),
    }
    // JSON of 12 kB is in the record.
    world.add("a").await;
    let claim = world.start("a").await;
    let job = world.end("a", &claim, &large(12 << 10), &[]).await;
    assert!(job.result.is_some() && job.stored_result.is_none());
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await;
    assert_eq!(rows_in(&world.store, world.keys.family_range("output")).await, []);
}

#[tokio::test]
async fn too_large_a_result_fails_the_job_with_the_bound() {
    for (limits, kept, bound) in [(Limits::DEFAULT, 1_000, 1_000), (Limits::SMALL, 2_000_000, 975_000)] {
        let world = World::with_limits(limits).await;
        world.add("a").await;
        let claim = world.start("a").await;
        let ending = large(bound + 1);
        world
            .run(async |tx, keys| {
                let kept = Kept { result_bytes: kept, ..KEPT };
                let context = Context { kept, ..Context::new(tx, keys, T, 3, 20) };
                claims::end(context, "a", &claim, &ending, None, None).await
            })
            .await;
        let job = world.find("a").await.unwrap();
        let reason = format!("its result has {} bytes; at most {bound} are allowed", bound + 1);
        assert_eq!((job.state(), job.reason()), (State::Failed, Some(reason.as_str())));
        world.check().await;
    }
}

#[tokio::test]
async fn the_first_error_and_the_latest_ones_are_kept_with_their_traces() {
    let world = World::new().await;
    world.add("a").await;
    for n in 0..6 {
        let claim = world.start("a").await;
        let message = format!("no {n}");
        let trace = Some(format!("  File \"/srv/mail.py\", line {n}, in send\n    x\n"));
        let error = RunError { message, class: Some("ValueError".into()), trace };
        let job = world.end("a", &claim, &Ending::Crashed { error, retry_us: Some(0) }, &[]).await;
        assert_eq!(job.reason_class().as_deref(), Some("ValueError in send (mail.py)"));
        assert_eq!(job.reason(), Some(format!("ValueError: no {n}").as_str()));
        let release = async |tx: &_, keys: &_| claims::release_due(tx, keys, T, 5, 9, |_| true).await;
        world.run(release).await;
    }
    let errors = world.errors("a").await;
    let attempts: Vec<u32> = errors.iter().map(|error| error.attempt).collect();
    assert_eq!(attempts, [6, 5, 4, 1]);
    assert_eq!((errors[0].message.as_str(), errors[0].class.as_deref()), ("no 5", Some("ValueError")));
    assert!(errors[0].trace.as_ref().unwrap().contains("line 5"));

    // A text alone is in the history only, and has the class of its words.
    let claim = world.start("a").await;
    let job = world.end("a", &claim, &Ending::Failed("exit code 1".into()), &[]).await;
    assert_eq!(job.reason_class().as_deref(), Some("exit code 1"));
    assert_eq!(world.errors("a").await.len(), 4);
}

#[tokio::test]
async fn an_error_of_a_final_class_fails_the_job_at_its_first_attempt() {
    let world = World::new().await;
    for (id, class, state) in [
        ("final", Some("ValidationError"), State::Failed),
        ("other", Some("TimeoutError"), State::Crashing),
        ("plain", None, State::Crashing),
    ] {
        world.add(id).await;
        let claim = world.next_claim("w");
        let terms = Terms { final_errors: vec!["ValidationError".into()], ..Terms::default() };
        world
            .run(async |tx, keys| {
                let context = Context::new(tx, keys, T, 2, 20);
                let (levels, mut tally, terms) = (Levels::default(), Tally::default(), (&terms).into());
                claims::claim_within(context, &levels, &mut tally, None, &terms, id, &claim).await
            })
            .await;
        let error = RunError { class: class.map(str::to_owned), ..RunError::from("no") };
        let job = world.end(id, &claim, &Ending::Crashed { error, retry_us: None }, &[]).await;
        assert_eq!((job.state(), job.attempts), (state, 1), "{id}");
    }
}

#[tokio::test]
async fn a_log_keeps_its_last_lines_and_counts_the_others() {
    let world = World::with_limits(Limits::ETCD).await;
    world.add("a").await;
    let claim = world.start("a").await;
    for n in 0..1_100 {
        world
            .unchecked(async |tx, keys| {
                let report = Report { log: &[line(n.to_string())], ..Report::default() };
                claims::report(tx, keys, RunKey::new(T, "a", &claim), report, 4).await
            })
            .await
            .unwrap();
    }
    let page = world.lines("a", 0, 5_000).await;
    assert_eq!((page.first, page.next, page.lines.len()), (100, 1_100, 1_000));
    let (numbers, messages): (Vec<u64>, Vec<String>) =
        page.lines.iter().map(|(number, line)| (*number, line.message.clone())).unzip();
    assert_eq!(numbers, (100..1_100).collect::<Vec<u64>>());
    assert!(numbers.iter().zip(messages).all(|(number, message)| number.to_string() == message));
    let page = world.lines("a", 500, 3).await;
    assert_eq!(page.lines.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [500, 501, 502]);

    // A whole log at once, with the end, in the same transaction.
    let lines: Vec<LogLine> = (0..1_000).map(|n| line(format!("again {n}"))).collect();
    let job = world.end("a", &claim, &Ending::completed(json("1")), &lines).await;
    let page = world.lines("a", 0, 5_000).await;
    assert_eq!((page.first, page.next, page.lines.len()), (1_100, 2_100, 1_000));
    assert!(job.has_output);

    // Another request goes on with the same log; the job's removal ends it.
    world.add("a").await;
    let claim = world.start("a").await;
    world.log("a", &claim, &[line("more")]).await;
    assert_eq!(world.lines("a", 0, 5_000).await.next, 2_101);
    world.end("a", &claim, &Ending::completed(json("1")), &[]).await;
    world.run(async |tx, keys| jobs::remove(tx, keys, T, "a").await).await;
    for family in ["output", "logs"] {
        assert_eq!(rows_in(&world.store, world.keys.family_range(family)).await, [], "{family}");
    }
    world.add("a").await;
    assert_eq!(world.lines("a", 0, 9).await.next, 0, "a job that is added under the same id");
}

#[tokio::test]
async fn lines_of_a_stale_claim_and_too_many_lines_are_refused() {
    let world = World::new().await;
    world.add("a").await;
    let claim = world.start("a").await;
    let stale = Claim { number: 99, ..claim.clone() };
    let log = &[line("x")];
    let report = async |claim: &Claim, log: &[LogLine]| {
        world
            .try_run(async |tx, keys| {
                let report = Report { log, ..Report::default() };
                claims::report(tx, keys, RunKey::new(T, "a", claim), report, 4).await
            })
            .await
    };
    assert!(matches!(report(&stale, log).await, Err(Error::Halt)));
    assert!(matches!(
        report(&claim, &vec![line("x"); 1_001]).await,
        Err(Error::Invalid { field: "log", .. })
    ));
    assert_eq!(world.lines("a", 0, 9).await.next, 0);
    // What an evil message may need at most.
    let evil = LogLine { fields: Some(json(r#"{"x":1}"#)), ..line("\"\u{7}é".repeat(9_000)) };
    report(&claim, &vec![evil; 1_000]).await.unwrap();
    let page = world.lines("a", 0, 5_000).await;
    assert_eq!(page.next, 1_000);
    assert!(page.lines.len() >= 20 && page.lines[0].1.message.ends_with('…'), "{}", page.lines.len());
}

#[tokio::test]
async fn a_log_that_is_dropped_goes_on_with_its_numbers() {
    let world = World::new().await;
    for id in ["a", "b"] {
        world.add(id).await;
        let claim = world.start(id).await;
        world.log(id, &claim, &vec![line("x"); 120]).await;
    }
    let claim = world.find("a").await.unwrap().claim().cloned().unwrap();
    let sizes = async || {
        let mut sizes = Vec::new();
        let each = |log| sizes.push(log);
        let last = output::log_sizes(&world.tx().await, &world.keys, None, (1, 9), each).await.unwrap();
        assert_eq!(last, None);
        sizes
    };
    let seen = sizes().await;
    let size = |n: usize| (seen[n].id.as_str(), seen[n].tenant.as_str(), seen[n].at_us);
    assert_eq!((seen.len(), size(0), size(1)), (2, ("a", "default", 4), ("b", "default", 4)));
    let drop_first = async || world.run(async |tx, keys| output::drop_lines(tx, keys, &seen[0]).await).await;
    assert!(drop_first().await);
    let page = world.lines("a", 0, 5_000).await;
    assert_eq!((page.first, page.next, page.lines.len()), (120, 120, 0));
    assert_eq!(world.lines("b", 0, 5_000).await.lines.len(), 120);
    assert_eq!(sizes().await, seen[1..]);
    // The run goes on with its log. One that has changed since it was seen is not dropped.
    world.log("a", &claim, &[line("more")]).await;
    assert!(!drop_first().await);
    let page = world.lines("a", 0, 5_000).await;
    assert_eq!((page.first, page.next, page.lines[0].0), (120, 121, 120));
}

#[tokio::test]
async fn the_log_of_a_lost_run_stays() {
    let world = World::new().await;
    world.add("a").await;
    let claim = world.start("a").await;
    world.log("a", &claim, &[line("before")]).await;
    world.run(async |tx, keys| workers::remove(Context::new(tx, keys, T, 9, 20), "w", 9).await).await;
    assert_eq!(world.lines("a", 0, 9).await.lines.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any batches of lines, of any sizes: the last ones are there in order, within the bounds, and no more are dropped than must be.
    #[test]
    fn prop_the_last_lines_are_there(batches in prop::collection::vec((1_usize..400, 0_usize..2_000), 1..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new().await;
            world.add("a").await;
            let claim = world.start("a").await;
            let mut all: Vec<String> = Vec::new();
            for (lines, bytes) in batches {
                let text = |n: usize| format!("{n} {}", "x".repeat(bytes));
                let new: Vec<String> = (all.len()..all.len() + lines).map(text).collect();
                let log: Vec<LogLine> = new.iter().map(line).collect();
                world.log("a", &claim, &log).await;
                all.extend(new);
                let page = world.lines("a", 0, 5_000).await;
                assert_eq!((page.next, page.lines.len() as u64), (all.len() as u64, page.next - page.first));
                let kept = &all[usize::try_from(page.first).unwrap()..];
                assert!(page.lines.iter().zip(kept).all(|((_, line), text)| line.message == *text));
                let size = |text: &String| serde_json::to_string(&line(text)).unwrap().len() as u64 + 1;
                let bytes: u64 = kept.iter().map(size).sum();
                assert!(page.lines.len() as u64 <= MAX_LOG_LINES && bytes <= MAX_LOG_BYTES + 1_000);
                if page.first > 0 {
                    // Whole rows are dropped.
                    let much = bytes + 20_000 > MAX_LOG_BYTES;
                    assert!(page.lines.len() as u64 + 50 > MAX_LOG_LINES || much, "{}, {bytes}", page.lines.len());
                }
            }
        });
    }
}
