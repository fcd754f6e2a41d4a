//! Nothing outside a container's root can be read or detected through it, even if paths are swapped during the access.
//! Special files are not opened.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use n5_server::store::{
    CachedGet, CachedStat, FilterDecision, InlineLimit, Key, LocalStore, ObjectData, PageCache, Store, StoreError,
    SymlinkPolicy,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;

fn key(path: &str) -> Key {
    Key::parse(path).unwrap()
}

/// Writes a file with an old modification time, so that its timestamps distinguish its versions.
fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    let modified = SystemTime::now() - Duration::from_secs(60);
    fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

const SECRET: &str = "secret bytes from outside";

/// Swaps the paths of each pair repeatedly until dropped.
struct Swapping {
    is_over: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Swapping {
    fn begin(pairs: Vec<(std::path::PathBuf, std::path::PathBuf)>) -> Self {
        let (is_over, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&is_over), Arc::clone(&swaps));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                for (a, b) in &pairs {
                    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { is_over, swaps, thread: Some(thread) }
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

async fn assert_contained(store: &LocalStore, path: &str, context: &str) {
    let path = key(path);
    let is_ours = |len: u64| assert_eq!(len, 6, "{context} {path:?}: the size of what is outside");
    if let Ok(Some(meta)) = store.head(&path).await {
        is_ours(meta.len);
    }
    if let CachedStat::Object(facts) = store.cached_stat(&path) {
        is_ours(facts.len);
    }
    for inline in [100, 0] {
        let Ok(Some(object)) = store.get(&path, &InlineLimit::new(inline)).await else { continue };
        is_ours(object.meta.len);
        let bytes = match object.data {
            ObjectData::InMemory(bytes) => bytes,
            ObjectData::Open(reader) => match reader.read_at(0..object.meta.len).await {
                Ok(bytes) => bytes,
                Err(_) => continue,
            },
        };
        assert_eq!(bytes, "inside", "{context} {path:?}");
    }
    let mut room = Vec::new();
    let reader = store.page_cache().and_then(PageCache::reader);
    let read = reader.map(|mut reader| reader.get(&path, 100, &mut room));
    if let Some(CachedGet::Object(..)) = read {
        assert_eq!(room, b"inside", "{context} {path:?}");
    }
    if let Some(file) = store.page_cache().and_then(|cache| cache.open_for_sendfile(&path, 100)) {
        is_ours(file.meta().len);
    }
}

/// Checks that the store neither returns nor lists objects that exist only outside, and that its results do not depend
/// on their existence.
async fn assert_unseen(store: &LocalStore, context: &str) {
    for directory in ["d", "d/sub"] {
        let only_outside = key(&format!("{directory}/only-outside"));
        assert!(!matches!(store.head(&only_outside).await, Ok(Some(_))), "{context}: its existence is visible");
        assert!(!matches!(store.is_directory(&key("d/folder")).await, Ok(true)), "{context}: a directory is visible");
        let listed = store.list(&key(directory), None, 99, FilterDecision::keep_all()).await;
        if let Ok(Some(listing)) = listed {
            let names: Vec<_> = listing.entries.iter().map(|entry| entry.name.as_str()).collect();
            assert!(!names.contains(&"only-outside") && !names.contains(&"folder"), "{context}: {names:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swapping_a_directory_for_a_link_never_exposes_outside_files() {
    for (policy, by_steps) in [
        (SymlinkPolicy::Inside, false),
        (SymlinkPolicy::Inside, true),
        (SymlinkPolicy::Deny, false),
        (SymlinkPolicy::Deny, true),
    ] {
        let (dir, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let context = format!("{policy:?}, by steps: {by_steps}");
        for path in ["d/0", "d/sub/0", "file"] {
            write(&dir.path().join(path), "inside");
        }
        for path in ["0", "sub/0", "only-outside", "sub/only-outside", "folder/x"] {
            write(&outside.path().join(path), SECRET);
        }
        symlink(outside.path(), dir.path().join("link")).unwrap();
        symlink(outside.path().join("0"), dir.path().join("file-link")).unwrap();
        // Links to the directory that is swapped, and one that leaves the root and returns through it.
        symlink("d", dir.path().join("to-d")).unwrap();
        symlink("d/../d/sub", dir.path().join("winding")).unwrap();
        symlink(dir.path().join("d"), dir.path().join("absolute")).unwrap();
        let store = LocalStore::open(dir.path(), policy, Duration::from_secs(5)).unwrap();
        let store = if by_steps { store.without_openat2() } else { store };
        let at = |name: &str| dir.path().join(name);
        let swapping = Swapping::begin(vec![(at("d"), at("link")), (at("file"), at("file-link"))]);
        let until = Instant::now() + Duration::from_millis(1500);
        let mut rounds = 0;
        while Instant::now() < until || swapping.swaps.load(Ordering::Relaxed) < 2000 {
            for path in ["d/0", "d/sub/0", "file", "to-d/0", "winding/0", "absolute/0", "link/0", "file-link"] {
                assert_contained(&store, path, &context).await;
            }
            assert_unseen(&store, &context).await;
            rounds += 1;
            assert!(Instant::now() < until + Duration::from_secs(30), "{context}: {rounds} rounds");
        }
        drop(swapping);
    }
}

#[tokio::test]
async fn a_link_does_not_reveal_what_exists_outside() {
    let (dir, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    write(&outside.path().join("there/file"), SECRET);
    let root = dir.path().file_name().unwrap().to_str().unwrap();
    let parent = dir.path().parent().unwrap();
    for name in ["there", "gone"] {
        let at = outside.path().join(name);
        symlink(&at, dir.path().join(format!("{name}-1"))).unwrap();
        symlink(at.join("file"), dir.path().join(format!("{name}-2"))).unwrap();
        // Through the outside path and back into the root.
        let back = "../".repeat(at.components().count() - 1);
        let back = at.join(back).join(parent.strip_prefix("/").unwrap()).join(root);
        symlink(back, dir.path().join(format!("{name}-3"))).unwrap();
    }
    // Links through /proc/PID/root of a process that exists, and of one that does not.
    let through = |process: &str| format!("/proc/{process}/root{}", dir.path().display());
    symlink(through("self"), dir.path().join("there-4")).unwrap();
    symlink(through("4999999"), dir.path().join("gone-4")).unwrap();
    write(&dir.path().join("0"), "inside");
    for policy in [SymlinkPolicy::Inside, SymlinkPolicy::Deny] {
        let store = LocalStore::open(dir.path(), policy, Duration::from_secs(5)).unwrap();
        for store in [store.clone(), store.without_openat2()] {
            for name in ["there", "gone"] {
                for path in ["1", "1/file", "2", "3", "3/0", "4", "4/0"].map(|end| format!("{name}-{end}")) {
                    let path = key(&path);
                    let found = store.head(&path).await;
                    assert!(
                        matches!(&found, Err(StoreError::LinkNotFollowed(at)) if *at == path),
                        "{policy:?} {found:?}"
                    );
                    assert!(!store.is_directory(&path).await.unwrap(), "{policy:?} {path:?}");
                    assert!(
                        store.list(&path, None, 9, FilterDecision::keep_all()).await.unwrap().is_none(),
                        "{policy:?} {path:?}"
                    );
                    assert_eq!(store.cached_stat(&path), CachedStat::Unknown);
                }
            }
        }
    }
}

#[tokio::test]
async fn an_endless_link_is_given_up() {
    let dir = TempDir::new().unwrap();
    write(&dir.path().join("a/b/0"), "inside");
    // Each link doubles the number of components to resolve.
    symlink("a/../a/../a/..", dir.path().join("0")).unwrap();
    for n in 1..30 {
        symlink(format!("{p}/{p}", p = n - 1), dir.path().join(n.to_string())).unwrap();
    }
    symlink("a/../".repeat(800), dir.path().join("long")).unwrap();
    let store = LocalStore::open(dir.path(), SymlinkPolicy::Inside, Duration::from_secs(5)).unwrap().without_openat2();
    let started = Instant::now();
    assert!(store.head(&key("2/a/b/0")).await.unwrap().is_some());
    for path in ["29/a/b/0", "long/a/b/0"] {
        assert!(matches!(store.head(&key(path)).await, Err(StoreError::DanglingLink(_))), "{path}");
    }
    assert!(started.elapsed() < Duration::from_secs(2));
}

/// Starts a process that writes into a FIFO as soon as it has a reader.
fn writer(fifo: &Path) -> Child {
    let write = format!("echo written > '{}'", fifo.display());
    let child = Command::new("sh").args(["-c", &write]).stderr(Stdio::null()).spawn().unwrap();
    // Gives the process time to open the FIFO.
    std::thread::sleep(Duration::from_millis(100));
    child
}

#[tokio::test]
async fn a_fifo_is_never_opened() {
    let dir = TempDir::new().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
    symlink("fifo", dir.path().join("to-fifo")).unwrap();
    let mut writing = writer(&fifo);
    for policy in [SymlinkPolicy::Inside, SymlinkPolicy::Deny, SymlinkPolicy::Follow] {
        let store = LocalStore::open(dir.path(), policy, Duration::from_secs(5)).unwrap();
        for store in [store.clone(), store.without_openat2()] {
            for path in ["fifo", "to-fifo"] {
                let path = key(path);
                assert!(!matches!(store.get(&path, &InlineLimit::new(100)).await, Ok(Some(_))));
                assert!(!matches!(store.head(&path).await, Ok(Some(_))));
                assert!(store.page_cache().and_then(|cache| cache.open_for_sendfile(&path, 100)).is_none());
                let read = store
                    .page_cache()
                    .and_then(PageCache::reader)
                    .map(|mut reader| reader.get(&path, 100, &mut Vec::new()));
                assert!(!matches!(read, Some(CachedGet::Object(..))));
                assert!(!matches!(store.list(&path, None, 9, FilterDecision::keep_all()).await, Ok(Some(_))));
            }
            store.list(&Key::root(), None, 9, FilterDecision::keep_all()).await.unwrap().unwrap();
        }
    }
    // Gives the writer time to end, if the store has opened the FIFO.
    std::thread::sleep(Duration::from_millis(100));
    assert!(writing.try_wait().unwrap().is_none(), "the writer still waits");
    // The writer finishes as soon as there is a reader.
    assert_eq!(fs::read_to_string(&fifo).unwrap(), "written\n");
    assert!(writing.wait().unwrap().success());
}
