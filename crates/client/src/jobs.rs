//! What clients do with jobs.

use std::marker::PhantomData;
use std::time::Duration;

use reqwest::Method;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use turnwise_protocol::names::{check_id, check_type};
use turnwise_protocol::{
    AddJob, AddJobs, Added, AddedJob, AddedJobs, Cancelled, IfExists, Job, Jobs, MAX_WAIT_MS, NewJob, Nodes,
    Removed, State, Types, WaitAnswer, Worker, Workers,
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

impl Client {
    /// Adds a job. Without an id it gets one here, so that the request can be repeated: the job is added once. A job that is
    /// there stays as it is, unless `if_exists` says otherwise; such a request is repeated only while it cannot have taken effect.
    ///
    /// # Errors
    /// It is refused, or the server does not answer.
    pub async fn add(&self, job_type: &str, mut job: AddJob) -> Result<AddedJob> {
        check_type(job_type)?;
        let delayed = job.delay_ms.is_some() || job.not_before_us.is_some();
        let own_id = job.id.is_none();
        let id = job.id.get_or_insert_with(new_id);
        check_id(id)?;
        let repeat = repeat(job.if_exists);
        let request = Request::new(Method::POST, &["jobs", job_type]).json(&job)?;
        let (added, repeated) = self.call_knowing::<AddedJob>(&request, repeat).await;
        let mut added = added?;
        if repeated && own_id && added.added == Added::Exists {
            // It is there because an earlier attempt has added it.
            added.added = if delayed { Added::Delayed } else { Added::Queued };
        }
        Ok(added)
    }

    /// Adds many jobs: all of them or none. At most 1,000, in 8 MB. Ids and repetition as with [`Client::add`].
    ///
    /// # Errors
    /// One of them is refused, or the server does not answer.
    pub async fn add_many(&self, mut jobs: Vec<NewJob>) -> Result<Vec<AddedJob>> {
        let mut made = Vec::with_capacity(jobs.len());
        for job in &mut jobs {
            check_type(&job.job_type)?;
            let delayed = job.delay_ms.is_some() || job.not_before_us.is_some();
            made.push(job.id.is_none().then_some(delayed));
            check_id(job.id.get_or_insert_with(new_id))?;
        }
        let again = jobs.iter().any(|job| job.if_exists == IfExists::Again);
        let repeat = repeat(if again { IfExists::Again } else { IfExists::Keep });
        let request = Request::new(Method::POST, &["jobs"]).json(&AddJobs { jobs })?;
        let (added, repeated) = self.call_knowing::<AddedJobs>(&request, repeat).await;
        let mut added = added?.jobs;
        for (added, made) in added.iter_mut().zip(made) {
            if let (true, Some(delayed), Added::Exists) = (repeated, made, added.added) {
                added.added = if delayed { Added::Delayed } else { Added::Queued };
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
        let request = Request::new(Method::GET, &["types"]);
        self.call::<Types>(&request, Repeat::Harmless).await.map(|types| types.types)
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

fn state_name(state: State) -> &'static str {
    match state {
        State::Pending => "pending",
        State::Delayed => "delayed",
        State::Running => "running",
        State::Crashing => "crashing",
        State::Completed => "completed",
        State::Failed => "failed",
        State::Cancelled => "cancelled",
    }
}
