//! Requests whose jobs are added together or not at all, and name each other.

use std::collections::{HashMap, VecDeque};

use turnwise_protocol::{Input, NewJob, names};

use super::app::App;
use super::error::{Result, V1Error};

/// Longest name of a job within its request, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The jobs of such a request, each after those that it waits for.
pub(super) struct Whole {
    /// The place of each job in the request.
    pub places: Vec<usize>,
    /// Whether the server has generated its id.
    pub made: Vec<bool>,
}

/// A job of such a request.
struct Named {
    n: usize,
    made: bool,
    job: NewJob,
}

/// Orders the jobs of a request. In them, ids stand for names.
pub(super) fn in_order(app: &App, jobs: Vec<NewJob>) -> Result<(Whole, Vec<NewJob>)> {
    let mut by_name: HashMap<String, usize> = HashMap::new();
    let mut all = Vec::with_capacity(jobs.len());
    for (n, mut job) in jobs.into_iter().enumerate() {
        if job.count.is_some() || job.at_once.is_some() {
            return Err(V1Error::bad(
                format!("jobs[{n}].count: does not belong to a request that is added whole"),
                "add the array in a request of its own, or each of its jobs",
            ));
        }
        let made = job.id.is_none();
        job.id.get_or_insert_with(|| app.new_uuid());
        if let Some(name) = job.name.take() {
            if name.is_empty() || name.len() > MAX_NAME_BYTES || !names::is_plain(&name) {
                return Err(V1Error::out_of_bounds(format!(
                    "jobs[{n}].name: must have 1 to {MAX_NAME_BYTES} letters, digits, `_`, `-` and `.`"
                )));
            }
            if let Some(other) = by_name.insert(name, n) {
                return Err(V1Error::bad(
                    format!("jobs[{n}].name: jobs[{other}] has the same name"),
                    "give each job of a request a name of its own",
                ));
            }
        }
        all.push(Some(Named { n, made, job }));
    }
    let ids: Vec<_> =
        all.iter().flatten().map(|one| (one.job.job_type.clone(), one.job.id.clone())).collect();
    // For each job, those that wait for it; and for how many it waits itself.
    let (mut next, mut waits) = (vec![Vec::new(); all.len()], vec![0_usize; all.len()]);
    let places: HashMap<(&str, &str), usize> = ids
        .iter()
        .enumerate()
        .filter_map(|(n, (job_type, id))| Some(((job_type.as_str(), id.as_deref()?), n)))
        .collect();
    for Named { n, job, .. } in all.iter_mut().flatten() {
        let named = |name: &str, place: String| match by_name.get(name) {
            Some(on) => Ok((ids[*on].0.clone(), ids[*on].1.clone().unwrap_or_default())),
            None => Err(V1Error::bad(
                format!("jobs[{n}].{place}: no job of the request has the name `{name}`"),
                "state the type and the id of a job that exists already",
            )),
        };
        let mut on = Vec::new();
        for (m, after) in job.after.iter_mut().enumerate() {
            if let Some(name) = after.name.take() {
                let (job_type, id) = named(&name, format!("after[{m}].name"))?;
                if after.job_type.is_some() || !after.id.is_empty() {
                    return Err(V1Error::bad(
                        format!("jobs[{n}].after[{m}]: states a name, and a type or an id"),
                        "state one of them",
                    ));
                }
                (after.job_type, after.id) = (Some(job_type), id);
            }
            let job_type = after.job_type.clone().unwrap_or_else(|| job.job_type.clone());
            on.push((job_type, after.id.clone()));
        }
        for (input, wanted) in &mut job.inputs {
            if let (Some(_), Some(_)) = (&wanted.job, &wanted.name) {
                return Err(V1Error::bad(
                    format!("jobs[{n}].inputs.{input}: states a name and a job"),
                    "state one of them",
                ));
            }
            if let Some(name) = &wanted.name {
                let (job_type, id) = named(name, format!("inputs.{input}.name"))?;
                *wanted = Input { job: Some(format!("{job_type}/{id}")), name: None };
            }
            let of = wanted.job.as_deref().and_then(|job| job.split_once('/'));
            on.extend(of.map(|(job_type, id)| (job_type.to_owned(), id.to_owned())));
        }
        on.sort_unstable();
        on.dedup();
        for (job_type, id) in &on {
            if let Some(before) = places.get(&(job_type.as_str(), id.as_str())) {
                next[*before].push(*n);
                waits[*n] += 1;
            }
        }
    }
    // Those that wait for no job of the request come first, in its order.
    let mut ready: VecDeque<usize> = (0..all.len()).filter(|n| waits[*n] == 0).collect();
    let mut whole = Whole { places: Vec::with_capacity(all.len()), made: Vec::with_capacity(all.len()) };
    let mut sorted = Vec::with_capacity(all.len());
    while let Some(n) = ready.pop_front() {
        if let Some(Named { n, made, job }) = all[n].take() {
            whole.places.push(n);
            whole.made.push(made);
            sorted.push(job);
        }
        for other in &next[n] {
            waits[*other] -= 1;
            if waits[*other] == 0 {
                ready.push_back(*other);
            }
        }
    }
    match all.into_iter().flatten().next() {
        None => Ok((whole, sorted)),
        Some(Named { n, .. }) => Err(V1Error::bad(
            format!("jobs[{n}]: waits for itself, or for jobs that wait for each other"),
            "leave one of these dependencies out: the circle would never end",
        )),
    }
}
