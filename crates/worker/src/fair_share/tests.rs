//! The effects of other chargers' rows, and of missing rows, on the ledger.
#![allow(clippy::unwrap_used)]

use serde_json::value::RawValue;
use turnwise_policy::fair_share::Fairness;
use turnwise_queue::usage::Charged;
use turnwise_queue::{NewJob, jobs};
use turnwise_store::embedded::{self, Embedded};
use turnwise_store::runtime;

use super::*;

const ME: &str = "me";
const T: &str = "t";
const HOUR_US: i64 = 3_600_000_000;

fn state() -> State {
    State { members: Some([ME.to_owned()].into()), ..State::default() }
}

fn row(charger: &str, virtual_us: f64, tag: f64) -> (String, String, Charged) {
    (T.to_owned(), charger.to_owned(), Charged { virtual_us, tag, ..Charged::default() })
}

#[test]
fn a_charge_that_two_rows_contain_counts_once() {
    let mut state = state();
    state.learn_rows(Vec::new(), ME, 0);
    // `b` has charged 10, and `a` knew that when it charged 5 more.
    state.learn_rows(vec![row("a", 5.0, 15.0), row("b", 10.0, 10.0)], ME, 1);
    assert_eq!(state.ledger.tag(T, 100), 15.0);
    state.learn_rows(vec![row("a", 7.0, 17.0), row("b", 10.0, 10.0)], ME, 2);
    assert_eq!(state.ledger.tag(T, 100), 17.0);
}

#[test]
fn a_start_out_of_turn_moves_virtual_time_only_to_the_skipped_tenant() {
    let now_after = |skipped: Option<&str>, waits: &[&str]| {
        let mut state = state();
        for (tenant, tag) in [("first", 5.0e6), ("second", 7.0e6), (T, 100.0e6)] {
            state.ledger.load(tenant, tag);
        }
        waits.iter().for_each(|tenant| state.suspect(tenant));
        state.start((T, None), skipped, false, 0);
        state.ledger.now()
    };
    assert_eq!(now_after(None, &["first", "second", T]), 100.0e6);
    assert_eq!(now_after(Some("first"), &["first", "second", T]), 5.0e6);
    // The skipped tenant has no waiting job any more, or its turn is later.
    assert_eq!(now_after(Some("first"), &["second", T]), 100.0e6);
    assert_eq!(now_after(Some(T), &["first", T]), 100.0e6);
}

/// A worker with slots, whose rows others read.
struct Simulated {
    name: String,
    state: State,
    /// The end of each run.
    runs: Vec<(i64, RunCharges)>,
}

impl Simulated {
    fn new(name: String, of: usize) -> Self {
        let mut state = state();
        state.members = Some((0..of).map(|n| format!("w{n}")).collect());
        state.learn_rows(Vec::new(), &name, 0);
        Simulated { name, state, runs: Vec::new() }
    }

    /// Ends what is due, and fills the slots in the order of the tenants' turns. `run_us` is how long a job runs.
    fn step(&mut self, now_us: i64, slots: usize, run_us: impl Fn(&str) -> i64) -> Vec<String> {
        let (due, rest) =
            std::mem::take(&mut self.runs).into_iter().partition(|(end_us, _)| *end_us <= now_us);
        self.runs = rest;
        due.into_iter().for_each(|(_, run): (i64, _)| self.state.end(run, true, now_us));
        let mut started = Vec::new();
        while self.runs.len() < slots {
            let Some(tenant) = self.state.waiting.in_order().next().map(|(tenant, _)| tenant.clone()) else {
                break;
            };
            let run = self.state.start((&tenant, None), None, false, now_us);
            self.runs.push((now_us + run_us(&tenant), run));
            started.push(tenant.to_string());
        }
        started
    }
}

/// As in `examples/scenarios/shorter-jobs.toml`, at several workers that read each other's rows.
#[test]
fn a_tenant_does_not_wait_for_wrong_expectations_at_another_worker() {
    const WORKERS: usize = 3;
    const SLOTS: usize = 16;
    const S: i64 = 1_000_000;
    let mut workers: Vec<_> = (0..WORKERS).map(|n| Simulated::new(format!("w{n}"), WORKERS)).collect();
    let mut table: BTreeMap<(String, String), Charged> = BTreeMap::new();
    let (long_us, comes_us) = (600 * S, 602 * S);
    let mut waited_us = [None; WORKERS];
    workers.iter_mut().for_each(|worker| worker.state.suspect("large"));
    for now_us in (0..640 * S).step_by(100_000) {
        for (worker, waited_us) in workers.iter_mut().zip(&mut waited_us) {
            if now_us == comes_us {
                worker.state.suspect("small");
            }
            let run_us = |tenant: &str| match tenant {
                "large" if now_us < S => long_us,
                "large" => S,
                _ => S / 10,
            };
            let started = worker.step(now_us, SLOTS, run_us);
            if waited_us.is_none() && started.iter().any(|tenant| tenant == "small") {
                *waited_us = Some(now_us - comes_us);
            }
        }
        if now_us % S == 0 {
            for worker in &mut workers {
                let writes = worker.state.rows_to_write(&worker.name, now_us);
                for write in &writes {
                    let key = (write.tenant.clone(), write.charger.clone());
                    match &write.charged {
                        Some(charged) => table.insert(key, charged.clone()),
                        None => table.remove(&key),
                    };
                }
                worker.state.written(&writes, &worker.name);
            }
            let rows =
                table.iter().map(|((tenant, charger), row)| (tenant.clone(), charger.clone(), row.clone()));
            let rows: Vec<_> = rows.collect();
            workers.iter_mut().for_each(|worker| worker.state.learn_rows(rows.clone(), &worker.name, now_us));
        }
    }
    let waited_us = waited_us.map(|waited_us| waited_us.unwrap_or(i64::MAX));
    assert!(waited_us.iter().all(|waited_us| *waited_us <= 3 * S), "it waited {waited_us:?} µs");
}

#[test]
fn a_run_is_expected_to_take_as_long_as_those_of_its_task() {
    let mut state = state();
    state.learn_run_times([("long".to_owned(), 90e6)].into());
    let (long, unknown) =
        (state.start(("a", Some("long")), None, false, 0), state.start(("a", Some("other")), None, false, 0));
    assert_eq!((long.expected_us, unknown.expected_us), (90e6, state.expected_us("a")));
    assert_eq!(state.ledger.in_flight_here_us("a"), long.expected_us + unknown.expected_us);
    // A row is written when an average has changed.
    assert_eq!(state.run_times_to_write(), None);
    (0..9).for_each(|_| state.learn_task("long", 91e6));
    assert_eq!(state.run_times_to_write(), None);
    (0..9).for_each(|_| state.learn_task("long", 300e6));
    assert!(state.run_times_to_write().is_some_and(|row| row["long"] > 150e6));
    assert_eq!(state.run_times_to_write(), None);
}

#[test]
fn rows_of_dead_chargers_are_cleared_for_a_tenant_that_always_has_jobs() {
    let mut state = state();
    state.learn_rows(Vec::new(), ME, 0);
    state.start((T, None), None, true, 0);
    state.waiting.suspect(T);
    let dead = |now_us| {
        let mut dead = row("dead", 10.0, 10.0);
        (dead.2.usage_us, dead.2.period) = (60_000_000.0, 0);
        let mut state_rows = vec![dead];
        state_rows.push(row(ME, 0.0, 0.0));
        (state_rows, now_us)
    };
    let (rows, now_us) = dead(HOUR_US);
    state.learn_rows(rows, ME, now_us);
    assert!(state.rows.decayed.is_empty(), "its tag is ahead of virtual time");
    state.ledger.advance_to(10.0);
    let (rows, now_us) = dead(60_000_000);
    state.learn_rows(rows, ME, now_us);
    assert!(state.rows.decayed.is_empty(), "its usage still counts");
    let (rows, now_us) = dead(HOUR_US);
    state.learn_rows(rows, ME, now_us);
    assert_eq!(state.rows.decayed, BTreeSet::from([(T.to_owned(), "dead".to_owned())]));
}

#[test]
fn tenants_without_runs_here_are_forgotten() {
    let mut state = state();
    state.learn_rows(Vec::new(), ME, 0);
    state.suspect(T);
    state.learn_rows(vec![row("other", 3.0, 3.0)], ME, 0);
    state.learn_rows(Vec::new(), ME, 0);
    assert_eq!(state.ledger.tenants().count(), 1, "its jobs wait");
    state.found_empty(T, None, 0);
    state.learn_rows(Vec::new(), ME, 0);
    assert_eq!(state.ledger.tenants().count(), 1, "its virtual time is ahead");
    state.ledger.advance_to(3.0);
    state.learn_rows(Vec::new(), ME, 0);
    assert_eq!(state.ledger.tenants().count(), 0);
}

#[test]
fn no_row_is_written_before_the_rows_of_an_earlier_process_are_read() {
    let mut state = state();
    let mut charges = state.start((T, None), None, false, 0);
    state.charge(&mut charges, 7_000);
    assert!(state.rows_to_write(ME, 7_000).is_empty());
    let mut before = row(ME, 1_000.0, 1_000.0);
    before.2.service_us = 100_000;
    state.learn_rows(vec![before.clone()], ME, 8_000);
    state.learn_rows(vec![before], ME, 9_000);
    let writes = state.rows_to_write(ME, 9_000);
    assert_eq!(writes[0].charged.as_ref().unwrap().service_us, 107_000);
}

fn store(dir: &tempfile::TempDir) -> Store {
    let options = embedded::Options { durable: false, ..Default::default() };
    Store::new(Embedded::open_with(dir.path(), options).unwrap(), runtime::Manual::new(HOUR_US, 1))
}

#[tokio::test]
async fn a_queue_that_a_failed_pass_has_emptied_is_read_again() {
    for fairness in [Fairness::VirtualTime, Fairness::Rfc] {
        let dir = tempfile::tempdir().unwrap();
        let (store, keys) = (store(&dir), Keyspace::default());
        let tx = store.begin().await.unwrap();
        let job = NewJob::new("test", "a", RawValue::from_string("null".to_owned()).unwrap());
        jobs::add(&tx, &keys, &job, HOUR_US).await.unwrap();
        tx.commit().await.unwrap();
        let rules = FairRules { fairness, ..FairRules::default() };
        let fair = FairShare::new(store.clone(), keys.clone(), "test", ME, rules);
        let mut seen = Vec::new();
        for _ in 0..2 {
            let tx = store.begin().await.unwrap();
            let wake = tx.get(&keys.wake("test")).await.unwrap();
            fair.refresh_waiting(&tx, wake.as_ref(), HOUR_US).await.unwrap();
            let front =
                fair.front(&tx, wake.as_ref(), 10, (|_: &str| true, |_: &str| true), false).await.unwrap();
            seen.push(front.jobs.len());
            jobs::cancel(&tx, &keys, "test", "a", HOUR_US).await.unwrap();
            let wide =
                fair.front(&tx, wake.as_ref(), 10, (|_: &str| true, |_: &str| true), true).await.unwrap();
            assert!(wide.jobs.is_empty());
            // The transaction is not committed.
        }
        assert_eq!(seen, [1, 1], "{fairness:?}");
    }
}

#[tokio::test]
async fn one_pass_counts_a_bounded_number_of_jobs_and_later_passes_the_rest() {
    const TENANTS: usize = 40;
    const JOBS: usize = 1_000;
    let dir = tempfile::tempdir().unwrap();
    let (store, keys) = (store(&dir), Keyspace::default());
    let names: Vec<Arc<str>> = (0..TENANTS).map(|n| format!("t{n:02}").into()).collect();
    for tenant in &names {
        let tx = store.begin().await.unwrap();
        for n in 0..JOBS {
            let options = RawValue::from_string("null".to_owned()).unwrap();
            let job = NewJob::new("test", &format!("{tenant} {n}"), options)
                .with(|spec| spec.tenant = tenant.to_string());
            jobs::add(&tx, &keys, &job, HOUR_US).await.unwrap();
        }
        tx.commit().await.unwrap();
    }
    let fair = FairShare::new(store.clone(), keys, "test", ME, FairRules::default());
    let mut reads = 0;
    loop {
        let before = store.counters().rows_read;
        let tx = store.begin().await.unwrap();
        fair.count(&tx, names.iter().cloned()).await.unwrap();
        let read = store.counters().rows_read - before;
        if read == 0 {
            break;
        }
        reads += 1;
        assert!(read <= 30_000, "{read} rows in one read");
    }
    assert!(reads >= 2);
    let state = fair.state();
    assert!(names.iter().all(|tenant| state.jobs(tenant) == JOBS as u64));
}

#[test]
fn passes_by_keys_read_more_tenants_than_one_can_in_turn() {
    let mut state = state();
    for n in 0..2_600 {
        state.suspect(&format!("t{n:04}"));
    }
    let mut seen = BTreeSet::new();
    for pass in 1..=6 {
        let (all, tenants) = state.some_of_all();
        assert_eq!(all, 2_600);
        assert!((501..=1_000).contains(&tenants.len()), "{} in pass {pass}", tenants.len());
        assert_eq!(&*tenants[0], "t0000", "the first tenant is in each of them");
        seen.extend(tenants);
    }
    assert_eq!(seen.len(), 2_600);
    let (all, tenants) = state.some_of_all();
    assert_eq!((all, tenants.len()), (2_600, 1_000));
}

/// Three jobs take turns that are shorter than the interval of charges. One of them has been charged before.
#[test]
fn turns_that_are_shorter_than_the_interval_of_charges_exclude_no_job() {
    const TURN_US: i64 = 70_000;
    let mut state = state();
    state.rules = FairRules { fairness: Fairness::Rfc, ..state.rules };
    state.rules.rotation = Some(crate::RotationRules::default());
    state.rules.rfc = rfc::Rules {
        usage_interval_us: 1_000_000,
        priority_interval_us: 1_000_000,
        charge_interval_us: 1_000_000,
        ..rfc::Rules::default()
    };
    state.keys.boost = Some(rfc::Boost::new(0, &state.rules.rfc));
    // The last turn of each job, and its key.
    let mut jobs = [(0, None), (0, None), (0, Some(rfc::Key::of(300.0, 0.0).get()))];
    let mut turns = [0; 3];
    for turn in 1..=500 {
        let start_us = turn * TURN_US;
        let first = |job: &usize| jobs[*job].1.unwrap_or(f64::MIN);
        let next =
            (0..3).min_by(|a, b| first(a).total_cmp(&first(b)).then(jobs[*a].0.cmp(&jobs[*b].0))).unwrap();
        let charges = state.start((T, None), None, true, start_us);
        let key = state.grown_key(&charges, jobs[next].1, start_us, start_us + TURN_US);
        state.end(charges, true, start_us + TURN_US);
        jobs[next] = (turn, key);
        turns[next] += 1;
    }
    assert!(turns.iter().all(|turns| *turns > 100), "{turns:?}");
}
