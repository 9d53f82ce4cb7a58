//! All settings: their values, where these are set, and what they mean.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::response::Response;
use maud::{Markup, html};
use turnwise_config::{Changes, Config, Entry, SETTINGS, TENANT_SHARES, TYPE_TIMEOUTS};
use turnwise_couch::setting_error;

use super::format::{or_dash, text};
use super::parts::Column::Text;
use super::parts::{head, hidden};
use super::problem::{Problem, Result, sentence, with_status};
use super::redirect::redirect;
use super::visit::{Visit, link};
use super::{layout, parts};

const PATH: &str = "/ui/settings";
/// Maximum number of tenants and types with a value that a page shows.
const MAX_NAMED: usize = 500;
/// The documentation of all settings. A test of the configuration compares it with them.
const MANUAL: &str = include_str!("../../../docs/configuration.md");

/// The meaning of each setting, by section and key.
static MEANINGS: LazyLock<BTreeMap<(String, String), String>> = LazyLock::new(|| meanings(MANUAL));

/// Reads the table of settings. A section stands in its first row, and a row may have several keys.
fn meanings(manual: &str) -> BTreeMap<(String, String), String> {
    let rows = manual.lines().skip_while(|line| !line.starts_with("| section | key |")).skip(2);
    let (mut section, mut found) = (String::new(), BTreeMap::new());
    for row in rows.take_while(|line| line.starts_with('|')) {
        // A bar within a cell is escaped.
        let row = row.replace("\\|", "\0");
        let cells: Vec<&str> = row.trim_matches('|').splitn(5, '|').map(str::trim).collect();
        let [of, keys, _, _, meaning] = cells[..] else { continue };
        if !of.is_empty() {
            section = of.trim_matches('`').to_owned();
        }
        for key in keys.split(',').map(|key| key.trim().trim_matches('`')) {
            found.insert((section.clone(), key.to_owned()), plain(meaning));
        }
    }
    found
}

/// A cell of the manual without its marks: backquotes, and the addresses of links.
fn plain(cell: &str) -> String {
    let (mut text, mut rest) = (String::new(), cell);
    while let Some((before, link)) = rest.split_once("](") {
        let (before, title) = before.rsplit_once('[').unwrap_or((before, ""));
        text += before;
        text += title;
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    text += rest;
    text.replace('`', "").replace('\0', "|")
}

/// A setting, or the value of a tenant or type.
struct Row {
    section: &'static str,
    key: String,
    value: Option<String>,
    default: Option<String>,
    /// `None`: the default applies.
    set_in: Option<&'static str>,
    changes: Changes,
    hides: bool,
}

pub(super) async fn page(visit: Visit) -> Result<Response> {
    list(&visit, None).await
}

/// What is wrong with a value that was sent.
struct Wrong<'a> {
    section: &'a str,
    key: &'a str,
    value: &'a str,
    problem: Problem,
}

async fn list(visit: &Visit, wrong: Option<Wrong<'_>>) -> Result<Response> {
    let wanted = visit.query.get("q").map(str::to_lowercase);
    let only = visit.query.get("set").is_some();
    let (now, file, shared) = visit.app.couch.shared.layers().await?;
    let mut rows = rows(&now, &file, |section, key| shared.contains(&(section.to_owned(), key.to_owned())));
    let is_wrong = |row: &Row| {
        wrong.as_ref().is_some_and(|wrong| (wrong.section, wrong.key) == (row.section, &*row.key))
    };
    rows.retain(|row| {
        let matches = wanted.as_ref().is_none_or(|text| {
            let meaning = meaning(row).unwrap_or_default();
            [row.section, &row.key, meaning].iter().any(|field| field.to_lowercase().contains(text))
        });
        is_wrong(row) || (matches && (!only || row.set_in.is_some()))
    });
    let main = html! {
        h1 { "Settings" }
        (parts::done(visit.query.get("did")))
        p.quiet {
            "A value that is set here applies to all nodes at once, and overrides each server's file. "
            "The values of the file are those of this node, " bdi { (visit.app.node) } "."
        }
        (parts::filters(PATH, html! {
            label { "Contains" input type="search" name="q" value=[visit.query.get("q")] maxlength="200" size="22"; }
            label.check { input type="checkbox" name="set" value="1" checked[only]; "only those that differ from the default" }
        }))
        @if let Some(wrong) = wrong.as_ref().filter(|_| !rows.iter().any(is_wrong)) { (wrong.problem.alert()) }
        @if rows.is_empty() { p.empty { "No setting matches." } }
        @for rows in rows.chunk_by(|one, next| one.section == next.section) {
            section {
                h2 { "[" (rows[0].section) "]" }
                (parts::table(&format!("Settings of {}", rows[0].section), head(&[Text("Setting"), Text("Value"), Text("Default"), Text("Set in")]), html! {
                    @for row in rows { (shown(row, wrong.as_ref().filter(|_| is_wrong(row)))) }
                }))
            }
        }
        (add_named())
    };
    Ok(with_status(layout::page(&visit.shell, "Settings", main), wrong.as_ref().map(|wrong| &wrong.problem)))
}

fn rows(now: &Config, file: &Config, is_shared: impl Fn(&str, &str) -> bool) -> Vec<Row> {
    let defaults = Config::default();
    let row = |entry: Entry<'_>| {
        let (section, key) = (entry.section(), entry.key().to_owned());
        let (value, default) = (entry.read(now), entry.read(&defaults));
        // Nodes choose the UUID themselves, so that it differs from the default everywhere.
        let set_in = match entry.read(file) != default && (section, &*key) != ("couchdb", "uuid") {
            _ if is_shared(section, &key) => Some("the store"),
            true => Some("the file"),
            false => None,
        };
        Row { section, set_in, changes: entry.changes(), hides: entry.holds_secret(), key, value, default }
    };
    let settings = SETTINGS.iter().map(|setting| row(Entry::Setting(setting)));
    let named = Entry::all(now).map(|(entry, _)| entry);
    let named = named.filter(|entry| !matches!(entry, Entry::Setting(_))).take(MAX_NAMED).map(row);
    settings.chain(named).collect()
}

fn meaning(row: &Row) -> Option<&'static str> {
    MEANINGS.get(&(row.section.to_owned(), row.key.clone())).map(String::as_str)
}

fn shown(row: &Row, wrong: Option<&Wrong<'_>>) -> Markup {
    let id = format!("{}.{}", row.section, row.key);
    let is_shared = row.set_in == Some("the store");
    let value = match (wrong, row.changes) {
        (Some(wrong), Changes::Live) => Some(wrong.value),
        _ => row.value.as_deref(),
    };
    html! {
        tr.first id=(id) {
            th scope="row" { bdi { (row.key) } }
            td {
                @match row.changes {
                    Changes::Live => {
                        form.actions method="post" action=(PATH) data-full {
                            (hidden("section", row.section))
                            (hidden("key", &row.key))
                            input name="value" value=[value] aria-label={ "Value of " (row.key) } size="16" maxlength="4096" autocomplete="off";
                            button name="action" value="set" { "Set" }
                            @if is_shared { button name="action" value="unset" { "Reset" } }
                        }
                    }
                    Changes::InFile(why) => {
                        @match value { Some(value) => (text(value)), None => span.quiet { "–" } }
                        @if row.hides { span.quiet { " (without its password)" } }
                        div.quiet { (sentence(why)) }
                    }
                }
                @if let Some(wrong) = wrong { (wrong.problem.alert()) }
            }
            td { @match &row.default { Some(default) => bdi { (default) }, None => (or_dash(None)) } }
            td { @match row.set_in { Some(place) => (place), None => span.quiet { "default" } } }
        }
        @if let Some(meaning) = meaning(row) { tr.detail { td.quiet colspan="4" { (meaning) } } }
    }
}

/// The form for the share of a tenant, or the timeout of a type.
fn add_named() -> Markup {
    let sections = TENANT_SHARES.iter().map(|of| of.section).chain(TYPE_TIMEOUTS.iter().map(|of| of.section));
    html! {
        section {
            h2 { "Shares of tenants, and timeouts of types" }
            form.filters method="post" action=(PATH) data-full {
                label { "Section" select name="section" { @for section in sections { option value=(section) { (section) } } } }
                label { "Tenant or type" input name="key" required maxlength="256" size="20"; }
                label { "Value" input name="value" required maxlength="40" size="10"; }
                button name="action" value="set" { "Set" }
            }
            p.quiet { "A share is a whole number: a tenant with the share 200 gets twice as much as one with 100. A timeout is in seconds." }
        }
    }
}

/// Sets or resets a value for all nodes.
pub(super) async fn act(visit: Visit) -> Result<Response> {
    let form = &visit.form;
    let (Some(section), Some(key)) = (form.get("section"), form.get("key")) else {
        return Err(Problem::bad("no setting is named", "use a form of the settings' page"));
    };
    let value = form.get("value").unwrap_or_default().trim();
    let (changed, did) = match form.get("action") {
        Some("set") => (visit.app.couch.shared.set(section, key, value).await, "saved"),
        Some("unset") => (visit.app.couch.shared.unset(section, key).await, "reset"),
        _ => return Err(Problem::unknown_action()),
    };
    match changed {
        Ok(_) => Ok(redirect(&format!("{}#{section}.{key}", link(PATH, &[("did", Some(did))])))),
        Err(refused) => {
            let problem = Problem::from(setting_error(refused, section, key)).correctable()?;
            list(&visit, Some(Wrong { section, key, value, problem })).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_a_meaning() {
        for setting in SETTINGS {
            let name = (setting.section.to_owned(), setting.key.to_owned());
            let meaning = MEANINGS.get(&name).map(String::as_str).unwrap_or_default();
            assert!(meaning.len() > 10 && !meaning.contains("]("), "{name:?}: {meaning}");
        }
    }
}
