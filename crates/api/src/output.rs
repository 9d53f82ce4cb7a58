//! What the runs of a job leave: its result, its log, and the options that they were given.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use turnwise_protocol::events::names;
use turnwise_protocol::{
    self as api, LogLevel, LogPage, MAX_LIMIT, MAX_LOG_LINES, MAX_TIME_US, NewLogLine, Removed,
    ServerSentEvent,
};
use turnwise_queue::output::{self, JobResult, Level};
use turnwise_queue::secrets::{self, Secrets};
use turnwise_queue::{LogLine, State};
use turnwise_web::access::Caller;
use utoipa::IntoParams;

use super::app::App;
use super::builtin_types;
use super::error::{Result, V1Error};
use super::events::{self, Follow, HEARTBEAT, Ready};
use super::extract::{Call, JobPath, Params, Shown};
use super::jobs::visible;
use super::list::{check_limit, default_limit};
use super::responses::{Common, NoJob};
use super::view::same;

/// About how many lines a stream sends at a time.
const LINES_AT_ONCE: usize = 100;

/// Get a job's options
///
/// The input of its handler, as it was added, without the members that its type hides.
#[utoipa::path(
    get, path = "/jobs/{type}/{id}/options", tag = "jobs", operation_id = "get_options", params(JobPath),
    responses(
        (status = 200, body = serde_json::Value, description = "The options. `*****` stands for a hidden member."),
        (status = 403, body = turnwise_protocol::Error,
            description = "`forbidden`: this identity may only look at the job, or the type belongs to the server."),
        NoJob, Common,
    ),
)]
pub(super) async fn get_options(Call { app, caller, path }: Call<JobPath>) -> Result<Shown<Box<RawValue>>> {
    let tx = app.store.begin().await?;
    let job = visible(&app, &caller, &tx, &path).await?;
    if !shows_options(&caller, &job.job_type, &job.tenant) {
        return Err(V1Error::forbidden(
            "the options of this job are not shown to this identity",
            "operators and the job's tenant see options, but for those of replications, indexes, webhooks and commands",
        ));
    }
    Ok(Shown(secrets::shown_options(&tx, &app.keys, &job).await?))
}

/// Whether the options of a job are shown to a caller that sees the job.
pub fn shows_options(caller: &Caller, job_type: &str, tenant: &str) -> bool {
    builtin_types::shows_options(caller, job_type, tenant)
}

/// The options of a job, if all of them are shown to the caller: `None` if the job's type hides some, or all are hidden.
pub async fn whole_options(app: &App, caller: &Caller, path: &JobPath) -> Result<Option<Box<RawValue>>> {
    let tx = app.store.begin().await?;
    let job = visible(app, caller, &tx, path).await?;
    if !shows_options(caller, &job.job_type, &job.tenant) {
        return Ok(None);
    }
    let secrets = Secrets::of_type(&tx, &app.keys, &job.job_type).await?;
    if secrets.hide_all() {
        return Ok(None);
    }
    let options = turnwise_queue::jobs::options(&tx, &app.keys, &job).await?;
    Ok((!secrets.hide_some_of(&options)).then_some(options))
}

/// Get a job's result
///
/// The result of a completed job, with its own media type: JSON, or what its worker stated.
#[utoipa::path(
    get, path = "/jobs/{type}/{id}/result", tag = "jobs", operation_id = "get_result", params(JobPath),
    responses(
        (status = 200, description = "The result.", content(
            (serde_json::Value = "application/json"), (Vec<u8> = "application/octet-stream"),
        )),
        (status = 404, body = turnwise_protocol::Error,
            description = "`not_found`: there is no such job, or it has not completed."),
        Common,
    ),
)]
pub(super) async fn get_result(Call { app, caller, path }: Call<JobPath>) -> Result<Response> {
    let tx = app.store.begin().await?;
    let job = visible(&app, &caller, &tx, &path).await?;
    let no_result = || {
        V1Error::new(
            StatusCode::NOT_FOUND,
            api::codes::NOT_FOUND,
            "the job has no result",
            "only a job that has completed has one; GET /v1/jobs/{type}/{id}/wait waits for its end",
        )
    };
    match output::result(&tx, &app.keys, &job).await? {
        Some(result) => Ok(response(result)),
        // Its worker has left it out.
        None if job.state() == State::Completed => Ok(response(RawValue::NULL.to_owned().into())),
        None => Err(no_result()),
    }
}

/// A response with a result.
pub(super) fn response(result: JobResult) -> Response {
    let (media_type, bytes) = match result {
        JobResult::Json(json) => {
            (HeaderValue::from_static("application/json"), Bytes::from(json.get().to_owned()))
        }
        JobResult::Bytes { media_type, bytes } => {
            let stated = HeaderValue::from_str(&media_type);
            (stated.unwrap_or(HeaderValue::from_static("application/octet-stream")), bytes)
        }
    };
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, media_type);
    // A worker chooses type and bytes: a browser must run nothing of it in the name of this server.
    for (name, value) in [
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert::<HeaderName>(name, HeaderValue::from_static(value));
    }
    response
}

/// The parameters of a job's log.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct LogParams {
    /// The number of the first line; with `follow`, `Last-Event-ID` precedes it.
    #[serde(default)]
    #[param(default = 0, maximum = 9_007_199_254_740_991_u64)]
    from: u64,
    /// Maximum number of lines in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// Whether the response continues until the job has ended, as server-sent events.
    #[serde(default)]
    #[param(default = false)]
    follow: bool,
}

/// Get a job's log
///
/// The lines that its runs have logged, of all its attempts. With `follow=true`, the response is a stream: an event `line` for each line, whose id
/// is the line's number; `end` when the job has ended, after its last line; and `removed` if it is removed.
#[utoipa::path(
    get, path = "/jobs/{type}/{id}/logs", tag = "jobs", operation_id = "get_logs",
    params(JobPath, LogParams, ("Last-Event-ID" = Option<String>, Header, nullable = false,
        description = "The number of the last line that the client has received.")),
    responses(
        (status = 200, description = "A page of lines, or the lines as they are logged.", content(
            (LogPage = "application/json"), (ServerSentEvent = "text/event-stream"),
        )),
        NoJob, Common,
    ),
)]
pub(super) async fn get_logs(
    Call { app, caller, path }: Call<JobPath>,
    Params(LogParams { from, limit, follow }): Params<LogParams>,
    headers: axum::http::HeaderMap,
) -> Result<Response> {
    check_limit(limit)?;
    let tx = app.store.begin().await?;
    visible(&app, &caller, &tx, &path).await?;
    if !follow {
        let page = page(&app, &tx, &path, from, limit).await?;
        return Ok(axum::response::IntoResponse::into_response(Shown(page)));
    }
    drop(tx);
    let last = headers.get(events::LAST_EVENT_ID).and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
    let from = last.map_or(from, |last| last.saturating_add(1));
    Ok(events::follow(Follower { app, caller, path, from, ready: Ready::default() }))
}

/// A page of a job's log.
pub async fn page(
    app: &App,
    tx: &turnwise_store::Transaction,
    JobPath { job_type, id }: &JobPath,
    from: u64,
    limit: usize,
) -> Result<LogPage> {
    let page = output::lines(tx, &app.keys, (job_type, id), from, limit.min(MAX_LIMIT)).await?;
    let next = page.lines.last().map_or(from.clamp(page.first, page.next), |(number, _)| number + 1);
    Ok(LogPage { lines: page.lines.into_iter().map(shown).collect(), first: page.first, next })
}

fn shown((number, LogLine { at_us, level, message, fields }): (u64, LogLine)) -> api::LogLine {
    let level = same!(level, Level => LogLevel: Debug Info Warn Error);
    api::LogLine { number, at_us, level, message, fields }
}

/// The lines of a request.
pub(super) fn log_lines(app: &App, lines: Vec<NewLogLine>) -> Result<Vec<LogLine>> {
    if lines.len() > MAX_LOG_LINES {
        let problem = format!("log: has {} lines; at most {MAX_LOG_LINES} are allowed", lines.len());
        return Err(V1Error::bad(problem, "send the others with the next report"));
    }
    let line = |(n, NewLogLine { at_us, level, message, fields }): (usize, NewLogLine)| {
        if at_us.is_some_and(|at_us| !(0..=MAX_TIME_US).contains(&at_us)) {
            let problem = format!("log[{n}].at_us: must be from 0 to {MAX_TIME_US} (the year 9999)");
            return Err(V1Error::out_of_bounds(problem));
        }
        if fields.as_ref().is_some_and(|fields| !fields.get().trim_start().starts_with('{')) {
            return Err(V1Error::bad(format!("log[{n}].fields: must be an object"), "leave it out"));
        }
        let level = same!(level, LogLevel => Level: Debug Info Warn Error);
        Ok(LogLine { at_us: at_us.unwrap_or_else(|| app.now_us()), level, message, fields })
    };
    lines.into_iter().enumerate().map(line).collect()
}

/// One client's position in a job's log.
struct Follower {
    app: App,
    caller: Caller,
    path: JobPath,
    from: u64,
    ready: Ready,
}

impl Follow for Follower {
    fn ready(&mut self) -> &mut Ready {
        &mut self.ready
    }

    /// Sends new lines. If there are none, waits until there may be some.
    async fn look_or_wait(&mut self) -> Result<()> {
        let (app, JobPath { job_type, id }) = (self.app.clone(), &self.path);
        let (store, keys) = (&app.store, &app.keys);
        let (key, head) = (keys.job(job_type, id), output::log_row(keys, job_type, id));
        let tx = store.begin().await?;
        let (seen, logged) = (tx.get(&key).await?, tx.get(&head).await?);
        let job = turnwise_queue::jobs::get(&tx, keys, job_type, id).await?;
        let Some(job) = self.caller.sees(job) else {
            self.ready.push(names::REMOVED, None::<u64>, &Removed { removed: true });
            self.ready.done = true;
            return Ok(());
        };
        let page = page(&app, &tx, &self.path, self.from, LINES_AT_ONCE).await?;
        self.from = page.next;
        for line in &page.lines {
            self.ready.push(names::LINE, Some(line.number), line);
        }
        if !page.lines.is_empty() {
            return Ok(());
        }
        if job.state().is_final() {
            let job = super::view::job(&app, &tx, job).await?;
            self.ready.push(names::END, None::<u64>, &job);
            self.ready.done = true;
            return Ok(());
        }
        drop(tx);
        let changed = store.watch(key, seen).await?;
        let logged = store.watch(head, logged).await?;
        tokio::select! {
            biased;
            // The client reconnects to another server, or to this one after its restart.
            () = app.stop.cancelled() => self.ready.done = true,
            () = changed => {}
            () = logged => {}
            () = store.runtime().sleep(HEARTBEAT) => self.ready.beat(),
        }
        Ok(())
    }
}
