//! Adds the credentials of a store to requests.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use axum::http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use axum::http::uri::Scheme;
use axum::http::{Request, Response, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::azure::{AzureAuthorizer, AzureCredentialProvider};
use object_store::client::{
    ClientOptions, CredentialProvider, HttpClient as StoreHttpClient, HttpConnector, HttpError, HttpErrorKind,
    HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::gcp::GcpCredentialProvider;

use super::listing::printable;
use crate::http_client::{HttpClient, is_link_local, is_loopback_host};
use crate::runtime::watched_files::WatchedFiles;

/// Version of Azure's protocol. Without it, entity tags have no quotes, and ranges are not answered with 206.
const AZURE_VERSION: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-ms-version"), HeaderValue::from_static("2023-11-03"));

/// Header of a client of S3 that agrees to pay for a request.
const REQUEST_PAYER: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-amz-request-payer"), HeaderValue::from_static("requester"));

/// Header with the project that pays for a request to Google.
const USER_PROJECT: HeaderName = HeaderName::from_static("x-goog-user-project");

/// Credentials of requests to a store. Its text never contains them.
pub(super) enum Signer {
    /// Requests are anonymous.
    Anonymous {
        /// True if the store is Azure.
        is_azure: bool,
    },
    /// Signatures of S3.
    S3 { credentials: AwsCredentialProvider, region: String, requester_pays: bool },
    /// Tokens of Google. Requests name the project that pays for them, if there is one.
    Google { credentials: GcpCredentialProvider, payer: Option<HeaderValue> },
    /// Signatures or tokens of Azure.
    Azure { credentials: AzureCredentialProvider, account: String },
    /// A token in a file.
    Bearer(WatchedFiles<HeaderValue>),
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous { .. } => "Anonymous",
            Self::S3 { .. } => "S3",
            Self::Google { .. } => "Google",
            Self::Azure { .. } => "Azure",
            Self::Bearer(_) => "Bearer",
        })
    }
}

impl Signer {
    /// Returns true if requests contain no credentials.
    pub(super) fn is_anonymous(&self) -> bool {
        matches!(self, Self::Anonymous { .. })
    }

    /// Returns `request` with its credentials.
    ///
    /// # Errors
    /// Returns a message if there are none at present. It contains no secret.
    pub(super) async fn sign(&self, mut request: HttpRequest) -> Result<HttpRequest, String> {
        match self {
            Self::Anonymous { is_azure: false } => {}
            Self::Anonymous { is_azure: true } => {
                request.headers_mut().insert(AZURE_VERSION.0, AZURE_VERSION.1);
            }
            Self::S3 { credentials, region, requester_pays } => {
                if *requester_pays {
                    request.headers_mut().insert(REQUEST_PAYER.0, REQUEST_PAYER.1);
                }
                let credential = get_credential(&**credentials).await?;
                let authorizer = AwsAuthorizer::new(&credential, "s3", region);
                authorizer.try_authorize(&mut request, None).map_err(|error| no_credentials(&error))?;
            }
            Self::Google { credentials, payer } => {
                if let Some(project) = payer {
                    request.headers_mut().insert(USER_PROJECT, project.clone());
                }
                let credential = get_credential(&**credentials).await?;
                // An emulator needs no token.
                if !credential.bearer.is_empty() {
                    request.headers_mut().insert(AUTHORIZATION, bearer(&credential.bearer)?);
                }
            }
            Self::Azure { credentials, account } => {
                let credential = get_credential(&**credentials).await?;
                let authorizer = AzureAuthorizer::new(&credential, account);
                authorizer.try_authorize(&mut request).map_err(|error| no_credentials(&error))?;
                request.headers_mut().entry(AZURE_VERSION.0).or_insert(AZURE_VERSION.1);
            }
            Self::Bearer(token) => {
                request.headers_mut().insert(AUTHORIZATION, HeaderValue::clone(&token.current()));
            }
        }
        Ok(request)
    }
}

async fn get_credential<T>(provider: &dyn CredentialProvider<Credential = T>) -> Result<Arc<T>, String> {
    provider.get_credential().await.map_err(|error| no_credentials(&error))
}

/// Returns the message for an error of `object_store`, which may contain the whole response of a server.
fn no_credentials(error: &object_store::Error) -> String {
    format!("there are no credentials: {}", printable(&without_queries(&error.to_string())))
}

/// Returns the header with a token.
///
/// # Errors
/// Returns a message if the token contains other characters than headers may.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_invalid| "the token contains characters that no token has".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns a text without the queries of the URLs in it, which may contain tokens.
fn without_queries(text: &str) -> String {
    let words = text.split_inclusive(char::is_whitespace).map(|word| match word.split_once('?') {
        Some((url, query)) if url.contains("://") => {
            let tail = query.trim_start_matches(|character: char| !character.is_whitespace());
            format!("{url}{tail}")
        }
        Some(_) | None => word.to_owned(),
    });
    words.collect()
}

/// Credentials that are made again when their file changes.
pub(super) struct ReloadedCredentials<T>(pub(super) WatchedFiles<Arc<dyn CredentialProvider<Credential = T>>>);

impl<T> fmt::Debug for ReloadedCredentials<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReloadedCredentials")
    }
}

#[async_trait]
impl<T: Send + Sync + 'static> CredentialProvider for ReloadedCredentials<T> {
    type Credential = T;

    async fn get_credential(&self) -> object_store::Result<Arc<T>> {
        let current = self.0.current();
        current.get_credential().await
    }
}

/// Sends the requests that obtain credentials, such as those to a metadata service. They contain secrets, and
/// so do the responses. Therefore they go over plain HTTP only to this machine and to metadata services.
#[derive(Debug, Clone)]
pub(super) struct CredentialClient(pub(super) HttpClient);

impl HttpConnector for CredentialClient {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<StoreHttpClient> {
        Ok(StoreHttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for CredentialClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if !is_confidential(request.uri()) {
            let host = request.uri().host().unwrap_or_default();
            let reason = format!("credentials are not requested from {host} over plain http; use https");
            return Err(HttpError::new(HttpErrorKind::Unknown, io::Error::other(reason)));
        }
        let (parts, body) = request.into_parts();
        let exchange = async {
            let body = body.collect().await?.to_bytes();
            let sent = self.0.send(Request::from_parts(parts, Full::<Bytes>::new(body))).await;
            let response = sent.map_err(|error| {
                let kind = if error.is_connect { HttpErrorKind::Connect } else { HttpErrorKind::Request };
                HttpError::new(kind, error)
            })?;
            let (parts, body) = response.into_parts();
            let body = http_body_util::Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
            let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Decode, error))?.to_bytes();
            let body = Full::new(body).map_err(|never| match never {});
            Ok(Response::from_parts(parts, HttpResponseBody::new(body)))
        };
        let timeout = || io::Error::from(io::ErrorKind::TimedOut);
        let result = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await;
        result.unwrap_or_else(|_elapsed| Err(HttpError::new(HttpErrorKind::Timeout, timeout())))
    }
}

/// Returns true if no other machine can read the requests to a URL, or only those on the local link can.
fn is_confidential(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    url.scheme() == Some(&Scheme::HTTPS)
        || is_loopback_host(host)
        || address.is_ok_and(is_link_local)
        || host == GOOGLE_METADATA_HOST
}

/// Name of Google's metadata service, which has an address on the local link.
const GOOGLE_METADATA_HOST: &str = "metadata.google.internal";

/// Time limit for a request that obtains credentials.
const REQUEST_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Maximum size of a document with credentials.
const MAX_RESPONSE_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use object_store::StaticCredentialProvider;
    use object_store::aws::AwsCredential;
    use object_store::client::HttpRequestBody;

    use super::*;
    use crate::http_client::{HttpClientOptions, describe_error};

    fn empty_request(url: &str) -> HttpRequest {
        Request::get(url).body(HttpRequestBody::empty()).unwrap()
    }

    #[tokio::test]
    async fn requests_are_signed_and_neither_text_nor_headers_show_the_secret() {
        let credential =
            AwsCredential { key_id: "AKIAEXAMPLE".into(), secret_key: "canary".into(), token: Some("session".into()) };
        let signer = Signer::S3 {
            credentials: Arc::new(StaticCredentialProvider::new(credential)),
            region: "eu-west-1".to_owned(),
            requester_pays: true,
        };
        assert!(!format!("{signer:?}").contains("canary"));
        let request = signer.sign(empty_request("https://lab.s3.eu-west-1.amazonaws.com/a%20b/1")).await.unwrap();
        let authorization = request.headers()[AUTHORIZATION].to_str().unwrap();
        assert!(authorization.contains("AKIAEXAMPLE") && authorization.contains("/eu-west-1/s3/aws4_request"));
        assert!(authorization.contains("x-amz-request-payer"), "the consent is signed: {authorization}");
        assert!(!format!("{:?}", request.headers()).contains("canary"));
    }

    #[tokio::test]
    async fn tokens_are_exchanged_over_plain_http_only_on_this_machine_and_with_metadata_services() {
        for url in [
            "https://sts.amazonaws.com/",
            "http://127.0.0.1:8080/",
            "http://169.254.170.23/v1/credentials",
            "http://[fd00:ec2::23]/v1/credentials",
            "http://metadata.google.internal/computeMetadata/v1/",
        ] {
            assert!(is_confidential(&url.parse().unwrap()), "{url}");
        }
        let client = CredentialClient(HttpClient::new(&HttpClientOptions::default()).unwrap());
        for host in ["10.0.0.1", "sts.lab.example", "metadata.google.internal.evil.org"] {
            let error = client.call(empty_request(&format!("http://{host}/?Token=canary"))).await.unwrap_err();
            let error = describe_error(&error);
            assert!(error.contains("over plain http; use https") && !error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn the_error_for_missing_credentials_is_a_line_of_bounded_length() {
        let source = format!("<html>\n\u{1b}[31m{}", "x".repeat(100_000)).into();
        let text = no_credentials(&object_store::Error::Generic { store: "S3", source });
        assert!(text.contains("<html>") && text.len() < 400 && !text.contains(char::is_control), "{text}");
    }

    #[test]
    fn queries_of_urls_are_removed_from_errors() {
        let text = "Error performing POST https://sts.amazonaws.com/?Token=canary&x=1 in 1s - is it up?";
        assert_eq!(without_queries(text), "Error performing POST https://sts.amazonaws.com/ in 1s - is it up?");
    }

    #[test]
    fn a_token_is_a_sensitive_header() {
        assert!(bearer("n5t_abc").unwrap().is_sensitive());
        assert!(!bearer("a\nb").unwrap_err().contains('a'.to_string().repeat(2).as_str()));
    }
}
