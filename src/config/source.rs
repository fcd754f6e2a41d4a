//! The places settings come from, each flattened to single settings with their origin.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{Fault, Origin};

/// Everything a configuration is made from besides the defaults. `main` fills it in.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file of `--config`.
    pub file: Option<File>,
    /// Environment variables; those that do not look like `N5_SECTION__KEY` are passed over.
    pub environment: Vec<(String, String)>,
    /// The arguments of `--set`, in order: `section.key=value`.
    pub set: Vec<String>,
    /// The argument of `--listen`.
    pub listen: Option<String>,
    /// The arguments ROOT; any replace all configured containers.
    pub roots: Vec<Root>,
    /// First path segments that have another meaning: no container may have such a name.
    pub reserved: Vec<&'static str>,
}

/// A configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The name it was opened with, for messages.
    pub name: String,
    /// Its text, TOML.
    pub text: String,
}

/// A container given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// First path segment; empty without one.
    pub name: String,
    /// Directory.
    pub path: PathBuf,
}

impl Root {
    /// Reads `ROOT` or `NAME=ROOT`. A text whose part before the first `=` holds a slash, or for which `is_directory`
    /// is true as a whole, is a path that happens to contain `=`.
    pub fn parse(text: &OsStr, is_directory: impl Fn(&Path) -> bool) -> Self {
        let named = text.to_str().and_then(|text| text.split_once('=')).filter(|(name, _)| !name.contains('/'));
        match named {
            Some((name, path)) if !is_directory(Path::new(text)) => {
                Self { name: name.to_owned(), path: PathBuf::from(path) }
            }
            _ => Self { name: String::new(), path: PathBuf::from(text) },
        }
    }
}

/// One setting of one source.
pub(super) struct Setting {
    /// `section.key`, or `containers`.
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// The settings of a TOML table, two levels deep; `origin` tells where a dotted key stands.
pub(super) fn flatten(table: Table, origin: impl Fn(&str) -> Origin) -> Vec<Setting> {
    let mut settings = Vec::new();
    for (section, value) in table {
        if let Value::Table(inner) = value {
            settings.extend(inner.into_iter().map(|(key, value)| {
                let key = format!("{section}.{key}");
                Setting { origin: origin(&key), key, value }
            }));
        } else {
            settings.push(Setting { origin: origin(&section), key: section, value });
        }
    }
    settings
}

/// `N5_SECTION__KEY` as `section.key`, `N5_CONTAINERS` as `containers`; `None` for any other variable.
fn environment_key(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("N5_")?.to_ascii_lowercase();
    match name.split_once("__") {
        Some((section, key)) => Some(format!("{section}.{key}")),
        None => (name == "containers").then_some(name),
    }
}

/// The settings of the environment; `default` gives the default of a key, whose type says how text is read.
pub(super) fn environment<'a>(
    variables: &[(String, String)],
    default: impl Fn(&str) -> Option<&'a Value>,
    faults: &mut Vec<Fault>,
) -> Vec<Setting> {
    let mut settings = Vec::new();
    for (variable, text) in variables {
        let Some(key) = environment_key(variable) else { continue };
        let origin = Origin::Environment(variable.clone());
        match typed(default(&key), text) {
            Ok(value) => settings.push(Setting { key, value, origin }),
            Err(message) => faults.push(Fault::new(key, message).at(origin)),
        }
    }
    settings
}

/// The settings of `--set`; `default` as for [`environment`].
pub(super) fn set<'a>(
    arguments: &[String],
    default: impl Fn(&str) -> Option<&'a Value>,
    faults: &mut Vec<Fault>,
) -> Vec<Setting> {
    let mut settings = Vec::new();
    for argument in arguments {
        let origin = Origin::Flag(format!("--set {argument}"));
        let Some((key, text)) = argument.split_once('=') else {
            faults.push(Fault::new("", "write --set section.key=value").at(origin));
            continue;
        };
        let key = key.trim().to_owned();
        match typed(default(&key), text) {
            Ok(value) => settings.push(Setting { key, value, origin }),
            Err(message) => faults.push(Fault::new(key, message).at(origin)),
        }
    }
    settings
}

/// Reads text as the type that `default` has: text needs no quotes, a list is TOML or comma-separated.
fn typed(default: Option<&Value>, text: &str) -> Result<Value, String> {
    let text = text.trim();
    let toml = text.parse::<Value>();
    match default {
        Some(Value::Array(_)) if text.starts_with('[') => {
            toml.map_err(|error| format!("{text:?} is not a TOML list: {}", error.message()))
        }
        Some(Value::Array(_)) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Ok(Value::Array(items.map(Value::from).collect()))
        }
        Some(Value::Integer(_) | Value::Boolean(_) | Value::Float(_)) => Ok(toml.unwrap_or_else(|_| text.into())),
        // A quoted text that came through the shell or an env file with its quotes.
        _ => Ok(toml.ok().filter(Value::is_str).unwrap_or_else(|| text.into())),
    }
}

/// The text `a=/data/a,b=/data/b` of a list of containers, as tables; other items stay as they are.
pub(super) fn container_tables(list: Value) -> Value {
    let table = |item: Value| {
        let Some(text) = item.as_str() else { return item };
        let root = Root::parse(OsStr::new(text), |_path| false);
        let path = root.path.to_string_lossy().into_owned();
        Value::Table([("name".to_owned(), root.name.into()), ("root".to_owned(), path.into())].into_iter().collect())
    };
    if let Value::Array(items) = list { Value::Array(items.into_iter().map(table).collect()) } else { list }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(text: &str, directory: &str) -> (String, String) {
        let root = Root::parse(OsStr::new(text), |path| path == Path::new(directory));
        (root.name, root.path.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_root_may_have_a_name() {
        assert_eq!(root("/data/a.n5", ""), (String::new(), "/data/a.n5".into()));
        assert_eq!(root("em=/data/a.n5", ""), ("em".into(), "/data/a.n5".into()));
        assert_eq!(root("em=/data/a=b", ""), ("em".into(), "/data/a=b".into()));
    }

    #[test]
    fn a_path_with_an_equals_sign_is_a_path_when_it_exists_or_holds_a_slash() {
        assert_eq!(root("run=7", "run=7"), (String::new(), "run=7".into()));
        assert_eq!(root("./run=7", ""), (String::new(), "./run=7".into()));
        assert_eq!(root("run=7", ""), ("run".into(), "7".into()));
    }

    #[test]
    fn only_variables_with_two_underscores_are_settings() {
        assert_eq!(environment_key("N5_CACHE__DECODED").as_deref(), Some("cache.decoded"));
        assert_eq!(environment_key("N5_SERVER__BASE_PATH").as_deref(), Some("server.base_path"));
        assert_eq!(environment_key("N5_CONTAINERS").as_deref(), Some("containers"));
        for other in ["N5_CORPUS", "N5CACHE__DECODED", "PATH", "XN5_CACHE__DECODED"] {
            assert_eq!(environment_key(other), None, "{other}");
        }
    }

    #[test]
    fn text_takes_the_type_of_the_default() {
        let list = Value::Array(Vec::new());
        assert_eq!(typed(Some(&"".into()), "true"), Ok("true".into()));
        assert_eq!(typed(Some(&"".into()), "\"json\""), Ok("json".into()));
        assert_eq!(typed(Some(&1.into()), "1_000"), Ok(1000.into()));
        assert_eq!(typed(Some(&false.into()), "true"), Ok(true.into()));
        assert_eq!(typed(Some(&list), "a, b,"), Ok(vec!["a", "b"].into()));
        assert_eq!(typed(Some(&list), "[\"a\", \"b\"]"), Ok(vec!["a", "b"].into()));
        assert_eq!(typed(Some(&list), ""), Ok(Value::Array(Vec::new())));
        assert!(typed(Some(&list), "[\"a\"").unwrap_err().contains("not a TOML list"));
    }
}
