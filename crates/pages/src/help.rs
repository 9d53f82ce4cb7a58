//! The keys, and what the states of jobs mean.

use axum::response::Response;
use maud::{Markup, html};

use super::format::{STATES, state};
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
