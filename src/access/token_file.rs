//! The token file: its format, authentication by its tokens, and issuing of new tokens.
//!
//! The file contains the SHA-256 of each token, but not the token itself. A fast hash is enough, unlike for passwords:
//! a token has 256 random bits, so that no attacker can try all tokens.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use super::caller::{Caller, TokenError};
use super::policy::parse_path;

/// Prefix of every token. It lets people and scanners recognise a leaked token.
pub(super) const PREFIX: &str = "n5t_";

/// Number of random bytes of a token.
const RANDOM_BYTES: usize = 32;

/// SHA-256 of a token. It does not implement `PartialEq`, because digests must be compared in constant time.
#[derive(Clone, Copy)]
struct TokenDigest([u8; 32]);

impl TokenDigest {
    fn of(token: &str) -> Self {
        let mut bytes = [0; 32];
        for (byte, digest_byte) in bytes.iter_mut().zip(digest(&SHA256, token.as_bytes()).as_ref()) {
            *byte = *digest_byte;
        }
        Self(bytes)
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        (digits.len() == 64 && digits.iter().all(u8::is_ascii_hexdigit)).then_some(Self(bytes))
    }

    fn ct_eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Returns the first eight bytes, which are the search key of an entry. The time of a search reveals at most these
    /// bytes, and only for a token that the attacker already knows.
    fn lookup_prefix(&self) -> u64 {
        self.0.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
    }
}

impl std::fmt::Display for TokenDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The tokens of a token file.
pub(super) struct TokenFile {
    /// Digest and line of each token, sorted by digest, and thus by [`TokenDigest::lookup_prefix`]. The line is parsed
    /// again whenever the token is used, because parsed tokens would take much more memory than the text. A file of 4
    /// MiB can have 50,000 tokens or two million groups.
    entries: Vec<(TokenDigest, Box<str>)>,
    /// Digest to compare with if no entry has the prefix, so that the search takes the same time.
    dummy: TokenDigest,
}

impl std::fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenFile").field("tokens", &self.entries.len()).finish_non_exhaustive()
    }
}

impl TokenFile {
    /// Parses a token file. Each line has the form `NAME SHA256`, followed by any of `expires=2027-01-31T00:00:00Z`,
    /// `groups=a,b` and `read=/path,/path`. Lines that begin with `#` are comments.
    ///
    /// # Errors
    /// Returns the line number and the reason. The text of the line is left out, because someone may have put a token
    /// there by mistake.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        // A line that is cut off may be valid, but lack the restrictions at its end.
        if !text.ends_with('\n') {
            return Err("the last line does not end with a newline: the file is empty or cut off".to_owned());
        }
        let mut numbered = Vec::new();
        for (number, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let digest = TokenLine::parse(line).map_err(|why| format!("line {number}: {why}"))?.digest;
            numbered.push((number, (digest, Box::from(line))));
        }
        numbered.sort_by_key(|(_, (digest, _))| digest.0);
        for pair in numbered.windows(2) {
            if let [(_, (first, _)), (number, (second, _))] = pair
                && first.ct_eq(second)
            {
                return Err(format!("line {number}: the same token is listed twice"));
            }
        }
        let entries = numbered.into_iter().map(|(_, entry)| entry).collect();
        Ok(Self { entries, dummy: TokenDigest([0; 32]) })
    }

    pub(super) fn token_count(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if a token has a list of paths that it can read.
    pub(super) fn has_limited_paths(&self) -> bool {
        self.entries.iter().any(|(_, line)| line.split_whitespace().any(|word| word.starts_with("read=")))
    }

    /// Verifies a token and returns its caller.
    pub(super) fn authenticate(&self, token: &str, now: SystemTime) -> Result<Caller, TokenError> {
        let presented = TokenDigest::of(token);
        let bucket = presented.lookup_prefix();
        let first = self.entries.partition_point(|(digest, _)| digest.lookup_prefix() < bucket);
        let mut candidates =
            self.entries[first..].iter().take_while(|(digest, _)| digest.lookup_prefix() == bucket).peekable();
        if candidates.peek().is_none() {
            let _ = self.dummy.ct_eq(&presented);
        }
        let entry = candidates.find(|(digest, _)| digest.ct_eq(&presented));
        let parsed = entry.and_then(|(_, line)| TokenLine::parse(line).ok()).ok_or(TokenError::Unknown)?;
        if parsed.expires.is_some_and(|end| end <= now) {
            return Err(TokenError::Expired);
        }
        Ok(parsed.caller)
    }
}

/// A parsed line of the token file.
struct TokenLine {
    digest: TokenDigest,
    /// `None` if the token never expires.
    expires: Option<SystemTime>,
    caller: Caller,
}

impl TokenLine {
    fn parse(line: &str) -> Result<Self, String> {
        if line.contains(PREFIX) {
            return Err(
                "this is a token: the file must contain its hash, which `n5-server token` prints with the token"
                    .to_owned(),
            );
        }
        let mut words = line.split_whitespace();
        let name = words
            .next()
            .filter(|name| is_valid_name(name))
            .ok_or("the name must consist of letters, digits and - . _")?;
        let digest =
            words.next().and_then(TokenDigest::parse).ok_or("the name is followed by no SHA-256 in hexadecimal")?;
        let mut expires = None;
        let mut groups = Vec::new();
        let mut allowed_paths = None;
        for word in words {
            match word.split_once('=') {
                Some(("expires", time)) if expires.is_none() => expires = Some(parse_time(time)?),
                Some(("groups", names)) if groups.is_empty() => groups = parse_groups(names)?,
                Some(("read", paths)) if allowed_paths.is_none() => allowed_paths = Some(parse_paths(paths)?),
                _ => {
                    return Err(
                        "the hash may be followed by expires=, groups= and read=, each once, and nothing else".into()
                    );
                }
            }
        }
        let caller = Caller { is_jwt: false, name: name.to_owned(), groups, allowed_paths };
        Ok(Self { digest, expires, caller })
    }
}

fn is_valid_name(name: &str) -> bool {
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    name.len() <= 64 && name.bytes().all(is_name_byte) && !["public", "nobody"].contains(&name)
}

fn parse_groups(names: &str) -> Result<Vec<String>, String> {
    let parse_name = |name: &str| if is_valid_name(name) && !name.is_empty() { Ok(name.to_owned()) } else { Err("") };
    let to_message = |_| "groups= is not a list of names such as a,b".to_owned();
    names.split(',').map(parse_name).collect::<Result<_, _>>().map_err(to_message)
}

fn parse_paths(paths: &str) -> Result<Vec<String>, String> {
    paths.split(',').map(parse_path).collect()
}

fn parse_time(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339(text).map_err(|_not| "expires= is not a time such as 2027-01-31T00:00:00Z".to_owned())
}

/// A newly issued token.
pub struct IssuedToken {
    /// The token, which is stored nowhere else.
    pub token: String,
    /// The token's line for the token file.
    pub line: String,
}

impl std::fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedToken").field("line", &self.line).finish_non_exhaustive()
    }
}

/// Issues a token of 256 random bits. `expires` is a duration from `now` such as `90d`, or a time such as
/// `2027-01-31T00:00:00Z`.
///
/// # Errors
/// Returns a message if a name, time, group or path is not valid in the token file, or if the system has no random
/// numbers.
pub fn issue(
    name: &str,
    expires: Option<&str>,
    groups: &[String],
    read_paths: &[String],
    now: SystemTime,
) -> Result<IssuedToken, String> {
    let mut random = [0; RANDOM_BYTES];
    SystemRandom::new().fill(&mut random).map_err(|_none| "the system provides no random numbers".to_owned())?;
    let token = format!("{PREFIX}{}", TokenDigest(random));
    let mut line = format!("{name} {}", TokenDigest::of(&token));
    // Writing to a `String` cannot fail.
    if let Some(text) = expires {
        let end = match humantime::parse_duration(text) {
            Ok(duration) => now.checked_add(duration).ok_or("the expiry is too far in the future")?,
            Err(_no_duration) => parse_time(text).map_err(|_no_time| {
                format!("{text:?} is neither a duration such as 90d nor a time such as 2027-01-31T00:00:00Z")
            })?,
        };
        if end <= now {
            return Err(format!("{text:?} is already in the past"));
        }
        // The expiry is rounded up to whole seconds.
        let end = end.checked_add(Duration::from_nanos(999_999_999)).ok_or("the expiry is too far in the future")?;
        let _ = write!(line, " expires={}", humantime::format_rfc3339_seconds(end));
    }
    for (key, values) in [("groups", groups), ("read", read_paths)] {
        if !values.is_empty() {
            let _ = write!(line, " {key}={}", values.join(","));
        }
    }
    TokenFile::parse(&format!("{line}\n")).map_err(|why| why.replace("line 1: ", ""))?;
    Ok(IssuedToken { token, line })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        parse_time("2026-06-01T00:00:00Z").unwrap()
    }

    fn issue_for(name: &str, expires: Option<&str>) -> IssuedToken {
        issue(name, expires, &["lab".into()], &["/em/x".into()], now()).unwrap()
    }

    #[test]
    fn an_issued_token_matches_its_own_line_only() {
        let (a, b) = (issue_for("a", None), issue_for("b", Some("1d")));
        let tokens = TokenFile::parse(&format!("# people\n\n{}\n  {}\n", a.line, b.line)).unwrap();
        let caller = tokens.authenticate(&a.token, now()).unwrap();
        assert_eq!((caller.to_string().as_str(), caller.groups.as_slice()), ("a", &["lab".to_owned()][..]));
        assert_eq!(caller.allowed_paths.as_deref(), Some(&["em/x".to_owned()][..]));
        assert_eq!(tokens.authenticate(&b.token, now()).unwrap().name, "b");
        for wrong in ["", "a", &a.token[1..], &format!("{}0", a.token), &a.token.to_uppercase(), &a.line] {
            assert_eq!(tokens.authenticate(wrong, now()), Err(TokenError::Unknown), "{wrong}");
        }
        assert!(!format!("{a:?}{tokens:?}").contains(&a.token));
    }

    #[test]
    fn tokens_are_long_and_unique() {
        let tokens: std::collections::BTreeSet<String> = (0..100).map(|_| issue_for("a", None).token).collect();
        assert_eq!(tokens.len(), 100);
        assert!(tokens.iter().all(|token| token.len() == 68 && token.starts_with("n5t_")));
    }

    #[test]
    fn a_truncated_file_is_an_error() {
        let line = format!("# people\n{} expires=2027-01-01T00:00:00Z\n", issue_for("a", None).line);
        for end in (0..line.len()).filter(|end| !line[..*end].ends_with('\n')) {
            assert!(TokenFile::parse(&line[..end]).unwrap_err().contains("cut off"), "{end}");
        }
        assert!(TokenFile::parse(&line).is_ok());
    }

    #[test]
    fn a_token_expires_at_its_exact_second() {
        let token = issue_for("a", Some("2026-06-01T00:01:00Z"));
        let tokens = TokenFile::parse(&format!("{}\n", token.line)).unwrap();
        let authenticate_after = |seconds| tokens.authenticate(&token.token, now() + Duration::from_secs(seconds));
        assert!(authenticate_after(59).is_ok());
        assert_eq!(authenticate_after(60), Err(TokenError::Expired));
        assert!(issue("a", Some("2026-05-01T00:00:00Z"), &[], &[], now()).is_err());
        assert!(issue("a", Some("0s"), &[], &[], now()).is_err());
    }

    #[test]
    fn an_invalid_line_is_reported_by_number_and_never_quoted() {
        let good = issue_for("a", None).line;
        let hash = "0".repeat(64);
        for (bad, word) in [
            (issue_for("a", None).token, "is a token"),
            ("alice".to_owned(), "no SHA-256"),
            (format!("alice {}", &hash[1..]), "no SHA-256"),
            (format!("alice +{}", &hash[1..]), "no SHA-256"),
            (format!("al@ce {hash}"), "letters"),
            (format!("public {hash}"), "letters"),
            (format!("a {hash} expires=tomorrow"), "expires="),
            (format!("a {hash} reads=/x"), "nothing else"),
            (format!("a {hash} groups=a groups=b"), "each once"),
            (format!("a {hash} read=x"), "slash"),
            (good.clone(), "twice"),
        ] {
            let error = TokenFile::parse(&format!("{good}\n{bad}\n")).unwrap_err();
            assert!(error.starts_with("line 2: ") && error.contains(word), "{error}");
            assert!(!error.contains(&bad), "{error}");
        }
    }

    #[test]
    fn issue_rejects_names_and_paths_that_are_invalid_in_the_file() {
        for (name, group, path) in [("a b", "g", "/x"), ("", "g", "/x"), ("a", "g,h i", "/x"), ("a", "g", "x")] {
            assert!(issue(name, None, &[group.into()], &[path.into()], now()).is_err(), "{name} {group} {path}");
        }
    }
}
