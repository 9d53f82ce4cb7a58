//! The graph of a job's dependencies, as SVG: what it waits for on the left, what waits for it on the right.

use maud::{Markup, PreEscaped, html};
use turnwise_explain::graph::{Graph, MAX_NODES, Node, Times};

use super::format::{count_of, duration};
use super::visit::job_link;

/// The size of a box, and the space between boxes.
const BOX: (i32, i32) = (190, 56);
const GAP: (i32, i32) = (56, 14);
/// The space around all.
const MARGIN: i32 = 6;
/// The longest text in a box, in characters.
const MAX_CHARS: usize = 25;

/// The graph, if the job waits for something, or something for it.
pub(super) fn drawn(graph: &Graph, now_us: i64) -> Markup {
    if graph.nodes.len() < 2 {
        return html! {};
    }
    let places = places(&graph.nodes);
    let width = places.iter().map(|(x, _)| x + BOX.0).max().unwrap_or(0) + MARGIN;
    let height = places.iter().map(|(_, y)| y + BOX.1).max().unwrap_or(0) + MARGIN;
    let is_open = |node: &Node| node.state.is_none_or(|state| !state.is_final());
    let before = graph.nodes.iter().filter(|node| node.step < 0 && is_open(node)).count();
    let behind = graph.nodes.iter().filter(|node| node.step > 0 && is_open(node)).count();
    let wait = if behind == 1 { "waits" } else { "wait" };
    let (before, behind) = (count_of(before, "job"), count_of(behind, "job"));
    let told = format!("It waits for {before}, and {behind} {wait} for it");
    html! {
        section {
            h2 { "Dependencies" }
            div.scroll tabindex="0" role="region" aria-label="Dependencies" {
                svg.graph viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="group" aria-label=(told) {
                    @for (from, to) in &graph.edges {
                        path.critical[graph.nodes[*from].critical && graph.nodes[*to].critical] d=(PreEscaped(edge(places[*from], places[*to]))) {}
                    }
                    @for (n, (node, place)) in graph.nodes.iter().zip(&places).enumerate() { (boxed(node, *place, n == 0, now_us)) }
                }
            }
            p.quiet {
                "From left to right: each job waits for those that point to it. The bold path decides when the last one ends. Dependencies that have ended are kept if their results are inputs."
                @if graph.more { " There are more: these are the nearest " (MAX_NODES) "." }
            }
        }
    }
}

/// The place of each box: a column for each step, and its boxes from the top.
fn places(nodes: &[Node]) -> Vec<(i32, i32)> {
    let first = nodes.iter().map(|node| node.step).min().unwrap_or(0);
    let mut rows: std::collections::BTreeMap<i32, i32> = std::collections::BTreeMap::new();
    let place = |node: &Node| {
        let row = rows.entry(node.step).or_default();
        let at = (MARGIN + (node.step - first) * (BOX.0 + GAP.0), MARGIN + *row * (BOX.1 + GAP.1));
        *row += 1;
        at
    };
    nodes.iter().map(place).collect()
}

/// A line from the right of one box to the left of another one, with a tip.
fn edge(from: (i32, i32), to: (i32, i32)) -> String {
    let (x1, y1) = (from.0 + BOX.0, from.1 + BOX.1 / 2);
    let (x2, y2) = (to.0, to.1 + BOX.1 / 2);
    let bend = GAP.0 / 2;
    let tip = format!("M{} {} L{x2} {y2} L{} {}", x2 - 6, y2 - 4, x2 - 6, y2 + 4);
    format!("M{x1} {y1} C{} {y1} {} {y2} {x2} {y2} {tip}", x1 + bend, x2 - bend)
}

fn boxed(node: &Node, (x, y): (i32, i32), is_it: bool, now_us: i64) -> Markup {
    let state = node.state.map_or("gone", turnwise_protocol::State::as_str);
    let (job_type, id) = &node.job;
    // The text of the box is the name of the link; what is clipped is in the title.
    let title = format!("{job_type} {id}: {state}");
    let drawn = html! {
        g.it[is_it].critical[node.critical] {
            title { (title) }
            rect x=(x) y=(y) width=(BOX.0) height=(BOX.1) rx="4" {}
            text x=(x + 8) y=(y + 17) { (clip(id)) }
            text.about x=(x + 8) y=(y + 33) { (clip(&format!("{job_type} · {state}"))) }
            @if let Some(times) = &node.times { text.about x=(x + 8) y=(y + 49) { (clip(&spent(times, now_us))) } }
        }
    };
    html! { @if is_it { (drawn) } @else { a href=(job_link(job_type, id)) { (drawn) } } }
}

/// Where a job's time went.
fn spent(times: &Times, now_us: i64) -> String {
    let waited = duration(times.waited_us(now_us));
    match times.ran_us(now_us) {
        Some(ran_us) => format!("waited {waited}, ran {}", duration(ran_us)),
        None => format!("waited {waited}"),
    }
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_follow_the_steps_and_boxes_do_not_overlap() {
        let node = |step| Node { job: Default::default(), state: None, step, times: None, critical: false };
        let places = places(&[node(0), node(-1), node(-1), node(-2), node(1)]);
        let x = |column: i32| MARGIN + column * (BOX.0 + GAP.0);
        assert_eq!(places.iter().map(|place| place.0).collect::<Vec<_>>(), [x(2), x(1), x(1), x(0), x(3)]);
        assert!(places[2].1 >= places[1].1 + BOX.1);
        assert_eq!(clip(&"ü".repeat(30)), format!("{}…", "ü".repeat(MAX_CHARS)));
    }
}
