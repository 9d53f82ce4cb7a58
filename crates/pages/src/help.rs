//! The keys, and what the states of jobs mean.

use axum::response::Response;
use maud::{Markup, html};
use turnwise_protocol::State;

use super::format::state;
use super::layout::{self, NAVIGATION};
use super::problem::Result;
use super::visit::Visit;

const KEYS: [(&str, &str); 5] = [
    ("/", "search jobs by id"),
    ("r", "refresh now"),
    ("p", "pause or continue the refresh"),
    ("?", "this help"),
    ("Esc", "close this help, leave a field"),
];

const STATES: [(State, &str); 11] = [
    (State::Pending, "in the queue of its tenant, ready to start"),
    (State::Running, "a worker runs it"),
    (State::Waiting, "a worker runs it, and it waits for a lock"),
    (State::Delayed, "added for later, or parked until its source changes"),
    (State::Blocked, "waits until its dependencies have ended"),
    (State::Paused, "waits until the filter that pauses it is removed"),
    (State::Limited, "waits until its concurrency limit has room"),
    (State::Crashing, "crashed, and waits until its backoff is over"),
    (State::Completed, "completed"),
    (State::Failed, "failed permanently: its attempts are used up, or its worker gave up"),
    (State::Cancelled, "cancelled by a person, by a filter, or because of a dependency"),
];

pub(super) async fn page(visit: Visit) -> Result<Response> {
    Ok(layout::page(&visit.shell, "Help", content()))
}

fn content() -> Markup {
    html! {
        h1 { "Help" }
        div.columns {
            section {
                h2 { "Keys" }
                table.plain {
                    tbody {
                        @for (key, path, name, _) in NAVIGATION {
                            tr { th scope="row" { kbd { "g" } " " kbd { (key) } } td { "go to " a href=(path) { (name) } } }
                        }
                        @for (key, what) in KEYS { tr { th scope="row" { kbd { (key) } } td { (what) } } }
                    }
                }
            }
            section {
                h2 { "States of jobs" }
                table.plain {
                    tbody { @for (of, meaning) in STATES { tr { th scope="row" { (state(of)) } td { (meaning) } } } }
                }
            }
        }
        p.quiet {
            "Everything on these pages is also in the " a href="/v1/openapi.json" data-full { "API" }
            ", and in the commands of " code { "turnwise" } "."
        }
    }
}
