//! The locks of jobs: who holds each, who waits for it, and who has reserved it.

use axum::response::Response;
use maud::{Markup, html};
use turnwise_api::locks::{LocksParams, lockers};
use turnwise_protocol::{DEFAULT_LIMIT, Lock, LockHow, LockMode, Locker, Lockers};

use super::format::since;
use super::parts::Column::{Number, Text};
use super::parts::head;
use super::problem::Result;
use super::visit::{Visit, job_link, link};
use super::{layout, parts};

const PATH: &str = "/ui/locks";

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let (level, name) = (query.get("level"), query.get("name"));
    let (after, now_us) = (query.get("after"), visit.app.now_us());
    let params = LocksParams {
        level: level.map(str::to_owned),
        name: name.map(str::to_owned),
        limit: DEFAULT_LIMIT,
        after: after.map(str::to_owned),
    };
    let Lockers { locks, next } = lockers(&visit.app, visit.caller(), params).await?;
    let at = |after: Option<&str>| link(PATH, &[("level", level), ("name", name), ("after", after)]);
    let main = html! {
        h1 { "Locks" }
        (parts::filters(PATH, html! {
            label { "Level" input name="level" value=[level] maxlength="128" size="16"; }
            label { "Resource" input name="name" value=[name] maxlength="128" size="22"; }
        }))
        @if locks.is_empty() {
            p.empty {
                @if next.is_some() { "None of the locks that were looked at is of a job that you may read. There are more." }
                @else if after.is_some() { "No more locks." }
                @else if level.is_some() || name.is_some() { "No job holds such a lock or waits for one." }
                @else { "No job holds a lock or waits for one." }
            }
        } @else { (table(&locks, now_us)) }
        (parts::pages(at, after, next.as_deref()))
    };
    Ok(layout::live(&visit.shell, "Locks", main))
}

/// A row for each job, and the lock itself once for all rows that follow each other.
fn table(locks: &[Locker], now_us: i64) -> Markup {
    let place = |locker: &Locker| (locker.lock.level.clone(), locker.lock.name.clone());
    let rows = html! {
        @for (n, locker) in locks.iter().enumerate() {
            @let first = n == 0 || place(&locks[n - 1]) != place(locker);
            tr.first[first] data-k={ (locker.lock.level) "/" (locker.lock.name.as_deref().unwrap_or_default()) "/" (locker.job_type.as_deref().unwrap_or_default()) "/" (locker.id.as_deref().unwrap_or_default()) } {
                th scope="row" {
                    @if first { (shown(&locker.lock)) } @else { span.unseen { (shown(&locker.lock)) } }
                }
                td.id {
                    @match (&locker.job_type, &locker.id) {
                        (Some(job_type), Some(id)) => a href=(job_link(job_type, id)) { bdi { (id) } },
                        _ => span.quiet { "another tenant's job" },
                    }
                }
                td { (how(locker.how)) }
                td { (mode(&locker.lock)) }
                td { bdi { (locker.job_type.as_deref().unwrap_or("–")) } }
                td { bdi { (locker.tenant.as_deref().unwrap_or("–")) } }
                td.n { (since(locker.since_us, now_us)) }
            }
        }
    };
    html! {
        (parts::table("Locks", head(&[
            Text("Lock"), Text("Job"), Text("Does"), Text("Mode"), Text("Type"), Text("Tenant"), Number("For"),
        ]), rows))
    }
}

fn shown(lock: &Lock) -> Markup {
    let only = link(PATH, &[("level", Some(&lock.level)), ("name", lock.name.as_deref())]);
    html! {
        a href=(only) {
            bdi { (lock.level) }
            @match &lock.name { Some(name) => { " / " bdi { (name) } }, None => " (all of it)" }
        }
    }
}

fn how(how: LockHow) -> Markup {
    let (look, text) = match how {
        LockHow::Holds => ("running", "holds it"),
        LockHow::Waits => ("waiting", "waits for it"),
        LockHow::Reserved => ("pending", "has reserved it"),
    };
    html! { span class={ "state " (look) } { (text) } }
}

fn mode(lock: &Lock) -> Markup {
    html! {
        @match lock.mode { LockMode::Exclusive => "exclusive", LockMode::Shared => "shared" }
        @if lock.mode == LockMode::Shared && lock.units > 1 { span.quiet { ", " (lock.units) " units" } }
    }
}
