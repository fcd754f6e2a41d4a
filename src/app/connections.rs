//! Serving one connection: HTTP/1.1 or HTTP/2, with bounds on what it may cost.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use super::lane::Lane;
use super::signals::{Signals, Unsent};
use super::socket::{Socket, Watched};
use super::workers::Workers;
use crate::config::Config;
use crate::http::{self, App};

/// Longest request head, in bytes: the longest path there can be (64 KiB) and its headers fit, and connections that
/// send no more than a head stay cheap.
pub(super) const HEADER_BYTES: usize = 96 << 10;

/// HTTP/2 streams of one connection; viewers ask for 100 blocks at once.
const STREAMS: u32 = 256;

/// What every connection is served with.
pub(super) struct Connections {
    http: Builder<TokioExecutor>,
    header_timeout: Duration,
    send_timeout: Duration,
    closing: watch::Sender<bool>,
    slots: Arc<Semaphore>,
    unsent: Arc<AtomicUsize>,
    workers: Workers,
    app: Arc<App>,
    router: Router,
}

impl Connections {
    /// Serves `app` as `config` says, by `workers`.
    pub(super) fn new(config: &Config, app: Arc<App>, workers: Workers) -> Self {
        Self {
            workers,
            router: http::router(Arc::clone(&app)),
            app,
            http: builder(config),
            header_timeout: config.server.header_timeout,
            send_timeout: config.server.send_timeout,
            closing: watch::Sender::new(false),
            unsent: Arc::default(),
            slots: Arc::new(Semaphore::new(config.server.max_connections.clamp(1, Semaphore::MAX_PERMITS))),
        }
    }

    /// How many connections have an answer of the library that has not been sent to the end.
    pub(super) fn unsent(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.unsent)
    }

    /// Begins no further request, and is ready when those that have begun are answered.
    pub(super) async fn finished(self) {
        self.closing.send_replace(true);
        self.closing.closed().await;
    }

    pub(super) async fn slot(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }

    /// Serves one connection, which `open` makes in the thread that will serve it.
    pub(super) fn serve<S>(
        &self,
        open: impl FnOnce() -> io::Result<S> + Send + 'static,
        peer: Option<IpAddr>,
        slot: Option<tokio::sync::OwnedSemaphorePermit>,
    ) where
        S: Watched,
    {
        let (header_timeout, send_timeout) = (self.header_timeout, self.send_timeout);
        let (http, app, router) = (self.http.clone(), Arc::clone(&self.app), self.router.clone());
        let (mut closing, unsent) = (self.closing.subscribe(), Unsent::new(&self.unsent));
        self.workers.spawn(async move {
            let _slot = slot;
            let mut stream = match open() {
                Ok(stream) => TimeoutStream::new(stream),
                Err(error) => return tracing::warn!(%error, "connection not served"),
            };
            stream.set_write_timeout(Some(send_timeout));
            let signals = Signals::default();
            let mut lane = Lane::new(Box::pin(stream), app, peer, signals.clone(), unsent, header_timeout);
            // The library comes with the first request that it has to answer: its state is larger than the lane's, and
            // being polled through it takes longer than the lane needs to answer.
            let handing = tokio::select! {
                biased;
                handing = poll_fn(|context| lane.poll_between(context)) => handing,
                () = is_set(&mut closing) => {
                    signals.close();
                    poll_fn(|context| lane.poll_between(context)).await
                }
            };
            let ended = match handing {
                // In memory of its own, which most connections never need.
                Ok(true) => Box::pin(answer(&http, lane, router, peer, signals, closing)).await,
                Ok(false) => lane.shutdown().await.map_err(Into::into),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = ended {
                tracing::debug!(error, "connection ended");
            }
        });
    }
}

/// Serves the rest of a connection, from the first request on that the library answers.
async fn answer<S: Socket + 'static>(
    http: &Builder<TokioExecutor>,
    lane: Lane<S>,
    router: Router,
    peer: Option<IpAddr>,
    signals: Signals,
    mut closing: watch::Receiver<bool>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let told = signals.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let answered = Answered::begin(&signals);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = router.clone().oneshot(request);
        async move { answer.await.map(|response| response.map(|body| Sent { body, _answered: answered })) }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(lane), service));
    tokio::select! {
        // First: a library that is asked to end before it has seen a request would never see it.
        biased;
        ended = connection.as_mut() => ended,
        () = is_set(&mut closing) => {
            told.close();
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

/// Waits until the flag is set, or its sender is gone.
async fn is_set(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}

/// Tells the lane, when dropped, that the library has an answer whole or will never have it.
struct Answered(Signals);

impl Answered {
    fn begin(signals: &Signals) -> Self {
        signals.begin();
        Self(signals.clone())
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A body that lives until the library has taken all of it.
struct Sent {
    body: Body,
    _answered: Answered,
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn builder(config: &Config) -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    // The lane sees to it that heads come in time.
    http.http1().header_read_timeout(None).max_buf_size(HEADER_BYTES);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(Some(config.server.header_timeout))
        .keep_alive_timeout(config.server.header_timeout);
    http
}
