//! Erlang's external term format, as far as a replication id needs it: the output of `term_to_binary(T,
//! [{minor_version, 1}])` for atoms, strings, binaries, lists, tuples and JSON values.

use serde_json::{Map, Number, Value};

/// An Erlang term.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Term {
    Atom(&'static str),
    /// A list of small integers, which Erlang calls a string.
    String(Vec<u8>),
    Binary(Vec<u8>),
    Integer(i128),
    Float(f64),
    List(Vec<Term>),
    Tuple(Vec<Term>),
}

const VERSION: u8 = 131;
const NEW_FLOAT: u8 = 70;
const SMALL_INTEGER: u8 = 97;
const INTEGER: u8 = 98;
const ATOM: u8 = 100;
const SMALL_TUPLE: u8 = 104;
const NIL: u8 = 106;
const STRING: u8 = 107;
const LIST: u8 = 108;
const BINARY: u8 = 109;
const SMALL_BIG: u8 = 110;

impl Term {
    pub fn string(text: &str) -> Self {
        Self::String(text.as_bytes().to_vec())
    }

    pub fn binary(text: &str) -> Self {
        Self::Binary(text.as_bytes().to_vec())
    }

    /// A JSON value as CouchDB represents it: objects are `{[{Key, Value}, …]}`, in the order in which the user wrote them.
    pub fn json(value: &Value) -> Self {
        match value {
            Value::Null => Self::Atom("null"),
            Value::Bool(true) => Self::Atom("true"),
            Value::Bool(false) => Self::Atom("false"),
            Value::Number(number) => Self::number(number),
            Value::String(text) => Self::binary(text),
            Value::Array(values) => Self::List(values.iter().map(Self::json).collect()),
            Value::Object(object) => Self::object(object),
        }
    }

    pub fn object(object: &Map<String, Value>) -> Self {
        let member =
            |(name, value): (&String, &Value)| Self::Tuple(vec![Self::binary(name), Self::json(value)]);
        Self::Tuple(vec![Self::List(object.iter().map(member).collect())])
    }

    fn number(number: &Number) -> Self {
        let float = || Self::Float(number.as_f64().unwrap_or_default());
        number.as_i128().map_or_else(float, Self::Integer)
    }

    /// The term's bytes, beginning with the version byte.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        self.write(&mut bytes);
        bytes
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Atom(name) => {
                out.push(ATOM);
                out.extend((name.len() as u16).to_be_bytes());
                out.extend(name.as_bytes());
            }
            Self::String(bytes) if bytes.is_empty() => out.push(NIL),
            Self::String(bytes) => match u16::try_from(bytes.len()) {
                Ok(length) => {
                    out.push(STRING);
                    out.extend(length.to_be_bytes());
                    out.extend(bytes);
                }
                // Too long for a string: a list of small integers.
                Err(_) => {
                    Self::List(bytes.iter().map(|&byte| Self::Integer(byte.into())).collect()).write(out)
                }
            },
            Self::Binary(bytes) => {
                out.push(BINARY);
                out.extend((bytes.len() as u32).to_be_bytes());
                out.extend(bytes);
            }
            Self::Integer(integer) => write_integer(*integer, out),
            Self::Float(float) => {
                out.push(NEW_FLOAT);
                out.extend(float.to_be_bytes());
            }
            Self::List(items) => match as_string(items) {
                Some(string) => string.write(out),
                None => {
                    if !items.is_empty() {
                        out.push(LIST);
                        out.extend((items.len() as u32).to_be_bytes());
                        items.iter().for_each(|item| item.write(out));
                    }
                    out.push(NIL);
                }
            },
            Self::Tuple(items) => {
                out.push(SMALL_TUPLE);
                out.push(u8::try_from(items.len()).expect("only small tuples are built here"));
                items.iter().for_each(|item| item.write(out));
            }
        }
    }
}

/// Erlang encodes a list of small integers as a string, unless it is too long for one.
fn as_string(items: &[Term]) -> Option<Term> {
    let byte = |item: &Term| match item {
        Term::Integer(integer) => u8::try_from(*integer).ok(),
        _ => None,
    };
    let fits = !items.is_empty() && items.len() <= usize::from(u16::MAX);
    fits.then(|| items.iter().map(byte).collect::<Option<_>>().map(Term::String)).flatten()
}

fn write_integer(integer: i128, out: &mut Vec<u8>) {
    if let Ok(small) = u8::try_from(integer) {
        out.extend([SMALL_INTEGER, small]);
    } else if let Ok(medium) = i32::try_from(integer) {
        out.push(INTEGER);
        out.extend(medium.to_be_bytes());
    } else {
        let magnitude = integer.unsigned_abs().to_le_bytes();
        let length = magnitude.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        out.extend([SMALL_BIG, length as u8, u8::from(integer < 0)]);
        out.extend(&magnitude[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_have_the_bytes_that_erlang_writes() {
        let term = Term::List(vec![
            Term::Atom("undefined"),
            Term::string("ab"),
            Term::string(""),
            Term::binary("c"),
            Term::Tuple(vec![Term::Integer(255), Term::Integer(256), Term::Integer(-1)]),
            Term::Integer(1 << 40),
            Term::Float(1.5),
            Term::List(vec![]),
            Term::List(vec![Term::Integer(4), Term::Integer(1)]),
            Term::List(vec![Term::Integer(4), Term::Integer(256)]),
        ]);
        let mut expected = vec![131, 108, 0, 0, 0, 10, 100, 0, 9];
        expected.extend(b"undefined");
        expected.extend([107, 0, 2, b'a', b'b', 106, 109, 0, 0, 0, 1, b'c']);
        expected.extend([104, 3, 97, 255, 98, 0, 0, 1, 0, 98, 255, 255, 255, 255]);
        expected.extend([110, 6, 0, 0, 0, 0, 0, 0, 1]);
        expected.extend([70, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 106]);
        expected.extend([107, 0, 2, 4, 1]);
        expected.extend([108, 0, 0, 0, 2, 97, 4, 98, 0, 0, 1, 0, 106, 106]);
        assert_eq!(term.to_bytes(), expected);
    }
}
