//! Converts the configuration to the settings of each part of the server.

use std::sync::Arc;

use crate::access::{AccessControl, Policy};
use crate::config::{Config, DefaultAccess, EvictionPolicy};
use crate::container::Settings;
use crate::http::{self, Viewer};

/// Returns the settings of containers and their caches.
pub(crate) fn container_settings(config: &Config) -> Settings {
    Settings {
        decoded_cache: config.cache.decoded,
        stored_cache: config.cache.stored,
        use_tiny_lfu: config.cache.policy == EvictionPolicy::TinyLfu,
        recheck_metadata: config.cache.recheck_cached_metadata,
        recheck_data: config.cache.recheck_cached_data,
        max_slice_bytes: config.limits.slice,
        slice_budget: config.limits.slice_budget,
        decode_budget: config.limits.decode_budget,
        transfer_budget: config.limits.transfer_budget,
        decode_factor: config.limits.decode_factor,
        max_attributes_bytes: config.limits.attributes,
        budget_wait: config.limits.budget_wait,
        cores: config.threads(),
    }
}

/// Checks the rules of `[access]`, but not the files that the section names.
///
/// # Errors
/// If a rule cannot be used.
pub fn check_rules(config: &Config) -> anyhow::Result<()> {
    policy(config).map(drop)
}

fn policy(config: &Config) -> anyhow::Result<Policy> {
    let access = &config.access;
    let policy = Policy::parse(access.default == DefaultAccess::Public, &access.rules, &access.metrics);
    policy.map_err(anyhow::Error::msg)
}

/// Opens the access control. Returns `None` if every client may read everything. Reuses the tokens and keys of `known`
/// if their file or URL is unchanged.
///
/// # Errors
/// If a rule, or a file of tokens or keys, cannot be used.
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

/// Returns the options of the HTTP layer.
pub(crate) fn http_options(config: &Config, viewer: Option<Viewer>) -> http::HttpOptions {
    http::HttpOptions {
        base_path: config.server.base_path.clone(),
        trusted_proxies: config.server.trusted_proxies.clone(),
        required_containers: config.server.ready,
        request_timeout: config.server.request_timeout,
        concurrent_requests: config.limits.concurrent_requests,
        cors_origins: config.cors.origins.clone(),
        cors_credentials: config.cors.credentials,
        cors_private_network: config.cors.private_network,
        access_control: None,
        frame_ancestors: config.server.frame_ancestors.clone(),
        client_limits: config.clients.clone(),
        budget_wait: config.limits.budget_wait,
        is_https: config.tls.is_enabled(),
        hsts: Some(config.tls.hsts).filter(|age| config.tls.is_enabled() && !age.is_zero()),
        compress_slices: config.compression.slices,
        viewer,
        document_runtime: None,
    }
}
