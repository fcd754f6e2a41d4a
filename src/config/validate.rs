//! What a configuration must satisfy beyond the form of its values.

use std::collections::BTreeSet;
use std::time::Duration;

use tracing_subscriber::filter::LevelFilter;

use super::{CachePolicy, Config, ContainerConfig, Fault, Faults, Listen, Recheck, values};

/// The one file name that a container's root has.
const ATTRIBUTES: &str = "attributes.json";

/// Words of the server that answer without the base path.
const OPERATIONS: [&str; 5] = ["healthz", "readyz", "metrics", "version", "openapi.yaml"];

const MIB: u64 = 1 << 20;
/// Far above any machine, far below where sums and semaphores overflow.
const LARGEST_BUDGET: u64 = 1 << 50;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Config {
    /// Checks what the types do not. `reserved`: words that cannot name a container because the first path segment
    /// has another meaning.
    ///
    /// # Errors
    /// All faults, without origins.
    pub fn validate(&self, reserved: &[&str]) -> Result<(), Faults> {
        let mut faults = Vec::new();
        let mut check = |key: &str, result: Result<(), String>| {
            faults.extend(result.err().map(|message| Fault::new(key, message)));
        };
        check("server.base_path", base_path(&self.server.base_path));
        check("log.level", level(&self.log.level));
        for (key, value, lowest, highest) in [
            ("server.header_timeout", self.server.header_timeout, Duration::from_millis(1), DAY),
            ("server.request_timeout", self.server.request_timeout, Duration::from_millis(1), DAY),
            ("server.send_timeout", self.server.send_timeout, Duration::from_millis(1), DAY),
            ("server.drain_delay", self.server.drain_delay, Duration::ZERO, DAY),
            ("server.shutdown_timeout", self.server.shutdown_timeout, Duration::ZERO, DAY),
            ("tls.handshake_timeout", self.tls.handshake_timeout, Duration::from_millis(1), DAY),
            ("tls.hsts", self.tls.hsts, Duration::ZERO, 2 * YEAR),
            ("limits.budget_wait", self.limits.budget_wait, Duration::ZERO, DAY),
            ("jwt.leeway", self.jwt.leeway, Duration::ZERO, Duration::from_secs(5 * 60)),
            ("jwt.refresh", self.jwt.refresh, Duration::from_secs(1), DAY),
            ("jwt.refetch", self.jwt.refetch, Duration::from_secs(1), DAY),
            ("jwt.stale", self.jwt.stale, self.jwt.refresh, 30 * DAY),
        ] {
            check(key, within(&value, &lowest, &highest, |d| humantime::format_duration(*d).to_string()));
        }
        for (key, value, lowest, highest) in [
            ("limits.slice", self.limits.slice, 1, u64::MAX),
            ("limits.slice_budget", self.limits.slice_budget, MIB, LARGEST_BUDGET),
            ("limits.decode_budget", self.limits.decode_budget, MIB, LARGEST_BUDGET),
            ("limits.transfer_budget", self.limits.transfer_budget, MIB, LARGEST_BUDGET),
            ("limits.attributes", self.limits.attributes, 1024, 16 * MIB),
            ("clients.bytes_per_second", self.clients.bytes_per_second, 0, LARGEST_BUDGET),
            ("clients.burst", self.clients.burst, 64 * 1024, LARGEST_BUDGET),
            ("cache.decoded", self.cache.decoded, 0, LARGEST_BUDGET),
            ("cache.stored", self.cache.stored, 0, LARGEST_BUDGET),
        ] {
            check(key, within(&value, &lowest, &highest, |bytes| values::size::format(*bytes)));
        }
        for (key, value, lowest, highest) in [
            ("server.max_connections", self.server.max_connections, 1, 1_000_000),
            ("server.threads", self.server.threads, 0, 1024),
            ("clients.connections", self.clients.connections, 0, 1_000_000),
            ("clients.concurrent_requests", self.clients.concurrent_requests, 0, 1_000_000),
            ("limits.concurrent_requests", self.limits.concurrent_requests, 1, 1_000_000),
        ] {
            check(key, within(&value, &lowest, &highest, ToString::to_string));
        }
        check("limits.decode_factor", within(&self.limits.decode_factor, &1, &1_000_000, ToString::to_string));
        check("tracing.one_in", within(&self.tracing.one_in, &1, &1_000_000_000, ToString::to_string));
        check("tracing.otlp_endpoint", endpoint(&self.tracing.otlp_endpoint));
        check("container_defaults.cache_control", cache_control(self.container_defaults.cache_control));
        check("cache.recheck_cached_metadata", recheck(self.cache.recheck_cached_metadata));
        check("cache.recheck_cached_data", recheck(self.cache.recheck_cached_data));
        faults.extend(origins("cors.origins", &self.cors.origins));
        faults.extend(origins("server.frame_ancestors", &self.server.frame_ancestors));
        faults.extend(encrypted(self));
        faults.extend(guarded(self, reserved));
        faults.extend(containers(&self.containers, self.container_defaults.cache_control, reserved));
        if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
    }
}

/// What encryption needs.
fn encrypted(config: &Config) -> Vec<Fault> {
    let (tls, mut faults) = (&config.tls, Vec::new());
    let mut fault = |key: &str, message: &str| faults.push(Fault::new(format!("tls.{key}"), message));
    match (tls.is_used(), tls.key.as_os_str().is_empty()) {
        (true, true) => fault("key", "name the file with the certificate's private key"),
        (false, false) => fault("certificate", "name the file with the certificate that belongs to tls.key"),
        _ => {}
    }
    if tls.is_used() && matches!(config.server.listen, Listen::Unix(_)) {
        fault("certificate", "a Unix socket is not encrypted: give server.listen an address, or leave this empty");
    }
    if tls.hsts.subsec_nanos() != 0 {
        fault("hsts", "write whole seconds");
    } else if !tls.is_used() && !tls.hsts.is_zero() {
        fault("hsts", "browsers heed it over https alone: set tls.certificate, or have the proxy in front say it");
    }
    faults
}

fn within<T: PartialOrd>(value: &T, lowest: &T, highest: &T, show: impl Fn(&T) -> String) -> Result<(), String> {
    if value < lowest {
        Err(format!("{} is too little, the least is {}", show(value), show(lowest)))
    } else if value > highest {
        Err(format!("{} is too much, the most is {}", show(value), show(highest)))
    } else {
        Ok(())
    }
}

fn base_path(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Ok(());
    }
    let unreserved = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    let segment = |s: &str| !matches!(s, "" | "." | "..") && s.chars().all(unreserved);
    match path.strip_prefix('/') {
        Some(rest) if rest.split('/').all(segment) => {
            let first = rest.split('/').next().unwrap_or_default();
            if OPERATIONS.contains(&first) {
                return Err(format!("{path:?} hides the server's own /{first}: choose another word"));
            }
            Ok(())
        }
        _ => Err(format!(
            "{path:?} is not a prefix of paths: write \"\" or \"/prefix\" (\"/a/b\"), letters, digits and - . _ ~, \
             with a slash at the start and none at the end"
        )),
    }
}

fn level(text: &str) -> Result<(), String> {
    let directive = |part: &str| {
        let (target, level) = part.split_once('=').map_or((None, part), |(target, level)| (Some(target), level));
        target != Some("") && !level.is_empty() && level.parse::<LevelFilter>().is_ok()
    };
    match text.split(',').find(|part| !directive(part.trim())) {
        None => Ok(()),
        Some(part) => Err(format!(
            "{part:?} is not a level: write off, error, warn, info, debug or trace, or a list such as \
             \"warn,n5_server=debug\""
        )),
    }
}

fn endpoint(url: &str) -> Result<(), String> {
    let is_url =
        ["http://", "https://"].iter().any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()));
    if url.is_empty() || is_url {
        return Ok(());
    }
    Err(format!("{url:?} is no URL: write \"http://collector:4318\", or \"\" for none"))
}

fn cache_control(policy: CachePolicy) -> Result<(), String> {
    match policy {
        CachePolicy::MaxAge(age) if age.subsec_nanos() != 0 => {
            Err(format!("{policy} is not whole seconds, the unit of Cache-Control"))
        }
        CachePolicy::MaxAge(age) => {
            within(&age, &Duration::ZERO, &YEAR, |age| humantime::format_duration(*age).to_string())
        }
        CachePolicy::Immutable | CachePolicy::Revalidate => Ok(()),
    }
}

fn recheck(recheck: Recheck) -> Result<(), String> {
    match recheck {
        Recheck::After(age) => within(&age, &Duration::ZERO, &YEAR, |age| humantime::format_duration(*age).to_string()),
        Recheck::Always | Recheck::Never => Ok(()),
    }
}

/// What goes together where it makes a difference who asks.
fn guarded(config: &Config, reserved: &[&str]) -> Vec<Fault> {
    let mut faults = Vec::new();
    if config.cors.credentials && config.cors.origins.iter().any(|origin| origin == "*") {
        let message = "browsers refuse this together with the origin \"*\": list the origins in cors.origins";
        faults.push(Fault::new("cors.credentials", message));
    }
    let jwt = &config.jwt;
    if jwt.keys.is_empty() {
        if !jwt.issuer.is_empty() || !jwt.audience.is_empty() {
            faults.push(Fault::new("jwt.keys", "is missing: no JWT can be checked without the issuer's keys"));
        }
    } else {
        let is_url = jwt.keys.contains("://");
        if is_url && !jwt.keys.starts_with("https://") {
            faults.push(Fault::new("jwt.keys", "write a URL that begins with https://, or the path of a file"));
        }
        if !is_url && !jwt.roots.as_os_str().is_empty() {
            faults.push(Fault::new("jwt.roots", "is for keys from a URL, and jwt.keys is a file"));
        }
        for (key, is_missing) in [
            ("jwt.issuer", jwt.issuer.is_empty()),
            ("jwt.audience", jwt.audience.is_empty()),
            ("jwt.algorithms", jwt.algorithms.is_empty()),
            ("jwt.name_claim", jwt.name_claim.is_empty()),
        ] {
            if is_missing {
                faults.push(Fault::new(key, "is missing: a JWT for somebody else would be accepted"));
            }
        }
    }
    let names: Vec<&str> = config.containers.iter().map(|container| container.name.as_str()).collect();
    for (index, rule) in config.access.rules.iter().enumerate() {
        let first = rule.trim_start().trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        let first = percent_encoding::percent_decode_str(first).decode_utf8_lossy();
        let is_named = !names.is_empty() && names.iter().all(|name| !name.is_empty());
        if is_named && !first.is_empty() && !names.contains(&&*first) {
            // It would protect nothing.
            let message = format!("{rule:?} is about no container: a path begins with one of {}", names.join(", "));
            faults.push(Fault::new(format!("access.rules[{index}]"), message));
        }
        let base = config.server.base_path.trim_start_matches('/').split('/').next().unwrap_or_default();
        if !is_named && !first.is_empty() && (reserved.contains(&&*first) || first == base) {
            let message = format!(
                "{rule:?} begins with the server's own /{first}: rules are about paths within the container, in every view; \
                 leave that out"
            );
            faults.push(Fault::new(format!("access.rules[{index}]"), message));
        }
    }
    for (index, container) in config.containers.iter().enumerate() {
        if container.name == "token" && config.is_guarded() {
            let message = "\"token\" begins the paths that carry a token: choose another name";
            faults.push(Fault::new(format!("containers[{index}].name"), message));
        }
    }
    faults
}

fn origins(setting: &str, origins: &[String]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, origin) in origins.iter().enumerate() {
        let key = format!("{setting}[{index}]");
        if origin == "*" {
            if origins.len() > 1 {
                faults.push(Fault::new(key, "\"*\" means every origin: leave out the others, or leave out \"*\""));
            }
        } else if !is_origin(origin) {
            faults.push(Fault::new(
                key,
                format!(
                    "{origin:?} is not an origin: write scheme and host in lower case, a port if it is not the \
                     scheme's own, nothing after (\"https://viewer.example.org\", \"http://localhost:8000\"), or \"*\""
                ),
            ));
        }
    }
    faults
}

/// Whether browsers can send `origin` as such (RFC 6454 §6.2): `scheme://host[:port]`, lower case.
fn is_origin(origin: &str) -> bool {
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    let word = |text: &str, more: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c))
    };
    let (host, port) = match rest.rfind(':').filter(|at| !rest.get(*at..).unwrap_or_default().contains(']')) {
        Some(at) => (rest.get(..at).unwrap_or_default(), rest.get(at + 1..)),
        None => (rest, None),
    };
    let host_is_good = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => word(host, "-._"),
    };
    word(scheme, "+-.") && host_is_good && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn containers(containers: &[ContainerConfig], inherited: CachePolicy, reserved: &[&str]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut names = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let mut fault = |key: &str, message: String| {
            faults.push(Fault::new(format!("containers[{index}].{key}"), message));
        };
        let name = container.name.as_str();
        if container.root.as_os_str().is_empty() {
            fault("root", "names no directory".to_owned());
        }
        // What is inherited is reported where it was written, once.
        if let Err(message) = cache_control(container.cache_control)
            && container.cache_control != inherited
        {
            fault("cache_control", message);
        }
        if name.is_empty() {
            if containers.len() > 1 {
                fault("name", "is missing, which only a single container may lack".to_owned());
            }
        } else if reserved.contains(&name) || name == ATTRIBUTES {
            fault(
                "name",
                format!("{name:?} is a word of the server itself; reserved are {} {ATTRIBUTES}", reserved.join(" ")),
            );
        } else if matches!(name, "." | "..") || name.contains(|c: char| c.is_control() || "/\\".contains(c)) {
            fault("name", format!("{name:?} is not one segment of a path"));
        } else if !names.insert(name) {
            fault("name", format!("{name:?} names another container already"));
        }
    }
    faults
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

    fn named(names: &[&str]) -> Config {
        let container = |name: &&str| ContainerConfig {
            name: (*name).to_owned(),
            root: "/data".into(),
            cache_control: CachePolicy::Revalidate,
            symlinks: super::super::Symlinks::Inside,
            must_be_mount: false,
            entity_tag: super::super::EntityTag::Mtime,
        };
        Config { containers: names.iter().map(container).collect(), ..Config::default() }
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(keys(&Config::default()), Vec::<String>::new());
    }

    #[test]
    fn a_base_path_starts_with_a_slash_and_ends_without() {
        for good in ["", "/n5", "/a/b.c_d~-1", "/slice"] {
            assert_eq!(base_path(good), Ok(()), "{good}");
        }
        for bad in ["/", "n5", "/n5/", "//n5", "/a//b", "/..", "/a/./b", "/a b", "/a%20b", "/a?b", "/é", "/metrics"] {
            assert!(base_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_single_container_needs_no_name_and_several_do() {
        assert_eq!(keys(&named(&[""])), Vec::<String>::new());
        assert_eq!(keys(&named(&["em"])), Vec::<String>::new());
        assert_eq!(keys(&named(&["em", ""])), ["containers[1].name"]);
    }

    #[test]
    fn names_are_unique_segments_and_not_reserved() {
        assert_eq!(keys(&named(&["a", "b", "a"])), ["containers[2].name"]);
        for name in ["slice", "metrics", "attributes.json"] {
            assert_eq!(keys(&named(&[name])), ["containers[0].name"], "{name}");
        }
        for name in ["a/b", "..", ".", "a\\b", "a\0b"] {
            assert_eq!(keys(&named(&[name])), ["containers[0].name"], "{name:?}");
        }
    }

    #[test]
    fn origins_are_what_browsers_send() {
        for good in ["https://a.example.org", "http://localhost:8000", "http://[::1]:80", "moz-extension://0a-1"] {
            assert!(is_origin(good), "{good}");
        }
        for bad in ["a.example.org", "https://a/", "https://A", "https://", "https://a:x", "null", "", "https://*.a"] {
            assert!(!is_origin(bad), "{bad}");
        }
        let mut config = Config::default();
        config.cors.origins.push("https://a".into());
        assert_eq!(keys(&config), ["cors.origins[0]"]);
    }

    #[test]
    fn cookies_are_not_for_every_origin() {
        let mut config = Config::default();
        config.cors.credentials = true;
        assert_eq!(keys(&config), ["cors.credentials"]);
        config.cors.origins = vec!["https://a.example.org".into()];
        assert_eq!(keys(&config), Vec::<String>::new());
    }

    #[test]
    fn a_jwt_needs_all_that_says_whose_and_for_whom_it_is() {
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
    fn a_container_is_named_token_only_where_there_are_none() {
        let mut config = named(&["token", "b"]);
        assert_eq!(keys(&config), Vec::<String>::new());
        config.access.rules = vec!["/b = nobody".into()];
        assert_eq!(keys(&config), ["containers[0].name"]);
    }

    #[test]
    fn a_rule_begins_with_no_word_of_the_servers() {
        let mut config = named(&[""]);
        config.server.base_path = "/base/path".into();
        for (rule, is_good) in [("/a = x", true), ("/slice/a = x", false), ("/base/a = x", false), ("/path = x", true)]
        {
            config.access.rules = vec![rule.into()];
            assert_eq!(keys(&config).is_empty(), is_good, "{rule}");
        }
    }

    #[test]
    fn levels_are_words_or_directives() {
        for good in ["info", "OFF", "warn,n5_server=debug", "n5_server::http=trace, info"] {
            assert_eq!(level(good), Ok(()), "{good}");
        }
        for bad in ["inof", "", "n5_server=loud", "=info", "info,"] {
            assert!(level(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn budgets_counts_and_timeouts_have_bounds() {
        let mut config = Config::default();
        config.limits.slice_budget = MIB - 1;
        config.limits.decode_factor = 0;
        config.limits.concurrent_requests = 0;
        config.server.max_connections = usize::MAX;
        config.server.request_timeout = Duration::MAX;
        config.server.header_timeout = Duration::ZERO;
        config.cache.decoded = u64::MAX;
        let mut found = keys(&config);
        found.sort();
        assert_eq!(
            found,
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
        assert_eq!(cache_control(CachePolicy::MaxAge(Duration::from_secs(60))), Ok(()));
        assert!(cache_control(CachePolicy::MaxAge(Duration::from_millis(1500))).is_err());
    }
}
