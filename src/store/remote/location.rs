//! URLs of a remote root and of the objects below it.

use axum::http::Uri;
use axum::http::uri::Scheme;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::super::key::Key;
use crate::config::{AddressingStyle, Provider, RemoteRoot, StoreSettings};
use crate::http_client::is_loopback_host;

/// Characters of a path that are percent-encoded, as signatures of S3 demand: all but the unreserved ones and the slash.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Location of a remote root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Location {
    /// Scheme, host and port, without a slash at the end.
    pub(super) origin: String,
    /// Encoded path of the bucket: empty, or with a slash at its beginning only.
    pub(super) bucket_path: String,
    /// Encoded path of the root below the bucket: empty, or with a slash at its beginning only.
    prefix: String,
    /// Kind of the store.
    pub(super) provider: Provider,
}

impl Location {
    /// Returns the location of `root`. `region` is that of an S3 bucket, and `account` is that of an Azure container.
    ///
    /// # Errors
    /// Returns a message if the address is incomplete.
    pub(super) fn new(
        root: &RemoteRoot,
        settings: &StoreSettings,
        region: &str,
        account: Option<&str>,
    ) -> Result<Self, String> {
        let custom = endpoint(root, settings);
        let bucket = encode(&root.bucket);
        let (origin, bucket_path) = match root.provider {
            Provider::S3 => s3_bucket(root, settings, custom, region),
            Provider::Google => in_path(custom.unwrap_or("https://storage.googleapis.com"), &bucket),
            Provider::Azure => {
                match (custom, account) {
                    (Some(endpoint), _) => in_path(endpoint, &bucket),
                    (None, Some(account)) => in_path(&format!("https://{account}.blob.core.windows.net"), &bucket),
                    (None, None) => {
                        return Err("the storage account is unknown; write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH \
                                or https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH"
                        .to_owned());
                    }
                }
            }
            Provider::Http => (custom.unwrap_or_default().to_owned(), String::new()),
            Provider::Memory => return Err("an address in memory has no URL".to_owned()),
        };
        let prefix = root.prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("/{}", encode(prefix)) };
        Ok(Self { origin: without_default_port(&origin), bucket_path, prefix, provider: root.provider })
    }

    /// Returns the URL of the bucket, or the origin of an HTTP server.
    pub(super) fn bucket_url(&self) -> String {
        format!("{}{}", self.origin, self.bucket_path)
    }

    /// Returns the URL of everything that shares a limit of requests: the bucket, or one root of an HTTP server, whose
    /// roots may lie in different storage.
    pub(super) fn limit_url(&self) -> String {
        match self.provider {
            Provider::Http => format!("{}{}", self.origin, self.prefix),
            Provider::S3 | Provider::Google | Provider::Azure | Provider::Memory => self.bucket_url(),
        }
    }

    /// Returns the URL of an object.
    pub(super) fn object_url(&self, key: &Key) -> String {
        let Self { origin, bucket_path, prefix, .. } = self;
        format!("{origin}{bucket_path}{prefix}/{}", encode(key.as_str()))
    }

    /// Returns the URL of a listing: of the bucket with a query or, on an HTTP server, of a path with a query.
    pub(super) fn listing_url(&self, target: &str) -> String {
        let Self { origin, bucket_path, .. } = self;
        match self.provider {
            Provider::Http => format!("{origin}{target}"),
            Provider::S3 | Provider::Google | Provider::Azure | Provider::Memory => {
                let slash = if bucket_path.is_empty() { "/" } else { "" };
                format!("{origin}{bucket_path}{slash}{target}")
            }
        }
    }

    /// Returns true if requests cross a network without encryption.
    pub(super) fn is_exposed(&self) -> bool {
        let url = self.origin.parse::<Uri>();
        let is_safe = |url: &Uri| url.scheme() == Some(&Scheme::HTTPS) || url.host().is_some_and(is_loopback_host);
        !url.is_ok_and(|url| is_safe(&url))
    }
}

/// Returns the base URL of a store that is not the provider's own.
pub(super) fn endpoint<'a>(root: &'a RemoteRoot, settings: &'a StoreSettings) -> Option<&'a str> {
    let configured = Some(settings.endpoint.as_str()).filter(|endpoint| !endpoint.is_empty());
    root.endpoint.as_deref().or(configured).map(|endpoint| endpoint.trim_end_matches('/'))
}

fn encode(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// Returns the origin and the path of a bucket that is the first part of the path.
fn in_path(endpoint: &str, bucket: &str) -> (String, String) {
    let (origin, path) = split_origin(endpoint);
    (origin.to_owned(), format!("{path}/{bucket}"))
}

/// Splits a base URL into its origin and its path.
fn split_origin(url: &str) -> (&str, &str) {
    let host_start = url.find("://").map_or(0, |at| at + 3);
    let path_start = url.get(host_start..).and_then(|rest| rest.find('/')).map_or(url.len(), |at| host_start + at);
    url.split_at_checked(path_start).unwrap_or((url, ""))
}

/// Returns the base URL of Amazon's stores in `region`.
pub(super) fn amazon_endpoint(region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://s3.{region}.{domain}")
}

fn s3_bucket(root: &RemoteRoot, settings: &StoreSettings, custom: Option<&str>, region: &str) -> (String, String) {
    let bucket = encode(&root.bucket);
    // Certificates of Amazon do not cover names with further dots.
    let is_in_path = match settings.path_style {
        AddressingStyle::Auto => custom.is_some() || root.bucket.contains('.'),
        AddressingStyle::Path => true,
        AddressingStyle::Host => false,
    };
    let own = amazon_endpoint(region);
    let endpoint = custom.unwrap_or(&own);
    if is_in_path {
        return in_path(endpoint, &bucket);
    }
    let (origin, path) = split_origin(endpoint);
    let (scheme, host) = origin.split_once("://").unwrap_or(("https", origin));
    (format!("{scheme}://{}.{host}", root.bucket), path.to_owned())
}

/// Returns an origin without a port that its scheme implies, because signatures contain the host as it is sent.
fn without_default_port(origin: &str) -> String {
    let port = if origin.starts_with("https://") { ":443" } else { ":80" };
    origin.strip_suffix(port).unwrap_or(origin).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(provider: Provider, endpoint: Option<&str>) -> RemoteRoot {
        RemoteRoot {
            provider,
            bucket: if provider == Provider::Http { String::new() } else { "lab".to_owned() },
            prefix: "a b/c+d.n5".to_owned(),
            endpoint: endpoint.map(str::to_owned),
            region: None,
            account: None,
        }
    }

    fn url(root: &RemoteRoot, settings: &StoreSettings) -> String {
        let location = Location::new(root, settings, "eu-west-1", Some("acct")).unwrap();
        location.object_url(&Key::parse("s0/ü%2F/1").unwrap())
    }

    #[test]
    fn containers_of_a_bucket_share_a_limit_and_those_of_a_server_do_not() {
        let limit_url = |provider, endpoint, prefix: &str| {
            let root = RemoteRoot { prefix: prefix.to_owned(), ..root(provider, endpoint) };
            Location::new(&root, &StoreSettings::default(), "eu-west-1", None).unwrap().limit_url()
        };
        assert_eq!(limit_url(Provider::S3, None, "a"), limit_url(Provider::S3, None, "b"));
        let server = Some("http://inner:8080");
        assert_eq!(limit_url(Provider::Http, server, "a"), "http://inner:8080/a");
        assert_eq!(limit_url(Provider::Http, server, "b"), "http://inner:8080/b");
    }

    #[test]
    fn objects_have_the_urls_of_their_provider() {
        let settings = StoreSettings::default();
        let tail = "a%20b/c%2Bd.n5/s0/%C3%BC%252F/1";
        for (provider, endpoint, base) in [
            (Provider::S3, None, "https://lab.s3.eu-west-1.amazonaws.com"),
            (Provider::S3, Some("http://127.0.0.1:9000"), "http://127.0.0.1:9000/lab"),
            (Provider::S3, Some("https://s3.lab.org:443/"), "https://s3.lab.org/lab"),
            (Provider::Google, None, "https://storage.googleapis.com/lab"),
            (Provider::Azure, None, "https://acct.blob.core.windows.net/lab"),
            (Provider::Azure, Some("http://127.0.0.1:10000/acct"), "http://127.0.0.1:10000/acct/lab"),
            (Provider::Http, Some("http://inner:8080"), "http://inner:8080"),
        ] {
            assert_eq!(url(&root(provider, endpoint), &settings), format!("{base}/{tail}"));
        }
    }

    #[test]
    fn the_style_of_addresses_can_be_chosen() {
        let mut settings = StoreSettings { path_style: AddressingStyle::Path, ..StoreSettings::default() };
        assert!(url(&root(Provider::S3, None), &settings).starts_with("https://s3.eu-west-1.amazonaws.com/lab/a%20b"));
        settings.path_style = AddressingStyle::Host;
        let custom = root(Provider::S3, Some("https://s3.lab.org"));
        assert!(url(&custom, &settings).starts_with("https://lab.s3.lab.org/a%20b"));
        let dotted = RemoteRoot { bucket: "a.b".to_owned(), ..root(Provider::S3, None) };
        settings.path_style = AddressingStyle::Auto;
        assert!(url(&dotted, &settings).starts_with("https://s3.eu-west-1.amazonaws.com/a.b/a%20b"));
    }

    #[test]
    fn listings_have_the_url_of_the_bucket_or_of_a_path() {
        let settings = StoreSettings::default();
        let listing = |provider, endpoint, target| {
            Location::new(&root(provider, endpoint), &settings, "eu-west-1", None).unwrap().listing_url(target)
        };
        assert_eq!(listing(Provider::S3, None, "?list-type=2"), "https://lab.s3.eu-west-1.amazonaws.com/?list-type=2");
        assert_eq!(listing(Provider::S3, Some("http://h:1"), "?list-type=2"), "http://h:1/lab?list-type=2");
        assert_eq!(listing(Provider::Http, Some("http://h:1"), "/a/?x"), "http://h:1/a/?x");
    }

    #[test]
    fn plain_http_is_exposed_except_on_this_machine() {
        let settings = StoreSettings::default();
        for (endpoint, is_exposed) in [
            ("http://127.0.0.1:9000", false),
            ("http://[::1]:9000", false),
            ("http://localhost", false),
            ("https://s3.lab.org", false),
            ("http://s3.lab.org", true),
            ("http://10.0.0.1:9000", true),
            ("http://localhost.evil.org", true),
            ("http://localhost:80@evil.org", true),
        ] {
            let location = Location::new(&root(Provider::S3, Some(endpoint)), &settings, "", None).unwrap();
            assert_eq!(location.is_exposed(), is_exposed, "{endpoint}");
        }
    }
}
