//! `GET /v1/history`: what happened over time.

use std::collections::BTreeMap;

use serde::Deserialize;
use turnwise_protocol::{History, HistoryPoint, HistoryStep, TenantHistory, TypeHistory, names};
use turnwise_queue::history::{self, Sample, Step};
use turnwise_web::access::Caller;
use turnwise_worker::JOB_BOUNDS_US;
use utoipa::IntoParams;

use super::app::App;
use super::error::Result;
use super::extract::{Call, Params, Shown, check_stated};
use super::responses::Common;

const SECOND_US: i64 = 1_000_000;
/// Without a step, the finest one with at most this many intervals.
const GOOD_POINTS: i64 = 400;
/// The default length of the history.
const DEFAULT_US: i64 = 3_600 * SECOND_US;
/// Times are cut to these bounds, in µs: far in the future, and within what a number can be multiplied by.
const LATEST_US: i64 = 1 << 55;

/// The parameters of a request for the history.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryParams {
    /// Only this job type.
    #[serde(rename = "type")]
    #[param(value_type = Option<names::JobType>, nullable = false)]
    job_type: Option<String>,
    /// The begin, in µs since the Unix epoch; by default an hour before the end.
    #[param(nullable = false)]
    from_us: Option<i64>,
    /// The end, exclusive, in µs since the Unix epoch; by default now.
    #[param(nullable = false)]
    to_us: Option<i64>,
    /// The length of the intervals; by default the shortest with at most 400 of them.
    #[param(inline, nullable = false)]
    step: Option<HistoryStep>,
}

/// Show the history
///
/// Samples of jobs, slots and fair shares every 10 s, for a day; merged ones of five minutes, for a week, and of an hour, for 30 days. Clients see the
/// tenants whose jobs they may read; all other numbers are for operators.
#[utoipa::path(
    get, path = "/history", tag = "tenants", operation_id = "get_history", params(HistoryParams),
    responses((status = 200, body = History, description = "A part of the history."), Common),
)]
pub(super) async fn get_history(
    Call { app, caller, .. }: Call,
    Params(params): Params<HistoryParams>,
) -> Result<Shown<History>> {
    check_stated(&params.job_type, names::check_type)?;
    let to_us = params.to_us.unwrap_or_else(|| app.now_us()).clamp(0, LATEST_US);
    let from_us = params.from_us.unwrap_or(to_us.saturating_sub(DEFAULT_US)).clamp(0, LATEST_US);
    let step = params.step.map_or_else(|| fitting(from_us, to_us, app.now_us()), step_of);
    Ok(Shown(read(&app, &caller, params.job_type.as_deref(), step, (from_us, to_us)).await?))
}

/// A part of the history, as far as the caller may see it.
pub async fn read(
    app: &App,
    caller: &Caller,
    job_type: Option<&str>,
    step: Step,
    times: (i64, i64),
) -> Result<History> {
    let tx = app.store.begin().await?;
    let (samples, next_us) = history::read(&tx, &app.keys, step, times).await?;
    let points = samples
        .into_iter()
        .map(|(at_us, sample)| HistoryPoint { at_us, types: types(sample, job_type, caller) });
    Ok(History {
        step_s: step.seconds(),
        wait_bounds_us: JOB_BOUNDS_US.to_vec(),
        points: points.collect(),
        next_us,
    })
}

fn step_of(step: HistoryStep) -> Step {
    match step {
        HistoryStep::TenSeconds => Step::Fine,
        HistoryStep::FiveMinutes => Step::Middle,
        HistoryStep::Hour => Step::Hour,
    }
}

/// The finest step that still has the begin, with few enough intervals.
pub fn fitting(from_us: i64, to_us: i64, now_us: i64) -> Step {
    let fits = |step: &Step| {
        let points = to_us.saturating_sub(from_us) / (step.seconds() * SECOND_US);
        points <= GOOD_POINTS && now_us.saturating_sub(from_us) <= step.kept_seconds() * SECOND_US
    };
    Step::ALL.into_iter().find(fits).unwrap_or(Step::Hour)
}

fn types(sample: Sample, only: Option<&str>, caller: &Caller) -> BTreeMap<String, TypeHistory> {
    let mut types: BTreeMap<String, TypeHistory> = BTreeMap::new();
    let wanted = |job_type: &str| only.is_none_or(|only| only == job_type);
    for (job_type, state) in sample.state.into_iter().filter(|(job_type, _)| wanted(job_type)) {
        let tenants = state.tenants.into_iter().filter(|(tenant, _)| caller.reads(tenant));
        let tenants: BTreeMap<String, TenantHistory> = tenants
            .map(|(tenant, of)| {
                (tenant, TenantHistory { entitled: of.entitled, received: of.received, waiting: of.waiting })
            })
            .collect();
        if caller.operates() {
            let (jobs, slots, oldest_ms) = (state.jobs, state.slots, state.oldest_ms);
            types.insert(job_type, TypeHistory { jobs, slots, oldest_ms, tenants, ..TypeHistory::default() });
        } else if !tenants.is_empty() {
            types.insert(job_type, TypeHistory { tenants, ..TypeHistory::default() });
        }
    }
    let work = sample.work.into_iter().filter(|(job_type, _)| caller.operates() && wanted(job_type));
    for (job_type, work) in work {
        let of_type = types.entry(job_type).or_default();
        of_type.claims = work.claims;
        of_type.completed = work.completed;
        of_type.failed = work.failed;
        of_type.crashed = work.crashed;
        of_type.ran_ms = work.ran_ms;
        of_type.waits = work.waits;
    }
    types
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_fits_the_times() {
        let day = 86_400 * SECOND_US;
        let now = 100 * day;
        assert_eq!(fitting(now - DEFAULT_US, now, now), Step::Fine);
        assert_eq!(fitting(now - day, now, now), Step::Middle);
        assert_eq!(fitting(now - 7 * day, now, now), Step::Hour);
        assert_eq!(fitting(now - 2 * day, now - 2 * day + DEFAULT_US, now), Step::Middle);
        assert_eq!(fitting(0, now, now), Step::Hour);
    }
}
