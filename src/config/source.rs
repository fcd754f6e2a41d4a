//! Sources of the configuration, each flattened to single settings with their origin.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{ConfigError, SettingOrigin};

/// All sources of a configuration except the defaults. `cli` fills it in.
#[derive(Debug, Clone, Default)]
pub struct ConfigSources {
    /// File given with `--config`.
    pub file: Option<ConfigFile>,
    /// Environment variables; those that do not look like `N5_SECTION__KEY` are ignored.
    pub environment: Vec<(String, String)>,
    /// Arguments of `--set`, in order: `section.key=value`.
    pub set: Vec<String>,
    /// Argument of `--listen`.
    pub listen: Option<String>,
    /// Arguments ROOT; if there are any, they replace all configured containers.
    pub roots: Vec<RootArgument>,
    /// First path segments that the server uses itself; no container may have such a name.
    pub reserved: Vec<&'static str>,
}

/// A configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// Name that it was opened with, for messages.
    pub name: String,
    /// Contents of the file, TOML.
    pub text: String,
}

/// A container given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootArgument {
    /// First path segment; empty if no name was given.
    pub name: String,
    /// Directory of the container.
    pub path: PathBuf,
}

impl RootArgument {
    /// Parses `ROOT` or `NAME=ROOT`. The text is a path that happens to contain `=` if the part before the first `=`
    /// contains a slash, or if `is_directory` is true for the whole text.
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

/// A setting from a source.
pub(super) struct Setting {
    /// Key of the setting: `section.key`, or `containers`.
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) origin: SettingOrigin,
}

/// Flattens a TOML table, two levels deep, into settings. `origin` returns where a dotted key was written.
pub(super) fn flatten(table: Table, origin: impl Fn(&str) -> SettingOrigin) -> Vec<Setting> {
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

/// Maps `N5_SECTION__KEY` to `section.key` and `N5_CONTAINERS` to `containers`; `None` for any other variable.
fn environment_key(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("N5_")?.to_ascii_lowercase();
    match name.split_once("__") {
        Some((section, key)) => Some(format!("{section}.{key}")),
        None => (name == "containers").then_some(name),
    }
}

/// Returns the settings of the environment. `default` returns the default of a key, whose type decides how text is
/// parsed.
pub(super) fn environment_settings<'a>(
    variables: &[(String, String)],
    default: impl Fn(&str) -> Option<&'a Value>,
    faults: &mut Vec<ConfigError>,
) -> Vec<Setting> {
    let mut settings = Vec::new();
    for (variable, text) in variables {
        let Some(key) = environment_key(variable) else { continue };
        let origin = SettingOrigin::Environment(variable.clone());
        match coerce(default(&key), text) {
            Ok(value) => settings.push(Setting { key, value, origin }),
            Err(message) => faults.push(ConfigError::new(key, message).with_origin(origin)),
        }
    }
    settings
}

/// Returns the settings of `--set`; `default` is as for [`environment_settings`].
pub(super) fn set_argument_settings<'a>(
    arguments: &[String],
    default: impl Fn(&str) -> Option<&'a Value>,
    faults: &mut Vec<ConfigError>,
) -> Vec<Setting> {
    let mut settings = Vec::new();
    for argument in arguments {
        let origin = SettingOrigin::Flag(format!("--set {argument}"));
        let Some((key, text)) = argument.split_once('=') else {
            faults.push(ConfigError::new("", "write --set section.key=value").with_origin(origin));
            continue;
        };
        let key = key.trim().to_owned();
        match coerce(default(&key), text) {
            Ok(value) => settings.push(Setting { key, value, origin }),
            Err(message) => faults.push(ConfigError::new(key, message).with_origin(origin)),
        }
    }
    settings
}

/// Parses text as the type of `default`. Strings need no quotes; a list is TOML or comma-separated.
fn coerce(default: Option<&Value>, text: &str) -> Result<Value, String> {
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
        // A quoted string may have kept its quotes on its way through a shell or an env file.
        _ => Ok(toml.ok().filter(Value::is_str).unwrap_or_else(|| text.into())),
    }
}

/// Converts items such as `a=/data/a` in a list of containers to tables; other items stay as they are.
pub(super) fn container_tables(list: Value) -> Value {
    let to_table = |item: Value| {
        let Some(text) = item.as_str() else { return item };
        let root = RootArgument::parse(OsStr::new(text), |_path| false);
        let path = root.path.to_string_lossy().into_owned();
        Value::Table([("name".to_owned(), root.name.into()), ("root".to_owned(), path.into())].into_iter().collect())
    };
    if let Value::Array(items) = list { Value::Array(items.into_iter().map(to_table).collect()) } else { list }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(text: &str, directory: &str) -> (String, String) {
        let root = RootArgument::parse(OsStr::new(text), |path| path == Path::new(directory));
        (root.name, root.path.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_root_may_have_a_name() {
        assert_eq!(root("/data/a.n5", ""), (String::new(), "/data/a.n5".into()));
        assert_eq!(root("em=/data/a.n5", ""), ("em".into(), "/data/a.n5".into()));
        assert_eq!(root("em=/data/a=b", ""), ("em".into(), "/data/a=b".into()));
    }

    #[test]
    fn a_path_with_an_equals_sign_is_a_path_if_it_exists_or_contains_a_slash() {
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
        assert_eq!(coerce(Some(&"".into()), "true"), Ok("true".into()));
        assert_eq!(coerce(Some(&"".into()), "\"json\""), Ok("json".into()));
        assert_eq!(coerce(Some(&1.into()), "1_000"), Ok(1000.into()));
        assert_eq!(coerce(Some(&false.into()), "true"), Ok(true.into()));
        assert_eq!(coerce(Some(&list), "a, b,"), Ok(vec!["a", "b"].into()));
        assert_eq!(coerce(Some(&list), "[\"a\", \"b\"]"), Ok(vec!["a", "b"].into()));
        assert_eq!(coerce(Some(&list), ""), Ok(Value::Array(Vec::new())));
        assert!(coerce(Some(&list), "[\"a\"").unwrap_err().contains("not a TOML list"));
    }
}
