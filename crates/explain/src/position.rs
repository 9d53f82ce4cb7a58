//! The position of a pending job, and the head of a type's queue, in the order in which the policy starts jobs if nothing changes.
//!
//! With the fairness `rfc`, each job has a key, its priority value, which decides the order. With virtual time, a position
//! follows from the lengths of the tenants' queues.

use turnwise_policy::fair_share::virtual_time::{TenantTurn, order};
use turnwise_policy::fair_share::{Fairness, rfc};
use turnwise_policy::rotation::by_priority;
use turnwise_protocol::{Before, MAX_COUNTED, Position};
use turnwise_queue::keyspace::QueuePlace;
use turnwise_queue::{Job, tenants};
use turnwise_store::{Isolation, RangeRead};

use crate::snapshot::{Snapshot, all_of, many};
use crate::{Reader, Result};

/// Maximum number of other tenants whose queues are counted. For each tenant beyond them, one waiting job is assumed.
const MAX_OTHERS: usize = 1_000;
/// Number of queues that are counted at a time, until enough jobs are found.
const CHUNK: usize = 32;
/// Maximum number of other tenants in a response.
const MAX_BEFORE: usize = 10;
/// Maximum number of rows of all queues that one request counts with the fairness `rfc`: there, a position depends on each
/// job of each tenant.
const MAX_KEYED_ROWS: usize = 50_000;
/// Each queue is counted at least up to this number, however many queues there are.
const LEAST_KEYED_ROWS: usize = 50;
/// Maximum number of one tenant's jobs that are read for the head of the queue with the fairness `rfc`. All of its
/// first jobs may precede those of other tenants.
const MAX_KEYED_FRONT: usize = 50;

/// A job's position, and the jobs that precede it.
#[derive(Default)]
pub(crate) struct Predecessors {
    pub position: Position,
    /// The first other tenants whose jobs precede it.
    pub before: Vec<Before>,
    /// The number of such tenants.
    pub others: usize,
    /// If the tenant's jobs rotate: the number of jobs that have waited longer, of all tenants with rotating jobs, and
    /// whether there may be more. Counted up to [`MAX_COUNTED`].
    pub longer: Option<(usize, bool)>,
    /// The expected run time of the jobs before it, in µs. `None` if no run time of these jobs is known.
    pub cost_us: Option<f64>,
}

/// A job at the head of a queue.
pub(crate) struct Next {
    pub tenant: String,
    /// Its row in the queue, with the locks that it wants.
    pub pending: tenants::Pending,
    /// Number of jobs of its tenant before it.
    pub in_tenant: usize,
}

/// How many jobs of another tenant precede a job.
enum Ahead {
    /// This many, or fewer if the queue is shorter.
    UpTo(usize),
    /// Jobs with a lower key, or with the same key and an earlier time. Jobs without a key count with the key `new`. At
    /// most `most` rows of the queue are read.
    Below { key: rfc::Key, order_us: i64, new: rfc::Key, most: usize },
}

/// Finds the position of a pending job.
pub(crate) async fn find(reader: &Reader<'_>, snapshot: &Snapshot, job: &Job) -> Result<Predecessors> {
    let in_tenant = tenants::rank(reader.tx, reader.keys, job, MAX_COUNTED + 1).await?;
    let mut position = Position {
        in_tenant: in_tenant.min(MAX_COUNTED),
        in_tenant_more: in_tenant > MAX_COUNTED,
        overall: in_tenant.min(MAX_COUNTED),
        overall_more: in_tenant > MAX_COUNTED || snapshot.unknown_from.is_some(),
    };
    let others = match snapshot.rules.fairness {
        Fairness::VirtualTime => others_by_tag(snapshot, &job.tenant, in_tenant),
        Fairness::Rfc => others_by_key(reader, snapshot, job).await?,
    };
    let mut cost_us = match in_tenant {
        0 => Some(0.0),
        jobs => snapshot.learnt_of_queue(reader, &job.tenant).await?.map(|each| each * many(jobs)),
    };
    let mut before = Vec::new();
    let mut found = 0;
    let looked_at = others.len().min(MAX_OTHERS);
    'counting: for chunk in others[..looked_at].chunks(CHUNK) {
        let counts = chunk.iter().map(|(tenant, ahead)| count(reader, snapshot, tenant, ahead)).collect();
        let counted: Vec<(usize, bool)> = all_of(counts).await?;
        for ((tenant, _), (jobs, jobs_more)) in chunk.iter().zip(counted) {
            if jobs == 0 {
                continue;
            }
            found += 1;
            let each = match before.len() < MAX_BEFORE {
                true => snapshot.learnt_of_queue(reader, tenant).await?,
                false => snapshot.learnt_of(tenant, None),
            };
            if before.len() < MAX_BEFORE {
                let shares = snapshot.rules.shares.of(tenant);
                before.push(Before { tenant: tenant.clone(), shares, jobs, jobs_more });
            }
            cost_us = cost_us.zip(each).map(|(all, each)| all + each * many(jobs));
            position.overall = position.overall.saturating_add(jobs);
            position.overall_more |= jobs_more;
            if position.overall > MAX_COUNTED {
                (position.overall, position.overall_more) = (MAX_COUNTED, true);
                break 'counting;
            }
        }
    }
    let unseen = others.len() - looked_at;
    if unseen > 0 && position.overall < MAX_COUNTED {
        // Each of them has at least one waiting job.
        position.overall = (position.overall + unseen).min(MAX_COUNTED);
        position.overall_more = true;
    }
    if position.overall_more {
        found = found.max(others.len());
    }
    let longer = match snapshot.take_turns(&job.tenant) {
        true => Some(waited_longer(reader, snapshot, job, in_tenant).await?),
        false => None,
    };
    Ok(Predecessors { position, before, others: found, longer, cost_us })
}

/// Counts the jobs that have waited longer than a job, of tenants whose jobs rotate. Rotation within tenants prefers
/// the longest wait, regardless of the tenant.
async fn waited_longer(
    reader: &Reader<'_>,
    snapshot: &Snapshot,
    job: &Job,
    in_tenant: usize,
) -> Result<(usize, bool)> {
    let taking_turns = snapshot
        .tenants
        .iter()
        .filter(|(name, standing)| standing.waits && **name != job.tenant && snapshot.take_turns(name));
    let others: Vec<&String> = taking_turns.map(|(name, _)| name).collect();
    let looked_at = others.len().min(MAX_OTHERS);
    let mut longer = in_tenant;
    for chunk in others[..looked_at].chunks(CHUNK) {
        let most = MAX_COUNTED.saturating_sub(longer);
        // The position that the job would have in the other queue is the number of jobs before it there.
        let before = chunk.iter().map(|name| {
            let position = QueuePlace::by_time(name, job.order_us());
            let (begin, _) = reader.keys.pending_of(&snapshot.job_type, name);
            let end = reader.keys.pending_entry(&snapshot.job_type, &position, &job.id);
            reader.tx.range_with(RangeRead { begin, end, limit: most, reverse: false }, Isolation::Snapshot)
        });
        let before = all_of(before.collect()).await?;
        longer = longer.saturating_add(before.iter().map(Vec::len).sum()).min(MAX_COUNTED);
        if longer == MAX_COUNTED {
            break;
        }
    }
    Ok((longer, longer == MAX_COUNTED || looked_at < others.len()))
}

/// Maximum number of rows that are read of each queue with the fairness `rfc`, given the number of queues.
fn each_of(queues: usize) -> usize {
    (MAX_KEYED_ROWS / queues.max(1)).clamp(LEAST_KEYED_ROWS, MAX_COUNTED)
}

/// Tenants with jobs that precede a tenant's job by virtual time, if that job has `in_tenant` jobs before it. The
/// lowest virtual time comes first.
fn others_by_tag(snapshot: &Snapshot, tenant: &str, in_tenant: usize) -> Vec<(String, Ahead)> {
    let (next, step) = snapshot.next(tenant);
    let own = next + step * many(in_tenant);
    let waiting = snapshot.tenants.iter().filter(|(name, standing)| standing.waits && *name != tenant);
    let mut others: Vec<(f64, &String, usize)> = waiting
        .map(|(name, _)| {
            let (next, step) = snapshot.next(name);
            // Ties are ordered by name.
            (next, name, steps_below(own - next, step, name.as_str() < tenant))
        })
        .filter(|(_, _, jobs)| *jobs > 0)
        .collect();
    others.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
    others.into_iter().map(|(_, name, jobs)| (name.clone(), Ahead::UpTo(jobs))).collect()
}

/// How many of 0, step, 2·step, … are below `room`, or equal to it if `equal_counts`.
fn steps_below(room: f64, step: f64, equal_counts: bool) -> usize {
    if room < 0.0 || (room == 0.0 && !equal_counts) {
        return 0;
    }
    if step <= 0.0 {
        return MAX_COUNTED + 1;
    }
    let whole = (room / step).floor();
    let exact = whole * step == room;
    let whole = whole.min(many(MAX_COUNTED)) as usize;
    if exact && !equal_counts { whole } else { whole + 1 }
}

/// All other tenants with the fairness `rfc`, each with its key for new jobs.
async fn others_by_key(reader: &Reader<'_>, snapshot: &Snapshot, job: &Job) -> Result<Vec<(String, Ahead)>> {
    let key = match job.sort_key {
        Some(key) => rfc::Key::stored(key),
        None => new_key(reader, snapshot, &job.tenant, MAX_COUNTED).await?,
    };
    let names = snapshot.tenants.iter().filter(|(name, standing)| standing.waits && **name != job.tenant);
    let names: Vec<&String> = names.map(|(name, _)| name).collect();
    let most = each_of(names.len().min(MAX_OTHERS));
    let new_keys = names.iter().take(MAX_OTHERS).map(|name| new_key(reader, snapshot, name, most)).collect();
    let new_keys: Vec<rfc::Key> = all_of(new_keys).await?;
    let below = names
        .iter()
        .zip(new_keys)
        .map(|(name, new)| ((*name).clone(), Ahead::Below { key, order_us: job.order_us(), new, most }));
    let mut others: Vec<(String, Ahead)> = below.collect();
    let unseen = names.into_iter().skip(MAX_OTHERS);
    others.extend(unseen.map(|name| (name.clone(), Ahead::UpTo(1))));
    Ok(others)
}

/// The key that a worker gives a tenant's job that never ran, computed as if at most `most` of the tenant's jobs waited.
async fn new_key(reader: &Reader<'_>, snapshot: &Snapshot, tenant: &str, most: usize) -> Result<rfc::Key> {
    let standing = snapshot.tenants.get(tenant).cloned().unwrap_or_default();
    let pending = match standing.usage_us > 0.0 {
        true => tenants::count_pending(reader.tx, reader.keys, &snapshot.job_type, tenant, most).await?,
        false => 0,
    };
    let jobs = u64::try_from(pending.saturating_add(standing.charges.running)).unwrap_or(u64::MAX);
    let priority = rfc::increment(standing.usage_us, jobs, snapshot.rules.shares.of(tenant));
    Ok(rfc::Key::of(priority, snapshot.boost_v))
}

async fn count(
    reader: &Reader<'_>,
    snapshot: &Snapshot,
    tenant: &str,
    ahead: &Ahead,
) -> Result<(usize, bool)> {
    let job_type = &snapshot.job_type;
    match ahead {
        Ahead::UpTo(jobs) => {
            let jobs = tenants::count_pending(reader.tx, reader.keys, job_type, tenant, *jobs).await?;
            Ok((jobs.min(MAX_COUNTED), jobs > MAX_COUNTED))
        }
        Ahead::Below { key, order_us, new, most } => {
            let front = tenants::front(reader.tx, reader.keys, job_type, tenant, *most).await?;
            let whole = front.len() < *most;
            let own = (key.get(), *order_us);
            let before = front.iter().filter(|pending| {
                let key = pending.key.map_or(*new, rfc::Key::stored).get();
                let by_key = key.total_cmp(&own.0);
                by_key.then_with(|| pending.order_us.cmp(&own.1)).is_lt()
            });
            let before = before.count();
            Ok((before, !whole && before == *most))
        }
    }
}

/// The first `limit` jobs of a type's queue, in order.
pub(crate) async fn front(reader: &Reader<'_>, snapshot: &Snapshot, limit: usize) -> Result<Vec<Next>> {
    let waiting =
        snapshot.tenants.iter().filter(|(_, standing)| standing.waits).map(|(name, _)| name.as_str());
    let (names, ordered): (Vec<&str>, Vec<(usize, tenants::Pending)>) = match snapshot.rules.fairness {
        Fairness::VirtualTime => {
            let mut candidates: Vec<(&str, TenantTurn)> = waiting
                .map(|name| {
                    let (next, step) = snapshot.next(name);
                    (name, TenantTurn { next, step })
                })
                .collect();
            // Each tenant has a waiting job, so tenants beyond the first `limit` cannot have one of the first `limit` jobs.
            candidates.sort_by(|(_, one), (_, other)| one.next.total_cmp(&other.next));
            candidates.truncate(limit);
            let (names, turns): (Vec<&str>, Vec<TenantTurn>) = candidates.into_iter().unzip();
            let queues = fronts(reader, snapshot, &names, limit).await?;
            let jobs: Vec<usize> = queues.iter().map(Vec::len).collect();
            let mut queues: Vec<_> = queues.into_iter().map(Vec::into_iter).collect();
            let order = order(&turns, &jobs).into_iter();
            (names, order.filter_map(|tenant| Some((tenant, queues[tenant].next()?))).collect())
        }
        Fairness::Rfc => {
            let names: Vec<&str> = waiting.take(MAX_OTHERS).collect();
            let queues = fronts(reader, snapshot, &names, limit.min(MAX_KEYED_FRONT)).await?;
            let most = each_of(names.len());
            let mut next = Vec::new();
            for (number, (tenant, queue)) in names.iter().zip(queues).enumerate() {
                let new = match queue.iter().any(|pending| pending.key.is_none()) {
                    true => new_key(reader, snapshot, tenant, most).await?,
                    false => rfc::Key::ZERO,
                };
                let keyed = queue
                    .into_iter()
                    .map(|pending| (pending.key.map_or(new, rfc::Key::stored).get(), pending));
                next.extend(keyed.map(|(key, pending)| (key, number, pending)));
            }
            next.sort_by(|(one, _, a), (other, _, b)| {
                one.total_cmp(other).then_with(|| a.order_us.cmp(&b.order_us))
            });
            let next = by_priority(next, |(_, tenant, pending)| (*tenant, pending.priority.into()));
            (names, next.into_iter().map(|(_, tenant, pending)| (tenant, pending)).collect())
        }
    };
    let mut taken = vec![0; names.len()];
    let next = ordered.into_iter().take(limit).map(|(tenant, pending)| {
        let in_tenant = taken[tenant];
        taken[tenant] += 1;
        Next { tenant: names[tenant].to_owned(), pending, in_tenant }
    });
    Ok(next.collect())
}

async fn fronts(
    reader: &Reader<'_>,
    snapshot: &Snapshot,
    names: &[&str],
    limit: usize,
) -> Result<Vec<Vec<tenants::Pending>>> {
    let fronts =
        names.iter().map(|name| tenants::front(reader.tx, reader.keys, &snapshot.job_type, name, limit));
    all_of(fronts.collect()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_stand_lower_are_counted() {
        assert_eq!(steps_below(-1.0, 10.0, true), 0);
        assert_eq!(steps_below(0.0, 10.0, false), 0);
        assert_eq!(steps_below(0.0, 10.0, true), 1);
        assert_eq!(steps_below(5.0, 10.0, false), 1);
        assert_eq!(steps_below(20.0, 10.0, false), 2);
        assert_eq!(steps_below(20.0, 10.0, true), 3);
        assert_eq!(steps_below(21.0, 10.0, true), 3);
        assert_eq!(steps_below(1.0, 0.0, true), MAX_COUNTED + 1);
        assert_eq!(steps_below(f64::MAX, 1.0, true), MAX_COUNTED + 1);
    }
}
