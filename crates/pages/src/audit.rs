//! The last requests that changed something, as this node has logged them.

use std::sync::Arc;

use axum::response::Response;
use maud::{Markup, html};
use turnwise_web::access::AuditEntry;

use super::format::moment;
use super::parts::Column::{Number, Text};
use super::parts::head;
use super::problem::{Problem, Result};
use super::visit::{Visit, link};
use super::{layout, parts};

const PATH: &str = "/ui/audit";
/// Number of lines that are read.
const MAX_LINES: usize = 2_000;
/// Number of lines that are shown.
const SHOWN: usize = 200;

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let text = visit.query.get("q").map(str::to_lowercase);
    let lines = match &visit.app.audit {
        None => None,
        Some(audit) => {
            let audit = Arc::clone(audit);
            let read = tokio::task::spawn_blocking(move || audit.last(MAX_LINES)).await;
            Some(
                read.map_err(|error| Problem::internal(&error))?
                    .map_err(|error| Problem::internal(&error))?,
            )
        }
    };
    let main = html! {
        h1 { "Audit log" }
        @match lines {
            None => p.empty { "This node keeps no audit log. " code { "[audit] file" } " in its configuration file names one." },
            Some(lines) => {
                p.quiet { "Requests that changed something, newest first, as this node, " bdi { (visit.app.node) } ", has logged them. Each node has its own file." }
                (parts::filters(PATH, html! {
                    label { "Contains" input type="search" name="q" value=[visit.query.get("q")] maxlength="200" size="22" placeholder="who, path, address"; }
                }))
                (table(&lines.into_iter().filter(|line| text.as_ref().is_none_or(|text| contains(line, text))).take(SHOWN).collect::<Vec<_>>()))
            }
        }
    };
    Ok(layout::live(&visit.shell, "Audit log", main))
}

fn contains(line: &AuditEntry, text: &str) -> bool {
    let who = line.who.as_deref().unwrap_or_default();
    let address = line.address.to_string();
    [who, &line.path, &address, &line.method].into_iter().any(|field| field.to_lowercase().contains(text))
}

fn table(lines: &[AuditEntry]) -> Markup {
    let rows = html! {
        @for line in lines {
            tr {
                td.when { (moment(&line.at)) }
                td { @match &line.who { Some(who) => a href=(link(PATH, &[("q", Some(who))])) { bdi { (who) } }, None => span.quiet { "nobody" } } }
                td { code { (line.method) " " bdi { (line.path) } } }
                td.n { @match line.status { Some(status) => (status), None => span.quiet title="The client closed the connection first" { "unknown" } } }
                td { (line.address) @if line.left_out > 0 { div.quiet { (line.left_out) " lines of strangers were left out before this one" } } }
            }
        }
    };
    let columns = [Text("When"), Text("Who"), Text("Request"), Number("Status"), Text("Address")];
    html! { @if lines.is_empty() { p.empty { "No line matches." } } @else { (parts::table("Audit log", head(&columns), rows)) } }
}
