//! Numbers that know their range: a number outside it is rejected with its place in the file. The whole numbers of TOML
//! are `i64`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{
    Deserialize, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int<const MIN: u64, const MAX: u64>(u64);

/// A number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Real<const MIN: u64, const MAX: u64>(f64);

/// A number, or a table or list with more details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OneOf<A, B> {
    /// A number.
    One(A),
    /// A table or list.
    Other(B),
}

impl<const MIN: u64, const MAX: u64> Int<MIN, MAX> {
    /// A number that is known to be in the range.
    pub(crate) const fn constant(value: u64) -> Self {
        assert!(MIN <= value && value <= MAX);
        Int(value)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number; its range must be within that of `i64`.
    pub fn i64(self) -> i64 {
        i64::try_from(self.0).expect("the ranges of scenarios are below 2^63")
    }

    /// The number, as a count.
    pub fn usize(self) -> usize {
        usize::try_from(self.0).expect("what is counted in scenarios is below 2^32")
    }

    /// The number; its range must be within that of `u32`.
    pub fn u32(self) -> u32 {
        u32::try_from(self.0).expect("it is only asked for where the range is below 2^32")
    }
}

impl<const MIN: u64, const MAX: u64> TryFrom<u64> for Int<MIN, MAX> {
    type Error = String;

    fn try_from(value: u64) -> Result<Self, String> {
        match (MIN..=MAX).contains(&value) {
            true => Ok(Int(value)),
            false => Err(format!("{value} is not possible, {MIN} to {MAX} are")),
        }
    }
}

impl<const MIN: u64, const MAX: u64> Default for Int<MIN, MAX> {
    fn default() -> Self {
        Int(MIN)
    }
}

impl<const MIN: u64, const MAX: u64> Real<MIN, MAX> {
    /// A number that is known to be in the range.
    pub(crate) const fn constant(value: f64) -> Self {
        assert!(MIN as f64 <= value && value <= MAX as f64);
        Real(value)
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Int<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Whole<const MIN: u64, const MAX: u64>;
        impl<const MIN: u64, const MAX: u64> Visitor<'_> for Whole<MIN, MAX> {
            type Value = u64;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(to, "a whole number, {MIN} to {MAX}")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
                let within = u64::try_from(value).ok().filter(|value| (MIN..=MAX).contains(value));
                within.ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
            }
        }
        from.deserialize_i64(Whole::<MIN, MAX>).map(Int)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Real<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any<const MIN: u64, const MAX: u64>;
        impl<const MIN: u64, const MAX: u64> Visitor<'_> for Any<MIN, MAX> {
            type Value = f64;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(to, "a number, {MIN} to {MAX}")
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
                match (MIN as f64..=MAX as f64).contains(&value) {
                    true => Ok(value),
                    false => Err(E::invalid_value(Unexpected::Float(value), &self)),
                }
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
                self.visit_f64(value as f64)
            }
        }
        from.deserialize_f64(Any::<MIN, MAX>).map(Real)
    }
}

/// Looks at the shape of the value first, so that an error about the number is the number's own.
impl<'de, const MIN: u64, const MAX: u64, B: Deserialize<'de>> Deserialize<'de> for OneOf<Int<MIN, MAX>, B> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either<const MIN: u64, const MAX: u64, B>(PhantomData<B>);
        impl<'de, const MIN: u64, const MAX: u64, B: Deserialize<'de>> Visitor<'de> for Either<MIN, MAX, B> {
            type Value = OneOf<Int<MIN, MAX>, B>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(to, "a whole number, {MIN} to {MAX}, or a table or list")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
                Int::deserialize(IntoDeserializer::<E>::into_deserializer(value)).map(OneOf::One)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                B::deserialize(MapAccessDeserializer::new(map)).map(OneOf::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                B::deserialize(SeqAccessDeserializer::new(seq)).map(OneOf::Other)
            }
        }
        from.deserialize_any(Either(PhantomData))
    }
}
