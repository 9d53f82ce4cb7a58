//! Captures a process's output within a limit: it keeps the head and the tail, and counts what is between.

use std::collections::VecDeque;
use std::str::Utf8Chunk;

/// The head and the tail of a stream of bytes.
#[derive(Clone)]
pub struct Captured {
    /// Half of the bytes to keep.
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

/// A stream as text of limited size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub text: String,
    /// Whether the middle is missing; the text then states how much.
    pub truncated: bool,
    /// Whether U+FFFD replaces bytes that are not UTF-8.
    pub lossy: bool,
}

impl Captured {
    /// An empty capture that keeps at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Captured { half: max_bytes / 2, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    /// Adds the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(head);
        bytes = &rest[rest.len().saturating_sub(self.half)..];
        let excess = (self.tail.len() + bytes.len()).saturating_sub(self.half);
        self.tail.drain(..excess);
        self.tail.extend(bytes);
    }

    /// The number of bytes received.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// All bytes received, if none was dropped.
    pub fn whole(&self) -> Option<Vec<u8>> {
        (self.left_out() == 0).then(|| [self.head.as_slice(), &self.tail()].concat())
    }

    /// The last line that is not blank, as far as it was kept.
    pub fn last_line(&self) -> Option<String> {
        let bytes = self.whole().unwrap_or_else(|| self.tail());
        let text = String::from_utf8_lossy(&bytes);
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    }

    fn tail(&self) -> Vec<u8> {
        self.tail.iter().copied().collect()
    }

    fn left_out(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }

    /// The text, with at most `budget` bytes within JSON, escapes included. A further line states how much is missing.
    pub(crate) fn text(&self, budget: usize) -> Text {
        // A character needs no fewer bytes within JSON than in the output, so that more bytes than these need not be decoded.
        let half = |bytes: usize| bytes.min(budget / 2);
        let (head, tail) = match self.whole() {
            Some(whole) if whole.len() <= budget => {
                let whole = decode(&whole);
                if whole.iter().map(|char| char.cost).sum::<usize>() <= budget {
                    return Text { text: text(&whole), truncated: false, lossy: lossy(&whole) };
                }
                (whole.clone(), whole)
            }
            whole => {
                let (head, tail) = match whole {
                    Some(whole) => (whole.clone(), whole),
                    None => (self.head.clone(), self.tail()),
                };
                let head = without_cut_end(&head[..half(head.len())]);
                let tail = without_cut_start(&tail[tail.len() - half(tail.len())..]);
                // Characters may have been cut in two, also by capturing.
                (decode(head), decode(tail))
            }
        };
        let head = &head[..fitting(head.iter(), budget / 2)];
        let tail = &tail[tail.len() - fitting(tail.iter().rev(), budget / 2)..];
        let kept: usize = head.iter().chain(tail).map(|char| char.bytes).sum();
        let left_out = self.total - kept as u64;
        Text {
            text: format!("{}\n[… {left_out} bytes left out …]\n{}", text(head), text(tail)),
            truncated: true,
            lossy: lossy(head) || lossy(tail),
        }
    }

    /// The size of all kept bytes within JSON.
    pub(crate) fn cost(&self) -> usize {
        let invalid = char::REPLACEMENT_CHARACTER.len_utf8();
        let cost = |bytes: &[u8]| -> usize {
            let of_chunk = |chunk: Utf8Chunk<'_>| {
                let valid: usize = chunk.valid().chars().map(cost).sum();
                valid + if chunk.invalid().is_empty() { 0 } else { invalid }
            };
            bytes.utf8_chunks().map(of_chunk).sum()
        };
        cost(&self.head) + cost(&self.tail())
    }
}

/// A character, the number of bytes it was decoded from, and its size within JSON.
#[derive(Clone, Copy)]
struct Char {
    char: char,
    bytes: usize,
    cost: usize,
    lossy: bool,
}

fn decode(bytes: &[u8]) -> Vec<Char> {
    let mut chars = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        chars.extend(chunk.valid().chars().map(|char| Char {
            char,
            bytes: char.len_utf8(),
            cost: cost(char),
            lossy: false,
        }));
        if !chunk.invalid().is_empty() {
            let char = char::REPLACEMENT_CHARACTER;
            chars.push(Char { char, bytes: chunk.invalid().len(), cost: char.len_utf8(), lossy: true });
        }
    }
    chars
}

/// The size of a character within a JSON string, in bytes.
fn cost(char: char) -> usize {
    match char {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        char => char.len_utf8(),
    }
}

fn text(chars: &[Char]) -> String {
    chars.iter().map(|char| char.char).collect()
}

fn lossy(chars: &[Char]) -> bool {
    chars.iter().any(|char| char.lossy)
}

/// How many of these characters have a total cost of at most `budget`.
fn fitting<'a>(chars: impl Iterator<Item = &'a Char>, budget: usize) -> usize {
    let mut spent = 0;
    chars
        .take_while(|char| {
            spent += char.cost;
            spent <= budget
        })
        .count()
}

/// Removes an incomplete character at the end.
fn without_cut_end(bytes: &[u8]) -> &[u8] {
    for cut in 1..=3.min(bytes.len()) {
        let byte = bytes[bytes.len() - cut];
        let length = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => return bytes,
        };
        return if length > cut { &bytes[..bytes.len() - cut] } else { bytes };
    }
    bytes
}

/// Removes an incomplete character at the start.
fn without_cut_start(bytes: &[u8]) -> &[u8] {
    let continuation = |byte: &&u8| (0x80..=0xbf).contains(*byte);
    let cut = bytes.iter().take(3).take_while(continuation).count();
    &bytes[cut..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(max_bytes: usize, chunks: &[&[u8]]) -> Captured {
        let mut captured = Captured::new(max_bytes);
        chunks.iter().for_each(|chunk| captured.push(chunk));
        captured
    }

    #[test]
    fn a_text_that_fits_is_kept_unchanged() {
        let all = captured(8, &[b"abc", b"", b"defgh"]);
        assert_eq!(all.whole().unwrap(), b"abcdefgh");
        assert_eq!(all.text(8), Text { text: "abcdefgh".into(), truncated: false, lossy: false });
    }

    #[test]
    fn the_head_and_the_tail_of_a_longer_text_are_kept() {
        for chunk in [1, 2, 3, 5, 7, 100] {
            let bytes: Vec<u8> = (0..100).map(|n| b'a' + n % 26).collect();
            let chunks: Vec<&[u8]> = bytes.chunks(chunk).collect();
            let some = captured(8, &chunks);
            assert_eq!((some.whole(), some.total()), (None, 100));
            assert_eq!(some.text(100).text, "abcd\n[… 92 bytes left out …]\nstuv");
        }
    }

    #[test]
    fn a_cut_goes_between_characters_and_invents_none() {
        for max in 2..24 {
            let text = "aé€😀".repeat(20);
            let some = captured(max, &[text.as_bytes()]).text(1_000);
            assert!(!some.lossy && some.truncated, "{some:?}");
            let (head, rest) = some.text.split_once("\n[… ").unwrap();
            let (left_out, tail) = rest.split_once(" bytes left out …]\n").unwrap();
            assert!(text.starts_with(head) && text.ends_with(tail), "{some:?}");
            assert_eq!(left_out.parse::<usize>().unwrap(), text.len() - head.len() - tail.len());
            assert!(head.len() + 3 >= max / 2 && tail.len() + 3 >= max / 2, "{max}: {some:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced_and_reported() {
        let some = captured(100, &[b"a\xffb"]).text(100);
        assert_eq!(some, Text { text: "a\u{fffd}b".into(), truncated: false, lossy: true });
    }

    #[test]
    fn the_budget_holds_for_escaped_text() {
        for byte in [b'"', b'\n', 0, 0x1b, 0xff, b'a'] {
            let some = captured(10_000, &[&[byte; 5_000]]);
            let text = some.text(1_000);
            let json = serde_json::to_string(&text.text).unwrap();
            assert!(json.len() <= 1_000 + 50, "{byte}: {}", json.len());
            let whole = serde_json::to_string(&some.text(some.cost()).text).unwrap();
            assert_eq!(whole.len(), some.cost() + 2, "{byte}");
        }
    }

    #[test]
    fn the_last_line_is_the_last_that_is_not_blank() {
        assert_eq!(captured(100, &[b"one\ntwo \n\n \n"]).last_line().unwrap(), "two");
        assert_eq!(captured(8, &[b"a long line, and the end"]).last_line().unwrap(), "end");
        assert_eq!(captured(8, &[b" \n"]).last_line(), None);
    }
}
