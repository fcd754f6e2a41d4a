//! Settings of the store of a remote container: section `[containers.store]`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::values;

/// Section `[containers.store]`: access to the store of a remote container. Local directories do not use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSettings {
    /// Source of the credentials.
    pub credentials: CredentialSource,
    /// Base URL of the store, without a slash at its end, for stores that are not those of Amazon, Google or Azure;
    /// empty if the address or the provider determines it. An endpoint in the address has precedence.
    #[serde(deserialize_with = "values::base_url")]
    pub endpoint: String,
    /// Region of the bucket; empty if the address names it or the store is asked. A region in the address has
    /// precedence.
    pub region: String,
    /// Place of the bucket in the URLs of an S3 store.
    pub path_style: AddressingStyle,
    /// True if requests carry the consent to pay for them.
    pub requester_pays: bool,
    /// Policy for 403 answers to requests for single objects.
    pub missing_403: ForbiddenPolicy,
    /// Maximum number of concurrent requests to the store. Fewer are sent while the store throttles.
    #[serde(deserialize_with = "values::count")]
    pub concurrency: usize,
    /// True if a second request is sent for an object whose first one is slow.
    pub hedge: bool,
    /// Maximum time without a byte from the store.
    #[serde(with = "values::duration")]
    pub timeout: Duration,
    /// PEM file of root certificates for the store; empty for those that browsers trust.
    pub ca: PathBuf,
}

/// Source of the credentials of a store. It contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CredentialSource {
    /// Those of the environment if there are any, but never for a custom endpoint; otherwise none.
    Auto,
    /// Anonymous requests.
    None,
    /// Variables of the environment, also for a custom endpoint.
    Env,
    /// A profile of the files of the AWS command line.
    Profile(String),
    /// A file: a service account, `KEY=VALUE` lines, or a token.
    File(PathBuf),
    /// The metadata service of the machine.
    Instance,
    /// The web identity of the environment.
    WebIdentity,
}

impl FromStr for CredentialSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The text is not repeated, because it may be a secret that was written here by mistake.
        const FORMS: &str = "write \"auto\", \"none\", \"env\", \"profile:NAME\", \"file:PATH\", \"instance\" or \
                             \"web-identity\"; a secret belongs in a file";
        match (text, text.split_once(':')) {
            ("auto", _) => Ok(Self::Auto),
            ("none", _) => Ok(Self::None),
            ("env", _) => Ok(Self::Env),
            ("instance", _) => Ok(Self::Instance),
            ("web-identity", _) => Ok(Self::WebIdentity),
            (_, Some(("profile" | "file", ""))) => Err(format!("the name after the colon is missing: {FORMS}")),
            (_, Some(("profile", name))) => Ok(Self::Profile(name.to_owned())),
            (_, Some(("file", path))) => Ok(Self::File(path.into())),
            _ => Err(format!("is not a source of credentials: {FORMS}")),
        }
    }
}

impl fmt::Display for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Env => f.write_str("env"),
            Self::Profile(name) => write!(f, "profile:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Instance => f.write_str("instance"),
            Self::WebIdentity => f.write_str("web-identity"),
        }
    }
}

/// Place of the bucket in the URLs of an S3 store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressingStyle {
    /// In the path for a custom endpoint, in the host otherwise.
    Auto,
    /// In the path: `https://HOST/BUCKET/KEY`.
    Path,
    /// In the host: `https://BUCKET.HOST/KEY`.
    Host,
}

impl<'de> Deserialize<'de> for AddressingStyle {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        values::parse_text(deserializer, |text| match text {
            "auto" => Ok(Self::Auto),
            "true" => Ok(Self::Path),
            "false" => Ok(Self::Host),
            _ => Err(format!(
                "{text:?} is not a style: write true (the bucket is in the path), false (in the host) or \"auto\""
            )),
        })
    }
}

impl Serialize for AddressingStyle {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Path => serializer.serialize_bool(true),
            Self::Host => serializer.serialize_bool(false),
        }
    }
}

/// Policy for 403 answers to requests for single objects: stores answer so for missing objects if the caller may not list
/// the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForbiddenPolicy {
    /// 403 means that the object is missing if the store answers so for a key that cannot exist, although it lets other
    /// objects be read.
    Auto,
    /// 403 always means that the object is missing.
    Always,
    /// 403 is always an error.
    Never,
}

impl TryFrom<String> for CredentialSource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<CredentialSource> for String {
    fn from(source: CredentialSource) -> Self {
        source.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_of_credentials_round_trip_through_text() {
        for text in ["auto", "none", "env", "profile:lab", "file:/run/secrets/s3:a", "instance", "web-identity"] {
            assert_eq!(text.parse::<CredentialSource>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_unknown_source_of_credentials_is_not_repeated() {
        for text in ["AKIAIOSFODNN7EXAMPLE", "profile:", "file:", "key:hunter2", ""] {
            let error = text.parse::<CredentialSource>().unwrap_err();
            assert!(error.contains("web-identity"), "{error}");
            assert!(!error.contains("AKIA") && !error.contains("hunter2"), "{error}");
        }
    }
}
