//! `socket_options`: options of a replication's sockets, in CouchDB's notation: `[{keepalive, true}, {sndbuf, 10000}]`.

use std::fmt;
use std::io;
use std::str::FromStr;

use tokio::net::TcpStream;

/// The longest text of options.
const MAX_TEXT_BYTES: usize = 1_000;
/// The largest buffer, in bytes. The system reduces a larger value than it allows.
const MAX_BUFFER_BYTES: usize = 64 << 20;
/// The highest priority that needs no privileges.
const MAX_PRIORITY: u32 = 6;

/// Options of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketOptions {
    /// Whether the system detects that the other end is gone.
    pub keepalive: bool,
    /// Whether small requests are sent immediately, and not delayed for more data. CouchDB: no.
    pub nodelay: bool,
    /// The priority of sent packets, on Linux.
    pub priority: Option<u32>,
    /// The system's receive buffer, in bytes.
    pub recbuf: Option<usize>,
    /// The system's send buffer, in bytes.
    pub sndbuf: Option<usize>,
    /// The buffer in which responses are read, in bytes; at least 8 kB.
    pub buffer: Option<usize>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self { keepalive: true, nodelay: true, priority: None, recbuf: None, sndbuf: None, buffer: None }
    }
}

impl SocketOptions {
    /// These options, overridden by those in `text`. Unknown options are ignored, as in CouchDB.
    ///
    /// # Errors
    /// The error states what would be right.
    pub fn with(mut self, text: &str) -> Result<Self, String> {
        for (name, value) in pairs(text)? {
            match name {
                "keepalive" => self.keepalive = flag(name, value)?,
                "nodelay" => self.nodelay = flag(name, value)?,
                "priority" => self.priority = Some(number(name, value, MAX_PRIORITY)?),
                "recbuf" => self.recbuf = Some(number(name, value, MAX_BUFFER_BYTES)?),
                "sndbuf" => self.sndbuf = Some(number(name, value, MAX_BUFFER_BYTES)?),
                "buffer" => self.buffer = Some(number(name, value, MAX_BUFFER_BYTES)?),
                _ => {}
            }
        }
        Ok(self)
    }

    /// Sets the options of a connected socket. Its buffers were set before.
    pub(crate) fn apply(&self, socket: &TcpStream) -> io::Result<()> {
        let socket = socket2::SockRef::from(socket);
        socket.set_tcp_nodelay(self.nodelay)?;
        socket.set_keepalive(self.keepalive)?;
        #[cfg(target_os = "linux")]
        if let Some(priority) = self.priority {
            socket.set_priority(priority)?;
        }
        Ok(())
    }
}

/// The names and values in the list.
fn pairs(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let right = || "a list like [{keepalive, true}, {nodelay, true}, {sndbuf, 65536}]".to_owned();
    if text.len() > MAX_TEXT_BYTES {
        return Err(right());
    }
    let text = text.trim();
    let text = text.strip_suffix('.').unwrap_or(text).trim_end();
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).ok_or_else(right)?;
    let (mut pairs, mut rest) = (Vec::new(), inside.trim());
    while !rest.is_empty() {
        let (pair, after) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or_else(right)?;
        let (name, value) = pair.split_once(',').ok_or_else(right)?;
        pairs.push((name.trim(), value.trim()));
        let after = after.trim_start();
        rest = match after.strip_prefix(',').map(str::trim_start) {
            Some("") => return Err(right()),
            Some(next) => next,
            None if after.is_empty() => after,
            None => return Err(right()),
        };
    }
    Ok(pairs)
}

fn flag(name: &str, value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| format!("{{{name}, true}} or {{{name}, false}}"))
}

fn number<T: FromStr + PartialOrd + fmt::Display>(name: &str, value: &str, most: T) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("{{{name}, N}} with a whole number of at most {most}"))
}

impl fmt::Display for SocketOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keepalive, nodelay, priority, recbuf, sndbuf, buffer } = self;
        write!(f, "[{{keepalive, {keepalive}}}, {{nodelay, {nodelay}}}")?;
        if let Some(priority) = priority {
            write!(f, ", {{priority, {priority}}}")?;
        }
        for (name, bytes) in [("recbuf", recbuf), ("sndbuf", sndbuf), ("buffer", buffer)] {
            if let Some(bytes) = bytes {
                write!(f, ", {{{name}, {bytes}}}")?;
            }
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_are_read_as_couchdb_writes_them() {
        let text = "[{priority, 3}, {potato, true}, {sndbuf, 10000}, {recbuf,20000},{nodelay, false}].";
        let options = SocketOptions::default().with(text).unwrap();
        assert!(options.keepalive && !options.nodelay);
        assert_eq!((options.priority, options.sndbuf, options.recbuf), (Some(3), Some(10_000), Some(20_000)));
        assert_eq!(SocketOptions::default().with("[]").unwrap(), SocketOptions::default());
    }

    #[test]
    fn shown_options_can_be_parsed() {
        let text =
            "[{keepalive, false}, {nodelay, true}, {priority, 6}, {recbuf, 1}, {sndbuf, 2}, {buffer, 3}]";
        let options = SocketOptions::default().with(text).unwrap();
        assert_eq!(options.to_string(), text);
    }

    #[test]
    fn invalid_lists_of_options_are_refused() {
        for wrong in [
            "",
            "{nodelay, true}",
            "[nodelay]",
            "[{nodelay}]",
            "[{nodelay, 1}]",
            "[{nodelay, true},]",
            "[{nodelay, true} x]",
            "[{priority, 7}]",
            "[{sndbuf, -1}]",
            "[{recbuf, 1e3}]",
            "<}garbage]][",
        ] {
            assert!(SocketOptions::default().with(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_socket_is_set_up_as_asked() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let socket = socket2::SockRef::from(&stream);
        SocketOptions::default().apply(&stream).unwrap();
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        SocketOptions::default()
            .with("[{nodelay, false}, {keepalive, false}, {priority, 4}]")
            .unwrap()
            .apply(&stream)
            .unwrap();
        assert!(!socket.tcp_nodelay().unwrap() && !socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(socket.priority().unwrap(), 4);
    }
}
