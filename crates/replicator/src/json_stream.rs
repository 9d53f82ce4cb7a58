//! Splits a JSON response into its elements while it arrives, without building trees.
//!
//! The large responses of CouchDB's API have three shapes: an object with an array in it
//! (`{"results":[ROW,ROW],"last_seq":5}`), an array (`[ROW,ROW]`), or lines (`ROW\nROW\n`). In each shape the rows are
//! small, and the rest is a small *envelope*. [`Splitter`] passes each row on as a slice of the text, and keeps the
//! envelope.
//!
//! The splitter only tracks brackets and strings; the caller that parses a row finds out whether it is valid JSON. The
//! splitter holds at most one incomplete row.

/// Errors of a JSON stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("JSON that ends too early")]
    Truncated,
    #[error("JSON with a bracket too many")]
    Unbalanced,
    #[error("text where JSON should be")]
    NotJson,
    #[error("a single element of more than {0} bytes")]
    ElementTooLarge(usize),
    #[error("more than {0} bytes besides the rows")]
    EnvelopeTooLarge(usize),
}

/// The most bytes outside of the rows.
const ENVELOPE_BYTES: usize = 256 * 1024;

/// Which values are rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The elements of the outermost array, or of the arrays that are members of the outermost object.
    #[default]
    Array,
    /// The outermost values.
    Lines,
}

/// The state between two pieces of a response.
#[derive(Default)]
pub(crate) struct Splitter {
    shape: Shape,
    limit_bytes: usize,
    /// Open brackets.
    depth: usize,
    /// Whether the outermost value is an object; determines the depth of rows.
    outer_is_object: bool,
    /// Whether the innermost open bracket around the rows is their array.
    in_rows: bool,
    in_string: bool,
    escaped: bool,
    /// The begin of a row that continues in the next piece.
    partial: Vec<u8>,
    in_row: bool,
    /// The row is a scalar: it ends at the next comma, bracket or white space.
    in_scalar: bool,
    envelope: Vec<u8>,
    finished: bool,
}

impl Splitter {
    /// A splitter whose rows may have at most `limit_bytes`.
    pub fn new(shape: Shape, limit_bytes: usize) -> Self {
        Self { shape, limit_bytes, in_rows: shape == Shape::Lines, ..Self::default() }
    }

    /// Takes the next piece and calls `row` with every row that ends in it.
    pub fn push<E: From<Error>>(
        &mut self,
        piece: &[u8],
        mut row: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        // Where the text of the open row, or otherwise of the envelope, begins in this piece.
        let mut from = 0;
        let mut at = 0;
        while at < piece.len() {
            if self.in_string {
                at = self.skip_string(piece, at);
                if !self.in_string && self.in_row && self.depth == self.row_depth() {
                    self.end_row(&piece[from..at], &mut row)?;
                    from = at;
                }
                continue;
            }
            let byte = piece[at];
            if self.in_scalar && matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t') {
                self.end_row(&piece[from..at], &mut row)?;
                from = at;
            }
            if !self.in_row && self.in_rows && self.depth == self.row_depth() {
                // Between rows. Commas and white space there belong neither to a row nor to the envelope.
                if matches!(byte, b',' | b' ' | b'\n' | b'\r' | b'\t') {
                    self.keep_envelope(&piece[from..at])?;
                    at += 1;
                    from = at;
                    continue;
                }
                if !matches!(byte, b']' | b'}') {
                    self.keep_envelope(&piece[from..at])?;
                    from = at;
                    self.in_row = true;
                    self.in_scalar = !matches!(byte, b'{' | b'[' | b'"');
                }
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.open(byte)?,
                b'}' | b']' => {
                    self.close()?;
                    if self.in_row && self.depth == self.row_depth() {
                        at += 1;
                        self.end_row(&piece[from..at], &mut row)?;
                        from = at;
                        continue;
                    }
                }
                b' ' | b'\n' | b'\r' | b'\t' => {}
                _ if self.depth == 0 && !self.in_row => return Err(Error::NotJson.into()),
                _ => {}
            }
            at += 1;
        }
        let rest = &piece[from..];
        if self.in_row {
            self.keep_partial(rest)?;
        } else {
            self.keep_envelope(rest)?;
        }
        Ok(())
    }

    /// Whether nothing is incomplete: the response has not begun, or the position is between two rows.
    pub fn is_at_rest(&self) -> bool {
        let not_begun = self.depth == 0 && !self.finished;
        !self.in_row && !self.in_string && (not_begun || self.in_rows && self.depth == self.row_depth())
    }

    /// Call this at the end of the response. Returns the envelope, such as `{"results":[],"last_seq":5}`.
    pub fn finish(self) -> Result<Vec<u8>, Error> {
        let between_values = self.depth == 0 && !self.in_string && !self.in_row;
        if between_values && (self.finished || self.shape == Shape::Lines) {
            Ok(self.envelope)
        } else {
            Err(Error::Truncated)
        }
    }

    /// The bytes of an incomplete row that are held.
    pub fn held_bytes(&self) -> usize {
        self.partial.len()
    }

    fn row_depth(&self) -> usize {
        match (self.shape, self.outer_is_object) {
            (Shape::Lines, _) => 0,
            (Shape::Array, false) => 1,
            (Shape::Array, true) => 2,
        }
    }

    /// The position after the end of the string, or the end of the piece.
    fn skip_string(&mut self, piece: &[u8], mut at: usize) -> usize {
        while at < piece.len() {
            if self.escaped {
                self.escaped = false;
                at += 1;
                continue;
            }
            match memchr::memchr2(b'"', b'\\', &piece[at..]) {
                None => return piece.len(),
                Some(offset) if piece[at + offset] == b'"' => {
                    self.in_string = false;
                    return at + offset + 1;
                }
                Some(offset) => {
                    self.escaped = true;
                    at += offset + 1;
                }
            }
        }
        at
    }

    fn open(&mut self, byte: u8) -> Result<(), Error> {
        if self.shape == Shape::Array && !self.in_row {
            match self.depth {
                0 if self.finished => return Err(Error::Unbalanced),
                0 => {
                    self.outer_is_object = byte == b'{';
                    self.in_rows = byte == b'[';
                }
                1 => self.in_rows = byte == b'[',
                _ => {}
            }
        }
        self.depth += 1;
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        self.depth = self.depth.checked_sub(1).ok_or(Error::Unbalanced)?;
        if self.shape == Shape::Array {
            if self.depth < self.row_depth() {
                self.in_rows = false;
            }
            self.finished = self.depth == 0;
        }
        Ok(())
    }

    fn end_row<E: From<Error>>(
        &mut self,
        text: &[u8],
        row: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.in_row = false;
        self.in_scalar = false;
        if self.partial.is_empty() {
            self.check_row(text.len())?;
            return row(text);
        }
        self.keep_partial(text)?;
        let whole = std::mem::take(&mut self.partial);
        let result = row(&whole);
        // Reuses the buffer, unless one large row has made it large.
        if whole.capacity() <= 64 * 1024 {
            self.partial = whole;
            self.partial.clear();
        }
        result
    }

    fn keep_partial(&mut self, text: &[u8]) -> Result<(), Error> {
        self.check_row(self.partial.len() + text.len())?;
        self.partial.extend_from_slice(text);
        Ok(())
    }

    fn check_row(&self, bytes: usize) -> Result<(), Error> {
        if bytes > self.limit_bytes { Err(Error::ElementTooLarge(self.limit_bytes)) } else { Ok(()) }
    }

    fn keep_envelope(&mut self, text: &[u8]) -> Result<(), Error> {
        self.envelope.extend_from_slice(text);
        if self.envelope.len() > ENVELOPE_BYTES {
            Err(Error::EnvelopeTooLarge(ENVELOPE_BYTES))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
#[path = "json_stream_tests.rs"]
mod tests;
