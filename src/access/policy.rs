//! Rules: which paths are whose. Nothing here knows requests or files.
//!
//! A path is that of a container as it is addressed: the container's name, if it has one, and the key, decoded, segments
//! joined by slashes, `""` for the root.

use std::collections::BTreeMap;
use std::ops::Bound;

use percent_encoding::percent_decode_str;

use super::caller::Caller;

/// Whom a rule lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    /// Whoever has a valid token.
    AnyCaller,
    /// One, by name.
    Name { is_jwt: bool, name: String },
    /// Those of a group.
    Group { is_jwt: bool, name: String },
}

/// Who may read something.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Audience {
    Public,
    /// These; none of them: nobody but tokens that say themselves what they open.
    Some(Vec<Who>),
    /// Nobody at all, as it was written.
    Nobody,
}

#[derive(Debug, Clone, Copy)]
struct Rule<'a> {
    path: &'a str,
    audience: &'a Audience,
}

/// What may be read by whom: of the rules whose path leads to something, the longest decides.
#[derive(Debug)]
pub struct Policy {
    /// By path; the root has one always.
    rules: BTreeMap<String, Audience>,
    metrics: Audience,
}

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// Everybody may read it.
    Public,
    /// The caller may, others may not.
    Granted,
    /// The caller may not.
    Refused,
}

/// What is wrong with a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(String);

impl Policy {
    /// Reads rules such as `/em/secret = alice @lab`; what none of them is about is public or not. `metrics` names those who
    /// may read the server's metrics, as the right side of a rule does.
    ///
    /// # Errors
    /// [`PolicyError`] names the rule and what it should be like.
    pub fn parse<T: AsRef<str>>(is_public: bool, rules: &[T], metrics: &str) -> Result<Self, PolicyError> {
        let mut parsed = BTreeMap::new();
        for text in rules.iter().map(AsRef::as_ref) {
            let wrong = |why: String| PolicyError(format!("access.rules: {text:?}: {why}"));
            let (path, names) = text
                .split_once(" = ")
                .ok_or_else(|| wrong("write \"/path = NAME @GROUP ...\", \"/path = public\" or ... nobody".into()))?;
            let path = parse_path(path.trim()).map_err(wrong)?;
            let audience = parse_audience(names).map_err(wrong)?;
            if parsed.insert(path, audience).is_some() {
                return Err(wrong("there is a rule about this path already".into()));
            }
        }
        let default = if is_public { Audience::Public } else { Audience::Some(Vec::new()) };
        parsed.entry(String::new()).or_insert(default);
        let metrics = parse_audience(metrics).map_err(|why| PolicyError(format!("access.metrics: {why}")))?;
        Ok(Self { rules: parsed, metrics })
    }

    /// Whether `caller` may read what is at `path`; whether anything is there is not looked at.
    pub fn decide(&self, path: &str, caller: Option<&Caller>) -> Decision {
        // One look-up for each segment, however many rules there are: a listing asks for each of its entries.
        let mut above = Some(path);
        while let Some(at) = above {
            if let Some((found, audience)) = self.rules.get_key_value(at) {
                return Rule { path: found, audience }.decide(path, caller);
            }
            above = (!at.is_empty()).then(|| at.rsplit_once('/').map_or("", |(parent, _)| parent));
        }
        Decision::Refused
    }

    /// The rules about `path` and what is below.
    fn below(&self, path: &str) -> impl Iterator<Item = Rule<'_>> {
        // Between "a/" and "a0" lies whatever begins with "a/".
        let (from, to) =
            if path.is_empty() { (String::new(), None) } else { (format!("{path}/"), Some(format!("{path}0"))) };
        let end = to.map_or(Bound::Unbounded, Bound::Excluded);
        let inner = self.rules.range::<String, _>((Bound::Included(from), end));
        let own = self.rules.get_key_value(path).filter(|_| !path.is_empty());
        inner.chain(own).map(|(path, audience)| Rule { path, audience })
    }

    /// Whether `caller` may read all that is at `path` and below.
    pub fn decide_below(&self, path: &str, caller: Option<&Caller>) -> Decision {
        self.below(path).map(|rule| rule.decide(rule.path, caller)).fold(self.decide(path, caller), Decision::max)
    }

    /// Whether something below `path` is for everybody by a rule of its own.
    pub fn is_public_below(&self, path: &str) -> bool {
        self.below(path).any(|rule| *rule.audience == Audience::Public)
    }

    /// Whether `caller` may read the metrics.
    pub fn decide_metrics(&self, caller: Option<&Caller>) -> Decision {
        self.metrics.decide(caller)
    }
}

impl Rule<'_> {
    /// The decision about `path`, of which this is the rule.
    fn decide(&self, path: &str, caller: Option<&Caller>) -> Decision {
        let named = self.audience.decide(caller);
        // A token that says itself what it opens opens nothing else, and what is below its paths only as far as no longer
        // rule is about that.
        match caller.and_then(|caller| caller.reads.as_ref()) {
            Some(reads) if named != Decision::Public && *self.audience != Audience::Nobody => {
                let longest = reads.iter().filter(|read| is_within(path, read)).map(String::len).max();
                let may = longest.is_some_and(|bytes| bytes >= self.path.len() || named == Decision::Granted);
                if may { Decision::Granted } else { Decision::Refused }
            }
            _ => named,
        }
    }
}

impl Audience {
    fn decide(&self, caller: Option<&Caller>) -> Decision {
        match (self, caller) {
            (Self::Public, _) => Decision::Public,
            (Self::Some(who), Some(caller)) if who.iter().any(|who| who.is(caller)) => Decision::Granted,
            (Self::Some(_) | Self::Nobody, _) => Decision::Refused,
        }
    }
}

impl Who {
    fn is(&self, caller: &Caller) -> bool {
        match self {
            // A token that is good for some paths only is not good for what any token opens.
            Self::AnyCaller => caller.reads.is_none(),
            Self::Name { is_jwt, name } => *is_jwt == caller.is_jwt && *name == caller.name,
            Self::Group { is_jwt, name } => *is_jwt == caller.is_jwt && caller.groups.contains(name),
        }
    }
}

/// Whether `path` is `prefix` or below it.
fn is_within(path: &str, prefix: &str) -> bool {
    prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path as in a URL, `/` first, each segment percent-encoded or not, as rules and tokens have it.
pub(super) fn parse_path(text: &str) -> Result<String, String> {
    let inner = text.strip_prefix('/').ok_or_else(|| format!("the path {text:?} does not begin with a slash"))?;
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if inner.is_empty() {
        return Ok(String::new());
    }
    let mut segments = Vec::new();
    for raw in inner.split('/') {
        let segment = percent_decode_str(raw).decode_utf8().map_err(|_not| format!("{raw:?} is not UTF-8"))?;
        let bad = |c: char| c.is_control() || "/\\".contains(c);
        if segment.is_empty() || segment == "." || segment == ".." || segment.contains(bad) {
            return Err(format!("{raw:?} is no segment of a path"));
        }
        segments.push(segment);
    }
    Ok(segments.join("/"))
}

/// `public`, `nobody`, or names: `alice`, `@group`, `jwt:subject`, `jwt:@group`, `*` for whoever has a valid token.
fn parse_audience(text: &str) -> Result<Audience, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        [] => return Err("it names nobody: write \"nobody\" if that is meant".to_owned()),
        ["public"] => return Ok(Audience::Public),
        ["nobody"] => return Ok(Audience::Nobody),
        _ => {}
    }
    let who = |word: &&str| {
        let (is_jwt, rest) = word.strip_prefix("jwt:").map_or((false, *word), |rest| (true, rest));
        match (rest, rest.strip_prefix('@')) {
            ("public" | "nobody", _) if !is_jwt => Err(format!("{word:?} stands alone or not at all")),
            ("", _) | (_, Some("")) => Err(format!("{word:?} names nobody")),
            ("*", _) if !is_jwt => Ok(Who::AnyCaller),
            ("*", _) => Err(format!("{word:?} would be one whose name is *: write * for whoever has a valid token")),
            _ if word.ends_with(',') => Err(format!("{word:?} ends in a comma: separate names by spaces")),
            (_, Some(name)) => Ok(Who::Group { is_jwt, name: name.to_owned() }),
            (name, None) => Ok(Who::Name { is_jwt, name: name.to_owned() }),
        }
    };
    words.iter().map(who).collect::<Result<_, _>>().map(Audience::Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Decision::{Granted, Public, Refused};
    use super::*;

    fn caller(name: &str, groups: &[&str], reads: Option<&[&str]>) -> Caller {
        let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        Caller { is_jwt: false, name: name.into(), groups: owned(groups), reads: reads.map(owned) }
    }

    fn policy(is_public: bool, rules: &[&str]) -> Policy {
        Policy::parse(is_public, rules, "public").unwrap()
    }

    #[test]
    fn the_longest_path_decides_by_whole_segments() {
        let policy = policy(true, &["/a = alice", "/a/b = public", "/a/b/c = nobody", "/d/ = @lab"]);
        let alice = caller("alice", &[], None);
        let bob = caller("bob", &["lab"], None);
        for (path, nobody, for_alice, for_bob) in [
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
            assert_eq!(policy.decide(path, None), nobody, "{path}");
            assert_eq!(policy.decide(path, Some(&alice)), for_alice, "{path}");
            assert_eq!(policy.decide(path, Some(&bob)), for_bob, "{path}");
        }
    }

    #[test]
    fn what_no_rule_is_about_is_public_or_private() {
        assert_eq!(policy(true, &[]).decide("a", None), Public);
        assert_eq!(policy(false, &[]).decide("a", None), Refused);
        assert_eq!(policy(false, &[]).decide("a", Some(&caller("a", &[], None))), Refused);
        assert_eq!(policy(false, &["/ = *"]).decide("a", Some(&caller("a", &[], None))), Granted);
        assert_eq!(policy(false, &["/ = *"]).decide("a", None), Refused);
    }

    #[test]
    fn a_name_of_a_jwt_is_no_name_of_the_file_and_no_group() {
        let policy = policy(false, &["/a = alice", "/b = jwt:alice", "/c = @alice", "/d = jwt:@alice"]);
        let of_file = caller("alice", &[], None);
        let of_jwt = Caller { is_jwt: true, ..of_file.clone() };
        let seen = |caller: &Caller| ["a", "b", "c", "d"].map(|path| policy.decide(path, Some(caller)) == Granted);
        assert_eq!(seen(&of_file), [true, false, false, false]);
        assert_eq!(seen(&of_jwt), [false, true, false, false]);
        assert_eq!(seen(&caller("x", &["alice"], None)), [false, false, true, false]);
    }

    #[test]
    fn a_token_for_some_paths_opens_these_and_nothing_else() {
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
    fn all_below_is_as_open_as_its_most_closed_part() {
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
    fn faults_are_named() {
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
            let error = Policy::parse(true, &[bad], "public").unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
        assert!(Policy::parse(true, &["/a = x", "/a/ = y"], "public").is_err());
        assert!(Policy::parse::<&str>(true, &[], "").is_err());
        assert_eq!(policy(true, &["/run=7/a%20b = x"]).decide("run=7/a b/0", None), Refused);
    }

    proptest! {
        /// The rules by a slow model: walk up from the path to the first that is written down.
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
