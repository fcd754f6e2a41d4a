//! The listening socket, and the accepting of connections.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::connections::ConnectionServer;
use crate::config::ListenAddress;
use crate::runtime::off_thread::off_thread;
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics;

/// Maximum number of connections that wait to be accepted. The system has a limit of its own (`net.core.somaxconn`).
/// Clients beyond the limit retry after a second. The runtime's default of 128 is too low: more connections arrive at
/// once when a viewer's proxy restarts.
const ACCEPT_BACKLOG: i32 = 2048;

/// Size of a receive buffer in bytes. The kernel doubles it for the overhead of its packets (socket(7), `SO_RCVBUF`).
const RECEIVE_BUFFER_BYTES: usize = 4 << 10;

/// Time limit for checking or removing the file of a Unix socket.
const SOCKET_FILE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit at shutdown for accepting the connections that wait, in case there are not enough slots or
/// file descriptors.
const BACKLOG_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// First port that a process without privileges can bind (ip(7)), unless the system is configured otherwise.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Binds the address.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound.
    pub(crate) async fn bind(listen: &ListenAddress) -> anyhow::Result<Self> {
        match listen {
            ListenAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await.and_then(|listener| {
                    // Accepted sockets inherit this size. Requests are short, and unread data takes kernel memory.
                    sockopt::set_socket_recv_buffer_size(&listener, RECEIVE_BUFFER_BYTES)?;
                    rustix::net::listen(&listener, ACCEPT_BACKLOG)?;
                    Ok(Self::Tcp(listener))
                });
                listener.map_err(|error| bind_error(*address, error))
            }
            ListenAddress::Unix(path) => {
                let stale_path = path.clone();
                off_thread(SOCKET_FILE_TIMEOUT, move || {
                    remove_stale(&stale_path);
                    Ok(())
                })
                .await?;
                let listener = UnixListener::bind(path).and_then(|listener| {
                    rustix::net::listen(&listener, ACCEPT_BACKLOG)?;
                    Ok(Self::Unix(listener, path.clone()))
                });
                listener.with_context(|| format!("cannot listen on unix:{}", path.display()))
            }
        }
    }

    /// Returns the bound address, including the port that the system picked; `None` for a Unix socket.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    /// Returns the path of a Unix socket; `None` for TCP.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(_, path) => Some(path),
        }
    }

    /// Accepts connections and passes them to `connections`, which serves them. Never returns.
    pub(crate) async fn serve(&self, connections: &ConnectionServer) -> Infallible {
        loop {
            let slot = connections.acquire_slot().await;
            match self {
                Self::Tcp(listener) => {
                    match listener.accept().await.and_then(|(tcp, peer)| Ok((tcp.into_std()?, peer))) {
                        Ok((stream, peer)) => serve_tcp(connections, stream, peer, slot),
                        Err(error) => accept_failed(&error).await,
                    }
                }
                Self::Unix(listener, _) => match listener.accept().await.and_then(|(unix, _)| unix.into_std()) {
                    Ok(stream) => connections.serve_unix(|| UnixStream::from_std(stream), slot),
                    Err(error) => accept_failed(&error).await,
                },
            }
        }
    }

    /// Stops listening. Still serves the connections that the system has accepted so far, because their clients do not
    /// know that the server shuts down.
    pub(crate) async fn close(self, connections: &ConnectionServer) {
        // The runtime accepts only connections that the system has reported to it. A `std` socket asks the system
        // directly.
        match self {
            Self::Tcp(listener) => {
                let Ok(listener) = listener.into_std() else { return };
                let accept = || {
                    let (stream, peer) = listener.accept()?;
                    stream.set_nonblocking(true).map(|()| (stream, peer))
                };
                drain_backlog(connections, accept, |(stream, peer), slot| serve_tcp(connections, stream, peer, slot))
                    .await;
            }
            Self::Unix(listener, path) => {
                let result = off_thread(SOCKET_FILE_TIMEOUT, move || Ok(std::fs::remove_file(path)?)).await;
                drop(result.inspect_err(|error| tracing::debug!(%error, "the socket's file could not be removed")));
                let Ok(listener) = listener.into_std() else { return };
                let accept = || {
                    let (stream, _) = listener.accept()?;
                    stream.set_nonblocking(true).map(|()| stream)
                };
                let serve = |stream, slot| connections.serve_unix(|| UnixStream::from_std(stream), slot);
                drain_backlog(connections, accept, serve).await;
            }
        }
    }
}

/// Serves all connections that `accept` returns before it would block. Stops after [`BACKLOG_DRAIN_TIMEOUT`].
async fn drain_backlog<S>(
    connections: &ConnectionServer,
    accept: impl Fn() -> io::Result<S>,
    serve: impl Fn(S, Option<OwnedSemaphorePermit>),
) {
    let deadline = Instant::now() + BACKLOG_DRAIN_TIMEOUT;
    while Instant::now() < deadline {
        match accept() {
            Ok(stream) => {
                let Ok(slot) = tokio::time::timeout_at(deadline, connections.acquire_slot()).await else { return };
                serve(stream, slot);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => accept_failed(&error).await,
        }
    }
}

fn serve_tcp(
    connections: &ConnectionServer,
    stream: std::net::TcpStream,
    peer: SocketAddr,
    slot: Option<OwnedSemaphorePermit>,
) {
    // A small response must not wait for the acknowledgement of the previous one.
    let _ = stream.set_nodelay(true);
    connections.serve_tcp(|| TcpStream::from_std(stream), peer.ip().to_canonical(), slot);
}

/// Counts and logs a connection that could not be accepted, for example because the process has run out of file
/// descriptors or the client has disconnected. Then pauses before the next connection is accepted.
async fn accept_failed(error: &io::Error) {
    static REFUSED: LogThrottle = LogThrottle::new();
    metrics::accept_error();
    if let Some(suppressed) = REFUSED.allow() {
        tracing::warn!(%error, suppressed, "connection not accepted");
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Returns the error that `address` cannot be bound because of `error`: what is wrong, and what to do.
fn bind_error(address: SocketAddr, error: io::Error) -> anyhow::Error {
    let ip = if address.is_ipv6() { format!("[{}]", address.ip()) } else { address.ip().to_string() };
    let kind = error.kind();
    let advice = if kind == io::ErrorKind::AddrInUse {
        let next_port = address.port().checked_add(1).filter(|port| *port > FIRST_UNPRIVILEGED_PORT).unwrap_or(8081);
        let options = if address.ip() == Ipv4Addr::LOCALHOST {
            format!("--port {next_port}, or --port 0 for any free port")
        } else {
            format!("--listen {ip}:{next_port}, or --listen {ip}:0 for any free port")
        };
        format!("another program, perhaps another n5-server, listens there; end it, or give another port: {options}")
    } else if kind == io::ErrorKind::PermissionDenied && address.port() < FIRST_UNPRIVILEGED_PORT {
        format!(
            "ports below {FIRST_UNPRIVILEGED_PORT} need a privilege (CAP_NET_BIND_SERVICE); give a higher port: \
             --listen {ip}:8080"
        )
    } else if kind == io::ErrorKind::AddrNotAvailable {
        format!(
            "{} is not an address of this machine; give one of its addresses, 127.0.0.1 for this machine alone, or \
             0.0.0.0 for all its addresses: --listen 0.0.0.0:{}",
            address.ip(),
            address.port()
        )
    } else {
        return anyhow::Error::new(error).context(format!("cannot listen on {address}"));
    };
    anyhow!("cannot listen on {address}: {advice}")
}

/// Removes the file of a Unix socket if no process listens on it, for example because the server was killed.
fn remove_stale(path: &Path) {
    #[expect(clippy::disallowed_methods, reason = "not a file of a container")]
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_in_use_is_named_with_a_free_choice() {
        let taken = Listener::bind(&ListenAddress::Tcp("127.0.0.1:0".parse().unwrap())).await.unwrap();
        let address = taken.address().unwrap();
        let error = format!("{:#}", Listener::bind(&ListenAddress::Tcp(address)).await.unwrap_err());
        assert!(error.starts_with(&format!("cannot listen on {address}: another program")), "{error}");
        assert!(error.contains("--port 0 for any free port"), "{error}");
    }

    #[test]
    fn every_common_failure_says_what_to_do() {
        use io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
        for (address, kind, advice) in [
            ("127.0.0.1:8080", AddrInUse, "--port 8081, or --port 0 "),
            ("127.0.0.1:80", AddrInUse, "--port 8081, "),
            ("127.0.0.1:65535", AddrInUse, "--port 8081, "),
            ("0.0.0.0:9000", AddrInUse, "--listen 0.0.0.0:9001, or --listen 0.0.0.0:0 "),
            ("[::]:9000", AddrInUse, "--listen [::]:9001, "),
            ("0.0.0.0:80", PermissionDenied, "give a higher port: --listen 0.0.0.0:8080"),
            ("192.0.2.7:8080", AddrNotAvailable, "192.0.2.7 is not an address of this machine"),
        ] {
            let error = format!("{:#}", bind_error(address.parse().unwrap(), kind.into()));
            assert!(error.starts_with(&format!("cannot listen on {address}: ")) && error.contains(advice), "{error}");
        }
        let other = format!("{:#}", bind_error("127.0.0.1:8080".parse().unwrap(), PermissionDenied.into()));
        assert_eq!(other, "cannot listen on 127.0.0.1:8080: permission denied");
    }
}
