//! How many jobs a worker of this server runs at the same time: a number, or two bounds between which it follows the demand.

use std::fmt;
use std::ops::RangeInclusive;

use turnwise_queue::Bounds;

/// The slots of a worker: `10`, or `4..64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// The fewest.
    pub least: usize,
    /// The most. Equal to `least` for a plain number.
    pub most: usize,
}

impl From<usize> for Slots {
    fn from(number: usize) -> Slots {
        Slots { least: number, most: number }
    }
}

impl Slots {
    /// The slots that a text states, within these limits.
    pub(super) fn parse(text: &str, allowed: RangeInclusive<usize>) -> Option<Slots> {
        let number = |text: &str| text.trim().parse().ok().filter(|number| allowed.contains(number));
        match text.split_once("..") {
            None => number(text).map(Slots::from),
            Some((least, most)) => {
                let slots = Slots { least: number(least)?, most: number(most)? };
                (slots.least <= slots.most).then_some(slots)
            }
        }
    }

    /// The bounds, if the slots follow the demand.
    pub fn bounds(self) -> Option<Bounds> {
        let Slots { least, most } = self;
        (least < most).then_some(Bounds { least, most })
    }

    /// The slots of a worker that has `now`: these as far as the bounds permit.
    pub fn within(self, now: usize) -> usize {
        now.clamp(self.least, self.most)
    }
}

impl fmt::Display for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bounds() {
            None => self.most.fmt(f),
            Some(Bounds { least, most }) => write!(f, "{least}..{most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_two_bounds_within_the_limits() {
        let parse =
            |text| Slots::parse(text, 1..=100).map(|slots| (slots.to_string(), slots.bounds().is_some()));
        assert_eq!(parse("7"), Some(("7".to_owned(), false)));
        assert_eq!(parse("4..64"), Some(("4..64".to_owned(), true)));
        assert_eq!(parse("4 .. 64"), Some(("4..64".to_owned(), true)));
        assert_eq!(parse("5..5"), Some(("5".to_owned(), false)));
        for wrong in ["", "..", "4..", "..64", "0..4", "4..101", "64..4", "4...64", "-1", "4-64", "1..2..3"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let slots = Slots { least: 4, most: 64 };
        assert_eq!([0, 9, 500].map(|now| slots.within(now)), [4, 9, 64]);
    }
}
