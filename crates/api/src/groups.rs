//! `/v1/groups`: jobs that end together, and arrays, which are groups that one add makes.
//!
//! These routes write the rows of groups. The queue counts the ends of their jobs, and the server ends the groups (`turnwise_worker::Groups`).

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde::Deserialize;
use turnwise_protocol::{
    CalledJob, Group, GroupState, Groups, IfExists, MAX_ARRAY, MAX_BATCH_BODY_BYTES, MAX_NEW_GROUPS,
    NewGroup, NewJob, Nothing, RemovedGroup, codes, names,
};
use turnwise_queue::groups::{
    self as rows, CallbackJob, Created, GroupEnd, MAX_GROUPS_OF_TENANT, On, Removed,
};
use turnwise_queue::schedules::Template;
use turnwise_queue::{DEFAULT_TENANT, End, Error as QueueError, MAX_LIFETIME_US};
use turnwise_store::Transaction;
use turnwise_web::access::{Caller, shown_owner};
use utoipa::IntoParams;

use super::add;
use super::app::App;
use super::body::{Json, NoBody};
use super::builtin_types::Commands;
use super::error::{Result, V1Error};
use super::extract::{Call, Names, Params, Shown};
use super::list::{check_limit, default_limit};
use super::responses::{BadBody, Common};
use super::view::{ms, same, shown_counts, shown_on};
use super::{position_text, quota};

/// Number of groups that one read of a list reads.
const BATCH: usize = 500;
/// Number of reads for one page of a list, most of whose groups the caller may not see.
const MAX_READS: usize = 10;
const IN_GROUP: &str = "a group itself decides when its jobs are added, and under which ids";

/// `/{tenant}/{group}`
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct GroupPath {
    /// The tenant, percent-encoded.
    #[param(value_type = names::Name)]
    pub tenant: String,
    /// The group's name.
    #[param(value_type = names::GroupName)]
    pub group: String,
}

impl Names for GroupPath {
    fn check(&self) -> Result<()> {
        names::check_name("tenant", &self.tenant)?;
        Ok(names::check_group("group", &self.group)?)
    }
}

/// The jobs of a request, with those of its arrays, and the groups that it creates.
pub(super) struct Expanded {
    pub jobs: Vec<NewJob>,
    /// For each job, which one of the request it is, and its index in an array.
    pub places: Vec<(usize, Option<u32>)>,
    pub groups: Vec<NewGroup>,
}

/// Makes the jobs of the arrays of a request, and a group for each array.
pub(super) fn expand(
    app: &App,
    caller: &Caller,
    jobs: Vec<NewJob>,
    groups: Vec<NewGroup>,
) -> Result<Expanded> {
    let own = own_tenant(caller);
    let mut all = Expanded { jobs: Vec::with_capacity(jobs.len()), places: Vec::new(), groups };
    let mut bytes = 0_usize;
    for (n, mut job) in jobs.into_iter().enumerate() {
        let bad = |problem: String| V1Error::out_of_bounds(format!("jobs[{n}].{problem}"));
        let at_once = job.at_once.take();
        let Some(count) = job.count.take() else {
            if at_once.is_some() {
                return Err(bad("at_once: belongs to `count`".to_owned()));
            }
            all.places.push((n, None));
            all.jobs.push(job);
            continue;
        };
        let room = MAX_ARRAY.saturating_sub(all.jobs.len());
        if count == 0 || usize::try_from(count).map_or(true, |count| count > room) {
            return Err(bad(format!("count: a request has 1 to {MAX_ARRAY} jobs, with those of its arrays")));
        }
        if job.if_exists != IfExists::Keep || job.unique.is_some() {
            return Err(bad("count: an array has no `unique` and no `if_exists`".to_owned()));
        }
        // As if they had been sent one by one.
        let of_one = serde_json::to_vec(&job).map_or(MAX_BATCH_BODY_BYTES, |json| json.len());
        bytes = bytes.saturating_add(of_one.saturating_mul(usize::try_from(count).unwrap_or(usize::MAX)));
        if bytes > MAX_BATCH_BODY_BYTES {
            return Err(bad(format!("count: the jobs have {bytes} bytes, more than 8 MB together")));
        }
        let name = job.id.take().unwrap_or_else(|| app.new_uuid());
        names::check_group("id", &name).map_err(|problem| bad(problem.to_string()))?;
        let parent = job.group.replace(name.clone());
        let tenant_of = |stated: &Option<String>| stated.clone().unwrap_or_else(|| own.clone());
        let tenant = tenant_of(&job.tenant);
        let of_array = |group: &&mut NewGroup| group.name == name && tenant_of(&group.tenant) == tenant;
        match all.groups.iter_mut().find(of_array) {
            Some(group) => {
                group.at_once = group.at_once.or(at_once);
                group.parent = group.parent.take().or(parent);
            }
            None => all.groups.push(NewGroup {
                name: name.clone(),
                tenant: job.tenant.clone(),
                open: None,
                parent,
                at_once,
                keep_ms: None,
                on_complete: None,
                on_success: None,
                on_first_failure: None,
            }),
        }
        for index in 0..count {
            all.places.push((n, Some(index)));
            all.jobs.push(NewJob { id: Some(format!("{name}.{index}")), ..job.clone() });
        }
    }
    if all.groups.len() > MAX_NEW_GROUPS {
        let problem = format!("groups: at most {MAX_NEW_GROUPS} are allowed, with those of arrays");
        return Err(V1Error::bad(problem, "split them into several requests"));
    }
    Ok(all)
}

/// A group that is ready to be created.
pub(super) struct Wanted {
    group: rows::NewGroup,
    stays_open: Option<bool>,
    at: String,
}

/// Checks the groups of a request.
pub(super) async fn prepared(app: &App, caller: &Caller, groups: Vec<NewGroup>) -> Result<Vec<Wanted>> {
    let mut wanted = Vec::with_capacity(groups.len());
    for (n, group) in groups.into_iter().enumerate() {
        wanted.push(prepare(app, caller, group, format!("groups[{n}].")).await?);
    }
    Ok(wanted)
}

async fn prepare(app: &App, caller: &Caller, mut group: NewGroup, at: String) -> Result<Wanted> {
    let bad = |problem: String| V1Error::out_of_bounds(format!("{at}{problem}"));
    let checked = names::check_group("name", &group.name)
        .and_then(|()| group.tenant.as_ref().map_or(Ok(()), |tenant| names::check_name("tenant", tenant)))
        .and_then(|()| group.parent.as_ref().map_or(Ok(()), |parent| names::check_group("parent", parent)));
    checked.map_err(|problem| bad(problem.to_string()))?;
    let tenant = group.tenant.take().unwrap_or_else(|| own_tenant(caller));
    if !caller.writes(&tenant) {
        return Err(V1Error::read_only(&tenant));
    }
    let keep_us = match group.keep_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000)) {
        // As long as its jobs: while they are there, a repetition of an add finds both.
        None => retention_us(app),
        Some(us) if us <= MAX_LIFETIME_US => us,
        Some(_) => return Err(bad("keep_ms: must be at most ten years".to_owned())),
    };
    let mut callbacks = BTreeMap::new();
    for (on, member, job) in [
        (On::Complete, "on_complete", group.on_complete.take()),
        (On::Success, "on_success", group.on_success.take()),
        (On::FirstFailure, "on_first_failure", group.on_first_failure.take()),
    ] {
        if let Some(job) = job {
            callbacks.insert(on, callback(app, caller, &tenant, job, &format!("{at}{member}.")).await?);
        }
    }
    let new = rows::NewGroup {
        parent: group.parent,
        at_once: group.at_once,
        keep_us,
        callbacks,
        by: caller.owner(),
        most_of_tenant: MAX_GROUPS_OF_TENANT,
        ..rows::NewGroup::new(&tenant, &group.name)
    };
    new.check().map_err(|error| bad(error.to_string()))?;
    Ok(Wanted { group: new, stays_open: group.open, at })
}

/// The jobs that the groups of a request will add, without those of groups that are there already.
pub(super) async fn new_callbacks(app: &App, wanted: &[Wanted]) -> Result<Vec<turnwise_queue::NewJob>> {
    let mut jobs = Vec::new();
    for Wanted { group, .. } in wanted.iter().filter(|wanted| !wanted.group.callbacks.is_empty()) {
        let tx = app.store.begin().await?;
        if rows::get(&tx, &app.keys, &group.tenant, &group.name).await?.is_none() {
            jobs.extend(group.callbacks.values().map(|callback| callback.clone().job(&group.name)));
        }
    }
    Ok(jobs)
}

/// How long ended jobs are kept, in µs.
fn retention_us(app: &App) -> i64 {
    let us = app.config.get().jobs.retention.as_micros();
    i64::try_from(us).map_or(MAX_LIFETIME_US, |us| us.min(MAX_LIFETIME_US))
}

fn own_tenant(caller: &Caller) -> String {
    caller.only_tenant().unwrap_or(DEFAULT_TENANT).to_owned()
}

async fn callback(
    app: &App,
    caller: &Caller,
    tenant: &str,
    mut job: NewJob,
    at: &str,
) -> Result<CallbackJob> {
    for (name, is_stated) in [
        ("id", job.id.is_some()),
        ("delay_ms", job.delay_ms.is_some()),
        ("not_before_us", job.not_before_us.is_some()),
        ("after", !job.after.is_empty()),
        ("inputs", !job.inputs.is_empty()),
        ("unique", job.unique.is_some()),
        ("group", job.group.is_some()),
        ("count", job.count.is_some() || job.at_once.is_some()),
        ("if_exists", job.if_exists != IfExists::Keep),
    ] {
        if is_stated {
            return Err(V1Error::bad(format!("{at}{name}: belongs to no job of a group"), IN_GROUP));
        }
    }
    let _ = job.tenant.get_or_insert_with(|| tenant.to_owned());
    // Checked as if it were added now; the group makes the id.
    job.id = Some(app.new_uuid());
    let commands = match job.job_type == turnwise_command::JOB_TYPE {
        true => Commands::find(app).await?,
        false => Commands::Nowhere,
    };
    let states_locks = job.locks.is_some();
    let job = add::prepared(app, caller, &commands, job, app.now_us(), at)?;
    let turnwise_queue::NewJob { job_type, spec, options, priority, .. } = job;
    Ok(CallbackJob { template: Template { job_type, spec, priority, states_locks }, options })
}

/// The groups that an add creates, and closes when it has added all its jobs.
#[derive(Clone, Copy)]
pub(super) struct Making<'a> {
    pub groups: &'a [Wanted],
    /// Whether the next transaction is the first one of the add.
    pub begins: bool,
    /// Whether it may be the last one.
    pub ends: bool,
}

impl Making<'_> {
    /// Creates the groups, in the first transaction.
    pub async fn begin(&self, app: &App, tx: &Transaction, now_us: i64) -> Result<()> {
        for wanted in self.groups.iter().filter(|_| self.begins) {
            create(app, tx, wanted, now_us).await?;
        }
        Ok(())
    }

    /// Closes the groups, in the last transaction.
    pub async fn end(&self, app: &App, tx: &Transaction) -> Result<()> {
        for Wanted { group, stays_open, .. } in self.groups.iter().filter(|_| self.ends) {
            if *stays_open != Some(true) {
                rows::close(tx, &app.keys, &group.tenant, &group.name).await?;
            }
        }
        Ok(())
    }
}

async fn create(app: &App, tx: &Transaction, wanted: &Wanted, now_us: i64) -> Result<Created> {
    let created = rows::create(tx, &app.keys, &wanted.group, now_us).await;
    created.map_err(|error| match error {
        QueueError::Invalid { field: "groups", problem } => {
            V1Error::too_many(problem, "close groups that get no more jobs")
        }
        QueueError::Invalid { field: "group", problem } => {
            V1Error::conflict(codes::CONFLICT, problem, "choose another name, or repeat the same request")
        }
        error => V1Error::from(error).at(&wanted.at),
    })
}

fn no_group(tenant: &str, name: &str) -> V1Error {
    V1Error::not_found(
        format!("there is no group `{name}` of tenant `{tenant}`"),
        "GET /v1/groups lists those that this identity may read",
    )
}

/// A group that the caller may read. For others it does not exist.
pub(super) async fn readable(
    app: &App,
    caller: &Caller,
    tx: &Transaction,
    path: &GroupPath,
) -> Result<rows::Group> {
    let GroupPath { tenant, group } = path;
    let found = match caller.reads(tenant) {
        true => rows::get(tx, &app.keys, tenant, group).await?,
        false => None,
    };
    found.ok_or_else(|| no_group(tenant, group))
}

/// A group that the caller may change.
async fn changeable(app: &App, caller: &Caller, tx: &Transaction, path: &GroupPath) -> Result<rows::Group> {
    let group = readable(app, caller, tx, path).await?;
    if caller.writes(&path.tenant) { Ok(group) } else { Err(V1Error::read_only(&path.tenant)) }
}

/// The parameters of a listing of groups.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupsParams {
    /// Maximum number of groups in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// The `next` of the previous page.
    #[param(nullable = false, max_length = 6000)]
    after: Option<String>,
    /// Only groups of this tenant.
    #[param(value_type = Option<names::Name>, nullable = false)]
    tenant: Option<String>,
    /// Only groups in this state.
    #[param(inline, nullable = false)]
    state: Option<GroupState>,
    /// Only groups in a group of this name.
    #[param(value_type = Option<names::GroupName>, nullable = false)]
    parent: Option<String>,
}

/// Which groups a list has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Which<'a> {
    /// Of this tenant.
    pub tenant: Option<&'a str>,
    /// In this state.
    pub state: Option<GroupState>,
    /// In a group of this name.
    pub parent: Option<&'a str>,
}

/// List groups
///
/// Those that this identity may read, by tenant and name. A page may hold fewer than `limit` although a next page exists.
#[utoipa::path(
    get, path = "/groups", tag = "groups", operation_id = "list_groups", params(GroupsParams),
    responses((status = 200, body = Groups, description = "A page of groups."), Common),
)]
pub(super) async fn list_groups(call: Call, Params(query): Params<GroupsParams>) -> Result<Shown<Groups>> {
    let GroupsParams { limit, after, tenant, state, parent } = query;
    let which = Which { tenant: tenant.as_deref(), state, parent: parent.as_deref() };
    list(&call.app, &call.caller, limit, after.as_deref(), which).await.map(Shown)
}

/// A page of groups.
pub async fn list(
    app: &App,
    caller: &Caller,
    limit: usize,
    after: Option<&str>,
    Which { tenant, state, parent }: Which<'_>,
) -> Result<Groups> {
    check_limit(limit)?;
    tenant.map_or(Ok(()), |tenant| names::check_name("tenant", tenant))?;
    parent.map_or(Ok(()), |parent| names::check_group("parent", parent))?;
    let is_wanted = |group: &rows::Group| {
        let is_inside = |name: &str| group.parent.as_ref().is_some_and(|parent| parent.name == name);
        parent.is_none_or(is_inside) && state.is_none_or(|state| state_of(group) == state)
    };
    let after = position_text::read(app, caller, after.map(str::to_owned)).await?;
    // A name of a group has no slash.
    let split =
        |after: String| after.rsplit_once('/').map(|(tenant, name)| (tenant.to_owned(), name.to_owned()));
    let mut after = after.map(|after| split(after).ok_or_else(position_text::wrong)).transpose()?;
    let tx = app.store.begin().await?;
    let mut groups = Vec::new();
    let mut reads = 0;
    let has_more = 'list: loop {
        let from = after.as_ref().map(|(tenant, name)| (tenant.as_str(), name.as_str()));
        let batch = rows::list(&tx, &app.keys, from, tenant, BATCH).await?;
        let is_last = batch.len() < BATCH;
        for group in batch {
            if groups.len() == limit {
                break 'list true;
            }
            after = Some((group.tenant.clone(), group.name.clone()));
            if caller.reads(&group.tenant) && is_wanted(&group) {
                groups.push(shown(app, &tx, group).await?);
            }
        }
        reads += 1;
        if is_last || reads == MAX_READS {
            break !is_last;
        }
    };
    let next = after.filter(|_| has_more).map(|(tenant, name)| format!("{tenant}/{name}"));
    Ok(Groups { groups, next: position_text::shown(app, caller, next).await? })
}

/// Create a group
///
/// Jobs are added to it with `group`. It ends when it is closed and all its jobs have ended; then the server adds the job of `on_complete`, and that of
/// `on_success` if all have completed. Each of them is added exactly once, whatever fails. Conditions name the jobs of a group as `group = NAME`: so bulk operations
/// cancel or retry all of them, and filters pause them.
#[utoipa::path(
    post, path = "/groups", tag = "groups", operation_id = "create_group", request_body = NewGroup,
    responses(
        (status = 201, body = Group, description = "The group is new."),
        (status = 200, body = Group, description = "The group exists, and was created by the same request."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: a group of this name exists, and was created with other terms."),
        BadBody, Common,
    ),
)]
pub(super) async fn create_group(
    Call { app, caller, .. }: Call,
    Json(group): Json<NewGroup>,
) -> Result<(StatusCode, Shown<Group>)> {
    let wanted = &prepare(&app, &caller, group, String::new()).await?;
    let callbacks = new_callbacks(&app, std::slice::from_ref(wanted)).await?;
    let callbacks: Vec<_> = callbacks.iter().map(quota::Wanted::made).collect();
    let _adding = app.waiting_jobs.admit(&app, &caller, &callbacks).await?;
    let (app, now_us) = (&app, app.now_us());
    let created = app.store.transact(|tx| async move {
        let created = create(app, &tx, wanted, now_us).await?;
        if wanted.stays_open == Some(false) {
            rows::close(&tx, &app.keys, &wanted.group.tenant, &wanted.group.name).await?;
        }
        Ok::<_, V1Error>(created)
    });
    let status = if created.await? == Created::New { StatusCode::CREATED } else { StatusCode::OK };
    let path = GroupPath { tenant: wanted.group.tenant.clone(), group: wanted.group.name.clone() };
    Ok((status, Shown(one(app, &caller, &path).await?)))
}

/// Get a group
#[utoipa::path(
    get, path = "/groups/{tenant}/{group}", tag = "groups", operation_id = "get_group", params(GroupPath),
    responses(
        (status = 200, body = Group, description = "The group."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such group."),
        Common,
    ),
)]
pub(super) async fn get_group(Call { app, caller, path }: Call<GroupPath>) -> Result<Shown<Group>> {
    one(&app, &caller, &path).await.map(Shown)
}

/// The group of a job that the caller may read; none if it is gone.
pub async fn of_job(app: &App, tenant: &str, name: &str) -> Result<Option<Group>> {
    let tx = app.store.begin().await?;
    match rows::get(&tx, &app.keys, tenant, name).await? {
        Some(group) => Ok(Some(shown(app, &tx, group).await?)),
        None => Ok(None),
    }
}

/// A group that the caller may read.
pub async fn one(app: &App, caller: &Caller, path: &GroupPath) -> Result<Group> {
    let tx = app.store.begin().await?;
    let group = readable(app, caller, &tx, path).await?;
    shown(app, &tx, group).await
}

/// Close a group
///
/// No job can be added to it any more, so it ends with the last one that it has.
#[utoipa::path(
    post, path = "/groups/{tenant}/{group}/close", tag = "groups", operation_id = "close_group", params(GroupPath),
    request_body = Nothing,
    responses(
        (status = 200, body = Group, description = "The group is closed."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such group."),
        BadBody, Common,
    ),
)]
pub(super) async fn close_group(
    Call { app, caller, path }: Call<GroupPath>,
    _: NoBody,
) -> Result<Shown<Group>> {
    close(&app, &caller, &path).await?;
    one(&app, &caller, &path).await.map(Shown)
}

/// Closes a group.
pub async fn close(app: &App, caller: &Caller, path: &GroupPath) -> Result<()> {
    let closed = app.store.transact(|tx| async move {
        changeable(app, caller, &tx, path).await?;
        rows::close(&tx, &app.keys, &path.tenant, &path.group).await.map_err(V1Error::from)
    });
    closed.await.map(drop)
}

/// Remove a group
///
/// One that has ended. Its jobs stay.
#[utoipa::path(
    delete, path = "/groups/{tenant}/{group}", tag = "groups", operation_id = "remove_group", params(GroupPath),
    responses(
        (status = 200, body = RemovedGroup, description = "The group is removed."),
        (status = 404, body = turnwise_protocol::Error, description = "`not_found`: there is no such group."),
        (status = 409, body = turnwise_protocol::Error, description = "`conflict`: it has not ended, or some of its jobs were retried and have not ended."),
        Common,
    ),
)]
pub(super) async fn remove_group(Call { app, caller, path }: Call<GroupPath>) -> Result<Shown<RemovedGroup>> {
    remove(&app, &caller, &path).await?;
    Ok(Shown(RemovedGroup { removed: true }))
}

/// Removes a group.
pub async fn remove(app: &App, caller: &Caller, path: &GroupPath) -> Result<()> {
    let removed = app.store.transact(|tx| async move {
        changeable(app, caller, &tx, path).await?;
        rows::remove(&tx, &app.keys, &path.tenant, &path.group).await.map_err(V1Error::from)
    });
    match removed.await? {
        Removed::Now => Ok(()),
        Removed::NotEnded => Err(V1Error::conflict(
            codes::CONFLICT,
            format!("the group `{}` has jobs that have not ended, or is open", path.group),
            "close it, and cancel its jobs (`group = NAME`)",
        )),
    }
}

pub(super) async fn shown(app: &App, tx: &Transaction, group: rows::Group) -> Result<Group> {
    let counts = shown_counts(rows::counts(tx, &app.keys, &group).await?);
    let state = state_of(&group);
    let called = |called: rows::Called| CalledJob {
        on: shown_on(called.on),
        job_type: called.job_type,
        id: called.id,
        at_us: called.at_us,
        reason: called.refused,
    };
    Ok(Group {
        name: group.name,
        tenant: group.tenant,
        state,
        counts,
        parent: group.parent.map(|parent| parent.name),
        at_once: group.at_once,
        keep_ms: ms(Some(group.keep_us)).unwrap_or_default(),
        callbacks: group.callbacks.into_iter().map(shown_on).collect(),
        called: group.called.into_iter().map(called).collect(),
        ended_us: group.ended.as_ref().map(|ended| ended.at_us),
        ended_counts: group.ended.map(|GroupEnd { counts, .. }| shown_counts(counts)),
        retried: group.retried,
        removed_us: group.removed_us,
        by: group.by.as_deref().map(shown_owner),
        created_us: group.created_us,
    })
}

fn state_of(group: &rows::Group) -> GroupState {
    match (&group.ended, group.open) {
        (Some(ended), _) => same!(ended.end(), End => GroupState: Completed Failed Cancelled),
        (None, true) => GroupState::Open,
        (None, false) => GroupState::Closed,
    }
}
