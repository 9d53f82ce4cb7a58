//! Numbers that transactions add to without reading them.

use std::ops::{AddAssign, Neg};

use bytes::Bytes;

use crate::Error;

/// 64-bit limbs of a sum.
const LIMBS: usize = 8;

/// An integer of 512 bits, to which transactions add ([`crate::Transaction::add`]). Addition wraps around.
///
/// A sum can hold several counters in fields of its bits. It needs no protection against a carry between fields: if each
/// counter is at least 0 and below the limit of its field once all changes are added, then the fields have exactly these
/// values, whatever the order of the additions.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Sum([u64; LIMBS]);

impl Sum {
    /// The size of its stored form, in bytes.
    pub const BYTES: usize = 8 * LIMBS;

    /// `count`, shifted left by `bits`.
    ///
    /// # Panics
    /// If `bits` is not below 512.
    pub fn of(count: i64, bits: usize) -> Sum {
        let mut limbs = [if count < 0 { u64::MAX } else { 0 }; LIMBS];
        let (first, shift) = (bits / 64, bits % 64);
        limbs[..first].fill(0);
        let wide = i128::from(count) << shift;
        // The two halves of the shifted number.
        limbs[first] = wide as u64;
        if let Some(next) = limbs.get_mut(first + 1) {
            *next = (wide >> 64) as u64;
        }
        Sum(limbs)
    }

    /// The field of `width` bits that begins at `bits`, for a field that lies within 64 bytes and is at most 56 bits wide.
    pub fn field(&self, bits: usize, width: usize) -> u64 {
        let (first, shift) = (bits / 64, bits % 64);
        let low = u128::from(self.0[first]);
        let high = u128::from(self.0.get(first + 1).copied().unwrap_or(0));
        let field = (high << 64 | low) >> shift;
        (field as u64) & ((1 << width) - 1)
    }

    /// Whether it is 0.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; LIMBS]
    }

    /// The stored form: 64 bytes, lowest first.
    pub fn to_bytes(self) -> Bytes {
        let mut bytes = [0; Sum::BYTES];
        for (piece, limb) in bytes.chunks_exact_mut(8).zip(self.0) {
            piece.copy_from_slice(&limb.to_le_bytes());
        }
        Bytes::copy_from_slice(&bytes)
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it has another length.
    pub fn read(value: &[u8]) -> Result<Sum, Error> {
        if value.len() != Sum::BYTES {
            return Err(Error::Corrupt(format!("a sum of {} bytes instead of {}", value.len(), Sum::BYTES)));
        }
        let mut limbs = [0; LIMBS];
        for (limb, piece) in limbs.iter_mut().zip(value.chunks_exact(8)) {
            *limb = u64::from_le_bytes(piece.try_into().expect("a chunk of eight bytes"));
        }
        Ok(Sum(limbs))
    }
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        let mut carry = false;
        for (limb, added) in self.0.iter_mut().zip(other.0) {
            let (sum, over) = limb.overflowing_add(added);
            let (sum, again) = sum.overflowing_add(u64::from(carry));
            *limb = sum;
            carry = over || again;
        }
    }
}

impl Neg for Sum {
    type Output = Sum;

    fn neg(self) -> Sum {
        let mut negative = Sum(self.0.map(|limb| !limb));
        negative += Sum::of(1, 0);
        negative
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WIDTH: usize = 40;
    const FIELDS: usize = 12;

    proptest! {
        #[test]
        fn fields_are_the_sums_of_their_changes(changes in prop::collection::vec((0..FIELDS, -1_000_000_000_i64..1_000_000_000), 0..60)) {
            let mut counts = [0_i64; FIELDS];
            let mut sum = Sum::default();
            for (field, change) in changes {
                counts[field] += change;
                sum += Sum::of(change, WIDTH * field);
            }
            // In the end no counter is negative.
            for (field, count) in counts.iter_mut().enumerate().filter(|(_, count)| **count < 0) {
                sum += Sum::of(-*count, WIDTH * field);
                *count = 0;
            }
            let sum = Sum::read(&sum.to_bytes()).unwrap();
            let read: Vec<u64> = (0..FIELDS).map(|field| sum.field(WIDTH * field, WIDTH)).collect();
            prop_assert_eq!(read, counts.map(|count| count as u64));
            prop_assert_eq!(sum.is_zero(), counts == [0; FIELDS]);
            let mut none = sum;
            none += -sum;
            prop_assert!(none.is_zero());
        }
    }

    #[test]
    fn another_length_is_corrupt() {
        assert!(matches!(Sum::read(&[0; 63]), Err(Error::Corrupt(_))));
    }
}
