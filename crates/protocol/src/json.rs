//! JSON of any shape that the server takes.
//!
//! The server passes a job's values on as they were written, and every JSON library must be able to read them. So the nesting is limited,
//! every number must be readable, and every text must be valid Unicode.

use std::fmt;
use std::str::{self, Utf8Error};

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::{Accepted, AddedJob, AddedJobs, Ended, EndedRuns, MAX_DEPTH};

/// The depth of a job's options in the request that adds it.
const DEPTH_OF_OPTIONS: usize = 1;
/// The depth of a run's result, or of its report, in the request that nests it most: a request for jobs that carries ends.
const DEPTH_OF_A_RESULT: usize = 4;

/// A response of which there is one for each job: its JSON is written by code of this crate, which is compiled for speed. Most
/// responses are written by code of the API, which is compiled for speed less (`Cargo.toml`).
pub trait Frequent {
    /// The value as JSON.
    fn to_json(&self) -> Vec<u8>;
}

macro_rules! frequent {
    ($($response:ty),+) => {
        $(impl Frequent for $response {
            fn to_json(&self) -> Vec<u8> {
                serde_json::to_vec(self).unwrap_or_else(|_| b"null".to_vec())
            }
        })+
    };
}
frequent!(Accepted, AddedJob, AddedJobs, Ended, EndedRuns);

/// Checks the body of a request, and returns its text.
///
/// # Errors
/// It is not JSON that the server takes.
pub fn check_body(bytes: &[u8]) -> Result<&str, serde_json::Error> {
    // Checked at once, which is faster than text by text.
    let not_utf8 = |error: Utf8Error| {
        serde_json::Error::custom(format!("byte {} and those behind it are not UTF-8", error.valid_up_to()))
    };
    let text = str::from_utf8(bytes).map_err(not_utf8)?;
    check(text, 0).map(|()| text)
}

/// Checks the options of a job, which a client sends in the body of a request. The error has their line and column.
///
/// # Errors
/// The server would refuse the request.
pub fn check_options(text: &str) -> Result<(), serde_json::Error> {
    check(text, DEPTH_OF_OPTIONS)
}

/// Checks a result or a report, which a worker sends in the body of a request.
///
/// # Errors
/// The server would refuse it, and the whole request.
pub fn check_result(value: &RawValue) -> Result<(), serde_json::Error> {
    check(value.get(), DEPTH_OF_A_RESULT)
}

fn check(text: &str, depth: usize) -> Result<(), serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    Readable { depth }.deserialize(&mut json).and_then(|()| json.end())
}

/// Parses any JSON, and keeps nothing of it.
struct Readable {
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Readable {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Readable {
    fn inner<E: serde::de::Error>(&self) -> Result<Readable, E> {
        match self.depth {
            MAX_DEPTH => Err(E::custom(format!("nested deeper than {MAX_DEPTH}"))),
            depth => Ok(Readable { depth: depth + 1 }),
        }
    }
}

impl<'de> Visitor<'de> for Readable {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(self.inner::<A::Error>()?)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(self.inner::<A::Error>()?)?.is_some() {
            map.next_value_seed(self.inner::<A::Error>()?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Accept, EndRuns, FinishRun};

    #[test]
    fn a_result_is_checked_as_the_requests_that_carry_it_are() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for (text, taken) in [
            (nested(MAX_DEPTH - DEPTH_OF_A_RESULT), true),
            (nested(MAX_DEPTH - DEPTH_OF_A_RESULT + 1), false),
            (nested(120), false),
            (r#"{"x":"\ud800"}"#.to_owned(), false),
            ("1e999".to_owned(), false),
            (r#"{"x":"é\u00e9","y":[1e300,12345678901234567890123]}"#.to_owned(), true),
        ] {
            let result = RawValue::from_string(text.clone()).unwrap();
            assert_eq!(check_result(&result).is_ok(), taken, "{text}");
            let run = FinishRun {
                id: "a".to_owned(),
                claim: 1,
                result: Some(result),
                data: None,
                media_type: None,
                info: None,
                log: Vec::new(),
            };
            let finish = vec![run];
            let ends = EndRuns { finish, ..EndRuns::default() };
            let accept = serde_json::to_vec(&Accept { received: 0, limit: 1, wait_ms: 0, ends }).unwrap();
            assert_eq!(check_body(&accept).is_ok(), taken, "{text}");
        }
    }
}
