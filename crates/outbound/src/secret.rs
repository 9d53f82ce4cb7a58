//! Text that must never be shown.
//!
//! A [`Secret`] prints as `*****` in every format, and cannot be serialised. Only [`Secret::reveal`] returns its text,
//! and this name is easy to search for. A [`Scrubber`] removes secrets from texts of other origin, such as an error of
//! the HTTP client, or a response that echoes the request.

use std::fmt;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};

/// The text that replaces a secret wherever it would be shown; the same five stars that CouchDB prints.
pub const HIDDEN: &str = "*****";

/// A password, a token, or the value of a header that may hold one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Use it only for data on the wire.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// Replaces every known secret in a text by [`HIDDEN`], in each form in which it travels. The forms are: plain,
/// percent-encoded (completely or partly), form-encoded, JSON-escaped, and (with its user) encoded as for HTTP Basic.
#[derive(Clone, Default)]
pub struct Scrubber {
    needles: Vec<String>,
}

/// Only this many bytes of a secret must match, which bounds the search. A text with more matching bytes reveals most
/// of the secret, even if it continues differently.
const TELLING_BYTES: usize = 64;

/// A peer may have cut its text itself, without a mark. So this much of a secret at the end of a text is hidden, and before
/// a quote, because a text may be a part of JSON. Less of it may
/// be a part of an ordinary word.
const BEGINNING_BYTES: usize = 6;

/// The longest escape: a surrogate pair.
const MAX_ESCAPE_BYTES: usize = 12;

/// Marks the end of a text that was cut. A part of a secret before the mark is hidden like a whole one.
pub const CUT: char = '…';

impl Scrubber {
    /// Adds a secret, and its user if it has one.
    pub fn add(&mut self, user: Option<&str>, secret: &Secret) {
        let text = secret.reveal();
        if text.is_empty() {
            return;
        }
        self.needles.push(text.to_owned());
        if let Some(user) = user {
            let login = format!("{user}:{text}");
            // With and without padding; the longest match counts.
            for encoded in [BASE64_STANDARD.encode(&login), BASE64_URL_SAFE.encode(&login)] {
                self.needles.push(encoded.trim_end_matches('=').to_owned());
                self.needles.push(encoded);
            }
        }
        // A peer may echo `Basic abc` and `Bearer abc` without the scheme.
        if let Some((_, token)) = text.split_once(' ')
            && !token.is_empty()
        {
            self.needles.push(token.to_owned());
        }
        self.needles.sort_unstable();
        self.needles.dedup();
    }

    /// `text` without any of the secrets.
    pub fn scrub(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            match self.longest(rest.as_bytes()) {
                0 => {
                    clean.push(next);
                    rest = &rest[next.len_utf8()..];
                }
                length => {
                    clean.push_str(HIDDEN);
                    rest = &rest[length..];
                }
            }
        }
        clean
    }

    /// The length of the longest secret at the start of `text`, in any form; 0 if there is none.
    fn longest(&self, text: &[u8]) -> usize {
        let lengths = self
            .needles
            .iter()
            .flat_map(|needle| Form::ALL.iter().filter_map(|form| form.length(text, needle.as_bytes())));
        lengths.max().unwrap_or(0)
    }
}

/// An encoding of a text. Within one form, decoding is unambiguous, so a comparison takes time in proportion to a
/// secret's length, whatever a peer has sent.
struct Form {
    /// `%41` means `A`.
    percent: bool,
    /// `\"` means `"`, and `\u0041` means `A`.
    escapes: bool,
}

impl Form {
    const ALL: [Form; 4] = [
        Form { percent: false, escapes: false },
        Form { percent: true, escapes: false },
        Form { percent: false, escapes: true },
        Form { percent: true, escapes: true },
    ];

    /// How many bytes at the start of `text` match `needle`. A match of [`TELLING_BYTES`] or more is enough, and so is
    /// a match up to a [`CUT`], or one of [`BEGINNING_BYTES`] up to the end of the text or a quote.
    fn length(&self, text: &[u8], needle: &[u8]) -> Option<usize> {
        let (mut at, mut matched) = (0, 0);
        while matched < needle.len() {
            let (rest, wanted) = (&text[at..], &needle[matched..]);
            if matched > 0 && is_cut(rest) {
                return Some(at);
            }
            match self.step(rest, wanted) {
                Some((taken, told)) => {
                    at += taken;
                    matched += told;
                }
                None if matched >= TELLING_BYTES => return Some(at),
                None => return self.before_end(rest, matched).map(|left| at + left),
            }
        }
        Some(at)
    }

    /// If the text or a quoted part of it ends here, or within the escape that begins here: the bytes of that escape. `matched`
    /// bytes of a secret are before it.
    fn before_end(&self, text: &[u8], matched: usize) -> Option<usize> {
        let ends = |at: &usize| text[*at] == b'"' || is_cut(&text[*at..]);
        let end = (0..text.len().min(MAX_ESCAPE_BYTES)).find(ends).unwrap_or(text.len());
        let least = if is_cut(&text[end..]) { 1 } else { BEGINNING_BYTES };
        let left = &text[..end];
        let is_part = match left.first() {
            None => true,
            Some(b'%') => self.percent && left.len() < 3,
            Some(b'\\') => self.escapes && left.len() < MAX_ESCAPE_BYTES && unescape(left).is_none(),
            Some(_) => false,
        };
        (matched >= least && is_part).then_some(left.len())
    }

    /// Decodes the next character of a text. If it is the wanted one, returns its length in the text and in the secret.
    fn step(&self, text: &[u8], wanted: &[u8]) -> Option<(usize, usize)> {
        let first = *text.first()?;
        if self.escapes && first == b'\\' {
            let (taken, character) = unescape(text)?;
            let mut buffer = [0; 4];
            let told = character.encode_utf8(&mut buffer).as_bytes();
            return wanted.starts_with(told).then_some((taken, told.len()));
        }
        if self.percent
            && first == b'%'
            && let Some(byte) = text.get(1..3).and_then(hex)
        {
            return (wanted[0] == byte as u8).then_some((3, 1));
        }
        let is_space = self.percent && first == b'+' && wanted[0] == b' ';
        (first == wanted[0] || is_space).then_some((1, 1))
    }
}

/// Whether a text was cut here.
fn is_cut(text: &[u8]) -> bool {
    text.starts_with(CUT.encode_utf8(&mut [0; 4]).as_bytes())
}

/// The character of a JSON escape, and the length of the escape.
fn unescape(text: &[u8]) -> Option<(usize, char)> {
    let character = match *text.get(1)? {
        b'n' => '\n',
        b't' => '\t',
        b'r' => '\r',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'u' => {
            let unit = |at: usize| hex(text.get(at..at + 4)?);
            let first = unit(2)?;
            if let Some(character) = char::from_u32(first) {
                return Some((6, character));
            }
            // The first half of a surrogate pair; the other half follows.
            let second = unit(8).filter(|_| text.get(6..8) == Some(b"\\u"))?;
            let both = 0x1_0000 + ((first - 0xd800) << 10) + second.checked_sub(0xdc00)?;
            return Some((12, char::from_u32(both)?));
        }
        // `"`, `\`, `/`.
        other => char::from(other),
    };
    Some((2, character))
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, digit| Some(number * 16 + char::from(*digit).to_digit(16)?))
}

impl fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scrubber({} secrets)", self.needles.len())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_secret_prints_as_stars() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "***** ***** Some(*****)");
    }

    #[test]
    fn every_travelling_form_is_scrubbed() {
        let mut scrubber = Scrubber::default();
        scrubber.add(Some("admin"), &Secret::new("p@ss word"));
        let echoed = "http://admin:p%40ss%20word@h/ said p@ss word and YWRtaW46cEBzcyB3b3Jk";
        assert_eq!(scrubber.scrub(echoed), "http://admin:*****@h/ said ***** and *****");
    }

    #[test]
    fn a_secret_is_scrubbed_in_every_encoding_and_in_mixtures() {
        for secret in ["p@ss word+1", "a\"b\\c/d", "\u{e9}t\u{e9}\u{1f511}\n", "100%25", "\\\\", "a&b=c?"] {
            let mut scrubber = Scrubber::default();
            scrubber.add(Some("u"), &Secret::new(secret));
            let percent =
                percent_encoding::utf8_percent_encode(secret, percent_encoding::NON_ALPHANUMERIC).to_string();
            let some = percent_encoding::utf8_percent_encode(secret, crate::endpoint::USERINFO).to_string();
            let form: String =
                url::form_urlencoded::Serializer::new(String::new()).append_key_only(secret).finish();
            let json = serde_json::to_string(secret).unwrap().trim_matches('"').to_owned();
            let units = secret.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect::<String>();
            let slashes = json.replace('/', "\\/");
            let basic = format!("u:{secret}");
            let forms = [
                secret.to_owned(),
                percent.to_lowercase(),
                percent,
                some,
                form,
                json,
                units,
                slashes,
                BASE64_STANDARD.encode(&basic),
                BASE64_STANDARD.encode(&basic).trim_end_matches('=').to_owned(),
                BASE64_URL_SAFE.encode(&basic),
            ];
            for form in forms {
                // The secret's letters stay as they are, and only the hexadecimal digits of encodings may be in lower case.
                assert_eq!(scrubber.scrub(&format!("<{form}>")), "<*****>", "{secret:?} as {form}");
            }
            assert_eq!(scrubber.scrub("<nothing of it>"), "<nothing of it>");
        }
    }

    #[test]
    fn a_part_of_a_secret_before_a_cut_is_hidden() {
        let mut scrubber = Scrubber::default();
        scrubber.add(None, &Secret::new("hunter2 \"x\""));
        for cut in [
            "hun\u{2026}",
            "hunter2+\u{2026}",
            "hunter2%20%22\u{2026}",
            "hunter2 \\\"x\u{2026}",
            "hu%\u{2026}",
            "hunter2%2\u{2026}",
            "hu\\\u{2026}",
            "hunter2 \\u00\u{2026}",
        ] {
            assert_eq!(scrubber.scrub(&format!("a {cut}")), "a *****\u{2026}", "{cut}");
        }
        assert_eq!(scrubber.scrub("xyz\u{2026} hun"), "xyz\u{2026} hun");
        // Without a mark, an ordinary word could be meant.
        for end in ["hunter", "hunter2 \"", "hunter2%2", "hunter2 \\u002", "hunter2 \\"] {
            assert_eq!(scrubber.scrub(&format!("a {end}")), "a *****", "{end}");
        }
        assert_eq!(scrubber.scrub("a hunt"), "a hunt");
        assert_eq!(scrubber.scrub("{\"a\":[\"b hunter2%2\"]}"), "{\"a\":[\"b *****\"]}");
        assert_eq!(scrubber.scrub("hunter and others"), "hunter and others");
    }

    #[test]
    fn most_of_a_long_secret_is_hidden_as_well() {
        let mut scrubber = Scrubber::default();
        scrubber.add(None, &Secret::new(format!("{}x", "\\".repeat(8_000))));
        let scrubbed = scrubber.scrub(&"\\".repeat(16_000));
        assert!(scrubbed.len() < 100, "{scrubbed}");
        let little = format!("{} and more", "\\".repeat(TELLING_BYTES - 1));
        assert_eq!(scrubber.scrub(&little), little);
    }

    #[test]
    fn a_secret_within_a_longer_one_leaves_nothing_behind() {
        let mut scrubber = Scrubber::default();
        scrubber.add(None, &Secret::new("abc"));
        scrubber.add(None, &Secret::new("abcdef"));
        assert_eq!(scrubber.scrub("abcdef abc"), "***** *****");
    }

    #[test]
    fn an_empty_secret_changes_nothing() {
        let mut scrubber = Scrubber::default();
        scrubber.add(Some("u"), &Secret::new(""));
        assert_eq!(scrubber.scrub("plain"), "plain");
    }
}
