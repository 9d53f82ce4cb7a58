//! The secrets of all tests, and the search for leaks of them.
//!
//! Each password, token and cookie that a test gives to turnwise contains [`MARK`]. One search therefore finds any of them
//! in a text. It finds the plain form, which percent-encoding and JSON need not change, base64, which HTTP Basic sends, and the
//! forms in which every character is percent-encoded, or escaped as in JSON.
//!
//! The search covers the whole of `cargo xtask test`:
//!
//! - what servers and workers in a test's own process log, at every level ([`watch_log`]), and the messages of their panics;
//! - what the started binary logs and prints: its harness passes each log to [`assert_none`] at the end;
//! - turnwise's responses, in the functions that tests use for requests.
//!
//! A finding fails the test if possible. It is also written to the folder that [`FOLDER_VARIABLE`] names, which
//! `cargo xtask test` checks after all tests. A line that is logged after a test's last check therefore still fails the run.
//! Excluded are texts that may hold secrets: the peers' own responses, and the options that a worker receives.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Once};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tracing_subscriber::filter::LevelFilter;

/// The text that each secret of a test contains, and no other text. It has only letters and digits, so that no text
/// encoding changes it.
pub const MARK: &str = "hunter2";

/// A password that needs no encoding in a URL.
pub const PASSWORD: &str = "hunter2-pa55word";

/// A password that needs encoding. In a URL it is [`ENCODED_PASSWORD`].
pub const ODD_PASSWORD: &str = "p@ss/ hunter2:%";

/// [`ODD_PASSWORD`] as a URL contains it.
pub const ENCODED_PASSWORD: &str = "p%40ss%2F%20hunter2%3A%25";

/// The value of an authorization header.
pub const TOKEN: &str = "hunter2-t0ken";

/// The value of a session cookie.
pub const COOKIE: &str = "hunter2-c00kie";

/// The variable that names the folder for findings, with one file per finding. Without it, findings only fail tests.
pub const FOLDER_VARIABLE: &str = "TURNWISE_TEST_LEAKS";

/// How much of a line is shown before and after a finding, in bytes.
const SHOWN_BYTES: usize = 300;

/// Whether anything was found in this process.
static FOUND: AtomicBool = AtomicBool::new(false);

/// The texts to search for: the mark, its base64 forms at each of the three offsets in a group, and the forms with every
/// character encoded. A JSON escape may have been escaped once more.
static FORMS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let encoded = (0..3).map(|before| {
        let text = STANDARD.encode(format!("{}{MARK}", "-".repeat(before)));
        // Each character holds six bits. Characters that share bits with adjacent bytes are left out.
        let (first, end) = ((before * 8).div_ceil(6), (before + MARK.len()) * 8 / 6);
        text[first..end].to_owned()
    });
    let each = |form: fn(u8) -> String| MARK.bytes().map(form).collect::<String>();
    let escaped = [
        each(|byte| format!("%{byte:02x}")),
        each(|byte| format!("%{byte:02X}")),
        each(|byte| format!("\\u{byte:04x}")),
        each(|byte| format!("\\u{byte:04X}")),
        each(|byte| format!("\\\\u{byte:04x}")),
        each(|byte| format!("\\\\u{byte:04X}")),
    ];
    std::iter::once(MARK.to_owned()).chain(encoded).chain(escaped).collect()
});

/// The first line of `text` with a secret in it. Of a long line, returns the part around the secret.
pub fn find(text: &str) -> Option<String> {
    let line = text.lines().find(|line| FORMS.iter().any(|form| line.contains(form)))?;
    let place = FORMS.iter().find_map(|form| line.find(form)).unwrap_or_default();
    let bounds = (place.saturating_sub(SHOWN_BYTES), (place + SHOWN_BYTES).min(line.len()));
    Some(String::from_utf8_lossy(&line.as_bytes()[bounds.0..bounds.1]).into_owned())
}

/// Fails the test, and the whole run, if `text` holds a secret. `what` names the source of the text.
///
/// # Panics
/// If the text holds a secret, unless the thread already panics.
pub fn assert_none(what: &str, text: &str) {
    if let Some(line) = find(text) {
        report(what, &line);
        if !std::thread::panicking() {
            panic!("{what} tells a secret: {line}");
        }
    }
}

/// Fails the test if this process's log or its panics have contained a secret so far.
///
/// # Panics
/// If they have, unless the thread already panics.
pub fn assert_log_clean() {
    assert!(
        std::thread::panicking() || !FOUND.load(Ordering::Relaxed),
        "a secret was logged, or was in a panic's message: standard error shows the line"
    );
}

/// Starts to search everything that this process logs, at every level, and the messages of its panics. If a test has its
/// own log subscriber, that one stays.
pub fn watch_log() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // Fails if there already is a subscriber. The test is then responsible for its log.
        let _ = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_writer(|| Searched(|line| report("the log", line)))
            .with_ansi(false)
            .try_init();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // A secret in a test's own assertion is already a failure of that test.
            if let Some(line) = find(&panic.to_string()) {
                report("a panic", &line);
            }
            before(panic);
        }));
    });
}

/// Records a finding, for the check at the end.
fn report(what: &str, line: &str) {
    FOUND.store(true, Ordering::Relaxed);
    eprintln!("{what} tells a secret: {line}");
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        write_down(Path::new(&folder), what, line);
    }
}

fn write_down(folder: &Path, what: &str, line: &str) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let process = std::env::current_exe().unwrap_or_default();
    let process = process.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Process ids repeat, so the name needs a random part.
    let number = RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed));
    let file = folder.join(format!("{process}-{number:x}"));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&file, format!("{process}: {what}: {line}\n")));
    // A panic here would look like the panics that are searched.
    if let Err(error) = written {
        eprintln!("{} cannot be written: {error}", file.display());
    }
}

/// A writer that receives each line of a log in one piece, and reports lines with a secret. It drops all lines.
struct Searched<T: Fn(&str)>(T);

impl<T: Fn(&str)> Write for Searched<T> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Some(line) = find(&String::from_utf8_lossy(bytes)) {
            (self.0)(&line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn every_secret_is_found_in_each_form_in_which_it_travels() {
        for secret in [PASSWORD, ODD_PASSWORD, ENCODED_PASSWORD, TOKEN, COOKIE] {
            assert!(secret.contains(MARK), "{secret}");
            assert!(find(&format!("a\nb {secret} c\nd")).unwrap().starts_with("b "));
            for user in ["", "a", "ab", "abc", "admin", "jan é"] {
                let basic = STANDARD.encode(format!("{user}:{secret}"));
                assert!(find(&basic).is_some(), "{user}: {basic}");
            }
            let escaped: String = secret.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            let percent: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
            for text in [serde_json::json!(escaped).to_string(), escaped, percent.to_lowercase(), percent] {
                assert!(find(&text).is_some(), "{text}");
            }
        }
        assert_eq!(find("a password: *****, and YWRtaW46c2VjcmV0"), None);
    }

    #[test]
    fn of_a_long_line_the_part_around_the_secret_is_shown() {
        let line = format!("{}{PASSWORD}{}", "ä".repeat(10_000), "b".repeat(10_000));
        let shown = find(&line).unwrap();
        assert!(shown.contains(PASSWORD) && shown.len() < 1_000, "{shown}");
    }

    #[test]
    fn a_secret_in_a_log_is_found() {
        let found = RefCell::new(Vec::new());
        let mut log = Searched(|line: &str| found.borrow_mut().push(line.to_owned()));
        writeln!(log, "DEBUG job started source=http://admin:*****@host/db").unwrap();
        assert!(found.borrow().is_empty());
        log.write_all(
            format!("DEBUG Authorization: Basic {}\n", STANDARD.encode(format!("u:{PASSWORD}"))).as_bytes(),
        )
        .unwrap();
        assert_eq!(found.borrow().len(), 1);
    }

    #[test]
    fn findings_are_written_down_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        let leaks = folder.path().join("leaks");
        write_down(&leaks, "the log", "one");
        write_down(&leaks, "an answer", "two");
        let files = std::fs::read_dir(leaks)
            .unwrap()
            .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let mut said: Vec<String> = files.map(|said| said.split_once(": ").unwrap().1.to_owned()).collect();
        said.sort();
        assert_eq!(said, ["an answer: two\n", "the log: one\n"]);
    }
}
