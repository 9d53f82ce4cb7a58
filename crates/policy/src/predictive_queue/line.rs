//! How many wait in line for what a job wants.
//!
//! A queue is empty when the resource that the most work waits for is through with it. So that resource should never stand idle, and
//! never be left to the end, when few can work beside each other. Who wants it alone, though, is whom the table of contention puts last: others share it.
//!
//! The *line* of a job is, added up over the resources that it names to have for itself, how many others of the window name them, too, in whichever mode. In
//! [`order`](super::order) each of them makes it older by a tick, and of jobs that weigh nothing any more the one with the longest line is first. Names
//! are all that counts: who wants all of a level is in everybody's way whenever he goes, so nothing is won by letting him go early.
//! Run times would be known of past runs only, and make no difference (design note 0032).

use std::collections::HashMap;

use super::locks::{Request, Requests};

/// The line of a job beside others of its window.
pub fn line<'a>(job: &'a Requests, others: impl Iterator<Item = &'a Requests> + Clone) -> u64 {
    lines(std::iter::once(job).chain(others)).first().copied().unwrap_or_default()
}

/// The line of each job of a window.
pub(crate) fn lines<'a>(window: impl Iterator<Item = &'a Requests> + Clone) -> Vec<u64> {
    let mut named: HashMap<(&str, &str), u64> = HashMap::new();
    for (level, request) in window.clone().flat_map(by_level) {
        let mut count = |name: &'a String| *named.entry((level, name)).or_default() += 1;
        match request {
            Request::Shared(names) => names.keys().for_each(&mut count),
            Request::Exclusive(names) => names.iter().for_each(&mut count),
            _ => {}
        }
    }
    let others = |level: &str, name: &String| named.get(&(level, name.as_str())).map_or(0, |all| all - 1);
    let line = |job: &'a Requests| {
        let alone = by_level(job).filter_map(|(level, request)| match request {
            Request::Exclusive(names) => Some(names.iter().map(|name| others(level, name)).sum::<u64>()),
            _ => None,
        });
        alone.sum()
    };
    window.map(line).collect()
}

fn by_level(job: &Requests) -> impl Iterator<Item = (&str, &Request)> {
    job.levels.iter().flat_map(|(level, at)| at.requests().map(|request| (level.as_str(), request)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_who_else_names_what_one_wants_alone() {
        let window = [
            r#"{"node": {"exclusive": ["a", "b"]}}"#,
            r#"{"node": {"exclusive": ["b"]}, "disk": {"exclusive": ["a"]}}"#,
            r#"{"node": {"shared": ["a", "c"]}}"#,
            r#"{"node": {"exclusive": ["c"], "shared": "all"}}"#,
            r#"{"node": {"exclusive": "all"}}"#,
            r#"{"node": {"exclusive": "unknown"}, "disk": {"exclusive": ["z"]}}"#,
            "{}",
        ];
        let window = window.map(|json| serde_json::from_str::<Requests>(json).unwrap());
        // a: the third; b: the second. b: the first, and nobody at the other level. Sharers are in nobody's line.
        assert_eq!(lines(window.iter()), [2, 1, 0, 1, 0, 0, 0]);
    }
}
