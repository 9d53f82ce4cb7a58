//! Checks that each row in the tables of `docs/replication.md` names tests, and that these tests exist.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A design note has less words than these.
const NOTE_WORDS: usize = 800;
/// With fewer rows than this, the test did not understand the tables.
const ROWS_MIN: usize = 60;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The names of tests in backticks: `crate::file::function`.
fn named(text: &str) -> Vec<(String, String, String)> {
    let quoted = text.split('`').skip(1).step_by(2);
    let parts = |name: &str| match name.split("::").collect::<Vec<_>>()[..] {
        [krate, file, function] => Some((krate.to_owned(), file.to_owned(), function.to_owned())),
        _ => None,
    };
    quoted.filter_map(parts).collect()
}

/// Every Rust file under a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The names of the tests in a file: functions directly below a test attribute.
fn tests_in(text: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_test = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let name = |line: &str| Some(line.split_once("fn ")?.1.split_once('(')?.0.to_owned());
    let after =
        |at: usize| lines[at + 1..].iter().find(|line| !line.starts_with("#[")).and_then(|line| name(line));
    (0..lines.len()).filter(|at| is_test(&lines[*at])).filter_map(after).collect()
}

/// Whether a crate has a file or folder of this name with this test.
fn is_there(root: &Path, (krate, file, function): &(String, String, String)) -> bool {
    let mut files = Vec::new();
    sources(&root.join("crates").join(krate), &mut files);
    // A folder stands for its main file: `upstream` is `upstream/main.rs`.
    let is_called = |path: &&PathBuf| {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        stem == file || (["main", "mod"].contains(&stem) && folder == Some(file))
    };
    files
        .iter()
        .filter(is_called)
        .any(|path| tests_in(&std::fs::read_to_string(path).unwrap()).contains(function))
}

/// The problems of a page, and the number of rows in its tables of tests.
fn problems(root: &Path, page: &str) -> (Vec<String>, usize) {
    let (mut problems, mut rows, mut in_table) = (Vec::new(), 0, false);
    for line in page.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split(" | ").collect();
        if !line.starts_with('|') {
            in_table = false;
        } else if cells.last().is_some_and(|cell| cell.trim() == "test") {
            in_table = true;
        } else if in_table && !line.starts_with("| ---") {
            rows += 1;
            if named(cells.last().unwrap()).is_empty() {
                problems.push(format!("no test: {line}"));
            }
        }
    }
    let all = named(page);
    problems.extend(
        all.iter().filter(|name| !is_there(root, name)).map(|name| format!("no such test: {name:?}")),
    );
    (problems, rows)
}

#[test]
fn every_row_of_the_page_on_replication_names_a_test_that_is_there() {
    let page = std::fs::read_to_string(root().join("docs/replication.md")).unwrap();
    let (problems, rows) = problems(&root(), &page);
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(rows >= ROWS_MIN, "{rows} rows");
}

#[test]
fn a_row_without_a_test_and_a_test_that_is_gone_are_found() {
    let good = "| a | test |\n| --- | --- |\n| x | `replicator::spec_tests::numbers_may_be_strings_as_in_couchdb` |\n";
    assert_eq!(problems(&root(), good), (vec![], 1));
    let bad = format!(
        "{good}| y | none |\n| z | `replicator::spec_tests::no_such` |\n\n| other | table |\n| - | - |\n"
    );
    let (found, rows) = problems(&root(), &bad);
    assert_eq!((found.len(), rows), (2, 3), "{found:?}");
    // A function that is no test does not count, and neither does a test in another file.
    for name in ["replicator::spec_tests::with", "replicator::spec::numbers_may_be_strings_as_in_couchdb"] {
        assert_eq!(problems(&root(), &format!("`{name}`")).0.len(), 1, "{name}");
    }
}

/// The names in a lock file's packages that the file does not lock. `npm ci` refuses such a file, even if the missing
/// package is not for this platform.
fn unlocked(lock: &serde_json::Value) -> Vec<String> {
    let packages = lock["packages"].as_object().unwrap();
    let names = |package: &serde_json::Value, kind: &str| -> Vec<String> {
        package[kind].as_object().into_iter().flat_map(|names| names.keys().cloned()).collect()
    };
    let mut missing = Vec::new();
    for (path, package) in packages {
        for name in ["dependencies", "optionalDependencies"].iter().flat_map(|kind| names(package, kind)) {
            // The search starts beside the package's own modules and continues in every folder above, as in Node.js.
            let mut folder = Some(path.as_str());
            let found = std::iter::from_fn(|| {
                let at = folder?;
                folder = match at.rfind("node_modules/") {
                    Some(begin) => Some(at[..begin].trim_end_matches('/')),
                    None => None,
                };
                Some(if at.is_empty() {
                    format!("node_modules/{name}")
                } else {
                    format!("{at}/node_modules/{name}")
                })
            });
            if !found.into_iter().any(|place| packages.contains_key(&place)) {
                missing.push(format!("{path}: {name}"));
            }
        }
    }
    missing
}

#[test]
fn lock_files_of_npm_lock_everything_that_their_packages_name() {
    for folder in ["peers", "lab/peers"] {
        let lock = std::fs::read_to_string(root().join(folder).join("package-lock.json")).unwrap();
        let missing = unlocked(&serde_json::from_str(&lock).unwrap());
        assert!(missing.is_empty(), "{folder}: {missing:#?}");
    }
}

#[test]
fn every_design_note_is_short_and_in_the_index() {
    let folder = root().join("docs/design");
    let index = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let mut notes = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "README.md" {
            notes += 1;
            let words = std::fs::read_to_string(folder.join(&name)).unwrap().split_whitespace().count();
            assert!(words < NOTE_WORDS, "{name} has {words} words");
            assert!(index.contains(&format!("]({name})")), "{name} is not in docs/design/README.md");
        }
    }
    assert!((10..=29).contains(&notes), "{notes} notes");
}
