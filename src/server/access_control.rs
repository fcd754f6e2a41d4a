//! Access control, opened as the configuration describes.

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
    Ok(Some(Arc::new(control)))
}
