//! What each tenant would get with other shares: a simulation of the policy from the present load, before they are saved.
//!
//! *Model.* Every tenant has its jobs of now, waiting and running, with their learnt run times, and no further jobs arrive. Continuous
//! jobs stay. The simulation lasts for as long as the slots need for half of the jobs, at most for [`RUNS`] runs and [`LONGEST`]. So it
//! shows how the present queue is divided, and not a forecast. A tenant with many shares may run all its jobs before the end. What it gets
//! is therefore measured while it has jobs.
//!
//! *Bounds.* The [`SHOWN`] tenants with the most jobs are simulated by themselves, and the others as equal tenants with their mean. No
//! tenant gets more jobs than it could run in the time, and all together have at most [`MAX_JOBS`].

use std::collections::BTreeMap;
use std::time::Duration;

use axum::response::Response;
use maud::{Markup, html};
use turnwise_explain::load::{self, Load, TenantLoad};
use turnwise_policy::fair_share::Fairness;
use turnwise_protocol::names;
use turnwise_replicator::JOB_TYPE as REPLICATION;
use turnwise_simulate::scenario::{RandomTime, Rfc, Tenants, Work};
use turnwise_simulate::{Int, OneOf, Policy, Results, Scenario};

use super::format::{count_of, duration, number, or_dash};
use super::parts::Column::{Number, Text};
use super::parts::{bars, head};
use super::problem::{Problem, Result};
use super::redirect::redirect;
use super::visit::{Fields, Visit, link, tenant_link};
use super::{layout, parts, tenants};

const PATH: &str = "/ui/tenants/shares";
/// The begin of the names of the fields with shares; the tenant's name follows.
const FIELD: &str = "shares:";
/// The tenants that are simulated by themselves: those with the most jobs.
const SHOWN: usize = 40;
/// The most tenants that are simulated as equal ones.
const MAX_OTHERS: usize = 500;
/// About how many runs of jobs are simulated.
const RUNS: u64 = 3_000;
/// The most jobs that are simulated, of all tenants together.
const MAX_JOBS: u64 = 100_000;
/// The most slots that are simulated; with more, all numbers are scaled down.
const MAX_SLOTS: u64 = 1_000;
/// The longest time that is simulated.
const LONGEST: Duration = Duration::from_secs(3_600);
/// Cycles of a simulation without rotation: they only measure.
const CYCLES: u64 = 60;
/// Cycles of a simulation with rotation.
const ROTATING_CYCLES: u64 = 100;
/// How long a job runs whose tenant and type have no past runs, in ms.
const UNKNOWN_RUN_MS: u64 = 1_000;
/// The name of the tenants that are not shown.
const OTHERS: &str = "others";

/// What a tenant gets in a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Gets {
    /// The slots that it has on average while it has jobs.
    slots: f64,
    /// Its part of all slots meanwhile, in %.
    part: f64,
    /// How long its jobs wait on average, in µs.
    wait_us: u64,
}

/// The shares that a form names, by tenant.
fn chosen(fields: &Fields, tenants: &[TenantLoad]) -> Result<BTreeMap<String, u32>> {
    let known: BTreeMap<&str, u32> = tenants.iter().map(|of| (&*of.tenant, of.shares)).collect();
    let mut chosen = BTreeMap::new();
    for (tenant, shares) in fields.named(FIELD).take(SHOWN) {
        let shares: u32 = match shares.trim().parse() {
            Ok(shares) if (1..=1_000).contains(&shares) => shares,
            _ => {
                let problem = format!("shares of {tenant}: must be a whole number from 1 to 1,000");
                return Err(Problem::bad(problem, "correct the number"));
            }
        };
        // A tenant whose jobs have ended meanwhile gets nothing in the simulation.
        if known.get(tenant).is_some_and(|now| *now != shares) {
            chosen.insert(tenant.to_owned(), shares);
        }
    }
    Ok(chosen)
}

fn int<const MIN: u64, const MAX: u64>(value: u64) -> Int<MIN, MAX> {
    Int::try_from(value.clamp(MIN, MAX)).unwrap_or_default()
}

/// The scenario of a load, with some shares changed. `None` if there is nothing to divide.
fn scenario(load: &Load, is_continuous: bool, changed: &BTreeMap<String, u32>) -> Option<Scenario> {
    let shown = &load.tenants[..load.tenants.len().min(SHOWN)];
    let others = &load.tenants[shown.len()..];
    let slots = u64::try_from(load.slots).unwrap_or(u64::MAX).min(MAX_SLOTS);
    if slots == 0 || shown.is_empty() {
        return None;
    }
    let run_ms = |of: &TenantLoad| of.run_us.map_or(UNKNOWN_RUN_MS, |us| (us / 1_000).max(1));
    let jobs: u64 = load.tenants.iter().map(|of| of.jobs).sum();
    let mean_ms =
        load.tenants.iter().map(|of| run_ms(of).saturating_mul(of.jobs)).fold(0, u64::saturating_add)
            / jobs.max(1);
    // Each slot makes its part of the runs, one after the other. After half of the jobs, some tenants may have none.
    let whole_ms = mean_ms.max(1).saturating_mul((jobs / 2).min(RUNS) / slots + 1);
    let whole_ms = whole_ms.min(u64::try_from(LONGEST.as_millis()).unwrap_or(u64::MAX));
    let (interval_ms, cycles, churn) = match load.rotation.filter(|_| is_continuous) {
        Some(rotation) => (
            u64::try_from(rotation.interval.as_millis()).unwrap_or(u64::MAX),
            ROTATING_CYCLES,
            u64::try_from(rotation.max_churn).unwrap_or(u64::MAX),
        ),
        None => ((whole_ms / CYCLES).max(1), CYCLES, 0),
    };
    let simulated = u64::try_from(shown.len() + others.len().min(MAX_OTHERS)).unwrap_or(u64::MAX);
    let work = |jobs: u64, run_ms: u64| {
        // More than it could run in the time has no effect.
        let all_slots = slots.saturating_mul(interval_ms.saturating_mul(cycles) / run_ms.max(1) + 2);
        let most = if is_continuous { u64::MAX } else { all_slots };
        let run_ms = (!is_continuous).then(|| OneOf::Other(RandomTime::Exponential(int(run_ms))));
        let count = int(jobs.min(most).min(MAX_JOBS / simulated));
        OneOf::Other(vec![Work { count, run_ms, ..Work::default() }])
    };
    let tenant = |name: &str, count: u64, shares: u32, jobs| Tenants {
        name: name.to_owned(),
        count: int(count),
        shares: OneOf::One(int(shares.into())),
        jobs,
        schedules: Vec::new(),
        comes_at: Int::default(),
        leaves_at: None,
        comes_back_after: None,
        readds_every: None,
        new_shares: Vec::new(),
    };
    let mut tenants: Vec<Tenants> = shown
        .iter()
        .map(|of| {
            let shares = changed.get(&of.tenant).copied().unwrap_or(of.shares);
            tenant(&of.tenant, 1, shares, work(of.jobs, run_ms(of)))
        })
        .collect();
    if !others.is_empty() {
        let count = u64::try_from(others.len()).unwrap_or(u64::MAX);
        let equal = count.min(MAX_OTHERS as u64);
        let jobs: u64 = others.iter().map(|of| of.jobs).sum();
        let shares: u64 = others.iter().map(|of| u64::from(of.shares)).sum();
        // The same shares and jobs in all.
        let each = u32::try_from((shares / equal).clamp(1, 1_000)).unwrap_or(1_000);
        tenants.push(tenant(OTHERS, equal, each, work(jobs.div_ceil(equal), mean_ms.max(1))));
    }
    Some(Scenario {
        name: "what if".to_owned(),
        about: String::new(),
        slots: int(slots),
        churn: int(churn),
        interval_ms: int(interval_ms),
        cycles: int(cycles),
        seed: Int::default(),
        policy: Policy::default(),
        rfc: Rfc::default(),
        begins: None,
        rates: Vec::new(),
        tenants,
    })
}

/// What each shown tenant gets, and at last all others together, if there are any.
fn gets(results: &Results, shown: usize) -> Vec<Gets> {
    let of = |tenants: &[turnwise_simulate::TenantResults]| {
        let slots: f64 = tenants.iter().map(turnwise_simulate::TenantResults::slots).sum();
        let wait: f64 =
            tenants.iter().map(|tenant| tenant.mean_wait_cycles).sum::<f64>() / tenants.len().max(1) as f64;
        let wait_us = (wait * results.interval_ms as f64 * 1e3) as u64;
        Gets { slots, part: slots / results.slots.max(1) as f64 * 100.0, wait_us }
    };
    let (own, others) = results.tenants.split_at(shown);
    let mut gets: Vec<Gets> = own.iter().map(|tenant| of(std::slice::from_ref(tenant))).collect();
    if !others.is_empty() {
        gets.push(of(others));
    }
    gets
}

/// The results with the shares of now, and with the chosen ones.
async fn simulate(
    visit: &Visit,
    load: &Load,
    is_continuous: bool,
    changed: &BTreeMap<String, u32>,
) -> Result<Option<(Vec<Gets>, Option<Vec<Gets>>)>> {
    let Some(before) = scenario(load, is_continuous, &BTreeMap::new()) else { return Ok(None) };
    let after = scenario(load, is_continuous, changed).filter(|_| !changed.is_empty());
    let policy = match load.fairness {
        Fairness::VirtualTime => Policy::VirtualTime,
        Fairness::Rfc => Policy::Rfc,
    };
    let shown = load.tenants.len().min(SHOWN);
    // Like a count of jobs, it costs much, so that only some run at the same time.
    let permit = visit.app.counts.take(visit.caller(), 1).await;
    let both = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let before = turnwise_simulate::run(&before, policy)?;
        let after = after.map(|after| turnwise_simulate::run(&after, policy)).transpose()?;
        Ok::<_, turnwise_simulate::Error>((gets(&before, shown), after.map(|after| gets(&after, shown))))
    });
    let both = both.await.map_err(|error| Problem::internal(&error))?;
    both.map(Some).map_err(|error| Problem::bad(error.to_string(), "choose another type"))
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let Some(job_type) = query.get("type") else {
        return Err(Problem::bad("type: is needed", "choose a type on the page of the tenants"));
    };
    names::check_type(job_type)?;
    let (tx, rules) = (visit.app.store.begin().await?, visit.app.rules());
    let load = load::of_type(&visit.app.reader(&tx, &rules), job_type).await?;
    let changed = chosen(query, &load.tenants)?;
    let is_continuous = job_type == REPLICATION && load.rotation.is_some();
    let simulated = simulate(&visit, &load, is_continuous, &changed).await?;
    let main = html! {
        p.crumbs { a href=(link("/ui/tenants", &[("type", Some(job_type))])) { "Tenants of " bdi { (job_type) } } }
        h1 { "What other shares would give" }
        @match &simulated {
            None => p.empty {
                @if load.slots == 0 { "No worker gets jobs of this type, so there is nothing to divide." }
                @else { "No tenant has waiting or running jobs of this type, so there is nothing to divide." }
            },
            Some((now, then)) => {
                p { "A simulation of the present queue on " (count_of(load.slots, "slot")) ": each tenant has its jobs of now"
                    @if is_continuous { ", which run until they are preempted. " } @else { ", with the run times of its past runs, and no further jobs arrive. " }
                    "Nothing is saved until you save it." }
                form action=(PATH) {
                    input type="hidden" name="type" value=(job_type);
                    (table(job_type, &load, &changed, now, then.as_deref(), is_continuous))
                    div.actions { button.main type="submit" { "Simulate" } a.button href=(link(PATH, &[("type", Some(job_type))])) { "Start over" } }
                }
                @if !changed.is_empty() { (save(job_type, &changed)) }
            }
        }
    };
    Ok(layout::page(&visit.shell, "What other shares would give", main))
}

fn table(
    job_type: &str,
    load: &Load,
    changed: &BTreeMap<String, u32>,
    now: &[Gets],
    then: Option<&[Gets]>,
    is_continuous: bool,
) -> Markup {
    let shown = load.tenants.len().min(SHOWN);
    let others = &load.tenants[shown..];
    // Two lines: with the shares of now, and with the new ones.
    let both = |n: usize, show: fn(&Gets) -> String| {
        html! {
            (or_dash(now.get(n).map(show)))
            @if let Some(then) = then { div { (or_dash(then.get(n).map(show))) } }
        }
    };
    let figures = |n: usize| {
        let part = |gets: &[Gets]| gets.get(n).map(|of| of.part);
        let mut lines = vec![("now", part(now))];
        lines.extend(then.map(|then| ("with the new shares", part(then))));
        html! {
            td { (bars(&lines)) }
            td.n { (both(n, |of| format!("{:.1}", of.slots))) }
            @if !is_continuous { td.n { (both(n, |of| duration(of.wait_us))) } }
        }
    };
    let columns = html! {
        (head(&[Text("Tenant"), Number("Jobs")]))
        @if !is_continuous { (head(&[Number("A run takes")])) }
        (head(&[Number("Shares"), Text("Would get, while it has jobs"), Number("Slots")]))
        @if !is_continuous { (head(&[Number("A job waits for")])) }
    };
    let rows = html! {
        @for (n, of) in load.tenants[..shown].iter().enumerate() {
            @let shares = changed.get(&of.tenant).copied().unwrap_or(of.shares);
            tr data-k=(of.tenant) {
                th.id scope="row" { a href=(tenant_link(job_type, &of.tenant)) { bdi title=(of.tenant) { (of.tenant) } } }
                td.n { (number(of.jobs)) @if of.running > 0 { span.quiet { ", " (number(of.running)) " run" } } }
                @if !is_continuous { td.n { (or_dash(of.run_us.map(duration))) } }
                td.n {
                    input.shares type="number" name={ (FIELD) (of.tenant) } min="1" max="1000" value=(shares) required aria-label={ "Shares of " (of.tenant) };
                    @if shares != of.shares { div.quiet { "now " (number(u64::from(of.shares))) } }
                }
                (figures(n))
            }
        }
        @if !others.is_empty() {
            tr data-k="others" {
                th.id scope="row" { (number(others.len() as u64)) " others" div.quiet { "as equal tenants" } }
                td.n { (number(others.iter().map(|of| of.jobs).sum())) }
                @if !is_continuous { td.n { (or_dash(None)) } }
                td.n { (number(others.iter().map(|of| u64::from(of.shares)).sum())) }
                (figures(shown))
            }
        }
    };
    html! {
        (parts::table("Tenants", columns, rows))
        @if then.is_some() { p.key-line { span.key.entitled { "first line: with the shares of now" } span.key.received { "second line: with the new shares" } } }
    }
}

fn save(job_type: &str, changed: &BTreeMap<String, u32>) -> Markup {
    html! {
        form.actions method="post" action="/ui/tenants/shares/save" {
            input type="hidden" name="type" value=(job_type);
            @for (tenant, shares) in changed {
                input type="hidden" name={ (FIELD) (tenant) } value=(shares);
            }
            button type="submit" { "Save the shares of " (count_of(changed.len(), "tenant")) }
            @if job_type != REPLICATION { span.quiet { "For all types but replications" } }
        }
    }
}

/// Saves the shares that were simulated, each as one setting.
pub(super) async fn save_all(visit: Visit) -> Result<Response> {
    let form = &visit.form;
    let Some(job_type) = form.get("type") else {
        return Err(Problem::bad("type: is needed", "use the form of the page"));
    };
    names::check_type(job_type)?;
    for (tenant, shares) in form.named(FIELD).take(SHOWN) {
        tenants::save(&visit, job_type, tenant, Some(shares)).await?;
    }
    Ok(redirect(&link("/ui/tenants", &[("type", Some(job_type)), ("did", Some("saved"))])))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn load(tenants: &[(u32, u64)], slots: usize) -> Load {
        let of = |(n, (shares, jobs)): (usize, &(u32, u64))| TenantLoad {
            tenant: format!("t{n}"),
            shares: *shares,
            jobs: *jobs,
            running: 0,
            run_us: Some(200_000),
        };
        Load {
            slots,
            fairness: Fairness::VirtualTime,
            rotation: None,
            tenants: tenants.iter().enumerate().map(of).collect(),
        }
    }

    fn run(load: &Load, changed: &[(&str, u32)]) -> Vec<Gets> {
        let changed = changed.iter().map(|(tenant, shares)| ((*tenant).to_owned(), *shares)).collect();
        let scenario = scenario(load, false, &changed).unwrap();
        gets(&turnwise_simulate::run(&scenario, Policy::VirtualTime).unwrap(), load.tenants.len().min(SHOWN))
    }

    #[test]
    fn tenants_with_a_backlog_get_parts_by_their_shares() {
        let load = load(&[(100, 9_000), (100, 8_000)], 4);
        let now = run(&load, &[]);
        assert!((now[0].part - 50.0).abs() < 3.0 && (now[0].slots - 2.0).abs() < 0.2, "{now:?}");
        let then = run(&load, &[("t0", 300)]);
        assert!((then[0].part - 75.0).abs() < 3.0 && then[1].wait_us > 0, "{then:?}");
    }

    #[test]
    fn a_tenant_whose_jobs_all_run_gets_its_part_until_then() {
        let load = load(&[(100, 243); 37], 8);
        let then = run(&load, &[("t3", 900), ("t4", 400)]);
        let all = 35.0 * 100.0 + 900.0 + 400.0;
        assert!((then[3].part - 90_000.0 / all).abs() < 2.0, "{:?}", then[3]);
        assert!((then[4].part - 40_000.0 / all).abs() < 2.0, "{:?}", then[4]);
    }

    #[test]
    fn tenants_beyond_the_largest_are_simulated_together() {
        let many: Vec<(u32, u64)> = (0..2_000).map(|n| (100, 5_000 - n)).collect();
        let load = load(&many, 50);
        let gets = run(&load, &[]);
        assert_eq!(gets.len(), SHOWN + 1);
        // 40 of 2,000 tenants have 2 % of the shares.
        assert!((gets[SHOWN].part - 98.0).abs() < 1.0, "{:?}", gets[SHOWN]);
    }

    #[test]
    fn nothing_is_divided_without_slots_or_jobs() {
        assert!(scenario(&load(&[(100, 1)], 0), false, &BTreeMap::new()).is_none());
        assert!(scenario(&load(&[], 5), false, &BTreeMap::new()).is_none());
    }
}
