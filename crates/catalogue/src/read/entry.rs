//! Reads the locks of one task.
//!
//! ```toml
//! big_lock = true                                  # or { when = …, unless = … }
//! instance.exclusive = ["{instance}"]              # names
//! network.shared = "all"                           # or "unknown"
//! node = [                                         # several requests: all whose conditions hold count
//!   { exclusive = ["{primary}", "{secondary?}"], unless = { allocator = "present" } },
//!   { exclusive = "unknown", when = { allocator = "present" } },
//! ]
//! disk = { shared = ["{disks.node}"], units = "{disks}" }
//! ```

use serde_json::Value;
use toml::de::{DeTable, DeValue};
use turnwise_policy::predictive_queue::locks::{BIG_LOCK, MAX_CAPACITY, MAX_RESOURCES};

use super::node::Node;
use super::{Reading, Result};
use crate::conditions::{Conditions, Is};
use crate::options::Path;
use crate::template::{Count, Template};
use crate::{Entry, MAX_CONDITIONS, Rule, Which};

const OF_A_REQUEST: [&str; 5] = ["shared", "exclusive", "units", "when", "unless"];

impl Reading<'_> {
    /// Reads locks. With `task`, they are a task's, which may have aliases.
    pub(super) fn entry(&mut self, node: &Node<'_>, value: &DeValue<'_>, task: bool) -> Result<Entry> {
        self.count(node)?;
        let table = node.table(value, "a table of levels, as in { node = { shared = [\"{node}\"] } }")?;
        let mut entry = Entry::default();
        for (name, node, value) in node.members(table) {
            if name == BIG_LOCK {
                entry.big_lock = big_lock(&node, value)?;
                continue;
            }
            // The caller reads aliases, together with the task's name. Other locks have none.
            if name == super::ALIASES && task {
                continue;
            }
            if self.levels.position(name).is_none() {
                let levels: Vec<&str> = self.levels.names().collect();
                let fix = format!("the levels are {}, and {BIG_LOCK}", levels.join(", "));
                return Err(node.wrong("there is no such level", fix));
            }
            let mut rules: Vec<Rule> = Vec::new();
            match value {
                DeValue::Array(list) if list.is_empty() => {
                    return Err(node.wrong("is an empty list", "leave the level out, or say what is locked"));
                }
                DeValue::Array(list) => {
                    for (node, value) in node.elements(list) {
                        let rule = self.rule(name, &node, value)?;
                        rules.iter().try_for_each(|other| refuse_contradiction(&node, other, &rule))?;
                        rules.push(rule);
                    }
                }
                value => rules.push(self.rule(name, &node, value)?),
            }
            entry.rules.extend(rules);
        }
        Ok(entry)
    }

    fn rule(&mut self, level: &str, node: &Node<'_>, value: &DeValue<'_>) -> Result<Rule> {
        self.count(node)?;
        let table = node.table(value, "a request, as in { shared = [\"{node}\"] }")?;
        node.only(table, &OF_A_REQUEST)?;
        let mut rule = Rule {
            level: level.to_owned(),
            line: node.line(),
            shared: which(node, table, "shared")?,
            exclusive: which(node, table, "exclusive")?,
            units: None,
            conditions: conditions(node, table)?,
        };
        if rule.shared.is_none() && rule.exclusive.is_none() {
            return Err(node.wrong("locks nothing", "write `shared` or `exclusive`"));
        }
        rule.units = node.optional(table, "units", |node, value| self.units(&rule, node, value))?;
        both_modes(node, &rule.shared, &rule.exclusive)?;
        Ok(rule)
    }

    fn units(&self, rule: &Rule, node: &Node<'_>, value: &DeValue<'_>) -> Result<Count> {
        if !matches!(rule.shared, Some(Which::Names(_))) {
            let fix = "only shared locks on names have units: an exclusive one takes all of them";
            return Err(node.wrong("counts what is not counted", fix));
        }
        let level = self.levels.position(&rule.level);
        let most = level.and_then(|level| self.levels.most_units(level));
        let Some(most) = most else {
            let fix = "give the level a capacity under [[levels]]";
            return Err(node.wrong(format!("counts units of {}, which has none", rule.level), fix));
        };
        match value {
            DeValue::String(text) => Count::parse(text).map_err(|(problem, fix)| node.wrong(problem, fix)),
            value => {
                let units =
                    node.number(value, "a number of units, or an option that has it, as in \"{disks}\"")?;
                match u32::try_from(units) {
                    Ok(few) if (1..=most.min(MAX_CAPACITY)).contains(&few) => Ok(Count::Fixed(few)),
                    _ => Err(node.wrong(format!("is {units}"), format!("1 to {most} can be had"))),
                }
            }
        }
    }
}

fn big_lock(node: &Node<'_>, value: &DeValue<'_>) -> Result<Option<Conditions>> {
    match value {
        DeValue::Table(table) => {
            node.only(table, &["when", "unless"])?;
            let conditions = conditions(node, table)?;
            match conditions.is_none() {
                true => Err(node.wrong("has no conditions", "write big_lock = true, or when or unless")),
                false => Ok(Some(conditions)),
            }
        }
        value => match node.boolean(value, "true, or { when = { … } }")? {
            true => Ok(Some(Conditions::default())),
            false => {
                Err(node.wrong("is false", "leave it out: nothing takes the big lock unless it says so"))
            }
        },
    }
}

fn which(node: &Node<'_>, table: &DeTable<'_>, mode: &str) -> Result<Option<Which>> {
    let Some((node, value)) = node.member(table, mode) else { return Ok(None) };
    let list = match value {
        DeValue::String(word) => {
            return match &**word {
                "all" => Ok(Some(Which::All)),
                "unknown" => Ok(Some(Which::Unknown)),
                text => {
                    let fix = format!("write \"all\", \"unknown\", or a list of names: [{text:?}]");
                    Err(node.wrong(format!("is {text:?}"), fix))
                }
            };
        }
        value => node.list(value, "\"all\", \"unknown\", or a list of names, as in [\"{node}\"]")?,
    };
    if list.is_empty() {
        let fix = "leave it out, or say \"unknown\" or \"all\"";
        return Err(node.wrong(format!("names nothing to lock {mode}"), fix));
    }
    if list.len() > MAX_RESOURCES {
        let fix = format!("at most {MAX_RESOURCES} are possible: say \"all\"");
        return Err(node.wrong(format!("has {} names", list.len()), fix));
    }
    let mut templates: Vec<Template> = Vec::with_capacity(list.len());
    let mut seen = std::collections::BTreeSet::new();
    for (node, value) in node.elements(list) {
        let text = node.text(value, "a name, or an option that has it, as in \"{node}\"")?;
        if !seen.insert(text) {
            return Err(node.wrong(format!("names {text:?} twice"), "name it once"));
        }
        templates.push(Template::parse(text).map_err(|(problem, fix)| node.wrong(problem, fix))?);
    }
    Ok(Some(Which::Names(templates)))
}

/// Refuses the same names or all of a level in both modes.
fn both_modes(node: &Node<'_>, shared: &Option<Which>, exclusive: &Option<Which>) -> Result<()> {
    let enough = "exclusive is enough: leave it out of `shared`";
    match (shared, exclusive) {
        (Some(Which::All), Some(Which::All)) => {
            Err(node.wrong("wants all of the level both shared and exclusive", enough))
        }
        (Some(Which::Names(shared)), Some(Which::Names(exclusive))) => {
            match shared.iter().find(|name| exclusive.contains(name)) {
                Some(name) => Err(node.wrong(format!("names \"{name}\" both shared and exclusive"), enough)),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Refuses two requests with the same conditions that contradict each other.
fn refuse_contradiction(node: &Node<'_>, one: &Rule, other: &Rule) -> Result<()> {
    if one.conditions != other.conditions {
        return Ok(());
    }
    both_modes(node, &one.shared, &other.exclusive)?;
    both_modes(node, &other.shared, &one.exclusive)?;
    // Shared names may differ in their units.
    let counted = one.units != other.units;
    let twice = (one.exclusive.is_some() && other.exclusive.is_some())
        || (one.shared.is_some() && other.shared.is_some() && !counted);
    match twice {
        true => Err(node.wrong(
            format!("is a second request of one mode under the conditions of line {}", one.line),
            "make one request of them, or give them conditions that differ",
        )),
        false => Ok(()),
    }
}

fn conditions(node: &Node<'_>, table: &DeTable<'_>) -> Result<Conditions> {
    let read = |name: &str| -> Result<Vec<(Path, Is)>> {
        let Some((node, value)) = node.member(table, name) else { return Ok(Vec::new()) };
        let table = node.table(value, "options and what they must be, as in { mode = \"fast\" }")?;
        if table.is_empty() || table.len() > MAX_CONDITIONS {
            let fix = format!("1 to {MAX_CONDITIONS} are possible; leave it out if there are none");
            return Err(node.wrong(format!("has {} conditions", table.len()), fix));
        }
        let mut conditions = Vec::new();
        flat(&node, table, "", &mut conditions)?;
        Ok(conditions)
    };
    Ok(Conditions { when: read("when")?, unless: read("unless")? })
}

/// `{ backend.node = "x" }` and `{ "backend.node" = "x" }` are equivalent.
fn flat(node: &Node<'_>, table: &DeTable<'_>, before: &str, conditions: &mut Vec<(Path, Is)>) -> Result<()> {
    for (name, node, value) in node.members(table) {
        let path = format!("{before}{name}");
        // Checked at each member, so that the recursion is never deeper than a path may be.
        let option = Path::parse(&path).map_err(|(problem, fix)| node.wrong(problem, fix))?;
        match value {
            DeValue::Table(inner) if !inner.is_empty() => {
                flat(&node, inner, &format!("{path}."), conditions)?;
            }
            value => {
                if conditions.len() >= MAX_CONDITIONS {
                    return Err(
                        node.wrong("is one condition too many", format!("{MAX_CONDITIONS} are possible"))
                    );
                }
                if conditions.iter().any(|(other, _)| *other == option) {
                    return Err(node.wrong("says twice what an option must be", "write a list of its values"));
                }
                conditions.push((option, is(&node, value)?));
            }
        }
    }
    Ok(())
}

fn is(node: &Node<'_>, value: &DeValue<'_>) -> Result<Is> {
    const WANTED: &str =
        "\"present\", \"absent\", a text, a whole number, true or false, or a list of these values";
    let one = |node: &Node<'_>, value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(Value::from(&**text)),
        DeValue::Boolean(is) => Ok(Value::from(*is)),
        value => Ok(Value::from(node.number(value, WANTED)?)),
    };
    match value {
        DeValue::String(word) if word == "present" => Ok(Is::Present),
        DeValue::String(word) if word == "absent" => Ok(Is::Absent),
        DeValue::Array(list) if list.is_empty() || list.len() > MAX_RESOURCES => {
            let fix = format!("1 to {MAX_RESOURCES} are possible, or \"present\" or \"absent\"");
            Err(node.wrong(format!("has {} values", list.len()), fix))
        }
        DeValue::Array(list) => {
            let values: Result<Vec<Value>> =
                node.elements(list).map(|(node, value)| one(&node, value)).collect();
            Ok(Is::OneOf(values?))
        }
        value => Ok(Is::OneOf(vec![one(node, value)?])),
    }
}
