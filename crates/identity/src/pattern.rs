//! Lists of names with wildcards: the tenants or the job types that a scope covers.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::{Error, Result};

/// Names with wildcards, separated by commas: `acme,acme-*`.
///
/// `*` stands for any characters, also for none. A name that contains `*`, `,`, `@`, `:` or `%` is written with percent
/// encoding (`%2C` for a comma).
#[derive(Clone, PartialEq, Eq)]
pub struct Patterns {
    text: String,
    patterns: Vec<Pattern>,
}

/// The pieces between the wildcards of a pattern, decoded. A pattern without a wildcard is one piece.
#[derive(Clone, PartialEq, Eq)]
struct Pattern(Vec<String>);

impl Patterns {
    /// Parses a list.
    ///
    /// # Errors
    /// The list is empty, or has an empty member, a control character, or invalid percent encoding.
    pub fn parse(text: &str) -> Result<Patterns> {
        let wrong = |problem: &str| Error::invalid("scopes", format!("`{text}`: {problem}"));
        if text.chars().any(char::is_control) {
            return Err(wrong("names have no control characters"));
        }
        let patterns = text.split(',').map(|pattern| match pattern {
            "" => {
                Err(wrong("a name is empty; write names with commas between them, for example acme,acme-*"))
            }
            _ => Pattern::parse(pattern).ok_or_else(|| wrong("the percent encoding is invalid")),
        });
        Ok(Patterns { text: text.to_owned(), patterns: patterns.collect::<Result<_>>()? })
    }

    /// Whether the list contains this name.
    pub fn contain(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(name))
    }

    /// The name, if the list is one name without wildcards.
    pub fn only(&self) -> Option<&str> {
        match self.patterns.as_slice() {
            [Pattern(pieces)] if pieces.len() == 1 => Some(&pieces[0]),
            _ => None,
        }
    }

    /// Whether the list contains every name.
    pub fn is_all(&self) -> bool {
        self.patterns.iter().any(|Pattern(pieces)| pieces.len() > 1 && pieces.iter().all(String::is_empty))
    }
}

impl Pattern {
    fn parse(text: &str) -> Option<Pattern> {
        let mut escapes = text.split('%').skip(1);
        if escapes
            .any(|rest| !rest.as_bytes().get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)))
        {
            return None;
        }
        let pieces = text.split('*').map(|piece| percent_decode_str(piece).decode_utf8().ok());
        pieces.map(|piece| piece.map(String::from)).collect::<Option<Vec<_>>>().map(Pattern)
    }

    fn matches(&self, name: &str) -> bool {
        let Pattern(pieces) = self;
        let (Some((first, rest)), Some(last)) = (pieces.split_first(), pieces.last()) else { return false };
        let Some((_, middle)) = rest.split_last() else { return name == first };
        let Some(name) = name.strip_prefix(first.as_str()) else { return false };
        let Some(mut name) = name.strip_suffix(last.as_str()) else { return false };
        // The earliest place of each piece leaves the most room for the next.
        for piece in middle {
            match name.find(piece.as_str()) {
                Some(at) => name = &name[at + piece.len()..],
                None => return false,
            }
        }
        true
    }
}

impl fmt::Display for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_match_literally_or_by_wildcards() {
        for (patterns, yes, no) in [
            ("acme", &["acme"][..], &["acm", "acmee", "", "*"][..]),
            ("acme,beta", &["acme", "beta"], &["acme,beta", "a"]),
            ("acme-*", &["acme-", "acme-1"], &["acme", "xacme-1"]),
            ("*", &["", "x", "a/b"], &[]),
            ("a*b*c", &["abc", "a-b-c", "abbc", "abcbc"], &["ac", "acb", "abcd"]),
            ("ab*ba", &["abba", "ab-ba"], &["aba", "ab", "abab"]),
            ("a%2Cb,x%2A", &["a,b", "x*"], &["a", "b", "xy", "a%2Cb"]),
        ] {
            let parsed = Patterns::parse(patterns).unwrap();
            assert_eq!(parsed.to_string(), patterns);
            for name in yes {
                assert!(parsed.contain(name), "{patterns} contains {name}");
            }
            for name in no {
                assert!(!parsed.contain(name), "{patterns} does not contain {name}");
            }
        }
        for wrong in ["", ",", "a,", "a%2", "a%", "a%zz", "%ff", "a\nb"] {
            assert!(Patterns::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        /// The same as a search that tries every place of every piece.
        #[test]
        fn wildcards_are_those_of_a_naive_search(pattern in "[ab*]{1,6}", name in "[ab]{0,8}") {
            fn naive(pattern: &[u8], name: &[u8]) -> bool {
                match pattern.split_first() {
                    None => name.is_empty(),
                    Some((b'*', rest)) => (0..=name.len()).any(|at| naive(rest, &name[at..])),
                    Some((byte, rest)) => name.first() == Some(byte) && naive(rest, &name[1..]),
                }
            }
            let parsed = Patterns::parse(&pattern).unwrap();
            prop_assert_eq!(parsed.contain(&name), naive(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
