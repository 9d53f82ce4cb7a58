//! turnwise's own metrics.
//!
//! Those of a node count since its start, and those of the store as a whole are the same at every node: their help says so,
//! and a query takes their maximum, and not their sum.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use turnwise_explain::types::{OfTenant, OfType};
use turnwise_queue::NODE_TYPE;
use turnwise_queue::schedules::Tally;
use turnwise_store::Condition;
use turnwise_worker::{CrashKind, MAX_TYPES, OTHER, RunResult};

use super::groups::GroupTally;
use super::of_store::StoreMetrics;
use super::share::{entitled, level};
use super::text::{Format, Kind, Text, seconds};
use super::{jobs, system};
use crate::Metrics;

/// The name of all tenants that have no metrics of their own. A tenant of this name is among them.
const OTHER_TENANTS: &str = "other";

/// A metric's name, its help, and where its value is.
type Named<T> = (&'static str, &'static str, T);
type TypeValue = fn(&OfType) -> usize;
type ShareValue = fn(&Share) -> Option<f64>;

pub(super) async fn text(metrics: &Metrics, format: Format) -> String {
    let mut text = Text::new(format);
    node(metrics, &mut text);
    workers(metrics, &mut text);
    store(metrics, &mut text);
    metrics.requests.write(&mut text);
    replications(metrics, &mut text);
    indexes(metrics, &mut text);
    write_jobs(metrics, &mut text).await;
    if let Some(store) = metrics.of_store.latest().await {
        let most = metrics.web.config.get().prometheus.tenants;
        write_store_metrics(&store, most, metrics.web.now_us(), &mut text);
    }
    text.end()
}

fn node(metrics: &Metrics, text: &mut Text) {
    let mut family = text.family("turnwise_build_info", Kind::Gauge, "The version of this node.");
    family.value(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let started = seconds(metrics.started_us.unsigned_abs());
    text.gauge("process_start_time_seconds", "When this node started, in seconds since 1970.", started);
    if let Some(bytes) = system::resident_bytes() {
        text.gauge("process_resident_memory_bytes", "The memory that this node occupies.", bytes);
    }
}

/// The servers whose indexes are built; nothing without any.
fn indexes(metrics: &Metrics, text: &mut Text) {
    let servers = metrics.indexing.conditions();
    if servers.is_empty() {
        return;
    }
    let help = "Builds of indexes that this node asks a server for.";
    let mut family = text.family("turnwise_index_builds_running", Kind::Gauge, help);
    for server in &servers {
        family.value(&[("server", &server.server)], server.running);
    }
    let help = "The most builds that this node asks a server for at present: fewer while the server is slow.";
    let mut family = text.family("turnwise_index_builds_allowed", Kind::Gauge, help);
    for server in &servers {
        family.value(&[("server", &server.server)], server.allowed);
    }
    let help = "The 95th percentile of the time of a small request to a server beside builds.";
    let mut family = text.family("turnwise_index_server_p95_seconds", Kind::Gauge, help);
    for server in &servers {
        if let Some(ms) = server.p95_ms {
            family.value(&[("server", &server.server)], seconds(ms.saturating_mul(1_000)));
        }
    }
}

fn workers(metrics: &Metrics, text: &mut Text) {
    let mut all = metrics.workers.all();
    // Nodes are members of a type of their own, which has no jobs.
    all.retain(|(job_type, _)| *job_type != NODE_TYPE);
    let mut family =
        text.family("turnwise_job_claims", Kind::Counter, "Jobs that started through this node.");
    for (job_type, counted) in &all {
        family.value(&[("type", job_type)], counted.claims.get());
    }
    let help = "Of these starts, those of jobs that had been tried before.";
    let mut family = text.family("turnwise_job_retries", Kind::Counter, help);
    for (job_type, counted) in &all {
        family.value(&[("type", job_type)], counted.retries.get());
    }
    let help = "From when a job could run until its start.";
    let mut family = text.family("turnwise_job_wait_seconds", Kind::Histogram, help);
    for (job_type, counted) in &all {
        family.times(&[("type", job_type)], &counted.waits.read());
    }
    let help = "From the start of a run until its end.";
    let mut family = text.family("turnwise_job_run_seconds", Kind::Histogram, help);
    for (job_type, counted) in &all {
        family.times(&[("type", job_type)], &counted.runs.read());
    }
    let help = "Runs whose end this node has recorded, by their result.";
    let mut family = text.family("turnwise_job_runs", Kind::Counter, help);
    for (job_type, counted) in &all {
        for (result, name) in RunResult::ALL {
            family.value(&[("type", job_type), ("result", name)], counted.results(result));
        }
    }
    tasks(metrics, text);
    let help = "Fires of schedules that this node has made, by their outcome.";
    let mut family = text.family("turnwise_schedule_fires", Kind::Counter, help);
    for (outcome, fires) in metrics.workers.fires() {
        family.value(&[("outcome", outcome)], fires);
    }
    let mut family = text.family("turnwise_job_crashes", Kind::Counter, "Runs that crashed, by the kind.");
    for (job_type, counted) in &all {
        for (kind, name) in CrashKind::ALL {
            family.value(&[("type", job_type), ("kind", name)], counted.crashes(kind));
        }
    }
    let help = "Workers that this node has removed because they missed their heartbeats.";
    let mut family = text.family("turnwise_workers_lost", Kind::Counter, help);
    for (job_type, counted) in &all {
        family.value(&[("type", job_type)], counted.workers_lost.get());
    }
    let lost = metrics.workers.of(NODE_TYPE).workers_lost.get();
    text.counter("turnwise_nodes_lost", "Nodes that this node has removed, which missed heartbeats.", lost);
}

/// The runs of jobs that name a task. The families by type have them, too.
fn tasks(metrics: &Metrics, text: &mut Text) {
    let tasks = metrics.workers.tasks();
    if tasks.is_empty() {
        return;
    }
    let help = "From the start of a run until its end, for jobs that name a task.";
    let mut family = text.family("turnwise_task_run_seconds", Kind::Histogram, help);
    for (job_type, task, counted) in &tasks {
        family.times(&[("type", job_type), ("task", task)], &counted.runs.read());
    }
    let help = "Runs whose end this node has recorded, by their result, for jobs that name a task.";
    let mut family = text.family("turnwise_task_runs", Kind::Counter, help);
    for (job_type, task, counted) in &tasks {
        for (result, name) in RunResult::ALL {
            family.value(&[("type", job_type), ("task", task), ("result", name)], counted.results(result));
        }
    }
}

fn store(metrics: &Metrics, text: &mut Text) {
    let counted = metrics.web.store.counters();
    for (name, help, value) in [
        ("transactions", "Transactions that were begun; each attempt counts.", counted.transactions),
        ("commits", "Commits, successful or not.", counted.commits),
        ("conflicts", "Commits that failed because of a conflict.", counted.conflicts),
        ("retries", "Transactions that were run again.", counted.retries),
        ("unknown_outcomes", "Commits with an unknown outcome.", counted.unknown_outcomes),
        ("unavailable", "Calls that the store could not answer.", counted.unavailable),
        ("rows_read", "Rows that were read.", counted.rows_read),
        ("rows_written", "Rows that were written or cleared.", counted.rows_written),
    ] {
        text.counter(&format!("turnwise_store_{name}"), help, value);
    }
    let mut family = text.family("turnwise_store_commit_seconds", Kind::Histogram, "How long commits took.");
    family.times(&[], &metrics.web.store.meter().commits_took());
    if let Some(times) = metrics.web.store.log_writes() {
        let help = "How long writes to the log of the store took, each with its fsync.";
        text.family("turnwise_store_log_write_seconds", Kind::Histogram, help).times(&[], &times);
    }
    let works = u8::from(metrics.web.store.condition() == Condition::Working);
    text.gauge("turnwise_store_working", "1 if the latest call to the store was answered, 0 if not.", works);
}

fn replications(metrics: &Metrics, text: &mut Text) {
    let (counted, sent) = (&metrics.replications, metrics.client.metrics());
    for (name, help, counter) in [
        ("docs_read", "Revisions that this node has read from sources.", &counted.docs_read),
        ("docs_written", "Revisions that this node has written to targets.", &counted.docs_written),
        ("doc_write_failures", "Revisions that targets have rejected.", &counted.doc_write_failures),
        ("written_bytes", "Bytes of documents and attachments written to targets.", &counted.bytes_written),
        ("requests", "Requests of replications.", &sent.requests),
        ("request_failures", "Requests of replications that failed.", &sent.response_failures),
        ("checkpoints", "Checkpoints that were written.", &counted.checkpoints),
        ("checkpoint_failures", "Checkpoints that could not be written.", &counted.checkpoint_failures),
    ] {
        text.counter(&format!("turnwise_replication_{name}"), help, counter.get());
    }
    let help = "Changes that the sources of this node's running replications report as not yet copied.";
    text.gauge("turnwise_replication_changes_pending", help, counted.changes_pending.get());
    let open = sent.connections_opened.get().saturating_sub(sent.connections_closed.get());
    text.gauge("turnwise_replication_connections", "Open connections of replications.", open);
}

async fn write_jobs(metrics: &Metrics, text: &mut Text) {
    let Some(counted) = jobs(metrics).await else { return };
    let mut types: BTreeMap<&str, turnwise_queue::counts::Counts> = BTreeMap::new();
    for (job_type, counts) in &counted {
        let is_known = types.contains_key(job_type.as_str()) || types.len() < MAX_TYPES;
        *types.entry(if is_known { job_type } else { OTHER }).or_default() += *counts;
    }
    let help = "Jobs of the whole store, the same at every node.";
    let mut family = text.family("turnwise_jobs", Kind::Gauge, help);
    for (job_type, counts) in types {
        for (kind, count) in counts.iter() {
            family.value(&[("type", job_type), ("state", kind.name())], count);
        }
    }
}

fn write_store_metrics(store: &StoreMetrics, most: usize, now_us: i64, text: &mut Text) {
    text.gauge("turnwise_nodes", "Nodes on this store, the same at every node.", store.nodes);
    let help = "Age of the state of workers and tenants below.";
    text.gauge("turnwise_state_age_seconds", help, Duration::as_secs_f64(&store.taken.elapsed()));
    let help = "How long it took to read that state.";
    text.gauge("turnwise_state_read_seconds", help, store.took.as_secs_f64());
    write_schedules(&store.schedules, text);
    write_groups(store.groups, now_us, text);
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let per_type: [Named<TypeValue>; 4] = [
        ("turnwise_workers", "Workers with slots, of the whole store.", |of| of.workers),
        ("turnwise_slots", "Jobs that may run at the same time, of the whole store.", |of| of.slots),
        ("turnwise_slots_used", "Jobs that run, of the whole store.", |of| of.running),
        ("turnwise_tenants", "Tenants with jobs or with recent run time.", |of| of.tenants.len()),
    ];
    for (name, help, value) in per_type {
        let mut family = text.family(name, Kind::Gauge, help);
        for of_type in &store.types {
            family.value(&[("type", &of_type.job_type)], count(value(of_type)));
        }
    }
    let help = "Slots that an autoscaler should provide, so that what could run has started within a minute.";
    let mut family = text.family("turnwise_wanted_slots", Kind::Gauge, help);
    for of_type in &store.types {
        family.value(&[("type", &of_type.job_type)], of_type.wanted_slots);
    }
    let help = "How long the oldest job that could run has waited; 0 if there is none.";
    let mut family = text.family("turnwise_oldest_pending_job_age_seconds", Kind::Gauge, help);
    for of_type in &store.types {
        let age_us = of_type.oldest_us.map_or(0, |oldest_us| now_us.saturating_sub(oldest_us).max(0));
        family.value(&[("type", &of_type.job_type)], seconds(age_us.unsigned_abs()));
    }
    let shares: Vec<(&str, Vec<Share>)> =
        store.types.iter().map(|of_type| (of_type.job_type.as_str(), shares_of(of_type, most))).collect();
    let per_tenant: [Named<ShareValue>; 4] = [
        ("entitled_slots", "Slots that a tenant is entitled to, by its shares and its jobs.", |of| {
            Some(of.entitled)
        }),
        ("received_slots", "Slots that a tenant has: its running jobs.", |of| Some(of.received)),
        ("demand_jobs", "Jobs of a tenant that run or could run.", |of| Some(of.demand)),
        ("deficit_seconds", "Run time that a tenant is behind its share, or ahead if negative.", |of| {
            of.deficit_s
        }),
    ];
    for (name, help, value) in per_tenant {
        let mut family = text.family(&format!("turnwise_tenant_{name}"), Kind::Gauge, help);
        for (job_type, tenants) in &shares {
            for share in tenants {
                if let Some(value) = value(share) {
                    family.value(&[("type", job_type), ("tenant", &share.tenant)], value);
                }
            }
        }
    }
}

fn write_schedules(counted: &Tally, text: &mut Text) {
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let help = "Schedules of the whole store, the same at every node.";
    let mut family = text.family("turnwise_schedules", Kind::Gauge, help);
    for (state, number) in [("active", counted.active), ("paused", counted.paused), ("over", counted.over)] {
        family.value(&[("state", state)], count(number));
    }
    let help = "Schedules whose next fire should have been more than a minute ago.";
    text.gauge("turnwise_schedules_late", help, count(counted.late));
}

fn write_groups(counted: GroupTally, now_us: i64, text: &mut Text) {
    let help = "Groups of the whole store that have not ended, the same at every node.";
    text.gauge("turnwise_groups", help, u64::try_from(counted.open).unwrap_or(u64::MAX));
    let help = "How long the oldest group that is closed and has no job left has not ended, as this node has seen; 0 if there is none.";
    let age_us = counted.due_us.map_or(0, |due_us| now_us.saturating_sub(due_us).max(0));
    text.gauge("turnwise_oldest_due_group_age_seconds", help, seconds(age_us.unsigned_abs()));
}

/// A tenant's share of a type's slots.
#[derive(Debug, Default, Clone, PartialEq)]
struct Share {
    tenant: String,
    entitled: f64,
    received: f64,
    demand: f64,
    deficit_s: Option<f64>,
}

/// The tenants furthest from their shares, at most this many, and the sum of all others.
#[allow(clippy::cast_precision_loss, reason = "a measure, of numbers far below 2^53")]
fn shares_of(of_type: &OfType, most: usize) -> Vec<Share> {
    let jobs = |tenant: &OfTenant| tenant.running + tenant.pending;
    let wants: Vec<(u64, u32)> = of_type.tenants.iter().map(|of| (jobs(of), of.shares)).collect();
    let level = level(u64::try_from(of_type.slots).unwrap_or(u64::MAX), &wants);
    let mut shares: Vec<Share> = of_type
        .tenants
        .iter()
        .map(|of| Share {
            tenant: of.tenant.clone(),
            entitled: entitled(level, jobs(of), of.shares),
            received: of.running as f64,
            demand: jobs(of) as f64,
            deficit_s: of.deficit_us.map(|us| us as f64 / 1e6),
        })
        .collect();
    // Without deficits, those with the largest difference in slots.
    let distance = |share: &Share| share.deficit_s.unwrap_or(share.entitled - share.received).abs();
    shares
        .sort_by(|one, other| distance(other).total_cmp(&distance(one)).then(one.tenant.cmp(&other.tenant)));
    let first: BTreeSet<String> = shares.iter().take(most).map(|share| share.tenant.clone()).collect();
    let (mut named, others): (Vec<Share>, Vec<Share>) =
        shares.into_iter().partition(|share| first.contains(&share.tenant) && share.tenant != OTHER_TENANTS);
    if !others.is_empty() {
        let mut sum = Share { tenant: OTHER_TENANTS.to_owned(), ..Share::default() };
        for share in others {
            sum.entitled += share.entitled;
            sum.received += share.received;
            sum.demand += share.demand;
            sum.deficit_s = share.deficit_s.map_or(sum.deficit_s, |s| Some(sum.deficit_s.unwrap_or(0.0) + s));
        }
        named.push(sum);
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenants_furthest_from_their_shares_are_named_and_the_others_are_a_sum() {
        let tenant = |tenant: &str, running, pending, deficit_s: i64| OfTenant {
            tenant: tenant.to_owned(),
            shares: 1,
            running,
            pending,
            deficit_us: Some(deficit_s * 1_000_000),
        };
        let tenants = vec![
            tenant("a", 1, 9, 1),
            tenant("b", 5, 5, -9),
            tenant("c", 0, 1, 4),
            tenant("other", 0, 0, 90),
        ];
        let of_type = OfType { slots: 7, tenants, ..OfType::default() };
        let share = |tenant: &str, entitled, received, demand, deficit_s| Share {
            tenant: tenant.to_owned(),
            entitled,
            received,
            demand,
            deficit_s: Some(deficit_s),
        };
        let shares = shares_of(&of_type, 2);
        assert_eq!(shares, [share("b", 3.0, 5.0, 10.0, -9.0), share("other", 4.0, 1.0, 11.0, 95.0)]);
        assert_eq!(shares_of(&of_type, 0), [share("other", 7.0, 6.0, 21.0, 86.0)]);
        assert_eq!(shares_of(&of_type, 50).len(), 4);
    }
}
