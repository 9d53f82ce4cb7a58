//! Ports of loopback for servers that are to come back on the one they had.

/// Where ports are taken from: below those that Linux gives to outgoing connections, one of which might else hold the
/// port of a server that is to be restarted.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Ports of loopback that nobody listens on now.
///
/// # Panics
/// If there are not as many.
pub fn free_ports(count: usize) -> Vec<u16> {
    // Whoever else looks for some at the same time begins elsewhere.
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ());
    let length = u64::from(PORTS.end - PORTS.start);
    let first = u16::try_from(random % length).expect("smaller than a port");
    let from_there = (PORTS.start + first..PORTS.end).chain(PORTS.start..PORTS.start + first);
    let free = from_there.filter(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let ports: Vec<u16> = free.take(count).collect();
    assert_eq!(ports.len(), count, "loopback has no free port left");
    ports
}
