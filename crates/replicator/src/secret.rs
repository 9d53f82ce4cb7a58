//! Text that must never be shown.
//!
//! A [`Secret`] prints as `*****` however it is formatted, and cannot be serialised: the only way to its text
//! is [`Secret::reveal`], which is easy to search for. A [`Scrubber`] removes secrets from texts that others
//! wrote (an error of the HTTP client, an answer that echoes what it was sent).

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// What stands in a secret's place wherever it would be shown; the same five stars that CouchDB prints.
pub const HIDDEN: &str = "*****";

/// A password, a token, or the value of a header that may hold one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the wire and nothing else.
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

/// Replaces every known secret in a text by [`HIDDEN`], in each form in which it travels.
#[derive(Clone, Default)]
pub struct Scrubber {
    /// Longest first, so that a secret which contains another one disappears whole.
    needles: Vec<String>,
}

impl Scrubber {
    /// Adds a secret as it is, percent-encoded, and (with its user) as HTTP Basic sends it.
    pub fn add(&mut self, user: Option<&str>, secret: &Secret) {
        let text = secret.reveal();
        if text.is_empty() {
            return;
        }
        self.needles.push(text.to_owned());
        let encoded =
            percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
        self.needles.push(encoded);
        if let Some(user) = user {
            self.needles.push(BASE64_STANDARD.encode(format!("{user}:{text}")));
        }
        // `Basic abc` and `Bearer abc` are echoed without their scheme, too.
        if let Some((_, token)) = text.split_once(' ')
            && !token.is_empty()
        {
            self.needles.push(token.to_owned());
        }
        self.needles.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        self.needles.dedup();
    }

    /// `text` without any of the secrets.
    pub fn scrub(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for needle in &self.needles {
            if clean.contains(needle.as_str()) {
                clean = clean.replace(needle.as_str(), HIDDEN);
            }
        }
        clean
    }
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
