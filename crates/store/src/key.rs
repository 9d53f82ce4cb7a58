//! Keys as tuples, and ranges of such keys.

use std::cell::RefCell;

use bytes::Bytes;
use foundationdb_tuple::{Subspace, TuplePack};

thread_local! {
    /// Where keys are packed, so that each of them is allocated once and with its exact length.
    static PACKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Packs a tuple within a subspace, and returns what `with` makes of the bytes.
fn packed<T: TuplePack, K>(space: &Subspace, tuple: &T, with: impl FnOnce(&mut Vec<u8>) -> K) -> K {
    PACKED.with_borrow_mut(|bytes| {
        bytes.clear();
        bytes.extend_from_slice(space.bytes());
        foundationdb_tuple::pack_into(tuple, bytes);
        with(bytes)
    })
}

/// The key of a tuple within a subspace.
pub fn pack<T: TuplePack>(space: &Subspace, tuple: &T) -> Bytes {
    packed(space, tuple, |key| Bytes::copy_from_slice(key))
}

/// The range of all longer tuples that begin with `prefix`.
pub fn children<T: TuplePack>(space: &Subspace, prefix: &T) -> (Bytes, Bytes) {
    packed(space, prefix, |key| {
        key.push(0x00);
        let begin = Bytes::copy_from_slice(key);
        let last = key.len() - 1;
        key[last] = 0xff;
        (begin, Bytes::copy_from_slice(key))
    })
}

/// The first key after `key`.
pub fn successor(key: &[u8]) -> Bytes {
    [key, &[0][..]].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_ranges_are_those_of_the_tuple_layer() {
        let space = Subspace::from(("s",));
        for id in ["", "a", "with\0zero"] {
            let tuple = ("jobs", 7_i64, id);
            assert_eq!(pack(&space, &tuple), space.pack(&tuple));
            let (begin, end) = space.subspace(&tuple).range();
            assert_eq!(children(&space, &tuple), (Bytes::from(begin), Bytes::from(end)));
        }
    }
}
