//! Groups: a list with how far each is, and the page of one with its callbacks, the groups in it, and what its jobs wait for.

use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use turnwise_api::groups::{self as v1, Which};
use turnwise_api::{GroupPath, group_why};
use turnwise_protocol::{BulkAction, Group, GroupCounts, GroupState, GroupWhy, jobs_of_group, names};

use super::format::{ago, jobs_of, number, text, time, word};
use super::parts::Column::{Number, Text};
use super::parts::{Question, head, hidden};
use super::problem::Result;
use super::redirect::redirect;
use super::visit::{Visit, job_link, link};
use super::{layout, parts};

const PATH: &str = "/ui/groups";
/// Number of groups in a page of the list.
const SHOWN: usize = 100;
/// Number of groups in a group that its page shows.
const SHOWN_INSIDE: usize = 20;

/// The page of a group.
pub(super) fn group_link(tenant: &str, name: &str) -> String {
    link("/ui/group", &[("tenant", Some(tenant)), ("name", Some(name))])
}

/// A bar with the part of a group's jobs that has ended.
pub(super) fn progress(counts: &GroupCounts) -> Markup {
    let ended = counts.total - counts.open;
    let told = format!("{} of {} have ended", number(ended), number(counts.total));
    html! { progress max=(counts.total.max(1)) value=(ended) aria-label="Progress" title=(told) {} }
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let (after, tenant, parent) = (query.get("after"), query.get("tenant"), query.get("parent"));
    let state: Option<GroupState> = query.word("state")?;
    let list = v1::list(&visit.app, visit.caller(), SHOWN, after, Which { tenant, state, parent }).await?;
    let state = state.map(GroupState::as_str);
    let next = |after: Option<&str>| {
        link(PATH, &[("tenant", tenant), ("state", state), ("parent", parent), ("after", after)])
    };
    let states = parts::ANY.into_iter().chain(GroupState::WORDS.map(|word| (word, word)));
    let fields = html! {
        label { "Tenant" input name="tenant" value=[tenant] maxlength="512"; }
        (parts::choice("State", "state", states, state))
        label { "In the group" input name="parent" value=[parent] maxlength="58"; }
    };
    let main = html! {
        h1 { "Groups" }
        (parts::done(query.get("did")))
        p.quiet { "Jobs that end together. When a group is closed and its last job has ended, the server adds its callback jobs, each once." }
        (parts::filters(PATH, fields))
        @if list.groups.is_empty() { p.empty { "There are no groups here." } } @else { (table(&list.groups, visit.app.now_us())) }
        (parts::pages(next, after, list.next.as_deref()))
    };
    Ok(layout::live(&visit.shell, "Groups", main))
}

fn table(groups: &[Group], now_us: i64) -> Markup {
    let rows = html! {
        @for group in groups {
            @let counts = &group.counts;
            tr data-k={ (group.tenant) "/" (group.name) } {
                th.id scope="row" { a href=(group_link(&group.tenant, &group.name)) { bdi { (group.name) } } }
                td.id { bdi { (group.tenant) } }
                td { (state(group.state)) }
                td { (progress(counts)) }
                td.n { (number(counts.open)) }
                td.n { (number(counts.completed)) }
                td.n { (number(counts.failed)) }
                td.n { (number(counts.cancelled + counts.removed)) }
                td.when { (ago(group.ended_us.unwrap_or(group.created_us), now_us)) }
            }
        }
    };
    let columns = [
        Text("Group"),
        Text("Tenant"),
        Text("State"),
        Text("Progress"),
        Number("Not ended"),
        Number("Completed"),
        Number("Failed"),
        Number("Cancelled or removed"),
        Text("Ended or created"),
    ];
    parts::table("Groups", head(&columns), rows)
}

fn state(state: GroupState) -> Markup {
    html! {
        @match state {
            GroupState::Open | GroupState::Closed => (state.as_str()),
            ended => span class={ "state " (ended.as_str()) } { (ended.as_str()) },
        }
    }
}

/// The page of one group.
pub(super) async fn one(visit: Visit) -> Result<Response> {
    let (app, caller, now_us) = (&visit.app, visit.caller(), visit.app.now_us());
    let path = path_of(&visit.query)?;
    let group = v1::one(app, caller, &path).await?;
    let why = match visit.query.get("why") {
        Some(_) => Some(group_why::why(app, caller, &path).await?),
        None => None,
    };
    let which = Which { tenant: Some(&group.tenant), parent: Some(&group.name), state: None };
    let inside = v1::list(app, caller, SHOWN_INSIDE, None, which).await?;
    let main = html! {
        p.crumbs { a href=(PATH) { "Groups" } }
        h1 { bdi { (group.name) } }
        (parts::done(visit.query.get("did")))
        p { (state(group.state)) " " span.quiet { (number(group.counts.total - group.counts.open)) " of " (jobs_of(group.counts.total)) " ended" } }
        (progress(&group.counts))
        @if caller.writes(&group.tenant) { (buttons(&group)) }
        div.columns {
            section { h2 { "Its jobs" } (counts(&group)) }
            section { h2 { "Group" } (facts(&group, now_us)) }
        }
        @if let Some(why) = &why {
            (waits(why))
        } @else if group.counts.open > 0 {
            p { a href=(link("/ui/group", &[("tenant", Some(&group.tenant)), ("name", Some(&group.name)), ("why", Some("1"))])) { "What its jobs wait for" } }
        }
        @if !group.callbacks.is_empty() { section { h2 { "Callbacks" } (callbacks(&group, now_us)) } }
        @if !inside.groups.is_empty() || inside.next.is_some() {
            section {
                h2 { "Groups in it" }
                (table(&inside.groups, now_us))
                @if inside.next.is_some() {
                    p { a href=(link(PATH, &[("tenant", Some(&group.tenant)), ("parent", Some(&group.name))])) { "All of them" } }
                }
            }
        }
    };
    // The reasons are read when a person asks.
    Ok(match why {
        Some(_) => layout::page(&visit.shell, &group.name, main),
        None => layout::live(&visit.shell, &group.name, main),
    })
}

fn path_of(fields: &super::visit::Fields) -> Result<GroupPath> {
    let path = GroupPath {
        tenant: fields.get("tenant").unwrap_or("default").to_owned(),
        group: fields.get("name").unwrap_or_default().to_owned(),
    };
    names::check_name("tenant", &path.tenant)?;
    names::check_group("name", &path.group)?;
    Ok(path)
}

/// What can be done with a group. Its jobs are changed by bulk operations, which ask first.
fn buttons(group: &Group) -> Markup {
    let here = group_link(&group.tenant, &group.name);
    let condition = jobs_of_group(&group.tenant, &group.name);
    let ask = |condition: &str, buttons: Markup| {
        html! { form.inline.acts action="/ui/bulk/ask" { (hidden("where", condition)) (hidden("back", &here)) (buttons) } }
    };
    let button =
        |action: BulkAction, title: &str| html! { button name="action" value=(action.as_str()) { (title) } };
    let is_over = group.ended_us.is_some();
    html! {
        div.actions {
            @if let Some(condition) = &condition {
                @if group.counts.open > 0 {
                    (ask(condition, html! {
                        (button(BulkAction::Hold, "Hold…")) (button(BulkAction::Release, "Release…")) (button(BulkAction::Cancel, "Cancel…"))
                    }))
                }
                @if group.counts.failed > 0 {
                    (ask(&format!("{condition} and state = failed"), button(BulkAction::Retry, "Retry the failed ones…")))
                }
            }
            @if !is_over || group.counts.open == 0 {
                form.inline.acts method="post" action=(PATH) {
                    (hidden("tenant", &group.tenant))
                    (hidden("name", &group.name))
                    @if group.state == GroupState::Open { button name="do" value="close" { "Close" } }
                    @if is_over { button.danger name="do" value="remove" { "Remove…" } }
                }
            }
        }
    }
}

/// How its jobs have ended, each number with a link to the jobs.
fn counts(group: &Group) -> Markup {
    let counts = &group.counts;
    let condition = jobs_of_group(&group.tenant, &group.name);
    let jobs = |jobs: u64, further: &str| {
        let link = condition
            .as_ref()
            .map(|condition| link("/ui/jobs", &[("where", Some(&format!("{condition}{further}")))]));
        html! { @match link { Some(link) => a href=(link) { (number(jobs)) }, None => (number(jobs)) } }
    };
    html! {
        dl {
            dt { "Not ended" } dd { (jobs(counts.open, " and not state in (completed, failed, cancelled)")) }
            dt { "Completed" } dd { (jobs(counts.completed, " and state = completed")) }
            dt { "Failed" } dd { (jobs(counts.failed, " and state = failed")) }
            dt { "Cancelled" } dd { (jobs(counts.cancelled, " and state = cancelled")) }
            @if counts.removed > 0 { dt { "Removed before their ends" } dd { (number(counts.removed)) } }
            dt { "All" } dd { (jobs(counts.total, "")) }
            @if counts.failures > 0 { dt { "Failures, with those that were retried" } dd { (number(counts.failures)) } }
            @if group.retried > 0 { dt { "Retried after its end" } dd { (number(group.retried)) } }
        }
        p.quiet { "A group in it counts as one job. The records of some jobs may be gone." }
    }
}

fn facts(group: &Group, now_us: i64) -> Markup {
    html! {
        dl {
            dt { "Tenant" } dd { bdi { (group.tenant) } }
            @if let Some(parent) = &group.parent { dt { "In the group" } dd { a href=(group_link(&group.tenant, parent)) { bdi { (parent) } } } }
            @if let Some(most) = group.at_once { dt { "Run at the same time" } dd { "at most " (number(u64::from(most))) } }
            dt { "Created" } dd { (time(group.created_us)) " (" (ago(group.created_us, now_us)) ")" @if let Some(by) = &group.by { " by " bdi { (by) } } }
            @if let Some(at_us) = group.ended_us { dt { "Ended" } dd { (time(at_us)) " (" (ago(at_us, now_us)) ")" } }
            @if let Some(ended) = group.ended_counts.filter(|ended| *ended != group.counts) {
                dt { "At its end" }
                dd { (number(ended.completed)) " completed, " (number(ended.failed)) " failed, " (number(ended.cancelled + ended.removed)) " cancelled or removed" }
            }
            @if let Some(at_us) = group.removed_us { dt { "Is removed" } dd { (time(at_us)) " (" (ago(at_us, now_us)) ")" } }
        }
    }
}

fn callbacks(group: &Group, now_us: i64) -> Markup {
    let rows = html! {
        @for on in &group.callbacks {
            @let called = group.called.iter().find(|called| called.on == *on);
            tr {
                th scope="row" { (word(on).replace('_', " ")) }
                td {
                    @match called {
                        Some(called) => {
                            @if let Some(reason) = &called.reason { span.problem { "refused: " (text(reason)) } }
                            @else { a href=(job_link(&called.job_type, &called.id)) { bdi { (called.job_type) " " (called.id) } } }
                        }
                        None => span.quiet { @if group.ended_us.is_some() { "not added" } @else { "not added yet" } },
                    }
                }
                td.when { @if let Some(called) = called { (ago(called.at_us, now_us)) } }
            }
        }
    };
    parts::table("Callbacks", head(&[Text("When"), Text("Job"), Text("Added")]), rows)
}

fn waits(why: &GroupWhy) -> Markup {
    let rows = html! {
        @for of in &why.reasons {
            tr {
                th scope="row" { (of.reason.as_str().replace('_', " ")) }
                td.n { (number(of.jobs)) }
                td.id { a href=(job_link(&of.job_type, &of.id)) { bdi { (of.job_type) " " (of.id) } } }
                td { (text(&of.sentence)) }
            }
        }
    };
    html! {
        section id="why" {
            h2 { "What its jobs wait for" }
            p.lead { (why.sentence) }
            @if !why.reasons.is_empty() {
                (parts::table("Reasons", head(&[Text("Reason"), Number("Jobs"), Text("Such as"), Text("Why")]), rows))
            }
            @if !why.complete { p.quiet { "These are " (number(why.looked_at)) " of its jobs: at most 20 in each state were looked at." } }
            @if !why.groups.is_empty() {
                p { "Groups in it that have not ended: " @for name in &why.groups { a href=(group_link(&why.tenant, name)) { bdi { (name) } } " " } }
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Do {
    Close,
    Remove,
}

/// Closes or removes a group.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let (app, caller, form) = (&visit.app, visit.caller(), &visit.form);
    let path = path_of(form)?;
    let here = group_link(&path.tenant, &path.group);
    match form.action::<Do>("do")? {
        Do::Close => {
            v1::close(app, caller, &path).await?;
            Ok(redirect(&format!("{here}&did=closed")))
        }
        Do::Remove if form.get("confirmed").is_some() => {
            v1::remove(app, caller, &path).await?;
            Ok(redirect(&format!("{PATH}?did=removed")))
        }
        Do::Remove => {
            let question = Question {
                title: "Remove this group?",
                subject: html! { bdi { (path.group) } },
                effect: "Its numbers go. Its jobs stay.",
                button: "Remove the group",
                action: PATH,
                fields: html! { (hidden("tenant", &path.tenant)) (hidden("name", &path.group)) (hidden("do", "remove")) },
                back: &here,
            };
            Ok(question.page(&visit.shell))
        }
    }
}
