//! Checks the values of a configuration, and defines the errors that these checks and the parsing of sources report.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use tracing_subscriber::filter::LevelFilter;

use super::root_address::{Provider, RootAddress};
use super::sections::{Config, ContainerConfig, ContainerDefaults, ContainerSettings, JwtConfig};
use super::values::{self, CacheControl, ListenAddress, RevalidationPolicy};

/// Name of the attributes file at the root of a container. No container may be named so, because both would have the
/// same URL.
const ATTRIBUTES_FILE: &str = "attributes.json";

/// Endpoints that are also served without the base path.
const ROOT_ENDPOINTS: [&str; 5] = ["healthz", "readyz", "metrics", "version", "openapi.yaml"];

const MIB: u64 = 1 << 20;
/// Maximum size of a budget. No machine has so much memory, and sums of budgets cannot overflow.
const MAX_BUDGET_BYTES: u64 = 1 << 50;
/// Minimum size of the cache on disk. Its directories take up to 68 KiB for each container, which do not count.
const MIN_DISK_CACHE_BYTES: u64 = 64 * MIB;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const HOUR: Duration = Duration::from_secs(60 * 60);
/// Maximum number of concurrent requests to the store of one container.
const MAX_STORE_REQUESTS: usize = 4096;
/// Minimum time without a byte from a store. A shorter one would take every slow answer for a fault.
const MIN_STORE_TIMEOUT: Duration = Duration::from_millis(100);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// An error in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Place where the setting was written: `FILE:LINE`, an environment variable, or an option as given. `None` if it
    /// is a default or the error concerns no single setting.
    pub origin: Option<String>,
    /// Key of the setting, such as `cache.decoded` or `containers[1].name`; empty if the error concerns a whole source.
    pub key: String,
    /// Description of the error and of the allowed values.
    pub message: String,
}

impl ConfigError {
    pub(super) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { origin: None, key: key.into(), message: message.into() }
    }

    pub(super) fn with_origin(self, origin: String) -> Self {
        Self { origin: Some(origin), ..self }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// All errors in a configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "the configuration has a fault:")?,
            count => write!(f, "the configuration has {count} faults:")?,
        }
        self.0.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl Config {
    /// Checks constraints that the types do not express. `reserved` lists the first path segments of the server's
    /// endpoints, which no container may have as its name.
    ///
    /// # Errors
    /// Returns all errors, without origins.
    pub fn validate(&self, reserved: &[&str]) -> Result<(), ConfigErrors> {
        let mut faults = Vec::new();
        let mut check = |key: &str, result: Result<(), String>| {
            faults.extend(result.err().map(|message| ConfigError::new(key, message)));
        };
        check("server.base_path", validate_base_path(&self.server.base_path));
        check("log.level", validate_log_level(&self.log.level));
        validate_ranges(self, &mut check);
        check("memory.limit", self.validate_memory_limit(MAX_BUDGET_BYTES));
        check("tracing.otlp_endpoint", validate_url(&self.tracing.otlp_endpoint));
        check("container_defaults.cache_control", validate_cache_control(self.container_defaults.cache_control));
        for (key, result) in self.container_defaults.freshness_and_store().validate() {
            check(&format!("container_defaults.{key}"), result);
        }
        check("cache.recheck_cached_metadata", validate_recheck(self.cache.recheck_cached_metadata));
        check("cache.recheck_cached_data", validate_recheck(self.cache.recheck_cached_data));
        validate_origins("cors.origins", &self.cors.origins, &mut faults);
        validate_origins("server.frame_ancestors", &self.server.frame_ancestors, &mut faults);
        validate_tls(self, &mut faults);
        validate_cors_credentials(self, &mut faults);
        validate_jwt(&self.jwt, &mut faults);
        validate_rules(self, reserved, &mut faults);
        validate_token_name(self, &mut faults);
        validate_containers(self, reserved, &mut faults);
        if faults.is_empty() { Ok(()) } else { Err(ConfigErrors(faults)) }
    }
}

/// Checks durations, sizes and counts against their bounds. Calls `check` with each key and its result.
fn validate_ranges(config: &Config, check: &mut impl FnMut(&str, Result<(), String>)) {
    for (key, value, min, max) in [
        ("server.header_timeout", config.server.header_timeout, Duration::from_millis(1), DAY),
        ("server.request_timeout", config.server.request_timeout, Duration::from_millis(1), DAY),
        ("server.send_timeout", config.server.send_timeout, Duration::from_millis(1), DAY),
        ("server.drain_delay", config.server.drain_delay, Duration::ZERO, DAY),
        ("server.shutdown_timeout", config.server.shutdown_timeout, Duration::ZERO, DAY),
        ("tls.handshake_timeout", config.tls.handshake_timeout, Duration::from_millis(1), DAY),
        ("tls.hsts", config.tls.hsts, Duration::ZERO, 2 * YEAR),
        ("limits.budget_wait", config.limits.budget_wait, Duration::ZERO, DAY),
        ("jwt.leeway", config.jwt.leeway, Duration::ZERO, Duration::from_secs(5 * 60)),
        ("jwt.refresh", config.jwt.refresh, Duration::from_secs(1), DAY),
        ("jwt.refetch", config.jwt.refetch, Duration::from_secs(1), DAY),
        ("jwt.stale", config.jwt.stale, config.jwt.refresh, 30 * DAY),
    ] {
        check(key, check_range(&value, &min, &max, |d| humantime::format_duration(*d).to_string()));
    }
    for (key, value, min, max) in [
        ("limits.slice", config.limits.slice, 1, u64::MAX),
        ("limits.attributes", config.limits.attributes, 1024, 16 * MIB),
        ("clients.bytes_per_second", config.clients.bytes_per_second, 0, MAX_BUDGET_BYTES),
        ("clients.burst", config.clients.burst, 64 * 1024, MAX_BUDGET_BYTES),
        ("cache.disk.size", config.cache.disk.size, MIN_DISK_CACHE_BYTES, MAX_BUDGET_BYTES),
    ] {
        check(key, check_range(&value, &min, &max, |bytes| values::size::format(*bytes)));
    }
    for (key, size, min) in [
        ("limits.slice_budget", config.limits.slice_budget, MIB),
        ("limits.decode_budget", config.limits.decode_budget, MIB),
        ("limits.transfer_budget", config.limits.transfer_budget, MIB),
        ("cache.decoded", config.cache.decoded, 0),
        ("cache.stored", config.cache.stored, 0),
    ] {
        if let Some(size) = size {
            check(key, check_range(&size, &min, &MAX_BUDGET_BYTES, |bytes| values::size::format(*bytes)));
        }
    }
    for (key, value, min, max) in [
        ("server.max_connections", config.server.max_connections, 1, 1_000_000),
        ("server.threads", config.server.threads, 0, 1024),
        ("clients.connections", config.clients.connections, 0, 1_000_000),
        ("clients.concurrent_requests", config.clients.concurrent_requests, 0, 1_000_000),
        ("limits.concurrent_requests", config.limits.concurrent_requests, 1, 1_000_000),
    ] {
        check(key, check_range(&value, &min, &max, ToString::to_string));
    }
    check("limits.decode_factor", check_range(&config.limits.decode_factor, &1, &1_000_000, ToString::to_string));
    check("tracing.one_in", check_range(&config.tracing.one_in, &1, &1_000_000_000, ToString::to_string));
}

/// Checks that the settings of `[tls]` are consistent.
fn validate_tls(config: &Config, faults: &mut Vec<ConfigError>) {
    let tls = &config.tls;
    let mut fault = |key: &str, message: &str| faults.push(ConfigError::new(format!("tls.{key}"), message));
    match (tls.is_enabled(), tls.key.as_os_str().is_empty()) {
        (true, true) => fault("key", "name the file with the certificate's private key"),
        (false, false) => fault("certificate", "name the file with the certificate that belongs to tls.key"),
        _ => {}
    }
    if tls.is_enabled() && matches!(config.server.listen, ListenAddress::Unix(_)) {
        fault(
            "certificate",
            "connections over a Unix socket are not encrypted: set server.listen to IP:PORT, or leave this empty",
        );
    }
    if tls.hsts.subsec_nanos() != 0 {
        fault("hsts", "write whole seconds");
    } else if !tls.is_enabled() && !tls.hsts.is_zero() {
        fault(
            "hsts",
            "browsers obey it only over HTTPS: set tls.certificate, or let the proxy in front send the header",
        );
    }
}

fn check_range<T: PartialOrd>(value: &T, min: &T, max: &T, format_value: impl Fn(&T) -> String) -> Result<(), String> {
    if value < min {
        Err(format!("{} is too small, the minimum is {}", format_value(value), format_value(min)))
    } else if value > max {
        Err(format!("{} is too large, the maximum is {}", format_value(value), format_value(max)))
    } else {
        Ok(())
    }
}

fn validate_base_path(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Ok(());
    }
    let is_unreserved = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    let is_segment = |s: &str| !matches!(s, "" | "." | "..") && s.chars().all(is_unreserved);
    match path.strip_prefix('/') {
        Some(rest) if rest.split('/').all(is_segment) => {
            let first = rest.split('/').next().unwrap_or_default();
            if ROOT_ENDPOINTS.contains(&first) {
                return Err(format!("{path:?} would hide the server's own /{first}: choose another prefix"));
            }
            Ok(())
        }
        _ => Err(format!(
            "{path:?} is not a path prefix: write \"\" or \"/prefix\" (\"/a/b\"), letters, digits and - . _ ~, \
             with a slash at the start and none at the end"
        )),
    }
}

fn validate_log_level(text: &str) -> Result<(), String> {
    let is_directive = |part: &str| {
        let (target, level) = part.split_once('=').map_or((None, part), |(target, level)| (Some(target), level));
        target != Some("") && !level.is_empty() && level.parse::<LevelFilter>().is_ok()
    };
    match text.split(',').find(|part| !is_directive(part.trim())) {
        None => Ok(()),
        Some(part) => Err(format!(
            "{part:?} is not a level: write off, error, warn, info, debug or trace, or a list such as \
             \"warn,n5_server=debug\""
        )),
    }
}

fn validate_url(url: &str) -> Result<(), String> {
    let is_url =
        ["http://", "https://"].iter().any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()));
    if url.is_empty() || is_url {
        return Ok(());
    }
    Err(format!("{url:?} is not a URL: write \"http://collector:4318\", or \"\" for none"))
}

fn validate_cache_control(policy: CacheControl) -> Result<(), String> {
    match policy {
        CacheControl::MaxAge(age) if age.subsec_nanos() != 0 => {
            Err(format!("{policy} is not a whole number of seconds, which Cache-Control requires"))
        }
        CacheControl::MaxAge(age) => {
            check_range(&age, &Duration::ZERO, &YEAR, |age| humantime::format_duration(*age).to_string())
        }
        CacheControl::Immutable | CacheControl::Revalidate => Ok(()),
    }
}

fn validate_recheck(recheck: RevalidationPolicy) -> Result<(), String> {
    match recheck {
        RevalidationPolicy::After(age) => {
            check_range(&age, &Duration::ZERO, &YEAR, |age| humantime::format_duration(*age).to_string())
        }
        RevalidationPolicy::Always | RevalidationPolicy::Never => Ok(()),
    }
}

impl ContainerSettings<'_> {
    /// Returns the key of each setting and the result of its check.
    fn validate(&self) -> [(&'static str, Result<(), String>); 5] {
        let format_duration = |duration: &Duration| humantime::format_duration(*duration).to_string();
        let recheck = |policy: Option<RevalidationPolicy>| policy.map_or(Ok(()), validate_recheck);
        let remembered = self.remember_missing.unwrap_or_default();
        [
            ("recheck_cached_metadata", recheck(self.recheck_cached_metadata)),
            ("recheck_cached_data", recheck(self.recheck_cached_data)),
            ("remember_missing", check_range(&remembered, &Duration::ZERO, &YEAR, format_duration)),
            ("store.concurrency", check_range(&self.store.concurrency, &1, &MAX_STORE_REQUESTS, ToString::to_string)),
            ("store.timeout", check_range(&self.store.timeout, &MIN_STORE_TIMEOUT, &HOUR, format_duration)),
        ]
    }
}

/// Checks that `cors.credentials` is not combined with the origin `*`, which browsers refuse.
fn validate_cors_credentials(config: &Config, faults: &mut Vec<ConfigError>) {
    if config.cors.credentials && config.cors.origins.iter().any(|origin| origin == "*") {
        let message = "browsers reject this in combination with the origin \"*\": list the origins in cors.origins";
        faults.push(ConfigError::new("cors.credentials", message));
    }
}

/// Checks that the settings of `[jwt]` are complete and consistent.
fn validate_jwt(jwt: &JwtConfig, faults: &mut Vec<ConfigError>) {
    if jwt.keys.is_empty() {
        if !jwt.issuer.is_empty() || !jwt.audience.is_empty() {
            faults.push(ConfigError::new("jwt.keys", "is missing: no JWT can be verified without the issuer's keys"));
        }
        return;
    }
    let is_url = jwt.keys.contains("://");
    if is_url && !jwt.keys.starts_with("https://") {
        faults.push(ConfigError::new("jwt.keys", "write a URL that begins with https://, or the path of a file"));
    }
    if !is_url && !jwt.roots.as_os_str().is_empty() {
        faults.push(ConfigError::new("jwt.roots", "applies only to keys from a URL, but jwt.keys is a file"));
    }
    for (key, is_missing) in [
        ("jwt.issuer", jwt.issuer.is_empty()),
        ("jwt.audience", jwt.audience.is_empty()),
        ("jwt.algorithms", jwt.algorithms.is_empty()),
        ("jwt.name_claim", jwt.name_claim.is_empty()),
    ] {
        if is_missing {
            faults.push(ConfigError::new(key, "is missing: without it, JWTs cannot be verified safely"));
        }
    }
}

/// Checks that each access rule can match a path. A rule that matches none would protect nothing.
fn validate_rules(config: &Config, reserved: &[&str], faults: &mut Vec<ConfigError>) {
    let names: Vec<&str> = config.containers.iter().map(|container| container.name.as_str()).collect();
    let all_are_named = !names.is_empty() && names.iter().all(|name| !name.is_empty());
    let base = config.server.base_path.trim_start_matches('/').split('/').next().unwrap_or_default();
    for (index, rule) in config.access.rules.iter().enumerate() {
        let first = rule.trim_start().trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        let first = percent_encoding::percent_decode_str(first).decode_utf8_lossy();
        let message = if first.is_empty() {
            continue;
        } else if all_are_named && !names.contains(&&*first) {
            format!("{rule:?} matches no container: its path must begin with one of {}", names.join(", "))
        } else if !all_are_named && (reserved.contains(&&*first) || first == base) {
            format!(
                "{rule:?} begins with the server's own /{first}: leave it out, because rules apply to paths within the \
                 container in every view"
            )
        } else {
            continue;
        };
        faults.push(ConfigError::new(format!("access.rules[{index}]"), message));
    }
}

/// Checks that paths that carry a token, `/token/TOKEN/…`, cannot be confused with those of a container.
fn validate_token_name(config: &Config, faults: &mut Vec<ConfigError>) {
    for (index, container) in config.containers.iter().enumerate() {
        if container.name == "token" && config.has_access_control() {
            let message = "\"token\" is the first segment of paths that carry a token: choose another name";
            faults.push(ConfigError::new(format!("containers[{index}].name"), message));
        }
    }
}

/// Checks that each entry of the list `setting` is an origin, or that `*` is its only entry.
fn validate_origins(setting: &str, origins: &[String], faults: &mut Vec<ConfigError>) {
    for (index, origin) in origins.iter().enumerate() {
        let key = format!("{setting}[{index}]");
        if origin == "*" {
            if origins.len() > 1 {
                faults
                    .push(ConfigError::new(key, "\"*\" means every origin: leave out the others, or leave out \"*\""));
            }
        } else if !is_origin(origin) {
            faults.push(ConfigError::new(
                key,
                format!(
                    "{origin:?} is not an origin: write scheme and host in lower case, a port if it is not the \
                     scheme's own, nothing after (\"https://viewer.example.org\", \"http://localhost:8000\"), or \"*\""
                ),
            ));
        }
    }
}

/// Returns true if `origin` has the form in which browsers send origins: `scheme://host[:port]` in lower case (RFC 6454
/// §6.2).
fn is_origin(origin: &str) -> bool {
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    let is_word = |text: &str, extra_chars: &str| {
        !text.is_empty()
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || extra_chars.contains(c))
    };
    let (host, port) = match rest.rfind(':').filter(|at| !rest.get(*at..).unwrap_or_default().contains(']')) {
        Some(at) => (rest.get(..at).unwrap_or_default(), rest.get(at + 1..)),
        None => (rest, None),
    };
    let is_host_valid = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_word(host, "-._"),
    };
    is_word(scheme, "+-.") && is_host_valid && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Checks the name, directory and cache policy of each container.
fn validate_containers(config: &Config, reserved: &[&str], faults: &mut Vec<ConfigError>) {
    let inherited = config.container_defaults.cache_control;
    let mut names = BTreeSet::new();
    for (index, container) in config.containers.iter().enumerate() {
        let mut fault = |key: &str, message: String| {
            faults.push(ConfigError::new(format!("containers[{index}].{key}"), message));
        };
        let name = container.name.as_str();
        if container.root.is_empty() {
            fault("root", "is missing: name the container's directory or address".to_owned());
        }
        // A value that is inherited from `container_defaults` has been reported there.
        let inherited_faults = config.container_defaults.freshness_and_store().validate();
        for (key, result) in container.freshness_and_store().validate() {
            if let Err(message) = &result
                && !inherited_faults.contains(&(key, result.clone()))
            {
                fault(key, message.clone());
            }
        }
        if let Err(message) = validate_cache_control(container.cache_control)
            && container.cache_control != inherited
        {
            fault("cache_control", message);
        }
        for (key, message) in useless_settings(container, &config.container_defaults) {
            fault(key, message.to_owned());
        }
        if name.is_empty() {
            if config.containers.len() > 1 {
                let file_name = container.root.local_path().and_then(Path::file_name);
                let reason = if file_name.is_some_and(|name| name.to_str().is_none()) {
                    "of several containers, each needs a name in UTF-8, and that of its directory is in another encoding"
                } else {
                    "of several containers, each needs a name"
                };
                fault("name", format!("is missing: {reason}; on the command line, write NAME=DIRECTORY"));
            }
        } else if reserved.contains(&name) || name == ATTRIBUTES_FILE {
            fault(
                "name",
                format!(
                    "{name:?} is a word of the server itself; on the command line, write NAME=DIRECTORY; reserved are {} {ATTRIBUTES_FILE}",
                    reserved.join(" ")
                ),
            );
        } else if matches!(name, "." | "..") || name.contains(|c: char| c.is_control() || "/\\".contains(c)) {
            fault("name", format!("{name:?} is not a single path segment"));
        } else if !names.insert(name) {
            fault(
                "name",
                format!(
                    "{name:?} is already the name of another container; on the command line, write NAME=DIRECTORY to name one"
                ),
            );
        }
    }
}

/// Returns the settings of a container that its root cannot have, and the reasons. Settings that come from
/// `container_defaults` are for the other containers.
fn useless_settings(
    container: &ContainerConfig,
    defaults: &ContainerDefaults,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let provider = match &container.root {
        RootAddress::Remote(root) => Some(root.provider),
        RootAddress::Local(_) => None,
    };
    let can_pay = matches!(provider, None | Some(Provider::S3 | Provider::Google));
    let must_be_mount = container.must_be_mount && !defaults.must_be_mount && provider.is_some();
    let requester_pays = container.store.requester_pays && !defaults.store.requester_pays && !can_pay;
    let mount = (
        "must_be_mount",
        "the root is no directory of this machine, on which a file system could be mounted: leave it out",
    );
    let pays = ("store.requester_pays", "only stores of S3 and Google charge the requester: leave it out");
    [must_be_mount.then_some(mount), requester_pays.then_some(pays)].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(config: &Config) -> Vec<String> {
        config
            .validate(&["slice", "metrics"])
            .err()
            .map_or_else(Vec::new, |f| f.0.into_iter().map(|fault| fault.key).collect())
    }

    fn with_names(names: &[&str]) -> Config {
        let container = |name: &&str| ContainerConfig {
            name: (*name).to_owned(),
            root: RootAddress::Local("/data".into()),
            ..ContainerConfig::default()
        };
        Config { containers: names.iter().map(container).collect(), ..Config::default() }
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(keys(&Config::default()), Vec::<String>::new());
    }

    #[test]
    fn a_base_path_starts_with_a_slash_and_ends_without() {
        for valid in ["", "/n5", "/a/b.c_d~-1", "/slice"] {
            assert_eq!(validate_base_path(valid), Ok(()), "{valid}");
        }
        for invalid in ["/", "n5", "/n5/", "//n5", "/a//b", "/..", "/a/./b", "/a b", "/a%20b", "/a?b", "/é", "/metrics"]
        {
            assert!(validate_base_path(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_single_container_needs_no_name_and_several_do() {
        assert_eq!(keys(&with_names(&[""])), Vec::<String>::new());
        assert_eq!(keys(&with_names(&["em"])), Vec::<String>::new());
        assert_eq!(keys(&with_names(&["em", ""])), ["containers[1].name"]);
    }

    #[test]
    fn names_are_unique_segments_and_not_reserved() {
        assert_eq!(keys(&with_names(&["a", "b", "a"])), ["containers[2].name"]);
        for name in ["slice", "metrics", "attributes.json"] {
            assert_eq!(keys(&with_names(&[name])), ["containers[0].name"], "{name}");
        }
        for name in ["a/b", "..", ".", "a\\b", "a\0b"] {
            assert_eq!(keys(&with_names(&[name])), ["containers[0].name"], "{name:?}");
        }
    }

    #[test]
    fn origins_have_the_form_that_browsers_send() {
        for valid in ["https://a.example.org", "http://localhost:8000", "http://[::1]:80", "moz-extension://0a-1"] {
            assert!(is_origin(valid), "{valid}");
        }
        for invalid in
            ["a.example.org", "https://a/", "https://A", "https://", "https://a:x", "null", "", "https://*.a"]
        {
            assert!(!is_origin(invalid), "{invalid}");
        }
        let mut config = Config::default();
        config.cors.origins.push("https://a".into());
        assert_eq!(keys(&config), ["cors.origins[0]"]);
    }

    #[test]
    fn credentials_require_listed_origins() {
        let mut config = Config::default();
        config.cors.credentials = true;
        assert_eq!(keys(&config), ["cors.credentials"]);
        config.cors.origins = vec!["https://a.example.org".into()];
        assert_eq!(keys(&config), Vec::<String>::new());
    }

    #[test]
    fn a_jwt_requires_keys_issuer_audience_and_algorithms() {
        let mut config = Config::default();
        config.jwt.issuer = "https://issuer".into();
        assert_eq!(keys(&config), ["jwt.keys"]);
        config.jwt.keys = "http://issuer/keys".into();
        assert_eq!(keys(&config), ["jwt.keys", "jwt.audience"]);
        config.jwt.keys = "https://issuer/keys".into();
        config.jwt.audience = vec!["n5".into()];
        assert_eq!(keys(&config), Vec::<String>::new());
        config.jwt.leeway = Duration::from_secs(3600);
        config.jwt.algorithms.clear();
        assert_eq!(keys(&config), ["jwt.leeway", "jwt.algorithms"]);
    }

    #[test]
    fn settings_that_a_root_cannot_have_are_refused_unless_they_are_defaults() {
        let faults = |root: &str, set_defaults: bool| {
            let mut config = with_names(&["em"]);
            config.containers[0].root = RootAddress::parse(root.as_ref()).unwrap();
            config.containers[0].must_be_mount = true;
            config.containers[0].store.requester_pays = true;
            if set_defaults {
                config.container_defaults.must_be_mount = true;
                config.container_defaults.store.requester_pays = true;
            }
            keys(&config)
        };
        let (mount, pays) = ("containers[0].must_be_mount", "containers[0].store.requester_pays");
        assert_eq!(faults("https://example.org/em.n5", false), [mount, pays]);
        assert_eq!(faults("az://em/em.n5", false), [mount, pays]);
        assert_eq!(faults("gs://em/em.n5", false), [mount]);
        assert_eq!(faults("/data/em.n5", false), Vec::<String>::new());
        assert_eq!(faults("https://example.org/em.n5", true), Vec::<String>::new());
    }

    #[test]
    fn a_certificate_needs_its_key_and_an_address() {
        let mut config = Config::default();
        config.tls.certificate = "/run/tls.crt".into();
        config.tls.hsts = Duration::from_secs(60);
        assert_eq!(keys(&config), ["tls.key"]);
        config.tls.key = "/run/tls.key".into();
        assert_eq!(keys(&config), Vec::<String>::new());
        config.server.listen = "unix:/run/n5".parse().unwrap();
        assert_eq!(keys(&config), ["tls.certificate"]);
        config = Config::default();
        config.tls.key = "/run/tls.key".into();
        config.tls.hsts = Duration::from_secs(60);
        assert_eq!(keys(&config), ["tls.certificate", "tls.hsts"]);
    }

    #[test]
    fn a_container_may_be_named_token_only_without_access_control() {
        let mut config = with_names(&["token", "b"]);
        assert_eq!(keys(&config), Vec::<String>::new());
        config.access.rules = vec!["/b = nobody".into()];
        assert_eq!(keys(&config), ["containers[0].name"]);
    }

    #[test]
    fn a_rule_must_not_begin_with_a_reserved_segment() {
        let mut config = with_names(&[""]);
        config.server.base_path = "/base/path".into();
        for (rule, is_valid) in [("/a = x", true), ("/slice/a = x", false), ("/base/a = x", false), ("/path = x", true)]
        {
            config.access.rules = vec![rule.into()];
            assert_eq!(keys(&config).is_empty(), is_valid, "{rule}");
        }
    }

    #[test]
    fn levels_are_words_or_directives() {
        for valid in ["info", "OFF", "warn,n5_server=debug", "n5_server::http=trace, info"] {
            assert_eq!(validate_log_level(valid), Ok(()), "{valid}");
        }
        for invalid in ["inof", "", "n5_server=loud", "=info", "info,"] {
            assert!(validate_log_level(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn budgets_counts_and_timeouts_have_bounds() {
        let mut config = Config::default();
        config.limits.slice_budget = Some(MIB - 1);
        config.limits.decode_factor = 0;
        config.limits.concurrent_requests = 0;
        config.server.max_connections = usize::MAX;
        config.server.request_timeout = Duration::MAX;
        config.server.header_timeout = Duration::ZERO;
        config.cache.decoded = Some(u64::MAX);
        let mut invalid_keys = keys(&config);
        invalid_keys.sort();
        assert_eq!(
            invalid_keys,
            [
                "cache.decoded",
                "limits.concurrent_requests",
                "limits.decode_factor",
                "limits.slice_budget",
                "server.header_timeout",
                "server.max_connections",
                "server.request_timeout",
            ]
        );
    }

    #[test]
    fn a_maximum_age_is_in_whole_seconds() {
        assert_eq!(validate_cache_control(CacheControl::MaxAge(Duration::from_secs(60))), Ok(()));
        assert!(validate_cache_control(CacheControl::MaxAge(Duration::from_millis(1500))).is_err());
    }
}
