//! `GET /v1/counts`: how many jobs there are, by state.

use serde::Deserialize;
use turnwise_explain::job_counts;
use turnwise_protocol::{CountBy, CountPage, CountedJobs, names};
use turnwise_queue::counts::{self, Counted, Counts};
use turnwise_queue::jobs;
use utoipa::IntoParams;

use super::error::{Result, V1Error};
use super::extract::{Call, Params, Shown, check_stated};
use super::list::{Cursor, check_limit, default_limit};
use super::position_text;
use super::responses::Common;
use super::sorted::{BATCH, counted};

/// Most types and tenants that one response reads.
const MAX_READ: usize = 200_000;

/// The parameters of a request for counts.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct CountParams {
    /// Only jobs of this type.
    #[serde(rename = "type")]
    #[param(value_type = Option<names::JobType>, nullable = false)]
    job_type: Option<String>,
    /// Only jobs of this tenant.
    #[param(nullable = false, pattern = r"^[^\u0000-\u001f\u007f-\u009f]{1,1024}$")]
    tenant: Option<String>,
    /// Whether the jobs of all tenants are counted together, as by default, or those of each.
    #[param(inline, nullable = false)]
    by: Option<CountBy>,
    /// Maximum number of counts in a page.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// The `next` of the previous page.
    #[param(nullable = false, pattern = r"^[A-Za-z0-9_.-]{1,64}/[^\u0000-\u001f\u007f-\u009f]{0,1024}$")]
    after: Option<String>,
}

/// Longest tenant, in characters: that of a replication may be longer than a name.
const MAX_TENANT: usize = 1_024;

fn check_tenant(tenant: &str) -> Result<()> {
    if (1..=MAX_TENANT).contains(&tenant.chars().count()) && !tenant.contains(char::is_control) {
        return Ok(());
    }
    let problem = format!("tenant: must have 1 to {MAX_TENANT} characters, and no control characters");
    Err(V1Error::bad(problem, "leave it out to count the jobs of all tenants"))
}

/// Count jobs
///
/// The numbers of jobs in each state, per type, or per type and tenant. They are exact: every change of a job changes them in the same transaction.
/// Jobs of tenants whose jobs this identity may not read do not count. A response reads the counts of at most 200,000 types and tenants, and then ends
/// with `next`; the counts of a type may then continue in the next page.
#[utoipa::path(
    get, path = "/counts", tag = "jobs", operation_id = "count_jobs", params(CountParams),
    responses((status = 200, body = CountPage, description = "A page of counts."), Common),
)]
pub(super) async fn count_jobs(
    Call { app, caller, .. }: Call,
    Params(params): Params<CountParams>,
) -> Result<Shown<CountPage>> {
    check_limit(params.limit)?;
    check_stated(&params.job_type, names::check_type)?;
    if let Some(tenant) = &params.tenant {
        check_tenant(tenant)?;
    }
    let after = position_text::read(&app, &caller, params.after).await?;
    let after = after.as_deref().map(Cursor::parse).transpose()?;
    let by = params.by.unwrap_or_default();
    let mut page = Page { by, limit: params.limit, counts: Vec::new(), last: None, is_full: false };
    let tx = app.store.begin().await?;
    if let Some(tenant) = params.tenant.as_ref().filter(|tenant| caller.reads(tenant)) {
        // A row per type.
        let after = after.as_ref().map(|after| after.job_type.clone());
        let types = match params.job_type {
            Some(job_type) => vec![job_type],
            None => jobs::types_after(&tx, &app.keys, after.as_deref(), BATCH).await?,
        };
        let may_be_more = types.len() == BATCH;
        for job_type in types {
            let counts = counts::of_tenant(&tx, &app.keys, &job_type, tenant).await?;
            if counts != Counts::default() && !page.push(&job_type, tenant, &counts) {
                break;
            }
            page.last = Some((job_type, tenant.clone()));
        }
        page.is_full |= may_be_more;
    } else if params.tenant.is_none() {
        let (mut read, mut position) = (0, after.map(|after| (after.job_type, after.id)));
        'rows: while read < MAX_READ {
            let from = position.as_ref().map(|(job_type, tenant)| (job_type.as_str(), tenant.as_str()));
            let rows = counted(&tx, &app.keys, params.job_type.as_deref(), from).await?;
            let is_last = rows.len() < BATCH;
            read += rows.len();
            for row in rows {
                if caller.reads(&row.tenant) && !page.push(&row.job_type, &row.tenant, &row.counts) {
                    break 'rows;
                }
                page.last = Some((row.job_type.clone(), row.tenant.clone()));
                position = Some((row.job_type, row.tenant));
            }
            if is_last {
                break;
            }
            page.is_full = read >= MAX_READ;
        }
    }
    let next = page.last.filter(|_| page.is_full);
    let next = next.map(|(job_type, id)| Cursor { job_type, id }.text());
    let next = position_text::shown(&app, &caller, next).await?;
    let counts = page.counts.into_iter().map(|of| CountedJobs {
        job_type: of.job_type,
        tenant: (by == CountBy::Tenant).then_some(of.tenant),
        jobs: job_counts(&of.counts),
    });
    Ok(Shown(CountPage { counts: counts.collect(), next }))
}

struct Page {
    by: CountBy,
    limit: usize,
    counts: Vec<Counted>,
    /// The last type and tenant in the page.
    last: Option<(String, String)>,
    /// There are, or may be, more.
    is_full: bool,
}

impl Page {
    /// Adds counts. Returns whether there was room.
    fn push(&mut self, job_type: &str, tenant: &str, counts: &Counts) -> bool {
        if self.by == CountBy::Type
            && let Some(last) = self.counts.last_mut().filter(|last| last.job_type == job_type)
        {
            last.counts += *counts;
            return true;
        }
        if self.counts.len() == self.limit {
            self.is_full = true;
            return false;
        }
        self.counts.push(Counted {
            job_type: job_type.to_owned(),
            tenant: tenant.to_owned(),
            counts: *counts,
        });
        true
    }
}
