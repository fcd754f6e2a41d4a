//! Text from clients, prepared for problems and log lines: shortened, and without anything that looks like a token.

use percent_encoding::percent_decode_str;

/// Prefix of the server's own tokens.
const TOKEN_PREFIX: &str = "n5t_";

/// Prefix of JWTs: the beginning of a JSON object in Base64.
const JWT_PREFIX: &str = "eyJ";

/// Prefixes of secrets: the server's own tokens and JWTs.
const SECRET_PREFIXES: [&str; 2] = [TOKEN_PREFIX, JWT_PREFIX];

/// Smallest length of a secret; shorter words are not redacted.
const MIN_SECRET_BYTES: usize = 32;

/// Maximum number of characters of a client's text that responses and log lines repeat.
const MAX_EXCERPT_CHARS: usize = 200;

/// Maximum number of characters of a parameter's value or name that a problem about the parameter repeats.
const MAX_QUOTED_CHARS: usize = 40;

/// Redacts everything in a text that looks like one of the server's tokens or a JWT.
pub(crate) fn redact(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let is_token_char = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let find_prefix = |prefix: &str, from: usize| text.get(from..)?.find(prefix).map(|offset| from + offset);
    // The search for each prefix goes through the text once, so that the time is linear in the length of the text.
    let mut positions = SECRET_PREFIXES.map(|prefix| (prefix, find_prefix(prefix, 0)));
    let mut copied_bytes = 0;
    while let Some(start) = positions.iter().filter_map(|(_, position)| *position).min() {
        let rest = text.get(start..).unwrap_or_default();
        let end = rest.find(|c| !is_token_char(c)).unwrap_or(rest.len());
        let word = rest.get(..end).unwrap_or_default();
        let is_secret =
            word.len() >= MIN_SECRET_BYTES && (word.starts_with(TOKEN_PREFIX) || word.matches('.').count() == 2);
        redacted.push_str(text.get(copied_bytes..start).unwrap_or_default());
        redacted.push_str(if is_secret { "..." } else { word });
        copied_bytes = start + end;
        for (prefix, position) in &mut positions {
            if position.is_some_and(|start| start < copied_bytes) {
                *position = find_prefix(prefix, copied_bytes);
            }
        }
    }
    redacted + text.get(copied_bytes..).unwrap_or_default()
}

/// Returns true if a text begins like one of the server's tokens, or is like a JWT.
pub(crate) fn begins_like_token(text: &str) -> bool {
    text.starts_with(TOKEN_PREFIX) || (text.starts_with(JWT_PREFIX) && text.matches('.').count() == 2)
}

/// Returns true if a path may contain something that [`redact`] removes.
pub(crate) fn may_contain_secret(path: &str) -> bool {
    SECRET_PREFIXES.iter().any(|prefix| path.contains(prefix))
}

/// Returns the beginning of a text from a client, with everything that looks like a token redacted. Even a path of a
/// public container may contain a token: for another server, or for this one before its configuration changed.
pub(crate) fn redacted_excerpt(text: &str) -> String {
    let redacted = may_contain_secret(text).then(|| redact(text));
    let text = redacted.as_deref().unwrap_or(text);
    match text.char_indices().nth(MAX_EXCERPT_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Returns the query string with tokens redacted, for logs.
pub(crate) fn redact_query(query: &str) -> String {
    let is_token = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default();
        let name = percent_decode_str(name).decode_utf8_lossy().to_ascii_lowercase();
        name == "token" || name == "access_token"
    };
    let pairs = query.split('&').map(|pair| if is_token(pair) { "token=..." } else { pair });
    pairs.collect::<Vec<_>>().join("&")
}

/// Returns the beginning of a client's text, to repeat it in an error.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars().take(MAX_QUOTED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_never_reach_the_log() {
        assert_eq!(redact_query("start=0&token=secret&x=1"), "start=0&token=...&x=1");
        assert_eq!(redact_query("%74oken=secret"), "token=...");
    }
}
