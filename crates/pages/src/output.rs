//! What the runs of a job are given, and what they leave: options, errors with their traces, and results.

use maud::{Markup, html};
use serde_json::value::RawValue;
use turnwise_api::output::shows_options;
use turnwise_protocol::{EventKind, Job, JobError, MAX_SHOWN_OPTIONS_BYTES, State};

use super::format::{ago, number, size, text, time};
use super::json::{pretty, texts};
use super::visit::{Visit, api_link};

/// The most errors of a page. Each has a trace, and a server may be set to keep many.
const MAX_ERRORS: usize = 20;

/// Why the job failed or crashes: the latest error, and the earlier ones folded. `unsaid` is its reason, if the page does not have it yet.
pub(super) fn errors(job: &Job, unsaid: Option<&str>, now_us: i64) -> Markup {
    let is_over = matches!(job.state, State::Completed | State::Cancelled);
    // An error without a class and a trace is in the history alone.
    let failed =
        job.history.iter().find(|event| matches!(event.kind, EventKind::Crashed | EventKind::Failed));
    let (latest, earlier) = match &job.errors[..] {
        [latest, earlier @ ..] if !is_over && failed.is_some_and(|end| end.at_us == latest.at_us) => {
            (Some(latest), earlier)
        }
        all => (None, all),
    };
    html! {
        @if latest.is_some() || unsaid.is_some() || !earlier.is_empty() {
            section {
                h2 { @if latest.is_some() || unsaid.is_some() { "Error" } @else { "Errors of its attempts" } }
                @match (latest, unsaid) {
                    (Some(latest), _) => (error(latest, now_us)),
                    (None, Some(reason)) => (text(reason)),
                    (None, None) => {}
                }
                @for one in earlier.iter().take(MAX_ERRORS) {
                    details.earlier data-k=(one.at_us) {
                        summary { "Attempt " (one.attempt) @if let Some(class) = &one.class { ": " bdi { (class) } } " " span.quiet { (ago(one.at_us, now_us)) } }
                        (error(one, now_us))
                    }
                }
                @if earlier.len() > MAX_ERRORS { p.quiet { "Further errors are in the API." } }
            }
        }
    }
}

fn error(JobError { at_us, attempt, class, message, trace }: &JobError, now_us: i64) -> Markup {
    html! {
        div.error {
            p {
                @if let Some(class) = class { strong.bad { bdi { (class) } } " " }
                span.quiet { "in attempt " (attempt) ", " (time(*at_us)) " (" (ago(*at_us, now_us)) ")" }
            }
            @if !message.is_empty() { p.message { bdi { (message) } } }
            @if let Some(trace) = trace { pre tabindex="0" aria-label="Trace" { bdi { (trace) } } }
        }
    }
}

/// The input of the job's handler, as it was written.
pub(super) fn options(visit: &Visit, job: &Job) -> Markup {
    let all = api_link(&job.job_type, &job.id, "options");
    html! {
        section {
            h2 { "Options" }
            @match &job.options {
                Some(options) if options.get() == "{}" => p.quiet { "It has none." },
                Some(options) => (block(options.get(), &all)),
                None if shows_options(visit.caller(), &job.job_type, &job.tenant) => {
                    p { "They have more than " (MAX_SHOWN_OPTIONS_BYTES >> 10) " kB: " a href=(all) { "all options as JSON" } }
                }
                None if visit.caller().writes(&job.tenant) => {
                    p.quiet { "They are shown to no one: those of this type may hold secrets." }
                }
                None => p.quiet { "They are shown to those who may change the job." },
            }
        }
    }
}

/// JSON in lines, and a link to all of it if it is long.
fn block(json: &str, all: &str) -> Markup {
    let (shown, is_all) = pretty(json);
    html! {
        pre tabindex="0" { bdi { (shown) @if !is_all { "…" } } }
        @if !is_all { p { "This is the beginning: " a href=(all) { "all of it as JSON" } } }
    }
}

/// The result: JSON in lines, or what it is and a link.
pub(super) fn result(job: &Job) -> Markup {
    let all = api_link(&job.job_type, &job.id, "result");
    html! {
        @match (&job.result, job.result_bytes) {
            (Some(result), _) => (json("Result", result, &all)),
            (None, Some(bytes)) => section {
                h2 { "Result" }
                p {
                    @match &job.result_type { Some(of) => bdi { (of) }, None => "JSON" }
                    ", " (size(bytes)) @if bytes >= 10_000 { span.quiet { " (" (number(bytes)) " bytes)" } }
                }
                p { a.button href=(all) download { "Download the result" } }
            },
            (None, None) => {}
        }
    }
}

/// A section with JSON, unless it is empty. Texts with lines of their own, such as the output of a command, are shown as they are.
pub(super) fn json(title: &str, raw: &RawValue, all: &str) -> Markup {
    if matches!(raw.get(), "{}" | "null") {
        return html! {};
    }
    let (texts, rest) = texts(raw.get());
    html! {
        section {
            h2 { (title) }
            @for (name, text) in texts { p.quiet { bdi { (name) } } pre tabindex="0" { bdi { (text) } } }
            @if let Some(rest) = rest { (block(&rest, all)) }
        }
    }
}
