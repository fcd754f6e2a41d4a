//! Serving one connection: HTTP/1.1 or HTTP/2, with bounds on what it may cost.

use std::future::Future;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use crate::config::Config;

/// Longest request head, in bytes: the longest path there can be (64 KiB) and its headers fit, and connections that
/// send no more than a head stay cheap.
const HEADER_BYTES: usize = 96 << 10;

/// HTTP/2 streams of one connection; viewers ask for 100 blocks at once.
const STREAMS: u32 = 256;

/// What every connection is served with.
pub(super) struct Connections {
    http: Builder<TokioExecutor>,
    header_timeout: Duration,
    send_timeout: Duration,
    graceful: GracefulShutdown,
    slots: Arc<Semaphore>,
    router: Router,
}

impl Connections {
    /// Serves `router` as `config` says.
    pub(super) fn new(config: &Config, router: Router) -> Self {
        Self {
            http: builder(config),
            header_timeout: config.server.header_timeout,
            send_timeout: config.server.send_timeout,
            graceful: GracefulShutdown::new(),
            slots: Arc::new(Semaphore::new(config.server.max_connections.clamp(1, Semaphore::MAX_PERMITS))),
            router,
        }
    }

    /// Begins no further request, and is ready when those that have begun are answered.
    pub(super) async fn finished(self) {
        self.graceful.shutdown().await;
    }

    pub(super) async fn slot(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }

    pub(super) fn serve<S>(&self, stream: S, peer: Option<IpAddr>, slot: Option<tokio::sync::OwnedSemaphorePermit>)
    where
        S: AsyncRead + AsyncWrite + Readable + Send + Sync + 'static,
    {
        let (router, http, watcher) = (self.router.clone(), self.http.clone(), self.graceful.watcher());
        let (header_timeout, send_timeout) = (self.header_timeout, self.send_timeout);
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            router.clone().oneshot(request)
        });
        tokio::spawn(async move {
            let _slot = slot;
            // The HTTP library's own clock starts with the first byte.
            if !matches!(tokio::time::timeout(header_timeout, stream.first_byte()).await, Ok(Ok(()))) {
                return;
            }
            let mut stream = TimeoutStream::new(stream);
            stream.set_write_timeout(Some(send_timeout));
            let connection = http.serve_connection(TokioIo::new(Box::pin(stream)), service);
            if let Err(error) = watcher.watch(connection).await {
                tracing::debug!(error, "connection ended");
            }
        });
    }
}

/// A stream that tells when its first byte has come, or its end.
pub(super) trait Readable {
    fn first_byte(&self) -> impl Future<Output = std::io::Result<()>> + Send;
}

/// Looks without taking: readiness alone may be a false alarm.
fn peek(stream: impl AsFd) -> std::io::Result<()> {
    rustix::net::recv(stream, &mut [0u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    Ok(())
}

macro_rules! readable {
    ($stream:ty) => {
        impl Readable for $stream {
            async fn first_byte(&self) -> std::io::Result<()> {
                loop {
                    self.readable().await?;
                    match self.try_io(Interest::READABLE, || peek(self)) {
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        result => return result,
                    }
                }
            }
        }
    };
}

readable!(TcpStream);
readable!(UnixStream);

fn builder(config: &Config) -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(config.server.header_timeout).max_buf_size(HEADER_BYTES);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(Some(config.server.header_timeout))
        .keep_alive_timeout(config.server.header_timeout);
    http
}
