//! Connections of a real server: time and size limits of request heads, and graceful shutdown.

use std::time::Duration;

use n5_server::config::{Config, ContainerConfig, EntityTagSource};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::server::{RunningServer, start_server};
use crate::support::writer::N5;

/// Starts a server of the demo container on a free port.
async fn start(header_timeout: Duration) -> RunningServer {
    start_server(header_timeout, Config::default()).await
}

#[tokio::test]
async fn a_connection_that_sends_nothing_or_half_a_head_is_closed() {
    let server = start(Duration::from_millis(300)).await;
    let answered = "GET /attributes.json HTTP/1.1\r\nHost: x\r\n\r\n";
    let listed = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let halves = [
        "",
        "GET / HTTP/1.1\r\nHost: x\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM",
        "POST / HTTP/1.1\r\nContent-Length: 9\r\n",
        "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        "PRI x",
    ];
    let after = |first: &str| halves.map(|half| format!("{first}{half}"));
    for sent in [after(""), after(answered), after(listed)].concat() {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        connection.write_all(sent.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(20), connection.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{sent:?} still open");
    }
}

#[tokio::test]
async fn a_connection_whose_head_trickles_in_is_closed() {
    let server = start(Duration::from_millis(500)).await;
    for sent in
        ["GET / HTTP/1.1\r\nX: ", "GET /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\nX: ", "PRI x"]
    {
        let connection = TcpStream::connect(server.address).await.unwrap();
        let (mut reader, mut writer) = connection.into_split();
        writer.write_all(sent.as_bytes()).await.unwrap();
        let trickle = tokio::spawn(async move {
            while writer.write_all(b"a").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(20), reader.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{sent:?} still open");
        trickle.abort();
    }
}

#[tokio::test]
async fn a_head_beyond_the_size_limit_is_refused() {
    let server = start(Duration::from_secs(20)).await;
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "a".repeat(200_000));
    // The server may answer and close before it has read the whole head.
    let _ = connection.write_all(head.as_bytes()).await;
    let mut response = vec![0; 12];
    connection.read_exact(&mut response).await.unwrap();
    assert_eq!(response, b"HTTP/1.1 431");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_half_a_request() {
    let server = start(Duration::from_secs(60)).await;
    let mut unfinished = TcpStream::connect(server.address).await.unwrap();
    unfinished.write_all(b"GET / HT").await.unwrap();
    // A response on a later connection shows that this one was accepted.
    let mut answered = TcpStream::connect(server.address).await.unwrap();
    answered.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    answered.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    server.stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(20), server.ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_shutdown_deadline_holds_while_a_client_waits_to_be_accepted() {
    let n5 = N5::new();
    // No block is stored. The response is zeros, more of them than fit the buffers of a connection that is not read.
    n5.dataset("v", &[1024, 1024, 64], &[64, 64, 64], "raw");
    let defaults = Config::default().container_defaults;
    let container = ContainerConfig {
        name: "em".to_owned(),
        root: n5.root().into(),
        cache_control: defaults.cache_control,
        symlinks: defaults.symlinks,
        must_be_mount: false,
        entity_tag: EntityTagSource::Mtime,
        ..ContainerConfig::default()
    };
    let mut config = Config { containers: vec![container], ..Config::default() };
    config.server.max_connections = 1;
    config.server.drain_delay = Duration::ZERO;
    config.server.shutdown_timeout = Duration::from_millis(300);
    let server = start_server(Duration::from_secs(60), config).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    let asked = "GET /slice/em/v?start=0,0,0&stop=1024,1024,64&format=raw HTTP/1.1\r\nHost: x\r\n\r\n";
    slow.write_all(asked.as_bytes()).await.unwrap();
    let mut response = vec![0; 15];
    slow.read_exact(&mut response).await.unwrap();
    assert_eq!(response, b"HTTP/1.1 200 OK");
    let mut waits = TcpStream::connect(server.address).await.unwrap();
    waits.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let stopped = std::time::Instant::now();
    server.stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(20), server.ended).await.unwrap().unwrap();
    let spent = stopped.elapsed();
    // The server also waits up to 2 s for connections in the accept queue. The deadline is earlier.
    assert!(Duration::from_millis(300) <= spent && spent < Duration::from_millis(1900), "{spent:?}");
}
