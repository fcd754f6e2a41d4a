//! Addresses of containers: local directories, and the forms in which object stores and their programs write addresses.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Characters that are percent-encoded in the path of a URL. The slash is not among them.
const URL_PATH: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

/// Domains of Azure's storage accounts, without the account.
const AZURE_DOMAINS: [&str; 2] = [".blob.core.windows.net", ".dfs.core.windows.net"];

/// Parameters of a query that hold a signature or a secret, in lower case.
const SECRET_PARAMETERS: [&str; 9] = [
    "sig",
    "x-amz-signature",
    "x-amz-security-token",
    "x-goog-signature",
    "awsaccesskeyid",
    "signature",
    "token",
    "access_token",
    "key",
];

/// Address of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootAddress {
    /// A directory of this machine.
    Local(PathBuf),
    /// A prefix of an object store or of an HTTP server.
    Remote(RemoteRoot),
}

/// Kind of the store of a [`RemoteRoot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    /// Amazon S3, and stores with its protocol.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
    /// Any HTTP server, such as another n5-server or nginx.
    Http,
    /// Memory of this process, which is empty at the start.
    Memory,
}

/// Address of a container that is not a local directory. It contains no credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRoot {
    /// Kind of the store.
    pub provider: Provider,
    /// Bucket, or container of Azure; empty for HTTP and memory.
    pub bucket: String,
    /// Prefix of all keys, decoded, without slashes at its ends; for HTTP, the path of the URL; for memory, a name.
    pub prefix: String,
    /// Base URL of the store, without a slash at its end, if the address names one that is not the provider's default.
    /// For HTTP, the origin: scheme, host and port.
    pub endpoint: Option<String>,
    /// Region that the address names.
    pub region: Option<String>,
    /// Storage account of Azure that the address names.
    pub account: Option<String>,
}

/// A form in which users write the address of a remote container.
struct AddressForm {
    /// Schemes, without `://`.
    schemes: &'static [&'static str],
    /// Parses an address that is split after the scheme and after the host. Returns `None` if the address has another
    /// form.
    parse: fn(scheme: &str, host: &str, path: &str) -> Option<Result<RemoteRoot, String>>,
    /// Example for messages.
    example: &'static str,
}

/// All forms of addresses. Of two forms with the same scheme, the more special one comes first.
const FORMS: &[AddressForm] = &[
    AddressForm {
        schemes: &["s3", "s3a"],
        parse: |_, host, path| Some(bucket_root(Provider::S3, host, path)),
        example: "s3://BUCKET/PATH",
    },
    AddressForm { schemes: &["s3+http", "s3+https"], parse: parse_s3_endpoint, example: "s3+https://HOST/BUCKET/PATH" },
    AddressForm { schemes: &["https"], parse: parse_aws, example: "https://BUCKET.s3.REGION.amazonaws.com/PATH" },
    AddressForm {
        schemes: &["gs", "gcs"],
        parse: |_, host, path| Some(bucket_root(Provider::Google, host, path)),
        example: "gs://BUCKET/PATH",
    },
    AddressForm { schemes: &["https"], parse: parse_google, example: "https://storage.googleapis.com/BUCKET/PATH" },
    AddressForm {
        schemes: &["az"],
        parse: |_, host, path| Some(bucket_root(Provider::Azure, host, path)),
        example: "az://CONTAINER/PATH",
    },
    AddressForm {
        schemes: &["abfs", "abfss"],
        parse: parse_abfs,
        example: "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
    },
    AddressForm {
        schemes: &["https"],
        parse: parse_azure,
        example: "https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH",
    },
    AddressForm { schemes: &["http", "https"], parse: parse_http, example: "https://HOST/PATH" },
    AddressForm { schemes: &["memory"], parse: parse_memory, example: "memory://NAME" },
];

impl RootAddress {
    /// Parses a path or an address of a form in `FORMS`. Drops a leading `n5://` or `n5:` and a trailing `|n5:` or
    /// `|n5`, which viewers and TensorStore write around an address.
    ///
    /// # Errors
    /// Returns a message without secrets if the address has an unknown scheme, names no bucket or host, or contains
    /// credentials or a query.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        let Ok(address) = std::str::from_utf8(text.as_bytes()) else { return Ok(Self::Local(text.into())) };
        let address = without_format(address);
        let Some((scheme, host, path)) = split_address(address) else { return Ok(Self::Local(address.into())) };
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "file" {
            return parse_file(host, path);
        }
        check_no_secret(&scheme, host, path)?;
        if path.starts_with(['?', '#']) {
            return Err(query_error(path));
        }
        // Names of hosts are not case-sensitive; names of buckets may be.
        let lower_case_host = host.to_ascii_lowercase();
        let host = if scheme.contains("http") { lower_case_host.as_str() } else { host };
        let forms = FORMS.iter().filter(|form| form.schemes.contains(&scheme.as_str()));
        if let Some(result) = forms.map(|form| (form.parse)(&scheme, host, path)).find_map(|parsed| parsed) {
            return result.map(Self::Remote);
        }
        let examples: Vec<&str> = FORMS.iter().map(|form| form.example).collect();
        Err(format!(
            "{scheme}:// is not the scheme of a container: write a directory, file:///PATH, or one of {}",
            examples.join(", ")
        ))
    }

    /// Returns the directory; `None` if the container is not a local directory.
    pub fn local_path(&self) -> Option<&Path> {
        match self {
            Self::Local(path) => Some(path),
            Self::Remote(_) => None,
        }
    }

    /// Returns true if no address was given.
    pub fn is_empty(&self) -> bool {
        self.local_path().is_some_and(|path| path.as_os_str().is_empty())
    }
}

impl Default for RootAddress {
    fn default() -> Self {
        Self::Local(PathBuf::new())
    }
}

impl From<PathBuf> for RootAddress {
    fn from(path: PathBuf) -> Self {
        Self::Local(path)
    }
}

impl From<&Path> for RootAddress {
    fn from(path: &Path) -> Self {
        Self::Local(path.to_owned())
    }
}

/// Writes an address that [`RootAddress::parse`] reads back.
impl fmt::Display for RootAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(f),
            Self::Remote(root) => root.fmt(f),
        }
    }
}

impl Serialize for RootAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Local(path) => {
                let text = path.to_str().ok_or_else(|| S::Error::custom("the path of a container is not UTF-8"))?;
                serializer.serialize_str(text)
            }
            Self::Remote(root) => serializer.collect_str(root),
        }
    }
}

impl<'de> Deserialize<'de> for RootAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(OsStr::new(&text)).map_err(D::Error::custom)
    }
}

impl RemoteRoot {
    /// Returns the last part of the prefix, or else the bucket, or else the host, as the name of the container.
    pub fn name(&self) -> &str {
        let last = self.prefix.rsplit('/').find(|part| !part.is_empty());
        let host = || self.endpoint.as_deref().and_then(|url| url.split_once("://")).map(|(_, host)| host);
        last.or(Some(self.bucket.as_str()).filter(|bucket| !bucket.is_empty())).or_else(host).unwrap_or_default()
    }
}

/// Writes an address that [`RootAddress::parse`] reads back.
impl fmt::Display for RemoteRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { provider, bucket, prefix, endpoint, region, account } = self;
        let (slash, url_prefix) = (if prefix.is_empty() { "" } else { "/" }, utf8_percent_encode(prefix, URL_PATH));
        match (provider, endpoint.as_deref(), region.as_deref(), account.as_deref()) {
            (Provider::S3, Some(url), Some(region), _) if url == china_endpoint(region) => {
                write!(f, "{url}/{bucket}{slash}{url_prefix}")
            }
            (Provider::S3, Some(endpoint), _, _) => write!(f, "s3+{endpoint}/{bucket}{slash}{url_prefix}"),
            (Provider::S3, None, Some(region), _) => {
                write!(f, "https://s3.{region}.amazonaws.com/{bucket}{slash}{url_prefix}")
            }
            (Provider::S3, None, None, _) => write!(f, "s3://{bucket}{slash}{prefix}"),
            (Provider::Google, ..) => write!(f, "gs://{bucket}{slash}{prefix}"),
            (Provider::Azure, _, _, Some(account)) => {
                write!(f, "abfss://{bucket}@{account}.dfs.core.windows.net{slash}{prefix}")
            }
            (Provider::Azure, _, _, None) => write!(f, "az://{bucket}{slash}{prefix}"),
            (Provider::Http, origin, _, _) => write!(f, "{}{slash}{url_prefix}", origin.unwrap_or_default()),
            (Provider::Memory, ..) => write!(f, "memory://{prefix}"),
        }
    }
}

/// Returns the text of an address without user, password and query, for messages about addresses that cannot be parsed.
pub(super) fn without_secrets(text: &OsStr) -> String {
    let text = text.to_string_lossy();
    let Some((scheme, host, path)) = split_address(without_format(&text)) else { return text.into_owned() };
    let host = host.rsplit('@').next().unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{host}/{path}")
}

/// Returns an address without the format that viewers and TensorStore write around it.
fn without_format(address: &str) -> &str {
    let address = address.strip_suffix("|n5:").or_else(|| address.strip_suffix("|n5")).unwrap_or(address);
    if let Some(inner) = address.strip_prefix("n5://") {
        return inner;
    }
    // A relative directory may have a name that begins with `n5:`.
    let is_inner = |inner: &&str| inner.starts_with('/') || inner.contains("://");
    address.strip_prefix("n5:").filter(is_inner).unwrap_or(address)
}

/// Splits an address into scheme, host and path; `None` if it is a path without a scheme.
fn split_address(address: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = address.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|character| character.is_ascii_alphanumeric() || "+-.".contains(character));
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    is_scheme.then_some((scheme, host, path.strip_prefix('/').unwrap_or(path)))
}

/// Returns an error that names the key to use if an address contains a password or a signature.
fn check_no_secret(scheme: &str, host: &str, path: &str) -> Result<(), String> {
    // The part before the `@` of abfs is a container.
    let has_password = host.split_once('@').is_some_and(|(user, _)| !scheme.starts_with("abfs") || user.contains(':'));
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let is_secret = |parameter: &str| {
        let name = parameter.split('=').next().unwrap_or_default().to_ascii_lowercase();
        SECRET_PARAMETERS.contains(&name.as_str())
    };
    if has_password || query.split('&').any(is_secret) {
        return Err(
            "the address contains credentials, which other users of this machine can see: leave them out, and \
                    set store.credentials of the container"
                .to_owned(),
        );
    }
    Ok(())
}

/// Returns the message about an address with this query or fragment, which it does not repeat.
fn query_error(rest: &str) -> String {
    format!(
        "the address has a query or a fragment: leave out everything from {:?} on",
        rest.get(..1).unwrap_or_default()
    )
}

/// Decodes the path of a URL and removes the slashes at its ends.
fn decode_path(path: &str) -> Result<String, String> {
    if let Some(at) = path.find(['?', '#']) {
        return Err(query_error(path.get(at..).unwrap_or_default()));
    }
    let decoded = percent_decode_str(path).decode_utf8();
    let decoded = decoded.map_err(|_invalid| format!("the path {path:?} is not UTF-8 after percent-decoding"))?;
    Ok(decoded.trim_matches('/').to_owned())
}

fn parse_file(host: &str, path: &str) -> Result<RootAddress, String> {
    if !["", "localhost"].contains(&host) {
        return Err(format!("{host:?} is a host: write an absolute path after file://, as in file:///data/volume.n5"));
    }
    let path: Vec<u8> = percent_decode_str(path).collect();
    Ok(RootAddress::Local(Path::new("/").join(OsStr::from_bytes(&path))))
}

/// Returns `prefix` of a store, without endpoint, region and account.
fn remote_root(provider: Provider, bucket: &str, prefix: String) -> RemoteRoot {
    RemoteRoot { provider, bucket: bucket.to_owned(), prefix, endpoint: None, region: None, account: None }
}

/// Returns the root of a bucket and a path. The path is a key, which is not percent-encoded.
fn bucket_root(provider: Provider, bucket: &str, path: &str) -> Result<RemoteRoot, String> {
    if bucket.is_empty() {
        return Err("the address names no bucket".to_owned());
    }
    if !bucket.chars().all(|character| character.is_ascii_alphanumeric() || "-._".contains(character)) {
        return Err(format!("{bucket:?} is not the name of a bucket: it has letters, digits and - . _"));
    }
    Ok(remote_root(provider, bucket, path.trim_matches('/').to_owned()))
}

/// Parses the path of a URL that begins with the bucket.
fn bucket_in_path(provider: Provider, path: &str) -> Result<RemoteRoot, String> {
    let path = decode_path(path)?;
    let (name, prefix) = path.split_once('/').unwrap_or((path.as_str(), ""));
    bucket_root(provider, name, prefix)
}

fn parse_s3_endpoint(scheme: &str, host: &str, path: &str) -> Option<Result<RemoteRoot, String>> {
    let transport = scheme.strip_prefix("s3+")?;
    Some(check_host(host).and_then(|()| {
        let endpoint = Some(format!("{transport}://{host}"));
        Ok(RemoteRoot { endpoint, ..bucket_in_path(Provider::S3, path)? })
    }))
}

/// Parses a URL of Amazon S3: `s3`, `s3.REGION`, `s3-REGION` or `s3.dualstack.REGION`, alone or after the bucket.
fn parse_aws(_: &str, host: &str, path: &str) -> Option<Result<RemoteRoot, String>> {
    let china_service = host.strip_suffix(".amazonaws.com.cn");
    let service = china_service.or_else(|| host.strip_suffix(".amazonaws.com"))?;
    let is_service_alone = service == "s3" || service.starts_with("s3.") || service.starts_with("s3-");
    let after_bucket = || {
        let in_the_middle = [".s3.", ".s3-"].iter().filter_map(|mark| service.rfind(mark)).max();
        in_the_middle.or_else(|| Some(service.strip_suffix(".s3")?.len()))
    };
    let (name, service) = if is_service_alone { ("", service) } else { service.split_at(after_bucket()?) };
    let region = service.trim_start_matches('.').trim_start_matches("s3").trim_start_matches(['.', '-']);
    let region = region.strip_prefix("dualstack.").unwrap_or(region);
    let region = Some(region.to_owned()).filter(|region| !region.is_empty());
    let endpoint = china_service.and(region.as_deref()).map(china_endpoint);
    let parsed = if name.is_empty() {
        bucket_in_path(Provider::S3, path)
    } else {
        decode_path(path).and_then(|prefix| bucket_root(Provider::S3, name, &prefix))
    };
    Some(parsed.map(|root| RemoteRoot { endpoint, region, ..root }))
}

/// Returns the base URL of Amazon S3 in a region of China, which has its own domain.
fn china_endpoint(region: &str) -> String {
    format!("https://s3.{region}.amazonaws.com.cn")
}

fn parse_google(_: &str, host: &str, path: &str) -> Option<Result<RemoteRoot, String>> {
    if ["storage.googleapis.com", "storage.cloud.google.com"].contains(&host) {
        return Some(bucket_in_path(Provider::Google, path));
    }
    let name = host.strip_suffix(".storage.googleapis.com")?;
    Some(decode_path(path).and_then(|prefix| bucket_root(Provider::Google, name, &prefix)))
}

#[expect(clippy::unnecessary_wraps, reason = "the parsers of all forms have the same type")]
fn parse_abfs(_: &str, host: &str, path: &str) -> Option<Result<RemoteRoot, String>> {
    let Some((container, account)) = host.split_once('@') else {
        return Some(bucket_root(Provider::Azure, host, path));
    };
    let Some(account) = AZURE_DOMAINS.iter().find_map(|domain| account.strip_suffix(domain)) else {
        return Some(Err(format!("{account:?} is not a storage account: write ACCOUNT.dfs.core.windows.net")));
    };
    let account = Some(account.to_owned());
    Some(bucket_root(Provider::Azure, container, path).map(|root| RemoteRoot { account, ..root }))
}

fn parse_azure(_: &str, host: &str, path: &str) -> Option<Result<RemoteRoot, String>> {
    let account = AZURE_DOMAINS.iter().find_map(|domain| host.strip_suffix(domain))?;
    let account = Some(account.to_owned());
    Some(bucket_in_path(Provider::Azure, path).map(|root| RemoteRoot { account, ..root }))
}

#[expect(clippy::unnecessary_wraps, reason = "the parsers of all forms have the same type")]
fn parse_http(scheme: &str, host: &str, path: &str) -> Option<Result<RemoteRoot, String>> {
    Some(check_host(host).and_then(|()| {
        let endpoint = Some(format!("{scheme}://{host}"));
        Ok(RemoteRoot { endpoint, ..remote_root(Provider::Http, "", decode_path(path)?) })
    }))
}

#[expect(clippy::unnecessary_wraps, reason = "the parsers of all forms have the same type")]
fn parse_memory(_: &str, host: &str, path: &str) -> Option<Result<RemoteRoot, String>> {
    let prefix = [host, path].join("/").trim_matches('/').to_owned();
    Some(Ok(remote_root(Provider::Memory, "", prefix)))
}

/// Returns an error if `host` is not `HOST` or `HOST:PORT`.
fn check_host(host: &str) -> Result<(), String> {
    let is_valid = |character: char| character.is_ascii_alphanumeric() || "-._:[]".contains(character);
    if host.is_empty() || !host.chars().all(is_valid) {
        return Err(if host.is_empty() {
            "the address names no host".to_owned()
        } else {
            format!("{host:?} is not a host: write HOST or HOST:PORT")
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RootAddress, String> {
        RootAddress::parse(OsStr::new(text))
    }

    /// Returns the parts of an address as text: kind, bucket, prefix, and what else the address says.
    fn parts(text: &str) -> String {
        match parse(text) {
            Ok(RootAddress::Remote(root)) => {
                let rest = [root.endpoint, root.region, root.account].into_iter().flatten().collect::<Vec<_>>();
                format!("{:?} {} {} {}", root.provider, root.bucket, root.prefix, rest.join(" ")).trim_end().to_owned()
            }
            other => format!("{other:?}"),
        }
    }

    const REMOTE: [(&str, &str); 32] = [
        ("s3://janelia-cosem-datasets/jrc_hela-2/jrc_hela-2.n5", "S3 janelia-cosem-datasets jrc_hela-2/jrc_hela-2.n5"),
        ("s3a://b/c/", "S3 b c"),
        ("s3://b", "S3 b"),
        ("s3://b/a%20b/ü", "S3 b a%20b/ü"),
        ("s3://b/a//b", "S3 b a//b"),
        ("S3://B/c", "S3 B c"),
        ("n5://s3://b/c", "S3 b c"),
        ("n5:s3://b/c", "S3 b c"),
        ("s3://b/c/|n5:", "S3 b c"),
        ("s3+http://127.0.0.1:9000/b/c/d", "S3 b c/d http://127.0.0.1:9000"),
        ("s3+https://minio.lab.org/b", "S3 b  https://minio.lab.org"),
        ("https://b.s3.us-west-2.amazonaws.com/c%20d", "S3 b c d us-west-2"),
        ("https://a.b.s3.amazonaws.com/c", "S3 a.b c"),
        ("https://s3.eu-central-1.amazonaws.com/b/c", "S3 b c eu-central-1"),
        ("https://s3-us-west-2.amazonaws.com/b/c", "S3 b c us-west-2"),
        ("https://s3.amazonaws.com/b/c", "S3 b c"),
        ("https://b.S3.dualstack.us-east-1.amazonaws.com/C", "S3 b C us-east-1"),
        ("https://b.s3.cn-north-1.amazonaws.com.cn/c", "S3 b c https://s3.cn-north-1.amazonaws.com.cn cn-north-1"),
        ("gs://b/c", "Google b c"),
        ("gcs://b/c", "Google b c"),
        ("https://storage.googleapis.com/b/c/d", "Google b c/d"),
        ("https://storage.cloud.google.com/b/c", "Google b c"),
        ("https://b.storage.googleapis.com/c", "Google b c"),
        ("az://b/c", "Azure b c"),
        ("abfss://c@acct.dfs.core.windows.net/d", "Azure c d acct"),
        ("abfs://c/d", "Azure c d"),
        ("https://acct.blob.core.windows.net/c/d", "Azure c d acct"),
        ("https://host:8443/n5/em%3F.n5/", "Http  n5/em?.n5 https://host:8443"),
        ("http://[::1]:8080", "Http   http://[::1]:8080"),
        ("https://Amazonaws.com/a", "Http  a https://amazonaws.com"),
        ("memory://", "Memory"),
        ("memory://a/b", "Memory  a/b"),
    ];

    #[test]
    fn addresses_of_stores_and_their_programs_are_understood() {
        for (text, expected) in REMOTE {
            assert_eq!(parts(text), expected, "{text}");
        }
    }

    #[test]
    fn a_remote_address_is_read_back_from_its_text() {
        for (text, _) in REMOTE {
            let address = parse(text).unwrap();
            assert_eq!(parse(&address.to_string()).as_ref(), Ok(&address), "{address}");
        }
    }

    #[test]
    fn all_other_addresses_are_paths() {
        for (text, path) in [
            ("/data/a.n5", "/data/a.n5"),
            ("data/a:b", "data/a:b"),
            ("file:///data/a%20b.n5", "/data/a b.n5"),
            ("file://localhost/data", "/data"),
            ("FILE:///data", "/data"),
            ("n5:///data/a.n5", "/data/a.n5"),
            ("n5:/data/a.n5", "/data/a.n5"),
            ("n5:file:///data/a.n5", "/data/a.n5"),
            ("/data/a.n5|n5:", "/data/a.n5"),
            ("n5:odd", "n5:odd"),
            ("./s3:/x", "./s3:/x"),
            ("./s3://x", "./s3://x"),
        ] {
            assert_eq!(parse(text), Ok(RootAddress::Local(path.into())), "{text}");
        }
        let odd = OsStr::from_bytes(b"/data/\xff");
        assert_eq!(RootAddress::parse(odd), Ok(RootAddress::Local(odd.into())));
    }

    #[test]
    fn credentials_and_unknown_forms_are_refused_without_their_secrets() {
        for (text, part) in [
            ("https://user:hunter2@host/c", "contains credentials"),
            ("s3://key:hunter2@b/c", "contains credentials"),
            ("s3+http://key:hunter2@host/b/c", "contains credentials"),
            ("abfss://c:hunter2@acct.dfs.core.windows.net/d", "contains credentials"),
            ("https://acct.blob.core.windows.net/c/d?sv=2&sig=hunter2", "contains credentials"),
            ("https://b.s3.amazonaws.com/c?X-Amz-Signature=hunter2", "contains credentials"),
            ("https://host/c?token=hunter2", "contains credentials"),
            ("https://host?token=hunter2", "contains credentials"),
            ("https://acct.blob.core.windows.net?sv=2&sig=hunter2", "contains credentials"),
            ("s3://b?X-Amz-Signature=hunter2", "contains credentials"),
            ("https://host/c?other=hunter2", "query or a fragment"),
            ("ftp://host/c", "ftp:// is not the scheme"),
            ("s3:///c", "names no bucket"),
            ("s3://b?c/d", "query or a fragment"),
            ("s3://b c/d", "not the name of a bucket"),
            ("file://host/c", "is a host"),
            ("http:///c", "names no host"),
            ("http://a b/c", "not a host"),
            ("https://host/%ff", "not UTF-8"),
            ("abfs://c@host/d", "not a storage account"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(part) && !message.contains("hunter2"), "{text}: {message}");
            assert!(!without_secrets(OsStr::new(text)).contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_remote_container_is_named_after_the_last_part_of_its_address() {
        for (text, name) in [
            ("s3://b/c/em.n5/", "em.n5"),
            ("s3://b", "b"),
            ("https://host:8443/n5/seg.n5", "seg.n5"),
            ("http://host:80", "host:80"),
            ("memory://", ""),
        ] {
            let Ok(RootAddress::Remote(root)) = parse(text) else { panic!("{text}") };
            assert_eq!(root.name(), name, "{text}");
        }
    }
}
