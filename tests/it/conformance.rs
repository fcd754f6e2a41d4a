//! The conformance suite of stores, run against each of them.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use n5_server::store::{
    CachedGet, CachedStat, DirEntry, EntryFilter, FilterDecision, InlineLimit, Key, LocalStore, MemoryStore,
    ObjectData, ObjectMeta, PageCache, Store, StoreError, SymlinkPolicy,
};
use tempfile::TempDir;

use crate::support::let_files_settle;

/// The tree that the suite expects.
const FILES: &[(&str, &[u8])] = &[
    ("attributes.json", b"{}"),
    ("a/attributes.json", b"{\"x\":1}"),
    ("a/0/0", b"0123456789"),
    ("a/0/10", b""),
    ("b/c/d/e", b"deep"),
    ("with space/%41/\u{e9}", b"odd names"),
];

fn key(path: &str) -> Key {
    Key::from_segments(path.split('/').filter(|s| !s.is_empty())).unwrap()
}

async fn bytes(store: &dyn Store, path: &str, inline: u64) -> Option<Bytes> {
    let object = store.get(&key(path), &InlineLimit::new(inline)).await.unwrap()?;
    assert_eq!(Some(object.meta.clone()), store.head(&key(path)).await.unwrap());
    Some(match object.data {
        ObjectData::InMemory(bytes) => bytes,
        ObjectData::Open(reader) => reader.read_at(0..object.meta.len).await.unwrap(),
    })
}

async fn suite(store: &dyn Store) {
    store.probe().await.unwrap();
    for (path, content) in FILES {
        for inline in [0, 5, 1 << 20] {
            assert_eq!(bytes(store, path, inline).await.as_deref(), Some(*content), "{path}");
        }
        let meta = store.head(&key(path)).await.unwrap().unwrap();
        assert_eq!(meta.len, content.len() as u64);
        assert!(meta.etag.starts_with('"') && meta.etag.ends_with('"'), "a strong tag");
        assert!(!store.is_directory(&key(path)).await.unwrap());
    }
    // Missing names, directories and paths through files are neither objects nor errors.
    for path in ["x", "a", "a/0", "", "a/0/0/0", "attributes.json/x", "b/c/d/e/f", "A", "%61"] {
        assert!(store.get(&key(path), &InlineLimit::new(100)).await.unwrap().is_none(), "{path}");
        assert!(store.head(&key(path)).await.unwrap().is_none(), "{path}");
    }
    page_cache_agrees(store).await;
    for (path, is_directory) in [("", true), ("a", true), ("a/0", true), ("x", false), ("a/0/0/0", false)] {
        assert_eq!(store.is_directory(&key(path)).await.unwrap(), is_directory, "{path}");
    }
    let keys = vec![key("a/0/0"), key("nothing"), key("a/0/10")];
    let many: Vec<Option<u64>> = store.head_many(keys).await.unwrap().into_iter().map(|m| m.map(|m| m.len)).collect();
    assert_eq!(many, [Some(10), None, Some(0)]);
    listings(store).await;
    filters(store).await;
    ranges(store).await;
}

fn is_unchanged(store: &dyn Store, key: &Key, version: u64) -> bool {
    store.page_cache().is_some_and(|cache| cache.is_unchanged(key, version))
}

/// Checks that the non-blocking calls agree with those that wait.
async fn page_cache_agrees(store: &dyn Store) {
    let paths = FILES.iter().map(|(path, _)| *path);
    for path in paths.chain(["x", "a", "a/0", "", "a/0/0/0", "attributes.json/x", "b/c/d/e/f", "A", "%61", "x/y/z"]) {
        let key = key(path);
        let known = store.head(&key).await.unwrap();
        match store.cached_stat(&key) {
            CachedStat::Unknown => {}
            CachedStat::Held { .. } => panic!("{path}: only the disk cache holds objects"),
            CachedStat::Missing => assert!(known.is_none() && !store.is_directory(&key).await.unwrap(), "{path}"),
            CachedStat::NotAnObject => assert_eq!(known, None, "{path}"),
            CachedStat::Object(facts) => {
                let seen: ObjectMeta = facts.into();
                // A file just written has no reliable version, so versions are not compared.
                let (len, etag, modified) = (seen.len, seen.etag, seen.modified);
                assert_eq!(known.clone().map(|meta| (meta.len, meta.etag, meta.modified)), Some((len, etag, modified)));
            }
        }
        let version = known.map(|meta| meta.version);
        assert!(!is_unchanged(store, &key, version.unwrap_or(0) ^ 2), "{path}");
        if version.is_none() {
            assert!(!is_unchanged(store, &key, 0), "{path}");
        }
    }
}

async fn listings(store: &dyn Store) {
    let entry = |name: &str, is_directory| DirEntry { name: name.to_owned(), is_directory };
    let root = store.list(&Key::root(), None, 100, FilterDecision::keep_all()).await.unwrap().unwrap();
    assert_eq!(
        root.entries,
        [entry("a", true), entry("attributes.json", false), entry("b", true), entry("with space", true)]
    );
    assert!(!root.has_more);
    let page = store.list(&Key::root(), Some("a"), 2, FilterDecision::keep_all()).await.unwrap().unwrap();
    assert_eq!((page.entries.len(), page.entries[0].name.as_str(), page.has_more), (2, "attributes.json", true));
    let rest = store.list(&Key::root(), Some("b"), 2, FilterDecision::keep_all()).await.unwrap().unwrap();
    assert_eq!((rest.entries.len(), rest.has_more), (1, false));
    // Names are sorted by bytes, not as numbers.
    let names: Vec<String> = store
        .list(&key("a/0"), None, 10, FilterDecision::keep_all())
        .await
        .unwrap()
        .unwrap()
        .entries
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert_eq!(names, ["0", "10"]);
    for path in ["x", "a/0/0", "attributes.json"] {
        assert!(store.list(&key(path), None, 10, FilterDecision::keep_all()).await.unwrap().is_none(), "{path}");
    }
}

/// Lists the root with the filter `keep`. Returns the names, and whether there are more.
async fn kept(
    store: &dyn Store,
    after: Option<&str>,
    limit: usize,
    keep: fn(&DirEntry) -> FilterDecision,
) -> (Vec<String>, bool) {
    let keep: EntryFilter = Arc::new(keep);
    let listing = store.list(&Key::root(), after, limit, keep).await.unwrap().unwrap();
    (listing.entries.into_iter().map(|entry| entry.name).collect(), listing.has_more)
}

async fn filters(store: &dyn Store) {
    let directories = |entry: &DirEntry| if entry.is_directory { FilterDecision::Keep } else { FilterDecision::Skip };
    let all = ["a", "b", "with space"].map(str::to_owned).to_vec();
    assert_eq!(kept(store, None, 3, directories).await, (all.clone(), false), "filtered entries do not set `more`");
    assert_eq!(
        kept(store, None, 2, directories).await,
        (all[..2].to_vec(), true),
        "filtered entries do not count towards the limit"
    );
    assert_eq!(kept(store, Some("b"), 2, directories).await, (all[2..].to_vec(), false));
    assert_eq!(kept(store, None, 9, |_| FilterDecision::Skip).await, (Vec::new(), false));
    // Keeps only directories that directly contain this object; `c` in `b` is a directory.
    let holding = |_: &DirEntry| FilterDecision::KeepIfContains("attributes.json");
    assert_eq!(kept(store, None, 1, holding).await, (vec!["a".to_owned()], false));
    assert_eq!(kept(store, None, 9, |_| FilterDecision::KeepIfContains("c")).await, (Vec::new(), false));
}

async fn ranges(store: &dyn Store) {
    let object = store.get(&key("a/0/0"), &InlineLimit::new(0)).await.unwrap().unwrap();
    if let ObjectData::Open(reader) = object.data {
        assert_eq!(reader.read_at(3..7).await.unwrap(), "3456");
        assert_eq!(reader.read_at(10..10).await.unwrap(), "");
        assert!(reader.read_at(8..12).await.is_err(), "beyond the end");
    }
}

fn tree() -> TempDir {
    let dir = TempDir::new().unwrap();
    for (path, content) in FILES {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let_files_settle();
    dir
}

#[tokio::test]
async fn the_local_store_conforms() {
    for policy in [SymlinkPolicy::Inside, SymlinkPolicy::Deny, SymlinkPolicy::Follow] {
        let dir = tree();
        let store = LocalStore::open(dir.path(), policy, Duration::from_secs(5)).unwrap();
        suite(&store).await;
        suite(&store.without_openat2()).await;
    }
}

#[tokio::test]
async fn the_memory_store_conforms() {
    suite(&MemoryStore::new(FILES.iter().map(|(path, bytes)| (key(path), Bytes::from_static(bytes))), 0)).await;
}

#[tokio::test]
async fn links_are_followed_according_to_the_policy() {
    let (dir, outside) = (tree(), TempDir::new().unwrap());
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
    link("a".as_ref(), "relative");
    link(&dir.path().join("a"), "absolute");
    link("b/../a".as_ref(), "winding");
    link(outside.path(), "out");
    link("../../../../../../../../etc".as_ref(), "up");
    link("loop".as_ref(), "loop");
    link("nowhere".as_ref(), "dangling");
    link(&outside.path().join("secret"), "b/secret");
    // These links leave the root and return to it, by its own name and by another one.
    let name = dir.path().file_name().unwrap().to_str().unwrap();
    link(format!("../../{name}/a").as_ref(), "b/around");
    std::os::unix::fs::symlink(dir.path(), outside.path().join("alias")).unwrap();
    link(&outside.path().join("alias/a/"), "alias");
    let policies = [
        (SymlinkPolicy::Inside, true, false),
        (SymlinkPolicy::Deny, false, false),
        (SymlinkPolicy::Follow, true, true),
    ];
    for (policy, inside, out, by_steps) in policies
        .into_iter()
        .flat_map(|(policy, inside, out)| [(policy, inside, out, false), (policy, inside, out, true)])
    {
        let store = LocalStore::open(dir.path(), policy, Duration::from_secs(5)).unwrap();
        let store = if by_steps { store.without_openat2() } else { store };
        for name in ["relative", "absolute", "winding", "b/around", "alias"] {
            let path = format!("{name}/0/0");
            assert_eq!(
                store.get(&key(&path), &InlineLimit::new(100)).await.is_ok_and(|found| found.is_some()),
                inside,
                "{policy:?} {path}"
            );
            assert_eq!(store.head(&key(&path)).await.is_ok_and(|found| found.is_some()), inside, "{policy:?} {path}");
            assert_eq!(
                store.list(&key(name), None, 9, FilterDecision::keep_all()).await.unwrap().is_some(),
                inside,
                "{policy:?} {name}"
            );
        }
        let seen = |found: Result<bool, StoreError>| match found {
            Ok(is_there) => is_there,
            // The error does not say that the object is missing.
            Err(StoreError::LinkNotFollowed(_)) => false,
            Err(other) => panic!("{policy:?}: {other}"),
        };
        for path in ["out/secret", "out/nothing"] {
            let is_there = out && path == "out/secret";
            for found in [
                store.get(&key(path), &InlineLimit::new(100)).await.map(|found| found.is_some()),
                store.head(&key(path)).await.map(|found| found.is_some()),
                store.head_many(vec![key("a/0/0"), key(path)]).await.map(|found| found[1].is_some()),
            ] {
                assert_eq!(found.is_ok(), out, "{policy:?} {path}");
                assert_eq!(seen(found), is_there, "{policy:?} {path}");
            }
        }
        assert_eq!(
            store.list(&key("out"), None, 9, FilterDecision::keep_all()).await.unwrap().is_some(),
            out,
            "{policy:?}"
        );
        assert_eq!(store.is_directory(&key("out")).await.unwrap(), out, "{policy:?}");
        if out {
            let many = store.head_many(vec![key("out/secret"), key("b/secret"), key("relative/0/0")]).await.unwrap();
            assert!(many.iter().all(Option::is_some), "{policy:?}");
        }
        let holding = kept(&store, None, 9, |_| FilterDecision::KeepIfContains("secret")).await.0;
        assert_eq!(holding, if out { vec!["b", "out"] } else { vec![] }, "{policy:?}");
        let names: Vec<String> = store
            .list(&Key::root(), None, 99, FilterDecision::keep_all())
            .await
            .unwrap()
            .unwrap()
            .entries
            .into_iter()
            .map(|e| e.name)
            .collect();
        assert_eq!(names.contains(&"out".to_owned()), out, "{policy:?}");
        assert_eq!(names.contains(&"absolute".to_owned()), inside, "{policy:?}");
        assert!(!names.contains(&"loop".to_owned()) && !names.contains(&"dangling".to_owned()));
    }
}

#[tokio::test]
async fn objects_behind_unfollowed_links_are_errors_not_missing() {
    let dir = tree();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
    link("loop", "loop");
    link("nowhere", "dangling");
    link("/nowhere/at/all", "absolute");
    link("../a/0/0/below", "b/file");
    link("dangling", "twice");
    link("a", "sound");
    let hidden = ["loop/x", "loop", "dangling", "dangling/0/0", "absolute", "absolute/0", "b/file", "twice/0"];
    let policies = [SymlinkPolicy::Inside, SymlinkPolicy::Deny, SymlinkPolicy::Follow];
    for (policy, by_steps) in policies.into_iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        let store = LocalStore::open(dir.path(), policy, Duration::from_secs(5)).unwrap();
        let store = if by_steps { store.without_openat2() } else { store };
        let is_denied = policy == SymlinkPolicy::Deny;
        for path in hidden {
            // The error does not reveal what exists outside.
            let is_refused = is_denied || policy == SymlinkPolicy::Inside && path.starts_with("absolute");
            let path = key(path);
            for found in [store.get(&path, &InlineLimit::new(100)).await.map(drop), store.head(&path).await.map(drop)] {
                match found {
                    Err(StoreError::LinkNotFollowed(at)) if is_refused => assert_eq!(at, path),
                    Err(StoreError::DanglingLink(at)) if !is_refused => assert_eq!(at, path),
                    other => panic!("{policy:?} {path:?}: {other:?}"),
                }
            }
            assert_eq!(store.cached_stat(&path), CachedStat::Unknown, "{policy:?} {path:?}");
            assert_eq!(read_nonblocking(&store, &path), CachedGet::Unknown, "{policy:?} {path:?}");
        }
        // Below a link that resolves, objects may be missing.
        for path in ["sound/9", "sound/9/9", "sound/0/0/below"] {
            let found = store.get(&key(path), &InlineLimit::new(100)).await;
            assert!(if is_denied { found.is_err() } else { found.unwrap().is_none() }, "{policy:?} {path}");
        }
        for path in ["nothing", "a/9/9"] {
            assert!(store.get(&key(path), &InlineLimit::new(100)).await.unwrap().is_none());
            assert_eq!(store.cached_stat(&key(path)), if by_steps { CachedStat::Unknown } else { CachedStat::Missing });
            assert_eq!(
                read_nonblocking(&store, &key(path)),
                if by_steps { CachedGet::Unknown } else { CachedGet::Missing },
                "a missing object below a directory without links is known without blocking"
            );
        }
    }
}

#[tokio::test]
async fn special_files_count_as_missing_and_do_not_block() {
    let dir = tree();
    let fifo = dir.path().join("7");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("8")).unwrap();
    let store = LocalStore::open(dir.path(), SymlinkPolicy::Inside, Duration::from_secs(5)).unwrap();
    for name in ["7", "8"] {
        assert!(store.get(&key(name), &InlineLimit::new(100)).await.unwrap().is_none());
        assert!(!store.is_directory(&key(name)).await.unwrap());
    }
    let names = store.list(&Key::root(), None, 99, FilterDecision::keep_all()).await.unwrap().unwrap().entries;
    assert!(!names.iter().any(|entry| entry.name == "7" || entry.name == "8"));
}

#[tokio::test]
async fn unaddressable_names_are_left_out_of_listings() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tree();
    for name in [&b"\xff\xfe"[..], b"back\\slash", b"new\nline"] {
        fs::create_dir(dir.path().join(std::ffi::OsStr::from_bytes(name))).unwrap();
    }
    let store = LocalStore::open(dir.path(), SymlinkPolicy::Inside, Duration::from_secs(5)).unwrap();
    assert_eq!(store.list(&Key::root(), None, 99, FilterDecision::keep_all()).await.unwrap().unwrap().entries.len(), 4);
}

#[tokio::test]
async fn a_replaced_root_is_reopened() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("1"), "old").unwrap();
    let_files_settle();
    let store = LocalStore::open(&root, SymlinkPolicy::Inside, Duration::from_secs(5)).unwrap();
    assert_eq!(bytes(&store, "1", 10).await.unwrap(), "old");
    fs::remove_dir_all(&root).unwrap();
    assert!(store.probe().await.is_err());
    assert!(
        matches!(store.get(&key("1"), &InlineLimit::new(10)).await, Err(StoreError::RootMissing(_))),
        "an object below a root that is gone does not count as missing"
    );
    fs::create_dir(&root).unwrap();
    fs::write(root.join("1"), "new").unwrap();
    store.probe().await.unwrap();
    assert!(
        matches!(store.get(&key("1"), &InlineLimit::new(10)).await.unwrap().unwrap().data, ObjectData::InMemory(new) if new == "new")
    );
}

#[tokio::test]
async fn an_open_object_keeps_its_bytes_when_its_file_is_replaced() {
    let dir = tree();
    let store = LocalStore::open(dir.path(), SymlinkPolicy::Inside, Duration::from_secs(5)).unwrap();
    let ObjectData::Open(reader) = store.get(&key("a/0/0"), &InlineLimit::new(0)).await.unwrap().unwrap().data else {
        panic!("not open")
    };
    fs::write(dir.path().join("new"), "replaced!!").unwrap();
    fs::rename(dir.path().join("new"), dir.path().join("a/0/0")).unwrap();
    assert_eq!(reader.read_at(0..10).await.unwrap(), "0123456789");
}

#[tokio::test]
async fn an_overwritten_open_object_is_never_read_as_two_versions() {
    let dir = tree();
    let store = LocalStore::open(dir.path(), SymlinkPolicy::Inside, Duration::from_secs(5)).unwrap();
    let ObjectData::Open(reader) = store.get(&key("a/0/0"), &InlineLimit::new(0)).await.unwrap().unwrap().data else {
        panic!("not open")
    };
    assert_eq!(reader.read_at(0..5).await.unwrap(), "01234");
    fs::write(dir.path().join("a/0/0"), "abcdefghij").unwrap();
    assert!(matches!(reader.read_at(5..10).await, Err(StoreError::Torn(_))));
}

#[tokio::test]
async fn a_large_file_is_opened_once_its_timestamps_are_distinct() {
    let dir = TempDir::new().unwrap();
    let store = LocalStore::open(dir.path(), SymlinkPolicy::Inside, Duration::from_secs(5)).unwrap();
    fs::write(dir.path().join("0"), "just written").unwrap();
    let opened = store.get(&key("0"), &InlineLimit::new(0)).await.unwrap().unwrap();
    assert!(matches!(opened.data, ObjectData::Open(_)));
    assert_eq!(store.head(&key("0")).await.unwrap().unwrap().version, opened.meta.version);
}

#[tokio::test]
async fn a_file_larger_than_memory_can_be_opened() {
    let dir = TempDir::new().unwrap();
    let store = LocalStore::open(dir.path(), SymlinkPolicy::Inside, Duration::from_secs(5)).unwrap();
    // A sparse file without any data.
    fs::File::create(dir.path().join("0")).unwrap().set_len(8 << 40).unwrap();
    for inline in [0, 1 << 20] {
        let object = store.get(&key("0"), &InlineLimit::new(inline)).await.unwrap().unwrap();
        let ObjectData::Open(reader) = object.data else { panic!("it was read") };
        assert_eq!(reader.read_at(1 << 40..(1 << 40) + 3).await.unwrap(), [0; 3][..]);
    }
}

/// Reads an object from the page cache, without blocking.
fn read_nonblocking(store: &LocalStore, key: &Key) -> CachedGet {
    let reader = store.page_cache().and_then(PageCache::reader);
    reader.map_or(CachedGet::Unknown, |mut reader| reader.get(key, 99, &mut Vec::new()))
}

#[tokio::test]
async fn a_missing_root_is_an_error_for_every_key() {
    let dir = tree();
    let (root, away) = (dir.path().join("a"), dir.path().join("away"));
    let store = LocalStore::open(&root, SymlinkPolicy::Inside, Duration::from_secs(5)).unwrap();
    let (existing, missing) = (key("0/0"), key("0/9"));
    // This makes the kernel cache both lookups.
    assert!(store.head_many(vec![existing.clone(), missing.clone()]).await.unwrap()[1].is_none());
    assert!(matches!(store.cached_stat(&existing), CachedStat::Object(_)));
    assert_eq!(store.cached_stat(&missing), CachedStat::Missing);
    assert_eq!(read_nonblocking(&store, &missing), CachedGet::Missing);
    for is_file in [false, true] {
        fs::rename(&root, &away).unwrap();
        if is_file {
            fs::write(&root, "").unwrap();
        }
        for key in [&existing, &missing] {
            assert_eq!(store.cached_stat(key), CachedStat::Unknown);
            assert_eq!(read_nonblocking(&store, key), CachedGet::Unknown);
            assert!(matches!(store.get(key, &InlineLimit::new(99)).await, Err(StoreError::RootMissing(_))));
            assert!(matches!(store.head(key).await, Err(StoreError::RootMissing(_))));
            assert!(matches!(store.is_directory(key).await, Err(StoreError::RootMissing(_))));
        }
        assert!(matches!(
            store.list(&Key::root(), None, 9, FilterDecision::keep_all()).await,
            Err(StoreError::RootMissing(_))
        ));
        assert!(matches!(store.probe().await, Err(StoreError::RootMissing(_))));
        let _ = fs::remove_file(&root);
        fs::rename(&away, &root).unwrap();
        assert!(store.get(&existing, &InlineLimit::new(99)).await.unwrap().is_some());
        assert!(store.get(&missing, &InlineLimit::new(99)).await.unwrap().is_none());
    }
}

/// Writes a file with an old modification time, so that its timestamps distinguish its versions.
fn settled(root: &Path, path: &str, content: &str, seconds_ago: u64) {
    fs::write(root.join(path), content).unwrap();
    let modified = SystemTime::now() - Duration::from_secs(seconds_ago);
    fs::File::options().write(true).open(root.join(path)).unwrap().set_modified(modified).unwrap();
}

#[tokio::test]
async fn a_local_file_is_unchanged_until_it_is_written_replaced_or_removed() {
    let dir = TempDir::new().unwrap();
    let store = LocalStore::open(dir.path(), SymlinkPolicy::Inside, Duration::from_secs(10)).unwrap();
    let object = key("0");
    let version = async || store.head(&object).await.unwrap().unwrap().version;
    settled(dir.path(), "0", "one", 60);
    let first = version().await;
    assert!(is_unchanged(&store, &object, first), "the page cache cannot be used on this file system");
    assert!(matches!(store.cached_stat(&object), CachedStat::Object(facts) if facts.version == first));
    // Writes content of the same length and keeps the modification time.
    let modified = fs::metadata(dir.path().join("0")).unwrap().modified().unwrap();
    // Older kernels record change times with a resolution of a few milliseconds.
    tokio::time::sleep(Duration::from_millis(30)).await;
    fs::write(dir.path().join("0"), "two").unwrap();
    fs::File::options().write(true).open(dir.path().join("0")).unwrap().set_modified(modified).unwrap();
    assert!(!is_unchanged(&store, &object, first), "written");
    let second = version().await;
    settled(dir.path(), "other", "two", 60);
    fs::rename(dir.path().join("other"), dir.path().join("0")).unwrap();
    assert!(!is_unchanged(&store, &object, second), "replaced");
    let third = version().await;
    fs::remove_file(dir.path().join("0")).unwrap();
    assert!(!is_unchanged(&store, &object, third), "removed");
    assert_eq!(store.cached_stat(&object), CachedStat::Missing);
    // A file just written has no reliable version.
    fs::write(dir.path().join("0"), "new").unwrap();
    let fresh = version().await;
    assert!(!is_unchanged(&store, &object, fresh), "just written");
}

#[tokio::test]
async fn cached_stat_follows_links_only_as_the_policy_allows() {
    let (dir, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    settled(outside.path(), "0", "secret", 60);
    settled(dir.path(), "1", "inside", 60);
    std::os::unix::fs::symlink(outside.path(), dir.path().join("out")).unwrap();
    std::os::unix::fs::symlink("1", dir.path().join("in")).unwrap();
    for policy in [SymlinkPolicy::Inside, SymlinkPolicy::Deny, SymlinkPolicy::Follow] {
        let store = LocalStore::open(dir.path(), policy, Duration::from_secs(10)).unwrap();
        for path in ["out/0", "in"] {
            let known = store.head(&key(path)).await.ok().flatten().map(|meta| meta.version);
            match store.cached_stat(&key(path)) {
                CachedStat::Object(facts) => assert_eq!(Some(facts.version), known, "{path} {policy:?}"),
                CachedStat::Unknown => {}
                other @ (CachedStat::Missing | CachedStat::NotAnObject | CachedStat::Held { .. }) => {
                    panic!("{path} {policy:?}: {other:?}")
                }
            }
        }
    }
}
