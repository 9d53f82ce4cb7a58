//! The lines that a process prints, one by one while it runs.

/// The longest line, in bytes. Of a longer one, the rest is left out.
pub const MAX_LINE_BYTES: usize = 4 << 10;

/// Where a process has printed a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Its stdout.
    Stdout,
    /// Its stderr.
    Stderr,
}

/// Gets the lines of a process, without their ends: at most [`MAX_LINE_BYTES`] each, with U+FFFD in place of bytes that are not UTF-8. It must
/// return soon, because the process waits for it.
pub type OnLine = Box<dyn Fn(Output, String) + Send + Sync>;

/// Assembles lines from chunks of an output.
pub(crate) struct Lines<'a> {
    output: Output,
    on_line: &'a OnLine,
    /// The line that has no end yet: at most one byte more than a line may have, which says that it is longer.
    line: Vec<u8>,
}

impl<'a> Lines<'a> {
    pub fn new(output: Output, on_line: &'a OnLine) -> Lines<'a> {
        Lines { output, on_line, line: Vec::new() }
    }

    /// Adds the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            let room = MAX_LINE_BYTES + 1 - self.line.len();
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                self.pass_on();
            }
        }
    }

    /// The output has ended.
    pub fn end(&mut self) {
        if !self.line.is_empty() {
            self.pass_on();
        }
    }

    fn pass_on(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        let mut text = String::from_utf8_lossy(line).into_owned();
        if line.len() > MAX_LINE_BYTES || text.len() > MAX_LINE_BYTES {
            // Also without a character that was cut in two.
            text.truncate(text.floor_char_boundary(MAX_LINE_BYTES - '…'.len_utf8()));
            text.push('…');
        }
        (self.on_line)(self.output, text);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let printed = Arc::<Mutex<Vec<String>>>::default();
        let to = printed.clone();
        let on_line: OnLine = Box::new(move |_, line| to.lock().unwrap().push(line));
        let mut lines = Lines::new(Output::Stdout, &on_line);
        chunks.iter().for_each(|chunk| lines.push(chunk));
        lines.end();
        std::mem::take(&mut printed.lock().unwrap())
    }

    #[test]
    fn lines_are_the_same_however_the_output_is_cut() {
        let output = "one\n\ntwo \u{e9}\r\nthree".as_bytes();
        for size in 1..=output.len() {
            let chunks: Vec<&[u8]> = output.chunks(size).collect();
            assert_eq!(lines(&chunks), ["one", "", "two \u{e9}", "three"], "in chunks of {size}");
        }
        assert_eq!(lines(&[b"\n"]), [""]);
        assert!(lines(&[]).is_empty());
    }

    #[test]
    fn a_long_line_is_cut_at_a_characters_border() {
        assert_eq!(lines(&[&[b'x'; MAX_LINE_BYTES], b"\n"]), ["x".repeat(MAX_LINE_BYTES)]);
        for character in ["x", "\u{e9}", "\u{20ac}", "\u{1f511}"] {
            for shift in 0..4 {
                let text = format!("{}{}", "y".repeat(shift), character.repeat(MAX_LINE_BYTES + 1));
                let cut = lines(&[text.as_bytes(), b"\nnext"]);
                assert_eq!((cut.len(), cut[1].as_str()), (2, "next"));
                let kept = cut[0].strip_suffix('…').unwrap();
                assert!(
                    text.starts_with(kept) && (MAX_LINE_BYTES - 7..=MAX_LINE_BYTES).contains(&cut[0].len())
                );
            }
        }
        // Each byte becomes three.
        let bytes = lines(&[&[0xff; MAX_LINE_BYTES]]);
        assert!(bytes[0].len() <= MAX_LINE_BYTES && bytes[0].ends_with("\u{fffd}…"));
    }
}
