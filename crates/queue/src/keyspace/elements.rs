//! The elements of a key, read one after the other where they are: lists look at thousands of keys, and need a number of each.

use std::borrow::Cow;

use turnwise_store as store;

/// The first byte of an element, by type ([`turnwise_store::tuple`]).
const TEXT: u8 = 0x02;
const ZERO: u8 = 0x14;
/// The most bytes of an integer.
const MAX_INT: u8 = 8;
/// A float of 64 bits sorts behind all integers.
pub(crate) const FLOAT: u8 = 0x21;
/// In a text, a byte 0 is followed by this one; otherwise it is the end.
const ESCAPED: u8 = 0xff;

/// A key, and how far it was read.
#[derive(Debug, Clone)]
pub(crate) struct Elements<'a> {
    key: &'a [u8],
    at: usize,
}

impl<'a> Elements<'a> {
    /// The elements of a key from the byte `at` on.
    pub fn at(key: &'a [u8], at: usize) -> Self {
        Elements { key, at }
    }

    /// How many bytes were read.
    pub fn place(&self) -> usize {
        self.at
    }

    /// The type of the next element.
    pub fn peek(&self) -> Option<u8> {
        self.key.get(self.at).copied()
    }

    /// A text.
    pub fn text(&mut self) -> Option<Cow<'a, str>> {
        let rest = self.key.get(self.at..)?.strip_prefix(&[TEXT])?;
        let (mut end, mut escapes) = (0, false);
        loop {
            end += rest.get(end..)?.iter().position(|byte| *byte == 0)?;
            if rest.get(end + 1) != Some(&ESCAPED) {
                break;
            }
            (end, escapes) = (end + 2, true);
        }
        self.at += 1 + end + 1;
        let text = &rest[..end];
        if !escapes {
            return std::str::from_utf8(text).ok().map(Cow::Borrowed);
        }
        let mut plain = Vec::with_capacity(text.len());
        let mut bytes = text.iter();
        while let Some(byte) = bytes.next() {
            plain.push(*byte);
            if *byte == 0 {
                bytes.next();
            }
        }
        String::from_utf8(plain).ok().map(Cow::Owned)
    }

    /// An integer.
    pub fn int(&mut self) -> Option<i64> {
        let kind = self.peek()?;
        let is_negative = kind < ZERO;
        let count = kind.abs_diff(ZERO);
        if count > MAX_INT {
            return None;
        }
        let bytes = self.key.get(self.at + 1..)?.get(..usize::from(count))?;
        self.at += 1 + bytes.len();
        let number = bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        match is_negative {
            false => i64::try_from(number).ok(),
            // The complement of its absolute value, in as many bytes.
            true => {
                let most = u64::MAX >> (64 - 8 * u32::from(count));
                0_i64.checked_sub_unsigned(most - number)
            }
        }
    }
}

/// The error of a walk that meets another key than one of its index.
pub(crate) fn not_of_its_index() -> store::Error {
    store::Error::Corrupt("a key is not of its index".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use turnwise_store::key::pack;

    use super::*;
    use crate::Keyspace;

    proptest! {
        #[test]
        fn prop_elements_are_those_that_were_packed(text in ".{0,20}|[\0a]{0,6}", number: i64, last in "[a\0]{0,3}") {
            let keys = Keyspace::default();
            for number in [number, number >> 40, i64::from(number as i8), -number.saturating_abs(), i64::MIN, i64::MAX] {
                let key = pack(&keys.space, &(&text, number, &last));
                let mut elements = Elements::at(&key, keys.space.bytes().len());
                prop_assert_eq!(elements.text().unwrap(), text.as_str());
                prop_assert_eq!(elements.int(), Some(number));
                let before = elements.place();
                prop_assert_eq!(elements.text().unwrap(), last.as_str());
                prop_assert_eq!(elements.place(), key.len());
                prop_assert_eq!(elements.peek(), None);
                // What is cut off is no element.
                prop_assert_eq!(Elements::at(&key[..key.len() - 1], before).text(), None);
                prop_assert_eq!(Elements::at(&key, before).int(), None);
            }
            let key = pack(&keys.space, &(1.5,));
            prop_assert_eq!(Elements::at(&key, keys.space.bytes().len()).peek(), Some(FLOAT));
        }
    }
}
