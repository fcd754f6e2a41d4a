//! Merges the sources of a configuration, deserializes the result, and collects all errors.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::root_address::{RootAddress, without_secrets};
use super::roots::{container_names, split_root};
use super::sections::{Config, ContainerConfig, ContainerDefaults, DEFAULTS, SystemMemory};
use super::similar::most_similar;
use super::validate::{ConfigError, ConfigErrors};
use super::values::ListenAddress;

/// Minimum similarity of an unknown key and a known one, from 0 to 1, at which the latter is suggested.
const MIN_SIMILARITY: f64 = 0.7;

/// All sources of a configuration except the defaults, as `cli` finds them.
#[derive(Debug, Clone, Default)]
pub struct ConfigSources {
    /// File given with `--config`.
    pub file: Option<ConfigFile>,
    /// Environment variables. Those without the form `N5_SECTION__KEY` are ignored.
    pub environment: Vec<(String, String)>,
    /// Arguments of `--set`, in order: `section.key=value`.
    pub set: Vec<String>,
    /// Argument of `--listen`.
    pub listen: Option<String>,
    /// Argument of `--port`.
    pub port: Option<u16>,
    /// Arguments ROOT, split by [`split_root`]. If there are any, they replace all configured containers.
    pub roots: Vec<(String, OsString)>,
    /// First path segments of the server's endpoints, which no container may have as its name.
    pub reserved: Vec<&'static str>,
    /// Memory of the system; `None` if it is not known. The default of `memory.limit` is a quarter of it.
    pub system_memory: Option<SystemMemory>,
}

/// A configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// Path under which the file was opened, for messages.
    pub name: String,
    /// Contents of the file, TOML.
    pub text: String,
}

impl Config {
    /// Builds the configuration from the defaults and `sources`. The fields of [`ConfigSources`] are ordered from the
    /// weakest source to the strongest.
    ///
    /// # Errors
    /// Returns all errors at once: text that is not TOML, unknown keys, values of the wrong form, and the errors of
    /// [`Config::validate`]. Values of the wrong form are replaced by defaults before that check.
    pub fn load(sources: &ConfigSources) -> Result<Self, ConfigErrors> {
        let defaults: Table =
            DEFAULTS.parse().map_err(|error| ConfigErrors(vec![syntax_error("default.toml", &error)]))?;
        let mut merger = ConfigMerger::new(defaults);
        merger.add_sources(sources);
        let mut config = merger.deserialize()?;
        config.memory.system = sources.system_memory;
        if let Some(port) = sources.port {
            match &mut config.server.listen {
                ListenAddress::Tcp(address) => address.set_port(port),
                ListenAddress::Unix(_) => {
                    let error = ConfigError::new("server.listen", "is a Unix socket, which has no port");
                    merger.errors.push(error.with_origin(format!("--port {port}")));
                }
            }
        }
        if !sources.roots.is_empty() {
            merger.replace_containers(&mut config, sources);
        }
        for fault in config.validate(&sources.reserved).err().into_iter().flat_map(|faults| faults.0) {
            merger.errors.push(merger.locate(fault));
        }
        if merger.errors.is_empty() { Ok(config) } else { Err(ConfigErrors(merger.errors)) }
    }
}

/// Merges the settings of several sources, and collects the errors in them.
#[derive(Default)]
struct ConfigMerger {
    defaults: BTreeMap<String, Value>,
    settings: BTreeMap<String, Value>,
    /// Place where each setting was written, by key. Defaults have none.
    origins: BTreeMap<String, String>,
    errors: Vec<ConfigError>,
}

impl ConfigMerger {
    fn new(defaults: Table) -> Self {
        let mut defaults: BTreeMap<_, _> = flatten(defaults).into_iter().collect();
        defaults.insert("containers".to_owned(), Value::Array(Vec::new()));
        Self { settings: defaults.clone(), defaults, ..Self::default() }
    }

    /// Merges all sources, the weakest first. Errors of whole sources come before errors of settings.
    fn add_sources(&mut self, sources: &ConfigSources) {
        let mut source_errors = Vec::new();
        if let Some(file) = &sources.file {
            match file.text.parse::<Table>() {
                Ok(table) => self.add_file(file, table),
                Err(error) => source_errors.push(syntax_error(&file.name, &error)),
            }
        }
        for (variable, text) in &sources.environment {
            if let Some(key) = environment_key(variable) {
                source_errors.extend(self.add_text(&key, text, format!("environment variable {variable}")).err());
            }
        }
        for argument in &sources.set {
            source_errors.extend(match argument.split_once('=') {
                // An address may contain a password, and credentials be written where their source belongs.
                Some((key, text))
                    if text.contains("://") || key.trim() == "containers" || key.trim().ends_with("credentials") =>
                {
                    self.add_text(key.trim(), text, format!("--set {}=…", key.trim())).err()
                }
                Some((key, text)) => self.add_text(key.trim(), text, format!("--set {argument}")).err(),
                None => {
                    let error = ConfigError::new("", "write --set section.key=value");
                    Some(error.with_origin(format!("--set {argument}")))
                }
            });
        }
        if let Some(listen) = &sources.listen {
            self.apply("server.listen", listen.as_str().into(), format!("--listen {listen}"));
        }
        self.errors.splice(..0, source_errors);
    }

    fn add_file(&mut self, file: &ConfigFile, table: Table) {
        let mut lines = BTreeMap::new();
        if let Ok(document) = DeTable::parse(&file.text) {
            collect_key_lines("", document.get_ref(), &file.text, &mut lines);
        }
        let origin = |key: &str| format!("{}:{}", file.name, lines.get(key).copied().unwrap_or(1));
        for (key, value) in flatten(table) {
            if key == "containers" {
                let inner_keys = lines.keys().filter(|key| key.starts_with("containers"));
                self.apply_containers(value, inner_keys.map(|key| (key.clone(), origin(key))).collect());
            } else {
                self.apply(&key, value, origin(&key));
            }
        }
    }

    /// Merges a setting that is written as text.
    ///
    /// # Errors
    /// Returns an error if the text does not have the type of the setting's default.
    fn add_text(&mut self, key: &str, text: &str, origin: String) -> Result<(), ConfigError> {
        match coerce(self.defaults.get(key), text) {
            Ok(value) => self.apply(key, value, origin),
            Err(message) => return Err(ConfigError::new(key, message).with_origin(origin)),
        }
        Ok(())
    }

    /// Replaces a setting with the value from a source of higher precedence.
    fn apply(&mut self, key: &str, value: Value, origin: String) {
        if key == "containers" {
            return self.apply_containers(value, BTreeMap::from([(key.to_owned(), origin)]));
        }
        let Some(default) = self.defaults.get(key) else {
            let message = unknown_key_message(key, || self.defaults.keys().map(String::as_str));
            self.errors.push(ConfigError::new(key, message).with_origin(origin));
            return;
        };
        if default.is_array() != value.is_array() {
            let message = if default.is_array() { "write a list, [...]" } else { "takes a single value, not a list" };
            self.errors.push(ConfigError::new(key, message).with_origin(origin));
            return;
        }
        // A source of higher precedence replaces the whole list, because a merged list could not be made shorter.
        self.origins.insert(key.to_owned(), origin);
        self.settings.insert(key.to_owned(), value);
    }

    /// Replaces all containers with those from a source of higher precedence. `origins` says where each key was set.
    fn apply_containers(&mut self, value: Value, origins: BTreeMap<String, String>) {
        self.clear_container_origins();
        self.origins.extend(origins);
        let value = self.drop_unknown_container_keys(container_tables(value));
        self.settings.insert("containers".to_owned(), value);
    }

    /// Replaces the containers of `config` with those of the arguments ROOT, which have the default settings. An address
    /// that cannot be parsed is reported.
    fn replace_containers(&mut self, config: &mut Config, sources: &ConfigSources) {
        self.clear_container_origins();
        let mut roots = Vec::new();
        for (name, text) in &sources.roots {
            let origin = without_secrets(text);
            match RootAddress::parse(text) {
                Ok(address) => {
                    self.origins.insert(format!("containers[{}]", roots.len()), origin);
                    roots.push((name.clone(), address));
                }
                Err(message) => self.errors.push(ConfigError::new("", message).with_origin(origin)),
            }
        }
        let names = container_names(&roots, &sources.reserved);
        let ContainerDefaults {
            cache_control,
            symlinks,
            must_be_mount,
            entity_tag,
            recheck_cached_metadata,
            recheck_cached_data,
            remember_missing,
            immutable,
            cache_generation,
            store,
        } = &config.container_defaults;
        let container = |(name, (_, root)): (String, (String, RootAddress))| ContainerConfig {
            name,
            root,
            cache_control: *cache_control,
            symlinks: *symlinks,
            must_be_mount: *must_be_mount,
            entity_tag: *entity_tag,
            recheck_cached_metadata: *recheck_cached_metadata,
            recheck_cached_data: *recheck_cached_data,
            remember_missing: *remember_missing,
            immutable: *immutable,
            cache_generation: *cache_generation,
            store: store.clone(),
        };
        config.containers = names.into_iter().zip(roots).map(container).collect();
    }

    fn clear_container_origins(&mut self) {
        self.origins.retain(|key, _origin| !key.starts_with("containers"));
    }

    /// Returns the tables of `containers` without unknown keys, which are reported.
    fn drop_unknown_container_keys(&mut self, value: Value) -> Value {
        let Value::Array(items) = value else {
            let fault = ConfigError::new("containers", "write [[containers]] above the keys of each container");
            self.errors.push(self.locate(fault));
            return Value::Array(Vec::new());
        };
        let inherited = self.container_defaults();
        let known_keys = || inherited.iter().map(|(key, _value)| key.as_str()).chain(["name", "root"]);
        let mut tables = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            let mut filtered = Table::new();
            for (key, value) in flatten(item.as_table().cloned().unwrap_or_default()) {
                if known_keys().any(|known| known == key) {
                    insert_at(&mut filtered, &key, value);
                } else {
                    let message = unknown_key_message(&key, known_keys);
                    self.errors.push(self.locate(ConfigError::new(format!("containers[{index}].{key}"), message)));
                }
            }
            tables.push(Value::Table(filtered));
        }
        Value::Array(tables)
    }

    /// Deserializes the merged settings. Reports each setting of the wrong form, replaces it by its default, and tries
    /// again, so that all such errors are found.
    fn deserialize(&mut self) -> Result<Config, ConfigErrors> {
        loop {
            let error = match serde_path_to_error::deserialize::<_, Config>(Value::Table(self.to_table())) {
                Ok(config) => return Ok(config),
                Err(error) => error,
            };
            let path = error.path().to_string();
            let fault = ConfigError::new(&path, error.inner().message().trim());
            self.errors.push(self.locate(fault));
            if !self.reset_to_default(&path) {
                return Err(ConfigErrors(std::mem::take(&mut self.errors)));
            }
        }
    }

    /// Replaces the setting at `path` by its default. Returns false if it had its default already, so that repeating
    /// this is useless.
    fn reset_to_default(&mut self, path: &str) -> bool {
        if let Some((index, key)) = container_path(path) {
            let table = self.settings.get_mut("containers").and_then(Value::as_array_mut);
            let table = table.and_then(|items| items.get_mut(index)).and_then(Value::as_table_mut);
            return table.is_some_and(|table| remove_at(table, key));
        }
        let key = path.split('[').next().unwrap_or(path);
        let Some(default) = self.defaults.get(key) else { return false };
        self.settings.insert(key.to_owned(), default.clone()).is_some_and(|old| old != *default)
    }

    /// Returns all settings as a table. Each container has those settings of `container_defaults` that it does not set
    /// itself. A wrong value among these is found first where it was written, because sections are read in the order of
    /// their names.
    fn to_table(&self) -> Table {
        let mut table = Table::new();
        for (path, value) in &self.settings {
            insert_at(&mut table, path, value.clone());
        }
        let inherited = self.container_defaults();
        let containers = table.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_table_mut) {
            let own = std::mem::take(container);
            for (key, value) in inherited.iter().cloned().chain(flatten(own)) {
                insert_at(container, &key, value);
            }
        }
        table
    }

    /// Returns the settings of `container_defaults` by their keys in a container.
    fn container_defaults(&self) -> Vec<(String, Value)> {
        let inherited = |(key, value): (&String, &Value)| {
            Some((key.strip_prefix("container_defaults.")?.to_owned(), value.clone()))
        };
        self.settings.iter().filter_map(inherited).collect()
    }

    /// Adds the origin of the key to an error. If the key has no origin, uses that of the nearest enclosing key.
    fn locate(&self, fault: ConfigError) -> ConfigError {
        let mut key = fault.key.as_str();
        loop {
            if let Some(origin) = self.origins.get(key) {
                return fault.with_origin(origin.clone());
            }
            match key.rfind(['.', '[']) {
                Some(end) => key = key.get(..end).unwrap_or_default(),
                None => return fault,
            }
        }
    }
}

/// Flattens a TOML table into settings by key: `section.key`, `section.section.key`, or `containers`.
fn flatten(table: Table) -> Vec<(String, Value)> {
    let mut settings = Vec::new();
    for (section, value) in table {
        if let Value::Table(inner) = value {
            settings.extend(flatten(inner).into_iter().map(|(key, value)| (format!("{section}.{key}"), value)));
        } else {
            settings.push((section, value));
        }
    }
    settings
}

/// Inserts a setting into nested tables, which it adds where they are missing.
fn insert_at(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => drop(table.insert(key.to_owned(), value)),
        Some((section, key)) => {
            if let Value::Table(inner) = table.entry(section).or_insert_with(|| Value::Table(Table::new())) {
                insert_at(inner, key, value);
            }
        }
    }
}

/// Removes a setting from nested tables. Returns false if there is none.
fn remove_at(table: &mut Table, key: &str) -> bool {
    match key.split_once('.') {
        None => table.remove(key).is_some(),
        Some((section, key)) => {
            table.get_mut(section).and_then(Value::as_table_mut).is_some_and(|inner| remove_at(inner, key))
        }
    }
}

/// Maps `N5_SECTION__KEY` to `section.key`, `N5_SECTION__SECTION__KEY` to `section.section.key`, and `N5_CONTAINERS` to
/// `containers`. Returns `None` for any other variable.
fn environment_key(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("N5_")?.to_ascii_lowercase();
    (name == "containers" || name.contains("__")).then(|| name.replace("__", "."))
}

/// Parses a text as a value of the same type as `default`. Strings need no quotes. A list is TOML or comma-separated.
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
        // Shells and env files may leave the quotes around a string.
        _ => Ok(toml.ok().filter(Value::is_str).unwrap_or_else(|| text.into())),
    }
}

/// Converts items such as `a=/data/a` in a list of containers to tables; other items stay as they are.
fn container_tables(list: Value) -> Value {
    let to_table = |item: Value| {
        let Some(text) = item.as_str() else { return item };
        let (name, address) = split_root(OsStr::new(text), |_path| false);
        let address = address.to_string_lossy().into_owned();
        Value::Table([("name".to_owned(), name.into()), ("root".to_owned(), address.into())].into_iter().collect())
    };
    if let Value::Array(items) = list { Value::Array(items.into_iter().map(to_table).collect()) } else { list }
}

/// Collects the line number of every key in a document. Keys have the form `section.key` or `containers[0].name`.
fn collect_key_lines(prefix: &str, table: &DeTable<'_>, text: &str, lines: &mut BTreeMap<String, usize>) {
    for (key, value) in table {
        let path = format!("{prefix}{}", key.get_ref());
        let line = |start: usize| text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        lines.insert(path.clone(), line(key.span().start));
        match value.get_ref() {
            DeValue::Table(inner) => collect_key_lines(&format!("{path}."), inner, text, lines),
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    lines.insert(path.clone(), line(item.span().start));
                    if let Some(inner) = Spanned::get_ref(item).as_table() {
                        collect_key_lines(&format!("{path}."), inner, text, lines);
                    }
                }
            }
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => {}
        }
    }
}

/// Splits a path such as `containers[1].symlinks` into index and key.
fn container_path(path: &str) -> Option<(usize, &str)> {
    let (index, key) = path.strip_prefix("containers[")?.split_once("].")?;
    Some((index.parse().ok()?, key))
}

fn syntax_error(name: &str, error: &toml::de::Error) -> ConfigError {
    ConfigError::new("", format!("{name}: {}", error.to_string().trim_end().replace('\n', "\n  ")))
}

/// Returns the message about a key that is not among `known`.
fn unknown_key_message<'a, K: Iterator<Item = &'a str>>(key: &str, known: impl Fn() -> K) -> String {
    if known().any(|known| known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))) {
        return format!("is a section: write its keys as {key}.KEY, or below [{key}]");
    }
    let last_segment = |key: &'a str| key.rsplit('.').next();
    let same_name = known().find(|known| known.contains('.') && last_segment(known) == key.rsplit('.').next());
    suggest("unknown key", most_similar(key, known(), MIN_SIMILARITY).or(same_name))
}

fn suggest(message: &str, known: Option<&str>) -> String {
    known.map_or_else(|| message.to_owned(), |known| format!("{message}; did you mean {known}?"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::sections::{EntityTagSource, LogFormat, SymlinkPolicy};
    use super::super::store_settings::{AddressingStyle, CredentialSource};
    use super::super::values::{CacheControl, ListenAddress, RevalidationPolicy};
    use super::*;

    fn from_file(text: &str) -> ConfigSources {
        ConfigSources {
            file: Some(ConfigFile { name: "lab.toml".into(), text: text.into() }),
            ..ConfigSources::default()
        }
    }

    fn environment(pairs: &[(&str, &str)]) -> ConfigSources {
        let environment = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ConfigSources { environment, ..ConfigSources::default() }
    }

    fn set(arguments: &[&str]) -> ConfigSources {
        ConfigSources { set: arguments.iter().map(ToString::to_string).collect(), ..ConfigSources::default() }
    }

    fn load_error(sources: &ConfigSources) -> String {
        Config::load(sources).unwrap_err().to_string()
    }

    #[test]
    fn no_sources_give_the_defaults() {
        assert_eq!(Config::load(&ConfigSources::default()).unwrap(), Config::default());
    }

    #[test]
    fn a_stronger_source_wins() {
        let mut sources =
            from_file("[cache]\ndecoded = '1MiB'\nstored = '1MiB'\n[log]\nformat = 'json'\n[server]\nthreads = 1");
        sources.environment = environment(&[("N5_CACHE__DECODED", "2MiB"), ("N5_CACHE__STORED", "2MiB")]).environment;
        sources.environment.push(("N5_SERVER__LISTEN".into(), "127.0.0.1:2".into()));
        sources.set = vec!["cache.stored=3MiB".into(), "server.listen=127.0.0.1:3".into()];
        sources.listen = Some("127.0.0.1:4".into());
        let config = Config::load(&sources).unwrap();
        assert_eq!(config.limits, Config::default().limits);
        assert_eq!(config.server.threads, 1);
        assert_eq!(config.log.format, LogFormat::Json);
        assert_eq!(config.cache.decoded, Some(2 << 20));
        assert_eq!(config.cache.stored, Some(3 << 20));
        assert_eq!(config.server.listen, ListenAddress::Tcp("127.0.0.1:4".parse().unwrap()));
    }

    #[test]
    fn the_last_set_wins() {
        assert_eq!(Config::load(&set(&["server.threads=1", "server.threads=2"])).unwrap().server.threads, 2);
    }

    #[test]
    fn every_setting_can_come_from_the_environment() {
        let defaults: Table = DEFAULTS.parse().unwrap();
        for (key, value) in flatten(defaults) {
            let variable = format!("N5_{}", key.to_uppercase().replace('.', "__"));
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(Config::load(&environment(&[(&variable, &text)])).unwrap(), Config::default(), "{variable}");
            let texts = [
                "server.viewer",
                "access.metrics",
                "access.tokens",
                "tls.certificate",
                "tls.key",
                "jwt.keys",
                "jwt.roots",
                "jwt.issuer",
                "jwt.name_claim",
                "jwt.groups_claim",
                "container_defaults.store.region",
                "container_defaults.store.ca",
                "cache.disk.path",
            ];
            if texts.contains(&key.as_str()) {
                // These settings are paths, names, regions or claims, for which any text is valid.
                continue;
            }
            let result = Config::load(&environment(&[(&variable, "[[")]));
            assert!(result.unwrap_err().to_string().contains(&variable), "{variable}");
        }
    }

    #[test]
    fn lists_are_read_from_commas_and_from_toml() {
        for text in ["https://a,https://b:1", "['https://a', 'https://b:1']"] {
            let config = Config::load(&environment(&[("N5_CORS__ORIGINS", text)])).unwrap();
            assert_eq!(config.cors.origins, ["https://a", "https://b:1"]);
        }
        let config = Config::load(&set(&["server.trusted_proxies=10.0.0.0/8,::1"])).unwrap();
        assert_eq!(config.server.trusted_proxies, ["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
    }

    #[test]
    fn other_variables_are_ignored() {
        assert!(Config::load(&environment(&[("N5_CORPUS", "x"), ("PATH", "/bin"), ("N5SERVER__LISTEN", "x")])).is_ok());
    }

    #[test]
    fn containers_come_from_a_file_the_environment_or_roots() {
        let file = "[[containers]]\nname = 'a'\nroot = '/a'\n[[containers]]\nname = 'b'\nroot = '/b'\n";
        let config = Config::load(&from_file(file)).unwrap();
        assert_eq!(config.containers.len(), 2);
        for text in ["a=/a,b=/b", "[{name='a', root='/a'}, {name='b', root='/b'}]"] {
            assert_eq!(Config::load(&environment(&[("N5_CONTAINERS", text)])).unwrap(), config);
        }
        let mut sources = from_file(file);
        sources.roots = vec![(String::new(), "/c".into())];
        let config = Config::load(&sources).unwrap();
        assert_eq!(config.containers.len(), 1);
        assert_eq!(config.containers[0].root.to_string(), "/c");
    }

    #[test]
    fn containers_inherit_unset_settings() {
        let text = "[container_defaults]\ncache_control = 'immutable'\nsymlinks = 'deny'\nmust_be_mount = true\nentity_tag = 'inode'\n\
                    [[containers]]\nname = 'a'\nroot = '/a'\ncache_control = 'revalidate'\nmust_be_mount = false\nentity_tag = 'mtime'\n\
                    [[containers]]\nname = 'b'\nroot = '/b'\nsymlinks = 'inside'\n";
        let config = Config::load(&from_file(text)).unwrap();
        let settings_of = |index: usize| (config.containers[index].cache_control, config.containers[index].symlinks);
        assert_eq!(settings_of(0), (CacheControl::Revalidate, SymlinkPolicy::Deny));
        assert_eq!(settings_of(1), (CacheControl::Immutable, SymlinkPolicy::Inside));
        assert_eq!(
            config.containers.iter().map(|container| container.must_be_mount).collect::<Vec<_>>(),
            [false, true]
        );
        let mut sources = from_file(text);
        sources.roots = vec![(String::new(), "/c".into())];
        let container = &Config::load(&sources).unwrap().containers[0];
        assert_eq!(
            (container.symlinks, container.must_be_mount, container.entity_tag),
            (SymlinkPolicy::Deny, true, EntityTagSource::Inode)
        );
        let tags: Vec<_> = config.containers.iter().map(|container| container.entity_tag).collect();
        assert_eq!(tags, [EntityTagSource::Mtime, EntityTagSource::Inode]);
    }

    #[test]
    fn settings_of_a_store_are_inherited_one_by_one() {
        let text = "[container_defaults.store]\nregion = 'us-west-2'\ntimeout = '5s'\n\
                    [[containers]]\nname = 'a'\nroot = 's3://b/a.n5'\n[containers.store]\ntimeout = '9s'\npath_style = true\n\
                    [[containers]]\nname = 'b'\nroot = '/b'\nstore.credentials = 'profile:lab'\n";
        let mut sources = from_file(text);
        sources.environment = vec![("N5_CONTAINER_DEFAULTS__STORE__CONCURRENCY".into(), "7".into())];
        let config = Config::load(&sources).unwrap();
        let store = |index: usize| &config.containers[index].store;
        assert_eq!((store(0).region.as_str(), store(0).timeout), ("us-west-2", Duration::from_secs(9)));
        assert_eq!((store(0).path_style, store(0).concurrency), (AddressingStyle::Path, 7));
        assert_eq!((store(1).timeout, &store(1).path_style), (Duration::from_secs(5), &AddressingStyle::Auto));
        assert_eq!(store(1).credentials, CredentialSource::Profile("lab".into()));
        assert_eq!(Config::load(&from_file(&config.to_toml().unwrap())).unwrap(), config);
    }

    #[test]
    fn faults_in_the_settings_of_a_store_are_reported_where_they_were_written() {
        let text = "[[containers]]\nroot = 's3://b/a.n5'\n[containers.store]\ntimout = '9s'\ncredentials = 'AKIASECRET'\n\
                    [container_defaults.store]\nconcurrency = 0\nendpoint = 'https://u:hunter2@host'\nregions = ''\n\
                    [container_defaults]\nremember_missing = '10'\nrecheck_cached_data = 'often'";
        let error = load_error(&from_file(text));
        for line in [
            "lab.toml:4: containers[0].store.timout: unknown key; did you mean store.timeout?",
            "lab.toml:5: containers[0].store.credentials: is not a source of credentials: write",
            "lab.toml:7: container_defaults.store.concurrency: 0 is too small, the minimum is 1",
            "lab.toml:8: container_defaults.store.endpoint: is not a base URL",
            "lab.toml:9: container_defaults.store.regions: unknown key; did you mean container_defaults.store.region?",
            "lab.toml:11: container_defaults.remember_missing: \"10\" is not a duration",
            "lab.toml:12: container_defaults.recheck_cached_data: \"often\" is not a recheck policy",
        ] {
            assert!(error.contains(line), "{line}: {error}");
        }
        assert!(!error.contains("AKIASECRET") && !error.contains("hunter2"), "{error}");
        let given = load_error(&set(&["container_defaults.store.credentials=AKIASECRET"]));
        assert!(given.contains("is not a source of credentials") && !given.contains("AKIASECRET"), "{given}");
        let section = load_error(&from_file("[container_defaults]\nstore = 5"));
        assert!(section.contains("is a section: write its keys as container_defaults.store.KEY"), "{section}");
    }

    #[test]
    fn an_address_with_credentials_is_refused_without_being_repeated() {
        let address = "https://user:hunter2@host/c?token=hunter2";
        let roots = ConfigSources { roots: vec![("em".into(), address.into())], ..ConfigSources::default() };
        for sources in [
            roots,
            from_file(&format!("[[containers]]\nroot = '{address}'")),
            environment(&[("N5_CONTAINERS", &format!("a={address}"))]),
            set(&[&format!("containers=a={address}")]),
            set(&[&format!("containers.root={address}"), &format!("containers=a={address}")]),
        ] {
            let error = load_error(&sources);
            assert!(error.contains("contains credentials") && error.contains("store.credentials"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn remote_containers_are_compared_less_often_than_local_ones() {
        let after = |seconds| RevalidationPolicy::After(Duration::from_secs(seconds));
        let policies = |text: &str, root: &str| {
            let mut sources = from_file(text);
            sources.roots = vec![(String::new(), root.into())];
            let config = Config::load(&sources).unwrap();
            let (container, cache) = (&config.containers[0], &config.cache);
            let metadata = container.metadata_policy(cache.recheck_cached_metadata);
            (metadata, container.data_policy(cache.recheck_cached_data), container.missing_policy())
        };
        let (always, never) = (RevalidationPolicy::Always, RevalidationPolicy::Never);
        assert_eq!(policies("", "/data"), (always, always, None));
        assert_eq!(policies("", "s3://b/c"), (after(60), after(3600), Some(after(60))));
        let text = "[container_defaults]\nrecheck_cached_metadata = '1s'\nrecheck_cached_data = 'never'\nremember_missing = '2s'";
        for root in ["/data", "s3://b/c"] {
            assert_eq!(policies(text, root), (after(1), never, Some(after(2))), "{root}");
        }
        let immutable = "[container_defaults]\nimmutable = true\nrecheck_cached_data = '1s'";
        assert_eq!(policies(immutable, "/data"), (never, never, None));
        assert_eq!(policies(immutable, "s3://b/c"), (never, never, Some(never)));
        let cache = "[cache]\nrecheck_cached_metadata = '5s'";
        assert_eq!(policies(cache, "/data").0, after(5));
        assert_eq!(policies(cache, "s3://b/c").0, after(60));
    }

    #[test]
    fn unknown_keys_are_reported_with_origin_and_suggestion() {
        let file = from_file("[cache]\n\ndecodedd = '1MiB'\n");
        assert_eq!(
            load_error(&file),
            "the configuration has a fault:\n  lab.toml:3: cache.decodedd: unknown key; did you mean cache.decoded?"
        );
        for (text, message) in [
            ("listen = '127.0.0.1:1'", "listen: unknown key; did you mean server.listen?"),
            ("[caches]\nstored = 1", "lab.toml:2: caches.stored: unknown key; did you mean cache.stored?"),
            ("[server]\ndecoded = 1", "server.decoded: unknown key; did you mean cache.decoded?"),
            ("[a]\nb = 1", "lab.toml:2: a.b: unknown key"),
            (
                "[[containers]]\nroot = '/a'\nsymlink = 'deny'",
                "lab.toml:3: containers[0].symlink: unknown key; did you mean symlinks?",
            ),
        ] {
            assert!(load_error(&from_file(text)).ends_with(message), "{text}: {}", load_error(&from_file(text)));
        }
        let from_environment = load_error(&environment(&[("N5_CACHE__DECODEDD", "1")]));
        assert!(
            from_environment.contains("environment variable N5_CACHE__DECODEDD: cache.decodedd: unknown key; did you")
        );
        assert!(
            load_error(&set(&["cache.decodedd=1"])).contains("--set cache.decodedd=1: cache.decodedd: unknown key")
        );
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let mut sources = from_file(
            r#"[server]
listen = "example.org:8080"
header_timeout = 10
base_path = "n5/"
max_connections = -1
trusted_proxies = ["proxy"]
[[containers]]
name = "slice"
root = "/a"
symlinks = "some"
[[containers]]
cache_control = "sometimes"
[container_defaults]
cache_control = "1500ms"
[limits]
slice_budget = "1KiB"
decode_factor = "many"
[cache]
decoded = "lots"
policy = "fifo"
recheck_cached_data = "often"
stored = ["64MiB"]
[cors]
origins = ["https://viewer/"]
[compression]
slices = "yes"
[log]
level = "loud"
colour = true
"#,
        );
        sources.environment = vec![("N5_LIMITS__ATTRIBUTES".into(), "-1".into())];
        sources.set = vec!["limits.slice=big".into(), "log.format".into()];
        sources.listen = None;
        sources.reserved = vec!["slice", "info"];
        insta::assert_snapshot!(load_error(&sources));
    }

    #[test]
    fn broken_toml_shows_the_place() {
        insta::assert_snapshot!(load_error(&from_file("[cache]\ndecoded = 256MiB\n")));
    }

    #[test]
    fn print_config_can_be_fed_back() {
        let mut sources = from_file(include_str!("../../config/example.toml"));
        sources.set = vec!["limits.budget_wait=90s".into(), "limits.slice=1000001B".into()];
        let config = Config::load(&sources).unwrap();
        let text = config.to_toml().unwrap();
        assert_eq!(Config::load(&from_file(&text)).unwrap(), config);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_example_is_valid() {
        let config = Config::load(&from_file(include_str!("../../config/example.toml"))).unwrap();
        assert_eq!(config.containers.len(), 2);
    }

    #[test]
    fn the_example_is_valid_with_its_remote_containers() {
        let uncomment = |line: &'static str| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c == '[' || c.is_ascii_lowercase()) => rest,
            _ => line,
        };
        let text = include_str!("../../config/example.toml").lines().map(uncomment).collect::<Vec<_>>().join("\n");
        let config = Config::load(&from_file(&text)).unwrap();
        let roots: Vec<String> = config.containers.iter().map(|container| container.root.to_string()).collect();
        assert_eq!(roots.iter().filter(|root| root.contains("://")).count(), 5, "{roots:?}");
    }

    #[test]
    fn no_text_causes_a_panic() {
        for text in
            ["", "=", "[", "containers = 1", "[containers]\na=1", "containers = [1, {}]", "cache = 5", "[[cache]]"]
        {
            let _ = Config::load(&from_file(text));
            let _ = Config::load(&set(&[text, &format!("containers={text}"), &format!("cache.decoded={text}")]));
        }
        assert!(Config::load(&from_file("cache = 5")).is_err());
        assert!(Config::load(&from_file("[[cache]]\ndecoded = 1")).is_err());
        assert!(Config::load(&from_file("containers = [1]")).is_err());
        assert!(Config::load(&from_file("containers = 1")).is_err());
    }

    #[test]
    fn a_rule_that_matches_no_container_is_an_error() {
        let load_with_rule = |rule: &str| {
            let containers = "[[containers]]\nname = 'em'\nroot = '/a'\n[[containers]]\nname = 'seg'\nroot = '/b'\n";
            Config::load(&from_file(&format!("{containers}[access]\nrules = ['{rule}']")))
        };
        for rule in ["/ = nobody", "/em = nobody", "/seg/draft = nobody", "/s%65g = nobody"] {
            assert!(load_with_rule(rule).is_ok(), "{rule}: {:?}", load_with_rule(rule));
        }
        for rule in ["/slice/em = nobody", "/Em = nobody", "/em2/x = nobody"] {
            let fault = load_with_rule(rule).unwrap_err().to_string();
            assert!(fault.contains("access.rules[0]") && fault.contains("em, seg"), "{fault}");
        }
    }

    #[test]
    fn only_variables_with_two_underscores_are_settings() {
        assert_eq!(environment_key("N5_CACHE__DECODED").as_deref(), Some("cache.decoded"));
        assert_eq!(environment_key("N5_SERVER__BASE_PATH").as_deref(), Some("server.base_path"));
        let nested = environment_key("N5_CONTAINER_DEFAULTS__STORE__PATH_STYLE");
        assert_eq!(nested.as_deref(), Some("container_defaults.store.path_style"));
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
