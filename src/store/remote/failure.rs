//! Turns error responses of stores into errors.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::super::error::StoreError;
use super::super::key::Key;
use super::listing::{ErrorAnswer, ListingError, StoreErrorCode};

/// Pause for clients if a store that throttles names none.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// Returns the error for an error response to the attempted `action` on `key`.
pub(super) fn error_of_answer(
    action: &'static str,
    key: &Key,
    answer: &ErrorAnswer,
    pause: Option<Duration>,
) -> StoreError {
    let key = key.clone();
    let denied = |advice: &str| StoreError::Denied { action, key: key.clone(), reason: format!("{answer}; {advice}") };
    match answer.code {
        StoreErrorCode::Throttled => StoreError::Throttled(action, key, pause.unwrap_or(DEFAULT_PAUSE)),
        StoreErrorCode::Unavailable if matches!(answer.status, 408 | 504) => StoreError::Timeout(action, key),
        StoreErrorCode::Unavailable if answer.status == 503 => {
            StoreError::Throttled(action, key, pause.unwrap_or(DEFAULT_PAUSE))
        }
        StoreErrorCode::NoSuchBucket => {
            StoreError::RootMissing(format!("the bucket is missing, check the address of the container: {answer}"))
        }
        StoreErrorCode::AccessDenied => denied("check the credentials (store.credentials) and their rights"),
        StoreErrorCode::UnknownCredentials => {
            denied("the store does not know the credentials; check store.credentials")
        }
        StoreErrorCode::ExpiredCredentials => denied("the credentials have expired; renew them"),
        StoreErrorCode::WrongSignature => denied("check the secret key and the region (store.region)"),
        StoreErrorCode::ClockSkew => denied("set the clock of this machine"),
        StoreErrorCode::WrongRegion => denied("set store.region, or the endpoint that the store names"),
        StoreErrorCode::RequesterPays => {
            denied("the reader pays for requests to this bucket; set store.requester_pays = true to agree")
        }
        StoreErrorCode::Archived => denied("the object is archived; restore it first"),
        StoreErrorCode::NoSuchObject | StoreErrorCode::Unavailable | StoreErrorCode::Other => {
            StoreError::Io { action, key, cause: Arc::new(io::Error::other(answer.to_string())) }
        }
    }
}

/// Returns the error of a store for a listing that failed.
pub(super) fn error_of_listing(key: &Key, error: ListingError) -> StoreError {
    match error {
        ListingError::Store(error) => error,
        ListingError::Refused(answer) => error_of_answer("list", key, &answer, None),
        ListingError::CannotList(key, reason) => StoreError::CannotList(key, reason),
        ListingError::Malformed(key, reason) => {
            let cause = io::Error::other(format!("the response is not understood: {reason}"));
            StoreError::Io { action: "list", key, cause: Arc::new(cause) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_and_wrong_credentials_are_never_a_missing_object() {
        for (status, code, advice) in [
            (403, "AccessDenied", "store.credentials"),
            (400, "ExpiredToken", "renew"),
            (403, "InvalidAccessKeyId", "does not know"),
            (403, "SignatureDoesNotMatch", "secret key"),
            (403, "RequestTimeTooSkewed", "clock"),
        ] {
            let body = format!("<Error><Code>{code}</Code></Error>");
            let answer = ErrorAnswer::parse(status, body.as_bytes());
            let error = error_of_answer("read", &Key::root(), &answer, None);
            assert!(matches!(&error, StoreError::Denied { reason, .. } if reason.contains(advice)), "{error}");
            assert!(!error.hides_object());
        }
    }

    #[test]
    fn a_store_that_throttles_names_the_pause() {
        let answer = ErrorAnswer::parse(503, b"<Error><Code>SlowDown</Code></Error>");
        let error = error_of_answer("read", &Key::root(), &answer, Some(Duration::from_secs(7)));
        assert!(matches!(error, StoreError::Throttled(_, _, pause) if pause.as_secs() == 7), "{error}");
    }
}
