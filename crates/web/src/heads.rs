//! Memory for unfinished heads of requests: one budget for all connections, and a part of it for each address.
//!
//! A head is read before anybody can know who sends it, and a client may take [as long as it may be idle](super::listener)
//! to complete it. hyper bounds each head and not their sum. So the bytes that a connection has sent of a head are counted. The first
//! [`FREE_BYTES`] are free, and most heads need no more. If the others exceed the budget, the connection is closed whose head began first.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};
use tokio::sync::Notify;

/// What a head may take without a place in the budget. It is also the most that one read returns: the bytes that follow a head in its last
/// read are not counted, and a small read keeps hyper's buffer small.
const FREE_BYTES: usize = 16 << 10;
/// All unfinished heads together, beyond their free parts. If every possible connection had a free part, these would take 160 MB.
const MAX_BYTES: usize = 64 << 20;
/// The unfinished heads of one address.
const MAX_BYTES_OF_ADDRESS: usize = MAX_BYTES / 4;

/// All unfinished heads of a listener that are larger than their free part.
#[derive(Clone, Default)]
pub struct Heads(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    bytes: usize,
    /// By number, in the order in which they began to need a place.
    unfinished: BTreeMap<u64, Unfinished>,
    addresses: HashMap<IpAddr, OfAddress>,
    last: u64,
}

struct Unfinished {
    address: IpAddr,
    bytes: usize,
    connection: Arc<Head>,
}

#[derive(Default)]
struct OfAddress {
    bytes: usize,
    numbers: BTreeSet<u64>,
}

/// The head that one connection sends.
pub struct Head {
    heads: Heads,
    address: IpAddr,
    /// What has arrived of it.
    bytes: AtomicUsize,
    /// Its number among the [unfinished](Table::unfinished), or zero.
    number: AtomicU64,
    /// Requests of the connection whose head is complete and whose body is not. Between requests it is zero.
    requests: AtomicUsize,
    must_close: Notify,
}

/// A request whose body may still be read. Bytes that arrive belong to it and not to the next head.
#[derive(Clone)]
pub struct Reading(#[expect(dead_code, reason = "it counts until it is dropped")] Arc<Counted>);

struct Counted(Arc<Head>);

impl Heads {
    /// For a new connection of `address`.
    pub fn connection(&self, address: IpAddr) -> Arc<Head> {
        Arc::new(Head {
            heads: self.clone(),
            address,
            bytes: AtomicUsize::new(0),
            number: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            must_close: Notify::new(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Counts `bytes` more for a head, and closes what is too much.
    fn grow(&mut self, head: &Arc<Head>, bytes: usize) {
        let number = match head.number.load(Relaxed) {
            0 => {
                self.last += 1;
                let connection = head.clone();
                self.unfinished.insert(self.last, Unfinished { address: head.address, bytes: 0, connection });
                self.addresses.entry(head.address).or_default().numbers.insert(self.last);
                head.number.store(self.last, Relaxed);
                self.last
            }
            number => number,
        };
        // One that must close is no longer counted.
        let Some(unfinished) = self.unfinished.get_mut(&number) else { return };
        unfinished.bytes += bytes;
        self.bytes += bytes;
        if let Some(of_address) = self.addresses.get_mut(&head.address) {
            of_address.bytes += bytes;
        }
        while let Some(oldest) = self.excess(head.address) {
            if let Some(closed) = self.remove(oldest) {
                closed.connection.must_close.notify_one();
            }
        }
    }

    /// The oldest head of an address that has too much, or of all if these are too much.
    fn excess(&self, address: IpAddr) -> Option<u64> {
        let of_address = self.addresses.get(&address)?;
        if of_address.bytes > MAX_BYTES_OF_ADDRESS {
            return of_address.numbers.first().copied();
        }
        (self.bytes > MAX_BYTES).then(|| self.unfinished.keys().next().copied()).flatten()
    }

    fn remove(&mut self, number: u64) -> Option<Unfinished> {
        let removed = self.unfinished.remove(&number)?;
        self.bytes -= removed.bytes;
        if let Entry::Occupied(mut of_address) = self.addresses.entry(removed.address) {
            of_address.get_mut().bytes -= removed.bytes;
            of_address.get_mut().numbers.remove(&number);
            if of_address.get().numbers.is_empty() {
                of_address.remove();
            }
        }
        Some(removed)
    }
}

impl Head {
    /// Bytes have arrived.
    fn arrived(self: &Arc<Self>, bytes: usize) {
        if bytes == 0 || self.requests.load(Relaxed) > 0 {
            return;
        }
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let counted = (before + bytes).saturating_sub(before.max(FREE_BYTES));
        if counted > 0 {
            self.heads.table().grow(self, counted);
        }
    }

    /// The head is complete: its request begins.
    pub fn complete(self: &Arc<Self>) -> Reading {
        self.requests.fetch_add(1, Relaxed);
        self.bytes.store(0, Relaxed);
        self.free();
        Reading(Arc::new(Counted(self.clone())))
    }

    /// Returns when the connection must close, because heads take too much memory and this one is the oldest.
    pub async fn must_close(&self) {
        self.must_close.notified().await;
        // It may have been completed in the meantime.
        while self.number.load(Relaxed) == 0 {
            self.must_close.notified().await;
        }
    }

    /// Gives the memory back.
    fn free(&self) {
        let number = self.number.swap(0, Relaxed);
        if number != 0 {
            self.heads.table().remove(number);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Relaxed);
    }
}

/// A connection whose heads are counted.
pub struct Counting<S> {
    stream: Take<S>,
    head: Arc<Head>,
}

/// However a connection ends, its head takes nothing more.
impl<S> Drop for Counting<S> {
    fn drop(&mut self) {
        self.head.free();
    }
}

impl<S: AsyncRead> Counting<S> {
    pub fn new(stream: S, head: Arc<Head>) -> Counting<S> {
        Counting { stream: stream.take(0), head }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counting<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        self.stream.set_limit(FREE_BYTES as u64);
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.head.arrived(buffer.filled().len() - before);
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Counting<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt as _;

    use super::*;

    const LARGE: usize = 256 << 10;

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn begun(heads: &Heads, of: IpAddr) -> Arc<Head> {
        let head = heads.connection(of);
        head.arrived(LARGE);
        head
    }

    fn is_closed(head: &Head) -> bool {
        head.must_close().now_or_never().is_some()
    }

    #[test]
    fn the_oldest_unfinished_head_of_an_address_is_closed_first_and_others_stay() {
        let heads = Heads::default();
        let other = begun(&heads, address(2));
        let held: Vec<_> = (0..100).map(|_| begun(&heads, address(1))).collect();
        let closed = held.iter().filter(|head| is_closed(head)).count();
        let counted = LARGE - FREE_BYTES;
        assert_eq!(held.len() - closed, MAX_BYTES_OF_ADDRESS / counted);
        assert!(!is_closed(&other) && !is_closed(held.last().unwrap()));
        assert!(heads.table().bytes <= MAX_BYTES_OF_ADDRESS + counted);
    }

    #[test]
    fn all_addresses_together_have_a_bound() {
        let heads = Heads::default();
        let held: Vec<_> = (0..=255_u8).flat_map(|n| [n; 2]).map(|n| begun(&heads, address(n))).collect();
        assert!(heads.table().bytes <= MAX_BYTES);
        let closed: Vec<_> = held.iter().map(|head| is_closed(head)).collect();
        assert!(closed[0] && !closed[511] && closed.is_sorted_by_key(|closed| !closed), "the oldest first");
    }

    #[test]
    fn complete_heads_bodies_small_heads_and_ended_connections_take_nothing() {
        let heads = Heads::default();
        let small = heads.connection(address(1));
        small.arrived(FREE_BYTES);
        assert_eq!(heads.table().bytes, 0);
        small.arrived(1);
        assert_eq!(heads.table().bytes, 1);
        let request = small.complete();
        let body = request.clone();
        small.arrived(LARGE);
        drop(request);
        small.arrived(LARGE);
        assert_eq!(heads.table().bytes, 0, "a body has another budget");
        drop(body);
        small.arrived(LARGE);
        assert_eq!(heads.table().bytes, LARGE - FREE_BYTES, "the next head");
        small.free();
        let table = heads.table();
        assert!(table.bytes == 0 && table.unfinished.is_empty() && table.addresses.is_empty());
    }
}
