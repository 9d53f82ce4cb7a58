//! The class of a reason: what the reasons of many jobs have in common.
//!
//! *Model.* `cannot reach 10.0.0.17:5984 after 30 s` and `cannot reach 10.0.0.9:5984 after 30 s` are one problem. A class is the reason
//! without its particulars: numbers of more than three digits, long hexadecimal words, addresses and quoted text. Short numbers stay,
//! because they are often codes: `HTTP 503`, `exit code 137`. The class of a class is the class itself.
//!
//! Index rows have the number of a class, because reasons may be encrypted at rest, and index rows are not.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use crate::{Job, State};

/// Longest class, in bytes.
pub const MAX_REASON_CLASS_BYTES: usize = 120;
/// Longer numbers are particulars.
const MAX_CODE_DIGITS: usize = 3;
/// Hexadecimal words of these lengths, with a digit, are particulars.
const HEX_DIGITS: RangeInclusive<usize> = 8..=64;
/// The longest reason that is looked at, in bytes.
const MAX_READ_BYTES: usize = 1_000;
/// Replaces a number.
const NUMBER: &str = "N";
/// Replaces quoted text, and the rest of a long reason.
const LEFT_OUT: char = '…';

/// The most times that particulars are left out: what is left may have particulars again, because it has fewer quotes.
const MAX_PASSES: usize = 4;

/// The class of a reason.
pub fn of(reason: &str) -> String {
    let mut class = without_particulars(reason);
    for _ in 1..MAX_PASSES {
        let next = without_particulars(&class);
        if next == class {
            break;
        }
        class = next;
    }
    class
}

fn without_particulars(reason: &str) -> String {
    let reason = &reason[..reason.floor_char_boundary(MAX_READ_BYTES)];
    let mut class = String::new();
    let mut rest = reason.trim();
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        if class.len() > MAX_REASON_CLASS_BYTES {
            break;
        }
        let taken = if c.is_whitespace() || c.is_control() {
            if !class.ends_with(' ') {
                class.push(' ');
            }
            c.len_utf8()
        } else if let Some(bytes) = quoted(rest, c, before) {
            class.extend([c, LEFT_OUT, c]);
            bytes
        } else if !before.is_alphanumeric() && c.is_alphanumeric() {
            let word = &rest
                [..rest.find(|c: char| c.is_whitespace() || "\"'`<>(),;".contains(c)).unwrap_or(rest.len())];
            match is_address(word) {
                true => {
                    class.push_str("ADDRESS");
                    word.trim_end_matches(['.', ':']).len()
                }
                false => take_word(rest, &mut class),
            }
        } else {
            class.push(c);
            c.len_utf8()
        };
        before = rest[..taken].chars().next_back().unwrap_or(' ');
        rest = &rest[taken..];
    }
    if class.len() > MAX_REASON_CLASS_BYTES {
        // Without a part of a word, unless there is only one.
        let most = class.floor_char_boundary(MAX_REASON_CLASS_BYTES - LEFT_OUT.len_utf8());
        let words = class[..most].rfind(|c: char| !c.is_alphanumeric()).unwrap_or(most);
        class.truncate(words);
        class.truncate(class.trim_end().len());
        class.push(LEFT_OUT);
    }
    class.truncate(class.trim_end().len());
    class
}

/// The number of a class, for index rows. Two classes may have the same one.
pub fn number(class: &str) -> u32 {
    hash(class)
}

/// FNV-1a: stable, because rows depend on it.
pub(crate) fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl Job {
    /// The class of the reason why it failed, crashed or was cancelled. An error that states its own class has that one.
    pub fn reason_class(&self) -> Option<String> {
        match self.state() {
            State::Failed | State::Crashing => self.error_class.clone().or_else(|| self.reason().map(of)),
            State::Cancelled => self.reason().map(of),
            _ => None,
        }
    }
}

/// The length of the text between quotes at the beginning of `rest`. An apostrophe within or after a word is none.
fn quoted(rest: &str, quote: char, before: char) -> Option<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == LEFT_OUT;
    if !matches!(quote, '"' | '\'' | '`') || is_word(before) {
        return None;
    }
    let end = rest[1..].find(quote)? + 2;
    let is_closed = !rest[end..].starts_with(is_word);
    (end > 2 && is_closed).then_some(end)
}

/// Whether a word is an address of the network.
fn is_address(word: &str) -> bool {
    let word = word.trim_end_matches(['.', ':']);
    word.contains("://") || word.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok()
}

/// Appends the word at the beginning of `rest` without its particulars. Returns its length.
fn take_word(rest: &str, class: &mut String) -> usize {
    let word = &rest[..rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len())];
    let is_hex = HEX_DIGITS.contains(&word.len())
        && word.bytes().all(|byte| byte.is_ascii_hexdigit())
        && word.bytes().any(|byte| byte.is_ascii_digit());
    if is_hex {
        class.push_str(NUMBER);
        return word.len();
    }
    let mut left = word;
    while !left.is_empty() {
        let digits = left.find(|c: char| !c.is_ascii_digit()).unwrap_or(left.len());
        class.push_str(if digits > MAX_CODE_DIGITS { NUMBER } else { &left[..digits] });
        left = &left[digits..];
        let letters = left.find(|c: char| c.is_ascii_digit()).unwrap_or(left.len());
        class.push_str(&left[..letters]);
        left = &left[letters..];
    }
    word.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reasons_that_differ_in_particulars_have_one_class() {
        for (reason, class) in [
            ("HTTP 503", "HTTP 503"),
            ("exit code 137", "exit code 137"),
            ("timeout after 30000 ms", "timeout after N ms"),
            ("user 8812393 is unknown", "user N is unknown"),
            ("cannot reach 10.0.0.17:5984: refused", "cannot reach ADDRESS: refused"),
            ("cannot reach 10.0.0.17.", "cannot reach ADDRESS."),
            ("GET https://a.example/b?c=1 failed", "GET ADDRESS failed"),
            ("no such file \"/tmp/a b\"", "no such file \"…\""),
            ("`x` can't be used, don't", "`…` can't be used, don't"),
            ("request 7f3a99b01c: gone", "request N: gone"),
            ("  two\n lines ", "two lines"),
            ("ORA-00942", "ORA-N"),
            ("", ""),
        ] {
            assert_eq!(of(reason), class, "{reason}");
        }
        assert!(of(&"é".repeat(900)).len() <= MAX_REASON_CLASS_BYTES);
    }

    proptest! {
        #[test]
        fn prop_the_class_of_a_class_is_the_class(reason in "\\PC{0,40}|[a-z0-9:./'\"` …\\n]{0,300}") {
            let class = of(&reason);
            prop_assert!(class.len() <= MAX_REASON_CLASS_BYTES);
            prop_assert_eq!(of(&class), class);
        }
    }
}
