//! A socket whose send queue in the kernel is part of a bound on all of them.
//!
//! The kernel lets every connection's queue grow to `net.ipv4.tcp_wmem[2]`, usually 4 MiB, if its client reads slowly.
//! Here each may have [`FREE_BYTES`] at any time; more comes from a pool of which the connections of an address have at most
//! half of what is free, so that a client that takes nothing on many connections leaves some to others. A connection has
//! at most a quarter of that: one that is alone has an eighth of the pool and is not throttled, however distant its client is.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::charge::AddressMemory;
use super::meminfo::send_queue_bytes;
use super::pool::SharedPool;
use super::socket::RuntimeSocket;

/// Kernel memory of a send queue that takes nothing from the pool.
pub(super) const FREE_BYTES: usize = 4 << 10;

/// A connection has at most what its address may still have, divided by this.
pub(super) const DIVISOR: usize = 3;

/// Memory of a packet besides its bytes: `sk_buff`, `skb_shared_info` and room for headers.
const PACKET_BYTES: usize = 1280;

/// Smaller writes wait, except for the last bytes of an answer: a queue that is nearly full would be filled a few bytes at a time.
const LEAST_BYTES: usize = 1 << 10;

/// As long as little of the pool is taken, a queue that takes no more than this is not looked at: what was written since the last look
/// counts as queued. To ask the kernel for each answer of 2 KB took 5 % of the time that the answer takes.
const UNSEEN_BYTES: usize = 64 << 10;

/// Shortest and longest pause before a connection for which nothing is left looks again.
const RETRY: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(160)];

/// Time without received bytes after which a connection checks its send queue. Each read puts the timer off, because a timer that fires
/// wakes the thread. With timers of 50 ms that were not put off, 80 connections that took answers of 32 KiB
/// used 9 % more of the processor for each answer.
const RELEASE: Duration = Duration::from_millis(250);

/// Shortest and longest pause between two looks at a connection that has ended and whose last bytes are on their way.
const LINGER: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// A socket of the runtime, and what its send queue has taken of the pool.
#[derive(Debug)]
pub(super) struct Metered<S: RuntimeSocket> {
    /// `None` once dropped.
    socket: Option<S>,
    queue: SendQueue,
    /// The next look, and the pause before it.
    retry: Option<(Pin<Box<Sleep>>, Duration)>,
    release: Option<Pin<Box<Sleep>>>,
    /// Something was received since [`Self::release`] was set.
    has_received: bool,
    rest: Rest,
}

/// What one socket's queue has taken of the pool; given back when dropped.
#[derive(Debug)]
pub(super) struct SendQueue {
    pool: Arc<SharedPool>,
    /// The bytes that all connections of the client's address have taken; `None` where an address stands for many clients.
    of_address: Option<Arc<AddressMemory>>,
    /// At least the kernel memory that the queue takes.
    queued_bytes: AtomicUsize,
    granted_bytes: AtomicUsize,
}

/// Where a connection's socket goes when it is dropped before the client has taken all of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Rest(Arc<Mutex<Option<Unsent>>>);

/// A socket on which nothing is written any more.
#[derive(Debug)]
struct Unsent {
    socket: Box<dyn Ended>,
    queue: SendQueue,
}

impl Unsent {
    /// Gives back what the client has taken meanwhile; returns the bytes that are left in the queue.
    fn release_taken(&self) -> usize {
        let queued = self.socket.queue_bytes();
        self.queue.keep(queued.saturating_sub(FREE_BYTES));
        queued
    }
}

trait Ended: std::fmt::Debug + Send {
    fn queue_bytes(&self) -> usize;
    /// Has the kernel forget what is left when the socket is closed.
    fn forget(&self);
}

impl<S: RuntimeSocket> Ended for S {
    fn queue_bytes(&self) -> usize {
        send_queue_bytes(self.as_fd(), S::HAS_PACKETS).unwrap_or(0)
    }

    fn forget(&self) {
        // A socket that is gone already has nothing left.
        let _ = sockopt::set_socket_linger(self, Some(Duration::ZERO));
    }
}

impl Rest {
    /// Waits until the client has what is left of an answer, for `patience` at most; at once where the connection was
    /// `broken_off`. The kernel would keep the bytes of a closed socket for minutes, and of any number of them.
    pub(super) async fn drained(&self, broken_off: bool, patience: Duration) {
        let Some(unsent) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let (until, [mut pause, longest]) = (Instant::now() + patience, LINGER);
        let mut left = unsent.release_taken();
        while !broken_off && left > 0 && Instant::now() < until {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
            left = unsent.release_taken();
        }
        if left > 0 {
            unsent.socket.forget();
        }
    }
}

impl SendQueue {
    /// An empty queue of a connection of an address of which all connections together have `of_address`.
    pub(super) fn new(pool: &Arc<SharedPool>, of_address: Option<Arc<AddressMemory>>) -> Self {
        let (queued_bytes, granted_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { pool: Arc::clone(pool), of_address, queued_bytes, granted_bytes }
    }

    /// How many of `wanted` bytes may be written now. 0: the queue is full, until `socket` has sent some of it.
    fn allow<S: RuntimeSocket>(&self, socket: &S, wanted: usize) -> usize {
        let cost = cost(wanted);
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        let needed = self.queued_bytes.load(Ordering::Relaxed).saturating_add(cost).saturating_sub(FREE_BYTES);
        if needed <= granted {
            return wanted;
        }
        if needed <= UNSEEN_BYTES && !self.pool.is_much_taken() && self.grant(granted, needed - granted) >= needed {
            return wanted;
        }
        let queued = self.look(socket);
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        let needed = queued.saturating_add(cost).saturating_sub(FREE_BYTES);
        let granted = if needed > granted { self.grant(granted, needed - granted) } else { self.keep(needed) };
        let room = FREE_BYTES.saturating_add(granted).saturating_sub(queued);
        if cost <= room {
            return wanted;
        }
        let allowed = payload(room);
        if allowed < LEAST_BYTES { 0 } else { allowed.min(wanted) }
    }

    /// Takes up to `wanted` bytes more than are `granted`; returns what is granted then. Threads that ask for the same address at
    /// once may exceed its part a little.
    fn grant(&self, granted: usize, wanted: usize) -> usize {
        let of_address = self.of_address.as_ref().map(|memory| memory.queued_bytes.load(Ordering::Relaxed));
        let more = self.pool.take_up_to(of_address, granted, wanted);
        if let Some(memory) = &self.of_address {
            memory.queued_bytes.fetch_add(more, Ordering::Relaxed);
        }
        self.granted_bytes.fetch_add(more, Ordering::Relaxed) + more
    }

    fn sent(&self, bytes: usize) {
        if bytes > 0 {
            self.queued_bytes.fetch_add(cost(bytes), Ordering::Relaxed);
        }
    }

    /// Asks the kernel. Where it does not tell, nothing is taken to be queued.
    fn look<S: RuntimeSocket>(&self, socket: &S) -> usize {
        let queued = socket.queue_bytes();
        self.queued_bytes.store(queued, Ordering::Relaxed);
        queued
    }

    /// Gives back what was granted beyond `bytes`; returns what is granted then.
    fn keep(&self, bytes: usize) -> usize {
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        let surplus = granted.saturating_sub(bytes);
        if surplus > 0 {
            self.granted_bytes.fetch_sub(surplus, Ordering::Relaxed);
            self.pool.give_back(surplus);
            if let Some(memory) = &self.of_address {
                memory.queued_bytes.fetch_sub(surplus, Ordering::Relaxed);
            }
        }
        granted - surplus
    }

    /// Gives back what the queue does not need: the client has taken it, or the kernel has not.
    fn release<S: RuntimeSocket>(&self, socket: &S) {
        let queued = self.look(socket);
        self.keep(queued.saturating_sub(FREE_BYTES));
    }

    /// Counts what was written of `allowed` bytes. The kernel took less if its own bound is lower.
    fn written<S: RuntimeSocket>(&self, socket: &S, allowed: usize, written: usize) {
        self.sent(written);
        if written < allowed && self.is_granted_any() {
            self.release(socket);
        }
    }

    fn is_granted_any(&self) -> bool {
        self.granted_bytes.load(Ordering::Relaxed) > 0
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        self.keep(0);
    }
}

/// Kernel memory that so many bytes take.
fn cost(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.saturating_add(bytes / 16).saturating_add(PACKET_BYTES) }
}

/// How many bytes take at most so much kernel memory.
fn payload(memory_bytes: usize) -> usize {
    memory_bytes.saturating_sub(PACKET_BYTES) / 17 * 16
}

impl<S: RuntimeSocket> Metered<S> {
    pub(super) fn new(socket: S, queue: SendQueue, rest: &Rest) -> Self {
        Self { socket: Some(socket), queue, retry: None, release: None, has_received: false, rest: rest.clone() }
    }

    /// The socket itself.
    ///
    /// # Errors
    /// Never before it is dropped.
    pub(super) fn socket(&self) -> io::Result<&S> {
        self.socket.as_ref().ok_or_else(closed)
    }

    /// Writes some of `wanted` bytes by `write`, which is told how many it may write and tells how many it wrote. Does not
    /// wait; after `WouldBlock`, [`AsyncWrite::poll_write`] does.
    pub(super) fn try_to_write(
        &self,
        wanted: usize,
        write: impl FnOnce(&S, usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let socket = self.socket()?;
        let allowed = self.queue.allow(socket, wanted);
        if allowed == 0 && wanted > 0 {
            if S::HAS_PACKETS {
                // The kernel would keep a packet that is not full for 0.2 s, and the next one waits until it is sent.
                let _ = sockopt::set_tcp_cork(socket, false);
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let written = socket.try_to_write(|| write(socket, allowed));
        self.queue.written(socket, allowed, *written.as_ref().unwrap_or(&0));
        written
    }

    /// Ready with how many of `wanted` bytes may be written; of none, when [`Self::try_to_write`] writes some of any number.
    fn poll_allowed(&mut self, context: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        let [shortest, longest] = RETRY;
        loop {
            let asked = if wanted == 0 { LEAST_BYTES } else { wanted };
            let allowed = self.queue.allow(self.socket.as_ref().ok_or_else(closed)?, asked);
            if allowed > 0 {
                self.retry = None;
                return Poll::Ready(Ok(allowed.min(wanted)));
            }
            let (sleep, pause) = self.retry.get_or_insert_with(|| (Box::pin(tokio::time::sleep(shortest)), shortest));
            ready!(sleep.as_mut().poll(context));
            *pause = (*pause * 2).min(longest);
            sleep.as_mut().reset(Instant::now() + *pause);
        }
    }

    /// Has a connection that receives nothing give back what its client has taken meanwhile.
    pub(super) fn poll_release(&mut self, context: &mut Context<'_>) {
        while self.queue.is_granted_any() {
            let sleep = self.release.get_or_insert_with(|| Box::pin(tokio::time::sleep(RELEASE)));
            if std::mem::take(&mut self.has_received) {
                sleep.as_mut().reset(Instant::now() + RELEASE);
            }
            if sleep.as_mut().poll(context).is_pending() {
                return;
            }
            self.release = None;
            self.release_taken();
        }
        self.release = None;
    }

    fn release_taken(&self) {
        if let Some(socket) = &self.socket {
            self.queue.release(socket);
        }
    }

    /// Counts what `write` has written of `allowed` bytes.
    fn count(&mut self, allowed: usize, write: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let written = if let Poll::Ready(Ok(written)) = write { written } else { 0 };
        if let Some(socket) = &self.socket {
            self.queue.written(socket, allowed, written);
        }
        write
    }
}

impl<S: RuntimeSocket> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(self.socket.as_mut().ok_or_else(closed)?).poll_read(context, out);
        if read.is_pending() {
            self.poll_release(context);
            return Poll::Pending;
        }
        self.has_received = true;
        if self.queue.is_granted_any() && self.queue.pool.is_much_taken() {
            // Most clients have taken an answer before they send the next request, whose answer may take its time.
            self.release_taken();
        }
        read
    }
}

impl<S: RuntimeSocket> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let allowed = ready!(self.poll_allowed(context, bytes.len()))?;
        let bytes = bytes.get(..allowed).unwrap_or(bytes);
        let write = Pin::new(self.socket.as_mut().ok_or_else(closed)?).poll_write(context, bytes);
        self.count(allowed, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wanted = parts.iter().map(|part| part.len()).sum();
        let allowed = ready!(self.poll_allowed(context, wanted))?;
        let socket = Pin::new(self.socket.as_mut().ok_or_else(closed)?);
        let write = if allowed == wanted {
            socket.poll_write_vectored(context, parts)
        } else {
            let first = parts.iter().find(|part| !part.is_empty()).map_or(&[][..], |part| part);
            socket.poll_write(context, first.get(..allowed).unwrap_or(first))
        };
        self.count(allowed, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(self.socket.as_mut().ok_or_else(closed)?).poll_flush(context))?;
        // A connection of HTTP/2 reads first and writes then: nothing else would look at what it has written last.
        self.poll_release(context);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.socket.as_mut().ok_or_else(closed)?).poll_shutdown(context)
    }
}

impl<S: RuntimeSocket> Drop for Metered<S> {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        if self.queue.look(&socket) == 0 {
            return;
        }
        let empty = SendQueue::new(&self.queue.pool, None);
        let unsent = Unsent { socket: Box::new(socket), queue: std::mem::replace(&mut self.queue, empty) };
        *self.rest.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(unsent);
    }
}

fn closed() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::*;
    use crate::metrics::ConnectionPool;

    async fn pair(pool: &Arc<SharedPool>, rest: &Rest) -> (Metered<TcpStream>, TcpStream) {
        let (socket, reader, _) = pair_of_address(pool, rest).await;
        (socket, reader)
    }

    async fn pair_of_address(
        pool: &Arc<SharedPool>,
        rest: &Rest,
    ) -> (Metered<TcpStream>, TcpStream, Arc<AddressMemory>) {
        let of_address = Arc::<AddressMemory>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        // The kernel of a client that reads nothing takes little.
        socket.set_recv_buffer_size(4096).unwrap();
        let (reader, accepted) = tokio::join!(socket.connect(address), listener.accept());
        let queue = SendQueue::new(pool, Some(Arc::clone(&of_address)));
        (Metered::new(accepted.unwrap().0, queue, rest), reader.unwrap(), of_address)
    }

    #[test]
    fn connections_of_one_address_leave_most_of_the_pool_to_others() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 1 << 20, DIVISOR));
        let address = Arc::<AddressMemory>::default();
        let queues: Vec<_> = (0..200).map(|_| SendQueue::new(&pool, Some(Arc::clone(&address)))).collect();
        let granted: usize = queues.iter().map(|queue| queue.grant(0, 1 << 20)).sum();
        assert!(granted > 3 << 17 && granted <= 1 << 19, "{granted}");
        assert!(SendQueue::new(&pool, Some(Arc::default())).grant(0, 1 << 20) > 3 << 14);
        drop(queues);
        assert_eq!(address.queued_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_fits_into_so_much_memory_takes_no_more() {
        for memory in (0..5000).chain([1 << 20, usize::MAX]) {
            assert!(cost(payload(memory)) <= memory.max(PACKET_BYTES), "{memory}");
        }
        assert_eq!(payload(cost(1 << 20)), 1 << 20);
    }

    /// A queue of which nothing is ever sent.
    #[tokio::test]
    async fn a_write_of_nothing_waits_as_long_as_a_write_of_much() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 0, DIVISOR));
        let (mut socket, _reader) = pair(&pool, &Rest::default()).await;
        let mut full = false;
        for _ in 0..200 {
            let much = socket.queue.allow(socket.socket().unwrap(), 1 << 20);
            let nothing = futures_util::poll!(std::future::poll_fn(|context| socket.poll_allowed(context, 0)));
            assert_eq!(much == 0, nothing.is_pending(), "{much}");
            full |= much == 0;
            if much > 0 {
                let written =
                    tokio::time::timeout(Duration::from_millis(5), socket.write(&vec![0; much.min(700)])).await;
                assert!(written.is_ok());
            }
        }
        assert!(full);
    }

    #[tokio::test]
    async fn queues_of_clients_that_take_nothing_stay_within_the_pool() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 1 << 20, DIVISOR));
        let mut held = Vec::new();
        for _ in 0..40 {
            let (mut socket, reader) = pair(&pool, &Rest::default()).await;
            let much = vec![0; 4 << 20];
            let writing = socket.write_all(&much);
            assert!(tokio::time::timeout(Duration::from_millis(20), writing).await.is_err());
            held.push((socket, reader));
        }
        let queued: usize = held.iter().map(|(socket, _)| socket.socket().unwrap().queue_bytes()).sum();
        assert!(queued <= (1 << 20) + 40 * 2 * FREE_BYTES, "{queued}");
        assert!(queued > 1 << 18, "{queued}");
    }

    #[tokio::test]
    async fn all_arrives_from_an_empty_pool_and_is_given_back() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 0, DIVISOR));
        let (mut socket, mut reader) = pair(&pool, &Rest::default()).await;
        let sent: Vec<u8> = (0..100_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut received = Vec::new();
        let sending = async {
            socket.write_all(&sent).await.unwrap();
            socket.shutdown().await.unwrap();
        };
        tokio::join!(sending, async { reader.read_to_end(&mut received).await.unwrap() });
        assert!(received == sent);
    }

    #[tokio::test]
    async fn a_packet_that_is_not_full_is_sent_where_nothing_may_follow() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 0, DIVISOR));
        let (socket, _reader) = pair(&pool, &Rest::default()).await;
        let tcp = socket.socket().unwrap();
        sockopt::set_tcp_cork(tcp, true).unwrap();
        let mut sent = 0;
        while let Ok(count) = socket.try_to_write(1 << 20, |tcp, allowed| {
            assert!(sockopt::tcp_cork(tcp)?);
            Ok(rustix::io::write(tcp, &vec![0; allowed])?)
        }) {
            sent += count;
        }
        assert!(sent > 0 && !sockopt::tcp_cork(tcp).unwrap(), "{sent} bytes are held back");
    }

    #[test]
    fn a_connection_that_is_alone_has_as_much_as_the_kernel_gives_it() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 40 << 20, DIVISOR));
        for of_address in [Some(Arc::default()), None] {
            // `net.ipv4.tcp_wmem`, and a packet more.
            assert!(SendQueue::new(&pool, of_address).grant(0, usize::MAX) >= (4 << 20) + (128 << 10));
        }
    }

    #[tokio::test]
    async fn a_connection_gives_back_what_was_taken_when_it_is_idle_or_asks_again_where_others_need_it() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 1 << 20, DIVISOR));
        let (mut socket, mut reader, of_address) = pair_of_address(&pool, &Rest::default()).await;
        for is_much_taken in [false, true] {
            while is_much_taken && !pool.is_much_taken() {
                pool.take_up_to(None, 0, 1 << 17);
            }
            for asks in [true, false] {
                socket.write_all(&vec![0; 30_000]).await.unwrap();
                reader.read_exact(&mut vec![0; 30_000]).await.unwrap();
                assert!(socket.queue.is_granted_any());
                if asks {
                    reader.write_u8(1).await.unwrap();
                    assert_eq!(socket.read_u8().await.unwrap(), 1);
                    assert_eq!(socket.queue.is_granted_any(), !is_much_taken);
                } else {
                    assert!(tokio::time::timeout(RELEASE * 2, socket.read_u8()).await.is_err());
                    assert!(!socket.queue.is_granted_any());
                }
                let granted = socket.queue.granted_bytes.load(Ordering::Relaxed);
                assert_eq!(of_address.queued_bytes.load(Ordering::Relaxed), granted);
            }
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_flushed_and_not_read_gives_back_what_was_taken() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 1 << 20, DIVISOR));
        let (mut socket, mut reader) = pair(&pool, &Rest::default()).await;
        socket.write_all(&vec![0; 30_000]).await.unwrap();
        reader.read_exact(&mut vec![0; 30_000]).await.unwrap();
        let emptied = std::future::poll_fn(|context| {
            if !socket.queue.is_granted_any() {
                return Poll::Ready(());
            }
            assert!(Pin::new(&mut socket).poll_flush(context).is_ready());
            Poll::Pending
        });
        assert!(tokio::time::timeout(RELEASE * 2, emptied).await.is_ok());
    }

    #[tokio::test]
    async fn no_more_is_granted_than_the_kernel_takes() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 1 << 30, DIVISOR));
        let (mut socket, _reader, of_address) = pair_of_address(&pool, &Rest::default()).await;
        let much = vec![0; 16 << 20];
        assert!(tokio::time::timeout(Duration::from_millis(50), socket.write_all(&much)).await.is_err());
        let queued = socket.socket().unwrap().queue_bytes();
        let granted = of_address.queued_bytes.load(Ordering::Relaxed);
        assert!(granted > 0 && granted <= queued, "{granted} for {queued}");
    }

    #[tokio::test]
    async fn a_connection_that_has_ended_gives_back_what_is_taken_of_its_last_answer() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 1 << 22, DIVISOR));
        let rest = Rest::default();
        let (mut socket, mut reader, of_address) = pair_of_address(&pool, &rest).await;
        let (mut sent, much) = (0, vec![0; 1 << 16]);
        while let Ok(count) = tokio::time::timeout(Duration::from_millis(20), socket.write(&much)).await {
            sent += count.unwrap();
        }
        drop(socket);
        let granted = of_address.queued_bytes.load(Ordering::Relaxed);
        let mut draining = std::pin::pin!(rest.drained(false, Duration::from_secs(30)));
        reader.read_exact(&mut vec![0; sent * 3 / 4]).await.unwrap();
        assert!(tokio::time::timeout(LINGER[1] * 3, draining.as_mut()).await.is_err());
        let left = of_address.queued_bytes.load(Ordering::Relaxed);
        assert!(left > 0 && left < granted / 2, "{left} of {granted}");
        tokio::join!(draining, async { reader.read_to_end(&mut Vec::new()).await.unwrap() });
        assert_eq!(of_address.queued_bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_closed_connection_is_waited_for_and_then_reset() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 1 << 20, DIVISOR));
        for (patience, is_reset) in [(Duration::from_millis(50), true), (Duration::from_secs(30), false)] {
            let rest = Rest::default();
            let (mut socket, mut reader) = pair(&pool, &rest).await;
            let (mut sent, much) = (0, vec![0; 1 << 16]);
            while let Ok(count) = tokio::time::timeout(Duration::from_millis(20), socket.write(&much)).await {
                sent += count.unwrap();
            }
            drop(socket);
            let mut received = Vec::new();
            if is_reset {
                rest.drained(false, patience).await;
                drop(rest);
                assert!(reader.read_to_end(&mut received).await.is_err());
            } else {
                let reading = async { reader.read_to_end(&mut received).await.unwrap() };
                tokio::join!(
                    async {
                        rest.drained(false, patience).await;
                        drop(rest);
                    },
                    reading
                );
                assert_eq!(received.len(), sent);
            }
        }
    }
}
