//! The real program as a child process, with its configuration file, log and signals.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longest time that a test waits for an event. Any step takes less, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A running program, killed when dropped.
pub struct Program {
    pub child: Child,
    pub address: String,
    log: Receiver<String>,
    directory: TempDir,
}

impl Program {
    /// Starts the program on a free port, with `config` as its configuration file and the variables of `environment`.
    pub fn start_in(config: &str, environment: &[(&str, &str)]) -> Self {
        Self::start_logging_to(config, environment, None)
    }

    /// Like [`Self::start_in`]. If a file is given, the log goes there, and [`Self::logged`] does not see it.
    pub fn start_logging_to(config: &str, environment: &[(&str, &str)], file_of_log: Option<fs::File>) -> Self {
        Self::listening(Self::spawn(config, environment, file_of_log))
    }

    /// Starts the program on a free port without a configuration file. It serves the container at `root`, with the
    /// settings of `--set`.
    pub fn serving(root: &Path, settings: &[&str]) -> Self {
        let arguments = settings.iter().flat_map(|setting| ["--set", setting]).map(OsStr::new);
        let arguments: Vec<&OsStr> = std::iter::once(root.as_os_str()).chain(arguments).collect();
        Self::listening(Self::spawn_with(&arguments, &[], None, TempDir::new().unwrap()))
    }

    /// Like [`Self::serving`], with several containers and without settings.
    pub fn serving_roots(roots: &[PathBuf]) -> Self {
        let arguments: Vec<&OsStr> = roots.iter().map(|root| root.as_os_str()).collect();
        Self::listening(Self::spawn_with(&arguments, &[], None, TempDir::new().unwrap()))
    }

    /// Waits until the program listens.
    fn listening((mut program, stdout): (Self, ChildStdout)) -> Self {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        program.address.push_str(line.trim().rsplit_once("://").unwrap().1.split('/').next().unwrap());
        program
    }

    /// Starts the program without waiting until it listens.
    pub fn starting(config: &str) -> Self {
        Self::spawn(config, &[], None).0
    }

    fn spawn(config: &str, environment: &[(&str, &str)], file_of_log: Option<fs::File>) -> (Self, ChildStdout) {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("n5.toml");
        fs::write(&file, config).unwrap();
        Self::spawn_with(&["--config".as_ref(), file.as_ref()], environment, file_of_log, directory)
    }

    fn spawn_with(
        arguments: &[&OsStr],
        environment: &[(&str, &str)],
        file_of_log: Option<fs::File>,
        directory: TempDir,
    ) -> (Self, ChildStdout) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_n5-server"));
        for (name, _) in std::env::vars_os() {
            if ["N5_", "OTEL_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        // The same sizes on every machine.
        command.env("N5_MEMORY__LIMIT", "least");
        command.args(arguments).args(["--set", "server.listen=127.0.0.1:0"]).envs(environment.to_vec());
        command.stdout(Stdio::piped()).stderr(file_of_log.map_or_else(Stdio::piped, Stdio::from));
        let mut child = command.spawn().unwrap();
        let (sender, log) = channel();
        if let Some(stderr) = child.stderr.take().map(BufReader::new) {
            std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        }
        let stdout = child.stdout.take().unwrap();
        (Self { child, address: String::new(), log, directory }, stdout)
    }

    /// Waits until the program ends by itself and returns its exit status.
    pub fn ended(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "still running");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts the program on a free port, with `config` as its configuration file.
    pub fn start(config: &str) -> Self {
        Self::start_in(config, &[])
    }

    /// Replaces the configuration file atomically, as editors and configuration management do.
    pub fn configure(&self, config: &str) {
        let (new, file) = (self.directory.path().join("new"), self.directory.path().join("n5.toml"));
        fs::write(&new, config).unwrap();
        fs::rename(new, file).unwrap();
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// Replaces the configuration file by a named pipe and returns its path.
    pub fn replace_configuration_by_pipe(&self) -> PathBuf {
        let (new, file) = (self.directory.path().join("new"), self.directory.path().join("n5.toml"));
        assert!(Command::new("mkfifo").arg(&new).status().unwrap().success());
        fs::rename(new, &file).unwrap();
        file
    }

    /// Returns true if the program handles a signal.
    pub fn handles_signal(&self, signal: rustix::process::Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
    }

    /// Returns the processor time of all threads so far.
    pub fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The fields follow the name, which may contain blanks and parentheses. Linux reports 100 ticks per second.
        let fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
        Duration::from_millis(fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum())
    }

    /// Returns a memory field of `/proc/PID/status` in bytes: `VmRSS` is the resident memory, `VmHWM` its peak.
    pub fn memory_bytes(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
    }

    /// Replaces the configuration and waits until it is applied or refused. Returns the log line that says so.
    pub fn reload(&self, config: &str) -> String {
        self.configure(config);
        self.signal(rustix::process::Signal::HUP);
        self.logged("configuration ")
    }

    /// Returns the next line of the log that contains `text`.
    pub fn logged(&self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let remaining = until.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(remaining).unwrap_or_else(|_| panic!("nothing is logged of {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Returns the rest of the log, up to the end of the program.
    pub fn rest_of_log(&self) -> Vec<String> {
        self.log.iter().collect()
    }

    /// Opens a connection whose reads fail after [`PATIENCE`].
    pub fn connect(&self) -> Connection {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(BufReader::new(stream))
    }

    /// Like [`Self::connect`], from a loopback address.
    pub fn connect_from(&self, address: &str) -> Connection {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(std::net::SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
            socket.connect(self.address.parse().unwrap()).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(BufReader::new(stream))
    }

    /// Sends a request on a new connection and returns the response.
    pub fn get(&self, path: &str) -> ProgramResponse {
        self.connect().get(path, "").unwrap()
    }

    /// Returns the value of a metric, by its name with its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").body;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.log.iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// A persistent connection.
pub struct Connection(BufReader<TcpStream>);

/// A response. The names of its headers are in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramResponse {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl ProgramResponse {
    /// Returns the length of the body, in bytes.
    pub fn length(&self) -> usize {
        self.header("content-length").map_or(0, |length| length.parse().unwrap())
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Connection {
    /// Sends a request with further header lines and returns the response. Returns `None` if the server closes the
    /// connection.
    pub fn get(&mut self, path: &str, lines: &str) -> Option<ProgramResponse> {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n").ok()?;
        self.read_response()
    }

    /// Sends a request and does not read the response.
    pub fn ask(&mut self, path: &str) {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }

    /// Sends pipelined requests and does not read the responses.
    pub fn ask_all(&mut self, paths: &[&str]) {
        let requests: Vec<String> =
            paths.iter().map(|path| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).collect();
        self.0.get_mut().write_all(requests.concat().as_bytes()).unwrap();
    }

    /// Resets the connection, as when a client crashes.
    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(self.0.get_ref(), Some(Duration::ZERO)).unwrap();
    }

    /// Reads the head of the next response and leaves its body unread. Returns `None` if the server closes the
    /// connection.
    pub fn head(&mut self) -> Option<ProgramResponse> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let head = head.replace("\r\n", "\n");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Some(ProgramResponse { status, head, body: String::new() })
    }

    /// Returns a reader of the next `length` bytes of an unread body.
    pub fn body(&mut self, length: usize) -> impl Read {
        (&mut self.0).take(length as u64)
    }

    /// Reads the next bytes of a body.
    pub fn read(&mut self, bytes: u64) -> Vec<u8> {
        let mut body = vec![0; usize::try_from(bytes).unwrap()];
        self.0.read_exact(&mut body).unwrap();
        body
    }

    /// Reads the next response. Returns `None` if the server closes the connection.
    pub fn read_response(&mut self) -> Option<ProgramResponse> {
        let mut reply = self.head()?;
        let mut body = vec![0; reply.length()];
        self.0.read_exact(&mut body).ok()?;
        reply.body = String::from_utf8_lossy(&body).into_owned();
        Some(reply)
    }
}
