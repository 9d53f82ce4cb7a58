//! `GET /v1/jobs` and `GET /v1/types`: pages of jobs and of job types.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Deserialize;
use turnwise_protocol::{DEFAULT_LIMIT, Job, Jobs, ListOrder, MAX_LIMIT, Types, names};
use turnwise_queue::bulk::Gate as _;
use turnwise_queue::listing::Order;
use turnwise_queue::selection::Selection;
use turnwise_queue::tags::check_tag;
use turnwise_queue::{Job as QueueJob, jobs as rows, reason_class};
use turnwise_web::access::Caller;
use utoipa::IntoParams;

use super::app::App;
use super::error::{Result, V1Error};
use super::extract::{Call, Params, Shown, check_stated};
use super::responses::Common;
use super::{CallerGate, bulk, position_text, sorted, view};

/// Number of jobs that one request reads. If it needs more, its page is short, and the next page continues.
const MAX_LOOKED_AT: usize = 2_000;
/// Number of jobs that one transaction reads.
const BATCH: usize = 100;
/// A page ends early when its jobs were tested against a condition for so long: others wait for a processor, and the store's transactions
/// have an age.
pub(super) const SEARCH_TIME: Duration = Duration::from_secs(1);
/// A page ends early when its jobs have about this size in total, in bytes.
const PAGE_BYTES: usize = 1 << 20;
/// Number of types in a page.
const MAX_TYPES: usize = 1_000;

/// Characters that no type of a client contains.
const NOT_IN_TYPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'.').remove(b'-');

/// The parameters of a listing of jobs.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListParams {
    /// Only jobs of this type.
    #[serde(rename = "type")]
    #[param(value_type = Option<names::JobType>, nullable = false)]
    pub job_type: Option<String>,
    /// Only jobs in this state.
    #[param(inline, nullable = false)]
    pub state: Option<turnwise_protocol::State>,
    /// Only jobs of this tenant.
    #[param(value_type = Option<names::Name>, nullable = false)]
    pub tenant: Option<String>,
    /// Only jobs with this tag.
    #[param(value_type = Option<names::Tag>, nullable = false)]
    pub tag: Option<String>,
    /// Only jobs that failed, crashed or were cancelled for a reason of this class. `GET /v1/failures` lists classes. A whole reason selects
    /// its class.
    #[param(nullable = false)]
    pub reason_class: Option<String>,
    /// The order: by default `newest` with `state`, `tenant`, `tag`, `reason_class` or `where`, otherwise `id`.
    #[param(inline, nullable = false)]
    pub order: Option<ListOrder>,
    /// Only jobs that meet this condition, in the language of bulk operations.
    #[serde(rename = "where")]
    #[param(nullable = false, max_length = 4000)]
    pub condition: Option<String>,
    /// Maximum number of jobs in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: usize,
    /// The `next` of the previous page of the same list.
    #[param(nullable = false, pattern = r"^[A-Za-z0-9_.-]{1,64}/[^\u0000-\u001f\u007f-\u009f]{0,6000}$")]
    pub after: Option<String>,
}

pub(super) fn default_limit() -> usize {
    DEFAULT_LIMIT
}

pub(super) fn check_limit(limit: usize) -> Result<()> {
    match limit {
        1..=MAX_LIMIT => Ok(()),
        _ => Err(V1Error::bad(
            format!("limit: must be from 1 to {MAX_LIMIT}"),
            "get further pages with `after`",
        )),
    }
}

/// A position after a row, where rows are sorted by type and id. Opaque to clients. An empty id, which no job has, is
/// the position before the first row of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The type of the last job of a page.
    pub job_type: String,
    /// Its id.
    pub id: String,
}

impl Cursor {
    /// Parses the parameter `after`.
    pub fn parse(text: &str) -> Result<Cursor> {
        let wrong = position_text::wrong;
        let (job_type, id) = text.split_once('/').ok_or_else(wrong)?;
        let job_type = percent_decode_str(job_type).decode_utf8().map_err(|_| wrong())?.into_owned();
        // The name itself is not checked: workers in this process may use types that clients cannot.
        let fits = (1..=names::MAX_TYPE_BYTES).contains(&job_type.len()) && id.len() <= names::MAX_ID_BYTES;
        if !fits || text.contains(char::is_control) {
            return Err(wrong());
        }
        Ok(Cursor { job_type, id: id.to_owned() })
    }

    /// The value of the parameter `after`.
    pub fn text(&self) -> String {
        format!("{}/{}", utf8_percent_encode(&self.job_type, NOT_IN_TYPES), self.id)
    }
}

/// List jobs
///
/// Sorted by type and id, or with `order` by time. A list by `state`, `tenant`, `tag`, `reason_class` or `where` is sorted by time: the newest first. A job
/// whose state changes between two pages of a list by time may be missing, or be in both.
///
/// A request reads a bounded number of jobs, so that a page may be short or empty although more jobs follow. Only the last page has no `next`.
#[utoipa::path(
    get, path = "/jobs", tag = "jobs", operation_id = "list_jobs", params(ListParams),
    responses((status = 200, body = Jobs, description = "A page of jobs."), Common),
)]
pub(super) async fn list_jobs(call: Call, Params(query): Params<ListParams>) -> Result<Shown<Jobs>> {
    jobs(&call.app, &call.caller, query, None).await.map(Shown)
}

impl ListParams {
    /// The order of the list.
    pub fn order(&self) -> ListOrder {
        let is_narrow = self.state.is_some()
            || self.tenant.is_some()
            || self.tag.is_some()
            || self.reason_class.is_some()
            || self.condition.is_some();
        self.order.unwrap_or(if is_narrow { ListOrder::Newest } else { ListOrder::Id })
    }

    /// Whether a job is in the list, besides the condition.
    pub fn selects(&self, job: &QueueJob) -> bool {
        self.state.is_none_or(|state| view::state(job) == state)
            && self.tenant.as_ref().is_none_or(|tenant| *tenant == job.tenant)
            && self.tag.as_ref().is_none_or(|tag| job.has_tag(tag))
            && self.reason_class.as_ref().is_none_or(|class| job.reason_class().as_ref() == Some(class))
    }
}

/// A page of jobs, of those that the caller may read. With a text, of those whose id contains it.
pub async fn jobs(app: &App, caller: &Caller, mut params: ListParams, text: Option<&str>) -> Result<Jobs> {
    check_limit(params.limit)?;
    let after = position_text::read(app, caller, params.after.take()).await?;
    check_stated(&params.tenant, |tenant| names::check_name("tenant", tenant))?;
    check_stated(&params.job_type, names::check_type)?;
    params.tag.as_deref().map_or(Ok(()), |tag| check_tag("tag", tag))?;
    // A class is its own class, so a whole reason selects its class.
    params.reason_class = params.reason_class.as_deref().map(reason_class::of);
    let selection =
        params.condition.as_deref().map(|text| bulk::selection(text, app.now_us())).transpose()?;
    let order = match params.order() {
        ListOrder::Id => return by_id(app, caller, &params, selection.as_ref(), text, after).await,
        ListOrder::Newest => Order::Newest,
        ListOrder::Oldest => Order::Oldest,
    };
    sorted::jobs(app, caller, &params, selection.as_ref(), text, (order, after)).await
}

/// A page by type and id.
async fn by_id(
    app: &App,
    caller: &Caller,
    params: &ListParams,
    selection: Option<&Selection>,
    text: Option<&str>,
    after: Option<String>,
) -> Result<Jobs> {
    let mut cursor = after.as_deref().map(Cursor::parse).transpose()?;
    let gate = CallerGate(caller.clone());
    // A condition may name the type, too.
    let only_type = selection.and_then(|selection| selection.only_type().map(str::to_owned));
    let wanted_type = params.job_type.clone().or(only_type);
    if let Some(job_type) = &wanted_type {
        match cursor.as_ref().map(|cursor| cursor.job_type.cmp(job_type)) {
            Some(Ordering::Less) => cursor = None,
            Some(Ordering::Greater) => {
                let looked_at = selection.map(|_| 0);
                return Ok(Jobs { jobs: Vec::new(), looked_at, next: None });
            }
            Some(Ordering::Equal) | None => {}
        }
    }
    let mut page = Page::default();
    let (mut looked_at, mut seen, begun) = (0, 0, Instant::now());
    let most_looks = selection.map_or(MAX_LOOKED_AT, |selection| selection.most_looks(MAX_LOOKED_AT));
    let next = loop {
        let tx = app.store.begin().await?;
        let (job_type, after) = match (&cursor, &wanted_type) {
            (Some(Cursor { job_type, id }), _) => (job_type.clone(), Some(id.as_str())),
            (None, Some(job_type)) => (job_type.clone(), None),
            (None, None) => match rows::types_after(&tx, &app.keys, None, 1).await?.pop() {
                Some(first) => (first, None),
                None => break None,
            },
        };
        // A transaction lasts as long as its jobs are searched.
        let size = selection.map_or(BATCH, |selection| selection.most_looks(BATCH));
        let batch = rows::list(&tx, &app.keys, &job_type, after, size).await?;
        let exhausted = batch.len() < size;
        looked_at += batch.len().max(1);
        let mut last = None;
        let (mut full, mut late) = (false, false);
        for job in batch {
            last = Some(job.id.clone());
            seen += u64::from(caller.reads(&job.tenant));
            let mut wanted = caller.reads(&job.tenant)
                && params.selects(&job)
                && text.is_none_or(|text| job.id.contains(text));
            if let (true, Some(selection)) = (wanted, selection) {
                wanted = selection.holds(&tx, &app.keys, &job, gate.tests_options(&job)).await?;
                late = begun.elapsed() >= SEARCH_TIME;
            }
            if wanted {
                page.push(view::listed(app, &tx, job).await?);
                full = page.is_full(params.limit);
            }
            if full || late {
                break;
            }
        }
        if let Some(id) = last {
            cursor = Some(Cursor { job_type: job_type.clone(), id });
        }
        if exhausted && !full && !late {
            if wanted_type.is_some() {
                break None;
            }
            match rows::types_after(&tx, &app.keys, Some(&job_type), 1).await?.pop() {
                Some(next) => cursor = Some(Cursor { job_type: next, id: String::new() }),
                None => break None,
            }
        }
        if full || late || looked_at >= most_looks {
            break cursor.as_ref().map(Cursor::text);
        }
    };
    let next = position_text::shown(app, caller, next).await?;
    let looked_at = selection.map(|_| seen);
    Ok(Jobs { jobs: page.jobs, looked_at, next })
}

/// The jobs of a page.
#[derive(Default)]
pub(super) struct Page {
    pub jobs: Vec<Job>,
    bytes: usize,
}

impl Page {
    /// Whether a page with this limit has no room.
    pub fn is_full(&self, limit: usize) -> bool {
        self.jobs.len() >= limit || self.bytes >= PAGE_BYTES
    }

    pub fn push(&mut self, job: Job) {
        let carried = [Some(&job.summary), job.info.as_ref(), job.result.as_ref()];
        self.bytes += carried.into_iter().flatten().map(|json| json.get().len()).sum::<usize>();
        self.bytes +=
            job.history.iter().map(|event| event.reason.as_ref().map_or(0, String::len)).sum::<usize>();
        self.jobs.push(job);
    }
}

/// The parameters of a listing of types.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct TypesParams {
    /// The `next` of the previous page.
    #[param(value_type = Option<names::JobType>, nullable = false)]
    after: Option<String>,
}

/// List job types
#[utoipa::path(
    get, path = "/types", tag = "jobs", operation_id = "list_types", params(TypesParams),
    responses((status = 200, body = Types, description = "The types that have jobs."), Common),
)]
pub(super) async fn list_types(
    Call { app, .. }: Call,
    Params(TypesParams { after }): Params<TypesParams>,
) -> Result<Shown<Types>> {
    check_stated(&after, names::check_type)?;
    let tx = app.store.begin().await?;
    let mut types = rows::types_after(&tx, &app.keys, after.as_deref(), MAX_TYPES + 1).await?;
    let more = types.len() > MAX_TYPES;
    types.truncate(MAX_TYPES);
    let next = types.last().filter(|_| more).cloned();
    Ok(Shown(Types { types, next }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn positions_round_trip() {
        for (job_type, id) in [("mail", "a"), ("a.b-c", "x/y z%2F…"), ("t", "/"), ("a b", "")] {
            let cursor = Cursor { job_type: job_type.to_owned(), id: id.to_owned() };
            assert_eq!(Cursor::parse(&cursor.text()).unwrap(), cursor);
        }
        for text in ["", "mail", "/x", "%ff/x", "mail/\0"] {
            assert!(Cursor::parse(text).is_err(), "{text:?}");
        }
    }
}
