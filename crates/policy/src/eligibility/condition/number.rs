//! Numbers as conditions compare them: whole numbers exactly, whatever their length, and as doubles if one of the two has a fraction or an
//! exponent.

use std::cmp::Ordering;

/// A number.
#[derive(Debug, Clone, PartialEq)]
pub enum Number {
    /// A whole number.
    Whole(i128),
    /// A longer one: whether it is negative, and its digits.
    Long(bool, String),
    /// One with a fraction or an exponent.
    Double(f64),
}

impl Number {
    /// Reads a number as JSON writes it. `None` if it is none, or is beyond a double.
    pub fn parse(text: &str) -> Option<Number> {
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let (whole, rest) = unsigned.split_at(digits(unsigned));
        if whole.is_empty() || whole.len() > 1 && whole.starts_with('0') {
            return None;
        }
        if rest.is_empty() {
            return Some(match text.parse() {
                Ok(number) => Number::Whole(number),
                Err(_) => Number::Long(unsigned.len() < text.len(), whole.to_owned()),
            });
        }
        let rest = match rest.strip_prefix('.') {
            Some(fraction) if digits(fraction) > 0 => &fraction[digits(fraction)..],
            Some(_) => return None,
            None => rest,
        };
        let is_number = match rest.strip_prefix(['e', 'E']) {
            Some(exponent) => {
                let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                !exponent.is_empty() && digits(exponent) == exponent.len()
            }
            None => rest.is_empty(),
        };
        let number = text.parse().ok().filter(|number: &f64| is_number && number.is_finite())?;
        Some(Number::Double(number))
    }

    /// Which of two numbers is less.
    pub fn order(&self, other: &Number) -> Ordering {
        match (self, other) {
            (Number::Whole(one), Number::Whole(other)) => one.cmp(other),
            (Number::Long(minus, digits), Number::Long(other_minus, other_digits)) => {
                let magnitude = (digits.len(), digits).cmp(&(other_digits.len(), other_digits));
                match (minus, other_minus) {
                    (false, false) => magnitude,
                    (true, true) => magnitude.reverse(),
                    (true, false) => Ordering::Less,
                    (false, true) => Ordering::Greater,
                }
            }
            (Number::Long(minus, _), Number::Whole(_)) | (Number::Whole(_), Number::Long(minus, _)) => {
                let is_less = matches!(self, Number::Long(..)) == *minus;
                if is_less { Ordering::Less } else { Ordering::Greater }
            }
            _ => self.double().total_cmp(&other.double()),
        }
    }

    /// The nearest double. A whole number may be infinite.
    fn double(&self) -> f64 {
        match self {
            Number::Whole(number) => *number as f64,
            Number::Long(minus, digits) => {
                let size = digits.parse().unwrap_or(f64::INFINITY);
                if *minus { -size } else { size }
            }
            // There is one zero.
            Number::Double(number) => number + 0.0,
        }
    }
}

impl From<i64> for Number {
    fn from(number: i64) -> Number {
        Number::Whole(number.into())
    }
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_are_those_of_json() {
        for text in [
            "0",
            "-0",
            "7",
            "-12",
            "1e3",
            "1E+3",
            "0.5",
            "-1.5e-3",
            "123456789012345678901234567890123456789012",
        ] {
            assert!(Number::parse(text).is_some(), "{text}");
        }
        for text in
            ["", "-", "007", "+7", "7.", ".5", "1e", "1e+", "0x1", "inf", "NaN", "1_000", "1e999", "1 ", "7a"]
        {
            assert_eq!(Number::parse(text), None, "{text}");
        }
    }

    #[test]
    fn whole_numbers_are_compared_exactly() {
        let ascending = [
            "-1e300",
            "-200000000000000000000000000000000000000000",
            "-123456789012345678901234567890123456789013",
            "-123456789012345678901234567890123456789012",
            "-9007199254740993",
            "-9007199254740992",
            "-1",
            "0",
            "0.5",
            "1",
            "9007199254740992",
            "9007199254740993",
            "1234567890123456789",
            "170141183460469231731687303715884105727",
            "170141183460469231731687303715884105728",
            "1e300",
        ];
        let numbers = ascending.map(|text| Number::parse(text).unwrap());
        for (n, one) in numbers.iter().enumerate() {
            for (m, other) in numbers.iter().enumerate() {
                assert_eq!(one.order(other), n.cmp(&m), "{one:?} {other:?}");
            }
        }
        for (one, other) in [
            ("-0", "0"),
            ("-0.0", "0"),
            ("1e3", "1000"),
            ("1.0", "1"),
            ("9007199254740993.0", "9007199254740992"),
        ] {
            let [one, other] = [one, other].map(|text| Number::parse(text).unwrap());
            assert_eq!(one.order(&other), Ordering::Equal);
        }
        // More digits than a double has room for.
        let long = Number::parse(&"9".repeat(400)).unwrap();
        assert_eq!(long.order(&Number::parse("1e308").unwrap()), Ordering::Greater);
    }
}
