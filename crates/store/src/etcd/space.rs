//! The keys of the rows in etcd, and the encoding of values.
//!
//! ```text
//! PREFIX/KEY            a row; KEY begins with anything but 0xff
//! PREFIX/\xff…          the engine's own
//! ```

use bytes::Bytes;

use super::api::KeyValue;
use crate::{Error, Result, Versionstamp};

/// The first byte of keys that are the engine's own, as in FoundationDB.
const RESERVED: u8 = 0xff;
/// The stored form of a versionstamp, without its last two bytes. It is neither JSON nor any other UTF-8.
const STAMPED: &[u8] = b"\xff\xfeversionstamp\xff";

pub(super) struct Space {
    prefix: Bytes,
}

impl Space {
    pub(super) fn new(prefix: &str) -> Self {
        Space { prefix: Bytes::from(format!("{prefix}/")) }
    }

    /// By how many bytes etcd's keys are longer than the store's.
    pub(super) fn overhead(&self) -> usize {
        self.prefix.len()
    }

    fn join(&self, key: &[u8]) -> Bytes {
        [&self.prefix[..], key].concat().into()
    }

    /// etcd's key of a row.
    pub(super) fn key(&self, key: &[u8]) -> Result<Bytes> {
        if key.first() == Some(&RESERVED) {
            return Err(Error::Misuse("keys that begin with 0xff are reserved".into()));
        }
        Ok(self.join(key))
    }

    /// etcd's keys of a range; `None` if it is empty. The range is cut at the end of the rows.
    pub(super) fn range(&self, begin: &[u8], end: &[u8]) -> Option<(Bytes, Bytes)> {
        let end = end.min(&[RESERVED]);
        (begin < end).then(|| (self.join(begin), self.join(end)))
    }

    /// The key of an entry of the engine itself.
    pub(super) fn own(&self, name: &str) -> Bytes {
        self.join(&[&[RESERVED][..], name.as_bytes()].concat())
    }

    /// The store's key, from one of etcd's.
    pub(super) fn stripped(&self, key: &Bytes) -> Bytes {
        key.slice(self.prefix.len()..)
    }
}

/// Refuses a value that would be read as a versionstamp.
pub(super) fn check_literal(value: &[u8]) -> Result<()> {
    if is_stamped(value) {
        return Err(Error::Misuse("this value is reserved for versionstamps".into()));
    }
    Ok(())
}

fn is_stamped(value: &[u8]) -> bool {
    value.len() >= STAMPED.len() + 2 && value.starts_with(STAMPED)
}

/// The value to store for the versionstamp of a commit, at `place` in its revision, and for bytes behind it.
pub(super) fn stamped(place: u16, lines: &[u8]) -> Bytes {
    [STAMPED, &place.to_be_bytes()[..], lines].concat().into()
}

/// The versionstamp of the commit at `place` in a revision.
pub(super) fn versionstamp(revision: i64, place: u16) -> Versionstamp {
    Versionstamp::of(revision.cast_unsigned(), place)
}

pub(super) fn value(stored: &KeyValue) -> Bytes {
    if !is_stamped(&stored.value) {
        return stored.value.clone();
    }
    let place = u16::from_be_bytes([stored.value[STAMPED.len()], stored.value[STAMPED.len() + 1]]);
    let stamp = versionstamp(stored.mod_revision, place).0;
    match &stored.value[STAMPED.len() + 2..] {
        [] => Bytes::copy_from_slice(&stamp),
        lines => crate::appends::stamped(&stamp, lines),
    }
}

#[cfg(test)]
mod tests {
    //! Keys stay within the prefix, and values are decoded unchanged.

    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_range_does_not_leave_the_prefix() {
        let space = Space::new("a/b");
        assert_eq!(space.key(b"k").unwrap(), "a/b/k");
        assert_eq!(space.stripped(&space.key(b"k").unwrap()), "k");
        let (begin, end) = space.range(b"", b"\xff\xff\xff").unwrap();
        assert_eq!((&begin[..], &end[..]), (&b"a/b/"[..], &b"a/b/\xff"[..]));
        assert!(space.own("x") >= end);
        assert_eq!(space.range(b"b", b"a"), None);
        assert_eq!(space.range(b"\xff", b"\xff\xff"), None);
        assert!(matches!(space.key(b"\xffx"), Err(Error::Misuse(_))));
    }

    #[test]
    fn a_versionstamp_is_the_revision_that_stored_it() {
        let stored = KeyValue { value: stamped(3, b""), mod_revision: 0x0102, ..KeyValue::default() };
        assert_eq!(&value(&stored)[..], [0, 0, 0, 0, 0, 0, 1, 2, 0, 3]);
        assert!(check_literal(&stored.value).is_err());
        let stored = KeyValue { value: stamped(3, b"line\n"), ..stored };
        assert_eq!(&value(&stored)[..], b"\0\0\0\0\0\0\x01\x02\0\x03line\n");
        assert!(check_literal(&stored.value).is_err());
        let literal = KeyValue { value: Bytes::from_static(b"{}"), mod_revision: 9, ..KeyValue::default() };
        assert_eq!(value(&literal), "{}");
        assert!(check_literal(&literal.value).is_ok());
        assert!(versionstamp(7, 9) < versionstamp(8, 0));
        assert!(std::str::from_utf8(&stamped(0, b"")).is_err());
    }
}
