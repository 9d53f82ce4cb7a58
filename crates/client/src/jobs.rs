//! Requests about jobs, tenants, locks, workers and nodes.

use std::time::Duration;

use reqwest::Method;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use turnwise_protocol::names::{check_id, check_type};
use turnwise_protocol::{
    AddJob, AddJobs, Added, AddedJob, AddedJobs, After, Cancelled, ChangedNode, CountBy, CountPage,
    CountedJobs, Demand, DocumentWhy, EditJob, Failures, HeldJob, IfExists, Index, Indexes, Job, Jobs,
    ListOrder, Locker, Lockers, Mode, NewJob, Nodes, OnConflict, Prioritized, Queue, Removed, Retried,
    RetryJob, SetMode, SetPriority, State, Tenant, TenantOrder, Tenants, Types, Unique, WaitAnswer, Why,
    Worker, Workers,
};

use crate::client::{Repeat, Request};
use crate::{Client, Result};

/// How long one request waits on the server at most: many gateways cut a request that is not answered for 30 or 60 s.
const WAIT_PER_REQUEST: Duration = Duration::from_secs(25);
/// A shorter wait where there are other servers: a server that hangs is noticed only after the wait.
const WAIT_AMONG_SERVERS: Duration = Duration::from_secs(10);

/// A server may limit waits to less (`[jobs] max_wait`). The client repeats the request no sooner than this.
pub(crate) const SHORTEST_WAIT: Duration = Duration::from_millis(500);

/// A selection of jobs to list.
#[derive(Debug, Clone, Default)]
pub struct ListJobs {
    /// Only jobs of this type.
    pub job_type: Option<String>,
    /// Only jobs in this state.
    pub state: Option<State>,
    /// Only jobs of this tenant.
    pub tenant: Option<String>,
    /// Only jobs with this tag.
    pub tag: Option<String>,
    /// Only jobs whose reason, why they failed, crashed or were cancelled, is of this class.
    pub reason_class: Option<String>,
    /// Only jobs that meet this condition.
    pub condition: Option<String>,
    /// Which jobs come first.
    pub order: Option<ListOrder>,
    /// The largest page; the server has its own limit.
    pub page: Option<usize>,
}

/// A selection of locks to list.
#[derive(Debug, Clone, Default)]
pub struct ListLocks {
    /// Only locks of this level; `big_lock` selects the big lock, which precedes all levels.
    pub level: Option<String>,
    /// Only locks of resources with this name, at any level.
    pub name: Option<String>,
    /// The largest page; the server has its own limit.
    pub page: Option<usize>,
}

/// A selection of indexes to list.
#[derive(Debug, Clone, Default)]
pub struct ListIndexes {
    /// Only indexes of this server.
    pub server: Option<String>,
    /// Only indexes of this database.
    pub database: Option<String>,
    /// Only indexes of this tenant.
    pub tenant: Option<String>,
    /// The largest page; the server has its own limit.
    pub page: Option<usize>,
}

/// A selection of tenants to list.
#[derive(Debug, Clone, Default)]
pub struct ListTenants {
    /// Only tenants with jobs of this type, and only those jobs.
    pub job_type: Option<String>,
    /// The order. Only the order by name has more than one page.
    pub order: TenantOrder,
    /// The largest page; the server has its own limit.
    pub page: Option<usize>,
}

impl ListTenants {
    fn request(self) -> Request {
        let ListTenants { job_type, order, page } = self;
        Request::new(Method::GET, &["tenants"])
            .query("type", job_type)
            .query("order", Some(order.as_str()))
            .query("limit", page)
    }
}

/// Which jobs to count.
#[derive(Debug, Clone, Default)]
pub struct CountJobs {
    /// Only jobs of this type.
    pub job_type: Option<String>,
    /// Only jobs of this tenant.
    pub tenant: Option<String>,
    /// Together, or per tenant.
    pub by: CountBy,
    /// The largest page; the server has its own limit.
    pub page: Option<usize>,
}

/// The result of adding a job, where an earlier attempt added it but its answer was lost.
fn fresh(after: &[After], delayed: bool) -> Added {
    match delayed {
        _ if !after.is_empty() => Added::Blocked,
        true => Added::Delayed,
        false => Added::Queued,
    }
}

/// Whether a request may let the job run again that has the unique key.
fn runs_again(unique: Option<&Unique>) -> bool {
    unique.is_some_and(|unique| unique.on_conflict == OnConflict::After)
}

impl Client {
    /// Adds a job. A job without an id gets one here, so that the client can repeat the request, and the job is added
    /// only once. An existing job is kept, unless `if_exists` is [`IfExists::Again`]; the client repeats such a request, and one whose unique key may let
    /// another job run again, only while it cannot have taken effect. If another job has the unique key, the answer has that job's id.
    ///
    /// # Errors
    /// The server refuses the job, or does not answer.
    pub async fn add(&self, job_type: &str, mut job: AddJob) -> Result<AddedJob> {
        check_type(job_type)?;
        let fresh = fresh(&job.after, job.delay_ms.is_some() || job.not_before_us.is_some());
        let own_id = job.id.is_none();
        let id = job.id.get_or_insert_with(new_id);
        check_id(id)?;
        let repeat = repeat(job.if_exists == IfExists::Again || runs_again(job.unique.as_ref()));
        let request = Request::new(Method::POST, &["jobs", job_type]).json(&job)?;
        let (added, repeated) = self.call_knowing::<AddedJob>(&request, repeat).await;
        let mut added = added?;
        if repeated && own_id && added.added == Added::Exists {
            // The job exists because an earlier attempt added it.
            added.added = fresh;
        }
        Ok(added)
    }

    /// Adds many jobs: all or none, if they fit into one transaction of the store (`POST /v1/jobs` states how many fit). At most
    /// 1,000 jobs and 8 MB. Ids and retries work as with [`Client::add`].
    ///
    /// # Errors
    /// The server refuses one of the jobs, or does not answer.
    pub async fn add_many(&self, jobs: Vec<NewJob>) -> Result<Vec<AddedJob>> {
        self.add_together(AddJobs { jobs, groups: Vec::new(), whole: false }).await
    }

    /// Adds many jobs, the groups that they name, or a graph whose jobs refer to each other. The groups are created first, and closed at the end
    /// unless they stay open. Of an array (`count`), the answer has each of its jobs.
    ///
    /// # Errors
    /// The server refuses one of the jobs or groups, or does not answer. With `whole`, also: the jobs are too many for one transaction of the
    /// store, or another job has the unique key of one of them.
    pub async fn add_together(&self, mut request: AddJobs) -> Result<Vec<AddedJob>> {
        let jobs = &mut request.jobs;
        let mut made = Vec::with_capacity(jobs.len());
        for job in jobs.iter_mut() {
            check_type(&job.job_type)?;
            let fresh = fresh(&job.after, job.delay_ms.is_some() || job.not_before_us.is_some());
            for _ in 0..job.count.unwrap_or(1) {
                made.push(job.id.is_none().then_some(fresh));
            }
            check_id(job.id.get_or_insert_with(new_id))?;
        }
        let repeat = repeat(
            jobs.iter().any(|job| job.if_exists == IfExists::Again || runs_again(job.unique.as_ref())),
        );
        let request = Request::new(Method::POST, &["jobs"]).json(&request)?;
        let (added, repeated) = self.call_knowing::<AddedJobs>(&request, repeat).await;
        let mut added = added?.jobs;
        for (added, made) in added.iter_mut().zip(made) {
            if let (true, Some(fresh), Added::Exists) = (repeated, made, added.added) {
                added.added = fresh;
            }
        }
        Ok(added)
    }

    /// Reads a job.
    ///
    /// # Errors
    /// There is no such job ([`Error::is_not_found`](crate::Error::is_not_found)), or the server does not answer.
    pub async fn get(&self, job_type: &str, id: &str) -> Result<Job> {
        self.call(&about(Method::GET, job_type, id, None)?, Repeat::Harmless).await
    }

    /// Jobs in pages: without a condition, state, tenant, tag, reason class and order, sorted by type and id; otherwise the newest first.
    pub fn list(&self, which: ListJobs) -> Pages<Jobs, Job> {
        let ListJobs { job_type, state, tenant, tag, reason_class, condition, order, page } = which;
        let request = Request::new(Method::GET, &["jobs"])
            .query("type", job_type)
            .query("state", state.map(State::as_str))
            .query("tenant", tenant)
            .query("tag", tag)
            .query("reason_class", reason_class)
            .query("where", condition)
            .query("order", order.map(ListOrder::as_str))
            .query("limit", page);
        Pages::new(self, request, |page: Jobs| (page.jobs, page.next))
    }

    /// Failed jobs of a type and a tenant, or of all, by the class of their reason.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn failures(
        &self,
        job_type: Option<&str>,
        tenant: Option<&str>,
        task: Option<&str>,
    ) -> Result<Failures> {
        let request = Request::new(Method::GET, &["failures"]).query("type", job_type);
        self.call(&request.query("tenant", tenant).query("task", task), Repeat::Harmless).await
    }

    /// Workers of a type, or of all, sorted by type and id, in pages.
    pub fn workers(&self, job_type: Option<&str>) -> Pages<Workers, Worker> {
        let request = Request::new(Method::GET, &["workers"]).query("type", job_type);
        Pages::new(self, request, |page: Workers| (page.workers, page.next))
    }

    /// The jobs that hold, wait for, or have reserved locks, by level and name, in pages.
    pub fn locks(&self, which: ListLocks) -> Pages<Lockers, Locker> {
        let ListLocks { level, name, page } = which;
        let request = Request::new(Method::GET, &["locks"]).query("level", level).query("name", name);
        Pages::new(self, request.query("limit", page), |page: Lockers| (page.locks, page.next))
    }

    /// The indexes of CouchDB servers that turnwise keeps up to date, in pages.
    pub fn indexes(&self, which: ListIndexes) -> Pages<Indexes, Index> {
        let ListIndexes { server, database, tenant, page } = which;
        let request =
            Request::new(Method::GET, &["indexes"]).query("server", server).query("database", database);
        let request = request.query("tenant", tenant).query("limit", page);
        Pages::new(self, request, |page: Indexes| (page.indexes, page.next))
    }

    /// Numbers of jobs by state, in pages.
    pub fn counts(&self, which: CountJobs) -> Pages<CountPage, CountedJobs> {
        let CountJobs { job_type, tenant, by, page } = which;
        let request = Request::new(Method::GET, &["counts"]).query("type", job_type).query("tenant", tenant);
        let request = request.query("by", Some(by.as_str())).query("limit", page);
        Pages::new(self, request, |page: CountPage| (page.counts, page.next))
    }

    /// How many slots the jobs of a type need, so that what could run has started within `drain_target`; by default, within a minute.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer.
    pub async fn demand(&self, job_type: &str, drain_target: Option<Duration>) -> Result<Demand> {
        let request = Request::new(Method::GET, &["types", job_type, "demand"]);
        let target_ms = drain_target.map(|target| target.as_millis());
        self.call(&request.query("drain_target_ms", target_ms), Repeat::Harmless).await
    }

    /// Tenants, in pages.
    pub fn tenants(&self, which: ListTenants) -> Pages<Tenants, Tenant> {
        Pages::new(self, which.request(), |page: Tenants| (page.tenants, page.next))
    }

    /// The first page of tenants, with a summary of their job types.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer.
    pub async fn first_tenants(&self, which: ListTenants) -> Result<Tenants> {
        self.call(&which.request(), Repeat::Harmless).await
    }

    /// The jobs that have not ended, in the order in which they run, up to `limit` of each type. If there are many
    /// types, only the first.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer.
    pub async fn queue(&self, job_type: Option<&str>, limit: usize) -> Result<Queue> {
        let request =
            Request::new(Method::GET, &["queue"]).query("type", job_type).query("limit", Some(limit));
        self.call(&request, Repeat::Harmless).await
    }

    /// Why a job is in its state and at its place in the queue, and when it is expected to start or end.
    ///
    /// # Errors
    /// There is no such job, or the server does not answer.
    pub async fn why(&self, job_type: &str, id: &str) -> Result<Why> {
        self.call(&about(Method::GET, job_type, id, Some("why"))?, Repeat::Harmless).await
    }

    /// Like [`Client::why`], for the replication of a document.
    ///
    /// # Errors
    /// There is no such document, it describes no replication, or the server does not answer.
    pub async fn why_document(&self, db: &str, id: &str) -> Result<DocumentWhy> {
        self.read(&["documents", db, id, "why"]).await
    }

    /// The nodes: all servers on the server's store.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn nodes(&self) -> Result<Nodes> {
        self.read(&["nodes"]).await
    }

    /// Quiets, drains or resumes a worker.
    ///
    /// # Errors
    /// No such worker is registered, this identity may not do it, or the server does not answer.
    pub async fn set_worker_mode(&self, job_type: &str, worker: &str, mode: Mode) -> Result<Worker> {
        self.put(&["workers", job_type, worker], &SetMode { mode }).await
    }

    /// Quiets, drains or resumes the workers inside a node, also after its restart.
    ///
    /// # Errors
    /// There is no such node, this identity may not do it, or the server does not answer.
    pub async fn set_node_mode(&self, node: &str, mode: Mode) -> Result<ChangedNode> {
        self.put(&["nodes", node], &SetMode { mode }).await
    }

    /// The job types that have jobs.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn types(&self) -> Result<Vec<String>> {
        let request = Request::new(Method::GET, &["types"]);
        Pages::new(self, request, |page: Types| (page.types, page.next)).all().await
    }

    /// Waits until a job has ended, but no longer than `timeout`; without one, forever. If the server restarts
    /// meanwhile, the client waits for it. A gateway that cuts requests does not end the wait.
    ///
    /// # Errors
    /// There is no such job, or the server does not answer.
    pub async fn wait(&self, job_type: &str, id: &str, timeout: Option<Duration>) -> Result<WaitAnswer> {
        let started = Instant::now();
        let longest = if self.servers.len() > 1 { WAIT_AMONG_SERVERS } else { WAIT_PER_REQUEST };
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            let wait = left.unwrap_or(longest).min(longest);
            let request = about(Method::GET, job_type, id, Some("wait"))?.waiting_up_to(wait, "timeout_ms");
            let asked = Instant::now();
            let answer: WaitAnswer = self.call(&request, Repeat::Harmless).await?;
            if answer.finished || timeout.is_some_and(|timeout| started.elapsed() >= timeout) {
                return Ok(answer);
            }
            tokio::time::sleep_until(asked + SHORTEST_WAIT.min(wait)).await;
        }
    }

    /// Cancels a job, and returns its state now: still `running` until its worker has stopped it.
    ///
    /// # Errors
    /// There is no such job, it belongs to a replication document, or the server does not answer.
    pub async fn cancel(&self, job_type: &str, id: &str) -> Result<State> {
        let request = about(Method::POST, job_type, id, Some("cancel"))?;
        self.call::<Cancelled>(&request, Repeat::Harmless).await.map(|cancelled| cancelled.state)
    }

    /// Makes a job pending immediately. A crashing, delayed or blocked job waits no longer. A failed or cancelled job
    /// runs again with its original options. Returns whether the job was in one of these states, and its state now.
    ///
    /// # Errors
    /// There is no such job, it is a replication that has ended, or the server does not answer.
    pub async fn retry(&self, job_type: &str, id: &str) -> Result<Retried> {
        self.call(&about(Method::POST, job_type, id, Some("retry"))?, Repeat::Harmless).await
    }

    /// Like [`Client::retry`], and the jobs that were cancelled because of its end wait again for what they waited for, and so do those after them.
    ///
    /// # Errors
    /// As with [`Client::retry`].
    pub async fn retry_with_dependents(&self, job_type: &str, id: &str) -> Result<Retried> {
        let request = about(Method::POST, job_type, id, Some("retry"))?;
        let request = request.json(&RetryJob { with_dependents: true })?;
        self.call(&request, Repeat::Harmless).await
    }

    /// Sets a job's priority, from -20 (first among its tenant's jobs) to 19. Returns whether the job has that
    /// priority now, and its state.
    ///
    /// # Errors
    /// The priority is out of range, there is no such job, or the server does not answer.
    pub async fn set_priority(&self, job_type: &str, id: &str, priority: i32) -> Result<Prioritized> {
        let request = about(Method::PUT, job_type, id, Some("priority"))?.json(&SetPriority { priority })?;
        self.call(&request, Repeat::Harmless).await
    }

    /// Changes a job that does not run, and returns it. With a `version` ([`Job::version`]), only if nothing else has changed the job since; the client then repeats
    /// the request only while it cannot have taken effect.
    ///
    /// # Errors
    /// The server refuses the change, the job runs or has ended, it has another version, or the server does not answer.
    pub async fn edit(&self, job_type: &str, id: &str, edit: &EditJob, version: Option<&str>) -> Result<Job> {
        let request = about(Method::PATCH, job_type, id, None)?.json(edit)?;
        let request = request.if_match(version);
        self.call(&request, if version.is_some() { Repeat::IfUnsent } else { Repeat::Harmless }).await
    }

    /// Takes a waiting job out of the queue until it is released. Returns its state, and who holds it.
    ///
    /// # Errors
    /// The job runs, waits for other jobs, or has ended; there is no such job, or the server does not answer.
    pub async fn hold(&self, job_type: &str, id: &str) -> Result<HeldJob> {
        self.call(&about(Method::POST, job_type, id, Some("hold"))?, Repeat::Harmless).await
    }

    /// Releases a held job. A job that no one holds is unchanged. Returns its state, and the filter that pauses it.
    ///
    /// # Errors
    /// An operator holds the job and this identity is none, there is no such job, or the server does not answer.
    pub async fn release(&self, job_type: &str, id: &str) -> Result<HeldJob> {
        self.call(&about(Method::POST, job_type, id, Some("release"))?, Repeat::Harmless).await
    }

    /// Removes a job. Returns whether it is gone; if not, it goes as soon as its worker has stopped it.
    ///
    /// # Errors
    /// As with [`Client::cancel`].
    pub async fn remove(&self, job_type: &str, id: &str) -> Result<bool> {
        let request = about(Method::DELETE, job_type, id, None)?;
        match self.call_knowing::<Removed>(&request, Repeat::Harmless).await {
            (Ok(removed), _) => Ok(removed.removed),
            // The job is gone because an earlier attempt removed it.
            (Err(error), true) if error.is_not_found() => Ok(true),
            (Err(error), _) => Err(error),
        }
    }
}

/// A list of rows, page by page.
pub struct Pages<P, T> {
    client: Client,
    request: Request,
    /// Takes a page apart: its rows, and where the next page begins.
    parts: fn(P) -> (Vec<T>, Option<String>),
    after: Option<String>,
    done: bool,
}

impl<P: DeserializeOwned, T> Pages<P, T> {
    pub(crate) fn new(
        client: &Client,
        request: Request,
        parts: fn(P) -> (Vec<T>, Option<String>),
    ) -> Pages<P, T> {
        Pages { client: client.clone(), request, parts, after: None, done: false }
    }

    /// The first `limit` rows of all pages together, and whether there may be more.
    ///
    /// # Errors
    /// As [`Pages::next`].
    pub async fn collect(mut self, limit: usize) -> Result<(Vec<T>, bool)> {
        let mut rows = Vec::new();
        while rows.len() < limit
            && let Some(page) = self.next().await?
        {
            rows.extend(page);
        }
        let more = rows.len() > limit || !self.done;
        rows.truncate(limit);
        Ok((rows, more))
    }

    /// All rows of all pages.
    ///
    /// # Errors
    /// As [`Pages::next`].
    pub async fn all(self) -> Result<Vec<T>> {
        Ok(self.collect(usize::MAX).await?.0)
    }

    /// The next page, which may be empty; `None` after the last.
    ///
    /// # Errors
    /// The server refuses the request, or does not answer.
    pub async fn next(&mut self) -> Result<Option<Vec<T>>> {
        if self.done {
            return Ok(None);
        }
        let request = self.request.clone().query("after", self.after.as_ref());
        let page: P = self.client.call(&request, Repeat::Harmless).await?;
        let (rows, next) = (self.parts)(page);
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

/// Of jobs that are added again, one may end between two attempts, and would then run twice.
fn repeat(again: bool) -> Repeat {
    if again { Repeat::IfUnsent } else { Repeat::Harmless }
}

pub(crate) fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}
