//! The locks that a job declares, and those that it holds.
//!
//! Locks have *levels*, which have an order; at a level, each resource has a name. A job declares for each level
//! which locks it wants there, as far as it knows before it runs. The declaration is one of the seven kinds of
//! [`Request`], separately for shared and for exclusive locks. A job takes the known locks at its start, and the
//! unknown ones while it runs. A resource may have a *capacity*, a number of units. Each shared lock takes some
//! units, and an exclusive lock takes all of them.
//!
//! Deadlocks are impossible. A job takes its known locks all at once or not at all. A job that holds locks takes
//! further ones only *upwards*: in the order of the levels, at one level all of it before any name, and names as they
//! sort. [`Lock`] has this order. The one *big lock* comes before all levels: each job that holds any lock holds it
//! shared.
//!
//! Source: the design document of Ganeti's predictive queue, which has the seven kinds and asks for the order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The most levels.
pub const MAX_LEVELS: usize = 16;
/// The most resources that one job may name, at all levels together. The claim of the job writes a row for each.
pub const MAX_RESOURCES: usize = 1_000;
/// The longest name of a level or a resource, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// The most units of a resource.
pub const MAX_CAPACITY: u32 = 1_000_000;
/// The name of the big lock, where levels have names.
pub const BIG_LOCK: &str = "big_lock";
/// The default levels, in their order, if the catalogue has none.
pub const DEFAULT_LEVELS: [&str; 5] = ["node_group", "instance", "node", "node_resource", "network"];

/// Shared locks: the names, and the units of each.
pub type Units = BTreeMap<String, u32>;

/// What a job wants at one level, in one mode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Request {
    /// No lock.
    #[default]
    None,
    /// The named resources, shared.
    Shared(Units),
    /// At least one resource, shared. Which ones is unknown before the job runs.
    UnknownShared,
    /// All resources of the level, shared.
    AllShared,
    /// The named resources, exclusive.
    Exclusive(BTreeSet<String>),
    /// At least one resource, exclusive. Which ones is unknown before the job runs.
    UnknownExclusive,
    /// All resources of the level, exclusive.
    AllExclusive,
}

/// What a job wants at one level.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct AtLevel {
    shared: Request,
    exclusive: Request,
}

impl AtLevel {
    /// At most one request of each mode, in any order.
    ///
    /// # Errors
    /// An empty set, no units or too many, an invalid name, a name in both modes, or two requests of one mode.
    pub fn new(requests: impl IntoIterator<Item = Request>) -> Result<AtLevel, String> {
        let mut at = AtLevel::default();
        for request in requests {
            check(&request)?;
            let place = match request {
                Request::None => continue,
                Request::Shared(_) | Request::UnknownShared | Request::AllShared => &mut at.shared,
                _ => &mut at.exclusive,
            };
            if *place != Request::None {
                return Err("has two requests of one mode: make them one set".to_owned());
            }
            *place = request;
        }
        if let (Request::Shared(shared), Request::Exclusive(exclusive)) = (&at.shared, &at.exclusive)
            && let Some(name) = shared.keys().find(|name| exclusive.contains(*name))
        {
            return Err(format!("names {name:?} both shared and exclusive: exclusive is enough"));
        }
        if at.shared == Request::AllShared && at.exclusive == Request::AllExclusive {
            return Err("wants all of it both shared and exclusive: exclusive is enough".to_owned());
        }
        Ok(at)
    }

    /// The shared request and the exclusive one.
    pub fn requests(&self) -> [&Request; 2] {
        [&self.shared, &self.exclusive]
    }

    /// The modes of the requests whose resources become known only when the job runs.
    pub fn unknown(&self) -> impl Iterator<Item = Mode> {
        self.requests().into_iter().filter_map(|request| match request {
            Request::UnknownShared => Some(Mode::Shared),
            Request::UnknownExclusive => Some(Mode::Exclusive),
            _ => None,
        })
    }

    /// Whether nothing is wanted.
    pub fn is_none(&self) -> bool {
        self.shared == Request::None && self.exclusive == Request::None
    }

    /// The requests of a job that does both: never less than either. Of the same name, the larger number of units
    /// counts, and exclusive before shared.
    #[must_use]
    pub fn merge(self, other: AtLevel) -> AtLevel {
        use Request::{AllExclusive, AllShared, Exclusive, None, Shared, UnknownExclusive, UnknownShared};
        let mut shared = match (self.shared, other.shared) {
            (None, request) | (request, None) => request,
            (AllShared, _) | (_, AllShared) => AllShared,
            (Shared(mut names), Shared(more)) => {
                for (name, units) in more {
                    let most = names.entry(name).or_default();
                    *most = units.max(*most);
                }
                Shared(names)
            }
            _ => UnknownShared,
        };
        let exclusive = match (self.exclusive, other.exclusive) {
            (None, request) | (request, None) => request,
            (AllExclusive, _) | (_, AllExclusive) => AllExclusive,
            (Exclusive(mut names), Exclusive(more)) => {
                names.extend(more);
                Exclusive(names)
            }
            _ => UnknownExclusive,
        };
        match (&mut shared, &exclusive) {
            (shared, AllExclusive) => *shared = None,
            (Shared(names), Exclusive(exclusive)) => {
                names.retain(|name, _| !exclusive.contains(name));
                if names.is_empty() {
                    shared = None;
                }
            }
            _ => {}
        }
        AtLevel { shared, exclusive }
    }
}

fn check(request: &Request) -> Result<(), String> {
    let empty =
        |mode| Err(format!("names nothing to lock {mode}: leave it out, or say \"unknown\" or \"all\""));
    match request {
        Request::Shared(names) if names.is_empty() => empty("shared"),
        Request::Exclusive(names) if names.is_empty() => empty("exclusive"),
        Request::Shared(names) => names.iter().try_for_each(|(name, units)| {
            check_name(name)?;
            match units {
                1..=MAX_CAPACITY => Ok(()),
                _ => Err(format!("wants {units} units of {name:?}: 1 to {MAX_CAPACITY} can be had")),
            }
        }),
        Request::Exclusive(names) => names.iter().try_for_each(|name| check_name(name)),
        _ => Ok(()),
    }
}

/// Checks the name of a level or a resource.
///
/// # Errors
/// The name is empty, too long, or has control characters.
pub fn check_name(name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err("has an empty name".to_owned()),
        bytes if bytes > MAX_NAME_BYTES => {
            Err(format!("has a name of {bytes} bytes; at most {MAX_NAME_BYTES} are allowed"))
        }
        _ if name.contains(char::is_control) => Err(format!("has a name with control characters: {name:?}")),
        _ => Ok(()),
    }
}

/// [`AtLevel`] in JSON and TOML: `{"shared": ["a", "b"], "exclusive": "unknown"}`, `{"shared": {"disk": 2}}`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shared: Option<Which>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exclusive: Option<Which>,
}

#[derive(Clone, Serialize)]
#[serde(untagged)]
enum Which {
    Word(Word),
    Names(Vec<String>),
    Units(BTreeMap<String, i64>),
}

/// Written by hand, like that of [`Requests`], because a pass reads hundreds of declarations. The derived code of an
/// untagged enum would copy each value, to try the variants one by one.
impl<'de> Deserialize<'de> for Which {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Which, D::Error> {
        struct Any;
        const ANY: &str =
            "\"all\", \"unknown\", or a list of names; shared ones may be names with their units";
        impl<'de> Visitor<'de> for Any {
            type Value = Which;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(ANY)
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Which, E> {
                match word {
                    "all" => Ok(Which::Word(Word::All)),
                    "unknown" => Ok(Which::Word(Word::Unknown)),
                    _ => Err(E::custom(format_args!("must be {ANY}"))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, names: A) -> Result<Which, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(names)).map(Which::Names)
            }

            fn visit_map<A: MapAccess<'de>>(self, units: A) -> Result<Which, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(units)).map(Which::Units)
            }
        }
        from.deserialize_any(Any)
    }
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    All,
    Unknown,
}

impl TryFrom<Raw> for AtLevel {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        let shared = match raw.shared {
            None => Request::None,
            Some(Which::Word(Word::All)) => Request::AllShared,
            Some(Which::Word(Word::Unknown)) => Request::UnknownShared,
            Some(Which::Names(names)) => Request::Shared(names.into_iter().map(|name| (name, 1)).collect()),
            Some(Which::Units(units)) => {
                let units = units.into_iter().map(|(name, units)| match u32::try_from(units) {
                    Ok(few) => Ok((name, few)),
                    Err(_) => Err(format!("wants {units} units of {name:?}: 1 to {MAX_CAPACITY} can be had")),
                });
                Request::Shared(units.collect::<Result<_, String>>()?)
            }
        };
        let exclusive = match raw.exclusive {
            None => Request::None,
            Some(Which::Word(Word::All)) => Request::AllExclusive,
            Some(Which::Word(Word::Unknown)) => Request::UnknownExclusive,
            Some(Which::Names(names)) => Request::Exclusive(names.into_iter().collect()),
            Some(Which::Units(_)) => {
                return Err("has units of an exclusive lock, which takes all of them: name a list".to_owned());
            }
        };
        AtLevel::new([shared, exclusive])
    }
}

impl From<AtLevel> for Raw {
    fn from(at: AtLevel) -> Raw {
        let which = |request: Request| match request {
            Request::None => None,
            Request::Shared(units) if units.values().all(|units| *units == 1) => {
                Some(Which::Names(units.into_keys().collect()))
            }
            Request::Shared(units) => {
                Some(Which::Units(units.into_iter().map(|(name, units)| (name, i64::from(units))).collect()))
            }
            Request::Exclusive(names) => Some(Which::Names(names.into_iter().collect())),
            Request::UnknownShared | Request::UnknownExclusive => Some(Which::Word(Word::Unknown)),
            Request::AllShared | Request::AllExclusive => Some(Which::Word(Word::All)),
        };
        Raw { shared: which(at.shared), exclusive: which(at.exclusive) }
    }
}

/// What a job wants, at all levels: `{"instance": {"exclusive": ["web1"]}, "node": {"shared": "unknown"}}`, or
/// `{"big_lock": true}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Requests {
    /// Whether it wants the big lock exclusively, which excludes all other locks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub big_lock: bool,
    /// What it wants, by the name of the level. It wants nothing of a missing level.
    #[serde(flatten)]
    pub levels: BTreeMap<String, AtLevel>,
}

impl<'de> Deserialize<'de> for Requests {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Requests, D::Error> {
        struct ByLevel;
        impl<'de> Visitor<'de> for ByLevel {
            type Value = Requests;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("what is wanted, by the name of the level")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Requests, A::Error> {
                let mut requests = Requests::default();
                while let Some(level) = map.next_key::<String>()? {
                    if level == BIG_LOCK {
                        requests.big_lock = map.next_value()?;
                    } else {
                        requests.levels.insert(level, map.next_value()?);
                    }
                }
                Ok(requests)
            }
        }
        from.deserialize_map(ByLevel)
    }
}

impl Requests {
    /// Whether nothing is wanted.
    pub fn is_none(&self) -> bool {
        !self.big_lock && self.levels.values().all(AtLevel::is_none)
    }

    /// Whether some locks become known only when the job runs.
    pub fn has_unknown(&self) -> bool {
        self.unknown().next().is_some()
    }

    /// What will only be known when the job runs: levels and modes.
    pub fn unknown(&self) -> impl Iterator<Item = (&str, Mode)> {
        self.levels.iter().flat_map(|(level, at)| at.unknown().map(move |mode| (level.as_str(), mode)))
    }

    /// The locks that are known before the job runs: it takes them all at once, or does not start. They are in the
    /// order of `levels`. A level that is not among these is left out ([`Levels::check`] has rejected it). A job that
    /// locks anything, now or later, shares the big lock.
    pub fn known(&self, levels: &Levels) -> Vec<Lock> {
        if self.is_none() {
            return Vec::new();
        }
        let mode = if self.big_lock { Mode::Exclusive } else { Mode::Shared };
        let mut locks = vec![Lock { scope: Scope::BigLock, mode, units: 1 }];
        for (level, name) in levels.names().enumerate() {
            let Some(at) = self.levels.get(name) else { continue };
            let mut add = |resource: Option<&String>, mode, units| {
                let scope = match resource {
                    Some(name) => Scope::Resource { level, name: name.clone() },
                    None => Scope::WholeLevel(level),
                };
                locks.push(Lock { scope, mode, units });
            };
            for request in at.requests() {
                match request {
                    Request::Shared(names) => {
                        names.iter().for_each(|(name, units)| add(Some(name), Mode::Shared, *units));
                    }
                    Request::Exclusive(names) => {
                        names.iter().for_each(|name| add(Some(name), Mode::Exclusive, 1));
                    }
                    Request::AllShared => add(None, Mode::Shared, 1),
                    Request::AllExclusive => add(None, Mode::Exclusive, 1),
                    Request::None | Request::UnknownShared | Request::UnknownExclusive => {}
                }
            }
        }
        locks.sort();
        locks
    }
}

/// Which other locks of the same scope a lock permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Shared ones, as far as the capacity permits.
    Shared,
    /// None.
    Exclusive,
}

/// The scope of a lock: what it locks. A job that holds locks may take further ones only in this order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The big lock, before all levels.
    BigLock,
    /// All of a level, with resources that appear later. The number is the level's index in [`Levels`].
    WholeLevel(usize),
    /// One resource.
    Resource {
        /// The level's index in [`Levels`].
        level: usize,
        /// Its name.
        name: String,
    },
}

impl Scope {
    /// The index of its level; `None` for the big lock.
    pub fn level(&self) -> Option<usize> {
        match self {
            Scope::BigLock => None,
            Scope::WholeLevel(level) | Scope::Resource { level, .. } => Some(*level),
        }
    }

    fn key(&self) -> (Option<usize>, Option<&str>) {
        match self {
            Scope::BigLock => (None, None),
            Scope::WholeLevel(level) => (Some(*level), None),
            Scope::Resource { level, name } => (Some(*level), Some(name)),
        }
    }
}

impl Ord for Scope {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Scope {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A lock that is held or wanted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lock {
    /// What is locked.
    pub scope: Scope,
    /// How it is locked.
    pub mode: Mode,
    /// Of a shared lock: the units that it takes. Of an exclusive lock: no meaning.
    pub units: u32,
}

/// One level, as it is configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Its name.
    pub name: String,
    /// The units of each of its resources. Without it, units are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// The units of resources that differ from `capacity`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacities: BTreeMap<String, u32>,
}

/// The levels, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Level>", into = "Vec<Level>")]
pub struct Levels(Vec<Level>);

impl Default for Levels {
    fn default() -> Self {
        let level = |name: &str| Level { name: name.to_owned(), capacity: None, capacities: BTreeMap::new() };
        Levels(DEFAULT_LEVELS.into_iter().map(level).collect())
    }
}

impl TryFrom<Vec<Level>> for Levels {
    type Error = String;

    fn try_from(levels: Vec<Level>) -> Result<Self, String> {
        if levels.is_empty() || levels.len() > MAX_LEVELS {
            return Err(format!("there are {} levels; 1 to {MAX_LEVELS} are possible", levels.len()));
        }
        let mut names = BTreeSet::new();
        for Level { name, capacity, capacities } in &levels {
            check_name(name).map_err(|problem| format!("a level {problem}"))?;
            if name == BIG_LOCK {
                return Err(format!(
                    "a level cannot be called {BIG_LOCK}: that lock stands before all levels"
                ));
            }
            if !names.insert(name) {
                return Err(format!("there are two levels {name:?}"));
            }
            for resource in capacities.keys() {
                check_name(resource).map_err(|problem| format!("a resource of level {name:?} {problem}"))?;
            }
            for units in capacity.iter().chain(capacities.values()) {
                if !(1..=MAX_CAPACITY).contains(units) {
                    return Err(format!(
                        "level {name:?} has a capacity of {units}: 1 to {MAX_CAPACITY} are possible"
                    ));
                }
            }
        }
        Ok(Levels(levels))
    }
}

impl From<Levels> for Vec<Level> {
    fn from(levels: Levels) -> Self {
        levels.0
    }
}

impl Levels {
    /// The number of levels.
    #[allow(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|level| level.name.as_str())
    }

    /// The name of the level with this index.
    pub fn name(&self, level: usize) -> Option<&str> {
        self.0.get(level).map(|level| level.name.as_str())
    }

    /// The index of the level with this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.names().position(|level| level == name)
    }

    /// The units of a resource; `None` if they are not counted.
    pub fn capacity(&self, level: usize, resource: &str) -> Option<u32> {
        let level = self.0.get(level)?;
        level.capacities.get(resource).copied().or(level.capacity)
    }

    /// The units of the largest resource of a level; `None` if no resource has counted units.
    pub fn most_units(&self, level: usize) -> Option<u32> {
        let level = self.0.get(level)?;
        level.capacities.values().copied().chain(level.capacity).max()
    }

    /// Checks that a job may want this.
    ///
    /// # Errors
    /// The place in the declaration, what is wrong there, and what would be right.
    pub fn check(&self, requests: &Requests) -> Result<(), Refused> {
        let mut named = 0;
        for (name, at) in &requests.levels {
            let refuse = |problem: String| Refused { level: name.clone(), problem };
            let Some(level) = self.position(name) else {
                let known: Vec<&str> = self.names().collect();
                return Err(refuse(format!("there is no such level; the levels are {}", known.join(", "))));
            };
            for request in at.requests() {
                match request {
                    Request::Shared(names) => {
                        named += names.len();
                        for (resource, units) in names {
                            if let Some(capacity) = self.capacity(level, resource).filter(|most| units > most)
                            {
                                return Err(refuse(format!(
                                    "wants {units} units of {resource:?}, which has {capacity}"
                                )));
                            }
                        }
                    }
                    Request::Exclusive(names) => named += names.len(),
                    _ => {}
                }
            }
            if named > MAX_RESOURCES {
                return Err(refuse(format!(
                    "more than {MAX_RESOURCES} resources are named, all levels together: ask for all of a level"
                )));
            }
        }
        Ok(())
    }
}

/// A declaration that is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The level with the problem.
    pub level: String,
    /// What is wrong, and what would be right.
    pub problem: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "locks.{}: {}", self.level, self.problem)
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(json: &str) -> Result<Requests, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_declaration_is_read_and_written_alike() {
        for json in [
            r#"{}"#,
            r#"{"big_lock":true}"#,
            r#"{"instance":{"exclusive":["a","b"]},"node":{"shared":"unknown"}}"#,
            r#"{"network":{"shared":"all"},"node":{"exclusive":"unknown"},"node_group":{"exclusive":"all"}}"#,
            r#"{"node":{"shared":["a"],"exclusive":["b"]},"node_resource":{"shared":{"n":3}}}"#,
        ] {
            assert_eq!(serde_json::to_string(&requests(json).unwrap()).unwrap(), json);
        }
    }

    #[test]
    fn a_wrong_declaration_is_rejected_with_the_fix() {
        for (json, said) in [
            (r#"{"node":{"shared":[]}}"#, "names nothing to lock shared"),
            (r#"{"node":{"exclusive":[]}}"#, "names nothing to lock exclusive"),
            (r#"{"node":{"shared":["a"],"exclusive":["a"]}}"#, "both shared and exclusive"),
            (r#"{"node":{"shared":{"a":-1}}}"#, "wants -1 units of \"a\""),
            (r#"{"node":{"shared":{"a":0}}}"#, "wants 0 units of \"a\""),
            (r#"{"node":{"exclusive":{"a":1}}}"#, "has units of an exclusive lock"),
            (r#"{"node":{"shared":"some"}}"#, "must be \"all\", \"unknown\""),
            (r#"{"node":{"shered":"all"}}"#, "unknown field `shered`"),
            (r#"{"node":{"shared":[""]}}"#, "empty name"),
        ] {
            let error = requests(json).unwrap_err();
            assert!(error.contains(said), "{json}: {error}");
        }
        let levels = Levels::default();
        let refused = levels.check(&requests(r#"{"nod":{"shared":"all"}}"#).unwrap()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "locks.nod: there is no such level; the levels are node_group, instance, node, node_resource, network"
        );
    }

    #[test]
    fn requests_stay_within_capacities() {
        let levels: Levels =
            serde_json::from_str(r#"[{"name":"disk","capacity":4,"capacities":{"big":8}}]"#).unwrap();
        let check = |json| levels.check(&requests(json).unwrap()).map_err(|refused| refused.problem);
        assert_eq!(check(r#"{"disk":{"shared":{"a":4,"big":8}}}"#), Ok(()));
        assert_eq!(
            check(r#"{"disk":{"shared":{"a":5}}}"#),
            Err("wants 5 units of \"a\", which has 4".to_owned())
        );
        for wrong in [r#"[{"name":"disk","capacity":0}]"#, r#"[{"name":"disk","capacity":-1}]"#, "[]"] {
            assert!(serde_json::from_str::<Levels>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_job_of_several_steps_wants_what_each_of_them_wants() {
        for (one, other, both) in [
            ("{}", r#"{"exclusive":"all"}"#, r#"{"exclusive":"all"}"#),
            (r#"{"shared":{"a":2}}"#, r#"{"shared":["a","b"]}"#, r#"{"shared":{"a":2,"b":1}}"#),
            (r#"{"shared":["a","b"]}"#, r#"{"exclusive":["a"]}"#, r#"{"shared":["b"],"exclusive":["a"]}"#),
            (r#"{"shared":["a"]}"#, r#"{"exclusive":["a"]}"#, r#"{"exclusive":["a"]}"#),
            (r#"{"shared":["a"]}"#, r#"{"shared":"unknown"}"#, r#"{"shared":"unknown"}"#),
            (r#"{"exclusive":"unknown"}"#, r#"{"exclusive":"all"}"#, r#"{"exclusive":"all"}"#),
            (r#"{"shared":"all"}"#, r#"{"exclusive":"all"}"#, r#"{"exclusive":"all"}"#),
            (r#"{"shared":"all"}"#, r#"{"exclusive":["a"]}"#, r#"{"shared":"all","exclusive":["a"]}"#),
        ] {
            let at = |json| serde_json::from_str::<AtLevel>(json).unwrap();
            let merged = |one, other| serde_json::to_string(&at(one).merge(at(other))).unwrap();
            assert_eq!(merged(one, other), both);
            assert_eq!(merged(other, one), both);
        }
    }

    #[test]
    fn known_locks_come_in_the_order_in_which_they_may_be_taken() {
        let wanted = r#"{"network":{"shared":["b","a"]},"instance":{"exclusive":["i"],"shared":"all"},"node":{"shared":"unknown"}}"#;
        let levels = Levels::default();
        let locks = requests(wanted).unwrap().known(&levels);
        let scopes: Vec<&Scope> = locks.iter().map(|lock| &lock.scope).collect();
        let resource = |level, name: &str| Scope::Resource { level, name: name.to_owned() };
        assert_eq!(
            scopes,
            [&Scope::BigLock, &Scope::WholeLevel(1), &resource(1, "i"), &resource(4, "a"), &resource(4, "b")]
        );
        assert!(locks.is_sorted());
        // All of a level comes after any name of an earlier level, and before the names of its own.
        assert!(resource(0, "z") < Scope::WholeLevel(1) && Scope::WholeLevel(1) < resource(1, ""));
        assert_eq!(requests(r#"{"big_lock":true}"#).unwrap().known(&levels)[0].mode, Mode::Exclusive);
        assert_eq!(Requests::default().known(&levels), []);
    }
}
