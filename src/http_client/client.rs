//! The client with its pool of connections.

use std::error::Error;
use std::fmt;
use std::io;
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
use tokio_rustls::rustls;

use super::connector::{Connector, Proxies};
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
    /// True if `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` are used, except for this machine.
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
    proxies: Option<Proxies>,
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
    /// True if another attempt would fail, too, because this client refuses the address or the certificate.
    pub is_permanent: bool,
}

impl HttpClientError {
    /// Creates the error for a request that is not sent.
    fn refused(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_connect: false, is_permanent: true }
    }
}

impl HttpClient {
    /// Creates a client without connections.
    ///
    /// # Errors
    /// Returns a message if the certificates cannot be used.
    pub fn new(options: &HttpClientOptions) -> Result<Self, String> {
        Self::with_proxies(options, options.uses_proxy.then(|| Proxies::new(Matcher::from_env())))
    }

    fn with_proxies(options: &HttpClientOptions, proxies: Option<Proxies>) -> Result<Self, String> {
        let tls = tls::client_config(options.roots.as_deref())?;
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
            return Err(HttpClientError::refused("only https is allowed"));
        }
        request.headers_mut().entry(USER_AGENT).or_insert(AGENT);
        if scheme == Some(Scheme::HTTP) {
            // Without TLS, the proxy gets its password with the request; otherwise with the request for a tunnel.
            let proxy = self.proxies.as_ref().and_then(|proxies| proxies.find(request.uri()));
            if let Some(password) = proxy.as_ref().and_then(|proxy| proxy.basic_auth()) {
                request.headers_mut().insert(PROXY_AUTHORIZATION, password.clone());
            }
        }
        let result = self.client.request(request).await;
        result.map_err(|error| HttpClientError {
            reason: describe_error(&error),
            is_connect: error.is_connect(),
            is_permanent: is_permanent(&error),
        })
    }
}

/// Returns true if the cause of an error is a refusal by the connector, or a certificate that is not trusted.
fn is_permanent(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        cause = match error.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == io::ErrorKind::InvalidInput => return true,
            // The source of an I/O error is that of the error inside it.
            Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    false
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
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn get(url: &str) -> Request<Full<Bytes>> {
        Request::get(url).body(Full::default()).unwrap()
    }

    #[tokio::test]
    async fn addresses_on_the_local_link_are_refused() {
        let client = HttpClient::new(&HttpClientOptions::default()).unwrap();
        for url in ["http://169.254.169.254/latest", "http://[fe80::1]/", "http://[::ffff:169.254.169.254]/"] {
            let error = client.send(get(url)).await.unwrap_err();
            assert!(error.to_string().contains("local link") && error.is_permanent, "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn plain_http_is_refused_if_only_https_is_allowed() {
        let options = HttpClientOptions { is_https_only: true, ..HttpClientOptions::default() };
        let error = HttpClient::new(&options).unwrap().send(get("http://127.0.0.1:1/")).await.unwrap_err();
        assert_eq!(error.to_string(), "only https is allowed");
    }

    #[tokio::test]
    async fn requests_to_this_machine_and_their_credentials_never_go_through_a_proxy() {
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let matcher = Matcher::builder().all(format!("http://user:canary@{}", proxy.local_addr().unwrap())).build();
        let client = HttpClient::with_proxies(&HttpClientOptions::default(), Some(Proxies::new(matcher))).unwrap();
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        for host in ["127.0.0.1", "localhost"] {
            let receive = async {
                let (mut socket, _) = tokio::select! {
                    accepted = server.accept() => accepted.unwrap(),
                    _ = proxy.accept() => panic!("{host}: the proxy was asked"),
                };
                let mut head = vec![0; 4096];
                let bytes = socket.read(&mut head).await.unwrap();
                socket.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await.unwrap();
                String::from_utf8(head[..bytes].to_vec()).unwrap().to_ascii_lowercase()
            };
            let (response, head) = tokio::join!(client.send(get(&format!("http://{host}:{port}/a"))), receive);
            assert_eq!(response.unwrap().status(), 204);
            assert!(head.starts_with("get /a ") && !head.contains("proxy-authorization"), "{head}");
        }
        // Other hosts are requested through the proxy.
        let receive = async {
            let (mut socket, _) = proxy.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let bytes = socket.read(&mut head).await.unwrap();
            socket.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await.unwrap();
            String::from_utf8(head[..bytes].to_vec()).unwrap().to_ascii_lowercase()
        };
        let (response, head) = tokio::join!(client.send(get("http://store.example/a")), receive);
        assert_eq!(response.unwrap().status(), 204);
        assert!(head.starts_with("get http://store.example/a ") && head.contains("proxy-authorization"), "{head}");
    }

    #[tokio::test]
    async fn a_certificate_that_is_not_trusted_is_a_permanent_failure() {
        let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let private_key = rustls::pki_types::PrivateKeyDer::try_from(identity.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![identity.cert.der().clone()], private_key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        let accept = async {
            let (socket, _) = listener.accept().await.unwrap();
            let _ = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(socket).await;
        };
        let client = HttpClient::new(&HttpClientOptions::default()).unwrap();
        let (response, ()) = tokio::join!(client.send(get(&url)), accept);
        let error = response.unwrap_err();
        assert!(error.is_permanent && error.to_string().contains("certificate"), "{error}");
    }

    #[tokio::test]
    async fn an_error_says_whether_the_server_can_have_seen_the_request() {
        let client = HttpClient::new(&HttpClientOptions::default()).unwrap();
        // No server listens on this port.
        let error = client.send(get("http://127.0.0.1:1/secret?sig=abc")).await.unwrap_err();
        assert!(error.is_connect && !error.is_permanent && error.to_string().contains("refused"), "{error}");
        assert!(!error.to_string().contains("abc") && !error.to_string().contains("secret"), "{error}");
    }
}
