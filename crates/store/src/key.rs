//! Keys as tuples, and ranges of such keys.

use bytes::Bytes;
use foundationdb_tuple::{Subspace, TuplePack};

/// The key of a tuple within a subspace.
pub fn pack<T: TuplePack>(space: &Subspace, tuple: &T) -> Bytes {
    Bytes::from(space.pack(tuple))
}

/// The range of all longer tuples that begin with `prefix`.
pub fn children<T: TuplePack>(space: &Subspace, prefix: &T) -> (Bytes, Bytes) {
    let (begin, end) = space.subspace(prefix).range();
    (Bytes::from(begin), Bytes::from(end))
}

/// The first key after `key`.
pub fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    Bytes::from(next)
}
