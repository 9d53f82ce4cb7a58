//! The indexes of CouchDB servers: how far each is behind, its last build, and what is wrong with it.

use axum::response::Response;
use maud::{Markup, html};
use turnwise_api::indexes::{IndexesParams, indexes};
use turnwise_indexer::jobs::JOB_TYPE;
use turnwise_protocol::{DEFAULT_LIMIT, Index, Indexes, State};

use super::format::{ago, duration, number, or_dash};
use super::parts::Column::{Number, Text};
use super::parts::{ANY, choice, head, pages};
use super::problem::{Result, sentence};
use super::visit::{Visit, job_link, link};
use super::{layout, parts};

const PATH: &str = "/ui/indexes";
/// The states by which the page filters.
const STATES: [&str; 6] = ["pending", "running", "delayed", "crashing", "failed", "cancelled"];

pub(super) async fn page(visit: Visit) -> Result<Response> {
    let query = &visit.query;
    let [server, database, tenant, after] =
        ["server", "database", "tenant", "after"].map(|name| query.get(name));
    let state = query.get("state");
    let params = IndexesParams {
        server: server.map(str::to_owned),
        database: database.map(str::to_owned),
        tenant: tenant.map(str::to_owned),
        state: query.word::<State>("state")?,
        limit: DEFAULT_LIMIT,
        after: after.map(str::to_owned),
    };
    let filters = [("server", server), ("database", database), ("tenant", tenant), ("state", state)];
    let is_filtered = filters.iter().any(|(_, value)| value.is_some());
    let Indexes { indexes, next } = indexes(&visit.app, visit.caller(), params).await?;
    let at = |after: Option<&str>| link(PATH, &[filters.as_slice(), &[("after", after)]].concat());
    let main = html! {
        h1 { "Indexes" }
        p.quiet { "The indexes of the CouchDB servers in " code { "[indexing] servers" } ". Each is a job of type " code { (JOB_TYPE) } " that is woken when its database changes." }
        (parts::filters(PATH, html! {
            label { "Server" input name="server" value=[server] maxlength="128" size="18"; }
            label { "Database" input name="database" value=[database] maxlength="128" size="18"; }
            label { "Tenant" input name="tenant" value=[tenant] maxlength="128" size="14"; }
            (choice("State", "state", ANY.into_iter().chain(STATES.map(|of| (of, of))), state))
        }))
        @if indexes.is_empty() {
            p.empty {
                @if next.is_some() { "None of the indexes that were looked at matches. There are more." }
                @else if after.is_some() { "No more indexes." }
                @else if is_filtered { "No index matches." }
                @else { "There are no indexes." }
            }
        } @else { (table(&indexes, visit.app.now_us())) }
        (pages(at, after, next.as_deref()))
    };
    Ok(layout::live(&visit.shell, "Indexes", main))
}

fn table(indexes: &[Index], now_us: i64) -> Markup {
    let rows = html! {
        @for index in indexes {
            tr data-k=(index.id) {
                th.id scope="row" {
                    a href=(job_link(JOB_TYPE, &index.id)) { bdi { (index.database) } "/" bdi { (index.design) } }
                    div.quiet { (index.kind.as_str()) " on " bdi { (index.server) } }
                }
                td { bdi { (index.tenant) } }
                td { (state(index, now_us)) }
                td.n { @match index.changes_behind { Some(behind) => (number(behind)), None => span.quiet { "unknown" } } }
                td.n { (or_dash(index.seconds_behind.map(|behind| duration(behind.saturating_mul(1_000_000))))) }
                td { @match &index.built {
                    Some(built) => {
                        (ago(built.ended_us, now_us))
                        div.quiet { (number(built.changes)) " changes in " (duration(built.took_ms.saturating_mul(1_000))) }
                    },
                    None => span.quiet { "none yet" },
                } }
                td.n { (or_dash(index.built.as_ref().map(|built| built.size_bytes).filter(|bytes| *bytes > 0).map(size))) }
            }
        }
    };
    html! {
        (parts::table("Indexes", head(&[
            Text("Index"), Text("Tenant"), Text("State"), Number("Changes behind"), Number("Behind for"), Text("Last build"), Number("Size"),
        ]), rows))
    }
}

fn state(index: &Index, now_us: i64) -> Markup {
    html! {
        @if index.parked { "up to date" } @else { (index.state.as_str()) }
        @if let Some(building) = &index.building {
            div.quiet {
                (number(building.done)) " of " (number(building.total)) " changes"
                @if let Some(ends_us) = building.ends_us.filter(|ends_us| *ends_us > now_us) { ", about " (duration((ends_us - now_us).unsigned_abs())) " left" }
            }
        }
        @if let Some(error) = &index.error { div.problem { bdi { (sentence(error)) } } }
    }
}

/// A size in the unit that leaves one to three digits before the point.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    let mut unit = 0;
    let mut tenths = bytes / 100;
    while tenths >= 10_000 && unit + 1 < UNITS.len() {
        tenths /= 1_000;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}
