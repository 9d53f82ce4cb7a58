//! Seeded randomness that never changes: a dependency must not change the data sets of a seed.

/// A SplitMix64 generator (Steele, Lea & Flood 2014), which is good enough for test data and has one word of state.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose output depends only on `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `bound`, which must not be 0. (The bias of the remainder does not matter for test data.)
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// 32 random hexadecimal digits: a document id or the hash of a revision.
    pub fn hex32(&mut self) -> String {
        format!("{:016x}{:016x}", self.bits(), self.bits())
    }

    /// `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.bits().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// `length` bytes of lower-case words: compressible, and printable in a failure's message.
    pub fn text(&mut self, length: usize) -> String {
        let mut text = String::with_capacity(length + 8);
        while text.len() < length {
            let mut word = self.bits();
            for _ in 0..3 + word % 6 {
                word >>= 5;
                text.push(char::from(b'a' + (word % 26) as u8));
            }
            text.push(' ');
        }
        text.truncate(length);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_words() {
        let mut random = Random::new(7);
        let first = (random.hex32(), random.text(40), random.bytes(5));
        let mut again = Random::new(7);
        assert_eq!(first, (again.hex32(), again.text(40), again.bytes(5)));
        assert_ne!(first.0, Random::new(8).hex32());
        assert_eq!((first.0.len(), first.1.len(), first.2.len()), (32, 40, 5));
    }
}
