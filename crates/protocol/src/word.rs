//! Enums whose values the API writes as words.

use std::borrow::Cow;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Defines an enum with the word of each value; a value may have further words, which are only read.
macro_rules! words {
    ($(#[$about:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $value:ident = $word:tt $(| $also:tt)*,)+
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, utoipa::ToSchema)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $value,)+
        }

        impl $name {
            /// The words of all values.
            pub const WORDS: [&'static str; [$($word),+].len()] = [$($word),+];

            /// Its word in the API.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$value => $word,)+
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::word::read(deserializer, &$name::WORDS, |word| match word {
                    $($word $(| $also)* => Some($name::$value),)+
                    _ => None,
                })
            }
        }
    };
}
pub(crate) use words;

/// Reads a value from its word. A derived implementation would also accept an object.
pub(crate) fn read<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    words: &[&str],
    value_of: impl Fn(&str) -> Option<T>,
) -> Result<T, D::Error> {
    let word = Cow::<str>::deserialize(deserializer)?;
    value_of(&word).ok_or_else(|| {
        let mut expected = String::from("expected ");
        for (n, word) in words.iter().enumerate() {
            let before = match words.len() - n {
                _ if n == 0 => "",
                1 => " or ",
                _ => ", ",
            };
            expected += &format!("{before}`{word}`");
        }
        D::Error::custom(expected)
    })
}
