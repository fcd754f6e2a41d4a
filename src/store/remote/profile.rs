//! Profiles in the files of the AWS command line.

use std::collections::BTreeMap;

/// Keys of profiles whose credentials come from a source that is not supported.
const UNSUPPORTED: [&str; 4] = ["credential_process", "sso_session", "sso_start_url", "source_profile"];

/// Returns the settings of the profile `name` from the texts of `~/.aws/credentials` and `~/.aws/config`. Those of the
/// first have precedence.
///
/// # Errors
/// Returns a message if there is no such profile, or if it has no keys. It contains no secret.
pub(super) fn find_profile(name: &str, credentials: &str, config: &str) -> Result<BTreeMap<String, String>, String> {
    let of_config = section(config, &format!("profile {name}")).or_else(|| section(config, name));
    let of_credentials = section(credentials, name);
    if of_config.is_none() && of_credentials.is_none() {
        return Err(format!("there is no profile {name:?}"));
    }
    let mut profile = of_config.unwrap_or_default();
    profile.extend(of_credentials.unwrap_or_default());
    let has_keys = profile.contains_key("aws_access_key_id") && profile.contains_key("aws_secret_access_key");
    let has_web_identity = profile.contains_key("web_identity_token_file") && profile.contains_key("role_arn");
    if has_keys || has_web_identity {
        return Ok(profile);
    }
    Err(match UNSUPPORTED.iter().find(|key| profile.contains_key(**key)) {
        Some(key) => format!(
            "the profile {name:?} uses {key}, which is not supported; write its credentials to a file by \
             `aws configure export-credentials --profile {name} --format env-no-export`, and name the file by file:PATH"
        ),
        None => format!("the profile {name:?} has no aws_access_key_id and aws_secret_access_key"),
    })
}

/// Returns the keys and values of the section `name`, or `None` if there is no such section.
fn section(text: &str, name: &str) -> Option<BTreeMap<String, String>> {
    let mut found = None;
    let mut is_inside = false;
    for line in text.lines() {
        // Lines that begin with a space belong to a nested setting.
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            is_inside = header.split_whitespace().eq(name.split_whitespace());
            if is_inside {
                found.get_or_insert_with(BTreeMap::new);
            }
        } else if is_inside
            && !is_nested
            && !line.starts_with(['#', ';'])
            && let (Some(settings), Some((key, value))) = (found.as_mut(), line.split_once('='))
        {
            settings.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "[default]\naws_access_key_id = A\naws_secret_access_key=B\n\n# lab\n[lab]\n\
                               aws_access_key_id=C\naws_secret_access_key=D\naws_session_token = E=\n";
    const CONFIG: &str = "[default]\nregion=us-east-1\n[profile lab]\nregion = eu-west-1\ns3 =\n  region = x\n\
                          [profile sso]\nsso_start_url = https://x\n";

    #[test]
    fn a_profile_is_read_from_both_files() {
        let profile = find_profile("lab", CREDENTIALS, CONFIG).unwrap();
        let get = |key: &str| profile.get(key).map(String::as_str);
        assert_eq!(get("aws_access_key_id"), Some("C"));
        assert_eq!(get("aws_session_token"), Some("E="));
        assert_eq!(get("region"), Some("eu-west-1"));
        assert_eq!(find_profile("default", CREDENTIALS, CONFIG).unwrap()["region"], "us-east-1");
    }

    #[test]
    fn a_profile_without_keys_is_an_error_that_says_what_to_do() {
        assert!(find_profile("x", CREDENTIALS, CONFIG).unwrap_err().contains("no profile \"x\""));
        assert!(find_profile("sso", CREDENTIALS, CONFIG).unwrap_err().contains("export-credentials"));
        assert!(find_profile("a", "", "[profile a]\nregion=x").unwrap_err().contains("aws_access_key_id"));
    }
}
