//! The events of the jobs, in the order of the server's transactions, and what must hold for each of them.
//!
//! What a job is follows from its id: `s-…@…` of a schedule, `u-…` with a unique key, `NAME.INDEX` of an array, `GROUP@…` of a callback, `h…` of a graph that is retried.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::{RATED, groups, rates, schedules, text, unique};

/// The events that end a run, or the job.
const ENDS: [&str; 5] = ["completed", "failed", "expired", "cancelled", "removed"];

/// What is known of a job.
#[derive(Default)]
struct Seen {
    added: u32,
    ended: u32,
    ended_us: Option<i64>,
}

/// Who has a unique key, and since when.
struct Holder {
    id: String,
    since_us: i64,
}

#[derive(Default)]
pub(super) struct Log {
    jobs: HashMap<String, Seen>,
    holders: HashMap<String, Holder>,
    /// The runs of each array.
    running: HashMap<String, HashSet<String>>,
    /// The open job of each schedule that lets none overlap.
    open: HashMap<String, String>,
    /// The last starts of the rate, in the order of their transactions.
    starts: VecDeque<i64>,
    counts: BTreeMap<&'static str, u64>,
}

/// A violation: its kind, and the particulars.
pub(super) type Broken = (&'static str, String);

impl Log {
    /// When a job ended.
    pub fn ended_us(&self, id: &str) -> Option<i64> {
        self.jobs.get(id)?.ended_us
    }

    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    pub fn text(&self) -> String {
        self.counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    }

    fn add(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Takes the next event. Returns what is wrong with it.
    pub fn take(&mut self, event: &Value) -> Vec<Broken> {
        let (name, id) = (text(&event["event"]), text(&event["id"]));
        let at_us = event["at_us"].as_i64().unwrap_or_default();
        let mut broken = Vec::new();
        self.add("events");
        self.lives(name, id, at_us, &mut broken);
        if id.starts_with(unique::PREFIX) {
            self.unique(name, id, at_us, &mut broken);
        } else if let Some((array, _)) = id.split_once('.').filter(|_| !id.contains('@')) {
            self.array(name, array, id, &mut broken);
        } else if let Some((schedule, _)) = id.split_once('@').filter(|_| id.starts_with(schedules::ALONE)) {
            self.schedule(name, schedule, id, &mut broken);
        }
        if event["type"] == RATED && name == "started" {
            self.start(id, at_us, &mut broken);
        }
        broken
    }

    /// Each job is added once and ends once.
    fn lives(&mut self, name: &str, id: &str, at_us: i64, broken: &mut Vec<Broken>) {
        let seen = self.jobs.entry(id.to_owned()).or_default();
        let ends = ENDS.contains(&name) && name != "removed";
        seen.added += u32::from(name == "added");
        seen.ended += u32::from(ends);
        if ends {
            seen.ended_us = Some(at_us);
        }
        let again = id.starts_with(unique::PREFIX) || id.starts_with(super::graphs::HEALING);
        if !again && name == "added" && seen.added > 1 {
            broken.push(("a job was added twice", format!("{id} at {at_us}")));
        }
        if !again && ends && seen.ended > 1 {
            broken.push(("a job ended twice", format!("{id} {name} at {at_us}")));
        }
    }

    /// Nobody is added while another job has the key.
    fn unique(&mut self, name: &str, id: &str, at_us: i64, broken: &mut Vec<Broken>) {
        let (key, mode) = unique::key_of(id);
        let own = self.holders.get(key).is_some_and(|holder| holder.id == id);
        match (name, mode) {
            ("added", _) => {
                let before =
                    self.holders.insert(key.to_owned(), Holder { id: id.to_owned(), since_us: at_us });
                self.add("jobs with a key");
                let Some(before) = before.filter(|before| before.id != id) else { return };
                let over = before.since_us + unique::PERIOD_MS * 1_000 - unique::CLOCKS_US;
                if mode != 'p' || at_us < over {
                    let text = format!(
                        "{id} was added at {at_us}, and {} has the key since {}",
                        before.id, before.since_us
                    );
                    broken.push(("a unique key had two holders", text));
                }
            }
            // A period goes on after the end of the job.
            (_, 'p') => {}
            ("started", 'w') if own => drop(self.holders.remove(key)),
            (name, _) if own && ENDS.contains(&name) => drop(self.holders.remove(key)),
            _ => {}
        }
    }

    /// No more jobs of an array run at once than it states.
    fn array(&mut self, name: &str, array: &str, id: &str, broken: &mut Vec<Broken>) {
        let running = self.running.entry(array.to_owned()).or_default();
        if name != "started" {
            running.remove(id);
            return;
        }
        running.insert(id.to_owned());
        let count = running.len();
        if count == groups::AT_ONCE {
            self.add("arrays at their limit");
        } else if count > groups::AT_ONCE {
            broken.push(("more jobs of an array run at once than it states", format!("{count} with {id}")));
        }
    }

    /// No job is added while an earlier one of the schedule has not ended.
    fn schedule(&mut self, name: &str, schedule: &str, id: &str, broken: &mut Vec<Broken>) {
        if name == "added" {
            let before = self.open.insert(schedule.to_owned(), id.to_owned());
            if let Some(before) = before.filter(|before| before != id) {
                broken.push((
                    "jobs of a schedule overlap",
                    format!("{id} was added, and {before} has not ended"),
                ));
            }
        } else if ENDS.contains(&name) && self.open.get(schedule).is_some_and(|open| open == id) {
            self.open.remove(schedule);
        }
    }

    /// No period has more starts than the rate allows, in the order in which they were admitted. The order by time follows from that: a start
    /// is admitted a whole period after the start that it would be one too many with, and after all before that one.
    fn start(&mut self, id: &str, at_us: i64, broken: &mut Vec<Broken>) {
        self.add("starts under the rate");
        if self.starts.len() == rates::AT_MOST {
            let first = self.starts.pop_front().unwrap_or_default();
            if at_us < first + rates::PER_MS * 1_000 {
                let text = format!("{id} at {at_us} is one more than {} since {first}", rates::AT_MOST);
                broken.push(("a window has more starts than its rate allows", text));
            }
        }
        self.starts.push_back(at_us);
        let first = self.starts.front().copied().unwrap_or_default();
        if self.starts.len() == rates::AT_MOST && at_us < first + rates::PER_MS * 1_000 {
            self.add("full windows");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kinds(events: &[(&str, &str, &str, i64)]) -> Vec<&'static str> {
        let mut log = Log::default();
        let events = events.iter().map(|(job_type, event, id, at_us)| {
            json!({ "type": job_type, "event": event, "id": id, "at_us": at_us })
        });
        events.flat_map(|event| log.take(&event)).map(|(kind, _)| kind).collect()
    }

    #[test]
    fn a_job_that_is_added_twice_or_ends_twice_is_noticed() {
        let (added, ended) = (("feature", "added", "g1-0", 1), ("feature", "completed", "g1-0", 2));
        assert_eq!(kinds(&[added, ended]), Vec::<&str>::new());
        assert_eq!(kinds(&[added, added, ended, ended]), ["a job was added twice", "a job ended twice"]);
    }

    #[test]
    fn two_holders_of_a_key_are_noticed() {
        let one = ["a unique key had two holders"];
        let event = |event, id, at_us| ("feature", event, id, at_us);
        assert_eq!(kinds(&[event("added", "u-w0-1", 1), event("added", "u-w0-2", 2)]), one);
        let started = event("started", "u-w0-1", 2);
        assert!(kinds(&[event("added", "u-w0-1", 1), started, event("added", "u-w0-2", 3)]).is_empty());
        let started = event("started", "u-e0-1", 2);
        assert_eq!(kinds(&[event("added", "u-e0-1", 1), started, event("added", "u-e0-2", 3)]), one);
        let ended = event("completed", "u-e0-1", 2);
        assert!(kinds(&[event("added", "u-e0-1", 1), ended, event("added", "u-e0-2", 3)]).is_empty());
        let ended = event("completed", "u-p0-1", 2);
        let later = unique::PERIOD_MS * 1_000;
        assert_eq!(kinds(&[event("added", "u-p0-1", 1), ended, event("added", "u-p0-2", 3)]), one);
        assert!(kinds(&[event("added", "u-p0-1", 1), ended, event("added", "u-p0-2", later + 1)]).is_empty());
    }

    #[test]
    fn a_start_too_many_in_a_window_is_noticed() {
        let per_us = rates::PER_MS * 1_000;
        let starts = |last: i64| {
            let first: Vec<_> = (0..rates::AT_MOST).map(|_| (RATED, "started", "r-1", 100)).collect();
            kinds(&[first, vec![(RATED, "started", "r-1", last)]].concat())
        };
        assert!(starts(100 + per_us).is_empty());
        assert_eq!(starts(99 + per_us), ["a window has more starts than its rate allows"]);
    }

    #[test]
    fn an_overlap_and_an_array_beyond_its_limit_are_noticed() {
        let event = |event, id| ("feature", event, id, 1);
        assert_eq!(kinds(&[event("added", "s-skip-0@a"), event("added", "s-skip-0@b")]).len(), 1);
        let ended = event("completed", "s-skip-0@a");
        assert!(kinds(&[event("added", "s-skip-0@a"), ended, event("added", "s-skip-0@b")]).is_empty());
        let ids: Vec<String> = (0..=groups::AT_ONCE).map(|index| format!("g1.{index}")).collect();
        let starts: Vec<_> = ids.iter().map(|id| event("started", id)).collect();
        assert_eq!(kinds(&starts).len(), 1);
        assert!(kinds(&starts[1..]).is_empty());
    }
}
