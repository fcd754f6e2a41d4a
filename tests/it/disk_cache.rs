//! The cache on disk of the real program, in front of an HTTP server that records its requests.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use n5_server::cache::RevalidationPolicy;
use n5_server::config::MinFree;
use n5_server::container::{Container, NonblockingLookup, Resources, Settings};
use n5_server::store::{DiskCache, DiskCacheLimits, Key, Store};

use crate::support::program::Program;
use crate::support::remote::Remote;
use crate::support::{settings, wait_until_blocking};

/// An HTTP server of objects in memory. It records the requests.
struct ObjectServer {
    url: String,
    state: Arc<Mutex<ObjectServerState>>,
}

#[derive(Default)]
struct ObjectServerState {
    /// Number of the version and content, by path.
    objects: BTreeMap<String, (u32, Vec<u8>)>,
    requests: Vec<String>,
}

impl ObjectServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<Mutex<ObjectServerState>>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || answer_all(socket, &shared));
            }
        });
        Self { url, state }
    }

    fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        let mut state = self.state.lock().unwrap();
        let version = state.objects.get(path).map_or(1, |(version, _)| version + 1);
        state.objects.insert(path.to_owned(), (version, bytes.into()));
    }

    /// Returns the requests since the last call, such as "GET /a/v/0".
    fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

/// Answers the requests of a connection.
fn answer_all(socket: TcpStream, state: &Mutex<ObjectServerState>) -> Option<()> {
    let mut reader = BufReader::new(socket);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            head.push(line.trim().to_ascii_lowercase());
        }
        let mut words = head.first()?.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?.to_uppercase(), words.next()?);
        let condition = head.iter().find_map(|line| line.strip_prefix("if-none-match: "));
        let mut state = state.lock().unwrap();
        let if_changed = if condition.is_some() { " if changed" } else { "" };
        state.requests.push(format!("{method}{if_changed} {path}"));
        let (status, tag, body) = match state.objects.get(&path) {
            None => ("404 Not Found", String::new(), Vec::new()),
            Some((version, _)) if condition == Some(&*format!("\"{version}\"")) => {
                ("304 Not Modified", format!("ETag: \"{version}\"\r\n"), Vec::new())
            }
            Some((version, bytes)) => ("200 OK", format!("ETag: \"{version}\"\r\n"), bytes.clone()),
        };
        drop(state);
        let socket = reader.get_mut();
        write!(socket, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{tag}\r\n", body.len()).ok()?;
        if method != "HEAD" {
            socket.write_all(&body).ok()?;
        }
    }
}

/// Returns a raw block of `len` elements, all equal to `value`.
fn block(len: u32, value: u8) -> Vec<u8> {
    [&[0, 0, 0, 1][..], &len.to_be_bytes(), &vec![value; usize::try_from(len).unwrap()]].concat()
}

/// Elements of a block: so many that the kernel sends a block, and with a length that is UTF-8.
const BLOCK: u32 = 0x0002_0000;

/// Serves two containers with equal keys and different content.
fn server() -> ObjectServer {
    let server = ObjectServer::start();
    for (container, value) in [("a", b'A'), ("b", b'B')] {
        let attributes = format!(
            r#"{{"dimensions":[{}],"blockSize":[{BLOCK}],"dataType":"uint8","compression":{{"type":"raw"}}}}"#,
            3 * BLOCK
        );
        server.put(&format!("/{container}/v/attributes.json"), attributes);
        for n in 0..3 {
            server.put(&format!("/{container}/v/{n}"), block(BLOCK, value));
        }
    }
    server
}

fn config(server: &ObjectServer, disk: &Path, more: &str) -> String {
    let containers =
        ["a", "b"].map(|name| format!("[[containers]]\nname = \"{name}\"\nroot = \"{}/{name}\"\n{more}\n", server.url));
    format!("[cache.disk]\npath = \"{}\"\nmin_free = \"0\"\n{}", disk.display(), containers.concat())
}

/// Starts a program, and waits until it uses its cache on disk.
fn start(config: &str) -> Program {
    let program = Program::start(config);
    // Nothing is written until the directory has been scanned.
    program.logged("the disk cache is ready");
    program
}

/// Requests every object of both containers, and a slice of each.
fn walk(program: &Program) {
    for (name, value) in [("a", "A"), ("b", "B")] {
        let attributes = program.get(&format!("/{name}/v/attributes.json"));
        assert_eq!(attributes.status, 200, "{}", attributes.body);
        for n in 0..3 {
            let stored = program.get(&format!("/{name}/v/{n}"));
            assert!(stored.status == 200 && stored.body.len() > 0x2_0000 && stored.body.ends_with(value), "{name} {n}");
        }
        let slice = program.get(&format!("/slice/{name}/v?start=9&stop=14&format=raw"));
        assert_eq!((slice.status, slice.body), (200, value.repeat(5)));
    }
}

fn wait_until_stored(program: &Program, objects: f64) {
    let stored = || program.metric("n5_disk_cache_stored_total");
    assert!(wait_until_blocking(|| stored() == Some(objects)), "{:?}", stored());
}

/// Returns the files of objects.
fn object_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(object_files(&path));
        } else if fs::metadata(&path).unwrap().len() > 100 {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_restart_with_a_warm_disk_sends_no_request_and_a_damaged_file_one() {
    let (server, disk) = (server(), tempfile::tempdir().unwrap());
    let config = config(&server, disk.path(), "");
    let program = start(&config);
    walk(&program);
    wait_until_stored(&program, 8.0);
    // Killed, as by `kill -9`.
    drop(program);
    let program = start(&config);
    server.take_requests();
    // A client revalidates what it has.
    let stored = program.connect().get("/b/v/2", "If-None-Match: \"1\"\r\n").unwrap();
    assert_eq!((stored.status, stored.body), (304, String::new()));
    for _ in 0..2 {
        walk(&program);
    }
    assert_eq!(server.take_requests(), [""; 0], "the disk has everything");
    drop(program);

    let is_block = |path: &PathBuf| fs::metadata(path).unwrap().len() > u64::from(BLOCK);
    let damaged = object_files(disk.path()).into_iter().find(is_block).unwrap();
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[5000] ^= 4;
    fs::write(&damaged, bytes).unwrap();
    let program = start(&config);
    server.take_requests();
    walk(&program);
    let requests = server.take_requests();
    assert!(requests.len() == 1 && requests[0].starts_with("GET /"), "{requests:?}");
    assert_eq!(program.metric("n5_disk_cache_damaged_total"), Some(1.0));
}

#[test]
fn old_objects_are_revalidated_and_forgotten_ones_are_requested_again() {
    let (server, disk) = (server(), tempfile::tempdir().unwrap());
    let always = config(&server, disk.path(), "recheck_cached_data = \"always\"");
    let program = start(&always);
    let path = "/a/v/1";
    program.get(path);
    wait_until_stored(&program, 1.0);
    drop(program);
    let program = start(&always);
    server.take_requests();
    assert!(program.get(path).body.ends_with('A'));
    assert_eq!(server.take_requests(), ["GET if changed /a/v/1"], "unchanged");
    server.put(path, block(BLOCK, b'C'));
    assert!(program.get(path).body.ends_with('C'));
    assert_eq!(server.take_requests(), ["GET if changed /a/v/1"], "changed");

    // From now on nothing is revalidated, so the server is wrong until it forgets.
    let immutable =
        |generation: u64| config(&server, disk.path(), &format!("immutable = true\ncache_generation = {generation}"));
    program.reload(&immutable(0));
    let slice = "/slice/a/v?start=131072&stop=131074&format=raw";
    let missing = "/b/w/0";
    // The objects before and after the missing one show that its 404 was no outage.
    for path in [path, slice, "/b/v/0", missing, "/b/v/1"] {
        program.get(path);
    }
    server.put(path, block(BLOCK, b'D'));
    server.put(missing, block(BLOCK, b'D'));
    server.take_requests();
    assert!(program.get(path).body.ends_with('C') && program.get(slice).body == "CC");
    assert_eq!((program.get(missing).status, server.take_requests()), (404, vec![]));
    program.reload(&immutable(1));
    assert!(program.get(path).body.ends_with('D') && program.get(slice).body == "DD");
    assert_eq!(program.get(missing).status, 200);
    assert!(server.take_requests().contains(&"GET /a/v/1".to_owned()));
    // The old objects do not return with a restart.
    drop(program);
    let program = start(&immutable(1));
    assert!(program.get(path).body.ends_with('D'));
}

#[tokio::test]
async fn objects_of_the_disk_are_read_or_sent_by_the_kernel_without_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let limits = DiskCacheLimits { size_bytes: 1 << 30, min_free: MinFree::Bytes(0), index_bytes: 1 << 20 };
    let cache = DiskCache::start(directory.path().to_owned(), limits).unwrap();
    assert!(wait_until_blocking(|| cache.stats().is_ready));
    let remote = Arc::new(Remote::default());
    let an_hour = RevalidationPolicy::After(Duration::from_secs(3600));
    // Each container has caches in memory of its own.
    let container = || {
        let resources = Resources::new(Settings { recheck_data: an_hour, ..settings() });
        let container = Container::new(Arc::<Remote>::clone(&remote) as Arc<dyn Store>, resources);
        container.with_disk_cache(cache.container("remote"))
    };
    let [small, large] = ["v/0/0", "v/0/1"].map(|key| Key::parse(key).unwrap());
    remote.put(small.as_str(), vec![1; 1000]);
    remote.put(large.as_str(), vec![2; 200_000]);
    let first = container();
    for key in [&small, &large] {
        assert!(first.object(Container::new_read_options(), key).await.unwrap().is_some());
    }
    assert_eq!(remote.take_requests(), ["GET v/0/0", "GET v/0/1"]);
    assert!(cache.flush_blocking(Duration::from_secs(60)));

    let second = container();
    let find = |key, with_bytes| second.try_object(Container::new_read_options(), key, with_bytes).unwrap();
    let NonblockingLookup::Object(meta, None, None) = find(&large, false) else { panic!("only metadata") };
    assert_eq!((meta.len, &*meta.etag), (200_000, "\"1\""));
    let NonblockingLookup::Sendfile(file) = find(&large, true) else { panic!("an open file") };
    assert_eq!(file.meta(), &meta);
    let NonblockingLookup::Object(meta, Some(bytes), _) = find(&small, true) else { panic!("the bytes") };
    assert_eq!((meta.len, bytes), (1000, vec![1; 1000].into()));
    assert!(matches!(find(&small, true), NonblockingLookup::Object(_, Some(_), Some(_))), "now it is in memory");
    assert!(second.meta(Container::new_read_options(), &large).await.unwrap().is_some());
    assert_eq!(remote.take_requests(), [""; 0]);
    // What the store says about absence is not on the disk.
    let missing = Key::parse("v/0/2").unwrap();
    assert!(second.try_object(Container::new_read_options(), &missing, true).is_none());
}
