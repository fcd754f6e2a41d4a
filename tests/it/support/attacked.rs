//! The real program under attack: what its clients send and receive, and whether it recovers.

use std::fs;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::program::{PATIENCE, Program};
use super::writer::N5;

/// The real program with a small container.
pub struct AttackedServer {
    program: Program,
    pub n5: N5,
}

impl AttackedServer {
    /// Starts the program with the settings of `--set`.
    pub fn start(settings: &[&str]) -> Self {
        let n5 = N5::new();
        n5.dataset("v", &[64, 64], &[32, 32], "raw").fill(|_| true, |_| false);
        n5.file("v/0/2", vec![7; 8 << 20]);
        let program = Program::serving(n5.root(), &[&["log.level=error"], settings].concat());
        Self { program, n5 }
    }

    /// Returns the address of the server, as `IP:PORT`.
    pub fn address(&self) -> &str {
        &self.program.address
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.program.child.id()
    }

    /// Returns true if the process has exited.
    pub fn has_ended(&mut self) -> bool {
        self.program.child.try_wait().unwrap().is_some()
    }

    /// Returns the number of open file descriptors.
    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// Returns a field of the program's memory in MiB, see [`Program::memory_bytes`].
    pub fn mib(&self, field: &str) -> u64 {
        self.program.memory_bytes(field) >> 20
    }

    /// Returns the bytes in the kernel's send queues of the server.
    pub fn queued_bytes(&self) -> u64 {
        queued_bytes(self.address().rsplit_once(':').unwrap().1.parse().unwrap())
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.program.address).await.unwrap()
    }

    /// Connects from a loopback address, with a receive buffer of `window` bytes.
    pub async fn connect_from(&self, address: &str, window: u32) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(window).unwrap();
        socket.bind(std::net::SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
        socket.connect(self.address().parse().unwrap()).await.unwrap()
    }

    /// Returns the value of a metric, by its name with its labels.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.exchange(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no metric {name}"))
    }

    /// Waits until the value of a metric satisfies `is_so`.
    pub async fn wait_for_metric(&self, name: &str, is_so: impl Fn(f64) -> bool) {
        let started = Instant::now();
        loop {
            let value = self.metric(name).await;
            if is_so(value) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{name} stays {value}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends bytes on a new connection and returns the responses up to the end of the connection as text.
    pub async fn exchange(&self, sent: &[u8]) -> String {
        String::from_utf8_lossy(&self.received(sent).await).into_owned()
    }

    /// Like [`Self::exchange`], but returns bytes.
    pub async fn received(&self, sent: &[u8]) -> Vec<u8> {
        let (mut reader, mut writer) = self.connect().await.into_split();
        let sent = sent.to_vec();
        // The server may close the connection before it has read everything.
        let writing = tokio::spawn(async move {
            let _ = writer.write_all(&sent).await;
            writer
        });
        let mut received = Vec::new();
        tokio::time::timeout(PATIENCE, reader.read_to_end(&mut received))
            .await
            .expect("a connection that is left open")
            .ok();
        writing.abort();
        received
    }

    /// Asserts that the server serves another client.
    pub async fn assert_serves(&self) {
        let response = self.exchange(b"GET /v/0/0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }

    /// Asserts that the server is alive, and uses no more memory and descriptors than before the attack.
    pub async fn assert_recovered(&mut self, baseline: &Baseline) {
        self.assert_serves().await;
        assert!(!self.has_ended(), "the server has died");
        let peak = self.mib("VmHWM");
        assert!(peak <= baseline.most_mib, "{peak} MiB at most; before: {baseline:?}");
        let started = Instant::now();
        // Connections end with a delay.
        loop {
            let (descriptors, resident) = (self.descriptors(), self.mib("VmRSS"));
            if descriptors <= baseline.descriptors + 2 && resident <= baseline.resident_mib + 48 {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{descriptors} descriptors, {resident} MiB; before: {baseline:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Records the state before an attack that should take hardly any memory.
    pub async fn baseline(&self) -> Baseline {
        self.assert_serves().await;
        // Resets the peak of the resident memory.
        fs::write(format!("/proc/{}/clear_refs", self.id()), "5").unwrap();
        let resident_mib = self.mib("VmRSS");
        Baseline { descriptors: self.descriptors(), resident_mib, most_mib: resident_mib + 64 }
    }

    /// Like [`Self::baseline`], for an attack that may take what the budgets and caches allow (docs/DEPLOYMENT.md).
    pub async fn baseline_for_large_responses(&self) -> Baseline {
        Baseline { most_mib: 600, ..self.baseline().await }
    }
}

/// Descriptors and memory of a server before an attack, and the most memory that the attack may take.
#[derive(Debug)]
pub struct Baseline {
    descriptors: usize,
    resident_mib: u64,
    most_mib: u64,
}

/// Returns the bytes in the kernel's send queues of the server at this port: `tx_queue` of `/proc/net/tcp`.
pub fn queued_bytes(port: u16) -> u64 {
    let local = format!(":{port:04X}");
    let of = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let is_here = fields.nth(1)?.ends_with(&local);
        let queued = fields.nth(2)?.split_once(':')?.0;
        is_here.then(|| u64::from_str_radix(queued, 16).unwrap())
    };
    fs::read_to_string("/proc/net/tcp").unwrap().lines().skip(1).filter_map(of).sum()
}
