//! Whole numbers in JSON.
//!
//! JSON has one kind of number: `4` and `4.0` are the same, and some languages write one for the other. serde reads only the first as an integer.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// A whole number that fits a `T`.
pub(crate) struct Whole<T>(pub T);

impl<'de, T: TryFrom<i128>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit<T>(PhantomData<T>);
        impl<T: TryFrom<i128>> Visitor<'_> for Visit<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number within its bounds")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
                let wrong = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
                T::try_from(i128::from(number)).map_err(wrong)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
                let wrong = |_| E::invalid_value(Unexpected::Signed(number), &self);
                T::try_from(i128::from(number)).map_err(wrong)
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
                let wrong = || E::invalid_value(Unexpected::Float(number), &self);
                // Beyond this limit a double cannot represent every whole number.
                if number.fract() != 0.0 || number.abs() > 9_007_199_254_740_992.0 {
                    return Err(wrong());
                }
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "it is whole, and within the bounds of an i64"
                )]
                T::try_from(i128::from(number as i64)).map_err(|_| wrong())
            }
        }
        deserializer.deserialize_any(Visit(PhantomData)).map(Whole)
    }
}

/// For members that must be present.
pub(crate) fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(deserializer: D) -> Result<T, D::Error> {
    Whole::deserialize(deserializer).map(|Whole(number)| number)
}

/// For members that may be null.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: TryFrom<i128>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<Whole<T>>::deserialize(deserializer)?.map(|Whole(number)| number))
}

/// The default of members that are 1 if they are left out.
pub(crate) fn one<T: From<u8>>() -> T {
    1.into()
}
