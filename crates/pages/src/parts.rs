//! What several pages with forms share.

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
    ("paused", "It delivers nothing until it is resumed, and then goes on where it was."),
    ("resumed", "It delivers."),
    ("unchanged", "It was not waiting for a retry, so nothing has changed."),
    ("cancelled", "Cancelled, or being stopped."),
    ("again", "It starts again from its last checkpoint."),
    ("reset", "The value of each server's file applies again."),
];

/// Tells what was done, if the query says so.
pub(super) fn done(did: Option<&str>) -> Markup {
    let text = did.and_then(|did| DONE.iter().find(|(word, _)| *word == did));
    html! { @if let Some((_, text)) = text { p.condition.good role="status" { (text) } } }
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

/// A question before an action that cannot be undone.
pub(super) struct Question<'a> {
    pub title: &'a str,
    /// What the action ends or removes.
    pub subject: Markup,
    /// What it does.
    pub effect: &'a str,
    /// The text of its button.
    pub button: &'a str,
    /// Where its form goes.
    pub action: &'a str,
    /// The hidden fields of the form.
    pub fields: Markup,
    /// The page to return to without it.
    pub back: &'a str,
}

impl Question<'_> {
    /// The page with the question. Its form has the field `confirmed`.
    pub(super) fn page(&self, shell: &Shell) -> Response {
        let main = html! {
            h1 { (self.title) }
            p.lead { (self.subject) }
            p.condition.warn { (self.effect) }
            form.actions method="post" action=(self.action) {
                (self.fields)
                input type="hidden" name="confirmed" value="1";
                button.danger type="submit" { (self.button) }
                a.button href=(self.back) { "Back" }
            }
        };
        layout::page(shell, self.title, main)
    }
}

/// A hidden field of a form.
pub(super) fn hidden(name: &str, value: &str) -> Markup {
    html! { input type="hidden" name=(name) value=(value); }
}
