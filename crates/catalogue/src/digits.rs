//! Options with the digits of their numbers as they were sent.

use std::borrow::Cow;

use serde_json::{Number, Value};

/// Parses the text of a job's options. A number that would not keep its digits becomes a text that has them: a whole number beyond 64
/// bits, `1e2`, `1.50`, `-0`. So different numbers never make the same name of a lock.
///
/// Options that are no JSON count as `null`.
pub fn parse_options(text: &str) -> Value {
    serde_json::from_str(&quoted(text)).unwrap_or_default()
}

/// The same JSON, with quotes around each number that would not keep its digits.
fn quoted(json: &str) -> Cow<'_, str> {
    let bytes = json.as_bytes();
    let mut made = String::new();
    let (mut at, mut copied) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = after_text(bytes, at + 1),
            b'-' | b'0'..=b'9' => {
                let rest = &bytes[at..];
                let is_part =
                    |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
                let end = at + rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
                let number = &json[at..end];
                if !keeps_digits(number) {
                    made.push_str(&json[copied..at]);
                    made.extend(["\"", number, "\""]);
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    made.push_str(&json[copied..]);
    Cow::Owned(made)
}

/// The position after a text whose first character is at `at`.
fn after_text(bytes: &[u8], mut at: usize) -> usize {
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn keeps_digits(number: &str) -> bool {
    // What is no number stays as it is, and the parser refuses it.
    number.parse::<Number>().map_or(true, |parsed| parsed.to_string() == number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_were_sent() {
        let long = "123456789012345678901234567890";
        let options = format!(
            r#"{{"a": 7, "b": 1e2, "c": [-0, 1.50, 1.5, -3], "d": {{"e": {long}}}, "9": "say \"1e2\" \\", "f": 18446744073709551615}}"#
        );
        assert_eq!(
            parse_options(&options),
            json!({"a": 7, "b": "1e2", "c": ["-0", "1.50", 1.5, -3], "d": {"e": long}, "9": "say \"1e2\" \\", "f": u64::MAX})
        );
        for plain in [r#"{"a": [1, "1e2", "\\\"", true, null, 0.25]}"#, "{}", "7", r#""x"#] {
            assert!(matches!(quoted(plain), Cow::Borrowed(_)), "{plain}");
        }
        for wrong in ["", "{", "1-2", r#"{"a": 1e}"#, r#""\"#, r#"{"ä": -"#] {
            assert_eq!(parse_options(wrong), Value::Null, "{wrong}");
        }
    }
}
