//! The structure of the repository: which crate may use which, how long a file may be, and that each file states its purpose.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The product's crates. Each may use the crates before it, but none after it.
const LAYERS: [&str; 28] = [
    "turnwise-allocator",
    "turnwise-calendar",
    "turnwise-policy",
    "turnwise-catalogue",
    "turnwise-simulate",
    "turnwise-store",
    "turnwise-queue",
    "turnwise-identity",
    "turnwise-worker",
    "turnwise",
    "turnwise-protocol",
    "turnwise-explain",
    "turnwise-client",
    "turnwise-command",
    "turnwise-fleet",
    "turnwise-outbound",
    "turnwise-replicator",
    "turnwise-indexer",
    "turnwise-admin",
    "turnwise-telemetry",
    "turnwise-config",
    "turnwise-web",
    "turnwise-metrics",
    "turnwise-api",
    "turnwise-couch",
    "turnwise-pages",
    "turnwise-server",
    "turnwise-cli",
];

/// Crates that no product code may use: only tests, the laboratory and `xtask`.
const DEVELOPMENT: [&str; 3] = ["turnwise-testkit", "turnwise-sim", "xtask"];

/// The crates of the laboratory, in `lab/`. They may use every crate, but no crate may use them.
const LAB: &str = "turnwise-lab-";

/// Crates that would bring I/O, clocks or threads into `turnwise-policy`.
const NOT_IN_POLICY: [&str; 5] = ["tokio", "reqwest", "futures", "rand", "tracing"];

/// The highest number of lines of a source file.
const LINES_MAX: usize = 900;

/// The highest number of lines of a function outside of tests.
const FUNCTION_LINES_MAX: usize = 120;

/// The crates of the workspace, each with its dependencies: their names and kinds ("normal", "dev", "build").
type Crates = BTreeMap<String, Vec<(String, String)>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn crates() -> Crates {
    let arguments = ["metadata", "--no-deps", "--format-version", "1", "--offline"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("normal").to_owned();
    let dependencies = |package: &Value| {
        let dependencies = package["dependencies"].as_array().unwrap();
        dependencies.iter().map(|dependency| (text(&dependency["name"]), text(&dependency["kind"]))).collect()
    };
    let packages = metadata["packages"].as_array().unwrap();
    packages.iter().map(|package| (text(&package["name"]), dependencies(package))).collect()
}

/// Every dependency in the wrong direction, as text.
fn wrong_arrows(crates: &Crates) -> Vec<String> {
    let layer = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let mut wrong = Vec::new();
    for (name, dependencies) in crates {
        let is_lab = name.starts_with(LAB);
        if layer(name).is_none() && !DEVELOPMENT.contains(&name.as_str()) && !is_lab {
            wrong.push(format!("{name} has no place in the tree: give it one in {}", file!()));
        }
        for (used, kind) in dependencies {
            let allowed = match (layer(name), layer(used)) {
                // A crate's tests may use the crate itself with other features.
                (Some(user), Some(used)) => used < user || (used == user && kind == "dev"),
                // A product crate's tests may use the development crates.
                (Some(_), None) => kind == "dev" || !DEVELOPMENT.contains(&used.as_str()),
                // The testkit uses servers only from outside.
                (None, Some(_)) => name != "turnwise-testkit",
                (None, None) => true,
            };
            let allowed = allowed && !used.starts_with(LAB);
            let pure = name != "turnwise-policy" || kind == "dev" || !NOT_IN_POLICY.contains(&used.as_str());
            if !allowed || !pure {
                wrong.push(format!("{name} must not use {used} ({kind})"));
            }
        }
    }
    wrong
}

/// Finds all Rust files in a folder.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn crates_use_only_those_above_them() {
    let crates = crates();
    let missing: Vec<_> = LAYERS.iter().filter(|name| !crates.contains_key(**name)).collect();
    assert!(missing.is_empty(), "not in the workspace: {missing:?}");
    let wrong = wrong_arrows(&crates);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_wrong_arrow_is_found() {
    let wrong = |name: &str, used: &str, kind: &str| {
        let dependencies = vec![(used.to_owned(), kind.to_owned())];
        !wrong_arrows(&Crates::from([(name.to_owned(), dependencies)])).is_empty()
    };
    assert!(wrong("turnwise-store", "turnwise-queue", "normal"));
    assert!(wrong("turnwise-store", "turnwise-server", "dev"));
    assert!(wrong("turnwise-queue", "turnwise-queue", "normal"));
    assert!(wrong("turnwise-server", "turnwise-testkit", "normal"));
    assert!(wrong("turnwise-policy", "tokio", "normal"));
    assert!(wrong("turnwise-testkit", "turnwise-server", "normal"));
    assert!(wrong("turnwise-testkit", "turnwise-worker", "dev"));
    assert!(wrong("turnwise-cli", "turnwise-lab-bench", "dev"));
    assert!(wrong("turnwise-testkit", "turnwise-lab-bench", "normal"));
    assert!(!wrong("turnwise-lab-bench", "turnwise-worker", "normal"));
    assert!(!wrong("turnwise-lab-bench", "turnwise-testkit", "normal"));
    assert!(wrong("turnwise-new", "serde", "normal"));
    assert!(!wrong("turnwise-queue", "turnwise-store", "normal"));
    assert!(!wrong("turnwise-queue", "turnwise-queue", "dev"));
    assert!(!wrong("turnwise-server", "turnwise-testkit", "dev"));
    assert!(!wrong("turnwise-policy", "serde", "normal"));
    assert!(!wrong("turnwise-sim", "turnwise-worker", "normal"));
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    let mut files = Vec::new();
    for folder in ["crates", "lab", "xtask"] {
        sources(&root().join(folder), &mut files);
    }
    assert!(files.len() > LAYERS.len(), "the sources were not found");
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let lines = text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{name} has {lines} lines; {LINES_MAX} is the limit"));
        }
        if !text.starts_with("//! ") {
            wrong.push(format!("{name} does not open with a `//!` comment"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The functions of a formatted file, each with its number of lines.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let name = |line: &str| {
        let (before, after) = line.split_once("fn ")?;
        let is_start = before.split_whitespace().all(|word| {
            word.starts_with("pub") || word.starts_with("in") || ["async", "const", "unsafe"].contains(&word)
        });
        let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        is_start.then(|| after[..end].to_owned())
    };
    let mut found = Vec::new();
    for (begin, line) in lines.iter().enumerate() {
        let Some(name) = name(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let ends = |line: &&&str| line.strip_prefix(indent).is_some_and(|rest| rest == "}");
        let is_declared = |line: &str| line.trim_end().ends_with(';') || line.trim_end().ends_with('}');
        if is_declared(line) {
            continue;
        }
        if let Some(length) = lines[begin..].iter().position(|line| ends(&line)) {
            found.push((name, length + 1));
        }
    }
    found
}

#[test]
fn functions_are_short() {
    let mut files = Vec::new();
    for folder in ["crates", "lab", "xtask"] {
        sources(&root().join(folder), &mut files);
    }
    let mut wrong = Vec::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        if name.contains("/tests/") || name.ends_with("tests.rs") {
            continue;
        }
        for (function, lines) in functions(&std::fs::read_to_string(&file).unwrap()) {
            if lines > FUNCTION_LINES_MAX {
                wrong.push(format!("{name}: {function} has {lines} lines"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_lines_of_functions_are_counted() {
    let text = "impl A {\n    pub(super) async fn a(\n        x: u8,\n    ) {\n        if x {\n        }\n    }\n\n    fn b();\n}\n\nfn c() {\n}\n";
    assert_eq!(functions(text), [("a".to_owned(), 6), ("c".to_owned(), 2)]);
}
