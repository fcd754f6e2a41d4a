//! Access rules, and decisions by them. The decisions depend on neither requests nor files.
//!
//! A path consists of the container's name, if it has one, and the key within the container. Its segments are decoded
//! and joined by slashes; the root is `""`.

use std::collections::BTreeMap;
use std::ops::Bound;

use percent_encoding::percent_decode_str;

use super::caller::Caller;

/// A principal to whom a rule grants access.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Principal {
    /// Any caller with a valid token.
    AnyCaller,
    /// A caller, by name.
    Name { is_jwt: bool, name: String },
    /// The members of a group.
    Group { is_jwt: bool, name: String },
}

/// The callers to whom a rule grants read access.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReadGrant {
    Public,
    /// These principals. If the list is empty, only tokens whose `allowed_paths` include the path have access.
    Principals(Vec<Principal>),
    /// No caller: the rule says `nobody`.
    Nobody,
}

/// Access rules. Among the rules whose path is a prefix of the requested path, the longest decides.
#[derive(Debug)]
pub struct Policy {
    /// Rules by path. There is always a rule for the root.
    rules: BTreeMap<String, ReadGrant>,
    metrics: ReadGrant,
}

/// Result of an access check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// Everyone may read the path.
    Public,
    /// The caller may read the path, but not everyone may.
    Granted,
    /// The caller may not read the path.
    Refused,
}

impl Policy {
    /// Parses rules such as `/em/secret = alice @lab`. `is_public` tells whether everyone may read paths that no rule
    /// covers. `metrics` names the callers that may read the server's metrics, like the right side of a rule.
    ///
    /// # Errors
    /// Returns a message with the rule and the reason.
    pub fn parse<T: AsRef<str>>(is_public: bool, rules: &[T], metrics: &str) -> Result<Self, String> {
        let mut parsed = BTreeMap::new();
        for text in rules.iter().map(AsRef::as_ref) {
            let rule_error = |why: String| format!("access.rules: {text:?}: {why}");
            let (path, names) = text.split_once(" = ").ok_or_else(|| {
                rule_error("write \"/path = NAME @GROUP ...\", \"/path = public\" or ... nobody".into())
            })?;
            let path = parse_path(path.trim()).map_err(rule_error)?;
            let grant = parse_grant(names).map_err(rule_error)?;
            if parsed.insert(path, grant).is_some() {
                return Err(rule_error("there is already a rule for this path".into()));
            }
        }
        let default = if is_public { ReadGrant::Public } else { ReadGrant::Principals(Vec::new()) };
        parsed.entry(String::new()).or_insert(default);
        let metrics = parse_grant(metrics).map_err(|why| format!("access.metrics: {why}"))?;
        Ok(Self { rules: parsed, metrics })
    }

    /// Decides whether `caller` may read `path`. The path need not exist.
    pub fn decide(&self, path: &str, caller: Option<&Caller>) -> Decision {
        // Looks up each prefix of the path, so that the time does not depend on the number of rules. A listing checks
        // every entry.
        let mut next_path = Some(path);
        while let Some(prefix) = next_path {
            if let Some((rule_path, grant)) = self.rules.get_key_value(prefix) {
                return grant.decide_path(rule_path, path, caller);
            }
            next_path = (!prefix.is_empty()).then(|| prefix.rsplit_once('/').map_or("", |(parent, _)| parent));
        }
        Decision::Refused
    }

    /// Returns the rules for `path` and for paths below it, each with its path.
    fn rules_below(&self, path: &str) -> impl Iterator<Item = (&String, &ReadGrant)> {
        // All paths that begin with "a/" sort between "a/" and "a0".
        let range = if path.is_empty() {
            (Bound::Unbounded, Bound::Unbounded)
        } else {
            (Bound::Included(format!("{path}/")), Bound::Excluded(format!("{path}0")))
        };
        let inner = self.rules.range::<String, _>(range);
        let own_rule = self.rules.get_key_value(path).filter(|_| !path.is_empty());
        inner.chain(own_rule)
    }

    /// Decides whether `caller` may read `path` and all paths below it.
    pub fn decide_below(&self, path: &str, caller: Option<&Caller>) -> Decision {
        let decisions =
            self.rules_below(path).map(|(rule_path, grant)| grant.decide_path(rule_path, rule_path, caller));
        decisions.fold(self.decide(path, caller), Decision::max)
    }

    /// Returns true if a rule for `path` or a path below it grants public access.
    pub fn is_public_below(&self, path: &str) -> bool {
        self.rules_below(path).any(|(_, grant)| *grant == ReadGrant::Public)
    }

    /// Returns true if everyone may read every path and the metrics.
    pub fn is_public_everywhere(&self) -> bool {
        self.rules.values().chain([&self.metrics]).all(|grant| *grant == ReadGrant::Public)
    }

    /// Returns true if a rule grants access to callers with a token.
    pub fn names_callers(&self) -> bool {
        self.rules.values().any(|grant| matches!(grant, ReadGrant::Principals(principals) if !principals.is_empty()))
    }

    /// Decides whether `caller` may read the metrics.
    pub fn decide_metrics(&self, caller: Option<&Caller>) -> Decision {
        self.metrics.decide(caller)
    }
}

impl ReadGrant {
    /// Decides whether `caller` may read `path`, if the rule for `rule_path` makes this grant.
    fn decide_path(&self, rule_path: &str, path: &str, caller: Option<&Caller>) -> Decision {
        let rule_decision = self.decide(caller);
        // A token with `allowed_paths` can read only these and public paths. If a rule has a longer path than the
        // allowed path, the rule must grant access as well.
        match caller.and_then(|caller| caller.allowed_paths.as_ref()) {
            Some(allowed_paths) if rule_decision != Decision::Public && *self != Self::Nobody => {
                let longest = allowed_paths.iter().filter(|allowed| is_within(path, allowed)).map(String::len).max();
                let is_granted =
                    longest.is_some_and(|bytes| bytes >= rule_path.len() || rule_decision == Decision::Granted);
                if is_granted { Decision::Granted } else { Decision::Refused }
            }
            _ => rule_decision,
        }
    }

    fn decide(&self, caller: Option<&Caller>) -> Decision {
        match (self, caller) {
            (Self::Public, _) => Decision::Public,
            (Self::Principals(principals), Some(caller)) if principals.iter().any(|who| who.matches(caller)) => {
                Decision::Granted
            }
            (Self::Principals(_) | Self::Nobody, _) => Decision::Refused,
        }
    }
}

impl Principal {
    fn matches(&self, caller: &Caller) -> bool {
        match self {
            // Callers whose token is restricted to some paths are not included.
            Self::AnyCaller => caller.allowed_paths.is_none(),
            Self::Name { is_jwt, name } => *is_jwt == caller.is_jwt && *name == caller.name,
            Self::Group { is_jwt, name } => *is_jwt == caller.is_jwt && caller.groups.contains(name),
        }
    }
}

/// Returns true if `path` is `prefix` or below it.
fn is_within(path: &str, prefix: &str) -> bool {
    prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Parses a path of a rule or token. It begins with `/`, like the path of a URL, and its segments may be
/// percent-encoded.
pub(super) fn parse_path(text: &str) -> Result<String, String> {
    let inner = text.strip_prefix('/').ok_or_else(|| format!("the path {text:?} does not begin with a slash"))?;
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if inner.is_empty() {
        return Ok(String::new());
    }
    let mut segments = Vec::new();
    for raw in inner.split('/') {
        let segment = percent_decode_str(raw).decode_utf8().map_err(|_not| format!("{raw:?} is not UTF-8"))?;
        let is_invalid = |c: char| c.is_control() || "/\\".contains(c);
        if segment.is_empty() || segment == "." || segment == ".." || segment.contains(is_invalid) {
            return Err(format!("{raw:?} is not a valid path segment"));
        }
        segments.push(segment);
    }
    Ok(segments.join("/"))
}

/// Parses `public`, `nobody`, or a list of names: `alice`, `@group`, `jwt:subject`, `jwt:@group`, and `*` for any
/// caller with a valid token.
fn parse_grant(text: &str) -> Result<ReadGrant, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        [] => return Err("it contains no name: write \"nobody\" to allow no caller".to_owned()),
        ["public"] => return Ok(ReadGrant::Public),
        ["nobody"] => return Ok(ReadGrant::Nobody),
        _ => {}
    }
    let parse_principal = |word: &&str| {
        let (is_jwt, unprefixed) = word.strip_prefix("jwt:").map_or((false, *word), |rest| (true, rest));
        match (unprefixed, unprefixed.strip_prefix('@')) {
            ("public" | "nobody", _) if !is_jwt => Err(format!("{word:?} cannot be combined with names")),
            ("", _) | (_, Some("")) => Err(format!("{word:?} contains no name")),
            ("*", _) if !is_jwt => Ok(Principal::AnyCaller),
            ("*", _) => Err(format!("{word:?} would be a caller named *: write * for any caller with a valid token")),
            _ if word.ends_with(',') => Err(format!("{word:?} ends in a comma: separate names by spaces")),
            (_, Some(name)) => Ok(Principal::Group { is_jwt, name: name.to_owned() }),
            (name, None) => Ok(Principal::Name { is_jwt, name: name.to_owned() }),
        }
    };
    words.iter().map(parse_principal).collect::<Result<_, _>>().map(ReadGrant::Principals)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Decision::{Granted, Public, Refused};
    use super::*;

    fn caller(name: &str, groups: &[&str], allowed_paths: Option<&[&str]>) -> Caller {
        let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        Caller { is_jwt: false, name: name.into(), groups: owned(groups), allowed_paths: allowed_paths.map(owned) }
    }

    fn policy(is_public: bool, rules: &[&str]) -> Policy {
        Policy::parse(is_public, rules, "public").unwrap()
    }

    #[test]
    fn the_longest_path_decides_by_whole_segments() {
        let policy = policy(true, &["/a = alice", "/a/b = public", "/a/b/c = nobody", "/d/ = @lab"]);
        let alice = caller("alice", &[], None);
        let bob = caller("bob", &["lab"], None);
        for (path, for_anyone, for_alice, for_bob) in [
            ("", Public, Public, Public),
            ("ab", Public, Public, Public),
            ("a", Refused, Granted, Refused),
            ("a/x", Refused, Granted, Refused),
            ("a/b", Public, Public, Public),
            ("a/bc", Refused, Granted, Refused),
            ("a/b/c", Refused, Refused, Refused),
            ("a/b/c/0/0", Refused, Refused, Refused),
            ("d/0", Refused, Refused, Granted),
        ] {
            assert_eq!(policy.decide(path, None), for_anyone, "{path}");
            assert_eq!(policy.decide(path, Some(&alice)), for_alice, "{path}");
            assert_eq!(policy.decide(path, Some(&bob)), for_bob, "{path}");
        }
    }

    #[test]
    fn paths_without_a_rule_are_public_or_private_by_default() {
        assert_eq!(policy(true, &[]).decide("a", None), Public);
        assert_eq!(policy(false, &[]).decide("a", None), Refused);
        assert_eq!(policy(false, &[]).decide("a", Some(&caller("a", &[], None))), Refused);
        assert_eq!(policy(false, &["/ = *"]).decide("a", Some(&caller("a", &[], None))), Granted);
        assert_eq!(policy(false, &["/ = *"]).decide("a", None), Refused);
    }

    #[test]
    fn a_jwt_name_matches_neither_a_name_of_the_token_file_nor_a_group() {
        let policy = policy(false, &["/a = alice", "/b = jwt:alice", "/c = @alice", "/d = jwt:@alice"]);
        let file_caller = caller("alice", &[], None);
        let jwt_caller = Caller { is_jwt: true, ..file_caller.clone() };
        let granted = |caller: &Caller| ["a", "b", "c", "d"].map(|path| policy.decide(path, Some(caller)) == Granted);
        assert_eq!(granted(&file_caller), [true, false, false, false]);
        assert_eq!(granted(&jwt_caller), [false, true, false, false]);
        assert_eq!(granted(&caller("x", &["alice"], None)), [false, false, true, false]);
    }

    #[test]
    fn a_restricted_token_opens_its_paths_and_nothing_else() {
        let policy = policy(false, &["/a/secret = alice", "/any = *", "/open = public", "/bobs = bob"]);
        let bob = caller("bob", &[], Some(&["a", "x/y"]));
        for (path, expected) in [
            ("a", Granted),
            ("a/s0/0", Granted),
            ("a/secret", Refused),
            ("ab", Refused),
            ("x", Refused),
            ("x/y/z", Granted),
            ("any", Refused),
            ("bobs", Refused),
            ("open/z", Public),
        ] {
            assert_eq!(policy.decide(path, Some(&bob)), expected, "{path}");
        }
        let policy = Policy::parse(false, &["/vault = nobody"], "public").unwrap();
        for read in ["", "vault", "vault/x"] {
            assert_eq!(policy.decide("vault/x", Some(&caller("bob", &[], Some(&[read])))), Refused, "{read}");
        }
        let policy = Policy::parse(false, &["/a/secret = alice"], "public").unwrap();
        let alice = caller("alice", &[], Some(&["a"]));
        assert_eq!(policy.decide("a/secret/s0", Some(&alice)), Granted);
    }

    #[test]
    fn a_subtree_is_as_accessible_as_its_most_restricted_part() {
        let policy = policy(true, &["/a/b/0 = alice", "/c = alice", "/c/d = public"]);
        let alice = caller("alice", &[], None);
        assert_eq!(policy.decide_below("", None), Refused);
        assert_eq!(policy.decide_below("a/b", None), Refused);
        assert_eq!(policy.decide_below("a/b", Some(&alice)), Granted);
        assert_eq!(policy.decide_below("a/c", None), Public);
        assert_eq!(policy.decide_below("c/d", None), Public);
        assert_eq!(policy.decide_below("c", Some(&alice)), Granted);
        assert!(policy.is_public_below("c") && policy.is_public_below("c/d") && !policy.is_public_below("a"));
    }

    #[test]
    fn errors_quote_the_faulty_rule() {
        for bad in [
            "a = b",
            "/a",
            "/a =",
            "/a = ",
            "/a=b",
            "/a//b = x",
            "/../a = x",
            "/%2e%2e = x",
            "/a%2fb = x",
            "/%ff = x",
            "/a = public bob",
            "/a = @",
            "/a = jwt:",
            "/a = jwt:*",
            "/a = bob, alice",
            "/a = @lab,",
        ] {
            let error = Policy::parse(true, &[bad], "public").unwrap_err();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
        assert!(Policy::parse(true, &["/a = x", "/a/ = y"], "public").is_err());
        assert!(Policy::parse::<&str>(true, &[], "").is_err());
        assert_eq!(policy(true, &["/run=7/a%20b = x"]).decide("run=7/a b/0", None), Refused);
    }

    proptest! {
        /// Compares the policy with a slow model, which looks for a rule at the path and then at each of its parents.
        #[test]
        fn the_nearest_rule_above_decides(
            rules in proptest::collection::btree_map("[ab]{1,2}(/[ab]{1,2}){0,2}", any::<bool>(), 0..6),
            path in "[ab]{1,2}(/[ab]{1,2}){0,4}",
            is_public: bool,
        ) {
            let texts: Vec<String> =
                rules.iter().map(|(path, open)| format!("/{path} = {}", if *open { "public" } else { "x" })).collect();
            let policy = Policy::parse(is_public, &texts, "public").unwrap();
            let mut segments: Vec<&str> = path.split('/').collect();
            let mut expected = is_public;
            while !segments.is_empty() {
                if let Some(open) = rules.get(&segments.join("/")) {
                    expected = *open;
                    break;
                }
                segments.pop();
            }
            prop_assert_eq!(policy.decide(&path, None) == Public, expected);
        }
    }
}
