//! Tests of the disk cache as a whole: with a store that counts its requests, real files, and a child process.

#![expect(clippy::disallowed_methods, reason = "the tests look at the files and pass a directory to a child process")]

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::write_queue::{MAX_QUEUED_BYTES, lock};
use super::*;
use crate::config::MinFree;
use crate::store::{
    CachedGet, CachedStat, EntryFilter, InlineLimit, Key, Listing, Object, ObjectData, ObjectMeta, ReadAt,
    Revalidation, Store, StoreError,
};

const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(60);

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// Bytes that depend on the key and the version, so that a wrong object is noticed.
fn content(key: &Key, version: u64, len: usize) -> Bytes {
    let seed = xxh3_64(format!("{key:?} {version}").as_bytes());
    let word = |n: usize| seed.wrapping_add(n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len.div_ceil(8)).flat_map(word).take(len).collect::<Vec<u8>>().into()
}

fn length(key: &Key, version: u64) -> usize {
    usize::try_from(xxh3_64(format!("length {key:?} {version}").as_bytes()) % 20_000).unwrap()
}

fn meta(version: u64, len: usize) -> ObjectMeta {
    ObjectMeta { len: len as u64, modified: None, etag: format!("\"{version}\"").into(), version }
}

/// A store that counts its requests.
#[derive(Debug, Default)]
struct CountingRemote {
    objects: Mutex<BTreeMap<Key, (u64, Bytes)>>,
    requests: Mutex<Vec<String>>,
}

impl CountingRemote {
    fn put(&self, name: &str, version: u64, len: usize) {
        let key = key(name);
        let bytes = content(&key, version, len);
        self.objects.lock().unwrap().insert(key, (version, bytes));
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    fn request(&self, method: &str, key: &Key) -> Option<(ObjectMeta, Bytes)> {
        self.requests.lock().unwrap().push(format!("{method} {}", key.as_str()));
        let objects = self.objects.lock().unwrap();
        objects.get(key).map(|(version, bytes)| (meta(*version, bytes.len()), bytes.clone()))
    }
}

#[derive(Debug)]
struct Body(Bytes);

#[async_trait]
impl ReadAt for Body {
    async fn read_at(&self, range: std::ops::Range<u64>) -> Result<Bytes, StoreError> {
        Ok(self.0.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()))
    }
}

#[async_trait]
impl Store for CountingRemote {
    fn backend(&self) -> &'static str {
        "remote"
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        Ok(self.request("HEAD", key).map(|(meta, _)| meta))
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        Ok(self.request("GET", key).map(|(meta, bytes)| {
            let is_inline = meta.len <= inline.bytes();
            let data = if is_inline { ObjectData::InMemory(bytes) } else { ObjectData::Open(Arc::new(Body(bytes))) };
            Object { meta, data, age: Duration::ZERO }
        }))
    }

    async fn revalidate(&self, key: &Key, known: Option<(&str, u64)>) -> Result<Revalidation, StoreError> {
        Ok(match self.request("GET if changed", key) {
            None if known.is_none() => Revalidation::Unchanged,
            Some((meta, _)) if known.is_some_and(|(etag, _)| *etag == *meta.etag) => Revalidation::Unchanged,
            current => Revalidation::Current(current.map(|(meta, bytes)| Object {
                meta,
                data: ObjectData::Open(Arc::new(Body(bytes))),
                age: Duration::ZERO,
            })),
        })
    }

    async fn is_directory(&self, _key: &Key) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn list(
        &self,
        _key: &Key,
        _after: Option<&str>,
        _limit: usize,
        _filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        Ok(None)
    }

    async fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn limits(size_bytes: u64) -> DiskCacheLimits {
    DiskCacheLimits { size_bytes, min_free: MinFree::Bytes(0), index_bytes: 1 << 20 }
}

fn options(path: &Path, size_bytes: u64) -> (PathBuf, DiskCacheLimits) {
    (path.to_owned(), limits(size_bytes))
}

fn wait_for(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start_unscanned(
    (path, limits): (PathBuf, DiskCacheLimits),
    read_deadline: Duration,
    off_time: Duration,
) -> io::Result<Arc<DiskCache>> {
    DiskCache::start_with(path, limits, read_deadline, off_time)
}

/// Starts a cache whose reads may be slow, because tests run on loaded machines.
fn start(options: (PathBuf, DiskCacheLimits)) -> Arc<DiskCache> {
    let cache = start_unscanned(options, PATIENCE, Duration::from_millis(50)).unwrap();
    wait_for("the scan", || cache.stats().is_ready);
    cache
}

fn flush(cache: &DiskCache) {
    assert!(cache.flush_blocking(PATIENCE));
}

fn store_with(cache: &Arc<DiskCache>, remote: &Arc<CountingRemote>, max_age: Duration) -> DiskCachedStore {
    let inner: Arc<dyn Store> = Arc::clone(remote) as Arc<dyn Store>;
    DiskCachedStore::new(inner, cache.container("s3://bucket/a.n5"), Arc::new(move |_| max_age))
}

async fn bytes_of(store: &DiskCachedStore, name: &str, inline_bytes: u64) -> Option<(u64, Bytes)> {
    let object = store.get(&key(name), &InlineLimit::new(inline_bytes)).await.unwrap()?;
    let bytes = match object.data {
        ObjectData::InMemory(bytes) => bytes,
        ObjectData::Open(reader) => reader.read_at(0..object.meta.len).await.unwrap(),
    };
    Some((object.meta.version, bytes))
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(path) else { return found };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

fn entry_files(path: &Path) -> Vec<PathBuf> {
    let mut found = files(path);
    found.retain(|path| path.file_name().unwrap().len() == 31);
    found
}

/// Returns the space that all files and directories take.
fn disk_usage(path: &Path) -> u64 {
    let own = std::fs::symlink_metadata(path).map_or(0, |metadata| metadata.blocks() * 512);
    let Ok(entries) = std::fs::read_dir(path) else { return own };
    own + entries.flatten().map(|entry| disk_usage(&entry.path())).sum::<u64>()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_a_warm_disk_sends_no_request() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Arc::new(CountingRemote::default());
    let names: Vec<String> = (0..200).map(|n| format!("v/s0/{n}/0/1")).collect();
    for (n, name) in names.iter().enumerate() {
        remote.put(name, n as u64, n * 100);
    }
    for round in 0..3 {
        let cache = start_unscanned(options(directory.path(), 1 << 30), PATIENCE, Duration::from_millis(50)).unwrap();
        if round == 0 {
            wait_for("the scan", || cache.stats().is_ready);
        } else {
            // The scan does not have to end first.
            wait_for("the directory", || cache.stats().is_on);
        }
        let store = store_with(&cache, &remote, HOUR);
        for (n, name) in names.iter().enumerate() {
            // Large ones are returned as open objects.
            let (version, bytes) = bytes_of(&store, name, 10_000).await.unwrap();
            assert_eq!((version, bytes), (n as u64, content(&key(name), n as u64, n * 100)));
        }
        flush(&cache);
        let requests = remote.requests();
        assert_eq!(requests.len(), if round == 0 { 200 } else { 0 }, "{round}: {requests:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_object_is_revalidated_by_one_request() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Arc::new(CountingRemote::default());
    remote.put("v/0", 1, 5000);
    remote.put("v/1", 1, 50_000);
    let cache = start(options(directory.path(), 1 << 30));
    let store = store_with(&cache, &remote, Duration::from_secs(100));
    for name in ["v/0", "v/1"] {
        bytes_of(&store, name, 10_000).await.unwrap();
    }
    flush(&cache);
    remote.requests();
    let age = store.get(&key("v/0"), &InlineLimit::new(10_000)).await.unwrap().unwrap().age;
    assert!(age > Duration::ZERO && age < PATIENCE, "{age:?}");
    cache.0.clock.skip(200);
    for (name, len) in [("v/0", 5000), ("v/1", 50_000)] {
        for expected in [vec![format!("GET if changed {name}")], vec![]] {
            let found = bytes_of(&store, name, 10_000).await.unwrap();
            assert_eq!((found, remote.requests()), ((1, content(&key(name), 1, len)), expected));
        }
    }
    flush(&cache);
    // The time of the comparison survives a restart.
    drop((store, cache));
    let cache = start(options(directory.path(), 1 << 30));
    cache.0.clock.skip(250);
    let store = store_with(&cache, &remote, Duration::from_secs(100));
    bytes_of(&store, "v/0", 10_000).await.unwrap();
    assert_eq!(remote.requests(), [""; 0]);
    // So it does for a file that this process has not checked yet.
    cache.0.clock.skip(200);
    bytes_of(&store, "v/1", 10_000).await.unwrap();
    bytes_of(&store, "v/1", 10_000).await.unwrap();
    assert_eq!(remote.requests(), ["GET if changed v/1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_of_always_revalidates_every_time_and_never_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Arc::new(CountingRemote::default());
    remote.put("v/0", 1, 5000);
    let cache = start(options(directory.path(), 1 << 30));
    let store = store_with(&cache, &remote, Duration::ZERO);
    bytes_of(&store, "v/0", 10_000).await.unwrap();
    flush(&cache);
    bytes_of(&store, "v/0", 10_000).await.unwrap();
    bytes_of(&store, "v/0", 10_000).await.unwrap();
    assert_eq!(remote.requests(), ["GET v/0", "GET if changed v/0", "GET if changed v/0"]);
    cache.0.clock.skip(1 << 30);
    let store = store_with(&cache, &remote, Duration::MAX);
    bytes_of(&store, "v/0", 10_000).await.unwrap();
    assert_eq!(remote.requests(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_object_replaces_the_old_one_and_a_missing_one_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Arc::new(CountingRemote::default());
    remote.put("v/0", 1, 5000);
    let cache = start(options(directory.path(), 1 << 30));
    let store = store_with(&cache, &remote, Duration::from_secs(100));
    bytes_of(&store, "v/0", 10_000).await.unwrap();
    flush(&cache);
    remote.put("v/0", 2, 4000);
    cache.0.clock.skip(200);
    remote.requests();
    let expected = Some((2, content(&key("v/0"), 2, 4000)));
    assert_eq!(bytes_of(&store, "v/0", 10_000).await, expected);
    flush(&cache);
    assert_eq!(bytes_of(&store, "v/0", 10_000).await, expected);
    assert_eq!(remote.requests(), ["GET if changed v/0"]);
    // The caches in memory notice a change first.
    remote.put("v/0", 3, 3000);
    assert!(matches!(store.revalidate(&key("v/0"), Some(("\"2\"", 2))).await.unwrap(), Revalidation::Current(Some(_))));
    remote.requests();
    assert_eq!(bytes_of(&store, "v/0", 10_000).await, Some((3, content(&key("v/0"), 3, 3000))));
    assert_eq!(remote.requests(), ["GET v/0"]);
    flush(&cache);
    // So does a request for metadata.
    remote.put("v/0", 4, 3000);
    assert_eq!(store.head(&key("v/0")).await.unwrap(), Some(meta(4, 3000)));
    assert_eq!(bytes_of(&store, "v/0", 10_000).await, Some((4, content(&key("v/0"), 4, 3000))));
    flush(&cache);
    assert_eq!(store.head_many(vec![key("v/0")]).await.unwrap(), [Some(meta(4, 3000))]);
    remote.requests();
    assert_eq!(bytes_of(&store, "v/0", 10_000).await, Some((4, content(&key("v/0"), 4, 3000))));
    assert_eq!(remote.requests(), [""; 0]);
    remote.objects.lock().unwrap().clear();
    cache.0.clock.skip(200);
    assert_eq!(bytes_of(&store, "v/0", 10_000).await, None);
    flush(&cache);
    assert_eq!((entry_files(directory.path()).len(), cache.stats().used_bytes), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_version_that_waits_to_be_written_does_not_return() {
    let directory = tempfile::tempdir().unwrap();
    let cache = start(options(directory.path(), 1 << 30));
    let container = cache.container("s3://bucket/a.n5");
    // Nothing is written while the directory is locked.
    let guard = cache.0.write_directory();
    let name = key("v/0");
    let now = container.now();
    container.store(&name, &meta(1, 100), &content(&name, 1, 100), now);
    container.remove(&name);
    container.store(&key("v/1"), &meta(1, 100), &content(&key("v/1"), 1, 100), now);
    container.store(&key("v/1"), &meta(2, 200), &content(&key("v/1"), 2, 200), now + 2);
    // The response to an earlier request comes later.
    container.store(&key("v/1"), &meta(1, 100), &content(&key("v/1"), 1, 100), now);
    drop(guard);
    flush(&cache);
    container.store(&key("v/1"), &meta(1, 100), &content(&key("v/1"), 1, 100), now);
    flush(&cache);
    assert_eq!(cache.stats().stored, 1);
    let remote = Arc::new(CountingRemote::default());
    let store = store_with(&cache, &remote, HOUR);
    assert_eq!(bytes_of(&store, "v/0", 10_000).await, None);
    assert_eq!(bytes_of(&store, "v/1", 10_000).await, Some((2, content(&key("v/1"), 2, 200))));
    assert_eq!(entry_files(directory.path()).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_share_the_cache_without_mixing_and_are_forgotten_one_by_one() {
    let directory = tempfile::tempdir().unwrap();
    let name = key("v/0");
    let cache = start(options(directory.path(), 1 << 30));
    let containers = ["s3://a", "s3://b"].map(|identity| cache.container(identity));
    for (version, container) in (1..).zip(&containers) {
        container.store(&name, &meta(version, 100), &content(&name, version, 100), container.now());
    }
    flush(&cache);
    let remote = Arc::new(CountingRemote::default());
    let stores = |cache: &Arc<DiskCache>| {
        ["s3://a", "s3://b"].map(|identity| {
            DiskCachedStore::new(Arc::clone(&remote) as Arc<dyn Store>, cache.container(identity), Arc::new(|_| HOUR))
        })
    };
    let [a, b] = stores(&cache);
    assert_eq!(bytes_of(&a, "v/0", 1000).await, Some((1, content(&name, 1, 100))));
    assert_eq!(bytes_of(&b, "v/0", 1000).await, Some((2, content(&name, 2, 100))));
    containers[0].forget().await.unwrap();
    assert_eq!(bytes_of(&a, "v/0", 1000).await, None);
    assert_eq!(bytes_of(&b, "v/0", 1000).await, Some((2, content(&name, 2, 100))));
    wait_for("the deletion", || entry_files(directory.path()).len() == 1 && cache.stats().objects == 1);
    wait_for("the space", || cache.stats().used_bytes < 8192);
    // It can be filled again.
    containers[0].store(&name, &meta(3, 100), &content(&name, 3, 100), containers[0].now());
    flush(&cache);
    assert_eq!(bytes_of(&a, "v/0", 1000).await, Some((3, content(&name, 3, 100))));
    drop((a, b, containers, cache));
    let cache = start(options(directory.path(), 1 << 30));
    let [a, b] = stores(&cache);
    assert_eq!(bytes_of(&a, "v/0", 1000).await, Some((3, content(&name, 3, 100))));
    assert_eq!(bytes_of(&b, "v/0", 1000).await, Some((2, content(&name, 2, 100))));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_waits_to_be_written_is_forgotten_too() {
    let directory = tempfile::tempdir().unwrap();
    let cache = start(options(directory.path(), 1 << 30));
    let container = cache.container("s3://bucket/a.n5");
    let other = cache.container("s3://bucket/b.n5");
    let name = key("v/0");
    let forgetting = {
        // Nothing is written while the directory is locked.
        let _guard = cache.0.write_directory();
        for container in [&container, &other] {
            container.store(&name, &meta(1, 100), &content(&name, 1, 100), container.now());
        }
        let before = cache.0.read_containers().number(container.identity.hash);
        let forgetting = tokio::spawn(async move { container.forget().await });
        wait_for("the start", || cache.0.read_containers().number(xxh3_64(b"s3://bucket/a.n5")) != before);
        forgetting
    };
    forgetting.await.unwrap().unwrap();
    flush(&cache);
    assert_eq!((cache.stats().stored, cache.stats().objects), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_forgotten_while_the_cache_is_off_has_no_objects_later() {
    let directory = tempfile::tempdir().unwrap();
    let name = key("v/0");
    let first = start(options(directory.path(), 1 << 30));
    let container = first.container("s3://bucket/a.n5");
    container.store(&name, &meta(1, 100), &content(&name, 1, 100), container.now());
    flush(&first);
    let second = start_unscanned(options(directory.path(), 1 << 30), PATIENCE, Duration::from_millis(50)).unwrap();
    second.container("s3://bucket/a.n5").forget().await.unwrap();
    drop((container, first));
    wait_for("the second process", || second.stats().is_ready);
    assert_eq!((second.stats().objects, entry_files(directory.path()).len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_runs_without_the_directory_and_takes_it_over() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Arc::new(CountingRemote::default());
    remote.put("v/0", 1, 5000);
    let first = start(options(directory.path(), 1 << 30));
    bytes_of(&store_with(&first, &remote, HOUR), "v/0", 10_000).await.unwrap();
    flush(&first);
    let second = start_unscanned(options(directory.path(), 1 << 30), PATIENCE, Duration::from_millis(50)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!second.stats().is_on);
    remote.requests();
    let store = store_with(&second, &remote, HOUR);
    assert!(bytes_of(&store, "v/0", 10_000).await.is_some());
    assert_eq!(remote.requests(), ["GET v/0"]);
    drop(first);
    wait_for("the second process", || second.stats().is_ready);
    assert!(bytes_of(&store, "v/0", 10_000).await.is_some());
    assert_eq!(remote.requests(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_others_are_not_touched_and_left_over_files_are_deleted() {
    let directory = tempfile::tempdir().unwrap();
    drop(start(options(directory.path(), 1 << 30)));
    let root = directory.path().join("n5-objects-1");
    let ours = root.join("tmp/00000000000000ff.tmp");
    let others = ["notes.txt", "n5-objects-1/notes.txt", "n5-objects-1/tmp/notes.txt", "n5-objects-1/tmp/12.tmp"];
    std::fs::write(&ours, "half").unwrap();
    std::fs::create_dir_all(root.join("0123456789abcdef/a")).unwrap();
    let others: Vec<PathBuf> = others.iter().map(|name| directory.path().join(name)).collect();
    let others = [others, vec![root.join("0123456789abcdef/a/notes.txt"), root.join("0123456789abcdef/notes.txt")]];
    for other in others.iter().flatten() {
        std::fs::write(other, "mine").unwrap();
    }
    // The leftover of a container that was being deleted.
    std::fs::create_dir_all(root.join("tmp/0000000000000001.forgotten/c")).unwrap();
    std::fs::write(root.join(format!("tmp/0000000000000001.forgotten/c/{:031x}", 7)), "old").unwrap();
    let cache = start(options(directory.path(), 4096));
    assert!(!ours.exists() && !root.join("tmp/0000000000000001.forgotten").exists());
    let container = cache.container("s3://bucket/a.n5");
    for n in 0..50 {
        let name = key(&format!("v/{n}"));
        container.store(&name, &meta(1, 100), &content(&name, 1, 100), container.now());
        flush(&cache);
    }
    container.forget().await.unwrap();
    assert!(others.iter().flatten().all(|path| path.exists()));
    assert_eq!(std::fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
}

/// Damages three of four files.
fn damage_files(directory: &Path, round: u64) {
    for (n, path) in (0..).zip(entry_files(directory)) {
        let mut bytes = std::fs::read(&path).unwrap();
        let at = usize::try_from(xxh3_64(format!("{n} {round}").as_bytes()) % bytes.len() as u64).unwrap();
        match n % 4 {
            0 => bytes[at] ^= 1 << (n % 8),
            1 => bytes.truncate(at),
            2 => bytes.extend_from_slice(b"more"),
            _ => continue,
        }
        std::fs::write(&path, bytes).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_are_never_served_and_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Arc::new(CountingRemote::default());
    let names: Vec<String> = (0..120).map(|n| format!("v/{n}")).collect();
    for name in &names {
        remote.put(name, 1, 3000 + length(&key(name), 1));
    }
    let mut cache = start(options(directory.path(), 1 << 30));
    let mut store = store_with(&cache, &remote, HOUR);
    for name in &names {
        bytes_of(&store, name, 10_000).await.unwrap();
    }
    flush(&cache);
    for round in 0..6_u64 {
        remote.requests();
        if round == 3 {
            drop((store, cache));
            damage_files(directory.path(), round);
            cache = start(options(directory.path(), 1 << 30));
        } else {
            damage_files(directory.path(), round);
        }
        store = store_with(&cache, &remote, HOUR);
        let damaged_before = cache.stats().damaged;
        for name in &names {
            let expected = content(&key(name), 1, 3000 + length(&key(name), 1));
            // Neither by the page cache ...
            let mut buffer = Vec::new();
            if let CachedGet::Object(meta, _) =
                store.page_cache().unwrap().reader().unwrap().get(&key(name), 1 << 20, &mut buffer)
            {
                assert!(buffer == expected && meta.version == 1);
            }
            // ... nor otherwise.
            assert_eq!(bytes_of(&store, name, 10_000).await.unwrap(), (1, expected));
        }
        flush(&cache);
        assert_eq!(cache.stats().damaged - damaged_before, 90, "{round}");
        assert_eq!((entry_files(directory.path()).len(), cache.stats().objects), (120, 120));
        assert!(cache.stats().is_on);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_damaged_after_it_was_opened_is_read_from_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Arc::new(CountingRemote::default());
    remote.put("v/0", 1, 50_000);
    let cache = start(options(directory.path(), 1 << 30));
    let store = store_with(&cache, &remote, HOUR);
    bytes_of(&store, "v/0", 1000).await.unwrap();
    flush(&cache);
    let expected = content(&key("v/0"), 1, 50_000);
    for part in [0..50_000, 700..900] {
        let object = store.get(&key("v/0"), &InlineLimit::new(1000)).await.unwrap().unwrap();
        let ObjectData::Open(reader) = object.data else { panic!("it is larger than the limit") };
        let path = &entry_files(directory.path())[0];
        let file = std::fs::File::options().write(true).open(path).unwrap();
        if part.start == 0 {
            file.write_all_at(b"wrong", 30_000).unwrap();
        } else {
            file.set_len(100).unwrap();
        }
        remote.requests();
        let range = part.start as u64..part.end as u64;
        assert!(reader.read_at(range).await.unwrap() == expected[part]);
        assert_eq!(remote.requests(), ["GET v/0"]);
        assert!(reader.read_at(0..50_001).await.is_err());
        bytes_of(&store, "v/0", 1000).await.unwrap();
        flush(&cache);
    }
    assert!(cache.stats().is_on);
}

/// Returns what the kernel sends of an object.
fn sent(store: &DiskCachedStore, name: &str) -> Option<Vec<u8>> {
    let source = store.page_cache().unwrap().open_for_sendfile(&key(name), 1 << 20)?;
    let (socket, mut other) = UnixStream::pair().unwrap();
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        other.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let mut at = 0;
    while at < source.meta().len {
        at += source.send(socket.as_fd(), at, usize::MAX).unwrap() as u64;
    }
    drop(socket);
    Some(reading.join().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_sends_a_warm_object_once_this_process_has_checked_it() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Arc::new(CountingRemote::default());
    remote.put("v/0", 1, 600_000);
    let expected = content(&key("v/0"), 1, 600_000);
    let cache = start(options(directory.path(), 1 << 30));
    let store = store_with(&cache, &remote, HOUR);
    assert_eq!(sent(&store, "v/0"), None);
    bytes_of(&store, "v/0", 1 << 20).await.unwrap();
    flush(&cache);
    assert_eq!(store.cached_stat(&key("v/0")), CachedStat::Held { len: 600_000, version: 1 });
    assert!(sent(&store, "v/0").unwrap() == expected);
    // A revalidation during the transfer does not end it.
    let source = store.page_cache().unwrap().open_for_sendfile(&key("v/0"), 1 << 20).unwrap();
    cache.container("s3://bucket/a.n5").touch(&key("v/0"), 1, cache.0.clock.now() + 2, true);
    flush(&cache);
    let (socket, _other) = UnixStream::pair().unwrap();
    assert_eq!(source.send(socket.as_fd(), 599_999, 1).unwrap(), 1);
    assert!(sent(&store, "v/0").unwrap() == expected);
    drop((store, cache));
    let cache = start(options(directory.path(), 1 << 30));
    let store = store_with(&cache, &remote, HOUR);
    assert_eq!((store.cached_stat(&key("v/0")), sent(&store, "v/0")), (CachedStat::Unknown, None));
    remote.requests();
    // An open object is checked, too.
    bytes_of(&store, "v/0", 0).await.unwrap();
    assert_eq!(remote.requests(), [""; 0]);
    assert!(sent(&store, "v/0").unwrap() == expected);
    // A file that another program has written is checked again.
    let path = &entry_files(directory.path())[0];
    let mut bytes = std::fs::read(path).unwrap();
    bytes[300_000] ^= 1;
    std::fs::write(path, bytes).unwrap();
    assert_eq!(sent(&store, "v/0"), None);
    // An object that is too old is not sent.
    bytes_of(&store, "v/0", 1 << 20).await.unwrap();
    flush(&cache);
    assert!(sent(&store, "v/0").unwrap() == expected);
    cache.0.clock.skip(4000);
    assert_eq!((store.cached_stat(&key("v/0")), sent(&store, "v/0")), (CachedStat::Unknown, None));
}

/// Ends the tasks of a test, also if it fails.
struct EndGuard(Arc<AtomicBool>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_size_is_never_exceeded_and_the_disk_agrees() {
    const SIZE: u64 = 24 << 20;
    let directory = tempfile::tempdir().unwrap();
    let cache = start(options(directory.path(), SIZE));
    let is_done = Arc::new(AtomicBool::new(false));
    let _end = EndGuard(Arc::clone(&is_done));
    let watcher = std::thread::spawn({
        let (cache, is_done) = (Arc::clone(&cache), Arc::clone(&is_done));
        move || {
            let mut most = 0;
            while !is_done.load(Ordering::Relaxed) {
                most = most.max(cache.stats().used_bytes);
            }
            most
        }
    });
    // Readers never see a wrong object, while objects are evicted.
    let wrong = Arc::new(AtomicU64::new(0));
    let remote = Arc::new(CountingRemote::default());
    for n in 0..6000 {
        let name = format!("v/{n}");
        remote.put(&name, 1, length(&key(&name), 1));
    }
    let readers: Vec<_> = (0..2_u64)
        .map(|reader| {
            let store = store_with(&cache, &remote, HOUR);
            let (is_done, wrong) = (Arc::clone(&is_done), Arc::clone(&wrong));
            tokio::spawn(async move {
                let mut n = 10_000 + reader;
                while !is_done.load(Ordering::Relaxed) {
                    n = xxh3_64(&n.to_le_bytes());
                    let name = format!("v/{}", n % 6000);
                    if let Some((version, bytes)) = bytes_of(&store, &name, 10_000).await
                        && bytes != content(&key(&name), version, length(&key(&name), version))
                    {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                    sent(&store, &name);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let container = cache.container("s3://bucket/a.n5");
    for n in 0..6000 {
        let name = key(&format!("v/{n}"));
        let len = length(&name, 1);
        container.store(&name, &meta(1, len), &content(&name, 1, len), container.now());
        if n % 500 == 0 {
            flush(&cache);
        }
    }
    flush(&cache);
    wait_for("some hits", || cache.stats().hits > 500);
    is_done.store(true, Ordering::Relaxed);
    let most = watcher.join().unwrap();
    for reader in readers {
        reader.await.unwrap();
    }
    flush(&cache);
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    let stats = cache.stats();
    assert!(most <= SIZE && stats.evicted > 1000 && stats.used_bytes > SIZE * 9 / 10, "{most} {stats:?}");
    assert_eq!(stats.objects, entry_files(directory.path()).len() as u64);
    let real = disk_usage(directory.path());
    assert!(real <= SIZE + SIZE / 100, "{real} on the disk, {} counted", stats.used_bytes);
    // A smaller size applies at once.
    cache.set_limits(limits(SIZE / 4));
    wait_for("the eviction", || cache.stats().used_bytes <= SIZE / 4);
    // A restart counts the same.
    let used = cache.stats().used_bytes;
    drop((container, cache));
    assert_eq!(start(options(directory.path(), SIZE)).stats().used_bytes, used);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_the_index_bounds_the_number_of_objects() {
    let directory = tempfile::tempdir().unwrap();
    let limited =
        |objects: u64| (directory.path().to_owned(), DiskCacheLimits { index_bytes: 64 * objects, ..limits(1 << 30) });
    let cache = start(limited(100));
    let container = cache.container("s3://bucket/a.n5");
    for n in 0..300 {
        let name = key(&format!("v/{n}"));
        container.store(&name, &meta(1, 10), &content(&name, 1, 10), container.now());
    }
    flush(&cache);
    let stats = cache.stats();
    assert!((100..=101).contains(&stats.objects), "{stats:?}");
    assert_eq!(entry_files(directory.path()).len() as u64, stats.objects);
    drop((container, cache));
    let stats = start(limited(30)).stats();
    assert_eq!((stats.objects, entry_files(directory.path()).len()), (30, 30));
}

#[tokio::test(flavor = "multi_thread")]
async fn free_space_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let cache = start(options(directory.path(), 1 << 30));
    let container = cache.container("s3://bucket/a.n5");
    for n in 0..100 {
        let name = key(&format!("v/{n}"));
        container.store(&name, &meta(1, 5000), &content(&name, 1, 5000), container.now());
    }
    flush(&cache);
    assert_eq!(cache.stats().objects, 100);
    // More than there is: everything is deleted.
    cache.set_limits(DiskCacheLimits { min_free: MinFree::Bytes(u64::MAX), ..limits(1 << 30) });
    wait_for("the eviction", || cache.stats().objects == 0);
    let name = key("v/0");
    container.store(&name, &meta(1, 5000), &content(&name, 1, 5000), container.now());
    flush(&cache);
    let stats = cache.stats();
    assert_eq!((stats.objects, stats.dropped_for_space, stats.is_on), (0, 1, true));
    assert_eq!(MinFree::Percent(5).bytes(2000), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_disk_delays_few_requests_and_is_turned_off_for_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Arc::new(CountingRemote::default());
    remote.put("v/0", 1, 5000);
    let deadline = Duration::from_millis(100);
    let cache = start_unscanned(options(directory.path(), 1 << 30), deadline, Duration::from_millis(500)).unwrap();
    wait_for("the scan", || cache.stats().is_ready);
    let store = store_with(&cache, &remote, HOUR);
    bytes_of(&store, "v/0", 10_000).await.unwrap();
    flush(&cache);
    *lock(&cache.0.read_delay) = Duration::from_secs(3);
    for _ in 0..3 {
        assert!(cache.stats().is_on);
        remote.requests();
        assert!(bytes_of(&store, "v/0", 10_000).await.is_some());
        assert_eq!(remote.requests(), ["GET v/0"]);
    }
    assert!(!cache.stats().is_on);
    *lock(&cache.0.read_delay) = Duration::ZERO;
    wait_for("the end of the pause", || cache.stats().is_ready);
    // While the cache was off, it was not told of changes. So its objects are compared once.
    cache.0.clock.skip(2);
    remote.requests();
    for expected in [vec!["GET if changed v/0"], vec![]] {
        assert!(bytes_of(&store, "v/0", 10_000).await.is_some());
        assert_eq!(remote.requests(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_vanishes_disturbs_no_request_and_is_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    let remote = Arc::new(CountingRemote::default());
    let cache = start(options(&path, 1 << 30));
    let store = store_with(&cache, &remote, HOUR);
    for round in 0..2 {
        for n in 0..20 {
            let name = format!("v/{n}");
            remote.put(&name, 1, 5000);
            let expected = content(&key(&name), 1, 5000);
            assert_eq!(bytes_of(&store, &name, 10_000).await.unwrap().1, expected);
            flush(&cache);
        }
        if round == 0 {
            std::fs::remove_dir_all(&path).unwrap();
        }
    }
    wait_for("a new directory", || cache.stats().is_ready && path.join("n5-objects-1/lock").exists());
    assert!(bytes_of(&store, "v/0", 10_000).await.is_some());
    flush(&cache);
    assert!(!entry_files(&path).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_bounded_and_drops_objects() {
    let directory = tempfile::tempdir().unwrap();
    let cache = start(options(directory.path(), 1 << 30));
    let container = cache.container("s3://bucket/a.n5");
    let guard = cache.0.write_directory();
    for n in 0..100 {
        let name = key(&format!("v/{n}"));
        container.store(&name, &meta(1, 1 << 20), &vec![7; 1 << 20].into(), container.now());
        assert!(cache.stats().queued_bytes <= MAX_QUEUED_BYTES);
    }
    assert_eq!(cache.stats().dropped_by_queue, 68);
    drop(guard);
    flush(&cache);
    assert_eq!((cache.stats().stored, cache.stats().queued_bytes), (32, 0));
    for n in 0..20_000 {
        container.store(&key(&format!("w/{n}")), &meta(1, 3), &vec![7; 3].into(), container.now());
    }
    flush(&cache);
    assert_eq!(cache.stats().queued_bytes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_too_large_are_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Arc::new(CountingRemote::default());
    remote.put("v/0", 1, (16 << 20) + 1);
    remote.put("v/1", 1, 16 << 20);
    let cache = start(options(directory.path(), 1 << 30));
    let store = store_with(&cache, &remote, HOUR);
    for _ in 0..2 {
        for name in ["v/0", "v/1"] {
            assert!(bytes_of(&store, name, 1 << 20).await.is_some());
            flush(&cache);
        }
    }
    assert_eq!(remote.requests(), ["GET v/0", "GET v/1", "GET v/0"]);
}

/// A file system of 3 MiB, which is unmounted at the end.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Mounts a file system, if this process may.
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let arguments = ["-t", "tmpfs", "-o", "size=3m", "tmpfs"];
        let mounted = Command::new("mount").args(arguments).arg(directory.path()).stderr(Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(directory))
    }

    fn remount(&self, mode: &str) {
        let option = format!("remount,{mode}");
        assert!(Command::new("mount").args(["-o", &option]).arg(self.0.path()).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_disturbs_no_request() {
    let Some(disk) = SmallDisk::mount() else { return };
    let remote = Arc::new(CountingRemote::default());
    let cache = start(options(disk.0.path(), 1 << 30));
    let store = store_with(&cache, &remote, HOUR);
    for n in 0..400 {
        let name = format!("v/{n}");
        remote.put(&name, 1, length(&key(&name), 1));
        for _ in 0..2 {
            let expected = content(&key(&name), 1, length(&key(&name), 1));
            assert_eq!(bytes_of(&store, &name, 20_000).await.unwrap().1, expected);
            flush(&cache);
        }
        if n % 50 == 0 {
            // The pause after the disk was full.
            cache.0.clock.skip(11);
        }
    }
    let stats = cache.stats();
    assert!(stats.is_on && stats.stored > 100 && stats.dropped_for_space > 10 && stats.evicted > 10, "{stats:?}");
    assert_eq!((stats.damaged, stats.faults), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_becomes_read_only_disturbs_no_request() {
    let Some(disk) = SmallDisk::mount() else { return };
    let remote = Arc::new(CountingRemote::default());
    let cache = start(options(disk.0.path(), 1 << 20));
    let store = store_with(&cache, &remote, HOUR);
    for (round, mode) in ["rw", "ro", "rw"].into_iter().enumerate() {
        disk.remount(mode);
        if round == 2 {
            wait_for("the end of the pause", || cache.stats().is_ready);
        }
        for n in 0..10 {
            let name = format!("v/{round}/{n}");
            remote.put(&name, 1, 5000);
            assert_eq!(bytes_of(&store, &name, 10_000).await.unwrap().1, content(&key(&name), 1, 5000));
            flush(&cache);
        }
        if round == 1 {
            assert!(!cache.stats().is_on);
        }
    }
    assert!(cache.stats().objects >= 20);
}

#[derive(Debug, Clone)]
enum Step {
    Put(u64, usize),
    Delete(u64),
    Get(u64),
    Skip(u32),
    Restart,
    Forget,
    Damage(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..12_u64, 0..9000_usize).prop_map(|(n, len)| Step::Put(n, len)),
        1 => (0..12_u64).prop_map(Step::Delete),
        20 => (0..12_u64).prop_map(Step::Get),
        2 => (1..80_u32).prop_map(Step::Skip),
        1 => Just(Step::Restart),
        1 => Just(Step::Forget),
        1 => any::<u64>().prop_map(Step::Damage),
    ];
    proptest::collection::vec(step, 1..80)
}

/// Version and length of an object, or `None` if it was missing, and the time at which that changed.
type PastObject = (Option<(u64, usize)>, Option<u32>);

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn every_object_is_one_that_the_store_had_within_the_time(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let remote = Arc::new(CountingRemote::default());
        let max_age = Duration::from_secs(50);
        let size = 12 * 4200;
        let mut cache = start(options(directory.path(), size));
        let mut store = store_with(&cache, &remote, max_age);
        let mut time = 0;
        let mut version = 0;
        let mut versions: BTreeMap<u64, Vec<PastObject>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(n, len) => {
                    version += 1;
                    remote.put(&format!("v/{n}"), version, len);
                    let history = versions.entry(n).or_insert_with(|| vec![(None, None)]);
                    history.last_mut().unwrap().1 = Some(time);
                    history.push((Some((version, len)), None));
                }
                Step::Delete(n) => {
                    remote.objects.lock().unwrap().remove(&key(&format!("v/{n}")));
                    let history = versions.entry(n).or_insert_with(|| vec![(None, None)]);
                    history.last_mut().unwrap().1 = Some(time);
                    history.push((None, None));
                }
                Step::Get(n) => {
                    let name = format!("v/{n}");
                    let found = runtime.block_on(bytes_of(&store, &name, 4000));
                    flush(&cache);
                    let history = versions.entry(n).or_insert_with(|| vec![(None, None)]);
                    let is_allowed = history.iter().any(|(object, until)| {
                        let is_recent = until.is_none_or(|until| until + 50 >= time);
                        let expected = object.map(|(version, len)| (version, content(&key(&name), version, len)));
                        is_recent && expected == found
                    });
                    prop_assert!(is_allowed, "{} at {}: {:?}", name, time, found.map(|(version, _)| version));
                }
                Step::Skip(seconds) => {
                    time += seconds;
                    cache.0.clock.skip(seconds);
                }
                Step::Restart => {
                    drop((store, cache));
                    cache = start(options(directory.path(), size));
                    cache.0.clock.skip(time);
                    store = store_with(&cache, &remote, max_age);
                }
                Step::Forget => {
                    runtime.block_on(cache.container("s3://bucket/a.n5").forget()).unwrap();
                    // From now on, nothing from before is allowed.
                    for history in versions.values_mut() {
                        drop(history.drain(..history.len() - 1));
                    }
                }
                Step::Damage(random) => {
                    let files = entry_files(directory.path());
                    if let Some(path) = files.get(usize::try_from(random % 100).unwrap() % files.len().max(1)) {
                        // A forgotten file may be deleted at any time.
                        let Ok(mut file) = std::fs::File::options().read(true).write(true).open(path) else { continue };
                        let mut bytes = Vec::new();
                        file.read_to_end(&mut bytes).unwrap();
                        let at = random % bytes.len() as u64;
                        file.write_all_at(&[bytes[usize::try_from(at).unwrap()] ^ 1], at).unwrap();
                    }
                }
            }
            prop_assert!(cache.stats().used_bytes <= size);
        }
        prop_assert_eq!(cache.stats().faults, 0);
    }
}

/// Variable with the directory for the child process of the next test.
const CHILD_DIRECTORY: &str = "DISK_CACHE_CHILD_DIRECTORY";

/// Number of objects that the child process writes.
const CHILD_OBJECTS: u64 = 300;

/// The child process: writes versions of objects and deletes some, until it is killed.
#[test]
#[ignore = "runs as a child process of the next test"]
fn child_process_that_writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD_DIRECTORY) else { return };
    let cache = start(options(Path::new(&directory), 1 << 20));
    let container = cache.container("s3://bucket/a.n5");
    let mut stdout = io::stdout();
    stdout.write_all(b"started\n").unwrap();
    stdout.flush().unwrap();
    for n in 0.. {
        let name = key(&format!("v/{}", n * 7 % CHILD_OBJECTS));
        let len = length(&name, n);
        match n % 10 {
            0 => container.remove(&name),
            1 => container.touch(&name, n.saturating_sub(300), container.now(), false),
            _ => container.store(&name, &meta(n, len), &content(&name, n, len), container.now()),
        }
        if n % 100 == 0 {
            flush(&cache);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_while_it_writes_leaves_a_cache_without_faults() {
    let directory = tempfile::tempdir().unwrap();
    let rounds = std::env::var("N5_DISK_CACHE_KILLS").map_or(4, |rounds| rounds.parse().unwrap());
    let mut found = 0;
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::disk_cache::tests::child_process_that_writes_until_it_is_killed"])
            .args(["--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD_DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = String::new();
        let mut byte = [0];
        while !output.ends_with("started\n") {
            child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
            output.push(char::from(byte[0]));
        }
        std::thread::sleep(Duration::from_millis(20 + round * 37 % 200));
        child.kill().unwrap();
        child.wait().unwrap();
        let cache = start(options(directory.path(), 1 << 20));
        let temporary = directory.path().join("n5-objects-1/tmp");
        assert_eq!(files(&temporary), Vec::<PathBuf>::new());
        let stats = cache.stats();
        assert!(stats.used_bytes <= 1 << 20, "{stats:?}");
        assert_eq!(stats.objects, entry_files(directory.path()).len() as u64);
        let store = store_with(&cache, &Arc::default(), HOUR);
        for n in 0..CHILD_OBJECTS {
            let name = format!("v/{n}");
            if let Some((version, bytes)) = bytes_of(&store, &name, 10_000).await {
                assert!(bytes == content(&key(&name), version, length(&key(&name), version)), "{name} {version}");
                found += 1;
            }
        }
        let stats = cache.stats();
        assert_eq!((stats.damaged, stats.faults), (0, 0), "{stats:?}");
    }
    assert!(found > 20 * rounds, "{found}");
}
