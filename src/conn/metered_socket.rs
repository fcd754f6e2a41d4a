//! A socket that writes only as many bytes as its [`SendQueue`] allows, and gives memory back for the bytes that the
//! client has received.

use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{SendFlags, Shutdown, send, shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};
use tokio_io_timeout::TimeoutStream;

use super::send_queue::SendQueue;
use super::so_meminfo::{segment_bytes, send_queue_bytes};
use super::socket::{Socket, TokioSocket, has_hung_up};
use crate::store::SendfileSource;
use crate::telemetry::log_throttle::LogThrottle;

/// Shortest and longest pause before a connection with a full send queue tries again.
const WRITE_BACKOFF: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(160)];

/// Time without received bytes after which a connection checks its send queue. Each read postpones the check, because a
/// timer that fires wakes the thread. With timers of 50 ms that were not postponed, each response of 32 KiB took 9 %
/// more processor time (80 connections).
const RELEASE_DELAY: Duration = Duration::from_millis(250);

/// Shortest and longest pause between two checks of a closed connection whose last bytes are still in the send queue.
const DRAIN_BACKOFF: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// Longest wait until the client acknowledges the end of the stream, once it has acknowledged all bytes. Then the
/// connection is reset. The kernel would keep it for minutes, with 6 KiB of memory that no pool counts.
const FIN_TIMEOUT: Duration = Duration::from_secs(3);

/// A tokio socket, and the memory that its send queue has taken from the pool.
#[derive(Debug)]
pub(super) struct MeteredSocket<S: TokioSocket> {
    /// `None` once dropped.
    socket: Option<S>,
    queue: SendQueue,
    /// Timer of the next attempt to write, and the pause before it.
    retry_timer: Option<(Pin<Box<Sleep>>, Duration)>,
    release_timer: Option<Pin<Box<Sleep>>>,
    /// True if bytes were received since [`Self::release_timer`] was set.
    has_received: bool,
    /// True if the send queue has outgrown its part of the pool. Writes and [`Self::socket`] then fail. Reads return
    /// the end of the stream, because the socket is shut down.
    has_outgrown: bool,
    /// Channel that receives the socket when this is dropped, so that the socket is [drained](drain_lingering). `None`
    /// once dropped.
    linger: Option<oneshot::Sender<LingeringSocket>>,
}

/// A metered socket whose writes fail if the client accepts no bytes for too long.
pub(super) type TimedSocket<S> = Pin<Box<TimeoutStream<MeteredSocket<S>>>>;

/// A socket to which the server writes no more bytes, but whose send queue may still hold some.
#[derive(Debug)]
pub(super) struct LingeringSocket {
    socket: OwnedFd,
    is_tcp: bool,
    queue: SendQueue,
}

impl LingeringSocket {
    /// Gives back memory for the bytes that the client has received. Returns the number of bytes that are left in the
    /// queue, or `None` if the queue has [outgrown its grant](SendQueue::settle).
    fn release_drained(&self) -> Option<usize> {
        let queued = send_queue_bytes(self.socket.as_fd(), self.is_tcp).unwrap_or(0);
        self.queue.settle(queued).then_some(queued)
    }
}

/// Ends a connection whose [`MeteredSocket`] has been dropped. Sends the end of the stream, and waits until the client
/// has acknowledged all bytes and the end. The wait lasts at most `timeout`, or [`FIN_TIMEOUT`] if only the end is
/// left. Then resets the connection, because the kernel would keep any number of closed sockets for minutes.
///
/// If the connection `is_aborted` and either bytes are left or the client has hung up, resets it at once.
pub(super) async fn drain_lingering(
    mut linger: oneshot::Receiver<LingeringSocket>,
    is_aborted: bool,
    timeout: Duration,
) {
    let Ok(lingering) = linger.try_recv() else { return };
    let is_empty = lingering.release_drained() == Some(0);
    if is_aborted && (!is_empty || has_hung_up(&lingering.socket)) {
        return set_reset_on_close(&lingering.socket);
    }
    // The end of the stream stays in the queue until the client acknowledges it. If the call fails, the connection has
    // already ended.
    let _ = shutdown(&lingering.socket, Shutdown::Write);
    let timeout = if is_empty { timeout.min(FIN_TIMEOUT) } else { timeout };
    let deadline = Instant::now() + timeout;
    let [mut pause, max_pause] = DRAIN_BACKOFF;
    let max_pause = if is_empty { FIN_TIMEOUT / 4 } else { max_pause };
    loop {
        match lingering.release_drained() {
            Some(0) => return,
            Some(_) if Instant::now() < deadline => {}
            _ => return set_reset_on_close(&lingering.socket),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(max_pause);
    }
}

impl<S: TokioSocket> MeteredSocket<S> {
    /// Wraps `socket`, whose send queue is empty. When this is dropped, the socket is sent to `linger`.
    pub(super) fn new(socket: S, queue: SendQueue, linger: oneshot::Sender<LingeringSocket>) -> Self {
        let segment_bytes = if S::IS_TCP { segment_bytes(socket.as_fd()) } else { None };
        Self {
            queue: queue.with_segments(segment_bytes),
            socket: Some(socket),
            retry_timer: None,
            release_timer: None,
            has_received: false,
            has_outgrown: false,
            linger: Some(linger),
        }
    }

    /// Makes writes fail if the client accepts no bytes for `timeout`.
    pub(super) fn with_timeout(self, timeout: Duration) -> TimedSocket<S> {
        let mut stream = TimeoutStream::new(self);
        stream.set_write_timeout(Some(timeout));
        Box::pin(stream)
    }

    /// Returns the socket.
    ///
    /// # Errors
    /// Returns an error if the socket was dropped, or if its send queue has outgrown its part of the pool.
    pub(super) fn socket(&self) -> io::Result<&S> {
        self.socket.as_ref().filter(|_| !self.has_outgrown).ok_or_else(closed_error)
    }

    /// Returns the socket for a poll, even if its queue has outgrown its part of the pool. The socket is then shut
    /// down: reads return the end of the stream, and writes fail.
    fn pin_socket(&mut self) -> io::Result<Pin<&mut S>> {
        self.socket.as_mut().map(Pin::new).ok_or_else(closed_error)
    }

    /// Writes up to `wanted` bytes by calling `write` with the number of bytes that it may write. `write` returns the
    /// number of bytes that it has written. Does not wait. After `WouldBlock`, [`AsyncWrite::poll_write`] waits.
    pub(super) fn try_to_write(
        &self,
        wanted: usize,
        write: impl FnOnce(&S, usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let socket = self.socket()?;
        let allowed = self.queue.allow(socket, wanted);
        if allowed == 0 && wanted > 0 {
            if S::IS_TCP {
                // While the socket is corked, the kernel holds back a partial packet for 0.2 s, and the next write
                // would wait for that packet.
                let _ = sockopt::set_tcp_cork(socket, false);
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let written = socket.try_write_io(|| write(socket, allowed));
        self.queue.record_write(socket, allowed, *written.as_ref().unwrap_or(&0));
        written
    }

    /// Ready when some of `wanted` bytes may be written; returns their number. If `wanted` is 0, ready when
    /// [`Self::try_to_write`] would write some bytes.
    fn poll_allowed(&mut self, context: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        let [min_pause, max_pause] = WRITE_BACKOFF;
        loop {
            let requested_bytes = if wanted == 0 { self.queue.min_write_bytes() } else { wanted };
            let allowed = self.queue.allow(self.socket()?, requested_bytes);
            if allowed > 0 {
                self.retry_timer = None;
                return Poll::Ready(Ok(allowed.min(wanted)));
            }
            let (sleep, pause) =
                self.retry_timer.get_or_insert_with(|| (Box::pin(tokio::time::sleep(min_pause)), min_pause));
            if sleep.as_mut().poll(context).is_pending() {
                self.poll_release(context);
                return if self.has_outgrown { Poll::Ready(Err(closed_error())) } else { Poll::Pending };
            }
            *pause = (*pause * 2).min(max_pause);
            sleep.as_mut().reset(Instant::now() + *pause);
        }
    }

    /// Gives back memory for the bytes that the client has received, if the connection has received nothing for
    /// [`RELEASE_DELAY`].
    pub(super) fn poll_release(&mut self, context: &mut Context<'_>) {
        while self.queue.has_grant() {
            let sleep = self.release_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(RELEASE_DELAY)));
            if std::mem::take(&mut self.has_received) {
                sleep.as_mut().reset(Instant::now() + RELEASE_DELAY);
            }
            if sleep.as_mut().poll(context).is_pending() {
                return;
            }
            self.release_timer = None;
            self.release_drained();
        }
        self.release_timer = None;
    }

    fn release_drained(&mut self) {
        if let Some(socket) = &self.socket
            && !self.queue.release(socket)
        {
            static OUTGROWN: LogThrottle = LogThrottle::new();
            if let Some(suppressed) = OUTGROWN.allow() {
                tracing::warn!(
                    suppressed,
                    "connection reset: the kernel's send queue has outgrown its part of the pool"
                );
            }
            // The kernel discards the queue when the socket is closed, and the end of the stream wakes the connection.
            set_reset_on_close(socket);
            let _ = shutdown(socket, Shutdown::Both);
            self.has_outgrown = true;
        }
    }

    /// Records how many of the `allowed` bytes `write` has written.
    fn record_write(
        &mut self,
        context: &mut Context<'_>,
        allowed: usize,
        write: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let written = if let Poll::Ready(Ok(written)) = write { written } else { 0 };
        if let Some(socket) = &self.socket {
            self.queue.record_write(socket, allowed, written);
        }
        if write.is_pending() {
            self.poll_release(context);
        }
        write
    }
}

impl<S: TokioSocket> AsyncRead for MeteredSocket<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = self.pin_socket()?.poll_read(context, out);
        if read.is_pending() {
            self.poll_release(context);
            return Poll::Pending;
        }
        self.has_received = true;
        if self.queue.has_grant() && self.queue.pool.is_under_pressure() {
            // Most clients have received the previous response when they send a request, and the next response may take
            // some time.
            self.release_drained();
        }
        read
    }
}

impl<S: TokioSocket> AsyncWrite for MeteredSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let allowed = ready!(self.poll_allowed(context, bytes.len()))?;
        let bytes = bytes.get(..allowed).unwrap_or(bytes);
        let write = self.pin_socket()?.poll_write(context, bytes);
        self.record_write(context, allowed, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wanted = parts.iter().map(|part| part.len()).sum();
        let allowed = ready!(self.poll_allowed(context, wanted))?;
        let socket = self.pin_socket()?;
        if allowed == wanted {
            let write = socket.poll_write_vectored(context, parts);
            return self.record_write(context, allowed, write);
        }
        let first = parts.iter().find(|part| !part.is_empty()).map_or(&[][..], |part| part);
        let first = first.get(..allowed).unwrap_or(first);
        let write = socket.poll_write(context, first);
        self.record_write(context, first.len(), write)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.pin_socket()?.poll_flush(context))?;
        // An HTTP/2 connection first reads and then writes, so no read follows that would check the queue after the
        // last write.
        self.poll_release(context);
        Poll::Ready(Ok(()))
    }

    /// Only flushes a TCP socket. [`drain_lingering`] sends the end of the stream, after it has checked whether the
    /// queue is empty.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.pin_socket()?;
        if S::IS_TCP { socket.poll_flush(context) } else { socket.poll_shutdown(context) }
    }
}

impl<S: TokioSocket> Drop for MeteredSocket<S> {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        if !S::IS_TCP && self.queue.measure(&socket) == 0 {
            return;
        }
        let empty = SendQueue::new(&self.queue.pool, None);
        // If the call fails, the connection has already ended.
        let Ok(socket) = socket.into_fd() else { return };
        let queue = std::mem::replace(&mut self.queue, empty);
        if let Some(linger) = self.linger.take() {
            // If no task receives the socket, the kernel keeps it until the client has acknowledged all bytes.
            drop(linger.send(LingeringSocket { socket, is_tcp: S::IS_TCP, queue }));
        }
    }
}

/// Makes the kernel discard the remaining bytes when the socket is closed.
fn set_reset_on_close(socket: &impl AsFd) {
    // If the call fails, the connection has already ended and has no bytes left.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

fn closed_error() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl<S: TokioSocket> Socket for TimedSocket<S> {
    const IS_BUFFERED: bool = false;

    fn send_with_more(&self, bytes: &[u8]) -> io::Result<usize> {
        self.get_ref().try_to_write(bytes.len(), |socket, allowed| {
            let bytes = bytes.get(..allowed).unwrap_or(bytes);
            Ok(send(socket, bytes, SendFlags::MORE | SendFlags::NOSIGNAL)?)
        })
    }

    fn send_file(&self, file: &SendfileSource, from: u64) -> io::Result<u64> {
        let wanted = usize::try_from(file.next_chunk_bytes(from)).unwrap_or(usize::MAX);
        let sent = self.get_ref().try_to_write(wanted, |socket, allowed| file.send(socket.as_fd(), from, allowed))?;
        Ok(sent as u64)
    }

    fn set_cork(&self, hold: bool) {
        if let Ok(socket) = self.get_ref().socket()
            && S::IS_TCP
        {
            // If this fails, the bytes are sent in more packets.
            let _ = sockopt::set_tcp_cork(socket, hold);
        }
    }

    fn poll_release(&mut self, context: &mut Context<'_>) {
        self.as_mut().get_pin_mut().poll_release(context);
    }

    fn has_hung_up(&self) -> bool {
        self.get_ref().socket().map_or(true, has_hung_up)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::super::send_queue::{CONNECTION_DIVISOR, UNPOOLED_BYTES};
    use super::super::threshold_pool::{AddressMemory, DynamicThresholdPool};
    use super::*;
    use crate::telemetry::metrics::ConnectionPoolLabel;

    async fn pair(pool: &Arc<DynamicThresholdPool>) -> (MeteredSocket<TcpStream>, TcpStream) {
        let (socket, reader, _) = pair_of_address(pool, oneshot::channel().0).await;
        (socket, reader)
    }

    async fn pair_of_address(
        pool: &Arc<DynamicThresholdPool>,
        linger: oneshot::Sender<LingeringSocket>,
    ) -> (MeteredSocket<TcpStream>, TcpStream, Arc<AddressMemory>) {
        let address_memory = Arc::<AddressMemory>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        // The receive buffer of a client that does not read must be small.
        socket.set_recv_buffer_size(4096).unwrap();
        let (reader, accepted) = tokio::join!(socket.connect(address), listener.accept());
        let queue = SendQueue::new(pool, Some(Arc::clone(&address_memory)));
        (MeteredSocket::new(accepted.unwrap().0, queue, linger), reader.unwrap(), address_memory)
    }

    fn queue_bytes(socket: &MeteredSocket<TcpStream>) -> usize {
        send_queue_bytes(socket.socket().unwrap().as_fd(), true).unwrap()
    }

    #[tokio::test]
    async fn an_empty_write_waits_as_long_as_a_large_write() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 0, CONNECTION_DIVISOR));
        let (mut socket, _reader) = pair(&pool).await;
        let mut full = false;
        for _ in 0..200 {
            let allowed = socket.queue.allow(socket.socket().unwrap(), 1 << 20);
            let empty_write = futures_util::poll!(std::future::poll_fn(|context| socket.poll_allowed(context, 0)));
            assert_eq!(allowed == 0, empty_write.is_pending(), "{allowed}");
            full |= allowed == 0;
            if allowed > 0 {
                let written =
                    tokio::time::timeout(Duration::from_millis(5), socket.write(&vec![0; allowed.min(700)])).await;
                assert!(written.is_ok());
            }
        }
        assert!(full);
    }

    #[tokio::test]
    async fn queues_of_clients_that_take_nothing_stay_within_the_pool() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 20, CONNECTION_DIVISOR));
        let mut connections = Vec::new();
        for _ in 0..40 {
            let (mut socket, reader) = pair(&pool).await;
            let data = vec![0; 4 << 20];
            let writing = socket.write_all(&data);
            assert!(tokio::time::timeout(Duration::from_millis(20), writing).await.is_err());
            connections.push((socket, reader));
        }
        let queued: usize = connections.iter().map(|(socket, _)| queue_bytes(socket)).sum();
        assert!(queued <= (1 << 20) + 40 * 2 * UNPOOLED_BYTES, "{queued}");
        assert!(queued > 1 << 18, "{queued}");
    }

    #[tokio::test]
    async fn all_bytes_arrive_with_an_empty_pool() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 0, CONNECTION_DIVISOR));
        let sent: Vec<u8> = (0..100_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        for segments in [None, Some(88), Some(536), Some(999)] {
            let (mut socket, mut reader) = pair(&pool).await;
            let queue = std::mem::replace(&mut socket.queue, SendQueue::new(&pool, None));
            socket.queue = queue.with_segments(segments);
            let mut received = Vec::new();
            let sending = async {
                socket.write_all(&sent).await.unwrap();
                socket.shutdown().await.unwrap();
                drop(socket);
            };
            tokio::join!(sending, async { reader.read_to_end(&mut received).await.unwrap() });
            assert!(received == sent, "{segments:?}");
        }
    }

    #[tokio::test]
    async fn a_partial_packet_is_sent_when_no_more_bytes_may_follow() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 0, CONNECTION_DIVISOR));
        let (socket, _reader) = pair(&pool).await;
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

    #[tokio::test]
    async fn a_connection_returns_its_grant_when_idle_or_at_its_next_request_under_pressure() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 20, CONNECTION_DIVISOR));
        let (mut socket, mut reader, address_memory) = pair_of_address(&pool, oneshot::channel().0).await;
        for is_under_pressure in [false, true] {
            while is_under_pressure && !pool.is_under_pressure() {
                pool.take_up_to(None, 0, 1 << 17);
            }
            for sends_request in [true, false] {
                socket.write_all(&vec![0; 30_000]).await.unwrap();
                reader.read_exact(&mut vec![0; 30_000]).await.unwrap();
                assert!(socket.queue.has_grant());
                if sends_request {
                    reader.write_u8(1).await.unwrap();
                    assert_eq!(socket.read_u8().await.unwrap(), 1);
                    assert_eq!(socket.queue.has_grant(), !is_under_pressure);
                } else {
                    assert!(tokio::time::timeout(RELEASE_DELAY * 2, socket.read_u8()).await.is_err());
                    assert!(!socket.queue.has_grant());
                }
                assert_eq!(address_memory.queued_bytes.load(Ordering::Relaxed) > 0, socket.queue.has_grant());
            }
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_flushed_but_not_read_returns_its_grant() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 20, CONNECTION_DIVISOR));
        let (mut socket, mut reader) = pair(&pool).await;
        socket.write_all(&vec![0; 30_000]).await.unwrap();
        reader.read_exact(&mut vec![0; 30_000]).await.unwrap();
        let drained = std::future::poll_fn(|context| {
            if !socket.queue.has_grant() {
                return Poll::Ready(());
            }
            assert!(Pin::new(&mut socket).poll_flush(context).is_ready());
            Poll::Pending
        });
        assert!(tokio::time::timeout(RELEASE_DELAY * 2, drained).await.is_ok());
    }

    #[tokio::test]
    async fn no_more_is_granted_than_the_kernel_takes() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 30, CONNECTION_DIVISOR));
        let (mut socket, _reader, address_memory) = pair_of_address(&pool, oneshot::channel().0).await;
        let data = vec![0; 16 << 20];
        assert!(tokio::time::timeout(Duration::from_millis(50), socket.write_all(&data)).await.is_err());
        let queued = queue_bytes(&socket);
        let granted = address_memory.queued_bytes.load(Ordering::Relaxed);
        assert!(granted > 0 && granted <= queued, "{granted} for {queued}");
    }

    #[tokio::test]
    async fn an_ended_connection_returns_its_grant_as_its_last_answer_is_taken() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 22, CONNECTION_DIVISOR));
        let (linger_tx, linger) = oneshot::channel();
        let (mut socket, mut reader, address_memory) = pair_of_address(&pool, linger_tx).await;
        let data = vec![0; 1 << 16];
        let mut sent = 0;
        while let Ok(count) = tokio::time::timeout(Duration::from_millis(20), socket.write(&data)).await {
            sent += count.unwrap();
        }
        drop(socket);
        let granted = address_memory.queued_bytes.load(Ordering::Relaxed);
        let mut draining = std::pin::pin!(drain_lingering(linger, false, Duration::from_secs(30)));
        reader.read_exact(&mut vec![0; sent * 3 / 4]).await.unwrap();
        assert!(tokio::time::timeout(DRAIN_BACKOFF[1] * 3, draining.as_mut()).await.is_err());
        let remaining = address_memory.queued_bytes.load(Ordering::Relaxed);
        assert!(remaining > 0 && remaining < granted / 2, "{remaining} of {granted}");
        tokio::join!(draining, async { reader.read_to_end(&mut Vec::new()).await.unwrap() });
        assert_eq!(address_memory.queued_bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_connection_whose_queue_outgrows_its_part_of_the_pool_ends() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 20, CONNECTION_DIVISOR));
        let (mut socket, mut reader) = pair(&pool).await;
        let data = vec![0; 1 << 16];
        while let Ok(count) = tokio::time::timeout(Duration::from_millis(20), socket.write(&data)).await {
            count.unwrap();
        }
        // Other connections take the pool, and the queue is far larger than the grant of the connection.
        drop(std::mem::replace(&mut socket.queue, SendQueue::new(&pool, Some(Arc::default()))));
        let others: Vec<_> = (0..60).map(|_| SendQueue::new(&pool, Some(Arc::default()))).collect();
        for queue in &others {
            queue.grant(0, usize::MAX);
        }
        socket.release_drained();
        assert!(socket.write(&data).await.is_err());
        drop(socket);
        assert!(reader.read_to_end(&mut Vec::new()).await.is_err(), "the client is not told that bytes are missing");
    }

    #[tokio::test]
    async fn an_aborted_connection_is_closed_orderly_only_if_no_bytes_are_queued() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 20, CONNECTION_DIVISOR));
        for (bytes, hangs_up, is_orderly) in [(0, false, true), (1 << 17, false, false), (0, true, true)] {
            let (linger_tx, linger) = oneshot::channel();
            let (mut socket, mut reader, _) = pair_of_address(&pool, linger_tx).await;
            let _ = tokio::time::timeout(Duration::from_millis(20), socket.write_all(&vec![0; bytes])).await;
            if hangs_up {
                reader.shutdown().await.unwrap();
            }
            drop(socket);
            drain_lingering(linger, true, Duration::from_secs(30)).await;
            let result = reader.read_to_end(&mut Vec::new()).await;
            assert_eq!(result.is_ok() && !hangs_up, is_orderly && !hangs_up, "{bytes} {hangs_up} {result:?}");
        }
    }

    #[tokio::test]
    async fn a_closed_connection_is_drained_and_then_reset() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 20, CONNECTION_DIVISOR));
        for (timeout, is_reset) in [(Duration::from_millis(50), true), (Duration::from_secs(30), false)] {
            let (linger_tx, linger) = oneshot::channel();
            let (mut socket, mut reader, _) = pair_of_address(&pool, linger_tx).await;
            let data = vec![0; 1 << 16];
            let mut sent = 0;
            while let Ok(count) = tokio::time::timeout(Duration::from_millis(20), socket.write(&data)).await {
                sent += count.unwrap();
            }
            drop(socket);
            let mut received = Vec::new();
            if is_reset {
                drain_lingering(linger, false, timeout).await;
                assert!(reader.read_to_end(&mut received).await.is_err());
            } else {
                let reading = async { reader.read_to_end(&mut received).await.unwrap() };
                tokio::join!(
                    async {
                        drain_lingering(linger, false, timeout).await;
                    },
                    reading
                );
                assert_eq!(received.len(), sent);
            }
        }
    }
}
