//! Safe output of foreign text on a terminal: control characters are escaped, so that the text cannot control the terminal.

use std::fmt::{self, Write};

/// Prints its content with control characters as `\\u001b`, except line ends and tabs. So JSON stays JSON.
pub(crate) struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(steers) {
            self.0.write_str(&rest[..at])?;
            let mut characters = rest[at..].chars();
            if let Some(character) = characters.next() {
                write!(self.0, "\\u{:04x}", u32::from(character))?;
            }
            rest = characters.as_str();
        }
        self.0.write_str(rest)
    }
}

/// Whether a character controls the terminal: a control character, or one that changes the direction of text.
pub(crate) fn steers(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_shown_and_json_stays_json() {
        let text = "a\u{1b}[31mred\r\u{7}\u{9b}2J\u{7f} \u{202e}txt.exe\nnext\t\u{e9}\u{1f511}";
        let shown = "a\\u001b[31mred\\u000d\\u0007\\u009b2J\\u007f \\u202etxt.exe\nnext\t\u{e9}\u{1f511}";
        assert_eq!(Printable(text).to_string(), shown);
        let json = serde_json::json!({ "a": text }).to_string();
        let read: serde_json::Value = serde_json::from_str(&Printable(&json).to_string()).unwrap();
        assert_eq!(read["a"], text);
    }
}
