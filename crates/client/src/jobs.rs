//! What clients do with jobs.

use std::marker::PhantomData;
use std::time::Duration;

use reqwest::Method;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use turnwise_protocol::names::{check_id, check_type};
use turnwise_protocol::{
    AddJob, AddJobs, Added, AddedJob, AddedJobs, After, Cancelled, DocumentWhy, IfExists, Job, Jobs, Locker,
    Lockers, MAX_WAIT_MS, NewJob, Nodes, Prioritized, Queue, Removed, Retried, RetriedJobs, RetriedState,
    SetPriority, State, Tenant, TenantOrder, Tenants, Types, WaitAnswer, Why, Worker, Workers,
};

use crate::client::{Repeat, Request};
use crate::{Client, Result};

/// One request waits on the server for at most this long: what stands between may cut connections that are still for longer.
const WAIT_PER_REQUEST: Duration = Duration::from_secs(60);
/// For less where there are other servers: one that hangs is noticed by its silence after the wait.
const WAIT_AMONG_SERVERS: Duration = Duration::from_secs(10);

/// A server may let nobody wait for long (`[jobs] max_wait`); it is not asked more often than this.
pub(crate) const SHORTEST_WAIT: Duration = Duration::from_millis(500);

/// Which jobs to list.
#[derive(Debug, Clone, Default)]
pub struct ListJobs {
    /// Of this type only.
    pub job_type: Option<String>,
    /// In this state only.
    pub state: Option<State>,
    /// Of this tenant only.
    pub tenant: Option<String>,
    /// In a page at most; the server has a limit of its own.
    pub page: Option<usize>,
}

/// Which workers to list.
#[derive(Debug, Clone, Default)]
pub struct ListWorkers {
    /// Of this type only.
    pub job_type: Option<String>,
}

/// Which locks to list.
#[derive(Debug, Clone, Default)]
pub struct ListLocks {
    /// Of this level only; `big_lock` is the one before all levels.
    pub level: Option<String>,
    /// Of resources of this name only, and of all of their levels.
    pub name: Option<String>,
    /// In a page at most; the server has a limit of its own.
    pub page: Option<usize>,
}

/// Which tenants to list.
#[derive(Debug, Clone, Default)]
pub struct ListTenants {
    /// As far as jobs of this type are concerned only.
    pub job_type: Option<String>,
    /// How they are sorted. Unless it is by name, there is one page only.
    pub order: TenantOrder,
    /// In a page at most; the server has a limit of its own.
    pub page: Option<usize>,
}

impl ListTenants {
    fn request(self) -> Request {
        let ListTenants { job_type, order, page } = self;
        Request::new(Method::GET, &["tenants"])
            .query("type", job_type)
            .query("order", Some(order_name(order)))
            .query("limit", page)
    }
}

/// What adding a job has done, if an attempt did that was not heard of.
fn fresh(after: &[After], delayed: bool) -> Added {
    match delayed {
        _ if !after.is_empty() => Added::Blocked,
        true => Added::Delayed,
        false => Added::Queued,
    }
}

impl Client {
    /// Adds a job. Without an id it gets one here, so that the request can be repeated: the job is added once. A job that is
    /// there stays as it is, unless `if_exists` says otherwise; such a request is repeated only while it cannot have taken effect.
    ///
    /// # Errors
    /// It is refused, or the server does not answer.
    pub async fn add(&self, job_type: &str, mut job: AddJob) -> Result<AddedJob> {
        check_type(job_type)?;
        let fresh = fresh(&job.after, job.delay_ms.is_some() || job.not_before_us.is_some());
        let own_id = job.id.is_none();
        let id = job.id.get_or_insert_with(new_id);
        check_id(id)?;
        let repeat = repeat(job.if_exists);
        let request = Request::new(Method::POST, &["jobs", job_type]).json(&job)?;
        let (added, repeated) = self.call_knowing::<AddedJob>(&request, repeat).await;
        let mut added = added?;
        if repeated && own_id && added.added == Added::Exists {
            // It is there because an earlier attempt has added it.
            added.added = fresh;
        }
        Ok(added)
    }

    /// Adds many jobs: all of them or none, where the store takes them in one transaction (`POST /v1/jobs` says how many each takes).
    /// At most 1,000, in 8 MB. Ids and repetition as with [`Client::add`].
    ///
    /// # Errors
    /// One of them is refused, or the server does not answer.
    pub async fn add_many(&self, mut jobs: Vec<NewJob>) -> Result<Vec<AddedJob>> {
        let mut made = Vec::with_capacity(jobs.len());
        for job in &mut jobs {
            check_type(&job.job_type)?;
            let fresh = fresh(&job.after, job.delay_ms.is_some() || job.not_before_us.is_some());
            made.push(job.id.is_none().then_some(fresh));
            check_id(job.id.get_or_insert_with(new_id))?;
        }
        let again = jobs.iter().any(|job| job.if_exists == IfExists::Again);
        let repeat = repeat(if again { IfExists::Again } else { IfExists::Keep });
        let request = Request::new(Method::POST, &["jobs"]).json(&AddJobs { jobs })?;
        let (added, repeated) = self.call_knowing::<AddedJobs>(&request, repeat).await;
        let mut added = added?.jobs;
        for (added, made) in added.iter_mut().zip(made) {
            if let (true, Some(fresh), Added::Exists) = (repeated, made, added.added) {
                added.added = fresh;
            }
        }
        Ok(added)
    }

    /// A job.
    ///
    /// # Errors
    /// There is none ([`Error::is_not_found`](crate::Error::is_not_found)), or the server does not answer.
    pub async fn get(&self, job_type: &str, id: &str) -> Result<Job> {
        self.call(&about(Method::GET, job_type, id, None)?, Repeat::Harmless).await
    }

    /// Jobs, sorted by type and id, a page at a time.
    pub fn list(&self, which: ListJobs) -> Pages<Jobs> {
        let ListJobs { job_type, state, tenant, page } = which;
        let state = state.map(state_name);
        let request = Request::new(Method::GET, &["jobs"])
            .query("type", job_type)
            .query("state", state)
            .query("tenant", tenant)
            .query("limit", page);
        Pages::new(self.clone(), request)
    }

    /// Workers, sorted by type and id, a page at a time.
    pub fn workers(&self, which: ListWorkers) -> Pages<Workers> {
        let request = Request::new(Method::GET, &["workers"]).query("type", which.job_type);
        Pages::new(self.clone(), request)
    }

    /// Who holds locks, waits for them, or has reserved them, by level and name, a page at a time.
    pub fn locks(&self, which: ListLocks) -> Pages<Lockers> {
        let ListLocks { level, name, page } = which;
        let request = Request::new(Method::GET, &["locks"]);
        Pages::new(self.clone(), request.query("level", level).query("name", name).query("limit", page))
    }

    /// Tenants, a page at a time.
    pub fn tenants(&self, which: ListTenants) -> Pages<Tenants> {
        Pages::new(self.clone(), which.request())
    }

    /// The first page of tenants, with what is known of their types.
    ///
    /// # Errors
    /// It is refused, or the server does not answer.
    pub async fn first_tenants(&self, which: ListTenants) -> Result<Tenants> {
        self.call(&which.request(), Repeat::Harmless).await
    }

    /// The jobs that have not ended, in the order in which they run, up to `limit` of each type; of the first types, if there are many.
    ///
    /// # Errors
    /// It is refused, or the server does not answer.
    pub async fn queue(&self, job_type: Option<&str>, limit: usize) -> Result<Queue> {
        let request =
            Request::new(Method::GET, &["queue"]).query("type", job_type).query("limit", Some(limit));
        self.call(&request, Repeat::Harmless).await
    }

    /// Why a job stands where it does, and when it can be expected.
    ///
    /// # Errors
    /// There is no such job, or the server does not answer.
    pub async fn why(&self, job_type: &str, id: &str) -> Result<Why> {
        self.call(&about(Method::GET, job_type, id, Some("why"))?, Repeat::Harmless).await
    }

    /// The same of the replication of a document.
    ///
    /// # Errors
    /// There is no such document, it is no replication, or the server does not answer.
    pub async fn why_document(&self, db: &str, id: &str) -> Result<DocumentWhy> {
        let request = Request::new(Method::GET, &["documents", db, id, "why"]);
        self.call(&request, Repeat::Harmless).await
    }

    /// The nodes: the servers that share the server's store.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn nodes(&self) -> Result<Nodes> {
        self.call(&Request::new(Method::GET, &["nodes"]), Repeat::Harmless).await
    }

    /// The job types that have jobs.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn types(&self) -> Result<Vec<String>> {
        let (mut all, mut after) = (Vec::new(), None::<String>);
        loop {
            let request = Request::new(Method::GET, &["types"]).query("after", after);
            let Types { types, next } = self.call(&request, Repeat::Harmless).await?;
            all.extend(types);
            let Some(next) = next else { return Ok(all) };
            after = Some(next);
        }
    }

    /// Waits until a job has ended, for at most this long; for ever if there is no timeout. A server that restarts meanwhile
    /// is waited for.
    ///
    /// # Errors
    /// There is no such job, or the server does not answer.
    pub async fn wait(&self, job_type: &str, id: &str, timeout: Option<Duration>) -> Result<WaitAnswer> {
        let started = Instant::now();
        let longest = if self.servers.len() > 1 { WAIT_AMONG_SERVERS } else { WAIT_PER_REQUEST };
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            let wait = left.unwrap_or(longest).min(longest);
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(MAX_WAIT_MS).min(MAX_WAIT_MS);
            let request = about(Method::GET, job_type, id, Some("wait"))?;
            let request = request.query("timeout_ms", Some(wait_ms)).waiting(wait);
            let asked = Instant::now();
            let answer: WaitAnswer = self.call(&request, Repeat::Harmless).await?;
            if answer.finished || timeout.is_some_and(|timeout| started.elapsed() >= timeout) {
                return Ok(answer);
            }
            tokio::time::sleep_until(asked + SHORTEST_WAIT.min(wait)).await;
        }
    }

    /// Cancels a job. The state that it has now is `running` if its worker still has to stop it.
    ///
    /// # Errors
    /// There is no such job, it belongs to a replication document, or the server does not answer.
    pub async fn cancel(&self, job_type: &str, id: &str) -> Result<State> {
        let request = about(Method::POST, job_type, id, Some("cancel"))?;
        self.call::<Cancelled>(&request, Repeat::Harmless).await.map(|cancelled| cancelled.state)
    }

    /// Ends the wait of a job that is crashing, delayed or blocked, or runs one that has failed or was cancelled once more, with what it was
    /// added with: it is pending at once. Tells whether it was in one of these states, and its state now.
    ///
    /// # Errors
    /// There is no such job, it is a replication that has ended, or the server does not answer.
    pub async fn retry(&self, job_type: &str, id: &str) -> Result<Retried> {
        self.call(&about(Method::POST, job_type, id, Some("retry"))?, Repeat::Harmless).await
    }

    /// Gives a job another priority class, -20 (first of its tenant's) to 19: whether it has it now, and its state.
    ///
    /// # Errors
    /// It is no class, there is no such job, or the server does not answer.
    pub async fn set_priority(&self, job_type: &str, id: &str, priority: i32) -> Result<Prioritized> {
        let request = about(Method::PUT, job_type, id, Some("priority"))?.json(&SetPriority { priority })?;
        self.call(&request, Repeat::Harmless).await
    }

    /// [`retry`](Client::retry) for all jobs in a state, of a type, of a tenant, or of both: how many jobs, and how many replication
    /// documents in state `error`.
    ///
    /// # Errors
    /// Neither a type nor a tenant is given, or the server does not answer. What was done until then stays done.
    pub async fn retry_all(
        &self,
        job_type: Option<&str>,
        tenant: Option<&str>,
        state: RetriedState,
    ) -> Result<(u64, u64)> {
        if let Some(job_type) = job_type {
            check_type(job_type)?;
        }
        let state = match state {
            RetriedState::Crashing => "crashing",
            RetriedState::Failed => "failed",
            RetriedState::Cancelled => "cancelled",
        };
        let (mut jobs, mut documents, mut after) = (0, 0, None);
        loop {
            let request = Request::new(Method::POST, &["retry"])
                .query("type", job_type)
                .query("tenant", tenant)
                .query("state", Some(state))
                .query("after", after);
            let page: RetriedJobs = self.call(&request, Repeat::Harmless).await?;
            jobs += page.jobs;
            documents += page.documents;
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok((jobs, documents)),
            }
        }
    }

    /// Removes a job. Whether it is gone; otherwise it goes as soon as its worker has stopped it.
    ///
    /// # Errors
    /// As with [`Client::cancel`].
    pub async fn remove(&self, job_type: &str, id: &str) -> Result<bool> {
        let request = about(Method::DELETE, job_type, id, None)?;
        match self.call_knowing::<Removed>(&request, Repeat::Harmless).await {
            (Ok(removed), _) => Ok(removed.removed),
            // It is gone because an earlier attempt has removed it.
            (Err(error), true) if error.is_not_found() => Ok(true),
            (Err(error), _) => Err(error),
        }
    }
}

/// A page of a listing.
pub trait Page: DeserializeOwned {
    /// What is listed.
    type Row;

    /// The rows, and where the next page begins.
    fn into_parts(self) -> (Vec<Self::Row>, Option<String>);
}

impl Page for Jobs {
    type Row = Job;

    fn into_parts(self) -> (Vec<Job>, Option<String>) {
        (self.jobs, self.next)
    }
}

impl Page for Workers {
    type Row = Worker;

    fn into_parts(self) -> (Vec<Worker>, Option<String>) {
        (self.workers, self.next)
    }
}

impl Page for Lockers {
    type Row = Locker;

    fn into_parts(self) -> (Vec<Locker>, Option<String>) {
        (self.locks, self.next)
    }
}

impl Page for Tenants {
    type Row = Tenant;

    fn into_parts(self) -> (Vec<Tenant>, Option<String>) {
        (self.tenants, self.next)
    }
}

/// A listing, page by page.
pub struct Pages<P> {
    client: Client,
    request: Request,
    after: Option<String>,
    done: bool,
    page: PhantomData<fn() -> P>,
}

impl<P: Page> Pages<P> {
    fn new(client: Client, request: Request) -> Self {
        Pages { client, request, after: None, done: false, page: PhantomData }
    }

    /// Whether there may be a next page.
    pub fn has_next(&self) -> bool {
        !self.done
    }

    /// The first `limit` rows of all pages together, and whether there may be more.
    ///
    /// # Errors
    /// As [`Pages::next`].
    pub async fn collect(mut self, limit: usize) -> Result<(Vec<P::Row>, bool)> {
        let mut rows = Vec::new();
        while rows.len() < limit
            && let Some(page) = self.next().await?
        {
            rows.extend(page);
        }
        let more = rows.len() > limit || self.has_next();
        rows.truncate(limit);
        Ok((rows, more))
    }

    /// The next page, which may be empty; `None` after the last.
    ///
    /// # Errors
    /// The server refuses it or does not answer.
    pub async fn next(&mut self) -> Result<Option<Vec<P::Row>>> {
        if self.done {
            return Ok(None);
        }
        let request = self.request.clone().query("after", self.after.as_ref());
        let page: P = self.client.call(&request, Repeat::Harmless).await?;
        let (rows, next) = page.into_parts();
        self.done = next.is_none();
        self.after = next;
        Ok(Some(rows))
    }
}

/// A request about a job.
pub(crate) fn about(method: Method, job_type: &str, id: &str, what: Option<&str>) -> Result<Request> {
    check_type(job_type)?;
    check_id(id)?;
    let segments: Vec<&str> = ["jobs", job_type, id].into_iter().chain(what).collect();
    Ok(Request::new(method, &segments))
}

fn repeat(if_exists: IfExists) -> Repeat {
    match if_exists {
        IfExists::Keep => Repeat::Harmless,
        // The job may have ended between the two attempts, and would run twice.
        IfExists::Again => Repeat::IfUnsent,
    }
}

fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

fn order_name(order: TenantOrder) -> &'static str {
    match order {
        TenantOrder::Name => "name",
        TenantOrder::Owed => "owed",
        TenantOrder::Usage => "usage",
        TenantOrder::Running => "running",
        TenantOrder::Service => "service",
    }
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Pending => "pending",
        State::Delayed => "delayed",
        State::Blocked => "blocked",
        State::Paused => "paused",
        State::Limited => "limited",
        State::Running => "running",
        State::Waiting => "waiting",
        State::Crashing => "crashing",
        State::Completed => "completed",
        State::Failed => "failed",
        State::Cancelled => "cancelled",
    }
}
