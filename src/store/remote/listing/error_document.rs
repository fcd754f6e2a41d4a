//! Error responses of object stores.

use std::fmt;

use super::xml::{printable, visit_elements};

/// Cause of an error response, as the codes of S3, Google and Azure name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreErrorCode {
    /// The credentials, or the lack of them, do not permit the request.
    AccessDenied,
    /// The store does not know the access key, token or account.
    UnknownCredentials,
    /// The credentials have expired.
    ExpiredCredentials,
    /// The signature does not match: the secret key is wrong, or something on the way changed the request.
    WrongSignature,
    /// The clock of this machine differs too much from that of the store.
    ClockSkew,
    /// There is no such bucket, or container of Azure.
    NoSuchBucket,
    /// There is no such object.
    NoSuchObject,
    /// The bucket is in another region, which [`ErrorAnswer::region`] names if the response does.
    WrongRegion,
    /// The client must send fewer requests.
    Throttled,
    /// The store has a temporary fault.
    Unavailable,
    /// The bucket charges the requester, and the request does not agree to that.
    RequesterPays,
    /// The object is archived and must be restored before it can be read.
    Archived,
    /// The store does not accept the request for another reason.
    Other,
}

/// Codes with their meanings. Those of Azure are in its documents and in the header `x-ms-error-code`.
const CODES: &[(&str, StoreErrorCode)] = &[
    ("AccessDenied", StoreErrorCode::AccessDenied),
    ("AllAccessDisabled", StoreErrorCode::AccessDenied),
    ("AccountProblem", StoreErrorCode::AccessDenied),
    ("InvalidAccessKeyId", StoreErrorCode::UnknownCredentials),
    ("InvalidToken", StoreErrorCode::UnknownCredentials),
    ("InvalidSecurity", StoreErrorCode::UnknownCredentials),
    ("ExpiredToken", StoreErrorCode::ExpiredCredentials),
    ("TokenRefreshRequired", StoreErrorCode::ExpiredCredentials),
    ("SignatureDoesNotMatch", StoreErrorCode::WrongSignature),
    ("RequestTimeTooSkewed", StoreErrorCode::ClockSkew),
    ("RequestExpired", StoreErrorCode::ClockSkew),
    ("NoSuchBucket", StoreErrorCode::NoSuchBucket),
    ("InvalidBucketName", StoreErrorCode::NoSuchBucket),
    ("NoSuchKey", StoreErrorCode::NoSuchObject),
    ("PermanentRedirect", StoreErrorCode::WrongRegion),
    ("TemporaryRedirect", StoreErrorCode::WrongRegion),
    ("Redirect", StoreErrorCode::WrongRegion),
    ("AuthorizationHeaderMalformed", StoreErrorCode::WrongRegion),
    ("IllegalLocationConstraintException", StoreErrorCode::WrongRegion),
    ("SlowDown", StoreErrorCode::Throttled),
    ("RequestLimitExceeded", StoreErrorCode::Throttled),
    ("TooManyRequests", StoreErrorCode::Throttled),
    ("Throttling", StoreErrorCode::Throttled),
    ("ThrottlingException", StoreErrorCode::Throttled),
    ("BandwidthLimitExceeded", StoreErrorCode::Throttled),
    ("InternalError", StoreErrorCode::Unavailable),
    ("ServiceUnavailable", StoreErrorCode::Unavailable),
    ("RequestTimeout", StoreErrorCode::Unavailable),
    ("UserProjectMissing", StoreErrorCode::RequesterPays),
    ("InvalidObjectState", StoreErrorCode::Archived),
    // Azure.
    ("AuthorizationFailure", StoreErrorCode::AccessDenied),
    ("AuthorizationPermissionMismatch", StoreErrorCode::AccessDenied),
    ("AuthorizationProtocolMismatch", StoreErrorCode::AccessDenied),
    ("AuthorizationResourceTypeMismatch", StoreErrorCode::AccessDenied),
    ("AuthorizationServiceMismatch", StoreErrorCode::AccessDenied),
    ("AuthorizationSourceIPMismatch", StoreErrorCode::AccessDenied),
    ("InsufficientAccountPermissions", StoreErrorCode::AccessDenied),
    ("KeyBasedAuthenticationNotPermitted", StoreErrorCode::AccessDenied),
    ("NoAuthenticationInformation", StoreErrorCode::AccessDenied),
    ("PublicAccessNotPermitted", StoreErrorCode::AccessDenied),
    ("AccountIsDisabled", StoreErrorCode::AccessDenied),
    ("AuthenticationFailed", StoreErrorCode::WrongSignature),
    ("InvalidAuthenticationInfo", StoreErrorCode::UnknownCredentials),
    ("ContainerNotFound", StoreErrorCode::NoSuchBucket),
    ("ContainerBeingDeleted", StoreErrorCode::NoSuchBucket),
    ("ResourceNotFound", StoreErrorCode::NoSuchBucket),
    ("InvalidResourceName", StoreErrorCode::NoSuchBucket),
    ("BlobNotFound", StoreErrorCode::NoSuchObject),
    ("BlobArchived", StoreErrorCode::Archived),
    ("ServerBusy", StoreErrorCode::Throttled),
    ("OperationTimedOut", StoreErrorCode::Unavailable),
    // Problems of another n5-server.
    (STORAGE_UNAVAILABLE, StoreErrorCode::Unavailable),
    ("issuer-unavailable", StoreErrorCode::Unavailable),
    ("overloaded", StoreErrorCode::Throttled),
    ("too-many", StoreErrorCode::Throttled),
];

/// Problem of another n5-server that cannot read the storage of a container.
const STORAGE_UNAVAILABLE: &str = "storage-unavailable";

/// The members of a problem document of another n5-server that are read.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct ProblemDocument {
    /// A URL that ends with the code.
    r#type: String,
    detail: String,
}

impl StoreErrorCode {
    /// Returns the meaning of a code as S3, Google or Azure write it, or [`Self::Other`] if it is unknown.
    pub fn from_name(name: &str) -> Self {
        CODES.iter().find(|(known, _)| *known == name).map_or(Self::Other, |(_, code)| *code)
    }

    /// Returns the meaning of a status, for responses without a code, such as those to HEAD. A missing bucket and a
    /// missing object have the same status, so 404 counts as a missing object.
    pub fn from_status(status: u16) -> Self {
        match status {
            301 | 307 | 308 => Self::WrongRegion,
            401 | 403 => Self::AccessDenied,
            404 | 410 => Self::NoSuchObject,
            429 => Self::Throttled,
            500..=599 => Self::Unavailable,
            _ => Self::Other,
        }
    }
}

/// An error response of a store. Contains no credentials: of the document, only code, message and region are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorAnswer {
    /// HTTP status.
    pub status: u16,
    /// Cause of the error.
    pub code: StoreErrorCode,
    /// Code as the store writes it; empty if the response has none.
    pub code_name: String,
    /// Message of the store; empty if the response has none. At most 300 characters, without control characters.
    pub message: String,
    /// Region of the bucket, or endpoint to use instead, if the response names it.
    pub region: Option<String>,
}

impl ErrorAnswer {
    /// Reads an error response. A body that is no error document gives an error with the meaning of the status.
    pub fn parse(status: u16, body: &[u8]) -> Self {
        let (mut code_name, mut message, mut region, mut endpoint) = (String::new(), String::new(), None, None);
        // A body that is cut off in the middle has its code at the beginning.
        let _ = visit_elements(body, |element| match element.path {
            "Error/Code" => code_name = printable(element.text),
            "Error/Message" => message = printable(element.text),
            "Error/Region" => region = Some(printable(element.text)),
            "Error/Endpoint" => endpoint = Some(printable(element.text)),
            _ => {}
        });
        if let Ok(problem) = serde_json::from_slice::<ProblemDocument>(body)
            && let Some((_, code)) = problem.r#type.rsplit_once('#')
        {
            (code_name, message) = (printable(code), printable(&problem.detail));
        }
        let named = StoreErrorCode::from_name(&code_name);
        let code = if named == StoreErrorCode::Other { StoreErrorCode::from_status(status) } else { named };
        // S3 answers with this code, too, if the header is malformed for another reason.
        let code = if code_name == "AuthorizationHeaderMalformed" && region.is_none() {
            StoreErrorCode::WrongSignature
        } else {
            code
        };
        Self { status, code, code_name, message, region: region.or(endpoint) }
    }

    /// Returns true if the code of the response says that the object is missing, and not only the status.
    pub fn names_missing_object(&self) -> bool {
        StoreErrorCode::from_name(&self.code_name) == StoreErrorCode::NoSuchObject
    }

    /// Returns true if another n5-server cannot read the storage of this container. Its other containers may be well.
    pub fn names_unavailable_storage(&self) -> bool {
        self.code_name == STORAGE_UNAVAILABLE
    }

    /// Returns true if the same request may succeed later.
    pub fn is_temporary(&self) -> bool {
        matches!(self.code, StoreErrorCode::Throttled | StoreErrorCode::Unavailable) && self.status != 501
    }
}

impl fmt::Display for ErrorAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store answered with status {}", self.status)?;
        if !self.code_name.is_empty() {
            write!(f, " {}", self.code_name)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        self.region.as_ref().map_or(Ok(()), |region| write!(f, " (region or endpoint: {region})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_all_providers_are_understood() {
        for (status, body, code, region) in [
            (403, "<Error><Code>AccessDenied</Code></Error>", StoreErrorCode::AccessDenied, None),
            (
                400,
                "<Error><Code>ExpiredToken</Code><Token-0>s</Token-0></Error>",
                StoreErrorCode::ExpiredCredentials,
                None,
            ),
            (
                301,
                "<?xml version='1.0'?><Error><Code>PermanentRedirect</Code><Endpoint>b.s3.eu-west-1.amazonaws.com\
                 </Endpoint></Error>",
                StoreErrorCode::WrongRegion,
                Some("b.s3.eu-west-1.amazonaws.com"),
            ),
            (
                400,
                "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>",
                StoreErrorCode::WrongRegion,
                Some("eu-west-1"),
            ),
            (400, "<Error><Code>AuthorizationHeaderMalformed</Code></Error>", StoreErrorCode::WrongSignature, None),
            (404, "\u{feff}<Error><Code>ContainerNotFound</Code></Error>", StoreErrorCode::NoSuchBucket, None),
            (503, "<Error><Code>SlowDown</Code></Error>", StoreErrorCode::Throttled, None),
            (503, "<html>busy</html>", StoreErrorCode::Unavailable, None),
            (404, "", StoreErrorCode::NoSuchObject, None),
            (403, "<Error><Code>AccessDenied</Code><Mess", StoreErrorCode::AccessDenied, None),
            (418, "<Error><Code>Teapot</Code></Error>", StoreErrorCode::Other, None),
            (503, r#"{"type":"https://host/PROBLEMS.md#storage-unavailable"}"#, StoreErrorCode::Unavailable, None),
            (503, r#"{"type":"https://host/PROBLEMS.md#overloaded"}"#, StoreErrorCode::Throttled, None),
            (503, r#"{"type":"about:blank"}"#, StoreErrorCode::Unavailable, None),
        ] {
            let answer = ErrorAnswer::parse(status, body.as_bytes());
            assert_eq!((answer.code, answer.region.as_deref()), (code, region), "{body}");
        }
    }

    #[test]
    fn an_error_names_the_message_and_no_secret() {
        let body = "<Error><Code>SignatureDoesNotMatch</Code><Message>The request\nsignature\u{1b}[0m differs</Message>\
                    <AWSAccessKeyId>AKIA</AWSAccessKeyId><StringToSign>SECRET</StringToSign></Error>";
        let answer = ErrorAnswer::parse(403, body.as_bytes());
        assert_eq!(
            answer.to_string(),
            "the store answered with status 403 SignatureDoesNotMatch: The request signature [0m differs"
        );
        assert!(!format!("{answer:?}").contains("AKIA") && !format!("{answer:?}").contains("SECRET"));
        assert!(!answer.names_missing_object());
        let missing = |body: &[u8]| ErrorAnswer::parse(404, body).names_missing_object();
        assert!(missing(b"<Error><Code>NoSuchKey</Code></Error>"));
        assert!(!missing(b"<html>no backend</html>") && !missing(b"<Error><Code>Teapot</Code></Error>"));
        let long = format!("<Error><Message>{}</Message></Error>", "ü".repeat(1000));
        assert_eq!(ErrorAnswer::parse(403, long.as_bytes()).message.chars().count(), 300);
    }
}
