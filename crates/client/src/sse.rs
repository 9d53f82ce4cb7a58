//! Server-sent events: a parser of the stream, as the HTML standard defines it.

/// The longest line that the parser accepts, in bytes. A job's record, as one line of JSON with its options and its
/// errors, has less than 500 kB.
const MAX_LINE_BYTES: usize = 1 << 20;

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub name: String,
    pub data: String,
}

/// Assembles events from chunks of the stream.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    /// The last byte was a CR: an LF after it belongs to the same line end.
    after_cr: bool,
    event: Event,
    has_data: bool,
    /// The id of the unfinished event. Without its data, it must not be the last one: the server would not send the event again.
    id: Option<String>,
    last_id: Option<String>,
    retry_ms: Option<u64>,
}

impl Parser {
    /// The id to send in `last-event-id` when reconnecting.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// How long clients should wait before they reconnect, in ms, as the server sent it.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// Starts a new stream: drops an unfinished event with its id, and keeps the last id and the retry time.
    pub fn restart(&mut self) {
        *self = Parser { last_id: self.last_id.take(), retry_ms: self.retry_ms, ..Parser::default() };
    }

    /// Parses a chunk of the stream, and returns the events that it completes. An error says what is wrong.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Event>, &'static str> {
        let mut events = Vec::new();
        for &byte in piece {
            match byte {
                b'\n' if self.after_cr => self.after_cr = false,
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    let line = std::mem::take(&mut self.line);
                    events.extend(self.end_line(&String::from_utf8_lossy(&line)));
                }
                _ if self.line.len() >= MAX_LINE_BYTES => return Err("a line without an end"),
                _ => {
                    self.after_cr = false;
                    self.line.push(byte);
                }
            }
        }
        Ok(events)
    }

    fn end_line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            self.last_id = self.id.take().or(self.last_id.take());
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event.name = value.to_owned(),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            "retry" => self.retry_ms = value.parse().ok().or(self.retry_ms),
            // Comments keep the connection alive; the standard says to ignore unknown fields.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, data: &str) -> Event {
        Event { name: name.into(), data: data.into() }
    }

    #[test]
    fn events_are_the_same_however_the_stream_is_cut() {
        let stream = "retry: 1500\n\n:\n\nevent: state\nid: 7:0\ndata: {\"a\":\ndata: \"é\"}\n\nevent: none\n\n\
                      data:bare\r\ndata\r\n\r\nid:8:1-end\revent: end\rdata: x:y\r\r";
        let expected = [event("state", "{\"a\":\n\"é\"}"), event("", "bare\n"), event("end", "x:y")];
        for size in 1..stream.len() {
            let mut parser = Parser::default();
            let mut events = Vec::new();
            for piece in stream.as_bytes().chunks(size) {
                events.extend(parser.push(piece).unwrap());
            }
            assert_eq!(events, expected, "in pieces of {size}");
            assert_eq!((parser.last_id(), parser.retry_ms()), (Some("8:1-end"), Some(1500)));
        }
    }

    #[test]
    fn a_restart_drops_an_unfinished_event_and_keeps_the_id_of_the_one_before() {
        let mut parser = Parser::default();
        assert_eq!(parser.push(b"id: 5\ndata: one\n\nid: 6\ndata: half").unwrap(), [event("", "one")]);
        assert_eq!(parser.last_id(), Some("5"));
        parser.restart();
        assert_eq!(parser.push(b"data: whole\n\n").unwrap(), [event("", "whole")]);
        assert_eq!(parser.last_id(), Some("5"));
    }

    #[test]
    fn no_line_grows_without_end() {
        let mut parser = Parser::default();
        assert_eq!(parser.push(&vec![b'x'; MAX_LINE_BYTES]), Ok(vec![]));
        assert!(parser.push(b"x").is_err());
    }
}
