//! Decides if a 403 answer means that an object is missing.
//!
//! A store answers 403 for missing objects if the client may not list the bucket. It also answers 403 if the client may
//! not read anything, for example because its rights were revoked. A missing block is a hole, so the two must not be
//! confused.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::super::key::Key;
use super::listing::{ErrorAnswer, StoreErrorCode};
use crate::config::ForbiddenPolicy;

/// Minimum interval between two records of a readable object.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which the answer to a request for a key that cannot exist stays valid.
const PROBE_LIFETIME: Duration = Duration::from_secs(600);

/// Name of an object that cannot exist.
pub(super) const IMPOSSIBLE_NAME: &str = ".n5-server-asks-for-a-missing-key-7d9f2c51";

/// Knowledge about the 403 answers of one store.
#[derive(Debug)]
pub(super) struct ForbiddenKeys {
    policy: ForbiddenPolicy,
    /// An object that was readable, and when.
    readable: Mutex<Option<(Key, Instant)>>,
    /// True if the store answers 403 for a key that cannot exist, and when it did. Held while the store is asked.
    hides_missing: tokio::sync::Mutex<Option<(bool, Instant)>>,
    /// Held while the store is asked if the known object is still readable.
    pub(super) checking: tokio::sync::Mutex<()>,
}

impl ForbiddenKeys {
    pub(super) fn new(policy: ForbiddenPolicy) -> Self {
        Self {
            policy,
            readable: Mutex::default(),
            hides_missing: tokio::sync::Mutex::default(),
            checking: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the policy if a 403 answer can mean that an object is missing at all.
    pub(super) fn policy_for(&self, answer: &ErrorAnswer) -> Option<ForbiddenPolicy> {
        let is_denial = answer.status == 403 && answer.code == StoreErrorCode::AccessDenied;
        Some(self.policy).filter(|policy| is_denial && *policy != ForbiddenPolicy::Never)
    }

    /// Records that an object was readable by a request that began at `started`.
    pub(super) fn record_readable(&self, key: &Key, started: Instant) {
        // A record that is being made by another thread suffices.
        let Ok(mut readable) = self.readable.try_lock() else { return };
        let age = readable.as_ref().map(|(_, since)| started.saturating_duration_since(*since));
        if age.is_none_or(|age| age >= RECORD_INTERVAL) {
            *readable = Some((key.clone(), started));
        }
    }

    /// Records that the object that was readable was still readable by a request that began at `started`.
    pub(super) fn confirm_readable(&self, key: Key, started: Instant) {
        *self.readable.lock().unwrap_or_else(PoisonError::into_inner) = Some((key, started));
    }

    /// Forgets an object that is no longer readable or has been removed.
    pub(super) fn forget(&self, key: &Key) {
        let mut readable = self.readable.lock().unwrap_or_else(PoisonError::into_inner);
        readable.take_if(|(known, _)| known == key);
    }

    /// Returns an object that was readable, and the time at which the request for it began.
    pub(super) fn readable(&self) -> Option<(Key, Instant)> {
        self.readable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the store is known to answer otherwise than 403 for a key that cannot exist.
    pub(super) async fn reports_missing(&self) -> bool {
        matches!(*self.hides_missing.lock().await, Some((false, since)) if since.elapsed() < PROBE_LIFETIME)
    }

    /// Returns true if the store answers 403 for a key that cannot exist. `ask` asks it.
    ///
    /// # Errors
    /// Returns the error of `ask`.
    pub(super) async fn hides_missing<E>(&self, ask: impl Future<Output = Result<bool, E>>) -> Result<bool, E> {
        let mut known = self.hides_missing.lock().await;
        if let Some((hides_missing, since)) = *known
            && since.elapsed() < PROBE_LIFETIME
        {
            return Ok(hides_missing);
        }
        let hides_missing = ask.await?;
        *known = Some((hides_missing, Instant::now()));
        Ok(hides_missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_denial_can_mean_that_an_object_is_missing() {
        let policy = |policy, status, code: &str| {
            let body = format!("<Error><Code>{code}</Code></Error>");
            ForbiddenKeys::new(policy).policy_for(&ErrorAnswer::parse(status, body.as_bytes()))
        };
        assert_eq!(policy(ForbiddenPolicy::Auto, 403, "AccessDenied"), Some(ForbiddenPolicy::Auto));
        assert_eq!(policy(ForbiddenPolicy::Never, 403, "AccessDenied"), None);
        for code in ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"] {
            assert_eq!(policy(ForbiddenPolicy::Always, 403, code), None, "{code}");
        }
        assert_eq!(policy(ForbiddenPolicy::Always, 401, "AccessDenied"), None);
    }
}
