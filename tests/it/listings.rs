//! Listings of directories from recorded responses of object stores and HTTP servers (tests/fixtures/listings).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use n5_server::store::{
    DirectoryLister, FilterDecision, Key, Listing, ListingError, ListingResponse, ListingTransport, StoreError,
};

const DEADLINE: Duration = Duration::from_secs(60);

/// Entries of the directory that was recorded, in byte order.
const ENTRIES: [&str; 11] =
    ["%2F/", "a/", "a-b/", "a.txt", "attributes.json", "g/", "it's \"<&>/", "p+q r/", "q?#&=/", "s0/", "ü/"];

/// Answers requests with files, one after the other.
struct Recording {
    /// The files and their statuses, the next one at the end.
    responses: Mutex<Vec<(u16, PathBuf)>>,
    targets: Mutex<Vec<String>>,
}

impl Recording {
    fn new(responses: &[(u16, &str)]) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/listings");
        let responses = responses.iter().rev().map(|(status, name)| (*status, folder.join(name))).collect();
        Self { responses: Mutex::new(responses), targets: Mutex::default() }
    }
}

#[async_trait]
impl ListingTransport for Recording {
    async fn get(&self, target: &str, max_bytes: usize) -> Result<ListingResponse, StoreError> {
        self.targets.lock().unwrap().push(target.to_owned());
        let (status, path) = self.responses.lock().unwrap().pop().expect("a recorded response");
        let mut body = fs::read(path).unwrap();
        let is_cut = body.len() > max_bytes;
        body.truncate(max_bytes);
        Ok(ListingResponse { status, body: body.into(), is_cut })
    }

    async fn has_object(&self, key: &Key) -> Result<bool, StoreError> {
        Ok(key.as_str() == "v/attributes.json")
    }
}

fn http(prefix: &str) -> DirectoryLister {
    DirectoryLister::http("http://127.0.0.1:8080", prefix, "attributes.json", DEADLINE).unwrap()
}

async fn list(lister: &DirectoryLister, recording: &Recording, limit: usize) -> Result<Option<Listing>, ListingError> {
    lister.list(recording, &Key::parse("v").unwrap(), None, limit, &FilterDecision::keep_all()).await
}

fn names(listing: &Listing) -> Vec<String> {
    let slash = |is_directory: bool| if is_directory { "/" } else { "" };
    listing.entries.iter().map(|entry| format!("{}{}", entry.name, slash(entry.is_directory))).collect()
}

#[tokio::test]
async fn buckets_of_four_servers_have_the_same_listing() {
    for (server, lister, omitted) in [
        ("moto", DirectoryLister::s3("", DEADLINE), &["/", "back\\slash", "ctl\u{1}"][..]),
        // It stores keys as paths of files.
        ("seaweedfs", DirectoryLister::s3("", DEADLINE), &[]),
        ("fake-gcs-server", DirectoryLister::s3("", DEADLINE), &["/", "back\\slash"]),
        // It takes a backslash for a slash.
        ("azurite", DirectoryLister::azure("", DEADLINE), &["/"]),
    ] {
        let recording = Recording::new(&[(200, &format!("{server}.all.1.xml"))]);
        let listing = list(&lister, &recording, 10_000).await.unwrap().unwrap();
        let mut entries = ENTRIES.to_vec();
        if server == "azurite" {
            entries.insert(5, "back/");
        }
        assert_eq!(names(&listing), entries, "{server}");
        assert!(!listing.has_more);
        assert_eq!(listing.omitted_names, omitted, "{server}");
    }
}

#[tokio::test]
async fn the_first_entries_of_a_bucket_are_listed_from_short_pages() {
    for (server, lister, page_count) in [
        ("moto", DirectoryLister::s3("", DEADLINE), 2),
        ("seaweedfs", DirectoryLister::s3("", DEADLINE), 2),
        // It ignores the limit.
        ("fake-gcs-server", DirectoryLister::s3("", DEADLINE), 1),
        ("azurite", DirectoryLister::azure("", DEADLINE), 2),
    ] {
        let files: Vec<String> = (1..=page_count).map(|page| format!("{server}.four.{page}.xml")).collect();
        let recording = Recording::new(&files.iter().map(|file| (200, file.as_str())).collect::<Vec<_>>());
        let listing = list(&lister, &recording, 4).await.unwrap().unwrap();
        assert_eq!(names(&listing), ENTRIES[..4], "{server}");
        assert!(listing.has_more);
        let targets = recording.targets.lock().unwrap();
        assert_eq!(targets.len(), page_count, "{server}");
        let expected = if server == "azurite" {
            "?comp=list&delimiter=%2F&maxresults=6&prefix=v%2F&restype=container"
        } else {
            "?delimiter=%2F&list-type=2&max-keys=6&prefix=v%2F"
        };
        assert_eq!(targets[0], expected);
    }
}

#[tokio::test]
async fn indexes_of_six_servers_have_the_same_listing() {
    for (file, prefix, target) in [
        ("nginx.html", "", "/v/?blocks=1&format=json"),
        ("nginx.json", "", "/v/?blocks=1&format=json"),
        ("apache.html", "", "/v/?blocks=1&format=json"),
        ("lighttpd.html", "", "/v/?blocks=1&format=json"),
        ("python.html", "", "/v/?blocks=1&format=json"),
        ("n5-server.json", "em", "/em/v/?blocks=1&format=json"),
    ] {
        let recording = Recording::new(&[(200, file), (200, file)]);
        let lister = http(prefix);
        let listing = list(&lister, &recording, 10_000).await.unwrap().unwrap();
        let is_n5 = file == "n5-server.json";
        // n5-server lists only what it serves.
        let entries: Vec<&str> = ENTRIES.into_iter().filter(|name| !is_n5 || *name != "a.txt").collect();
        assert_eq!(names(&listing), entries, "{file}");
        let omitted: &[&str] = if is_n5 { &[] } else { &["back\\slash"] };
        assert_eq!(listing.omitted_names, omitted, "{file}");
        assert!(lister.is_directory(&recording, &Key::parse("v").unwrap()).await.unwrap(), "{file}");
        assert_eq!(recording.targets.lock().unwrap()[0], target);
    }
}

#[tokio::test]
async fn a_bucket_behind_plain_http_is_recognised_and_remembered() {
    let recording = Recording::new(&[
        (404, "nginx-403.html"),
        (403, "nginx-403.html"),
        (200, "moto.all.1.xml"),
        (200, "moto.all.1.xml"),
        (200, "moto.all.1.xml"),
    ]);
    let lister = http("data");
    let listing = list(&lister, &recording, 10_000).await.unwrap().unwrap();
    assert_eq!(names(&listing), ENTRIES);
    assert!(lister.is_directory(&recording, &Key::parse("v").unwrap()).await.unwrap());
    let targets = recording.targets.lock().unwrap();
    let expected = [
        "/data/v/?blocks=1&format=json",
        "/?list-type=2&max-keys=1&prefix=data%2Fv%2F",
        "/data/?list-type=2&max-keys=1&prefix=v%2F",
        "/data/?delimiter=%2F&list-type=2&max-keys=1000&prefix=v%2F",
        "/data/?list-type=2&max-keys=1&prefix=v%2F",
    ];
    assert_eq!(targets[..], expected);
}

#[tokio::test]
async fn a_server_without_listings_says_so_and_has_directories_with_the_marker() {
    for (status, file) in [(403, "nginx-403.html"), (404, "nginx-403.html"), (200, "application.html")] {
        let recording = Recording::new(&[(status, file); 3]);
        let lister = http("");
        let error = list(&lister, &recording, 10).await.unwrap_err();
        assert!(matches!(error, ListingError::CannotList(..)), "{status}: {error}");
        // Nothing more is requested: the server is known to have no listings.
        assert!(lister.is_directory(&recording, &Key::parse("v").unwrap()).await.unwrap());
        assert!(!lister.is_directory(&recording, &Key::parse("w").unwrap()).await.unwrap());
        assert!(
            lister
                .list(&recording, &Key::parse("w").unwrap(), None, 9, &FilterDecision::keep_all())
                .await
                .unwrap()
                .is_none()
        );
    }
}

#[tokio::test]
async fn a_fault_of_an_http_server_is_no_missing_directory() {
    for status in [401, 429, 500, 503] {
        let recording = Recording::new(&[(status, "nginx-403.html"); 2]);
        let lister = http("");
        let error = list(&lister, &recording, 10).await.unwrap_err();
        assert!(matches!(error, ListingError::Refused(_)), "{status}: {error}");
        assert!(lister.is_directory(&recording, &Key::parse("v").unwrap()).await.is_err(), "{status}");
    }
}
