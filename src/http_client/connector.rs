//! Connections of the HTTP client: directly, or through a proxy that the environment names.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Uri;
use axum::http::uri::Scheme;
use futures_util::future::BoxFuture;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

use super::resolver::{CheckedResolver, is_link_local, is_loopback_host, link_local_error};

/// Proxies that the environment names.
#[derive(Debug, Clone)]
pub(super) struct Proxies(Arc<Matcher>);

impl Proxies {
    pub(super) fn new(matcher: Matcher) -> Self {
        Self(Arc::new(matcher))
    }

    /// Returns the proxy for a URL. There is none for this machine: a proxy could not reach it, and would read the
    /// credentials of requests that need no encryption because they do not leave the machine.
    pub(super) fn find(&self, url: &Uri) -> Option<Intercept> {
        if is_loopback_host(url.host()?) { None } else { self.0.intercept(url) }
    }
}

/// Makes TCP connections for URLs of either scheme.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    tcp: HttpConnector<CheckedResolver>,
    proxies: Option<Proxies>,
    allows_link_local: bool,
}

impl Connector {
    pub(super) fn new(proxies: Option<Proxies>, allows_link_local: bool, timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new_with_resolver(CheckedResolver { allows_link_local });
        // TLS is added to the connections for https.
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(timeout));
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(Duration::from_secs(30)));
        Self { tcp, proxies, allows_link_local }
    }

    /// Returns an error if the host of a URL is an address on the local link. Names are checked after they have been
    /// resolved.
    fn check_host(&self, url: &Uri) -> io::Result<()> {
        let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        match host.parse::<IpAddr>() {
            Ok(address) if !self.allows_link_local && is_link_local(address) => Err(link_local_error(host)),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TcpConnection;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<TcpConnection, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let proxy = self.proxies.as_ref().and_then(|proxies| proxies.find(&url));
        let checked = self.check_host(&url);
        let mut tcp = self.tcp.clone();
        Box::pin(async move {
            checked?;
            let Some(proxy) = proxy else { return Ok(TcpConnection { io: tcp.call(url).await?, is_proxied: false }) };
            if proxy.uri().scheme() != Some(&Scheme::HTTP) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the proxy in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY has an unsupported scheme; only http:// is \
                     supported",
                )
                .into());
            }
            if url.scheme() == Some(&Scheme::HTTPS) {
                let tunnel = Tunnel::new(proxy.uri().clone(), tcp);
                let mut tunnel = match proxy.basic_auth() {
                    Some(password) => tunnel.with_auth(password.clone()),
                    None => tunnel,
                };
                return Ok(TcpConnection { io: tunnel.call(url).await?, is_proxied: false });
            }
            Ok(TcpConnection { io: tcp.call(proxy.uri().clone()).await?, is_proxied: true })
        })
    }
}

/// A TCP connection to a server or to a proxy.
#[derive(Debug)]
pub(super) struct TcpConnection {
    io: TokioIo<TcpStream>,
    /// True if a proxy reads the requests, so that they must contain the whole URL.
    is_proxied: bool,
}

impl Connection for TcpConnection {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.is_proxied)
    }
}

impl Read for TcpConnection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(context, buffer)
    }
}

impl Write for TcpConnection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(context, slices)
    }
}
