//! Finds the credentials of a remote root.
//!
//! `object_store` obtains and renews tokens and computes signatures. Files are read again when they change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::azure::{AzureConfigKey, AzureCredential, MicrosoftAzureBuilder};
use object_store::client::CredentialProvider;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::{BackoffConfig, RetryConfig};

use super::profile::find_profile;
use super::signer::{CredentialClient, ReloadedCredentials, Signer, bearer};
use super::variables::Variables;
use crate::config::{CredentialSource, Provider, RemoteRoot, StoreSettings};
use crate::http_client::{HttpClient, HttpClientOptions};
use crate::runtime::watched_files::{WatchedFiles, read_small_file};

/// Variables with a key of Amazon.
const AWS_KEYS: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];

/// Variables of a container of Amazon's services that name its credentials.
const AWS_CONTAINER: [&str; 2] = ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];

/// Variables of a container whose credentials are at any URL.
const AWS_CONTAINER_URL: [&str; 2] = ["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"];

/// Variables with a web identity of Amazon.
const AWS_WEB_IDENTITY: [&str; 2] = ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"];

/// Variable with the file of a service account of Google.
const GOOGLE_FILE: &str = "GOOGLE_APPLICATION_CREDENTIALS";

/// Members of a file of Google's credentials that name a project, the preferred one first.
const PROJECT_MEMBERS: [&str; 2] = ["quota_project_id", "project_id"];

/// File of `gcloud auth application-default login`, below the home directory.
const GCLOUD_FILE: &str = ".config/gcloud/application_default_credentials.json";

/// Variables with a secret of Azure.
const AZURE_SECRETS: [&str; 6] = [
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_TOKEN",
];

/// Variable with a web identity of Azure.
const AZURE_WEB_IDENTITY: &str = "AZURE_FEDERATED_TOKEN_FILE";

/// Settings of a profile, with the variables of the same meaning.
const PROFILE_KEYS: [(&str, &str); 5] = [
    ("aws_access_key_id", "AWS_ACCESS_KEY_ID"),
    ("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    ("aws_session_token", "AWS_SESSION_TOKEN"),
    ("web_identity_token_file", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    ("role_arn", "AWS_ROLE_ARN"),
];

/// Credentials of a root, and the region and account that they name.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) source: FoundSource,
    /// Region that the profile or the environment names, for S3.
    pub(super) region: Option<String>,
    /// Storage account that the file or the environment names, for Azure.
    pub(super) account: Option<String>,
    /// Project that pays for requests, for Google.
    pub(super) project: Option<String>,
}

/// Credentials, before the region of the bucket is known.
pub(super) enum FoundSource {
    Anonymous,
    S3(Arc<dyn CredentialProvider<Credential = AwsCredential>>),
    Google(Arc<dyn CredentialProvider<Credential = GcpCredential>>),
    Azure(Arc<dyn CredentialProvider<Credential = AzureCredential>>),
    Bearer(WatchedFiles<HeaderValue>),
}

impl std::fmt::Debug for FoundSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::S3(_) => "S3",
            Self::Google(_) => "Google",
            Self::Azure(_) => "Azure",
            Self::Bearer(_) => "Bearer",
        })
    }
}

impl FoundSource {
    /// Returns the signer for a store in `region`, or of the storage `account`. `project` pays for requests to Google.
    ///
    /// # Errors
    /// Returns a message if the storage account or the paying project is unknown.
    pub(super) fn signer(
        self,
        provider: Provider,
        region: &str,
        requester_pays: bool,
        account: Option<&str>,
        project: Option<&str>,
    ) -> Result<Signer, String> {
        let can_pay = matches!(provider, Provider::S3 | Provider::Google);
        Ok(match self {
            Self::Anonymous if requester_pays && can_pay => {
                return Err("store.requester_pays needs credentials: the store must know who pays".to_owned());
            }
            Self::Anonymous => Signer::Anonymous { is_azure: provider == Provider::Azure },
            Self::S3(credentials) => Signer::S3 { credentials, region: region.to_owned(), requester_pays },
            Self::Google(credentials) => {
                let payer = project.filter(|_| requester_pays);
                if requester_pays && payer.is_none() {
                    return Err("store.requester_pays needs the project that pays; set GOOGLE_CLOUD_PROJECT".to_owned());
                }
                let payer = payer.map(HeaderValue::from_str).transpose();
                let payer = payer.map_err(|_invalid| "the name of the project that pays is not valid".to_owned())?;
                Signer::Google { credentials, payer }
            }
            Self::Azure(credentials) => {
                let account = account.ok_or("the storage account is unknown; set AZURE_STORAGE_ACCOUNT_NAME")?;
                Signer::Azure { credentials, account: account.to_owned() }
            }
            Self::Bearer(token) => Signer::Bearer(token),
        })
    }
}

/// Finds the credentials of `root` by its settings and `variables`. May read files.
///
/// # Errors
/// Returns a message if the named credentials cannot be used. It contains no secret.
pub(super) fn find(root: &RemoteRoot, settings: &StoreSettings, variables: &Variables) -> Result<Credentials, String> {
    let is_custom = super::location::endpoint(root, settings).is_some();
    let finder = Finder { root, settings, variables };
    let source = match &settings.credentials {
        CredentialSource::None => FoundSource::Anonymous,
        // Credentials of the environment are for the provider's own store.
        CredentialSource::Auto if is_custom => FoundSource::Anonymous,
        CredentialSource::Auto => finder.of_environment(true)?,
        CredentialSource::Env => finder.of_environment(false)?,
        CredentialSource::Profile(name) => finder.of_profile(name)?,
        CredentialSource::File(path) => finder.of_file(path)?,
        CredentialSource::Instance => finder.of_instance()?,
        CredentialSource::WebIdentity => finder.of_web_identity()?,
    };
    let is_env = matches!(settings.credentials, CredentialSource::Env | CredentialSource::WebIdentity);
    let variable = |names: &[&str]| {
        let used = (!matches!(source, FoundSource::Anonymous) && !is_custom) || is_env;
        let value = names.iter().find_map(|name| variables.get(name));
        value.filter(|_| used).map(str::to_owned)
    };
    let region = if let CredentialSource::Profile(name) = &settings.credentials {
        finder.profile_region(name)
    } else {
        variable(&["AWS_REGION", "AWS_DEFAULT_REGION"])
    };
    let account = if let (CredentialSource::File(path), Provider::Azure) = (&settings.credentials, root.provider) {
        let text = read_small_file(path).map_err(|why| format!("{}: {why}", path.display()))?;
        azure_account(&Variables::parse(&text)?)
    } else {
        azure_account(variables)
    };
    let project = finder.paying_project()?;
    Ok(Credentials { source, region, account: root.account.clone().or(account), project })
}

fn azure_account(variables: &Variables) -> Option<String> {
    let names = ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"];
    names.iter().find_map(|name| variables.get(name)).map(str::to_owned)
}

struct Finder<'a> {
    root: &'a RemoteRoot,
    settings: &'a StoreSettings,
    variables: &'a Variables,
}

impl Finder<'_> {
    /// Returns the credentials that the environment names. If there are none, requests are anonymous if `is_optional`.
    fn of_environment(&self, is_optional: bool) -> Result<FoundSource, String> {
        let variables = self.variables;
        let found = match self.root.provider {
            Provider::S3 if variables.has_any(&AWS_KEYS) => Some(self.s3(variables)?),
            Provider::S3 if variables.has_any(&AWS_WEB_IDENTITY[..1]) => Some(self.of_web_identity()?),
            Provider::S3 => match variables.get("AWS_PROFILE") {
                Some(profile) => Some(self.of_profile(profile)?),
                None if variables.has_any(&AWS_CONTAINER) => Some(self.s3(variables)?),
                None => None,
            },
            Provider::Google => match variables.get(GOOGLE_FILE) {
                Some(path) => Some(self.of_file(Path::new(path))?),
                None => None,
            },
            // A token for one account must not be sent to another.
            Provider::Azure if is_optional && self.is_foreign_account() => None,
            Provider::Azure if variables.has_any(&AZURE_SECRETS) => Some(self.azure(variables)?),
            Provider::Azure if variables.has_any(&[AZURE_WEB_IDENTITY]) => Some(self.of_web_identity()?),
            Provider::Azure | Provider::Http | Provider::Memory => None,
        };
        match found {
            Some(found) => Ok(found),
            None if is_optional => Ok(FoundSource::Anonymous),
            None if self.root.provider == Provider::Http => {
                Err("an HTTP server has no credentials in the environment; name the file of a token by \
                     store.credentials = \"file:PATH\""
                    .to_owned())
            }
            None => {
                Err("the environment names no credentials, but store.credentials = \"env\" asks for them".to_owned())
            }
        }
    }

    /// Returns the project that pays for requests to Google: that of the environment, or else that of the file with the
    /// credentials.
    fn paying_project(&self) -> Result<Option<String>, String> {
        if self.root.provider != Provider::Google || !self.settings.requester_pays {
            return Ok(None);
        }
        if let Some(project) = self.variables.get("GOOGLE_CLOUD_PROJECT") {
            return Ok(Some(project.to_owned()));
        }
        let file = match &self.settings.credentials {
            CredentialSource::File(path) => Some(path.clone()),
            CredentialSource::Auto | CredentialSource::Env => self.variables.get(GOOGLE_FILE).map(PathBuf::from),
            CredentialSource::None
            | CredentialSource::Profile(_)
            | CredentialSource::Instance
            | CredentialSource::WebIdentity => None,
        };
        let Some(path) = file else { return Ok(None) };
        let text = read_small_file(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        let document = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
        Ok(PROJECT_MEMBERS.iter().find_map(|name| document.get(name)?.as_str()).map(str::to_owned))
    }

    /// Returns true if the environment's credentials are for another storage account than that of the address.
    fn is_foreign_account(&self) -> bool {
        let of_environment = azure_account(self.variables);
        self.root.account.is_some() && of_environment.is_some() && of_environment != self.root.account
    }

    /// Returns the credentials of a profile, which are read again when its files change.
    fn of_profile(&self, name: &str) -> Result<FoundSource, String> {
        if self.root.provider != Provider::S3 {
            return Err("profiles are for S3 only".to_owned());
        }
        let files = self.profile_files();
        let client = self.client(true, false)?;
        let (name, region) = (name.to_owned(), self.settings.region.clone());
        let of_texts = move |credentials: &str, config: &str| {
            let profile = find_profile(&name, credentials, config)?;
            let pairs = PROFILE_KEYS
                .iter()
                .filter_map(|(key, variable)| profile.get(*key).map(|value| ((*variable).to_owned(), value.clone())));
            let region = Some(region.as_str()).filter(|region| !region.is_empty());
            let region = region.or(profile.get("region").map(String::as_str));
            s3_provider(&Variables::new(pairs), region, &client)
        };
        // A missing file counts as an empty one, but it must exist to be watched.
        let watched = match files {
            (Some(credentials), Some(config)) => WatchedFiles::open(
                [&credentials, &config],
                "credentials",
                || (),
                move |[credentials, config]| of_texts(credentials, config),
            ),
            (Some(credentials), None) => {
                WatchedFiles::open([&credentials], "credentials", || (), move |[text]| of_texts(text, ""))
            }
            (None, Some(config)) => {
                WatchedFiles::open([&config], "credentials", || (), move |[text]| of_texts("", text))
            }
            (None, None) => return Err("there is neither ~/.aws/credentials nor ~/.aws/config".to_owned()),
        };
        Ok(FoundSource::S3(Arc::new(ReloadedCredentials(watched?))))
    }

    /// Returns the files of profiles that exist: those of credentials and of settings.
    fn profile_files(&self) -> (Option<PathBuf>, Option<PathBuf>) {
        let existing = |name, below_home| self.variables.path(name, below_home).filter(|path| path.is_file());
        (existing("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"), existing("AWS_CONFIG_FILE", ".aws/config"))
    }

    fn profile_region(&self, name: &str) -> Option<String> {
        let (credentials, config) = self.profile_files();
        let text = |path: Option<PathBuf>| path.and_then(|path| read_small_file(&path).ok()).unwrap_or_default();
        find_profile(name, &text(credentials), &text(config)).ok()?.get("region").cloned()
    }

    /// Returns the credentials in a file, which is read again when it changes.
    fn of_file(&self, path: &Path) -> Result<FoundSource, String> {
        let client = self.client(true, false)?;
        let account = self.root.account.clone();
        Ok(match self.root.provider {
            Provider::S3 => {
                let region = self.settings.region.clone();
                FoundSource::S3(watched(path, move |text| {
                    s3_provider(
                        &Variables::parse(text)?,
                        Some(region.as_str()).filter(|region| !region.is_empty()),
                        &client,
                    )
                })?)
            }
            Provider::Google => {
                let file = path.to_owned();
                FoundSource::Google(watched(path, move |text| google_provider(&file, text, &client))?)
            }
            Provider::Azure => FoundSource::Azure(watched(path, move |text| {
                azure_provider(&Variables::parse(text)?, account.as_deref(), &client)
            })?),
            Provider::Http => {
                let token = |[text]: [&str; 1]| match text.trim() {
                    "" => Err("it contains no token".to_owned()),
                    token => bearer(token),
                };
                FoundSource::Bearer(WatchedFiles::open([path], "credentials", || (), token)?)
            }
            Provider::Memory => FoundSource::Anonymous,
        })
    }

    /// Returns the credentials of the machine, from its metadata service.
    fn of_instance(&self) -> Result<FoundSource, String> {
        let client = self.client(false, true)?;
        let error = |error: object_store::Error| error.to_string();
        Ok(match self.root.provider {
            Provider::S3 => {
                let endpoint = self.variables.get("AWS_EC2_METADATA_SERVICE_ENDPOINT");
                let mut builder = AmazonS3Builder::new().with_bucket_name("b").with_retry(retries());
                if let Some(endpoint) = endpoint {
                    builder = builder.with_metadata_endpoint(endpoint);
                }
                let store = builder.with_http_connector(client).build().map_err(error)?;
                FoundSource::S3(Arc::clone(store.credentials()))
            }
            Provider::Google => {
                // `object_store` would use the identity in this file instead of the machine's.
                if let Some(path) = self.variables.path("", GCLOUD_FILE).filter(|path| path.is_file()) {
                    return Err(format!(
                        "{} would be used instead of the metadata service; name it by store.credentials = \"file:{}\", or \
                         start the server with another HOME",
                        path.display(),
                        path.display()
                    ));
                }
                let builder = GoogleCloudStorageBuilder::new().with_bucket_name("b").with_retry(retries());
                let store = builder.with_http_connector(client).build().map_err(error)?;
                FoundSource::Google(Arc::clone(store.credentials()))
            }
            Provider::Azure => {
                let mut builder = MicrosoftAzureBuilder::new()
                    .with_container_name("c")
                    .with_account("a")
                    .with_retry(retries())
                    .with_config(AzureConfigKey::CredentialType, "managed_identity");
                for (name, key) in [
                    ("AZURE_CLIENT_ID", AzureConfigKey::ClientId),
                    ("AZURE_OBJECT_ID", AzureConfigKey::ObjectId),
                    ("IDENTITY_ENDPOINT", AzureConfigKey::MsiEndpoint),
                ] {
                    if let Some(value) = self.variables.get(name) {
                        builder = builder.with_config(key, value);
                    }
                }
                let store = builder.with_http_connector(client).build().map_err(error)?;
                FoundSource::Azure(Arc::clone(store.credentials()))
            }
            Provider::Http | Provider::Memory => return Err("an HTTP server has no instance credentials".to_owned()),
        })
    }

    /// Returns the credentials for which the token of a workload is exchanged.
    fn of_web_identity(&self) -> Result<FoundSource, String> {
        match self.root.provider {
            Provider::S3 => {
                let names =
                    ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_ENDPOINT_URL_STS"];
                if let Some(missing) = AWS_WEB_IDENTITY.iter().find(|name| self.variables.get(name).is_none()) {
                    return Err(format!("the environment has no {missing}"));
                }
                let chosen = self.variables.iter().filter(|(name, _)| names.contains(name));
                self.s3(&Variables::new(chosen.map(|(name, value)| (name.to_owned(), value.to_owned()))))
            }
            Provider::Azure => {
                let names = [AZURE_WEB_IDENTITY, "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_AUTHORITY_HOST"];
                if let Some(missing) = names[..3].iter().find(|name| self.variables.get(name).is_none()) {
                    return Err(format!("the environment has no {missing}"));
                }
                let chosen = self.variables.iter().filter(|(name, _)| names.contains(name));
                self.azure(&Variables::new(chosen.map(|(name, value)| (name.to_owned(), value.to_owned()))))
            }
            Provider::Google => {
                Err("workload identity federation of Google is not supported; use \"instance\" where the \
                                     metadata service gives tokens, or the file of a service account"
                    .to_owned())
            }
            Provider::Http | Provider::Memory => Err("an HTTP server takes no web identity".to_owned()),
        }
    }

    fn s3(&self, variables: &Variables) -> Result<FoundSource, String> {
        let is_container = !variables.has_any(&AWS_KEYS) && variables.has_any(&AWS_CONTAINER);
        let region = Some(self.settings.region.as_str()).filter(|region| !region.is_empty());
        Ok(FoundSource::S3(s3_provider(variables, region, &self.client(!is_container, is_container)?)?))
    }

    fn azure(&self, variables: &Variables) -> Result<FoundSource, String> {
        let client = self.client(true, false)?;
        Ok(FoundSource::Azure(azure_provider(variables, self.root.account.as_deref(), &client)?))
    }

    /// Returns the client that obtains credentials. Metadata services are at addresses on the local link, and
    /// never behind a proxy.
    fn client(&self, uses_proxy: bool, allows_link_local: bool) -> Result<CredentialClient, String> {
        let options = HttpClientOptions { uses_proxy, allows_link_local, ..HttpClientOptions::default() };
        Ok(CredentialClient(http_client(self.settings, &options)?))
    }
}

/// Returns a client with `options` that trusts the certificates in the file `store.ca`, if there is one. Reads the file.
///
/// # Errors
/// Returns a message if the file cannot be read or contains no certificate.
pub(super) fn http_client(settings: &StoreSettings, options: &HttpClientOptions) -> Result<HttpClient, String> {
    let path = &settings.ca;
    if path.as_os_str().is_empty() {
        return HttpClient::new(options);
    }
    let in_file = |why: String| format!("{}: {why}", path.display());
    let roots = Some(read_small_file(path).map_err(in_file)?);
    HttpClient::new(&HttpClientOptions { roots, ..options.clone() }).map_err(in_file)
}

/// Returns credentials that are made by `parse` whenever the text of a file changes.
fn watched<T: Send + Sync + 'static>(
    path: &Path,
    parse: impl Fn(&str) -> Result<Arc<dyn CredentialProvider<Credential = T>>, String> + Send + 'static,
) -> Result<Arc<dyn CredentialProvider<Credential = T>>, String> {
    let watched = WatchedFiles::open([path], "credentials", || (), move |[text]| parse(text))?;
    Ok(Arc::new(ReloadedCredentials(watched)))
}

fn s3_provider(
    variables: &Variables,
    region: Option<&str>,
    client: &CredentialClient,
) -> Result<Arc<dyn CredentialProvider<Credential = AwsCredential>>, String> {
    check_printable(variables)?;
    check_complete(variables)?;
    let mut builder = AmazonS3Builder::new().with_bucket_name("b").with_retry(retries());
    for (name, value) in variables.iter() {
        let key = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>();
        if let Some(key) = key.ok().filter(|key| is_credential(*key)) {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(region) = region.or(variables.get("AWS_REGION")).or(variables.get("AWS_DEFAULT_REGION")) {
        builder = builder.with_region(region);
    }
    let store = builder.with_http_connector(client.clone()).build().map_err(|error| error.to_string())?;
    Ok(Arc::clone(store.credentials()))
}

/// Returns an error unless `variables` have complete credentials of Amazon. For incomplete ones, `object_store` would ask
/// the metadata service of the machine.
fn check_complete(variables: &Variables) -> Result<(), String> {
    // Keys have precedence, and `object_store` refuses one without the other.
    if variables.has_any(&AWS_KEYS) || variables.has_any(&AWS_CONTAINER[..1]) {
        return Ok(());
    }
    let mut missing = None;
    for names in [AWS_WEB_IDENTITY, AWS_CONTAINER_URL] {
        match names.map(|name| variables.get(name).is_some()) {
            [true, true] => return Ok(()),
            [true, false] => missing = missing.or(Some((names[0], names[1]))),
            [false, true] => missing = missing.or(Some((names[1], names[0]))),
            [false, false] => {}
        }
    }
    Err(match missing {
        Some((present, missing)) => {
            format!("{present} is set without {missing}; set both, or choose other credentials by store.credentials")
        }
        None => "it contains no AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".to_owned(),
    })
}

/// Returns true if a setting of `object_store` is part of credentials, and not of requests.
fn is_credential(key: AmazonS3ConfigKey) -> bool {
    matches!(
        key,
        AmazonS3ConfigKey::AccessKeyId
            | AmazonS3ConfigKey::SecretAccessKey
            | AmazonS3ConfigKey::Token
            | AmazonS3ConfigKey::WebIdentityTokenFile
            | AmazonS3ConfigKey::RoleArn
            | AmazonS3ConfigKey::RoleSessionName
            | AmazonS3ConfigKey::StsEndpoint
            | AmazonS3ConfigKey::ContainerCredentialsRelativeUri
            | AmazonS3ConfigKey::ContainerCredentialsFullUri
            | AmazonS3ConfigKey::ContainerAuthorizationTokenFile
    )
}

fn google_provider(
    path: &Path,
    text: &str,
    client: &CredentialClient,
) -> Result<Arc<dyn CredentialProvider<Credential = GcpCredential>>, String> {
    let document: serde_json::Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    let builder = GoogleCloudStorageBuilder::new().with_bucket_name("b").with_retry(retries());
    let builder = match document.get("type").and_then(serde_json::Value::as_str) {
        Some("authorized_user") => builder.with_application_credentials(path.display().to_string()),
        Some("external_account") => {
            return Err("workload identity federation is not supported; use the file of a service account".to_owned());
        }
        _ => builder.with_service_account_key(text),
    };
    let store = builder.with_http_connector(client.clone()).build();
    // The text of the error may contain a part of the file.
    let store = store.map_err(|_secret| "is not the file of a service account of Google".to_owned())?;
    Ok(Arc::clone(store.credentials()))
}

fn azure_provider(
    variables: &Variables,
    account: Option<&str>,
    client: &CredentialClient,
) -> Result<Arc<dyn CredentialProvider<Credential = AzureCredential>>, String> {
    check_printable(variables)?;
    if !variables.has_any(&AZURE_SECRETS) && !variables.has_any(&[AZURE_WEB_IDENTITY]) {
        return Err(format!("it contains none of {}", AZURE_SECRETS.join(", ")));
    }
    let account = account.map(str::to_owned).or_else(|| azure_account(variables)).unwrap_or_else(|| "a".to_owned());
    let mut builder = MicrosoftAzureBuilder::new().with_container_name("c").with_account(account).with_retry(retries());
    let mut keys = Vec::new();
    for (name, value) in variables.iter() {
        // `azure_storage_account_key` is the name that Azure's own programs use.
        let name = if name == "AZURE_STORAGE_KEY" {
            "azure_storage_account_key".to_owned()
        } else {
            name.to_ascii_lowercase()
        };
        if let Some(key) = name.parse::<AzureConfigKey>().ok().filter(|key| is_azure_credential(*key)) {
            builder = builder.with_config(key, value);
            keys.push(key);
        }
    }
    // For an incomplete login, `object_store` would ask the metadata service of the machine.
    let has = |key| keys.contains(&key);
    let has_secret = has(AzureConfigKey::AccessKey) || has(AzureConfigKey::SasKey) || has(AzureConfigKey::Token);
    let has_login = has(AzureConfigKey::ClientId) && has(AzureConfigKey::AuthorityId);
    if !has_secret && !has_login {
        return Err(
            "AZURE_CLIENT_SECRET and AZURE_FEDERATED_TOKEN_FILE need AZURE_CLIENT_ID and AZURE_TENANT_ID; set \
                    them, or choose other credentials by store.credentials"
                .to_owned(),
        );
    }
    let store = builder.with_http_connector(client.clone()).build();
    // The text of the error may contain a part of the secret.
    let store = store.map_err(|_secret| "the credentials of Azure cannot be used; check their form".to_owned())?;
    Ok(Arc::clone(store.credentials()))
}

/// Returns true if a setting of `object_store` is part of credentials, and not of requests.
fn is_azure_credential(key: AzureConfigKey) -> bool {
    matches!(
        key,
        AzureConfigKey::AccessKey
            | AzureConfigKey::SasKey
            | AzureConfigKey::Token
            | AzureConfigKey::ClientId
            | AzureConfigKey::ClientSecret
            | AzureConfigKey::AuthorityId
            | AzureConfigKey::AuthorityHost
            | AzureConfigKey::FederatedTokenFile
    )
}

/// Returns an error if a value cannot be part of a header.
fn check_printable(variables: &Variables) -> Result<(), String> {
    let is_printable = |value: &str| value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match variables.iter().find(|(_, value)| !is_printable(value)) {
        Some((name, _)) => Err(format!("{name} contains characters that no credentials have")),
        None => Ok(()),
    }
}

/// Returns how requests for credentials are repeated.
fn retries() -> RetryConfig {
    RetryConfig {
        max_retries: 2,
        retry_timeout: Duration::from_secs(10),
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(1),
            base: 2.0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(provider: Provider, endpoint: Option<&str>) -> RemoteRoot {
        RemoteRoot {
            provider,
            bucket: "b".to_owned(),
            prefix: String::new(),
            endpoint: endpoint.map(str::to_owned),
            region: None,
            account: Some("acct".to_owned()),
        }
    }

    fn settings(credentials: &str) -> StoreSettings {
        StoreSettings { credentials: credentials.parse().unwrap(), ..StoreSettings::default() }
    }

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        Variables::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    fn kind(root: &RemoteRoot, credentials: &str, pairs: &[(&str, &str)]) -> String {
        match find(root, &settings(credentials), &variables(pairs)) {
            Ok(found) => format!("{:?}", found.source),
            Err(why) => why,
        }
    }

    const KEYS: &[(&str, &str)] = &[("AWS_ACCESS_KEY_ID", "AKIA"), ("AWS_SECRET_ACCESS_KEY", "canary")];

    #[test]
    fn without_variables_requests_are_anonymous() {
        for provider in [Provider::S3, Provider::Google, Provider::Azure, Provider::Http] {
            assert_eq!(kind(&root(provider, None), "auto", &[("HOME", "/nowhere")]), "Anonymous");
        }
        assert_eq!(kind(&root(Provider::S3, None), "auto", KEYS), "S3");
        assert_eq!(kind(&root(Provider::S3, None), "none", KEYS), "Anonymous");
        assert!(kind(&root(Provider::S3, None), "env", &[]).contains("names no credentials"));
    }

    #[test]
    fn credentials_of_the_environment_never_go_to_a_custom_endpoint_unless_the_container_names_them() {
        let custom = root(Provider::S3, Some("https://s3.lab.org"));
        assert_eq!(kind(&custom, "auto", KEYS), "Anonymous");
        assert_eq!(kind(&custom, "env", KEYS), "S3");
        let settings = StoreSettings { endpoint: "https://s3.lab.org".to_owned(), ..settings("auto") };
        let found = find(&root(Provider::S3, None), &settings, &variables(KEYS)).unwrap();
        assert!(matches!(found.source, FoundSource::Anonymous) && found.region.is_none());
    }

    #[test]
    fn incomplete_credentials_are_an_error_and_never_lead_to_the_metadata_service() {
        let url = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
        for (present, missing) in
            [(url, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN")]
        {
            for source in ["auto", "env"] {
                let error = kind(&root(Provider::S3, None), source, &[(present, "http://127.0.0.1:1/x")]);
                assert!(error.contains(missing), "{present}, {source}: {error}");
            }
        }
        let complete = [(url, "http://127.0.0.1:1/x"), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/token")];
        assert_eq!(kind(&root(Provider::S3, None), "auto", &complete), "S3");
        let error = kind(&root(Provider::Azure, None), "auto", &[("AZURE_CLIENT_SECRET", "canary")]);
        assert!(error.contains("AZURE_TENANT_ID") && !error.contains("canary"), "{error}");
        let login = [("AZURE_CLIENT_SECRET", "canary"), ("AZURE_CLIENT_ID", "a"), ("AZURE_TENANT_ID", "b")];
        assert_eq!(kind(&root(Provider::Azure, None), "auto", &login), "Azure");
        // The role of a profile is not assumed with the keys of another profile.
        let client = CredentialClient(HttpClient::new(&HttpClientOptions::default()).unwrap());
        let error = s3_provider(&variables(&[("AWS_ROLE_ARN", "arn")]), None, &client).unwrap_err();
        assert!(error.contains("AWS_WEB_IDENTITY_TOKEN_FILE"), "{error}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs files")]
    fn certificates_are_read_from_regular_files_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("roots");
        let settings = StoreSettings { ca: path.clone(), ..StoreSettings::default() };
        let error = || http_client(&settings, &HttpClientOptions::default()).unwrap_err();
        assert!(error().contains("roots: cannot be read"), "{}", error());
        // A pipe would block its reader.
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        assert!(error().contains("roots: is not a regular file"), "{}", error());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "no certificate").unwrap();
        assert!(error().contains("roots: contains no PEM certificate"), "{}", error());
    }

    #[test]
    fn credentials_of_one_provider_are_not_used_for_another() {
        assert_eq!(kind(&root(Provider::Google, None), "auto", KEYS), "Anonymous");
        assert_eq!(kind(&root(Provider::Http, Some("https://inner")), "auto", KEYS), "Anonymous");
        assert_eq!(kind(&root(Provider::Azure, None), "auto", &[("AZURE_STORAGE_ACCOUNT_KEY", "Y2FuYXJ5")]), "Azure");
    }

    #[test]
    fn credentials_of_one_azure_account_are_not_sent_to_another() {
        let token = ("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=canary");
        let azure = root(Provider::Azure, None);
        for (account, expected) in [("acct", "Azure"), ("other", "Anonymous")] {
            assert_eq!(kind(&azure, "auto", &[token, ("AZURE_STORAGE_ACCOUNT_NAME", account)]), expected);
        }
        assert_eq!(kind(&azure, "auto", &[token]), "Azure");
        assert_eq!(kind(&azure, "env", &[token, ("AZURE_STORAGE_ACCOUNT", "other")]), "Azure", "they are named");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs files")]
    fn requests_to_google_name_the_project_that_pays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("service.json");
        let google = root(Provider::Google, None);
        let project = |text: &str, pairs: &[(&str, &str)]| {
            std::fs::write(&path, text).unwrap();
            let settings = StoreSettings { requester_pays: true, ..settings(&format!("file:{}", path.display())) };
            let variables = variables(pairs);
            Finder { root: &google, settings: &settings, variables: &variables }.paying_project().unwrap()
        };
        let text = "{\"project_id\": \"lab\", \"quota_project_id\": \"bill\"}";
        assert_eq!(project(text, &[]).as_deref(), Some("bill"));
        assert_eq!(project("{\"project_id\": \"lab\"}", &[]).as_deref(), Some("lab"));
        assert_eq!(project(text, &[("GOOGLE_CLOUD_PROJECT", "other")]).as_deref(), Some("other"));
        assert_eq!(project("{}", &[]), None);
        let anonymous = || FoundSource::Anonymous;
        let error = anonymous().signer(Provider::Google, "", true, None, None).unwrap_err();
        assert!(error.contains("needs credentials"), "{error}");
        assert!(anonymous().signer(Provider::Http, "", true, None, None).is_ok());
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "the test needs files")]
    async fn a_file_is_read_again_when_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        std::fs::write(&path, "AWS_ACCESS_KEY_ID=first\nAWS_SECRET_ACCESS_KEY=canary\n").unwrap();
        let found =
            find(&root(Provider::S3, None), &settings(&format!("file:{}", path.display())), &Variables::default());
        let FoundSource::S3(provider) = found.unwrap().source else { panic!("the file is for S3") };
        assert_eq!(provider.get_credential().await.unwrap().key_id, "first");
        std::fs::write(&path, "AWS_ACCESS_KEY_ID=second\nAWS_SECRET_ACCESS_KEY=canary\n").unwrap();
        while provider.get_credential().await.unwrap().key_id != "second" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs files")]
    fn an_error_about_a_file_does_not_repeat_its_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        for (provider, text) in [
            (Provider::S3, "canary"),
            (Provider::S3, "AWS_SECRET_ACCESS_KEY=canary"),
            (Provider::Google, "{\"type\": \"service_account\", \"private_key\": \"canary\"}"),
            (Provider::Google, "canary"),
            (Provider::Azure, "AZURE_STORAGE_ACCOUNT_KEY=canary!"),
            (Provider::Http, "canary\u{1}"),
            (Provider::Http, " \n"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = kind(&root(provider, None), &format!("file:{}", path.display()), &[]);
            assert!(error.contains("keys: ") && !error.contains("canary"), "{provider:?} {text}: {error}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs files")]
    fn a_profile_gives_keys_and_region() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials");
        std::fs::write(&path, "[lab]\naws_access_key_id=A\naws_secret_access_key=B\nregion=eu-west-3\n").unwrap();
        let variables = variables(&[("AWS_SHARED_CREDENTIALS_FILE", path.to_str().unwrap())]);
        let found = find(&root(Provider::S3, None), &settings("profile:lab"), &variables).unwrap();
        assert_eq!((format!("{:?}", found.source).as_str(), found.region.as_deref()), ("S3", Some("eu-west-3")));
        let error = find(&root(Provider::S3, None), &settings("profile:x"), &variables).unwrap_err();
        assert!(error.contains("no profile \"x\""), "{error}");
    }
}
