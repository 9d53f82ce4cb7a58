//! The trace of a job: the context of the span that added it, in the form of W3C Trace Context.
//!
//! ```text
//!   00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//!      trace                            span             sampled
//! ```
//!
//! A job has a context only if its trace is sampled: sampling is decided once, when the job is added. The spans of its runs have ids
//! that follow from the claim, so that a process that takes a job back from a dead worker can end the span of a run that it has not seen.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Claim;

/// The length of a `traceparent` of version 00, in bytes.
const LENGTH: usize = 55;
/// Longest `traceparent` that is read. Later versions may append fields, which are ignored.
const MAX_LENGTH: usize = 256;

/// A span of a sampled trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace: never all zeros.
    pub trace_id: [u8; 16],
    /// The span: never all zeros.
    pub span_id: [u8; 8],
}

/// What the header `traceparent` of a request states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traceparent {
    /// The request's trace is sampled.
    Sampled(TraceContext),
    /// The request's trace is not sampled, and neither is what follows from it.
    NotSampled,
    /// There is no context, or no valid one.
    Unknown,
}

impl Traceparent {
    /// Reads a header's value.
    pub fn parse(text: &str) -> Traceparent {
        read(text).unwrap_or(Traceparent::Unknown)
    }
}

fn read(text: &str) -> Option<Traceparent> {
    let bytes = text.as_bytes();
    if !(LENGTH..=MAX_LENGTH).contains(&bytes.len()) || [2, 35, 52].iter().any(|at| bytes[*at] != b'-') {
        return None;
    }
    let version = hex::<1>(&bytes[..2])?[0];
    let is_whole = match version {
        0 => bytes.len() == LENGTH,
        0xff => false,
        _ => bytes.len() == LENGTH || bytes[LENGTH] == b'-',
    };
    let context = TraceContext { trace_id: hex(&bytes[3..35])?, span_id: hex(&bytes[36..52])? };
    let flags = hex::<1>(&bytes[53..55])?[0];
    if !is_whole || context.trace_id == [0; 16] || context.span_id == [0; 8] {
        return None;
    }
    Some(if flags & 1 == 1 { Traceparent::Sampled(context) } else { Traceparent::NotSampled })
}

/// Bytes from twice as many hexadecimal digits in lower case.
fn hex<const BYTES: usize>(digits: &[u8]) -> Option<[u8; BYTES]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

impl TraceContext {
    /// The first span of a new trace, from three random numbers.
    pub fn root(random: impl Fn() -> u64) -> TraceContext {
        let trace_id = (u128::from(random()) << 64 | u128::from(random())).max(1);
        TraceContext { trace_id: trace_id.to_be_bytes(), span_id: [0; 8] }.with_span(random())
    }

    /// A new span of the same trace.
    pub fn with_span(self, random: u64) -> TraceContext {
        TraceContext { span_id: random.max(1).to_be_bytes(), ..self }
    }

    /// The span of the run under a claim, of a job that this span has added.
    pub fn of_run(&self, claim: &Claim) -> TraceContext {
        let mut state = mixed(u64::from_be_bytes(self.span_id) ^ claim.number);
        for byte in claim.worker.bytes() {
            state = mixed(state ^ u64::from(byte));
        }
        self.with_span(state)
    }

    /// The `n`-th span below this one, of the same process.
    pub fn child(&self, n: u32) -> TraceContext {
        self.with_span(mixed(u64::from_be_bytes(self.span_id).wrapping_add(u64::from(n) + 1)))
    }
}

/// Mixes the bits of a number, as SplitMix64 does: different numbers have different results.
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceContext { trace_id, span_id } = self;
        write!(f, "00-{:032x}-{:016x}-01", u128::from_be_bytes(*trace_id), u64::from_be_bytes(*span_id))
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TraceContext {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match Traceparent::parse(text) {
            Traceparent::Sampled(context) => Ok(context),
            Traceparent::NotSampled | Traceparent::Unknown => Err("no sampled traceparent"),
        }
    }
}

impl Serialize for TraceContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceContext {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use super::*;

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_as_it_is_written() {
        let context: TraceContext = SAMPLED.parse().unwrap();
        assert_eq!(context.to_string(), SAMPLED);
        assert_eq!((context.trace_id[0], context.span_id[7]), (0x4b, 0xb7));
        let json = serde_json::to_string(&context).unwrap();
        assert_eq!(
            (json.as_str(), serde_json::from_str(&json).ok()),
            (&*format!("{SAMPLED:?}"), Some(context))
        );
        assert!(serde_json::from_str::<TraceContext>("\"00-1\"").is_err());
        let later = format!("cc{}-what the future brings", &SAMPLED[2..]);
        assert_eq!(Traceparent::parse(&later), Traceparent::Sampled(context));
        let more_flags = format!("{}03", &SAMPLED[..53]);
        assert_eq!(Traceparent::parse(&more_flags), Traceparent::Sampled(context));
        let not_sampled = format!("{}02", &SAMPLED[..53]);
        assert_eq!(Traceparent::parse(&not_sampled), Traceparent::NotSampled);
    }

    #[test]
    fn what_is_no_traceparent_is_unknown() {
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            "00-4bf92f3577b34da6a3ce929d0e0e473\u{e9}-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        ] {
            assert_eq!(Traceparent::parse(wrong), Traceparent::Unknown, "{wrong}");
        }
        let long = format!("cc{}-{}", &SAMPLED[2..], "x".repeat(MAX_LENGTH));
        assert_eq!(Traceparent::parse(&long), Traceparent::Unknown);
    }

    #[test]
    fn each_run_and_each_child_has_a_span_of_its_own_which_every_process_derives() {
        let added: TraceContext = SAMPLED.parse().unwrap();
        let claim = |worker: &str, number| Claim { worker: worker.to_owned(), number };
        let runs = [claim("a", 1), claim("a", 2), claim("b", 1), claim("ab", 1), claim("ba", 1)];
        let spans: BTreeSet<[u8; 8]> = runs.iter().map(|claim| added.of_run(claim).span_id).collect();
        assert_eq!(spans.len(), runs.len());
        assert_eq!(added.of_run(&runs[0]), added.of_run(&claim("a", 1)));
        assert_eq!(added.of_run(&runs[0]).trace_id, added.trace_id);
        let children: BTreeSet<[u8; 8]> = (0..100).map(|n| added.child(n).span_id).collect();
        assert!(children.len() == 100 && children.is_disjoint(&spans));
    }

    #[test]
    fn a_new_trace_has_no_id_of_zeros() {
        let zeros = TraceContext::root(|| 0);
        assert_eq!(zeros.to_string().parse(), Ok(zeros));
        let next = Cell::new(0);
        let random = || next.replace(next.get() + 1);
        assert_ne!(TraceContext::root(random), TraceContext::root(random));
    }
}
