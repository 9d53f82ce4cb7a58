//! Loopback ports for servers that are restarted on the same port.

/// The range of ports. It is below the range that Linux uses for outgoing connections. One of those might otherwise take
/// the port of a server that is restarted.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Loopback ports on which no process listens now.
///
/// # Panics
/// If there are fewer than `count`.
pub fn free_ports(count: usize) -> Vec<u16> {
    // Concurrent callers start at other ports.
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ());
    let length = u64::from(PORTS.end - PORTS.start);
    let first = u16::try_from(random % length).expect("smaller than a port");
    let from_there = (PORTS.start + first..PORTS.end).chain(PORTS.start..PORTS.start + first);
    let free = from_there.filter(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let ports: Vec<u16> = free.take(count).collect();
    assert_eq!(ports.len(), count, "loopback has no free port left");
    ports
}
