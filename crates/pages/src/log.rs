//! The last lines of a job's log. The script adds the lines of a running job as they are logged.

use maud::{Markup, html};
use turnwise_api as v1;
use turnwise_api::JobPath;
use turnwise_protocol::{Job, LogLine, LogPage, MAX_LIMIT};
use turnwise_queue::timestamp;

use super::app::App;
use super::format::{number, word};
use super::json::compact;
use super::problem::Result;
use super::visit::api_link;

/// Number of lines in the page.
const SHOWN: usize = 100;

/// The last lines of the job's log.
pub(super) async fn read(app: &App, path: &JobPath) -> Result<LogPage> {
    let tx = app.store.begin().await?;
    let end = v1::output::page(app, &tx, path, u64::MAX, 1).await?.next;
    Ok(v1::output::page(app, &tx, path, end.saturating_sub(SHOWN as u64), SHOWN).await?)
}

/// The section of the log, if there is one or may be one soon.
pub(super) fn shown(job: &Job, LogPage { lines, first, next }: &LogPage) -> Markup {
    let begin = lines.first().map_or(*next, |line| line.number);
    let logs = api_link(&job.job_type, &job.id, "logs");
    let follow = job.worker.is_some().then(|| format!("{logs}?follow=true"));
    html! {
        @if *next > 0 || follow.is_some() {
            section {
                h2 { "Log" }
                @if *next > 0 {
                    p.quiet {
                        @if *first > 0 { "The first " (number(*first)) " lines were dropped. " }
                        @if begin > *first { "This is the end of " (number(next - first)) " lines. " }
                        a href=(format!("{logs}?limit={MAX_LIMIT}")) { "All lines as JSON" }
                    }
                }
                div.log id="log" role="log" aria-live="off" aria-label="Log" tabindex="0" data-follow=[follow] data-next=(next) {
                    @for line in lines { (entry(line)) }
                }
                @if *next == 0 { p.quiet.nothing { "It has logged nothing yet." } }
            }
        }
    }
}

/// A line, as the function of the same name in the script makes it.
fn entry(LogLine { number, at_us, level, message, fields }: &LogLine) -> Markup {
    let (utc, level) = (fine(*at_us), word(level));
    html! {
        div class={ "entry " (level) } data-k=(number) {
            time datetime=(utc) data-fine { (utc.replace('T', " ").replace('Z', " UTC")) }
            span.level { (level) }
            span.said {
                bdi { (message) }
                @if let Some(fields) = fields { " " code.more { bdi { (compact(fields.get())) } } }
            }
        }
    }
}

/// A time with its milliseconds, in UTC.
fn fine(at_us: i64) -> String {
    let ms = at_us.rem_euclid(1_000_000) / 1_000;
    format!("{}.{ms:03}Z", timestamp(at_us).trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_lines_have_milliseconds() {
        assert_eq!(fine(1_700_000_000_012_345), "2023-11-14T22:13:20.012Z");
    }
}
