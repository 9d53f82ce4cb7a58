//! `POST /v1/jobs…`: adding jobs.

use axum::http::{HeaderMap, StatusCode};
use serde_json::value::RawValue;
use turnwise_protocol::{
    AddJob, AddJobs, Added, AddedJob, AddedJobs, IfExists, MAX_ADDED, MAX_AFTER, MAX_BATCH_BODY_BYTES,
    MAX_DELAY_MS, MAX_TIME_US, NewJob, TaskTerms, codes, names,
};
use turnwise_queue::groups::Member;
use turnwise_queue::locks::has_room;
use turnwise_queue::tags::MAX_TAGS;
use turnwise_queue::trace::Traceparent;
use turnwise_queue::unique::{self as queue_unique, Outcome};
use turnwise_queue::{
    DEFAULT_TENANT, JobSpec, MAX_PRIORITY, MIN_PRIORITY, Then, await_inputs, dependencies, jobs,
};
use turnwise_store::{Error as StoreError, MaybeStoreError as _, Store, Transaction};
use turnwise_web::access::Caller;
use turnwise_web::traced;
use turnwise_worker::Producer;

use super::app::App;
use super::body::Json;
use super::catalogue;
use super::error::{Result, V1Error};
use super::extract::{Call, Frequent, TypePath};
use super::groups::{self, Expanded};
use super::responses::{BadBody, Common};
use super::{builtin_types, inputs, quota, types, unique, view, whole};

/// Add a job
///
/// A request with an id can be repeated: the server never adds the job twice. `if_exists` states what happens to an
/// existing job. Types that the server manages itself are rejected.
#[utoipa::path(
    post, path = "/jobs/{type}", tag = "jobs", operation_id = "add_job",
    params(TypePath), request_body = AddJob,
    responses(
        (status = 201, body = AddedJob, description = "The job was added. `added` is its state, or `cancelled` because of a dependency."),
        (status = 200, body = AddedJob, description = "The job existed, or another one has its unique key. `added` states what happened."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: another job has the unique key, and `on_conflict` is `reject`."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: the type belongs to the server."),
        BadBody, Common,
    ),
)]
pub(super) async fn add_job(
    Call { app, caller, path }: Call<TypePath>,
    headers: HeaderMap,
    Json(job): Json<AddJob>,
) -> Result<(StatusCode, Frequent<AddedJob>)> {
    let added = one(&app, &caller, NewJob::new(path.job_type, job), traced::parent(&headers)).await?;
    let status = match added.added {
        Added::Queued | Added::Delayed | Added::Blocked | Added::Cancelled => StatusCode::CREATED,
        Added::Exists | Added::RunsAgain | Added::AlreadyWaiting | Added::Found => StatusCode::OK,
    };
    Ok((status, Frequent(added)))
}

/// Adds a job, if the caller may.
pub async fn one(app: &App, caller: &Caller, job: NewJob, sent: Traceparent) -> Result<AddedJob> {
    if job.count.is_some() || job.at_once.is_some() {
        return Err(V1Error::bad("count: belongs to POST /v1/jobs", "send it there, in the list `jobs`"));
    }
    let added = add(app, caller, vec![job], Together::default(), sent, |_| String::new()).await?;
    let Some(added) = added.into_iter().next() else { unreachable!("one job goes in, one comes out") };
    Ok(added)
}

/// Whether clients add jobs of this type. The server adds those of some of its own.
pub fn is_for_clients(job_type: &str) -> bool {
    builtin_types::is_for_clients(job_type)
}

/// Add many jobs
///
/// Much faster than adding jobs one by one. If one job is invalid, none is added. The server writes all of them in one
/// transaction if the store allows it. The embedded store always does; FoundationDB allows up to 100 jobs of 1 MB in
/// total and often more, and etcd some dozens. Otherwise the server writes them in several transactions, in order. If
/// the store then fails in between, the response is `unknown_outcome`, and the first jobs may have been added.
/// Repeating the request is harmless if each job has an id.
#[utoipa::path(
    post, path = "/jobs", tag = "jobs", operation_id = "add_jobs", request_body = AddJobs,
    responses(
        (status = 200, body = AddedJobs, description = "All jobs were added, or existed, or others have their unique keys."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: another job has the unique key of one of them, and `on_conflict` is `reject`."),
        (status = 403, body = turnwise_protocol::Error, description = "`forbidden`: a type belongs to the server."),
        BadBody, Common,
    ),
)]
pub(super) async fn add_jobs(
    Call { app, caller, .. }: Call,
    headers: HeaderMap,
    Json(AddJobs { jobs, groups, whole }): Json<AddJobs, MAX_BATCH_BODY_BYTES>,
) -> Result<Frequent<AddedJobs>> {
    if jobs.is_empty() || jobs.len() > MAX_ADDED {
        let reason = format!("jobs: has {} jobs; 1 to {MAX_ADDED} are allowed", jobs.len());
        return Err(V1Error::bad(reason, "split them into several requests"));
    }
    let sent = traced::parent(&headers);
    let (whole, jobs) = match whole {
        false => (None, jobs),
        true => whole::in_order(&app, jobs).map(|(whole, jobs)| (Some(whole), jobs))?,
    };
    let Expanded { jobs, places, groups } = groups::expand(&app, &caller, jobs, groups)?;
    let groups = groups::prepared(&app, &caller, groups).await?;
    let Some(whole) = whole else {
        let place = |n: usize| format!("jobs[{}].", places[n].0);
        let together = Together { groups: &groups, places: &places, whole: None };
        return Ok(Frequent(AddedJobs { jobs: add(&app, &caller, jobs, together, sent, place).await? }));
    };
    let place = |n: usize| format!("jobs[{}].", whole.places[n]);
    let together = Together { groups: &groups, places: &places, whole: Some(&whole) };
    let added = add(&app, &caller, jobs, together, sent, place).await?;
    let mut jobs: Vec<_> = whole.places.iter().zip(added).collect();
    jobs.sort_by_key(|(n, _)| **n);
    Ok(Frequent(AddedJobs { jobs: jobs.into_iter().map(|(_, added)| added).collect() }))
}

/// Number of rows that adding one job writes, not counting large options.
const ROWS_PER_JOB: usize = 12 + MAX_TAGS;
/// Bytes of a job in a transaction beside its options: its record and its keys.
const JOB_BYTES: usize = 100_000;

/// A job that is ready to be written.
struct Ready {
    job: turnwise_queue::NewJob,
    /// The request, without its id, options, locks and dependencies. A job that is added again keeps what the request leaves
    /// out.
    request: NewJob,
    states_options: bool,
    states_locks: bool,
    /// The catalogue derives the locks from what the request states.
    derives_locks: bool,
    /// Its span, if it is traced.
    trace: Option<Producer>,
    /// The server generated its id, so no other job can have it.
    made: bool,
}

/// What jobs of one request share.
#[derive(Clone, Copy, Default)]
struct Together<'a> {
    /// The groups to create, which the jobs may name.
    groups: &'a [groups::Wanted],
    /// For each job, which one of the request it is, and its index in an array.
    places: &'a [(usize, Option<u32>)],
    /// All of them are added in one transaction, or none.
    whole: Option<&'a whole::Whole>,
}

/// Adds jobs, in as few transactions as the store allows. `sent` is the request's trace, and `place` names the n-th job in errors.
async fn add(
    app: &App,
    caller: &Caller,
    jobs: Vec<NewJob>,
    Together { groups, places, whole }: Together<'_>,
    sent: Traceparent,
    place: impl Fn(usize) -> String + Sync,
) -> Result<Vec<AddedJob>> {
    let now_us = app.now_us();
    let commands = match jobs.iter().any(|job| job.job_type == turnwise_command::JOB_TYPE) {
        true => builtin_types::Commands::find(app).await?,
        false => builtin_types::Commands::Nowhere,
    };
    let mut ready = Vec::with_capacity(jobs.len());
    let first_us = now_us.saturating_sub(i64::try_from(jobs.len()).unwrap_or(i64::MAX));
    for (n, job) in (1..).zip(jobs) {
        let mut one = prepare(app, caller, &commands, job, now_us, || place(ready.len()))?;
        // The jobs of one request are queued in its order. The last one gets the place that a single job would get.
        one.job.order_us = Some(first_us + n);
        if let Some(group) = &mut one.job.spec.group {
            group.index = places.get(ready.len()).and_then(|(_, index)| *index);
        }
        one.made |= whole.is_some_and(|whole| whole.made[ready.len()]);
        one.trace = app.spans.begin(sent, &**app.store.runtime());
        one.job.spec.trace = one.trace.map(|trace| trace.context);
        ready.push(one);
    }
    let wanted = ready.iter().map(|Ready { job, request, made, .. }| quota::Wanted {
        job,
        if_exists: request.if_exists,
        states_tenant: request.tenant.is_some(),
        made: *made,
    });
    let callbacks = groups::new_callbacks(app, groups).await?;
    let wanted = wanted.chain(callbacks.iter().map(quota::Wanted::made)).collect::<Vec<_>>();
    let _adding = app.waiting_jobs.admit(app, caller, &wanted).await?;
    let mut added: Vec<AddedJob> = Vec::with_capacity(ready.len());
    while added.len() < ready.len() {
        let first = added.len();
        let end = ready.len().min(first + MAX_ADDED);
        let making = groups::Making { groups, begins: first == 0, ends: end == ready.len() };
        let some = (&ready[first..end], making);
        match add_some(app, caller, some, now_us, &|n| place(first + n), whole.is_some()).await {
            Ok(some) => {
                record_spans(app, &ready[added.len()..], &some);
                added.extend(some);
            }
            Err(error) => {
                if added.is_empty() {
                    return Err(error);
                }
                let some = format!("{} of {} jobs were added: ", added.len(), ready.len());
                return Err(match error.store_error() {
                    Some(cause) => StoreError::UnknownOutcome(format!("{some}{cause}")).into(),
                    None => error.at(&some),
                });
            }
        }
    }
    Ok(added)
}

/// Records the spans of jobs that were added or run again.
fn record_spans(app: &App, ready: &[Ready], added: &[AddedJob]) {
    for (Ready { job, request, trace, .. }, added) in ready.iter().zip(added) {
        let has_begun = !matches!(added.added, Added::Exists | Added::AlreadyWaiting | Added::Found);
        if let Some(trace) = trace.as_ref().filter(|_| has_begun) {
            // A job that is added again keeps its tenant.
            let is_known = request.tenant.is_some() || request.if_exists == IfExists::Keep;
            let tenant = is_known.then_some(job.tenant.as_str());
            app.spans.added(trace, (&job.job_type, &job.id, tenant), app.now_us());
        }
    }
}

/// Adds the first jobs in one transaction: at least one, and as many as the store allows; all of them if `whole`.
/// `place` names the n-th of them in errors.
async fn add_some(
    app: &App,
    caller: &Caller,
    (ready, making): (&[Ready], groups::Making<'_>),
    now_us: i64,
    place: &(dyn Fn(usize) -> String + Sync),
    whole: bool,
) -> Result<Vec<AddedJob>> {
    let mut most = ready.len();
    let mut announced = false;
    loop {
        let some = &ready[..most];
        let added = app.store.transact(|tx| async move {
            let mut added = Vec::with_capacity(some.len());
            making.begin(app, &tx, now_us).await?;
            for (n, Ready { job, made, .. }) in some.iter().enumerate() {
                if !whole && is_full(&app.store, &tx, added.len()) {
                    break;
                }
                if n % jobs::PREFETCHED == 0 && some.len() > 1 {
                    let next = some[n..].iter().take(jobs::PREFETCHED);
                    let next = next.map(|Ready { job, .. }| (job.job_type.as_str(), job.id.as_str()));
                    jobs::prefetch(&tx, &app.keys, next).await?;
                }
                let done = add_one(app, caller, &tx, &some[n], now_us).await;
                let done = match done.map_err(|error| error.of_job(&place(n)))? {
                    Outcome::Added(done) => done,
                    Outcome::Found(found) if whole => {
                        return Err(taken(&place(n), &found.job_type, &found.id));
                    }
                    Outcome::Found(found) => {
                        let why = unique::found(&found).map_err(|error| error.of_job(&place(n)))?;
                        let (job_type, id) = (found.job_type, found.id);
                        added.push(AddedJob { job_type, id, added: Added::Found, found: Some(why) });
                        continue;
                    }
                };
                let done = match done {
                    jobs::Added::KeyTaken(_) => unreachable!("what happens then is stated"),
                    jobs::Added::Queued => Added::Queued,
                    jobs::Added::Delayed => Added::Delayed,
                    jobs::Added::Blocked => Added::Blocked,
                    jobs::Added::Cancelled => Added::Cancelled,
                    jobs::Added::AlreadyWaiting => Added::AlreadyWaiting,
                    jobs::Added::RunsAgain => Added::RunsAgain,
                    // Written by an earlier attempt whose outcome was unknown.
                    jobs::Added::AlreadyThere if *made && !job.after.is_empty() => Added::Blocked,
                    jobs::Added::AlreadyThere if *made && job.not_before_us.is_some() => Added::Delayed,
                    jobs::Added::AlreadyThere if *made => Added::Queued,
                    jobs::Added::AlreadyThere => Added::Exists,
                };
                let (job_type, id) = (job.job_type.clone(), job.id.clone());
                added.push(AddedJob { job_type, id, added: done, found: None });
            }
            if added.len() == ready.len() {
                making.end(app, &tx).await?;
            }
            Ok::<_, V1Error>(added)
        });
        match added.await {
            Err(error) if whole && is_too_much(&error) => return Err(too_large(app, ready.len(), &error)),
            // Some of the jobs are large, so fewer of them fit.
            Err(error) if is_small(&app.store) && is_too_much(&error) && most > 1 => {
                most /= 2;
            }
            // The job has many dependencies with large records: these are written before it.
            Err(error) if is_too_much(&error) && !announced && !ready[0].job.after.is_empty() => {
                let announced_all = announce(app, &ready[0].job, now_us).await;
                announced_all.map_err(|error| V1Error::from(error).of_job(&place(0)))?;
                announced = true;
            }
            added => return added,
        }
    }
}

/// Adds a job, if the sender may.
async fn add_one(
    app: &App,
    caller: &Caller,
    tx: &Transaction,
    ready: &Ready,
    now_us: i64,
) -> Result<Outcome> {
    check_jobs(app, caller, tx, ready).await?;
    Ok(match ready.request.if_exists {
        IfExists::Keep => queue_unique::add(tx, &app.keys, &ready.job, false, now_us).await?,
        IfExists::Again => {
            let job = with_kept(app, tx, ready).await?;
            check_tenant(caller, &job)?;
            queue_unique::add(tx, &app.keys, &job, true, now_us).await?
        }
    })
}

fn is_too_much(error: &V1Error) -> bool {
    error.store_error().is_some_and(StoreError::is_too_much)
}

/// Checks the jobs that exist already and that a request names: those of another tenant are not the sender's to change, or
/// to learn about.
async fn check_jobs(app: &App, caller: &Caller, tx: &Transaction, ready: &Ready) -> Result<()> {
    if caller.operates() {
        return Ok(());
    }
    let Ready { job, request, made, .. } = ready;
    let old = match made {
        true => None,
        false => jobs::get(tx, &app.keys, &job.job_type, &job.id).await?,
    };
    if let Some(old) = &old {
        if !caller.reads(&old.tenant) {
            return Err(V1Error::conflict(
                codes::CONFLICT,
                format!("the id `{}` is taken", job.id),
                "choose another id, or leave it out: all tenants share the ids of a job type",
            ));
        }
        // A job that is being removed is added anew.
        let changes = request.if_exists == IfExists::Again || old.then() == Then::Remove;
        if changes && !caller.writes(&old.tenant) {
            return Err(V1Error::read_only(&old.tenant));
        }
    }
    for (n, after) in job.after.iter().enumerate() {
        let other = jobs::get(tx, &app.keys, &after.job_type, &after.id).await?;
        if caller.sees(other).is_none() {
            return Err(dependencies::missing(n, after).into());
        }
    }
    Ok(())
}

/// Checks the tenant that a job is charged to.
pub(super) fn check_tenant(caller: &Caller, job: &turnwise_queue::NewJob) -> Result<()> {
    if caller.writes(&job.tenant) {
        return Ok(());
    }
    Err(V1Error::forbidden(
        format!("tenant: this identity may not add jobs for tenant `{}`{}", job.tenant, caller.own_tenants()),
        "name one of its tenants (on the command line with --tenant); an administrator gives it others, with a scope client:TENANTS",
    ))
}

/// The job, completed with the existing job's values for all members that the request does not state.
async fn with_kept(app: &App, tx: &Transaction, ready: &Ready) -> Result<turnwise_queue::NewJob> {
    let mut new = ready.job.clone();
    let Some(old) = jobs::get(tx, &app.keys, &new.job_type, &new.id).await? else {
        if new.job_type == turnwise_command::JOB_TYPE && !ready.states_options {
            let problem = "must be given, because the job does not exist yet".to_owned();
            return Err(turnwise_queue::Error::Invalid { field: "options", problem }.into());
        }
        return Ok(new);
    };
    if !ready.states_options {
        new.options = jobs::options(tx, &app.keys, &old).await?;
    }
    let locks = match ready.states_locks {
        true => new.spec.locks,
        // A running job may already have been added again, with other locks.
        false => old.run().and_then(|run| run.next.locks.clone()).unwrap_or_else(|| old.locks.clone()),
    };
    new.spec = stated(&ready.request, JobSpec { locks, trace: new.spec.trace, ..old.into_fields().spec })?;
    if ready.derives_locks {
        new.spec.locks = catalogue::derived(&new, &app.catalogue, &app.store.limits());
    }
    Ok(new)
}

/// Prepares adding a job with many dependencies, in as many transactions as needed.
async fn announce(app: &App, job: &turnwise_queue::NewJob, now_us: i64) -> turnwise_queue::Result<()> {
    let (mut from, named) = (0, (&*job.after, &job.spec.inputs));
    while from < job.after.len() {
        from = app
            .store
            .transact(|tx| async move { dependencies::announce(&tx, &app.keys, named, from, now_us).await })
            .await?;
    }
    Ok(())
}

/// The error for a request with `whole` that does not fit into a transaction.
fn too_large(app: &App, jobs: usize, error: &V1Error) -> V1Error {
    let limits = app.store.limits();
    let (rows, bytes) = (limits.transaction_writes, limits.transaction_bytes);
    let reads = limits.transaction_conflicts;
    let cause = error.store_error().map(ToString::to_string).unwrap_or_default();
    V1Error::too_large(
        format!(
            "jobs: with `whole`, these {jobs} jobs must fit into one transaction, and this server's store takes at most {rows} rows, {reads} reads and {bytes} bytes: {cause}"
        ),
        "add fewer jobs at once, or leave `whole` out, and add those first for which others wait",
    )
}

/// The error for a request with `whole`, of which one job has a unique key that another one has.
fn taken(place: &str, job_type: &str, id: &str) -> V1Error {
    V1Error::conflict(
        codes::CONFLICT,
        format!("{place}unique: job `{id}` of type `{job_type}` has this key, and no job was added"),
        "wait until that job has given the key up, or leave this job out",
    )
}

/// Whether one transaction of the store takes fewer rows than a request may need. The jobs are then added in several
/// transactions.
fn is_small(store: &Store) -> bool {
    let limits = store.limits();
    limits.transaction_writes.min(limits.transaction_conflicts) < ROWS_PER_JOB * MAX_ADDED
}

/// Number of jobs that a store keeps together if its transactions have the rows for them.
const JOBS_TOGETHER: usize = 100;

/// Whether the transaction, with this many jobs, must be committed before the next job. A slow store splits only requests that
/// may be split ([`add_jobs`]); a smaller one that takes too long fails as a whole.
fn is_full(store: &Store, tx: &Transaction, added: usize) -> bool {
    let limits = store.limits();
    let rows = limits.transaction_writes.min(limits.transaction_conflicts);
    let may_split = added >= JOBS_TOGETHER || rows < ROWS_PER_JOB * JOBS_TOGETHER;
    added > 0 && is_small(store) && (!tx.has_space() || may_split && !tx.has_time())
}

/// A priority in the form that the store keeps.
pub(super) fn priority_of(priority: i32) -> Result<i8, String> {
    let priority =
        i8::try_from(priority).ok().filter(|priority| (MIN_PRIORITY..=MAX_PRIORITY).contains(priority));
    priority.ok_or_else(|| format!("priority: must be from {MIN_PRIORITY} (first) to {MAX_PRIORITY} (last)"))
}

/// When a job may start, in µs.
pub(super) fn not_before_us(request: &NewJob, now_us: i64) -> Result<Option<i64>> {
    let delayed_us = match request.delay_ms.map(|ms| (ms, i64::try_from(ms))) {
        None => None,
        Some((ms, Ok(delay))) if ms <= MAX_DELAY_MS => Some(now_us + delay * 1_000),
        Some(_) => {
            let problem = format!("delay_ms: must be from 0 to {MAX_DELAY_MS} (ten years)");
            return Err(V1Error::out_of_bounds(problem));
        }
    };
    if request.not_before_us.is_some_and(|at_us| !(0..=MAX_TIME_US).contains(&at_us)) {
        let problem = format!("not_before_us: must be from 0 to {MAX_TIME_US} (the year 9999)");
        return Err(V1Error::out_of_bounds(problem));
    }
    Ok(delayed_us.max(request.not_before_us))
}

/// `spec` with the members that a request states, but for the locks. What it leaves out stays as it is in `spec`.
pub(super) fn stated(request: &NewJob, spec: JobSpec) -> Result<JobSpec> {
    let bad = |problem: String| V1Error::out_of_bounds(problem);
    for (member, name) in [("tenant", &request.tenant), ("user", &request.user)] {
        let checked = name.as_ref().map_or(Ok(()), |name| names::check_name(member, name));
        checked.map_err(|problem| bad(problem.to_string()))?;
    }
    let checked = request.task.as_ref().map_or(Ok(()), |task| names::check_task(task));
    checked.map_err(|problem| bad(problem.to_string()))?;
    if request.summary.as_ref().is_some_and(|summary| !summary.get().starts_with('{')) {
        return Err(bad("summary: must be an object".to_owned()));
    }
    if request.tags.as_ref().is_some_and(|tags| tags.len() > MAX_TAGS) {
        return Err(bad(format!("tags: at most {MAX_TAGS} are allowed")));
    }
    let group = request.group.as_deref();
    let checked = group.map_or(Ok(()), |group| names::check_group("group", group));
    checked.map_err(|problem| bad(problem.to_string()))?;
    let terms = types::stated(TaskTerms {
        max_attempts: request.max_attempts,
        backoff: request.backoff.clone(),
        jitter: request.jitter,
        on_lost: request.on_lost,
        max_snoozes: request.max_snoozes,
        timeout_ms: request.timeout_ms,
        heartbeat_timeout_ms: request.heartbeat_timeout_ms,
        start_within_ms: request.start_within_ms,
        keep_ms: request.keep_ms,
        final_errors: Vec::new(),
    })?;
    Ok(JobSpec {
        tenant: request.tenant.clone().unwrap_or(spec.tenant),
        user: request.user.clone().or(spec.user),
        task: request.task.clone().or(spec.task),
        tags: request.tags.as_ref().map_or(spec.tags, |tags| tags.iter().cloned().collect()),
        summary: request.summary.clone().unwrap_or(spec.summary),
        max_attempts: terms.max_attempts.or(spec.max_attempts),
        timeouts: terms.timeouts.or(spec.timeouts),
        retry: terms.retry.or(spec.retry),
        lifetime: terms.lifetime.or(spec.lifetime),
        unique: request.unique.as_ref().map(unique::stated).transpose()?.or(spec.unique),
        group: group.map(Member::of).or(spec.group),
        inputs: if request.inputs.is_empty() { spec.inputs } else { inputs::stated(&request.inputs)? },
        reasons: if request.reason.is_empty() { spec.reasons } else { request.reason.clone() },
        ..spec
    })
}

/// A job that a schedule will add, checked as one that is added now. `place` names it in errors.
pub(super) fn prepared(
    app: &App,
    caller: &Caller,
    commands: &builtin_types::Commands<'_>,
    request: NewJob,
    now_us: i64,
    place: &str,
) -> Result<turnwise_queue::NewJob> {
    prepare(app, caller, commands, request, now_us, || place.to_owned()).map(|ready| ready.job)
}

fn prepare(
    app: &App,
    caller: &Caller,
    commands: &builtin_types::Commands<'_>,
    mut request: NewJob,
    now_us: i64,
    place: impl Fn() -> String,
) -> Result<Ready> {
    let bad = |problem: &str| V1Error::out_of_bounds(place() + problem);
    let checked = |checked: Result<(), names::Problem>| checked.map_err(|problem| bad(&problem.to_string()));
    checked(names::check_type(&request.job_type))?;
    let not_before_us = not_before_us(&request, now_us).map_err(|error| error.at(&place()))?;
    let priority = request.priority.map(priority_of).transpose().map_err(|problem| bad(&problem))?;
    let (options, locks) = (request.options.take(), request.locks.take());
    let states_options = options.is_some();
    let states_locks = locks.is_some();
    let in_catalogue = app.catalogue.line(&request.job_type).is_some();
    let derives_locks = !states_locks && in_catalogue && (states_options || request.task.is_some());
    let options = options.unwrap_or_else(|| RawValue::from_string("{}".to_owned()).expect("it is JSON"));
    // Options that the job keeps were checked when they were added.
    let checked_options = (states_options || request.if_exists == IfExists::Keep).then_some(&*options);
    builtin_types::check_addable(commands, &request.job_type, checked_options)
        .map_err(|error| error.at(&place()))?;
    let made = request.id.is_none();
    let id = request.id.take().unwrap_or_else(|| app.new_uuid());
    checked(names::check_id(&id))?;
    let tenant = caller.only_tenant().unwrap_or(DEFAULT_TENANT).to_owned();
    let spec = stated(&request, JobSpec { tenant, ..JobSpec::default() });
    let spec = spec.map_err(|error| error.at(&place()))?;
    if request.job_type == turnwise_command::JOB_TYPE && !caller.commands() {
        return Err(V1Error::forbidden(
            place() + "type: this identity may not add jobs that run programs",
            "it needs the scope command, beside client:TENANTS",
        ));
    }
    if request.name.is_some() {
        return Err(bad("name: only a request with `whole` names its jobs"));
    }
    if !request.inputs.is_empty() && turnwise_queue::types::is_of_server(&request.job_type) {
        return Err(bad("inputs: jobs of this type get no results of others"));
    }
    let awaited = std::mem::take(&mut request.after);
    if awaited.len() > MAX_AFTER {
        return Err(bad(&format!("after: has {} jobs; at most {MAX_AFTER} are allowed", awaited.len())));
    }
    let mut after = Vec::with_capacity(awaited.len());
    for (n, one) in awaited.into_iter().enumerate() {
        if one.name.is_some() {
            return Err(bad(&format!("after[{n}].name: only a request with `whole` names its jobs")));
        }
        let job_type = one.job_type.unwrap_or_else(|| request.job_type.clone());
        names::check_type(&job_type)
            .and_then(|()| names::check_id(&one.id))
            .map_err(|problem| bad(&format!("after[{n}].{problem}")))?;
        after.push(view::awaited(job_type, one.id, &one.accepted, one.otherwise));
    }
    await_inputs(&spec.inputs, &mut after);
    let locks = locks.map(|locks| catalogue::stated(locks, &app.catalogue)).transpose();
    let locks = locks.map_err(|problem| {
        V1Error::bad(
            place() + &problem.to_string(),
            "correct the member; docs/locks.md describes what can be locked",
        )
    })?;
    let job_type = request.job_type.clone();
    let mut job = turnwise_queue::NewJob {
        job_type,
        id,
        spec,
        options,
        priority,
        not_before_us,
        order_us: None,
        after,
    };
    job.spec.locks = locks.unwrap_or_else(|| catalogue::derived(&job, &app.catalogue, &app.store.limits()));
    // A job that is added again may keep the tenant that it has: this is checked later.
    if request.tenant.is_some() || request.if_exists == IfExists::Keep {
        check_tenant(caller, &job).map_err(|error| error.at(&place()))?;
    }
    check_room(app, &job, &place())?;
    Ok(Ready { job, request, states_options, states_locks, derives_locks, trace: None, made })
}

/// Checks a job as far as its own values show, and that it fits into the store. `place` names it in errors.
pub(super) fn check_room(app: &App, job: &turnwise_queue::NewJob, place: &str) -> Result<()> {
    let bad = |problem: &str| V1Error::out_of_bounds(format!("{place}{problem}"));
    job.check().map_err(|error| bad(&error.to_string()))?;
    if !has_room(&job.locks, &app.store.limits()) {
        return Err(bad("locks: too many for one transaction of this server's store: lock all of a level"));
    }
    let most = app.store.limits().transaction_bytes.saturating_sub(JOB_BYTES);
    if job.options.get().len() > most {
        let problem = format!(
            "{place}options: have {} bytes; this server's store allows at most {most}",
            job.options.get().len()
        );
        return Err(V1Error::too_large(
            problem,
            "store large data elsewhere, and put its address into the options",
        ));
    }
    Ok(())
}
