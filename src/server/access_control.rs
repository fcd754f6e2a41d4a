//! Access control, opened as the configuration describes.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::access::{AccessControl, Policy};
use crate::config::{Config, DefaultAccess};

/// Checks the rules of `[access]`. They are part of the configuration, unlike the files that the section names.
///
/// # Errors
/// Returns an error if a rule cannot be used.
pub fn check_rules(config: &Config) -> anyhow::Result<()> {
    policy(config).map(drop)
}

fn policy(config: &Config) -> anyhow::Result<Policy> {
    let access = &config.access;
    let policy = Policy::parse(access.default == DefaultAccess::Public, &access.rules, &access.metrics);
    policy.map_err(anyhow::Error::msg)
}

/// Opens the access control. Returns `None` if every client may read everything. Keeps the tokens and keys of `known`
/// whose file or URL is unchanged.
///
/// # Errors
/// Returns an error if a rule, or a file of tokens or keys, cannot be used.
pub fn open_access_control(
    config: &Config,
    known: Option<&AccessControl>,
) -> anyhow::Result<Option<Arc<AccessControl>>> {
    if !config.has_access_control() {
        return Ok(None);
    }
    let policy = policy(config)?;
    let tokens = Some(config.access.tokens.as_path()).filter(|path| !path.as_os_str().is_empty());
    let jwt = Some(&config.jwt).filter(|jwt| !jwt.keys.is_empty());
    let control = match known {
        Some(known) => known.reconfigured(policy, tokens, jwt),
        None => AccessControl::open(policy, tokens, jwt),
    };
    let control = control.map_err(anyhow::Error::msg)?;
    for warning in access_warnings(config, &control) {
        tracing::warn!("{warning}");
    }
    Ok(Some(Arc::new(control)))
}

/// Returns a sentence for each setting that has no effect or refuses every caller.
pub(super) fn access_warnings(config: &Config, control: &AccessControl) -> Vec<String> {
    let policy = control.policy();
    let mut warnings = Vec::new();
    let has_callers = config.authenticates_callers();
    if has_callers && policy.is_public_everywhere() {
        warnings.push(
            "everyone can read everything without a token, because access.default is \"public\" and no rule restricts a \
             path; to admit only callers with a token, set access.default = \"private\" and access.rules = [\"/ = *\"]"
                .to_owned(),
        );
    }
    if !has_callers && policy.names_callers() {
        warnings.push(
            "access.rules name callers, but there are none, because neither access.tokens nor jwt.keys is set; create \
             tokens with `n5-server token NAME`, and name their file in access.tokens"
                .to_owned(),
        );
    } else if !has_callers && !policy.is_public_below("") {
        warnings.push(
            "every caller is refused, because no path is public and neither access.tokens nor jwt.keys is set; create \
             tokens with `n5-server token NAME`, name their file in access.tokens, and set access.rules = [\"/ = *\"]"
                .to_owned(),
        );
    } else if has_callers && !policy.is_public_below("") && !policy.names_callers() && !control.may_limit_paths() {
        warnings.push(
            "every caller is refused, because access.default is \"private\", no rule names a caller, and no token has \
             read=; to admit all callers with a token, set access.rules = [\"/ = *\"]"
                .to_owned(),
        );
    }
    warnings
}

/// Returns the line that says who may read, for the start of the server on `address`. Returns `None` without access
/// control if only this machine can connect, and for a Unix socket.
pub(super) fn access_line(
    config: &Config,
    control: Option<&AccessControl>,
    address: Option<SocketAddr>,
) -> Option<String> {
    let Some(control) = control else {
        let is_reachable = address.is_some_and(|address| !address.ip().to_canonical().is_loopback());
        return is_reachable.then(|| {
            "access: anyone who can reach this address can read everything; docs/ACCESS.md says how to restrict that"
                .to_owned()
        });
    };
    let default = if config.access.default == DefaultAccess::Public { "public" } else { "private" };
    let rules = count(config.access.rules.len(), "rule");
    let tokens = count(control.token_count(), "token");
    let issuer = if config.jwt.keys.is_empty() { String::new() } else { format!(", JWTs of {}", config.jwt.issuer) };
    Some(format!("access: {default} by default, {rules}, {tokens}{issuer}; metrics: {}", config.access.metrics))
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the configuration with the lines `access` in its section `[access]`.
    fn config(access: &str) -> Config {
        let mut table = toml::Table::try_from(Config::default()).unwrap();
        let given: toml::Table = access.parse().unwrap();
        table.get_mut("access").unwrap().as_table_mut().unwrap().extend(given);
        table.try_into().unwrap()
    }

    fn open(config: &Config) -> Option<Arc<AccessControl>> {
        open_access_control(config, None).unwrap()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs files")]
    fn warnings_name_settings_that_restrict_nothing_or_refuse_every_caller() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, rest: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, format!("ann {}{rest}\n", "0".repeat(64))).unwrap();
            format!("tokens = {:?}\n", path.display().to_string())
        };
        let tokens = file("tokens", "");
        let limited = file("limited", " read=/em");
        for (settings, expected) in [
            (tokens.clone(), "everyone can read everything without a token"),
            (format!("{tokens}rules = [\"/em = public\"]"), "everyone can read everything without a token"),
            ("default = \"private\"".to_owned(), "every caller is refused, because no path is public"),
            ("rules = [\"/em = ann\"]".to_owned(), "access.rules name callers, but there are none"),
            (format!("{tokens}default = \"private\""), "no rule names a caller"),
            (format!("{tokens}default = \"private\"\nrules = [\"/em = nobody\"]"), "no rule names a caller"),
            (format!("{limited}default = \"private\""), ""),
            (format!("{tokens}default = \"private\"\nrules = [\"/ = *\"]"), ""),
            (format!("{tokens}rules = [\"/em = ann\"]"), ""),
            (format!("{tokens}metrics = \"ann\""), ""),
            ("rules = [\"/em = nobody\"]".to_owned(), ""),
            ("default = \"private\"\nrules = [\"/em = public\"]".to_owned(), ""),
        ] {
            let config = config(&settings);
            let warnings = access_warnings(&config, &open(&config).unwrap());
            assert_eq!(warnings.len(), usize::from(!expected.is_empty()), "{settings}: {warnings:?}");
            assert!(warnings.iter().all(|warning| warning.contains(expected)), "{settings}: {warnings:?}");
        }
    }

    #[test]
    fn the_start_says_who_may_read() {
        let line = |access: &str, address: &str| {
            let config = config(access);
            access_line(&config, open(&config).as_deref(), Some(address.parse().unwrap()))
        };
        assert_eq!(line("", "127.0.0.1:8080"), None);
        assert_eq!(line("", "[::1]:8080"), None);
        assert_eq!(access_line(&Config::default(), None, None), None, "a Unix socket");
        for address in ["0.0.0.0:80", "[::]:80", "192.0.2.7:80"] {
            assert!(line("", address).unwrap().starts_with("access: anyone who can reach this address"), "{address}");
        }
        assert_eq!(
            line("default = \"private\"\nrules = [\"/em = public\"]", "127.0.0.1:80").unwrap(),
            "access: private by default, 1 rule, 0 tokens; metrics: public"
        );
    }
}
