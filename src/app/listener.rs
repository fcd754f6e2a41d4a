//! Where connections come from: an address that is listened on.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::bounded::off_thread;
use super::connections::Connections;
use crate::config::Listen;
use crate::metrics;
use crate::seldom::Seldom;

/// Connections that may wait to be accepted; the system has a limit of its own (`net.core.somaxconn`). Beyond it clients try
/// again after a second, and 128, as the runtime has it, come in a moment where a viewer's proxy begins anew.
const WAITING: i32 = 2048;

/// Size of a receive buffer; the kernel doubles it, for what its packets take besides (socket(7), `SO_RCVBUF`).
const RECEIVE_BYTES: usize = 4 << 10;

/// Longest time to look at a socket's file, or to remove it.
const FILE: Duration = Duration::from_secs(2);

/// Longest time to let in those who wait to be accepted when the server ends, where slots or descriptors are short.
const REST: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Takes the address.
    ///
    /// # Errors
    /// When it cannot be had.
    pub(super) async fn bind(listen: &Listen) -> anyhow::Result<Self> {
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await.and_then(|listener| {
                    // Accepted sockets inherit it. Requests are short, and what is not read yet takes kernel memory.
                    sockopt::set_socket_recv_buffer_size(&listener, RECEIVE_BYTES)?;
                    rustix::net::listen(&listener, WAITING)?;
                    Ok(Self::Tcp(listener))
                });
                listener.with_context(|| format!("cannot listen on {address}"))
            }
            Listen::Unix(path) => {
                let stale = path.clone();
                off_thread(FILE, move || {
                    remove_stale(&stale);
                    Ok(())
                })
                .await?;
                let listener = UnixListener::bind(path).and_then(|listener| {
                    rustix::net::listen(&listener, WAITING)?;
                    Ok(Self::Unix(listener, path.clone()))
                });
                listener.with_context(|| format!("cannot listen on unix:{}", path.display()))
            }
        }
    }

    /// The address in use, with the port that was picked; none where it is a path.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    /// The path, where it is one.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(_, path) => Some(path),
        }
    }

    /// Has whoever comes served by `connections`.
    pub(super) async fn serve(&self, connections: &Connections) -> Infallible {
        loop {
            let slot = connections.slot().await;
            match self {
                Self::Tcp(listener) => {
                    match listener.accept().await.and_then(|(tcp, peer)| Ok((tcp.into_std()?, peer))) {
                        Ok((stream, peer)) => serve_tcp(connections, stream, peer, slot),
                        Err(error) => refused(&error).await,
                    }
                }
                Self::Unix(listener, _) => match listener.accept().await.and_then(|(unix, _)| unix.into_std()) {
                    Ok(stream) => connections.serve(|| UnixStream::from_std(stream), None, slot),
                    Err(error) => refused(&error).await,
                },
            }
        }
    }

    /// Listens no more. Whoever has been let in by the system until then is served: it does not know that the server ends.
    pub(super) async fn close(self, connections: &Connections) {
        // Asked of the system itself: the runtime knows only what it has heard of.
        match self {
            Self::Tcp(listener) => {
                let Ok(listener) = listener.into_std() else { return };
                let accept = || {
                    let (stream, peer) = listener.accept()?;
                    stream.set_nonblocking(true).map(|()| (stream, peer))
                };
                rest(connections, accept, |(stream, peer), slot| serve_tcp(connections, stream, peer, slot)).await;
            }
            Self::Unix(listener, path) => {
                let removed = off_thread(FILE, move || Ok(std::fs::remove_file(path)?)).await;
                drop(removed.inspect_err(|error| tracing::debug!(%error, "the socket's file is left")));
                let Ok(listener) = listener.into_std() else { return };
                let accept = || {
                    let (stream, _) = listener.accept()?;
                    stream.set_nonblocking(true).map(|()| stream)
                };
                let serve = |stream, slot| connections.serve(|| UnixStream::from_std(stream), None, slot);
                rest(connections, accept, serve).await;
            }
        }
    }
}

/// Has all served that `accept` gives before it would wait, for [`REST`] at most.
async fn rest<S>(
    connections: &Connections,
    accept: impl Fn() -> io::Result<S>,
    serve: impl Fn(S, Option<OwnedSemaphorePermit>),
) {
    let until = Instant::now() + REST;
    while Instant::now() < until {
        match accept() {
            Ok(stream) => {
                let Ok(slot) = tokio::time::timeout_at(until, connections.slot()).await else { return };
                serve(stream, slot);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => refused(&error).await,
        }
    }
}

fn serve_tcp(
    connections: &Connections,
    stream: std::net::TcpStream,
    peer: SocketAddr,
    slot: Option<OwnedSemaphorePermit>,
) {
    // Small answers must not wait for an acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    connections.serve_tcp(|| TcpStream::from_std(stream), peer.ip().to_canonical(), slot);
}

/// A connection that could not be accepted: out of descriptors, or gone already. Never the end.
async fn refused(error: &io::Error) {
    static REFUSED: Seldom = Seldom::new();
    metrics::accept_error();
    if let Some(unsaid) = REFUSED.may_say() {
        tracing::warn!(%error, unsaid, "connection not accepted");
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Removes a socket that nobody listens on any more, as a process leaves it that was killed.
fn remove_stale(path: &Path) {
    #[expect(clippy::disallowed_methods, reason = "it is no file of a container")]
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
}
