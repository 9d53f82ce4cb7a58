//! The elements of a key, read one after the other where they are: lists look at thousands of keys, and need a number of each.

use std::borrow::Cow;

use turnwise_store as store;
use turnwise_store::tuple::{PackResult, TupleDepth, TupleUnpack, unpack};

/// The first byte of a float of 64 bits: it sorts behind all integers ([`turnwise_store::tuple`]).
pub(crate) const FLOAT: u8 = 0x21;

/// A key, and how far it was read.
#[derive(Debug, Clone)]
pub(crate) struct Elements<'a> {
    key: &'a [u8],
    at: usize,
}

/// The bytes behind an element.
struct Rest<'a>(&'a [u8]);

impl<'a> TupleUnpack<'a> for Rest<'a> {
    fn unpack(input: &'a [u8], _: TupleDepth) -> PackResult<(&'a [u8], Self)> {
        Ok((&input[input.len()..], Rest(input)))
    }
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

    /// The first byte of the next element, which states its type.
    pub fn peek(&self) -> Option<u8> {
        self.key.get(self.at).copied()
    }

    /// A text.
    pub fn text(&mut self) -> Option<Cow<'a, str>> {
        self.read()
    }

    /// An integer.
    pub fn int(&mut self) -> Option<i64> {
        self.read()
    }

    /// A float.
    pub fn float(&mut self) -> Option<f64> {
        self.read()
    }

    fn read<T: TupleUnpack<'a>>(&mut self) -> Option<T> {
        let (element, Rest(rest)): (T, Rest<'a>) = unpack(self.key.get(self.at..)?).ok()?;
        self.at = self.key.len() - rest.len();
        Some(element)
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
