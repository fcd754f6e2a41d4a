//! A client that writes HTTP/1.1 by hand, so that tests control every byte of a request.

use std::collections::BTreeSet;
use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::server::RunningServer;

/// A response with its whole body. The names of its headers are in lower case.
pub struct Http1Response {
    /// The status line.
    pub status: String,
    pub headers: BTreeSet<(String, String)>,
    pub body: Vec<u8>,
}

impl Http1Response {
    /// Returns all values of a header, joined by commas.
    pub fn all(&self, name: &str) -> String {
        let values = self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        values.collect::<Vec<_>>().join(", ")
    }

    /// Returns the first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A persistent connection. Requests and responses can be written and read separately.
pub struct Http1Client(pub BufReader<TcpStream>);

impl Http1Client {
    /// Opens a connection to the server.
    pub async fn connect(server: &RunningServer) -> Self {
        Self(BufReader::new(TcpStream::connect(server.address).await.unwrap()))
    }

    /// Sends text as it is.
    pub async fn write(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads the response to a request with this method.
    pub async fn read_response(&mut self, method: &str) -> io::Result<Http1Response> {
        let status = self.line().await?;
        let mut headers = BTreeSet::new();
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(": ") else { break };
            assert!(headers.insert((name.to_ascii_lowercase(), value.to_owned())), "{line} twice");
        }
        let mut response = Http1Response { status, headers, body: Vec::new() };
        let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
        if method != "HEAD" && !response.status.contains(" 304 ") {
            response.body = vec![0; length];
            self.0.read_exact(&mut response.body).await?;
        }
        Ok(response)
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Sends a request and returns the response.
    pub async fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) -> Http1Response {
        self.try_ask(method, path, headers).await.unwrap()
    }

    /// Like [`Self::ask`], but returns an error if the server closes the connection.
    pub async fn try_ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) -> io::Result<Http1Response> {
        self.0.get_mut().write_all(request_head(method, path, headers).as_bytes()).await?;
        self.read_response(method).await
    }

    /// Returns the stream of a client that has read every response to its end.
    pub fn into_stream(self) -> TcpStream {
        self.0.into_inner()
    }
}

/// Returns the head of a request as it is sent.
pub fn request_head(method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let headers: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{method} {path} HTTP/1.1\r\nHost: test\r\n{}\r\n", headers.concat())
}
