//! TLS: the server with real clients and real sockets.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use n5_server::config::{CacheControl, Config, ContainerConfig, EntityTagSource, SymlinkPolicy};
use rcgen::{CertifiedKey, KeyPair, date_time_ymd, generate_simple_self_signed};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion, version};

use crate::support::attacked::queued_bytes;
use crate::support::program::{PATIENCE, Program};
use crate::support::server::{RunningServer, open_connections, start_server};
use crate::support::wait_until;
use crate::support::writer::N5;

/// Length of the large stored file: more than all buffers on the way to the client hold.
const LARGE: usize = 24 << 20;

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + (at >> 8) * 7) as u8).collect()
}

struct Identity {
    certificate: String,
    key: String,
    der: CertificateDer<'static>,
}

/// Creates a self-signed certificate for localhost.
fn self_signed() -> Identity {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    Identity { certificate: cert.pem(), key: signing_key.serialize_pem(), der: cert.der().clone() }
}

fn expired() -> Identity {
    self_signed_with(|parameters| parameters.not_after = date_time_ymd(2020, 1, 1))
}

/// Creates a certificate that is not valid yet.
fn not_yet_valid() -> Identity {
    let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
    self_signed_with(|parameters| parameters.not_before = tomorrow.into())
}

fn self_signed_with(change: impl FnOnce(&mut rcgen::CertificateParams)) -> Identity {
    let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    change(&mut parameters);
    let key = KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    Identity { certificate: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
}

struct TlsServer {
    server: RunningServer,
    directory: tempfile::TempDir,
    identity: Identity,
    _n5: N5,
}

impl TlsServer {
    async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let n5 = N5::new();
        n5.dataset("v", &[512, 512, 64], &[64, 64, 64], "raw").fill(|at| at[0] == at[1] && at[0] < 2, |_| false);
        n5.file("v/9/9/9", bytes(LARGE));
        n5.file("v/9/9/8", bytes(300_000));
        let directory = tempfile::tempdir().unwrap();
        let identity = self_signed();
        let container = ContainerConfig {
            name: String::new(),
            root: n5.root().into(),
            cache_control: CacheControl::default(),
            symlinks: SymlinkPolicy::default(),
            must_be_mount: false,
            entity_tag: EntityTagSource::Mtime,
            ..ContainerConfig::default()
        };
        let mut config = Config { containers: vec![container], ..Config::default() };
        config.tls.certificate = directory.path().join("tls.crt");
        config.tls.key = directory.path().join("tls.key");
        write(directory.path(), &identity);
        change(&mut config);
        let timeout = config.server.header_timeout;
        let server = start_server(timeout, config).await;
        Self { server, directory, identity, _n5: n5 }
    }

    async fn plain(&self) -> TcpStream {
        TcpStream::connect(self.server.address).await.unwrap()
    }

    async fn connect(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        connect(self, &self.identity.der, protocol, &[&version::TLS13]).await.unwrap()
    }
}

fn write(directory: &Path, pair: &Identity) {
    fs::write(directory.join("tls.crt"), &pair.certificate).unwrap();
    fs::write(directory.join("tls.key"), &pair.key).unwrap();
}

async fn connect(
    secure: &TlsServer,
    trusted: &CertificateDer<'static>,
    protocol: &[u8],
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_to(secure.server.address, trusted, protocol, versions).await
}

async fn connect_to(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
    protocol: &[u8],
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    tls_handshake(TcpStream::connect(address).await?, trusted, protocol, versions, b"").await
}

/// Completes a handshake on `stream`. `request` is sent with the client's last message of the handshake.
async fn tls_handshake(
    stream: TcpStream,
    trusted: &CertificateDer<'static>,
    protocol: &[u8],
    versions: &[&'static SupportedProtocolVersion],
    request: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.enable_sni = !protocol.is_empty();
    config.alpn_protocols = Some(protocol.to_vec()).filter(|name| !name.is_empty()).into_iter().collect();
    let name = ServerName::try_from("localhost").unwrap();
    let send = |connection: &mut ClientConnection| connection.writer().write_all(request).unwrap();
    tokio::time::timeout(PATIENCE, TlsConnector::from(Arc::new(config)).connect_with(name, stream, send)).await?
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n")
}

/// Sends `sent` and returns all that is received until the server ends the connection with `close_notify`.
async fn exchange(stream: &mut TlsStream<TcpStream>, sent: &str) -> Vec<u8> {
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut received)).await.unwrap().unwrap();
    received
}

/// Splits received bytes into responses. Returns the head and the body of each.
fn responses(mut received: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    while !received.is_empty() {
        let end = received.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head") + 4;
        let head = String::from_utf8(received[..end].to_vec()).unwrap().to_ascii_lowercase();
        let length =
            head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap().parse::<usize>().unwrap();
        found.push((head, received[end..end + length].to_vec()));
        received = &received[end + length..];
    }
    found
}

/// Sends one request on a connection of its own. Returns the head and the body of the response.
async fn ask(secure: &TlsServer, path: &str) -> (String, Vec<u8>) {
    let mut stream = secure.connect(b"http/1.1").await;
    responses(&exchange(&mut stream, &get(path, "Connection: close\r\n")).await).remove(0)
}

#[tokio::test]
async fn http_1_is_served_over_both_tls_versions_and_without_sni() {
    let secure = TlsServer::start(|config| config.tls.hsts = Duration::from_secs(3600)).await;
    for (versions, protocol) in
        [(&version::TLS13, &b"http/1.1"[..]), (&version::TLS12, b"http/1.1"), (&version::TLS13, b"")]
    {
        let mut stream = connect(&secure, &secure.identity.der, protocol, &[versions]).await.unwrap();
        assert_eq!(stream.get_ref().1.protocol_version(), Some(versions.version));
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol).filter(|name| !name.is_empty()));
        // The fast path answers the first and the last request, hyper the other one.
        let sent = [get("/v/attributes.json", ""), get("/info/v", ""), get("/none", "Connection: close\r\n")].concat();
        let received = responses(&exchange(&mut stream, &sent).await);
        let statuses: Vec<&str> = received.iter().map(|(head, _)| &head[9..12]).collect();
        assert_eq!(statuses, ["200", "200", "404"]);
        for (head, _) in &received {
            assert!(head.contains("strict-transport-security: max-age=3600\r\n"), "{head}");
        }
        assert!(String::from_utf8_lossy(&received[1].1).contains("https://localhost/"), "{:?}", received[1]);
    }
    let without = TlsServer::start(|_| {}).await;
    assert!(!ask(&without, "/v/attributes.json").await.0.contains("strict-transport-security"));
    assert!(ask(&without, "/healthz").await.0.contains(" 200 "));
}

#[tokio::test]
async fn http_2_is_served_if_alpn_selects_it() {
    let secure = TlsServer::start(|_| {}).await;
    let stream = secure.connect(b"h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    let running = tokio::spawn(connection);
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let request = Request::get("https://localhost/v/9/9/8").body(Empty::<Bytes>::new()).unwrap();
        waiting.push(sender.send_request(request));
    }
    // All bodies are read concurrently: an unread one would use up the connection's flow control window.
    let taken = waiting.into_iter().map(|response| async {
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.into_body().collect().await.unwrap().to_bytes() == bytes(300_000));
    });
    futures_util::future::join_all(taken).await;
    drop(sender);
    running.await.unwrap().unwrap();
    let refused = connect(&secure, &secure.identity.der, b"smtp", &[&version::TLS13]).await;
    assert!(refused.is_err(), "an unknown protocol is accepted");
}

#[tokio::test]
async fn large_responses_are_sent_byte_for_byte() {
    let secure = TlsServer::start(|config| config.limits.slice_budget = Some(4 << 20)).await;
    // Requests a stored file twice: first from the storage, then from the cache if it is cached.
    for _ in 0..2 {
        let (head, body) = ask(&secure, "/v/9/9/9").await;
        assert!(head.contains(" 200 "), "{head}");
        assert!(body == bytes(LARGE), "{} bytes differ", body.len());
        assert!(ask(&secure, "/v/9/9/8").await.1 == bytes(300_000));
    }
    // The response streamed in bands equals the response assembled as a whole.
    let (head, streamed) = ask(&secure, "/slice/v").await;
    assert!(head.contains(" 200 "), "{head}");
    let whole = TlsServer::start(|_| {}).await;
    let (_, expected) = ask(&whole, "/slice/v").await;
    assert!(streamed == expected && !streamed.is_empty());
}

#[tokio::test]
async fn many_pipelined_requests_are_answered_in_order() {
    let secure = TlsServer::start(|_| {}).await;
    let mut sent: String =
        (0..1000).map(|n| get(["/v/attributes.json", "/v/9/9/8", "/none", "/info/v"][n % 4], "")).collect();
    sent.push_str(&get("/healthz", "Connection: close\r\n"));
    let (mut reader, mut writer) = tokio::io::split(secure.connect(b"http/1.1").await);
    let writing = tokio::spawn(async move {
        writer.write_all(sent.as_bytes()).await.unwrap();
        writer
    });
    let mut received = Vec::new();
    tokio::time::timeout(PATIENCE, reader.read_to_end(&mut received)).await.unwrap().unwrap();
    drop(writing.await.unwrap());
    let received = responses(&received);
    assert_eq!(received.len(), 1001);
    for (n, (head, body)) in received.iter().take(1000).enumerate() {
        assert_eq!(&head[9..12], ["200", "200", "404", "200"][n % 4], "{n}");
        assert!(n % 4 != 1 || *body == bytes(300_000), "{n}");
    }
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_gets_only_immediate_responses() {
    let secure = TlsServer::start(|_| {}).await;
    // A request that has to wait is cancelled, as without TLS: the client has closed the connection.
    for (path, count) in [("/v/attributes.json", 1), ("/slice/v", 0)] {
        // From the second request on, the fast path answers without waiting.
        for _ in 0..2 {
            assert!(ask(&secure, "/v/attributes.json").await.0.contains(" 200 "));
        }
        let mut stream = secure.connect(b"http/1.1").await;
        stream.write_all(get(path, "").as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut received = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut received)).await.unwrap();
        if count > 0 {
            ended.unwrap();
            assert_eq!(responses(&received).len(), count, "{path}");
        }
    }
    assert!(ask(&secure, "/healthz").await.0.contains(" 200 "));
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_disconnected() {
    let secure = TlsServer::start(|config| config.server.send_timeout = Duration::from_millis(300)).await;
    for path in ["/v/9/9/9", "/slice/v"] {
        let mut stream = secure.connect(b"http/1.1").await;
        stream.write_all(get(path, "").as_bytes()).await.unwrap();
        let mut first = [0; 100];
        stream.read_exact(&mut first).await.unwrap();
        // The server closes the connection while the client does not read. A client that reads would get everything.
        assert!(wait_until(async || open_connections(&secure.server) == 0).await, "the connection stays open");
        let mut received = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut received)).await.unwrap();
        assert!(ended.is_err() && received.len() < LARGE, "{path}: {ended:?} after {} bytes", received.len());
    }
}

#[tokio::test]
async fn plain_http_gets_a_hint_and_other_bytes_are_disconnected() {
    let secure = TlsServer::start(|_| {}).await;
    let mut stream = secure.plain().await;
    stream.write_all(get("/v/attributes.json", "").as_bytes()).await.unwrap();
    let mut received = String::new();
    // The hint comes at once. The server closes the connection when the client has closed its side.
    let mut buffer = vec![0; 4096];
    while !received.ends_with("http://.\n") {
        let count = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap().unwrap();
        assert!(count > 0, "{received}");
        received.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
    assert!(received.starts_with("HTTP/1.1 400 ") && received.contains("speaks TLS"), "{received}");
    assert_eq!(responses(received.as_bytes()).len(), 1);
    for junk in [&b"\0\0\0"[..], b"\x16\x03\x01\xff\xff\0\0", b"ssh-2.0\r\n"] {
        let mut stream = secure.plain().await;
        stream.write_all(junk).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut received = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut received)).await.unwrap();
        assert!(!received.starts_with(b"HTTP"), "{junk:?}");
    }
    assert!(ask(&secure, "/v/attributes.json").await.0.contains(" 200 "));
}

#[tokio::test]
async fn a_handshake_has_a_timeout_and_counts_as_a_connection() {
    let secure = TlsServer::start(|config| {
        // The handshake of an honest client must end within this time, even on a busy machine.
        config.tls.handshake_timeout = Duration::from_secs(15);
        config.server.max_connections = 3;
    })
    .await;
    let mut slow = Vec::new();
    for sent in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01"] {
        let mut stream = secure.plain().await;
        stream.write_all(sent).await.unwrap();
        slow.push(stream);
    }
    // All connection permits are taken until a handshake times out.
    assert!(ask(&secure, "/v/attributes.json").await.0.contains(" 200 "));
    for mut stream in slow {
        let mut received = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut received)).await;
        assert!(closed.is_ok() && received.is_empty(), "{received:?}");
    }
}

#[tokio::test]
async fn the_health_check_uses_tls_and_check_config_reads_the_certificate() {
    let secure = TlsServer::start(|_| {}).await;
    let program = |check: &'static str, key: &str| {
        let (directory, address) = (secure.directory.path().to_owned(), secure.server.address.to_string());
        let key = directory.join(key);
        tokio::task::spawn_blocking(move || {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_n5-server"));
            command.args([check, "--listen", &address]);
            command.args(["--set", &format!("tls.certificate={}", directory.join("tls.crt").display())]);
            command.args(["--set", &format!("tls.key={}", key.display())]);
            command.output().unwrap()
        })
    };
    let healthy = program("--healthcheck", "tls.key").await.unwrap();
    assert!(healthy.status.success(), "{}", String::from_utf8_lossy(&healthy.stderr));
    assert!(program("--check-config", "tls.key").await.unwrap().status.success());
    let refused = program("--check-config", "tls.crt").await.unwrap();
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("contains no PEM private key")
    );
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_finishes_responses() {
    let secure = TlsServer::start(|_| {}).await;
    let mut idle = secure.connect(b"http/1.1").await;
    let mut busy = secure.connect(b"http/1.1").await;
    let handshake = secure.plain().await;
    busy.write_all(get("/v/9/9/9", "").as_bytes()).await.unwrap();
    let mut first = [0; 1000];
    busy.read_exact(&mut first).await.unwrap();
    secure.server.stop.send(()).unwrap();
    let mut received = first.to_vec();
    tokio::time::timeout(PATIENCE, busy.read_to_end(&mut received)).await.unwrap().unwrap();
    assert!(responses(&received)[0].1 == bytes(LARGE));
    // The server sends `close_notify` before it closes the connection.
    assert_eq!(tokio::time::timeout(PATIENCE, idle.read(&mut first)).await.unwrap().unwrap(), 0);
    tokio::time::timeout(PATIENCE, secure.server.ended).await.unwrap().unwrap();
    drop(handshake);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_accepted_before_shutdown_finish_their_handshake_and_are_answered() {
    let (n5, directory, identity) = (N5::new(), tempfile::tempdir().unwrap(), self_signed());
    n5.dataset("v", &[4], &[4], "raw").fill(|_| true, |_| false);
    write(directory.path(), &identity);
    let at = directory.path().display();
    let config = format!(
        "server.drain_delay = \"0s\"\ntls.certificate = \"{at}/tls.crt\"\ntls.key = \"{at}/tls.key\"\n\
         [[containers]]\nroot = \"{}\"\n",
        n5.root().display()
    );
    let mut program = Program::start(&config);
    let address: SocketAddr = program.address.parse().unwrap();
    // The kernel accepts connections while the program is stopped.
    program.signal(Signal::STOP);
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..100 {
        let (stream, trusted) = (TcpStream::connect(address).await.unwrap(), identity.der.clone());
        clients.spawn(async move {
            // The fast path answers half of the requests, hyper the other half. The server closes a connection whose
            // first request is late, so the request arrives with the handshake's last message.
            let request = get(if n % 2 == 0 { "/v/0" } else { "/slice/v" }, "");
            let mut stream = tls_handshake(stream, &trusted, b"", &[&version::TLS13], request.as_bytes()).await?;
            let mut response = [0; 12];
            stream.read_exact(&mut response).await.map(|_| response)
        });
    }
    program.signal(Signal::TERM);
    program.signal(Signal::CONT);
    while let Some(response) = clients.join_next().await {
        assert_eq!(&response.unwrap().unwrap(), b"HTTP/1.1 200");
    }
    assert!(program.ended().success());
}

#[test]
fn waiting_for_a_handshake_at_shutdown_uses_no_cpu() {
    let (directory, identity) = (tempfile::tempdir().unwrap(), self_signed());
    write(directory.path(), &identity);
    let at = directory.path().display();
    let config =
        format!("server.drain_delay = \"0s\"\ntls.certificate = \"{at}/tls.crt\"\ntls.key = \"{at}/tls.key\"\n");
    let mut program = Program::start(&config);
    let silent = std::net::TcpStream::connect(&program.address).unwrap();
    let before = program.processor_time();
    program.signal(Signal::TERM);
    program.logged("shutting down");
    std::thread::sleep(Duration::from_millis(800));
    let taken = program.processor_time().saturating_sub(before);
    assert!(taken < Duration::from_millis(200), "{taken:?}");
    assert!(program.ended().success());
    drop(silent);
}

#[tokio::test]
async fn a_new_certificate_is_used_and_an_invalid_one_is_ignored() {
    let secure = TlsServer::start(|_| {}).await;
    let mut old = secure.connect(b"http/1.1").await;
    old.write_all(get("/v/attributes.json", "").as_bytes()).await.unwrap();
    let mut first = [0; 12];
    old.read_exact(&mut first).await.unwrap();
    let path = secure.directory.path();
    // A key that does not match, an expired certificate, one that is not valid yet, and a file without a certificate:
    // the server never uses any of them.
    let (other, over, not_yet_valid) = (self_signed(), expired(), not_yet_valid());
    for (certificate, key) in [
        (&other.certificate, &secure.identity.key),
        (&over.certificate, &over.key),
        (&not_yet_valid.certificate, &not_yet_valid.key),
        (&"nothing".to_owned(), &other.key),
    ] {
        fs::write(path.join("tls.crt"), certificate).unwrap();
        fs::write(path.join("tls.key"), key).unwrap();
        // Longer than two polls of the files take.
        let until = tokio::time::Instant::now() + Duration::from_millis(2500);
        while tokio::time::Instant::now() < until {
            assert!(ask(&secure, "/v/attributes.json").await.0.contains(" 200 "));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    // A renewal replaces one file after the other.
    let new = self_signed();
    fs::write(path.join("tls.key"), &new.key).unwrap();
    assert!(ask(&secure, "/v/attributes.json").await.0.contains(" 200 "));
    fs::write(path.join("tls.crt"), &new.certificate).unwrap();
    let is_used = wait_until(async || connect(&secure, &new.der, b"http/1.1", &[&version::TLS13]).await.is_ok());
    assert!(is_used.await, "the new certificate is not used");
    assert!(connect(&secure, &secure.identity.der, b"http/1.1", &[&version::TLS13]).await.is_err());
    // Connections from before the renewal continue.
    let rest = exchange(&mut old, &get("/info/v", "Connection: close\r\n")).await;
    let received = responses(&[&first[..], &rest].concat());
    assert_eq!(received.len(), 2);
    assert!(received[1].0.contains(" 200 "));
}

#[tokio::test]
async fn a_certificate_can_be_replaced_as_kubernetes_does_it() {
    let secure = TlsServer::start(|_| {}).await;
    let path = secure.directory.path();
    // The files are links into `..data`. This is a link to the directory of one version, and is replaced atomically.
    let version = |name: &str, pair: &Identity| {
        fs::create_dir(path.join(name)).unwrap();
        write(&path.join(name), pair);
        symlink(name, path.join("..data_tmp")).unwrap();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    };
    version("..1", &secure.identity);
    for name in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(name), path.join("link")).unwrap();
        fs::rename(path.join("link"), path.join(name)).unwrap();
    }
    assert!(ask(&secure, "/healthz").await.0.contains(" 200 "));
    let new = self_signed();
    version("..2", &new);
    fs::remove_dir_all(path.join("..1")).unwrap();
    let is_used = wait_until(async || connect(&secure, &new.der, b"http/1.1", &[&version::TLS13]).await.is_ok());
    assert!(is_used.await, "the new certificate is not used");
}

#[tokio::test]
async fn a_reader_of_pipelined_responses_that_stops_is_disconnected() {
    const ASKED: usize = 300;
    let secure = TlsServer::start(|config| config.server.send_timeout = Duration::from_millis(500)).await;
    // From the second request on, the file is cached and sent by the fast path.
    for _ in 0..3 {
        assert!(ask(&secure, "/v/9/9/8").await.1 == bytes(300_000));
    }
    let (mut reader, mut writer) = tokio::io::split(secure.connect(b"http/1.1").await);
    writer.write_all(get("/v/9/9/8", "").repeat(ASKED).as_bytes()).await.unwrap();
    let mut received = vec![0; 1000];
    reader.read_exact(&mut received).await.unwrap();
    assert!(wait_until(async || open_connections(&secure.server) == 0).await, "the connection stays open");
    let ended = tokio::time::timeout(PATIENCE, reader.read_to_end(&mut received)).await.unwrap();
    // The bytes in transit are some whole responses and a part of one, far fewer than all responses.
    assert!(ended.is_err() && received.len() < ASKED * 300_000 / 2, "{ended:?} after {} bytes", received.len());
    let response = received.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let body = &received[response..received.len().min(response + 300_000)];
    assert!(body == &bytes(300_000)[..body.len()]);
    assert!(ask(&secure, "/v/9/9/8").await.1 == bytes(300_000));
}

/// The beginning of a handshake whose rest never comes.
const HALF: &[u8] = b"\x16\x03\x01\x02\x00\x01";

#[tokio::test]
async fn stalled_handshakes_leave_capacity_for_other_clients() {
    let secure = TlsServer::start(|config| config.tls.handshake_timeout = PATIENCE).await;
    let from = async |number: usize| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("127.0.0.{number}:0").parse().unwrap()).unwrap();
        socket.connect(secure.server.address).await.unwrap()
    };
    let versions = [&version::TLS13];
    let mut half = Vec::new();
    for number in 0..2 * n5_server::config::TlsConfig::MAX_HANDSHAKES {
        let mut stream = from(2 + number % 5).await;
        stream.write_all(HALF).await.unwrap();
        half.push(stream);
    }
    // The server may not have seen all of them yet.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for number in 10..13 {
        let handshake = tls_handshake(from(number).await, &secure.identity.der, b"", &versions, b"");
        tokio::time::timeout(Duration::from_secs(10), handshake)
            .await
            .expect("other clients' handshakes are blocked")
            .unwrap();
    }
    let mut handshake = std::pin::pin!(tls_handshake(from(2).await, &secure.identity.der, b"", &versions, b""));
    assert!(
        tokio::time::timeout(Duration::from_millis(500), &mut handshake).await.is_err(),
        "a handshake beyond the client's share is served"
    );
    drop(half);
    handshake.await.unwrap();
}

#[tokio::test]
async fn unread_bytes_of_a_failed_handshake_are_dropped() {
    let secure = TlsServer::start(|config| {
        let chain = fs::read_to_string(&config.tls.certificate).unwrap().repeat(30);
        fs::write(&config.tls.certificate, chain).unwrap();
    })
    .await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1).unwrap();
    let mut stream = socket.connect(secure.server.address).await.unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut hello = Vec::new();
    ClientConnection::new(Arc::new(config), name).unwrap().write_tls(&mut hello).unwrap();
    stream.write_all(&hello).await.unwrap();
    let port = secure.server.address.port();
    assert!(wait_until(async || queued_bytes(port) > 0).await, "nothing is sent");
    // A record that cannot be decrypted.
    stream.write_all(b"\x17\x03\x03\x00\x20abcdefghijklmnopqrstuvwxyz012345").await.unwrap();
    assert!(wait_until(async || queued_bytes(port) == 0).await, "the kernel keeps the unread bytes");
    assert!(stream.read_to_end(&mut Vec::new()).await.is_err(), "the connection is not reset");
}

#[tokio::test]
async fn a_probe_that_only_connects_is_not_counted_as_a_handshake() {
    let (n5, identity, directory) = (N5::new(), self_signed(), tempfile::tempdir().unwrap());
    write(directory.path(), &identity);
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| directory.path().join(name).display().to_string());
    let program = Program::start(&format!(
        "tls.certificate = {certificate:?}\ntls.key = {key:?}\n[[containers]]\nroot = {:?}\n",
        n5.root().display().to_string()
    ));
    let address = program.address.parse().unwrap();
    for _ in 0..5 {
        drop(TcpStream::connect(address).await.unwrap());
    }
    let mut broken = TcpStream::connect(address).await.unwrap();
    broken.write_all(HALF).await.unwrap();
    drop(broken);
    let started = tokio::time::Instant::now();
    loop {
        let mut stream = connect_to(address, &identity.der, b"http/1.1", &[&version::TLS13]).await.unwrap();
        let received = exchange(&mut stream, &get("/metrics", "Connection: close\r\n")).await;
        let (_, text) = responses(&received).remove(0);
        let text = String::from_utf8(text).unwrap();
        let value = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
            value.parse::<f64>().unwrap() as u64
        };
        // Only the connection that requests the metrics is still open.
        if value("n5_connections_open") == 1 && value("n5_connections_accepted_total") >= 7 {
            assert_eq!(value("n5_tls_handshakes_total{result=\"failed\"}"), 1);
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{text}");
    }
}
