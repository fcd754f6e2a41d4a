//! Text forms of sizes, durations, addresses and policies.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Sizes in bytes, written as a number or as text such as `512MiB`.
pub(super) mod size {
    use bytesize::ByteSize;
    use serde::{Deserializer, Serializer};

    pub(crate) fn parse(text: &str) -> Result<u64, String> {
        text.trim().parse::<ByteSize>().map(|size| size.as_u64()).map_err(|_reason| {
            format!(
                "{text:?} is not a size: write a number of bytes (1048576) or a number with a unit (\"512MiB\", \
                 \"1.5GiB\"); B, KiB, MiB, GiB, TiB are powers of 1024, kB, MB, GB, TB of 1000"
            )
        })
    }

    /// Returns the shortest text that [`parse`] reads back exactly.
    pub(crate) fn format(bytes: u64) -> String {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut number = bytes;
        let mut unit = 0;
        while number >= 1024 && number.is_multiple_of(1024) && unit + 1 < UNITS.len() {
            number /= 1024;
            unit += 1;
        }
        format!("{number}{}", UNITS.get(unit).copied().unwrap_or_default())
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
    pub(crate) fn serialize<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format(*bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        crate::config::values::parse_text(deserializer, parse)
    }
}

/// Durations, written as text such as `1m 30s`.
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    pub(crate) fn parse(text: &str) -> Result<Duration, String> {
        humantime::parse_duration(text.trim()).map_err(|_reason| {
            format!(
                "{text:?} is not a duration: write whole numbers with units, ms, s, m (minutes), h or d: \"500ms\", \
                 \"30s\", \"1h 30m\""
            )
        })
    }

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        crate::config::values::parse_text(deserializer, parse)
    }
}

/// Deserializes a value with `parse`, which gets the text of a string without quotes, or the TOML text of another
/// value.
pub(super) fn parse_text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    let value = toml::Value::deserialize(deserializer)?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    parse(&text).map_err(D::Error::custom)
}

/// Networks such as `10.0.0.0/8`, or single addresses.
pub(super) mod networks {
    use ipnet::IpNet;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(networks: &[IpNet], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(networks.iter().map(ToString::to_string))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| crate::config::values::network(text).map_err(D::Error::custom)).collect()
    }
}

fn network(text: &str) -> Result<ipnet::IpNet, String> {
    text.parse().or_else(|_not_a_network| text.parse::<IpAddr>().map(ipnet::IpNet::from)).map_err(|_neither| {
        format!("{text:?} is neither an address (\"10.0.0.7\", \"::1\") nor a network (\"10.0.0.0/8\")")
    })
}

/// Deserializes a whole number that is not negative.
pub(super) fn count<'de, D: Deserializer<'de>, T: TryFrom<i64>>(deserializer: D) -> Result<T, D::Error> {
    let value = toml::Value::deserialize(deserializer)?;
    let number = value.as_integer().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| D::Error::custom(format!("{value} is not a whole number of 0 or more")))
}

/// Deserializes a base URL, `http` or `https`, without a slash at its end; or empty text.
pub(super) fn base_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    parse_text(deserializer, |text| {
        let text = text.trim_end_matches('/');
        let rest = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        if text.is_empty() || rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['@', '?', '#', ' '])) {
            return Ok(text.to_owned());
        }
        // The text is not repeated, because it may contain a password.
        Err("is not a base URL: write \"https://HOST\" or \"https://HOST:PORT\", without a user, a query or a bucket"
            .to_owned())
    })
}

/// A listening address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum ListenAddress {
    /// A TCP address and port.
    Tcp(std::net::SocketAddr),
    /// The path of a Unix domain socket.
    Unix(PathBuf),
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A port may be written as a number.
        parse_text(deserializer, str::parse)
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("\"unix:\" names no socket: write \"unix:/path/to/socket\"".to_owned()),
            Some(path) => Ok(Self::Unix(PathBuf::from(path))),
            None => {
                let local_port = text.strip_prefix("localhost:").unwrap_or(text).parse().ok();
                let local_address = local_port.map(|port: u16| (Ipv4Addr::LOCALHOST, port).into());
                local_address.or_else(|| text.parse().ok()).map(Self::Tcp).ok_or_else(|| {
                    format!(
                        "{text:?} is not an address: write PORT or IP:PORT (\"8080\" and \"127.0.0.1:8080\" for this \
                         machine only, \"0.0.0.0:8080\" for others, too, \"[::1]:8080\", port 0 for any free one) or \
                         \"unix:/path/to/socket\""
                    )
                })
            }
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Value of the `Cache-Control` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CacheControl {
    /// `public, max-age=31536000, immutable`
    Immutable,
    /// `no-cache`
    #[default]
    Revalidate,
    /// `max-age=N` in whole seconds.
    MaxAge(Duration),
}

impl FromStr for CacheControl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "immutable" => Ok(Self::Immutable),
            "revalidate" => Ok(Self::Revalidate),
            other => duration::parse(other).map(Self::MaxAge).map_err(|_reason| {
                format!("{text:?} is not a cache policy: write \"immutable\", \"revalidate\" or a duration (\"60s\")")
            }),
        }
    }
}

impl fmt::Display for CacheControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Immutable => f.write_str("immutable"),
            Self::Revalidate => f.write_str("revalidate"),
            Self::MaxAge(age) => humantime::format_duration(*age).fmt(f),
        }
    }
}

/// Policy for comparing cached entries with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RevalidationPolicy {
    /// Once in every request.
    Always,
    /// Never, as long as the entry is cached.
    Never,
    /// When the last comparison is older than this duration.
    After(Duration),
}

impl FromStr for RevalidationPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            other => duration::parse(other).map(Self::After).map_err(|_reason| {
                format!("{text:?} is not a recheck policy: write \"always\", \"never\" or a duration (\"10s\")")
            }),
        }
    }
}

impl fmt::Display for RevalidationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Never => f.write_str("never"),
            Self::After(age) => humantime::format_duration(*age).fmt(f),
        }
    }
}

/// Maximum memory of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum MemoryLimit {
    /// A quarter of the system's memory, but not less than [`Self::Least`].
    Auto,
    /// As much as the other settings need if each cache and budget that shares the limit has its least size.
    Least,
    /// This number of bytes.
    Bytes(u64),
}

impl<'de> Deserialize<'de> for MemoryLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A size may be written as a number.
        parse_text(deserializer, str::parse)
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "least" => Ok(Self::Least),
            other => {
                size::parse(other).map(Self::Bytes).map_err(|message| format!("{message}; or \"auto\" or \"least\""))
            }
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Least => f.write_str("least"),
            Self::Bytes(bytes) => f.write_str(&size::format(*bytes)),
        }
    }
}

/// Free space that a cache leaves on its file system: a size, or a percentage of the file system such as `5%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum MinFree {
    /// A number of bytes.
    Bytes(u64),
    /// A share of the size of the file system, in percent.
    Percent(u8),
}

impl MinFree {
    /// Largest share of a file system. A larger one would hardly leave space for a cache.
    const MAX_PERCENT: u8 = 90;

    /// Returns the number of bytes on a file system of `total_bytes`.
    pub fn bytes(self, total_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => total_bytes / 100 * u64::from(percent),
        }
    }
}

impl<'de> Deserialize<'de> for MinFree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A size may be written as a number.
        parse_text(deserializer, str::parse)
    }
}

impl FromStr for MinFree {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(number) = text.strip_suffix('%') else {
            return size::parse(text)
                .map(Self::Bytes)
                .map_err(|message| format!("{message}; or write a percentage of the file system (\"5%\")"));
        };
        let percent = number.trim().parse().ok().filter(|percent| *percent <= Self::MAX_PERCENT);
        percent.map(Self::Percent).ok_or_else(|| {
            format!("{text:?} is not a percentage: write a whole number from 0 to {} and %", Self::MAX_PERCENT)
        })
    }
}

impl fmt::Display for MinFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&size::format(*bytes)),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Policies for comparing cached entries, or `auto`, which is `None`.
pub(super) mod auto_policy {
    use serde::{Deserializer, Serializer};

    use crate::config::values::RevalidationPolicy;

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(crate) fn serialize<S: Serializer>(
        policy: &Option<RevalidationPolicy>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        crate::config::values::serialize_auto(policy.as_ref(), serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<RevalidationPolicy>, D::Error> {
        crate::config::values::parse_text(deserializer, |text| crate::config::values::parse_auto(text, str::parse))
    }
}

/// Sizes in bytes, or `auto`, which is `None`.
pub(super) mod auto_size {
    use serde::{Deserializer, Serializer};

    use crate::config::values::{parse_auto, parse_text, serialize_auto, size};

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(crate) fn serialize<S: Serializer>(bytes: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_auto(bytes.map(size::format), serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        parse_text(deserializer, |text| parse_auto(text, size::parse))
    }
}

/// Durations, or `auto`, which is `None`.
pub(super) mod auto_duration {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(crate) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        crate::config::values::serialize_auto(duration.map(humantime::format_duration), serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        crate::config::values::parse_text(deserializer, |text| {
            crate::config::values::parse_auto(text, crate::config::values::duration::parse)
        })
    }
}

fn serialize_auto<S: serde::Serializer>(value: Option<impl fmt::Display>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(&value),
        None => serializer.serialize_str("auto"),
    }
}

fn parse_auto<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    if text == "auto" {
        return Ok(None);
    }
    parse(text).map(Some).map_err(|message| format!("{message}; or \"auto\""))
}

/// Makes serde read a type with its `FromStr`, and write it with its `Display`.
macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    )*};
}

as_text!(ListenAddress, CacheControl, RevalidationPolicy, MemoryLimit, MinFree);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_exactly() {
        const MIB: u64 = 1 << 20;
        for (text, bytes) in [
            ("0", 0),
            ("1048576", MIB),
            ("512MiB", 512 * MIB),
            (" 512 MiB ", 512 * MIB),
            ("512mib", 512 * MIB),
            ("1.5GiB", 1536 * MIB),
            ("64M", 64_000_000),
            ("64kB", 64_000),
            ("9007199254740993B", 9_007_199_254_740_993),
        ] {
            assert_eq!(size::parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_round_trip_through_text() {
        for bytes in [0, 1, 1023, 1024, 1025, 3 << 20, (1 << 40) + 1, 5 << 50, u64::MAX] {
            assert_eq!(size::parse(&size::format(bytes)), Ok(bytes));
        }
        assert_eq!(size::format(64 << 30), "64GiB");
    }

    #[test]
    fn an_invalid_size_is_reported_with_the_accepted_forms() {
        for text in ["", "lots", "-1", "12 parsecs", "1e9", "MiB"] {
            let error = size::parse(text).unwrap_err();
            assert!(error.contains("512MiB") && error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn durations_need_units() {
        assert_eq!(duration::parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration::parse("1h 30m"), Ok(Duration::from_secs(5400)));
        for text in ["10", "", "-3s", "1 fortnight", "1.5.2s"] {
            let error = duration::parse(text).unwrap_err();
            assert!(error.contains("1h 30m"), "{error}");
        }
    }

    #[test]
    fn addresses_policies_and_rechecks_round_trip_through_text() {
        for text in ["127.0.0.1:8080", "[::1]:0", "unix:/run/n5.sock"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["immutable", "revalidate", "1m 5s"] {
            assert_eq!(text.parse::<CacheControl>().unwrap().to_string(), text);
        }
        for text in ["always", "never", "10s"] {
            assert_eq!(text.parse::<RevalidationPolicy>().unwrap().to_string(), text);
        }
        for text in ["auto", "least", "1536MiB"] {
            assert_eq!(text.parse::<MemoryLimit>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_addresses_are_reported_with_the_accepted_forms() {
        for text in ["example.org:8080", ":8080", "127.0.0.1", "localhost", "65536", ""] {
            assert!(text.parse::<ListenAddress>().unwrap_err().contains("127.0.0.1:8080"));
        }
        assert!("unix:".parse::<ListenAddress>().is_err());
    }

    #[test]
    fn a_single_address_is_a_network_of_one() {
        assert_eq!(network("10.0.0.7").unwrap().to_string(), "10.0.0.7/32");
        assert_eq!(network("::1").unwrap().to_string(), "::1/128");
        assert_eq!(network("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert!(network("proxy.example.org").is_err());
    }
}
