//! Jobs, runs and fair shares over time.

use std::collections::BTreeMap;

use axum::response::Response;
use maud::{Markup, html};
use turnwise_api as v1;
use turnwise_protocol::{History, TenantHistory, TypeHistory, names};

use super::chart::{Chart, Line};
use super::format::{duration, number};
use super::parts::choice;
use super::problem::Result;
use super::visit::{Visit, link, tenant_link};
use super::{layout, parts};

const PATH: &str = "/ui/history";
const SECOND_US: i64 = 1_000_000;
/// The ranges, with their lengths in s.
const RANGES: [(&str, &str, i64); 4] = [
    ("hour", "Last hour", 3_600),
    ("day", "Last day", 86_400),
    ("week", "Last week", 7 * 86_400),
    ("month", "Last 30 days", 30 * 86_400),
];
/// Types that are drawn if none is chosen.
const SHOWN_TYPES: usize = 6;
/// Tenants that are drawn of a type.
const SHOWN_TENANTS: usize = 8;

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let (app, caller, query) = (&visit.app, visit.caller(), &visit.query);
    let job_type = query.get("type");
    if let Some(job_type) = job_type {
        names::check_type(job_type)?;
    }
    let chosen = query.get("range").unwrap_or(RANGES[0].0);
    let (range, _, seconds) = RANGES.into_iter().find(|(name, ..)| *name == chosen).unwrap_or(RANGES[0]);
    let now_us = app.now_us();
    let times = (now_us.saturating_sub(seconds * SECOND_US), now_us);
    let step = v1::history::fitting(times.0, times.1, now_us);
    let history = v1::history::read(app, caller, job_type, step, times).await?;
    let types = drawn(&history);
    let main = html! {
        h1 { "History" }
        (parts::filters(PATH, html! {
            label { "Type" input name="type" value=[job_type] maxlength="64" size="14"; }
            (choice("Range", "range", RANGES.map(|(name, title, _)| (name, title)), Some(range)))
        }))
        @if types.is_empty() {
            p.empty { "Nothing is known of this time. A server takes a sample every 10 s." }
        }
        @for name in types.iter().take(SHOWN_TYPES) { (of_type(&history, name, times, caller.operates(), job_type.is_some())) }
        @if types.len() > SHOWN_TYPES {
            p.quiet { "Other types: "
                @for name in &types[SHOWN_TYPES..] { a href=(link(PATH, &[("type", Some(name)), ("range", Some(range))])) { bdi { (name) } } " " }
            }
        }
    };
    Ok(layout::live(&visit.shell, "History", main))
}

/// The types that did something, the busiest first.
fn drawn(history: &History) -> Vec<&str> {
    let mut weights: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, of) in history.points.iter().flat_map(|point| &point.types) {
        let jobs = of.jobs.values().sum::<f64>() as u64 + u64::from(!of.tenants.is_empty());
        *weights.entry(name).or_default() += jobs + of.claims;
    }
    let mut types: Vec<(&str, u64)> = weights.into_iter().filter(|(_, weight)| *weight > 0).collect();
    types.sort_by_key(|(name, weight)| (std::cmp::Reverse(*weight), *name));
    types.into_iter().map(|(name, _)| name).collect()
}

fn of_type(history: &History, name: &str, times: (i64, i64), operates: bool, is_chosen: bool) -> Markup {
    let times_us: Vec<i64> = history.points.iter().map(|point| point.at_us).collect();
    let of: Vec<Option<&TypeHistory>> = history.points.iter().map(|point| point.types.get(name)).collect();
    let step_us = history.step_s * SECOND_US;
    let chart = |title: &'static str, lines, show| Chart {
        title: html! { (title) },
        times_us: &times_us,
        range_us: times,
        step_us,
        lines,
        show,
    };
    let line = |name, class, value: &dyn Fn(&TypeHistory) -> Option<f64>| Line {
        name,
        class,
        values: of.iter().map(|of| of.and_then(value)).collect(),
    };
    let jobs = |state: &'static str| move |of: &TypeHistory| Some(of.jobs.get(state).copied().unwrap_or(0.0));
    let rate = |count: fn(&TypeHistory) -> u64| {
        let minutes = history.step_s as f64 / 60.0;
        move |of: &TypeHistory| Some(count(of) as f64 / minutes)
    };
    let bounds = &history.wait_bounds_us;
    let wait = |part: f64| move |of: &TypeHistory| quantile(bounds, &of.waits, part);
    html! {
        section {
            h2 { a href=(link(PATH, &[("type", Some(name))])) { bdi { (name) } } }
            @if operates {
                div.charts {
                    (chart("Jobs", vec![
                        line("pending", "waits", &jobs("pending")),
                        line("running", "runs", &jobs("running")),
                        line("slots", "slots", &|of| Some(of.slots)),
                    ], whole).draw())
                    (chart("Ends per minute", vec![
                        line("completed", "runs", &rate(|of| of.completed)),
                        line("crashed", "backoff", &rate(|of| of.crashed)),
                        line("failed", "fails", &rate(|of| of.failed)),
                    ], whole).draw())
                    (chart("Wait before the start", vec![
                        line("half of the jobs up to", "runs", &wait(0.5)),
                        line("19 of 20 up to", "waits", &wait(0.95)),
                    ], |us| duration(us as u64)).draw())
                }
            }
            (tenants(history, name, &times_us, times, if is_chosen { usize::MAX } else { SHOWN_TENANTS }))
        }
    }
}

/// What each tenant was entitled to beside what it received.
fn tenants(history: &History, name: &str, times_us: &[i64], times: (i64, i64), most: usize) -> Markup {
    let mut demand: BTreeMap<&str, f64> = BTreeMap::new();
    for of in history.points.iter().filter_map(|point| point.types.get(name)) {
        for (tenant, state) in &of.tenants {
            *demand.entry(tenant).or_default() += state.entitled + state.received;
        }
    }
    let mut all: Vec<(&str, f64)> = demand.into_iter().collect();
    all.sort_by(|(one, demand), (other, others)| others.total_cmp(demand).then(one.cmp(other)));
    html! {
        @if !all.is_empty() {
            h3 { "Slots of tenants" }
            div.charts {
                @for (tenant, _) in all.iter().take(most) {
                    @let values = |value: fn(&TenantHistory) -> f64| history.points.iter()
                        .map(|point| Some(point.types.get(name)?.tenants.get(*tenant).map_or(0.0, value))).collect::<Vec<_>>();
                    (Chart {
                        title: html! { a href=(tenant_link(name, tenant)) { bdi { (tenant) } } },
                        times_us,
                        range_us: times,
                        step_us: history.step_s * SECOND_US,
                        lines: vec![
                            Line { name: "entitled", class: "entitled", values: values(|of| of.entitled) },
                            Line { name: "received", class: "received", values: values(|of| of.received) },
                        ],
                        show: tenths,
                    }.draw())
                }
            }
        }
    }
}

/// The bound of the bucket that contains a part of all waits, in µs. The last bucket has no bound: that of the one before counts.
fn quantile(bounds_us: &[u64], counts: &[u64], part: f64) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    let rank = (all as f64 * part).ceil() as u64;
    let mut seen = 0;
    let bucket = counts.iter().position(|count| {
        seen += count;
        seen >= rank.max(1)
    })?;
    bounds_us.get(bucket).or(bounds_us.last()).map(|bound| *bound as f64)
}

fn whole(value: f64) -> String {
    if value >= 10.0 { number(value.round() as u64) } else { tenths(value) }
}

fn tenths(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let bounds = [1_000, 5_000, 25_000];
        assert_eq!(quantile(&bounds, &[5, 4, 1], 0.5), Some(1_000.0));
        assert_eq!(quantile(&bounds, &[5, 4, 1], 0.95), Some(25_000.0));
        assert_eq!(quantile(&bounds, &[0, 0, 0, 2], 0.5), Some(25_000.0));
        assert_eq!(quantile(&bounds, &[], 0.5), None);
    }

    #[test]
    fn values_are_short() {
        assert_eq!([0.0, 1.5, 9.96, 1_234.4].map(whole), ["0", "1.5", "10", "1,234"]);
    }
}
