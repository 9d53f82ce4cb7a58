//! Parses INI lines into typed settings.

use std::collections::BTreeMap;

use ini_core::{Item, Parser};
use turnwise_outbound::HIDDEN;

use super::entry::{Entry, too_many};
use super::{Config, Problem, Workers, effect};

pub(super) fn parse(file: &str, text: &str) -> Result<(Config, Vec<Problem>), Problem> {
    let mut config = Config::default();
    let mut ignored = Vec::new();
    // The last line of each setting.
    let mut given = BTreeMap::new();
    let mut section = String::new();
    let mut line = 0;
    // An editor's byte order mark is not part of the first section's name.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = text.lines().map(without_comment).collect::<Vec<_>>().join("\n");
    for item in Parser::new(&text).auto_trim(true) {
        // Each item is one line, except the end of a section, which is no line.
        if !matches!(item, Item::SectionEnd) {
            line += 1;
        }
        let problem = |text: String| Problem { file: file.to_owned(), line, text };
        match item {
            Item::SectionEnd | Item::Blank | Item::Comment(_) => {}
            Item::Section(name) => name.trim().clone_into(&mut section),
            // The message does not quote such a line: it may be part of a password.
            Item::Error(_) => {
                return Err(problem("expected a section's name in brackets, [replicator]".into()));
            }
            Item::Property(_, None) => {
                let expected = "expected `key = value`, [section], or a comment after `;`";
                return Err(problem(expected.into()));
            }
            // An empty value must not be treated like a missing line, which would allow every program.
            Item::Property("programs", Some("")) if section == "command" => {
                let expected = "expected names, or absolute paths; leave the line out to allow every program";
                return Err(problem(format!("[command] programs has no value: {expected}")));
            }
            Item::Property("user", Some("")) if section == "command" => {
                let expected = "expected a user's name; leave the line out for the server's own user";
                return Err(problem(format!("[command] user has no value: {expected}")));
            }
            Item::Property("env", Some("")) if section == "command" => config.command.env = Some(Vec::new()),
            Item::Property(key, Some("")) => {
                ignored.push(problem(format!("[{section}] {key} has no value, and is ignored")))
            }
            Item::Property(key, Some(value)) => {
                let Some(entry) = Entry::find(&section, key) else {
                    ignored.push(problem(why_ignored(&section, key)));
                    continue;
                };
                if let Err(right) = entry.write(&mut config, value) {
                    let value = if entry.holds_secret() { HIDDEN } else { value };
                    return Err(problem(format!("[{section}] {key} = {value}: expected {right}")));
                }
                given.insert((entry.section(), key), line);
            }
        }
    }
    let whole = |text: String| Problem { file: file.to_owned(), line: 0, text };
    if let Some(text) = too_many(&config) {
        return Err(whole(text));
    }
    let Workers { health_interval, health_timeout, .. } = config.workers;
    if health_interval * 2 > health_timeout {
        return Err(whole(format!(
            "[workers] health_interval is {health_interval:?}: expected at most half of health_timeout, \
             {health_timeout:?}, so that one lost ping is not a lost worker"
        )));
    }
    ignored.extend(given.into_iter().filter_map(|((section, key), line)| {
        Some(Problem { line, ..whole(effect::missing(&config, section, key)?) })
    }));
    ignored.sort_by_key(|problem| problem.line);
    Ok((config, ignored))
}

/// A line without the comment at its end. As in CouchDB, a comment begins with a `;` after a space or a tab.
fn without_comment(line: &str) -> &str {
    let ends = [line.find(" ;"), line.find("\t;")];
    match ends.into_iter().flatten().min() {
        Some(end) => &line[..end],
        None => line,
    }
}

/// The warning about an unknown key in a file.
fn why_ignored(section: &str, key: &str) -> String {
    format!("[{section}] {key} is unknown, and ignored")
}

/// The error about an unknown key in a request.
pub(super) fn why_refused(section: &str, key: &str) -> String {
    format!("[{section}] {key} is unknown: docs/configuration.md has all settings")
}
