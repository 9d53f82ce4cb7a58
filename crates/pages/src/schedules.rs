//! Schedules: a list with the next and the last fire of each, the page of one, and a form to add one with a preview.

use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use turnwise_api::schedules as v1;
use turnwise_protocol::schedules::check_schedule_name;
use turnwise_protocol::{
    AddJob, FireOutcome, Missed, Moved, NewJob, Overlap, PausedBy, PreviewedFire, PutSchedule, Schedule,
    ScheduleFire, SchedulePreview, ScheduleState, UniqueWithin, When,
};
use turnwise_queue::parse_timestamp;
use turnwise_web::access::rights::Right;

use super::format::{ago, duration, number, text, time};
use super::parts::Column::{Actions, Text};
use super::parts::{Question, field, head, hidden};
use super::problem::{Problem, Result, sentence, with_status};
use super::redirect::redirect;
use super::visit::{Fields, Visit, job_link, link};
use super::{job_new, jobs, layout, parts};

const PATH: &str = "/ui/schedules";
/// Number of schedules in a page of the list.
const SHOWN: usize = 100;
/// The zones that the form offers. Any other one may be typed.
const ZONES: [&str; 10] = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Paris",
    "America/New_York",
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Asia/Tokyo",
    "Australia/Sydney",
];

/// What happens while an earlier job has not ended.
const OVERLAPS: [(Overlap, &str); 4] = [
    (Overlap::Skip, "Skip the fire"),
    (Overlap::Allow, "Add the job: both may run"),
    (Overlap::Queue, "Add one job, which waits for the end of the earlier one"),
    (Overlap::CancelRunning, "Cancel the earlier job, and add one"),
];
/// What happens to missed fires.
const MISSED: [(Missed, &str); 3] = [
    (Missed::One, "Make the last one late"),
    (Missed::Skip, "Make none of them"),
    (Missed::All, "Make all of them, at most 100 (not with “Skip the fire”)"),
];

/// The page of a schedule.
pub(super) fn schedule_link(name: &str) -> String {
    link("/ui/schedule", &[("name", Some(name))])
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    show(&visit, &visit.query, None, None).await
}

async fn show(
    visit: &Visit,
    fields: &Fields,
    problem: Option<&Problem>,
    preview: Option<&SchedulePreview>,
) -> Result<Response> {
    let (app, caller) = (&visit.app, visit.caller());
    let (after, tenant) = (visit.query.get("after"), visit.query.get("tenant"));
    let list = v1::list(app, caller, SHOWN, after, tenant).await?;
    let next = |after: Option<&str>| link(PATH, &[("tenant", tenant), ("after", after)]);
    let main = html! {
        h1 { "Schedules" }
        (parts::done(visit.query.get("did")))
        p.quiet { "A schedule adds a job at each of its times, exactly once." }
        (parts::filters(PATH, html! { label { "Tenant" input name="tenant" value=[tenant] maxlength="512"; } }))
        @if list.schedules.is_empty() { p.empty { "There are no schedules here." } } @else { (table(visit, &list.schedules)) }
        (parts::pages(next, after, list.next.as_deref()))
        @if Right::Write.check(caller).is_ok() { (form(fields, &jobs::types(visit).await?, problem, preview)) }
    };
    Ok(with_status(layout::page(&visit.shell, "Schedules", main), problem))
}

fn table(visit: &Visit, schedules: &[Schedule]) -> Markup {
    let now_us = visit.app.now_us();
    let rows = html! {
        @for schedule in schedules {
            tr data-k=(schedule.name) {
                th.id scope="row" { a href=(schedule_link(&schedule.name)) { bdi { (schedule.name) } } }
                td { bdi { (schedule.tenant) } }
                td { bdi { (schedule.job.job_type) } }
                td { (when(&schedule.when)) }
                td { (state(schedule)) @if let Some(next) = &schedule.next { div { (ago(next.at_us, now_us)) (moved(next)) } } }
                td { @if let Some(last) = schedule.fires.first() { (outcome(schedule, last)) div.quiet { (ago(last.fired_us, now_us)) } } }
                td { @if visit.caller().writes(&schedule.tenant) { (buttons(schedule, PATH)) } }
            }
        }
    };
    parts::table(
        "Schedules",
        head(&[
            Text("Schedule"),
            Text("Tenant"),
            Text("Type"),
            Text("When"),
            Text("Next"),
            Text("Last"),
            Actions,
        ]),
        rows,
    )
}

fn when(when: &When) -> Markup {
    html! {
        @match (&when.cron, when.every_ms) {
            (Some(cron), _) => { code { bdi { (cron) } } @if let Some(zone) = &when.zone { div.quiet { bdi { (zone) } } } }
            (None, Some(ms)) => {
                "every " (duration(ms.saturating_mul(1_000)))
                @if let Some(ms) = when.offset_ms { div.quiet { "moved by " (duration(ms.saturating_mul(1_000))) } }
            }
            (None, None) => { (number(when.dates_us.len() as u64)) " dates" }
        }
    }
}

fn state(schedule: &Schedule) -> Markup {
    html! {
        @match (schedule.state, schedule.paused_by) {
            (ScheduleState::Active, _) => {}
            (ScheduleState::Over, _) => span.quiet { "no fire any more" },
            (ScheduleState::Paused, Some(PausedBy::Failures)) => span.problem { "paused: its jobs fail" },
            (ScheduleState::Paused, Some(PausedBy::Operator)) => "paused by an operator",
            (ScheduleState::Paused, _) => "paused",
        }
    }
}

/// A mark for a fire that a change of clocks moves.
fn moved(fire: &PreviewedFire) -> Markup {
    html! {
        @match fire.moved {
            None => {}
            Some(Moved::Skipped) => span.problem { " moved: the clocks skip its time" },
            Some(Moved::Twice) => span.quiet { " the first of two: the clocks are set back" },
        }
    }
}

fn outcome(schedule: &Schedule, fire: &ScheduleFire) -> Markup {
    let said = match fire.outcome {
        FireOutcome::Added => "added",
        FireOutcome::Skipped => "skipped: an earlier job has not ended",
        FireOutcome::Missed => "missed",
        FireOutcome::Exists => "existed already",
        FireOutcome::Refused => "refused",
        FireOutcome::Found => "another job has its unique key",
        FireOutcome::Full => "not added: its tenant has as many waiting jobs as it may",
    };
    // That job may be of another type.
    let is_linked = fire.outcome != FireOutcome::Found
        || schedule.job.unique.as_ref().is_some_and(|unique| unique.within != UniqueWithin::Tenant);
    html! {
        @match fire.job.as_ref().filter(|_| is_linked) {
            Some(job) => a href=(job_link(&schedule.job.job_type, job)) { (said) },
            None => (said),
        }
        @if let Some(reason) = &fire.reason { div.problem { (text(reason)) } }
    }
}

fn buttons(schedule: &Schedule, back: &str) -> Markup {
    html! {
        form.inline.acts method="post" action=(PATH) {
            (hidden("name", &schedule.name))
            (hidden("back", back))
            @match schedule.state {
                ScheduleState::Paused => button name="do" value="resume" { "Resume" },
                _ => button name="do" value="pause" { "Pause" },
            }
            button name="do" value="fire" { "Fire now" }
            button.danger name="do" value="remove" { "Remove…" }
        }
    }
}

/// The page of one schedule.
pub(super) async fn one(visit: Visit) -> Result<Response> {
    let (app, caller) = (&visit.app, visit.caller());
    let name = visit.query.get("name").unwrap_or_default();
    check_schedule_name(name)?;
    let schedule = v1::one(app, caller, name).await?;
    let next =
        v1::preview(app, &schedule.when, None, None).await.map(|preview| preview.fires).unwrap_or_default();
    let main = html! {
        p.crumbs { a href=(PATH) { "Schedules" } }
        h1 { bdi { (schedule.name) } }
        (parts::done(visit.query.get("did")))
        @if caller.writes(&schedule.tenant) { (buttons(&schedule, &schedule_link(&schedule.name))) }
        section { (facts(&schedule, app.now_us())) }
        section {
            h2 { "Next fires" }
            @if schedule.state == ScheduleState::Paused { p.condition.warn { "It is paused, and makes none of them." } }
            @if next.is_empty() { p.empty { "It has no fire any more." } } @else { (fires_to_come(&next)) }
        }
        section {
            h2 { "Last fires" }
            @if schedule.fires.is_empty() { p.empty { "It has not fired yet." } } @else { (fires_made(&schedule)) }
        }
    };
    Ok(layout::live(&visit.shell, &schedule.name, main))
}

fn facts(schedule: &Schedule, now_us: i64) -> Markup {
    let named = |of: &[(Overlap, &'static str)]| {
        of.iter().find(|(of, _)| *of == schedule.overlap).map(|(_, title)| *title)
    };
    html! {
        dl {
            dt { "When" } dd { (when(&schedule.when)) }
            @if let Some(at_us) = schedule.when.from_us { dt { "From" } dd { (time(at_us)) } }
            @if let Some(at_us) = schedule.when.until_us { dt { "Until" } dd { (time(at_us)) } }
            dt { "Type" } dd { bdi { (schedule.job.job_type) } @if let Some(task) = &schedule.job.task { " / " bdi { (task) } } }
            dt { "Tenant" } dd { bdi { (schedule.tenant) } }
            @if let Some(locks) = schedule.derived_locks.as_ref().and_then(|locks| serde_json::to_string(locks).ok()) { dt { "Locks, by the catalogue" } dd { code { bdi { (locks) } } } }
            @if schedule.jitter_ms > 0 { dt { "Starts later by up to" } dd { (duration(schedule.jitter_ms.saturating_mul(1_000))) } }
            @if let Some(after) = schedule.pause_after { dt { "Pauses after failures in a row" } dd { (number(u64::from(after))) } }
            dt { "While an earlier job has not ended" } dd { (named(&OVERLAPS).unwrap_or_default()) }
            @if schedule.state == ScheduleState::Paused { dt { "Paused" } dd { (state(schedule)) @if let Some(at_us) = schedule.paused_us { " " (ago(at_us, now_us)) } } }
            @if let Some(failures) = schedule.failures.filter(|failures| *failures > 0) { dt { "Failures in a row" } dd { (number(u64::from(failures))) } }
            @if let Some(success) = &schedule.last_success { dt { "Last success" } dd { a href=(job_link(&schedule.job.job_type, &success.id)) { bdi { (success.id) } } } }
            @if let Some(note) = &schedule.note { dt { "Note" } dd { (text(note)) } }
            dt { "Changed" } dd { (time(schedule.changed_us)) @if let Some(by) = &schedule.by { " by " bdi { (by) } } }
            dt { "Time zone data" } dd { (schedule.zone_data) }
        }
    }
}

fn fires_to_come(fires: &[PreviewedFire]) -> Markup {
    let rows = html! {
        @for fire in fires { tr { td { (time(fire.at_us)) } td { (fire.local) } td { (moved(fire)) } } }
    };
    parts::table("Next fires", head(&[Text("Time"), Text("In its zone"), Text("Change of clocks")]), rows)
}

fn fires_made(schedule: &Schedule) -> Markup {
    let rows = html! {
        @for fire in &schedule.fires {
            tr { td { (time(fire.at_us)) } td { (time(fire.fired_us)) } td { (outcome(schedule, fire)) } }
        }
    };
    parts::table("Last fires", head(&[Text("Time"), Text("Made"), Text("Outcome")]), rows)
}

/// The fields with a place for what is wrong with them, and the members of the request that they stand for.
const FIELDS: [(&str, &[&str]); 12] = [
    ("name", &["name"]),
    ("type", &["job.type"]),
    ("cron", &["when.cron", "when"]),
    ("zone", &["when.zone"]),
    ("every_s", &["when.every_ms", "every_s"]),
    ("dates", &["when.dates_us", "dates"]),
    ("tenant", &["job.tenant", "tenant"]),
    ("options", &["job.options", "options"]),
    ("missed", &["missed"]),
    ("jitter_s", &["jitter_ms", "jitter_s"]),
    ("pause_after", &["pause_after"]),
    ("note", &["note"]),
];

fn form(
    fields: &Fields,
    types: &[String],
    problem: Option<&Problem>,
    preview: Option<&SchedulePreview>,
) -> Markup {
    let value = |name: &str| fields.get(name);
    let about = |field: &str| {
        let members = FIELDS.iter().find(|(of, _)| *of == field).map_or(&[][..], |(_, members)| members);
        let problem = problem.filter(|problem| members.iter().any(|member| problem.is_about(member)))?;
        let text = problem.text();
        Some(text.split_once(": ").map_or_else(|| text.clone(), |(_, rest)| sentence(rest)))
    };
    let is_beside = FIELDS.iter().any(|(field, _)| about(field).is_some());
    html! {
        section id="form" {
            h2 { "Add a schedule" }
            @if let Some(problem) = problem.filter(|_| !is_beside) { (problem.alert()) }
            form.fields method="post" action=(PATH) {
                (field("name", "Name", html! { input id="name" name="name" value=[value("name")] required maxlength="128"; },
                    html! { "A schedule with this name is replaced. Its jobs have the ids NAME@TIME." }, about("name").as_deref()))
                (field("type", "Type of its jobs", html! {
                    input id="type" name="type" value=[value("type")] list="types" required maxlength="64" autocomplete="off";
                    datalist id="types" { @for of in types { option value=(of) {} } }
                }, html! { "Workers that are registered for this type run them." }, about("type").as_deref()))
                div.pair {
                    (field("cron", "Cron expression", html! { input id="cron" name="cron" value=[value("cron")] maxlength="256" placeholder="30 2 * * *"; },
                        html! { "Minute, hour, day of the month, month, day of the week." }, about("cron").as_deref()))
                    (field("zone", "Time zone", html! {
                        input id="zone" name="zone" value=[value("zone")] list="zones" maxlength="64" placeholder="UTC";
                        datalist id="zones" { @for zone in ZONES { option value=(zone) {} } }
                    }, html! { "A name such as Europe/Berlin. Empty: UTC." }, about("zone").as_deref()))
                }
                (field("every_s", "Or every … seconds", html! { input id="every_s" type="number" name="every_s" min="1" max="315360000" value=[value("every_s")]; },
                    html! { "In place of a cron expression." }, about("every_s").as_deref()))
                (field("dates", "Or at these times", html! { textarea id="dates" name="dates" rows="3" spellcheck="false" placeholder="2026-12-24T08:00:00Z" { (value("dates").unwrap_or_default()) } },
                    html! { "One per line, with the offset from UTC or " code { "Z" } ": at most 1,000." }, about("dates").as_deref()))
                @if let Some(preview) = preview { div.condition role="status" { (fires_to_come(&preview.fires)) } }
                (field("tenant", "Tenant", html! { input id="tenant" name="tenant" value=[value("tenant")] maxlength="512" autocomplete="off"; },
                    html! { "Who is charged for its jobs. Without one, it is yours if you have one tenant, and otherwise " code { "default" } "." }, about("tenant").as_deref()))
                (field("options", "Options", html! { textarea id="options" name="options" rows="6" spellcheck="false" { (value("options").unwrap_or_default()) } },
                    html! { "The input of the handler, in JSON; of a replication, what " code { "POST /_replicate" } " takes. Empty: a schedule that exists keeps its options." }, about("options").as_deref()))
                (field("overlap", "While an earlier job has not ended", html! {
                    select id="overlap" name="overlap" { @for (of, title) in OVERLAPS { option value=(of.as_str()) selected[value("overlap") == Some(of.as_str())] { (title) } } }
                }, html! { "A skipped fire is shown as skipped." }, None))
                (field("missed", "Fires that no server made in time", html! {
                    select id="missed" name="missed" { @for (of, title) in MISSED { option value=(of.as_str()) selected[value("missed") == Some(of.as_str())] { (title) } } }
                }, html! { "Because no server ran for more than a minute." }, about("missed").as_deref()))
                div.pair {
                    (field("jitter_s", "Start up to … seconds later", html! { input id="jitter_s" type="number" name="jitter_s" min="0" max="86400" value=[value("jitter_s")]; },
                        html! { "By chance, for each job: at most a day." }, about("jitter_s").as_deref()))
                    (field("pause_after", "Pause after … failures", html! { input id="pause_after" type="number" name="pause_after" min="1" max="1000" value=[value("pause_after")]; },
                        html! { "Of its jobs, in a row. Empty: never." }, about("pause_after").as_deref()))
                }
                (field("note", "Note", html! { input id="note" name="note" value=[value("note")] maxlength="500"; },
                    html! { "Why it exists, for people." }, about("note").as_deref()))
                div.actions {
                    button.main[preview.is_none()] name="do" value="preview" { "Preview" }
                    button.main[preview.is_some()] name="do" value="save" { "Save" }
                    a.button href=(PATH) { "Reset" }
                }
            }
        }
    }
}

/// The times of these lines.
fn dates(lines: &str) -> Result<Vec<i64>> {
    let dates = lines.lines().map(str::trim).filter(|line| !line.is_empty());
    let read = |line: &str| {
        let wrong = || format!("dates: {line:?} is not a time like 2026-12-24T08:00:00Z");
        parse_timestamp(line).ok_or_else(|| Problem::bad(wrong(), "write one time per line"))
    };
    dates.map(read).collect()
}

fn stated_when(fields: &Fields) -> Result<When> {
    let every_s: Option<u64> = fields.number("every_s")?;
    let trimmed = |name: &str| fields.get(name).map(|text| text.trim().to_owned());
    Ok(When {
        cron: trimmed("cron"),
        zone: trimmed("zone"),
        every_ms: every_s.map(|s| s.saturating_mul(1_000)),
        dates_us: fields.get("dates").map(dates).transpose()?.unwrap_or_default(),
        ..When::default()
    })
}

/// The schedule that the form describes. The page has no other fields, and so the rest has its default.
fn put(fields: &Fields) -> Result<PutSchedule> {
    let options =
        fields.get("options").filter(|text| !text.trim().is_empty()).map(job_new::options).transpose()?;
    let job = AddJob { tenant: fields.get("tenant").map(str::to_owned), options, ..AddJob::default() };
    Ok(PutSchedule {
        when: stated_when(fields)?,
        job: NewJob::new(fields.get("type").unwrap_or_default().trim(), job),
        jitter_ms: fields.number("jitter_s")?.map(|s: u64| s.saturating_mul(1_000)),
        missed: fields.word("missed")?.unwrap_or_default(),
        most_missed: None,
        overlap: fields.word("overlap")?.unwrap_or_default(),
        pause_after: fields.number("pause_after")?,
        paused: None,
        note: fields.get("note").map(str::to_owned),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Do {
    Preview,
    Save,
    Pause,
    Resume,
    Fire,
    Remove,
}

/// Previews, writes, pauses, resumes, fires or removes a schedule.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let (app, caller, form) = (&visit.app, visit.caller(), &visit.form);
    let name = form.get("name").unwrap_or_default();
    let back = super::visit::back(form.get("back")).unwrap_or(PATH);
    let mark = if back.contains('?') { '&' } else { '?' };
    let done = |did: &str| Ok(redirect(&format!("{back}{mark}did={did}")));
    let action = form.action::<Do>("do")?;
    if matches!(action, Do::Pause | Do::Resume | Do::Fire | Do::Remove) {
        check_schedule_name(name)?;
    }
    match action {
        Do::Preview => match preview(&visit).await {
            Ok(preview) => show(&visit, form, None, Some(&preview)).await,
            Err(problem) => show(&visit, form, Some(&problem.correctable()?), None).await,
        },
        Do::Save => match save(&visit, name).await {
            Ok(()) => Ok(redirect(&format!("{}&did=saved", schedule_link(name)))),
            Err(problem) => show(&visit, form, Some(&problem.correctable()?), None).await,
        },
        Do::Pause => {
            v1::pause(app, caller, name).await.map_err(Problem::from).and_then(|_| done("unscheduled"))
        }
        Do::Resume => {
            v1::resume(app, caller, name).await.map_err(Problem::from).and_then(|_| done("scheduled"))
        }
        Do::Fire => v1::fire(app, caller, name).await.map_err(Problem::from).and_then(|_| done("fired")),
        Do::Remove if form.get("confirmed").is_some() => {
            v1::remove(app, caller, name).await?;
            Ok(redirect(&format!("{PATH}?did=removed")))
        }
        Do::Remove => {
            let question = Question {
                title: "Remove this schedule?",
                subject: html! { bdi { (name) } },
                effect: "It adds no jobs any more. The jobs that it has added stay.",
                button: "Remove the schedule",
                action: PATH,
                fields: html! { (hidden("name", name)) (hidden("do", "remove")) },
                back,
            };
            Ok(question.page(&visit.shell))
        }
    }
}

async fn preview(visit: &Visit) -> Result<SchedulePreview> {
    Ok(v1::preview(&visit.app, &stated_when(&visit.form)?, None, None).await?)
}

async fn save(visit: &Visit, name: &str) -> Result<()> {
    v1::write(&visit.app, visit.caller(), name, put(&visit.form)?).await?;
    Ok(())
}
