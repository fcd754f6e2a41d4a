//! The client with its pool of connections.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{HeaderValue, PROXY_AUTHORIZATION, USER_AGENT};
use axum::http::uri::Scheme;
use axum::http::{Request, Response};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::connector::Connector;
use super::tls;

/// Time limit for a TCP connection to be made, over all addresses of a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which an idle connection is closed. Servers often close theirs after 20 to 60 seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum memory of a connection for bytes that have been received and not been read yet.
const MAX_READ_BUFFER_BYTES: usize = 64 << 10;

/// Name of this program in requests.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("n5-server/", env!("CARGO_PKG_VERSION")));

/// Options of an [`HttpClient`].
#[derive(Debug, Clone, Default)]
pub struct HttpClientOptions {
    /// Certificates that are trusted instead of the built-in ones, as PEM.
    pub roots: Option<String>,
    /// True if `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` are used.
    pub uses_proxy: bool,
    /// True if addresses on the local link may be connected to.
    pub allows_link_local: bool,
    /// True if URLs must have the scheme `https`.
    pub is_https_only: bool,
    /// Maximum number of idle connections to a host that are kept.
    pub max_idle_connections: usize,
}

/// A client with its pool of connections. Clones share the pool.
#[derive(Clone)]
pub struct HttpClient {
    client: Client<HttpsConnector<Connector>, Full<Bytes>>,
    proxies: Option<Arc<Matcher>>,
    is_https_only: bool,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("is_https_only", &self.is_https_only).finish_non_exhaustive()
    }
}

/// Reason why a request got no response. The text contains neither URLs nor header fields.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct HttpClientError {
    /// The text.
    reason: String,
    /// True if no connection could be made, so that the server cannot have seen the request.
    pub is_connect: bool,
}

impl HttpClientError {
    fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_connect: false }
    }
}

impl HttpClient {
    /// Creates a client without connections.
    ///
    /// # Errors
    /// Returns a message if the certificates cannot be used.
    pub fn new(options: &HttpClientOptions) -> Result<Self, String> {
        let tls = tls::client_config(options.roots.as_deref())?;
        let proxies = options.uses_proxy.then(|| Arc::new(Matcher::from_env()));
        let connector = Connector::new(proxies.clone(), options.allows_link_local, CONNECT_TIMEOUT);
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        let builder = if options.is_https_only { builder.https_only() } else { builder.https_or_http() };
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(options.max_idle_connections)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(MAX_READ_BUFFER_BYTES)
            .build(builder.enable_http1().wrap_connector(connector));
        Ok(Self { client, proxies, is_https_only: options.is_https_only })
    }

    /// Sends a request, and returns as soon as the head of the response is there. Sets no time limit except for the
    /// connection.
    ///
    /// # Errors
    /// Returns an error if there is no response. A response with any status is not an error.
    pub async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, HttpClientError> {
        let scheme = request.uri().scheme().cloned();
        if self.is_https_only && scheme != Some(Scheme::HTTPS) {
            return Err(HttpClientError::new("only https is allowed"));
        }
        request.headers_mut().entry(USER_AGENT).or_insert(AGENT);
        if scheme == Some(Scheme::HTTP) {
            // Without TLS, the proxy gets its password with the request; otherwise with the request for a tunnel.
            let proxy = self.proxies.as_ref().and_then(|proxies| proxies.intercept(request.uri()));
            if let Some(password) = proxy.as_ref().and_then(|proxy| proxy.basic_auth()) {
                request.headers_mut().insert(PROXY_AUTHORIZATION, password.clone());
            }
        }
        let result = self.client.request(request).await;
        result.map_err(|error| HttpClientError { reason: describe_error(&error), is_connect: error.is_connect() })
    }
}

/// Returns the texts of an error and of its causes, without repetitions.
pub fn describe_error(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(url: &str) -> Request<Full<Bytes>> {
        Request::get(url).body(Full::default()).unwrap()
    }

    #[tokio::test]
    async fn addresses_on_the_local_link_are_refused() {
        let client = HttpClient::new(&HttpClientOptions::default()).unwrap();
        for url in ["http://169.254.169.254/latest", "http://[fe80::1]/", "http://[::ffff:169.254.169.254]/"] {
            let error = client.send(get(url)).await.unwrap_err();
            assert!(error.to_string().contains("local link"), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn plain_http_is_refused_if_only_https_is_allowed() {
        let options = HttpClientOptions { is_https_only: true, ..HttpClientOptions::default() };
        let error = HttpClient::new(&options).unwrap().send(get("http://127.0.0.1:1/")).await.unwrap_err();
        assert_eq!(error.to_string(), "only https is allowed");
    }

    #[tokio::test]
    async fn an_error_says_whether_the_server_can_have_seen_the_request() {
        let client = HttpClient::new(&HttpClientOptions::default()).unwrap();
        // No server listens on this port.
        let error = client.send(get("http://127.0.0.1:1/secret?sig=abc")).await.unwrap_err();
        assert!(error.is_connect && error.to_string().contains("refused"), "{error}");
        assert!(!error.to_string().contains("abc") && !error.to_string().contains("secret"), "{error}");
    }
}
