//! Repeats the failures of a test run at its end. In the output of 1,400 tests, a reader misses failures in the middle, and
//! a machine may keep only the end.

use std::io::{BufRead, Read, Write};
use std::process::{Command, Stdio};

use crate::command::{self, Failure};

/// The limits of what is repeated: lines of one test, and bytes of one line.
const MAX_LINES: usize = 40;
const MAX_LINE_BYTES: usize = 600;

/// Runs `cargo test`, forwards its output, and repeats the output of failed tests after everything else.
pub fn repeated(tests: &mut Command) -> command::Result {
    let mut child = tests.stdout(Stdio::piped()).spawn().map_err(|error| Failure::new(error.to_string()))?;
    let output = child.stdout.take().ok_or_else(|| Failure::new("the tests have no output"))?;
    let failures = pass_on(output, &mut std::io::stdout()).map_err(|error| Failure::new(error.to_string()));
    let status = child.wait().map_err(|error| Failure::new(error.to_string()))?;
    for failure in &failures? {
        println!("\nFAILED: {failure}");
    }
    command::judge(tests, status)
}

/// Forwards lines. Returns the failures among them: for each, the test's name and its output.
pub fn pass_on(from: impl Read, to: &mut impl Write) -> std::io::Result<Vec<String>> {
    let mut failures = Vec::new();
    // The number of lines that the current failure may still have.
    let mut room = None;
    for line in std::io::BufReader::new(from).split(b'\n') {
        let line = line?;
        to.write_all(&line)?;
        to.write_all(b"\n")?;
        to.flush()?;
        let line = String::from_utf8_lossy(&line);
        // The lines with which the test harness begins and ends a failed test's output.
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            failures.push(name.to_owned());
            room = Some(MAX_LINES);
        } else if line == "failures:" || line.starts_with("test result: ") {
            room = None;
        } else if let (Some(lines), Some(failure)) = (room.as_mut(), failures.last_mut())
            && *lines > 0
            && !line.trim().is_empty()
            && !is_frame(&line)
        {
            *lines -= 1;
            failure.push_str("\n  ");
            failure.push_str(&line[..line.floor_char_boundary(MAX_LINE_BYTES)]);
        }
    }
    Ok(failures)
}

/// The last lines of an output.
pub fn last_lines(output: &[u8], most: usize) -> String {
    let output = String::from_utf8_lossy(output);
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(most)..].iter();
    last.map(|line| format!("  {}\n", &line[..line.floor_char_boundary(MAX_LINE_BYTES)])).collect()
}

/// Whether a line belongs to a backtrace: `   3: function` or `             at file:line`.
fn is_frame(line: &str) -> bool {
    let text = line.trim_start();
    let numbered = text.split_once(": ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    line.starts_with("   ") && (numbered || text.starts_with("at "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const OUTPUT: &str = "running 2 tests\ntest one ... FAILED\ntest two ... ok\n\nfailures:\n\n---- one stdout ----\n\
        round 0: 0.5 s\n\nthread 'one' panicked at src/lib.rs:1:1:\nassertion failed\nstack backtrace:\n   \
        0: __rustc::rust_begin_unwind\n             at /rustc/library/std/src/panicking.rs:689:5\n\n\nfailures:\n    one\n\n\
        test result: FAILED. 1 passed; 1 failed; 0 ignored\n\nrunning 0 tests\n";

    #[test]
    fn what_a_failed_test_said_is_kept_without_its_backtrace() {
        let mut passed_on = Vec::new();
        let failures = pass_on(OUTPUT.as_bytes(), &mut passed_on).unwrap();
        assert_eq!(passed_on, OUTPUT.as_bytes());
        let expected = "one\n  round 0: 0.5 s\n  thread 'one' panicked at src/lib.rs:1:1:\n  assertion failed\n  \
            stack backtrace:";
        assert_eq!(failures, [expected]);
    }

    #[test]
    fn the_last_lines_are_those_with_text() {
        assert_eq!(last_lines("one\n\ntwo ä\nthree\n\n".as_bytes(), 2), "  two ä\n  three\n");
        assert_eq!(last_lines(b"", 2), "");
    }

    #[test]
    fn a_long_output_of_a_test_is_cut() {
        let output = format!("---- one stdout ----\n{}", format!("{}\n", "ä".repeat(1_000)).repeat(1_000));
        let failures = pass_on(output.as_bytes(), &mut Vec::new()).unwrap();
        assert_eq!(failures.len(), 1);
        assert!(failures[0].len() <= 3 + MAX_LINES * (MAX_LINE_BYTES + 3), "{}", failures[0].len());
    }
}
