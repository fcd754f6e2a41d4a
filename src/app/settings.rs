//! The configuration as each part wants it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::access::{Control, Expected, Patience, Policy, Where};
use crate::config::{Config, EvictionPolicy, Exposure, Ready, Recheck};
use crate::container::{self, Settings};
use crate::http::{self, Viewer};

/// What containers and their caches are told.
pub(super) fn settings(config: &Config) -> Settings {
    let recheck = |recheck| match recheck {
        Recheck::Always => container::Recheck::Always,
        Recheck::Never => container::Recheck::Never,
        Recheck::After(age) => container::Recheck::After(age),
    };
    Settings {
        decoded_cache: config.cache.decoded,
        stored_cache: config.cache.stored,
        weigh_frequency: config.cache.policy == EvictionPolicy::TinyLfu,
        recheck_metadata: recheck(config.cache.recheck_cached_metadata),
        recheck_data: recheck(config.cache.recheck_cached_data),
        slice: config.limits.slice,
        slice_budget: config.limits.slice_budget,
        decode_budget: config.limits.decode_budget,
        transfer_budget: config.limits.transfer_budget,
        decode_factor: config.limits.decode_factor,
        attributes: config.limits.attributes,
        budget_wait: config.limits.budget_wait,
        cores: config.threads(),
    }
}

/// Whether the rules of `[access]` can be used: they are configuration, whatever becomes of the files that it names.
///
/// # Errors
/// A rule that cannot.
pub fn check_rules(config: &Config) -> anyhow::Result<()> {
    policy(config).map(drop)
}

fn policy(config: &Config) -> anyhow::Result<Policy> {
    let access = &config.access;
    Ok(Policy::parse(access.default == Exposure::Public, &access.rules, &access.metrics)?)
}

/// Who may read what; `None` where everybody may read everything.
///
/// # Errors
/// A rule, or a file of tokens or keys, that cannot be used.
pub fn control(config: &Config) -> anyhow::Result<Option<Arc<Control>>> {
    control_after(config, None)
}

/// [`control`], with tokens and keys taken over from `known` that come from where they came from then.
///
/// # Errors
/// As [`control`].
pub(super) fn control_after(config: &Config, known: Option<&Control>) -> anyhow::Result<Option<Arc<Control>>> {
    if !config.is_guarded() {
        return Ok(None);
    }
    let (access, jwt) = (&config.access, &config.jwt);
    let policy = policy(config)?;
    let given = |path: &PathBuf| Some(path.clone()).filter(|path| !path.as_os_str().is_empty());
    let place = if jwt.keys.contains("://") {
        let patience = Patience { refresh: jwt.refresh, least: jwt.refetch, stale: jwt.stale };
        Where::Url { url: jwt.keys.clone(), roots: given(&jwt.roots), patience }
    } else {
        Where::File(jwt.keys.clone().into())
    };
    let expected = Expected {
        issuer: jwt.issuer.clone(),
        audience: jwt.audience.clone(),
        algorithms: jwt.algorithms.clone(),
        name_claim: jwt.name_claim.clone(),
        groups_claim: jwt.groups_claim.clone(),
        leeway_seconds: jwt.leeway.as_secs(),
    };
    let jwt = (!jwt.keys.is_empty()).then_some((place, expected));
    let tokens = given(&access.tokens);
    let control = match known {
        Some(known) => known.successor(policy, tokens.as_deref(), jwt),
        None => Control::open(policy, tokens.as_deref(), jwt),
    };
    let control = control.map_err(anyhow::Error::msg)?;
    Ok(Some(Arc::new(control)))
}

/// What the HTTP layer is told.
pub(super) fn options(config: &Config, viewer: Option<Viewer>) -> http::Options {
    http::Options {
        base_path: config.server.base_path.clone(),
        trusted_proxies: config.server.trusted_proxies.clone(),
        ready: match config.server.ready {
            Ready::All => http::Ready::All,
            Ready::Any => http::Ready::Any,
        },
        request_timeout: config.server.request_timeout,
        concurrent_requests: config.limits.concurrent_requests,
        origins: config.cors.origins.clone(),
        credentials: config.cors.credentials,
        private_network: config.cors.private_network,
        control: None,
        frame_ancestors: config.server.frame_ancestors.clone(),
        clients: http::Limits {
            requests: config.clients.concurrent_requests,
            bytes_per_second: config.clients.bytes_per_second,
            burst_bytes: config.clients.burst,
            wait: config.limits.budget_wait,
        },
        is_https: config.tls.is_used(),
        hsts: Some(config.tls.hsts).filter(|age| config.tls.is_used() && !age.is_zero()),
        compress_slices: config.compression.slices,
        viewer,
        documents: None,
    }
}
