//! Tests of [`RemoteStore`] against a server that answers as a script says.

use std::sync::Mutex;

use object_store::StaticCredentialProvider;
use object_store::aws::AwsCredential;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::object::ReadAt;
use super::upstream::{UpstreamBucket, UpstreamCounters};
use super::*;

/// Maximum number of requests that a store of these tests sends at once.
const CONCURRENCY: usize = 4;

/// A server that gives its answers one after the other, each on a connection of its own, and records the requests. After
/// the last answer, it repeats it.
struct ScriptedServer {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedServer {
    async fn start(answers: Vec<String>) -> Self {
        Self::start_with_bytes(answers.into_iter().map(String::into_bytes).collect()).await
    }

    async fn start_with_bytes(answers: Vec<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let recorded = Arc::clone(&requests);
        tokio::spawn(async move {
            let mut number = 0;
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if socket.read(&mut byte).await.unwrap_or(0) == 0 {
                        break;
                    }
                    head.push(byte[0]);
                }
                recorded.lock().unwrap().push(String::from_utf8(head).unwrap().to_ascii_lowercase());
                let answer = answers.get(number).unwrap_or(&answers[answers.len() - 1]);
                number += 1;
                let _ = socket.write_all(answer).await;
            }
        });
        Self { url, requests }
    }

    /// Opens a store on the server, which has no further requests than those of the test.
    fn store(&self, provider: Provider, policy: ForbiddenPolicy) -> RemoteStore {
        self.store_signed_by(signer::Signer::Anonymous { is_azure: false }, provider, policy)
    }

    fn store_signed_by(&self, signer: signer::Signer, provider: Provider, policy: ForbiddenPolicy) -> RemoteStore {
        let root = RemoteRoot {
            provider,
            bucket: if provider == Provider::Http { String::new() } else { "b".to_owned() },
            prefix: "v.n5".to_owned(),
            endpoint: Some(self.url.clone()),
            region: None,
            account: None,
        };
        let settings = StoreSettings { missing_403: policy, ..StoreSettings::default() };
        let location = Location::new(&root, &settings, DEFAULT_REGION, None).unwrap();
        let http = HttpClient::new(&HttpClientOptions::default()).unwrap();
        let timeout = Duration::from_secs(20);
        let (bucket, counters) = (Arc::new(UpstreamBucket::new(CONCURRENCY)), Arc::new(UpstreamCounters::new("test")));
        let upstream = UpstreamSettings { timeout, hedge: true };
        let service = UpstreamService::new(SignedService { http, signer }, upstream, bucket, counters);
        let client = StoreClient::new(location, service, timeout);
        let lister = DirectoryLister::s3(&root.prefix, timeout);
        RemoteStore::new(client, policy, lister)
    }

    fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
}

fn found(body: &str) -> String {
    answer("200 OK", "ETag: \"1\"\r\n", body)
}

fn error(status: &str, code: &str) -> String {
    answer(status, "", &format!("<Error><Code>{code}</Code></Error>"))
}

fn key(path: &str) -> Key {
    Key::parse(path).unwrap()
}

async fn read(store: &RemoteStore, path: &str) -> Result<Option<Bytes>, StoreError> {
    let Some(object) = store_get(store, path, 1 << 20).await? else { return Ok(None) };
    match object.data {
        ObjectData::InMemory(bytes) => Ok(Some(bytes)),
        ObjectData::Open(reader) => reader.read_at(0..object.meta.len).await.map(Some),
    }
}

async fn store_get(store: &RemoteStore, path: &str, inline: u64) -> Result<Option<Object>, StoreError> {
    Store::get(store, &key(path), &InlineLimit::new(inline)).await
}

#[tokio::test]
async fn a_container_that_cannot_be_opened_gives_the_reason_and_a_remedy() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let redirect = "<Error><Code>PermanentRedirect</Code><Region>eu-west-1</Region></Error>";
    for (provider, response, reason, remedy) in [
        (Provider::S3, error("404 Not Found", "NoSuchBucket"), "the bucket is missing", "check the address"),
        (Provider::S3, answer("301 Moved Permanently", "", redirect), "eu-west-1", "set store.region"),
        (Provider::S3, error("400 Bad Request", "ExpiredToken"), "have expired", "renew them"),
        (Provider::S3, error("403 Forbidden", "InvalidAccessKeyId"), "does not know", "check store.credentials"),
        (
            Provider::S3,
            error("403 Forbidden", "SignatureDoesNotMatch"),
            "SignatureDoesNotMatch",
            "check the secret key",
        ),
        (Provider::S3, error("403 Forbidden", "AccessDenied"), "AccessDenied", "store.credentials"),
        (Provider::S3, error("403 Forbidden", "RequestTimeTooSkewed"), "RequestTimeTooSkewed", "set the clock"),
        (Provider::Azure, error("404 Not Found", "ContainerNotFound"), "the bucket is missing", "check the address"),
        (Provider::Http, answer("401 Unauthorized", "", ""), "status 401", "store.credentials"),
        (Provider::S3, String::new(), "cannot be used", "check the address"),
    ] {
        let url = if response.is_empty() { closed.clone() } else { ScriptedServer::start(vec![response]).await.url };
        let root = RemoteRoot {
            provider,
            bucket: if provider == Provider::Http { String::new() } else { "b".to_owned() },
            prefix: "v.n5".to_owned(),
            endpoint: Some(url),
            region: None,
            account: Some("acct".to_owned()),
        };
        let settings = StoreSettings::default();
        let opened =
            RemoteStore::open_with("test", &root, &settings, Duration::from_secs(20), Variables::default(), ()).await;
        let why = opened.unwrap_err();
        assert!(why.contains(reason) && why.contains(remedy), "{why}");
    }
}

#[tokio::test]
async fn an_object_costs_one_get_and_a_missing_one_too() {
    let server = ScriptedServer::start(vec![found("block"), error("404 Not Found", "NoSuchKey")]).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    assert_eq!(read(&store, "a/0").await.unwrap().as_deref(), Some(&b"block"[..]));
    assert_eq!(read(&store, "a/1").await.unwrap(), None);
    let requests = server.take_requests();
    assert_eq!(requests.len(), 2);
    assert!(requests[0].starts_with("get /b/v.n5/a/0 http/1.1\r\n"), "{}", requests[0]);
}

#[tokio::test]
async fn reads_of_an_open_object_continue_its_response_and_other_ranges_are_requested_under_its_tag() {
    let partial = answer("206 Partial Content", "ETag: \"1\"\r\nContent-Range: bytes 6-7/10\r\n", "67");
    let cut = "HTTP/1.1 206 Partial Content\r\nETag: \"1\"\r\nContent-Range: bytes 8-8/10\r\nContent-Length: 1\r\n\r\n";
    let next = answer("206 Partial Content", "ETag: \"1\"\r\nContent-Range: bytes 8-8/10\r\n", "8");
    let changed = answer("412 Precondition Failed", "", "");
    let answers = vec![found("0123456789"), partial, cut.to_owned(), cut.to_owned(), next, changed];
    let server = ScriptedServer::start(answers).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    let object = store_get(&store, "a", 4).await.unwrap().unwrap();
    let ObjectData::Open(reader) = object.data else { panic!("it exceeds the limit") };
    assert_eq!(reader.read_at(0..3).await.unwrap(), "012");
    assert_eq!(reader.read_at(3..5).await.unwrap(), "34");
    assert_eq!(server.take_requests().len(), 1);
    assert_eq!(reader.read_at(6..8).await.unwrap(), "67");
    let request = server.take_requests().remove(0);
    assert!(request.contains("range: bytes=6-7\r\n") && request.contains("if-match: \"1\"\r\n"), "{request}");
    // The body of that range has been read to its end.
    assert_eq!(reader.read_at(8..9).await.unwrap(), "8");
    assert!(server.take_requests()[0].contains("range: bytes=8-8\r\n"));
    assert!(matches!(reader.read_at(0..2).await, Err(StoreError::Torn(_))));
}

#[tokio::test]
async fn a_response_that_breaks_off_is_continued_and_never_taken_as_whole() {
    let cut = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 10\r\n\r\n0123".to_owned();
    let rest = answer("206 Partial Content", "ETag: \"1\"\r\nContent-Range: bytes 4-9/10\r\n", "456789");
    let server = ScriptedServer::start(vec![cut.clone(), rest]).await;
    let store = server.store(Provider::Http, ForbiddenPolicy::Auto);
    assert_eq!(read(&store, "a").await.unwrap().unwrap(), "0123456789");
    // A server that cuts every response short.
    let server = ScriptedServer::start(vec![cut]).await;
    let store = server.store(Provider::Http, ForbiddenPolicy::Auto);
    assert!(read(&store, "a").await.is_err());
    // The rest is of another version.
    let other = answer("206 Partial Content", "ETag: \"2\"\r\nContent-Range: bytes 4-9/10\r\n", "abcdef");
    let server = ScriptedServer::start(vec![
        "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 10\r\n\r\n0123".to_owned(),
        other,
    ])
    .await;
    let store = server.store(Provider::Http, ForbiddenPolicy::Auto);
    assert!(matches!(read(&store, "a").await, Err(StoreError::Torn(_))));
}

/// Returns the answer with the bytes from `first` of an object of `len` digits.
fn part(first: usize, bytes: &str, len: usize) -> String {
    let range = format!("ETag: \"1\"\r\nContent-Range: bytes {first}-{}/{len}\r\n", first + bytes.len() - 1);
    answer("206 Partial Content", &range, bytes)
}

async fn open_range(store: &RemoteStore, range: Range<u64>) -> Result<Arc<dyn ReadAt>, StoreError> {
    let object = store.open_range(&key("a"), range).await?.unwrap();
    let ObjectData::Open(reader) = object.data else { panic!("it is only opened") };
    Ok(reader)
}

#[tokio::test]
async fn a_range_of_an_unknown_object_costs_one_request_for_its_bytes() {
    let server = ScriptedServer::start(vec![part(4, "45", 700)]).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    let object = store.open_range(&key("a"), 4..6).await.unwrap().unwrap();
    assert_eq!(object.meta.len, 700);
    let ObjectData::Open(reader) = object.data else { panic!("it is only opened") };
    assert_eq!(reader.read_at(4..6).await.unwrap(), "45");
    let requests = server.take_requests();
    assert!(requests.len() == 1 && requests[0].contains("range: bytes=4-5\r\n"), "{requests:?}");
    // The end of a range may exceed the object.
    let server = ScriptedServer::start(vec![part(4, "456789", 10)]).await;
    let reader = open_range(&server.store(Provider::S3, ForbiddenPolicy::Auto), 4..u64::MAX).await.unwrap();
    assert_eq!(reader.read_at(4..10).await.unwrap(), "456789");
    assert!(server.take_requests()[0].contains("range: bytes=4-\r\n"));
    // A range that lies beyond the end shows the length by another request.
    let beyond = answer("416 Range Not Satisfiable", "", "");
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \"1\"\r\nContent-Length: 3\r\n\r\n".to_owned();
    let server = ScriptedServer::start(vec![beyond, head]).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    assert_eq!(store.open_range(&key("a"), 4..6).await.unwrap().unwrap().meta.len, 3);
    assert!(server.take_requests()[1].starts_with("head "));
    for wrong in [part(5, "56", 700), part(4, "456", 700), answer("206 Partial Content", "ETag: \"1\"\r\n", "45")] {
        let server = ScriptedServer::start(vec![wrong]).await;
        let error = open_range(&server.store(Provider::S3, ForbiddenPolicy::Auto), 4..6).await.unwrap_err();
        assert!(error.to_string().contains("another range"), "{error}");
    }
}

#[tokio::test]
async fn readers_that_read_on_cost_one_request_each() {
    let server = ScriptedServer::start(vec![part(4, "456789", 10), part(2, "23456", 10), part(0, "012", 10)]).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    let reader = open_range(&store, 4..10).await.unwrap();
    assert_eq!(reader.read_sequential(4..6, 10).await.unwrap(), "45");
    // Another reader of the same object requests all that it will read, and does not end the first one.
    assert_eq!(reader.read_sequential(2..4, 7).await.unwrap(), "23");
    assert_eq!(reader.read_sequential(6..9, 10).await.unwrap(), "678");
    assert_eq!(reader.read_sequential(4..6, 7).await.unwrap(), "45");
    assert_eq!(reader.read_sequential(6..7, 7).await.unwrap(), "6");
    assert_eq!(reader.read_sequential(9..10, 10).await.unwrap(), "9");
    assert_eq!(server.take_requests().len(), 2);
    assert_eq!(reader.read_at(0..3).await.unwrap(), "012");
    let requests = server.take_requests();
    assert!(requests.len() == 1 && requests[0].contains("range: bytes=0-2\r\n"), "{requests:?}");
}

#[tokio::test]
async fn the_rest_of_an_object_after_its_first_range_is_no_retry() {
    // More objects than retries may be sent at the start.
    const OBJECTS: usize = 24;
    let responses = (0..OBJECTS).flat_map(|_| [part(0, "01", 10), part(2, "23456789", 10)]).collect();
    let server = ScriptedServer::start(responses).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    for _ in 0..OBJECTS {
        let reader = open_range(&store, 0..2).await.unwrap();
        assert_eq!(reader.read_at(0..10).await.unwrap(), "0123456789");
    }
    let requests = server.take_requests();
    assert!(requests.len() == 2 * OBJECTS && requests[1].contains("range: bytes=2-9\r\n"), "{requests:?}");
}

#[tokio::test]
async fn a_server_that_ignores_ranges_sends_an_object_once_and_no_part_behind_many_bytes() {
    let server = ScriptedServer::start(vec![answer("200 OK", "ETag: \"1\"\r\n", "0123456789")]).await;
    let store = server.store(Provider::Http, ForbiddenPolicy::Auto);
    let reader = open_range(&store, 4..8).await.unwrap();
    assert_eq!(reader.read_sequential(4..6, 8).await.unwrap(), "45");
    assert_eq!(reader.read_sequential(6..8, 8).await.unwrap(), "67");
    assert_eq!(server.take_requests().len(), 1);
    let large = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 20000000\r\n\r\n0".to_owned();
    let server = ScriptedServer::start(vec![large]).await;
    let reader =
        open_range(&server.store(Provider::Http, ForbiddenPolicy::Auto), 18_000_000..18_000_010).await.unwrap();
    let error = reader.read_at(18_000_000..18_000_010).await.unwrap_err();
    assert!(error.to_string().contains("ignores the header Range"), "{error}");
}

#[tokio::test]
async fn a_comparison_costs_one_request_also_where_the_store_ignores_conditions() {
    let unchanged = answer("304 Not Modified", "ETag: \"1\"\r\n", "");
    let replaced = answer("200 OK", "ETag: \"2\"\r\n", "new");
    let gone = error("404 Not Found", "NoSuchKey");
    let server = ScriptedServer::start(vec![found("old"), unchanged, found("old"), replaced, gone]).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    let meta = store_get(&store, "a", 100).await.unwrap().unwrap().meta;
    let known = Some((&*meta.etag, meta.version));
    assert!(matches!(store.revalidate(&key("a"), known).await, Ok(Revalidation::Unchanged)));
    assert!(matches!(store.revalidate(&key("a"), known).await, Ok(Revalidation::Unchanged)));
    let Ok(Revalidation::Current(Some(object))) = store.revalidate(&key("a"), known).await else { panic!("changed") };
    let ObjectData::Open(reader) = object.data else { panic!("its memory has not been taken yet") };
    assert_eq!(reader.read_at(0..3).await.unwrap(), "new");
    assert!(matches!(store.revalidate(&key("a"), known).await, Ok(Revalidation::Current(None))));
    assert!(matches!(store.revalidate(&key("a"), None).await, Ok(Revalidation::Unchanged)));
    let requests = server.take_requests();
    assert_eq!(requests.len(), 6);
    assert!(requests[1].contains("if-none-match: \"1\"\r\n"), "{}", requests[1]);
}

#[tokio::test]
async fn temporary_failures_are_retried_twice_and_never_become_holes() {
    let busy = error("503 Slow Down", "SlowDown");
    let server = ScriptedServer::start(vec![busy.clone(), busy.clone(), found("block")]).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    assert_eq!(read(&store, "a").await.unwrap().unwrap(), "block");
    assert_eq!(server.take_requests().len(), 3);
    let server = ScriptedServer::start(vec![busy]).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    assert!(matches!(read(&store, "a").await, Err(StoreError::Throttled(..))));
    assert_eq!(server.take_requests().len(), 3);
    let cut = "HTTP/1.1 404 Not Found\r\nContent-Length: 99\r\n\r\n<Error>".to_owned();
    let server = ScriptedServer::start(vec![cut, error("404 Not Found", "NoSuchKey")]).await;
    assert_eq!(read(&server.store(Provider::S3, ForbiddenPolicy::Auto), "a").await.unwrap(), None);
    assert_eq!(server.take_requests().len(), 2);
    // A pause that is too long is left to the client.
    let server = ScriptedServer::start(vec![answer("429 Too Many Requests", "Retry-After: 30\r\n", "")]).await;
    let store = server.store(Provider::Http, ForbiddenPolicy::Auto);
    let error = read(&store, "a").await.unwrap_err();
    assert!(matches!(error, StoreError::Throttled(_, _, pause) if pause.as_secs() == 30), "{error}");
    assert_eq!(server.take_requests().len(), 1);
}

#[tokio::test]
async fn faults_and_refusals_are_errors() {
    for (provider, reply) in [
        (Provider::S3, error("404 Not Found", "NoSuchBucket")),
        (Provider::S3, error("400 Bad Request", "ExpiredToken")),
        (Provider::S3, error("403 Forbidden", "InvalidAccessKeyId")),
        (Provider::S3, error("401 Unauthorized", "AccessDenied")),
        (Provider::S3, answer("301 Moved Permanently", "Location: http://127.0.0.1:1/b/v.n5/a\r\n", "")),
        (Provider::Http, answer("302 Found", "Location: http://127.0.0.1:1/v.n5/a/\r\n", "")),
        (Provider::Http, answer("301 Moved Permanently", "Location: a/?\r\n", "")),
        (Provider::Http, answer("302 Found", "Location: https://login.example/v.n5/a/\r\n", "")),
        (Provider::Http, answer("302 Found", "Location: /login/a/\r\n", "")),
        (Provider::Http, answer("204 No Content", "", "")),
        // Nothing shows that the body is whole.
        (Provider::Http, "HTTP/1.1 200 OK\r\nETag: \"1\"\r\n\r\nblo".to_owned()),
        (Provider::Http, "HTTP/1.0 200 OK\r\nETag: \"1\"\r\n\r\nblo".to_owned()),
        // The answer to a condition that was not sent.
        (Provider::S3, "HTTP/1.1 304 Not Modified\r\nConnection: close\r\nETag: \"1\"\r\n\r\n".to_owned()),
        // A document that is cut off does not say if an object or a bucket is missing, or what is denied.
        (Provider::S3, "HTTP/1.1 404 Not Found\r\nContent-Length: 99\r\n\r\n<Error>".to_owned()),
        (Provider::S3, "HTTP/1.1 403 Forbidden\r\nContent-Length: 99\r\n\r\n<Error>".to_owned()),
        (Provider::Http, answer("200 OK", "Content-Encoding: gzip\r\nETag: \"1\"\r\n", "x")),
        (Provider::Http, String::new()),
    ] {
        let server = ScriptedServer::start(vec![reply.clone()]).await;
        let store = server.store(provider, ForbiddenPolicy::Always);
        let is_directory = reply.contains("127.0.0.1:1/v.n5/a/\r\n") || reply.contains(" a/?\r\n");
        match read(&store, "a").await {
            Ok(None) => assert!(is_directory, "{reply}"),
            Ok(Some(bytes)) => panic!("{reply}: {bytes:?}"),
            Err(error) => assert!(!is_directory && !error.hides_object(), "{reply}: {error}"),
        }
        let has_metadata = reply.contains("Content-Encoding");
        assert_eq!(store.head(&key("a")).await.is_err(), !is_directory && !has_metadata, "{reply}");
        assert_eq!(store.revalidate(&key("a"), None).await.is_err(), !is_directory, "{reply}");
    }
}

#[tokio::test]
async fn a_403_means_missing_only_where_the_store_answers_so_for_impossible_keys_and_lets_objects_be_read() {
    let denied = || error("403 Forbidden", "AccessDenied");
    let head_denied = || answer("403 Forbidden", "", "");
    // An object is readable, and after that an impossible key and the key itself are denied.
    let first = [found("x"), denied(), found(""), head_denied(), head_denied()];
    let second = [denied(), found(""), head_denied()];
    let script = [&first[..], &second[..], &[denied(), head_denied()][..]].concat();
    let server = ScriptedServer::start(script).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    assert!(read(&store, "known").await.unwrap().is_some());
    assert_eq!(read(&store, "hole").await.unwrap(), None);
    assert_eq!(read(&store, "hole").await.unwrap(), None);
    let requests = server.take_requests();
    let starts = [
        "get /b/v.n5/known ",
        "get /b/v.n5/hole ",
        "head /b/v.n5/known ",
        "head /b/v.n5/.n5-server-",
        "head /b/v.n5/hole ",
    ];
    assert_eq!(requests.len(), 8);
    for (request, start) in requests.iter().zip(starts.iter().chain(&[starts[1], starts[2], starts[4]])) {
        assert!(request.starts_with(start), "{start}: {request}");
    }
    // The rights have been revoked: the known object is denied too.
    assert!(matches!(read(&store, "block").await, Err(StoreError::Denied { .. })));
    // The rights are back when the known object is asked for: the denied object exists.
    let script = vec![found("x"), denied(), found(""), head_denied(), found("")];
    let server = ScriptedServer::start(script).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    assert!(read(&store, "known").await.unwrap().is_some());
    assert!(matches!(read(&store, "block").await, Err(StoreError::Denied { .. })));
    assert_eq!(server.take_requests().len(), 5);
    // Nothing was readable: the rights may have been revoked.
    let server = ScriptedServer::start(vec![denied(), head_denied()]).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    assert!(matches!(read(&store, "hole").await, Err(StoreError::Denied { .. })));
    // The store tells missing objects apart: 403 is a refusal.
    let script = vec![found("x"), denied(), found(""), answer("404 Not Found", "", ""), denied()];
    let server = ScriptedServer::start(script).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    assert!(read(&store, "known").await.unwrap().is_some());
    for _ in 0..2 {
        assert!(matches!(read(&store, "secret").await, Err(StoreError::Denied { .. })));
    }
    assert_eq!(server.take_requests().len(), 5);
    let server = ScriptedServer::start(vec![denied()]).await;
    assert_eq!(read(&server.store(Provider::S3, ForbiddenPolicy::Always), "hole").await.unwrap(), None);
    assert!(read(&server.store(Provider::S3, ForbiddenPolicy::Never), "hole").await.is_err());
}

#[tokio::test]
async fn a_404_of_a_bucket_that_names_no_code_needs_a_sign_that_the_bucket_answers() {
    let nameless = || answer("404 Not Found", "", "<html>default backend</html>");
    // A balancer without a backend answers all requests so.
    let server = ScriptedServer::start(vec![found("x"), nameless(), answer("404 Not Found", "", "")]).await;
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    assert!(read(&store, "known").await.unwrap().is_some());
    assert!(read(&store, "block").await.unwrap_err().to_string().contains("status 404"));
    let server = ScriptedServer::start(vec![nameless()]).await;
    assert!(read(&server.store(Provider::S3, ForbiddenPolicy::Always), "block").await.is_err());
    // An emulator names no codes: an object that was readable still is, or the bucket can be listed.
    let missing = || answer("404 Not Found", "", "");
    let server =
        ScriptedServer::start(vec![found("x"), nameless(), found(""), missing(), nameless(), found(""), found("")])
            .await;
    let store = server.store(Provider::Google, ForbiddenPolicy::Auto);
    assert!(read(&store, "known").await.unwrap().is_some());
    assert_eq!(read(&store, "hole").await.unwrap(), None);
    // The fault has ended in between, and the object exists.
    assert!(read(&store, "block").await.is_err());
    assert!(server.take_requests()[2].starts_with("head /b/v.n5/known "));
    let listed = answer("200 OK", "", "<ListBucketResult></ListBucketResult>");
    let server = ScriptedServer::start(vec![nameless(), listed, missing()]).await;
    assert_eq!(read(&server.store(Provider::Google, ForbiddenPolicy::Auto), "hole").await.unwrap(), None);
    assert!(server.take_requests()[1].starts_with("get /b?"));
    // The status of an HTTP server suffices.
    let server = ScriptedServer::start(vec![nameless()]).await;
    assert_eq!(read(&server.store(Provider::Http, ForbiddenPolicy::Auto), "hole").await.unwrap(), None);
}

#[tokio::test]
async fn a_date_that_is_none_is_not_signed() {
    let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\nLast-Modified: \xff\r\n\r\nblock";
    let server = ScriptedServer::start_with_bytes(vec![head.to_vec()]).await;
    let credential = AwsCredential { key_id: "AKIAEXAMPLE".into(), secret_key: "secret".into(), token: None };
    let credentials = Arc::new(StaticCredentialProvider::new(credential));
    let signer = signer::Signer::S3 { credentials, region: DEFAULT_REGION.to_owned(), requester_pays: false };
    let store = server.store_signed_by(signer, Provider::S3, ForbiddenPolicy::Auto);
    let object = store_get(&store, "a", 0).await.unwrap().unwrap();
    let ObjectData::Open(reader) = object.data else { panic!("it exceeds the limit") };
    assert!(reader.read_at(2..4).await.unwrap_err().to_string().contains("neither a strong ETag nor a valid"));
}

#[tokio::test]
async fn an_object_that_is_read_at_once_keeps_the_permit_of_its_request() {
    // The server counts the responses whose body it has not sent yet.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = ScriptedServer { url: format!("http://{}", listener.local_addr().unwrap()), requests: Arc::default() };
    let open = Arc::new(Mutex::new((0, 0)));
    let counted = Arc::clone(&open);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                let _ = socket.read(&mut [0; 4096]).await;
                {
                    let (now, most) = &mut *counted.lock().unwrap();
                    *now += 1;
                    *most = (*most).max(*now);
                }
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \"1\"\r\nContent-Length: 5\r\n\r\n";
                let _ = socket.write_all(head.as_bytes()).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                counted.lock().unwrap().0 -= 1;
                let _ = socket.write_all(b"block").await;
            });
        }
    });
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    let reads = (0..30).map(|number| {
        let store = &store;
        async move { read(store, &format!("a/{number}")).await }
    });
    for block in futures_util::future::join_all(reads).await {
        assert_eq!(block.unwrap().unwrap(), "block");
    }
    let (_, most) = *open.lock().unwrap();
    assert!(most <= CONCURRENCY, "{most} responses were open at once");
}

#[tokio::test]
async fn an_object_without_a_length_is_read_whatever_the_limit_of_the_caller() {
    let chunked = "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: \"1\"\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let server = ScriptedServer::start(vec![chunked.to_owned()]).await;
    let store = server.store(Provider::Http, ForbiddenPolicy::Auto);
    assert_eq!(read(&store, "a").await.unwrap().unwrap(), "abcde");
    server.take_requests();
    // It exceeds the limit of the caller.
    let object = store_get(&store, "a", 4).await.unwrap().unwrap();
    let ObjectData::Open(reader) = object.data else { panic!("it exceeds the limit") };
    assert_eq!(reader.read_at(1..4).await.unwrap(), "bcd");
    assert!(matches!(reader.read_at(4..6).await, Err(StoreError::Truncated(_))));
    let known = Some((&*object.meta.etag, object.meta.version));
    assert!(matches!(store.revalidate(&key("a"), known).await, Ok(Revalidation::Unchanged)));
    let other = store.revalidate(&key("a"), Some(("\"2\"", 0))).await;
    assert!(matches!(other, Ok(Revalidation::Current(Some(object))) if object.meta.len == 5));
    assert_eq!(server.take_requests().len(), 3);
    assert_eq!(store.head(&key("a")).await.unwrap(), Some(object.meta));
    // The memory of the store bounds the length.
    let size = MAX_UNANNOUNCED_BYTES + 1;
    let chunked = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n");
    let server = ScriptedServer::start(vec![format!("{chunked}{}\r\n0\r\n\r\n", "x".repeat(size))]).await;
    let store = server.store(Provider::Http, ForbiddenPolicy::Auto);
    assert!(read(&store, "a").await.unwrap_err().to_string().contains("does not announce"));
    assert_eq!(store.unannounced.free(), UNANNOUNCED_OBJECTS);
}

#[tokio::test]
async fn the_region_that_amazon_names_has_precedence_over_that_of_the_machine() {
    let http = HttpClient::new(&HttpClientOptions::default()).unwrap();
    let named = answer("301 Moved Permanently", "x-amz-bucket-region: eu-west-1\r\n", "");
    for (reply, fallback, expected) in [
        (named, Some("us-west-2"), Ok("eu-west-1")),
        (answer("403 Forbidden", "", ""), Some("us-west-2"), Ok("us-west-2")),
        (answer("403 Forbidden", "", ""), None, Err("set store.region")),
        (answer("404 Not Found", "", ""), None, Err("there is no bucket")),
    ] {
        let server = ScriptedServer::start(vec![reply]).await;
        let found = find_region(&http, &server.url, "lab", fallback, Duration::from_secs(20)).await;
        match (found, expected) {
            (Ok(region), Ok(expected)) => assert_eq!(region, expected),
            (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
            (found, expected) => panic!("{found:?}, {expected:?}"),
        }
        assert!(server.take_requests()[0].starts_with("head /lab http/1.1\r\n"));
    }
}

#[tokio::test]
async fn the_metadata_of_a_missing_object_of_an_http_server_cost_one_request() {
    let server = ScriptedServer::start(vec![answer("404 Not Found", "", "")]).await;
    let store = server.store(Provider::Http, ForbiddenPolicy::Auto);
    let keys: Vec<Key> = (0..9).map(|n| key(&format!("a/{n}"))).collect();
    assert_eq!(store.head_many(keys).await.unwrap(), vec![None; 9]);
    let requests = server.take_requests();
    assert!(requests.len() == 9 && requests.iter().all(|request| request.starts_with("head ")), "{requests:?}");
}

#[tokio::test]
async fn no_more_bodies_are_read_at_once_than_requests_may_be_in_flight() {
    const BYTES: usize = 2 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = ScriptedServer { url: format!("http://{}", listener.local_addr().unwrap()), requests: Arc::default() };
    let (may_send, sends) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut sends = sends.clone();
            tokio::spawn(async move {
                let _ = socket.read(&mut [0; 4096]).await;
                let head = format!("HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: {BYTES}\r\n\r\n7");
                let _ = socket.write_all(head.as_bytes()).await;
                let _ = sends.wait_for(|may_send| *may_send).await;
                let _ = socket.write_all(&vec![b'7'; BYTES - 1]).await;
            });
        }
    });
    let store = server.store(Provider::S3, ForbiddenPolicy::Auto);
    let mut readers = Vec::new();
    for number in 0..3 * CONCURRENCY {
        let object = store_get(&store, &number.to_string(), 0).await.unwrap().unwrap();
        let ObjectData::Open(reader) = object.data else { panic!("the object is larger than the limit") };
        readers.push(reader);
    }
    let read = |reader: Arc<dyn ReadAt>| tokio::spawn(async move { reader.read_at(0..BYTES as u64).await });
    let reads: Vec<_> = readers.into_iter().map(read).collect();
    let mut pressure = store.pressure();
    while pressure.running + pressure.queued < reads.len() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        pressure = store.pressure();
    }
    assert_eq!((pressure.running, pressure.queued), (CONCURRENCY, 2 * CONCURRENCY));
    may_send.send(true).unwrap();
    for read in reads {
        assert_eq!(read.await.unwrap().unwrap().len(), BYTES);
    }
    let pressure = store.pressure();
    assert_eq!((pressure.running, pressure.queued), (0, 0));
}
