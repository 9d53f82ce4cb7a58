//! What several pages share: their tables, the forms that filter a list, the fields of other forms, and questions.

use axum::response::Response;
use maud::{Markup, html};

use super::layout::{self, Shell};

/// What was done, by its word in the query.
const DONE: &[(&str, &str)] = &[
    ("added", "Added."),
    ("saved", "Saved."),
    ("removed", "Removed."),
    ("quiet", "It takes no new jobs until it is resumed."),
    ("drain", "It takes no new jobs. It gives back what does not end, and the rest may finish."),
    ("active", "It takes new jobs again."),
    ("retried", "It runs as soon as it has a slot."),
    ("retried_from", "It runs again, and the jobs that were cancelled because of it wait for it."),
    ("paused", "It delivers nothing until it is resumed, and then goes on where it was."),
    ("resumed", "It delivers."),
    ("unscheduled", "It is paused, and does not fire until it is resumed."),
    ("scheduled", "It fires from now on."),
    ("fired", "A job was added. Its next fire stays as it is."),
    ("unchanged", "It was not waiting for a retry, so nothing has changed."),
    ("cancelled", "Cancelled, or being stopped."),
    ("again", "It starts again from its last checkpoint."),
    ("rerun", "It is pending with these values."),
    ("edited", "Changed."),
    ("closed", "It is closed, and ends with the last of its jobs."),
    ("held", "It is held until it is released."),
    ("released", "Released."),
    ("reset", "The value of each server's file applies again."),
];

/// Tells what was done, if the query says so.
pub(super) fn done(did: Option<&str>) -> Markup {
    let text = did.and_then(|did| DONE.iter().find(|(word, _)| *word == did));
    html! { @if let Some((_, text)) = text { p.condition.good role="status" { (text) } } }
}

/// A column of a table.
#[derive(Clone, Copy)]
pub(super) enum Column {
    Text(&'static str),
    Number(&'static str),
    /// Of buttons. Only screen readers need its title.
    Actions,
}

/// The heads of some columns.
pub(super) fn head(columns: &[Column]) -> Markup {
    html! {
        @for column in columns {
            @match column {
                Column::Text(title) => th scope="col" { (title) },
                Column::Number(title) => th.n scope="col" { (title) },
                Column::Actions => th scope="col" { span.unseen { "Actions" } },
            }
        }
    }
}

/// A table with a name. It scrolls by itself if it is wider than the page.
pub(super) fn table(name: &str, head: Markup, rows: Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(name) {
            table { thead { tr { (head) } } tbody { (rows) } }
        }
    }
}

/// The form that filters the list at this path.
pub(super) fn filters(path: &str, fields: Markup) -> Markup {
    html! {
        form.filters action=(path) {
            (fields)
            button type="submit" { "Filter" }
            a href=(path) { "Reset" }
        }
    }
}

/// The value and the title of a choice of nothing.
pub(super) const ANY: [(&str, &str); 1] = [("", "any")];

/// A field of a filter with a list of values and their titles. Choosing one is enough: the script then sends the form.
pub(super) fn choice<'a>(
    title: &str,
    name: &str,
    values: impl IntoIterator<Item = (&'a str, &'a str)>,
    chosen: Option<&str>,
) -> Markup {
    html! {
        label {
            (title)
            select name=(name) data-submit {
                @for (value, title) in values { option value=(value) selected[chosen == Some(value)] { (title) } }
            }
        }
    }
}

/// The links to the begin of a list and to its next part: `link` has the path of what follows a position.
pub(super) fn pages(
    link: impl Fn(Option<&str>) -> String,
    after: Option<&str>,
    next: Option<&str>,
) -> Markup {
    html! {
        @if after.is_some() || next.is_some() {
            nav.pages aria-label="Pages of the list" {
                @if after.is_some() { a.button href=(link(None)) { "First page" } }
                @if next.is_some() { a.button rel="next" href=(link(next)) { "Next page" } }
            }
        }
    }
}

/// Bars below each other, at most two: the name of each, and its length in %, if it is known.
pub(super) fn bars(bars: &[(&str, Option<f64>)]) -> Markup {
    let shown = |part: &Option<f64>| part.map_or_else(|| "–".to_owned(), |part| format!("{part:.1} %"));
    let told: Vec<String> = bars.iter().map(|(name, part)| format!("{name} {}", shown(part))).collect();
    html! {
        div.bars {
            svg viewBox="0 0 100 14" preserveAspectRatio="none" role="img" aria-label=(told.join(", ")) {
                rect.whole x="0" y="0" width="100" height="14" {}
                @for ((_, part), (class, y)) in bars.iter().zip([("entitled", "1"), ("received", "8")]) {
                    rect class=(class) x="0" y=(y) width=(format!("{:.1}", part.unwrap_or(0.0))) height="5" {}
                }
            }
            span aria-hidden="true" { @for (n, (_, part)) in bars.iter().enumerate() { @if n > 0 { br; } (shown(part)) } }
        }
    }
}

/// A field of a form: its label, its control, a sentence about it, and what is wrong with it.
pub(super) fn field(name: &str, title: &str, control: Markup, help: Markup, wrong: Option<&str>) -> Markup {
    html! {
        div.field {
            label for=(name) { (title) }
            (control)
            p.quiet { (help) }
            @if let Some(wrong) = wrong { p.problem role="alert" { (super::problem::sentence(wrong)) } }
        }
    }
}

/// A question before an action that ends something or cannot be undone.
pub(super) struct Question<'a> {
    pub title: &'a str,
    /// What the action ends, changes or removes, unless the title says so.
    pub subject: Markup,
    /// What it does.
    pub effect: &'a str,
    /// The text of its button.
    pub button: &'a str,
    /// Where its form goes.
    pub action: &'a str,
    /// The fields of the form: what the action needs to know.
    pub fields: Markup,
    /// The page to return to without it.
    pub back: &'a str,
}

impl Question<'_> {
    /// The page with the question. Its form has the field `confirmed`.
    pub(super) fn page(&self, shell: &Shell) -> Response {
        let main = html! {
            h1 { (self.title) }
            @if !self.subject.0.is_empty() { p.lead { (self.subject) } }
            p.condition.warn { (self.effect) }
            form.fields method="post" action=(self.action) {
                (self.fields)
                input type="hidden" name="confirmed" value="1";
                div.actions { button.danger type="submit" { (self.button) } a.button href=(self.back) { "Back" } }
            }
        };
        layout::page(shell, self.title, main)
    }
}

/// A hidden field of a form.
pub(super) fn hidden(name: &str, value: &str) -> Markup {
    html! { input type="hidden" name=(name) value=(value); }
}
