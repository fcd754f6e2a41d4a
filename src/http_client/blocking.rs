//! The HTTP client for threads of their own, which wait for a response.

use std::io;
use std::time::{Duration, Instant};

use axum::http::header::LOCATION;
use axum::http::{Request, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use tokio::runtime::{Builder, Runtime};
use url::Url;

use super::client::{HttpClient, HttpClientOptions, describe_error};

/// An [`HttpClient`] with the runtime of one thread.
#[derive(Debug)]
pub struct BlockingHttpClient {
    /// Is taken only when this is dropped.
    runtime: Option<Runtime>,
    client: HttpClient,
    timeout: Duration,
}

impl BlockingHttpClient {
    /// Creates a client whose requests end within `timeout`.
    ///
    /// # Errors
    /// Returns a message if the certificates cannot be used, or if the system has no more descriptors.
    pub fn new(options: &HttpClientOptions, timeout: Duration) -> Result<Self, String> {
        let client = HttpClient::new(options)?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error: io::Error| format!("cannot start an event loop: {error}"))?;
        Ok(Self { runtime: Some(runtime), client, timeout })
    }

    /// Sends a request and returns the status and the body of the response. Waits for the response. Must not be called
    /// on a thread of another runtime.
    ///
    /// # Errors
    /// Returns a message if there is no complete response in time, or if its body has more than `max_bytes`.
    pub fn send(&self, request: Request<Full<Bytes>>, max_bytes: usize) -> Result<(StatusCode, Bytes), String> {
        let (parts, body) = self.run(request, max_bytes, self.timeout)?;
        Ok((parts.status, body))
    }

    /// Gets a document, following at most `max_redirects` redirects. All of that must end within the time limit.
    ///
    /// # Errors
    /// Returns the errors of [`Self::send`], and a message for any other status than 200.
    pub fn get(&self, url: &str, accept: &str, max_bytes: usize, max_redirects: usize) -> Result<Bytes, String> {
        let mut url: Uri = url.parse().map_err(|error| format!("it is not a URL: {error}"))?;
        let started = Instant::now();
        for _ in 0..=max_redirects {
            let request = Request::get(&url).header("accept", accept).body(Full::default());
            let request = request.map_err(|error| error.to_string())?;
            let (parts, body) = self.run(request, max_bytes, self.timeout.saturating_sub(started.elapsed()))?;
            if !parts.status.is_redirection() {
                return if parts.status.is_success() {
                    Ok(body)
                } else {
                    Err(format!("http status: {}", parts.status))
                };
            }
            let location = parts.headers.get(LOCATION).and_then(|location| location.to_str().ok());
            url = location
                .and_then(|location| redirect_target(&url, location))
                .ok_or_else(|| format!("http status: {} without a usable Location", parts.status))?;
        }
        Err("too many redirects".to_owned())
    }

    fn run(
        &self,
        request: Request<Full<Bytes>>,
        max_bytes: usize,
        timeout: Duration,
    ) -> Result<(axum::http::response::Parts, Bytes), String> {
        let exchange = async {
            // The tasks of idle connections run only while this thread waits here. They must notice first which
            // connections the server has closed.
            tokio::task::yield_now().await;
            let (parts, body) = self.client.send(request).await.map_err(|error| error.to_string())?.into_parts();
            let body = Limited::new(body, max_bytes).collect().await.map_err(|error| describe_error(&*error))?;
            Ok((parts, body.to_bytes()))
        };
        let limited = async { tokio::time::timeout(timeout, exchange).await };
        let runtime = self.runtime.as_ref().ok_or("the client is being closed")?;
        runtime.block_on(limited).unwrap_or_else(|_elapsed| Err("timeout".to_owned()))
    }
}

impl Drop for BlockingHttpClient {
    fn drop(&mut self) {
        // A runtime that is dropped on a thread of another runtime would panic, because it waits for its tasks.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns the URL to which a redirect of `base` leads. `location` may be relative.
fn redirect_target(base: &Uri, location: &str) -> Option<Uri> {
    let target = Url::parse(&base.to_string()).ok()?.join(location).ok()?;
    target.as_str().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_redirect_leads_to_a_url_that_may_be_relative() {
        let base = Uri::from_static("https://host:8443/a/b?c");
        let target = |location: &str| redirect_target(&base, location).map(|url| url.to_string());
        assert_eq!(target("/keys?x").as_deref(), Some("https://host:8443/keys?x"));
        assert_eq!(target("http://other/keys").as_deref(), Some("http://other/keys"));
        assert_eq!(target("//other/keys").as_deref(), Some("https://other/keys"));
        assert_eq!(target("keys").as_deref(), Some("https://host:8443/a/keys"));
        assert_eq!(target("../keys").as_deref(), Some("https://host:8443/keys"));
        assert_eq!(target("https://"), None);
    }

    #[test]
    fn the_time_limit_holds_for_all_redirects_together() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let redirects = std::thread::spawn(move || {
            let mut answered = 0;
            while let Ok((mut socket, _)) = listener.accept() {
                let mut head = [0; 4096];
                if socket.read(&mut head).unwrap_or(0) == 0 || head.starts_with(b"GET /end") {
                    break;
                }
                std::thread::sleep(Duration::from_millis(200));
                let reply = "HTTP/1.1 302 Found\r\nLocation: next\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _ = socket.write_all(reply.as_bytes());
                answered += 1;
            }
            answered
        });
        let client = BlockingHttpClient::new(&HttpClientOptions::default(), Duration::from_millis(500)).unwrap();
        assert_eq!(client.get(&url, "*/*", 100, 20).unwrap_err(), "timeout");
        let _ = client.get(&format!("{url}end"), "*/*", 100, 0);
        assert!(redirects.join().unwrap() <= 3);
    }
}
