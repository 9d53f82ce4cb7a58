//! Locks with words in braces, which stand for a job's objects.

use std::collections::{BTreeMap, BTreeSet};

use turnwise_policy::predictive_queue::locks::{AtLevel, Levels, Lock, Mode, Request, Requests, Scope};

/// The words that may be in braces. A word is alone in its name. Words in the plural become several names.
pub const WORDS: [&str; 10] = [
    "instance",        // the instance that the job is about
    "primary",         // its primary node
    "secondary",       // its secondary node
    "target",          // a third node of their group
    "group",           // their group
    "network",         // some network
    "node_instances",  // all instances of the primary node: those that have it as their primary or secondary
    "node_peers",      // the primary node and all nodes that its instances have, too
    "group_nodes",     // all nodes of the group
    "group_instances", // all instances of the group
];

/// The word of a name that consists of one.
fn word(name: &str) -> Option<&str> {
    name.strip_prefix('{')?.strip_suffix('}')
}

fn names(request: &Request) -> Vec<&String> {
    match request {
        Request::Shared(units) => units.keys().collect(),
        Request::Exclusive(names) => names.iter().collect(),
        _ => Vec::new(),
    }
}

/// Checks that all words are known, and that the smallest group has enough nodes for them.
pub(crate) fn check(requests: &Requests, smallest_group: u64) -> Result<(), String> {
    for (level, at) in &requests.levels {
        for name in at.requests().into_iter().flat_map(names) {
            match word(name) {
                Some("target") if smallest_group < 3 => {
                    return Err(format!("{level}: {{target}} needs groups of three nodes at least"));
                }
                Some(word) if !WORDS.contains(&word) => {
                    let known: Vec<String> = WORDS.iter().map(|word| format!("{{{word}}}")).collect();
                    return Err(format!("{level}: there is no `{name}`; there are {}", known.join(", ")));
                }
                Some(_) => {}
                None if name.contains(['{', '}']) => {
                    return Err(format!("{level}: `{name}` has a brace: only a whole name can be {{…}}"));
                }
                None => {}
            }
        }
    }
    Ok(())
}

/// Checks that a job with this declaration may take these locks. The declaration names each lock, or covers it by
/// `unknown` or `all`. Locks that the job requests while it runs come after all that it holds from its start.
pub(crate) fn covers(declared: &Requests, real: &Requests, levels: &Levels) -> Result<(), String> {
    if real.big_lock && !declared.big_lock {
        return Err("big_lock: it is locked but not declared".to_owned());
    }
    let held = declared.known(levels);
    let later = asked_for(declared, real, levels);
    for lock in &later {
        let (level, what) = match &lock.scope {
            Scope::BigLock => continue,
            Scope::WholeLevel(level) => (*level, "all"),
            Scope::Resource { level, name } => (*level, name.as_str()),
        };
        let level = levels.name(level).unwrap_or_default();
        if declared.unknown().all(|unknown| unknown != (level, lock.mode)) {
            let mode = if lock.mode == Mode::Exclusive { "exclusive" } else { "shared" };
            return Err(format!(
                "{level}: {mode} {what} is locked but not declared: add it to `says`, or say \"unknown\""
            ));
        }
    }
    // Words sort differently from the names that they become. So a job must not request a lock at a level where it
    // already holds one.
    let last_held = held.iter().filter_map(|lock| lock.scope.level()).max();
    if let Some(first) = later.iter().filter_map(|lock| lock.scope.level()).min()
        && last_held.is_some_and(|last| first <= last)
    {
        let name = levels.names().nth(first).unwrap_or_default();
        return Err(format!(
            "{name}: it is asked for while locks at that level, or a later one, are held: say \"unknown\" of those, too"
        ));
    }
    Ok(())
}

/// The locks that a job must still request if it holds what it declared, in order.
pub(crate) fn asked_for(declared: &Requests, real: &Requests, levels: &Levels) -> Vec<Lock> {
    let held = declared.known(levels);
    let mut wanted = real.known(levels);
    wanted.retain(|lock| !held.iter().any(|has| suffices(has, lock)));
    wanted
}

/// Whether a job that has the one lock need not request the other.
fn suffices(has: &Lock, lock: &Lock) -> bool {
    let mode = has.mode == Mode::Exclusive || lock.mode == Mode::Shared;
    let scope = has.scope == lock.scope
        || matches!(has.scope, Scope::WholeLevel(level) if lock.scope.level() == Some(level));
    let units = has.mode == Mode::Exclusive || has.scope != lock.scope || has.units >= lock.units;
    mode && scope && units
}

/// The names that each word stands for, for one job.
pub(crate) type Meaning<'a> = &'a dyn Fn(&str) -> Vec<String>;

/// The locks of one job: each word becomes its names. A request without names is left out. Of a name that occurs
/// twice, or in both modes, the stronger request stays.
pub(crate) fn fill(requests: &Requests, meaning: Meaning<'_>) -> Requests {
    let fill_one = |request: &Request| match request {
        Request::Shared(units) => {
            let mut filled: BTreeMap<String, u32> = BTreeMap::new();
            for (name, units) in units {
                for name in mean(name, meaning) {
                    let most = filled.entry(name).or_default();
                    *most = units.max(most).to_owned();
                }
            }
            if filled.is_empty() { Request::None } else { Request::Shared(filled) }
        }
        Request::Exclusive(names) => {
            let filled: BTreeSet<String> = names.iter().flat_map(|name| mean(name, meaning)).collect();
            if filled.is_empty() { Request::None } else { Request::Exclusive(filled) }
        }
        other => other.clone(),
    };
    let mut filled = Requests { big_lock: requests.big_lock, ..Requests::default() };
    for (level, at) in &requests.levels {
        let [shared, exclusive] = at.requests().map(fill_one);
        let one = |request| AtLevel::new([request]).expect("a filled request is as right as its template");
        filled.levels.insert(level.clone(), one(shared).merge(one(exclusive)));
    }
    filled
}

fn mean(name: &str, meaning: Meaning<'_>) -> Vec<String> {
    match word(name) {
        Some(word) => meaning(word),
        None => vec![name.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(text: &str) -> Requests {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn words_become_names_and_the_stronger_lock_stays() {
        let meaning = |word: &str| match word {
            "group_nodes" => vec!["n1".to_owned(), "n2".to_owned()],
            "node_instances" => Vec::new(),
            _ => vec!["n1".to_owned()],
        };
        let template = requests(
            "node = { shared = ['{group_nodes}', 'other'], exclusive = ['{primary}'] }\n\
             instance = { exclusive = ['{node_instances}'] }\nnetwork = { shared = 'all' }",
        );
        let filled = fill(&template, &meaning);
        assert_eq!(
            filled,
            requests(
                "node = { shared = ['n2', 'other'], exclusive = ['n1'] }\ninstance = {}\nnetwork = { shared = 'all' }"
            )
        );
    }

    #[test]
    fn undeclared_locks_must_be_unknown_and_come_after_declared_ones() {
        let levels = Levels::default();
        let check = |declared, real| covers(&requests(declared), &requests(real), &levels);
        let real = "instance = { exclusive = ['{instance}'] }\nnode = { shared = ['{primary}'] }";
        for declared in [
            real,
            "instance = { exclusive = ['{instance}'] }\nnode = { shared = 'unknown' }",
            "instance = { exclusive = 'unknown' }\nnode = { shared = 'unknown' }",
            "instance = { exclusive = 'all' }\nnode = { exclusive = 'all' }",
        ] {
            assert_eq!(check(declared, real), Ok(()), "{declared}");
        }
        for (declared, word) in [
            (
                "instance = { exclusive = ['{instance}'] }",
                "node: shared {primary} is locked but not declared",
            ),
            ("instance = { shared = 'all' }\nnode = { shared = 'all' }", "instance: exclusive {instance}"),
            (
                "instance = { exclusive = 'unknown' }\nnode = { shared = ['{primary}'] }",
                "instance: it is asked for while locks at that level, or a later one, are held",
            ),
        ] {
            let error = check(declared, real).unwrap_err();
            assert!(error.contains(word), "{declared}: {error}");
        }
        assert!(check("", "big_lock = true").unwrap_err().contains("big_lock"));
        assert!(check("node = { shared = ['a'] }", "node = { shared = 'all' }").is_err());
        assert!(check("node = { exclusive = ['a'] }", "node = { exclusive = 'all' }").is_err());
    }

    #[test]
    fn a_job_that_holds_a_level_requests_none_of_its_names() {
        let levels = Levels::default();
        let asked = |declared, real| asked_for(&requests(declared), &requests(real), &levels).len();
        assert_eq!(asked("node = { shared = 'all' }", "node = { shared = ['a', 'b'] }"), 0);
        assert_eq!(asked("node = { exclusive = 'all' }", "node = { shared = ['a'], exclusive = ['b'] }"), 0);
        assert_eq!(asked("node = { shared = 'unknown' }", "node = { shared = ['a', 'b'] }"), 2);
        assert_eq!(asked("", ""), 0);
    }
}
