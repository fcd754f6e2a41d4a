//! Merges the sources, deserializes the result, and collects every error.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::source::{self, Setting};
use super::{
    Config, ConfigError, ConfigErrors, ConfigFile, ConfigSources, ContainerConfig, DEFAULTS, RootArgument,
    SettingOrigin,
};

impl Config {
    /// Builds the configuration from the defaults and `sources`. The fields of [`ConfigSources`] are ordered from the
    /// weakest source to the strongest.
    ///
    /// # Errors
    /// All errors at once: text that is not TOML, unknown keys (with the nearest known one), values of the wrong form,
    /// and the errors of [`Config::validate`]. Further checks use the default of an invalid setting.
    pub fn load(sources: &ConfigSources) -> Result<Self, ConfigErrors> {
        let defaults: Table =
            DEFAULTS.parse().map_err(|error| ConfigErrors(vec![syntax_error("default.toml", &error)]))?;
        let mut merger = ConfigMerger::new(defaults);
        merger.add_sources(sources);
        let mut config = merger.deserialize()?;
        if !sources.roots.is_empty() {
            let inherited: ContainerConfig = merger
                .container_defaults()
                .try_into()
                .map_err(|error| ConfigErrors(vec![syntax_error("container_defaults", &error)]))?;
            let container = |root: &RootArgument| ContainerConfig {
                name: root.name.clone(),
                root: root.path.clone(),
                ..inherited.clone()
            };
            config.containers = sources.roots.iter().map(container).collect();
            merger.clear_container_origins();
        }
        let faults = config.validate(&sources.reserved).err().map(|faults| faults.0).unwrap_or_default();
        merger.errors.extend(faults.into_iter().map(|fault| merger.origins.locate(fault)));
        if merger.errors.is_empty() { Ok(config) } else { Err(ConfigErrors(merger.errors)) }
    }
}

/// Merges settings by key and records where each was written; defaults have no origin.
struct ConfigMerger {
    defaults: BTreeMap<String, Value>,
    settings: BTreeMap<String, Value>,
    origins: SettingOrigins,
    errors: Vec<ConfigError>,
}

impl ConfigMerger {
    fn new(defaults: Table) -> Self {
        let flat = source::flatten(defaults, |_key| SettingOrigin::Flag(String::new()));
        let mut defaults: BTreeMap<_, _> = flat.into_iter().map(|setting| (setting.key, setting.value)).collect();
        defaults.insert("containers".to_owned(), Value::Array(Vec::new()));
        Self { settings: defaults.clone(), defaults, origins: SettingOrigins::default(), errors: Vec::new() }
    }

    fn add_sources(&mut self, sources: &ConfigSources) {
        let mut settings = Vec::new();
        if let Some(file) = &sources.file {
            settings.extend(self.parse_file(file));
        }
        let default = |key: &str| self.defaults.get(key);
        settings.extend(source::environment_settings(&sources.environment, default, &mut self.errors));
        settings.extend(source::set_argument_settings(&sources.set, default, &mut self.errors));
        if let Some(listen) = &sources.listen {
            let (key, value) = ("server.listen".to_owned(), listen.as_str().into());
            settings.push(Setting { key, value, origin: SettingOrigin::Flag(format!("--listen {listen}")) });
        }
        for setting in settings {
            self.apply(setting);
        }
    }

    fn parse_file(&mut self, file: &ConfigFile) -> Vec<Setting> {
        match file.text.parse::<Table>() {
            Err(error) => {
                self.errors.push(syntax_error(&file.name, &error));
                Vec::new()
            }
            Ok(table) => {
                let mut lines = BTreeMap::new();
                if let Ok(document) = DeTable::parse(&file.text) {
                    collect_key_lines("", document.get_ref(), &file.text, &mut lines);
                }
                let origin = |key: &str| SettingOrigin::File(file.name.clone(), lines.get(key).copied().unwrap_or(1));
                let inner = lines.keys().filter(|key| key.starts_with("containers"));
                self.origins.pending = inner.map(|key| (key.clone(), origin(key))).collect();
                source::flatten(table, origin)
            }
        }
    }

    fn apply(&mut self, setting: Setting) {
        let Setting { key, value, origin } = setting;
        let Some(default) = self.defaults.get(&key) else {
            self.errors.push(ConfigError::new(&key, self.unknown_key_message(&key)).with_origin(origin));
            return;
        };
        if key != "containers" {
            // A stronger source replaces a whole list: a merged list could not be made shorter.
            if default.is_array() != value.is_array() {
                let message =
                    if default.is_array() { "write a list, [...]" } else { "takes a single value, not a list" };
                self.errors.push(ConfigError::new(&key, message).with_origin(origin));
                return;
            }
            self.origins.insert(&key, origin);
            self.settings.insert(key, value);
            return;
        }
        self.clear_container_origins();
        if matches!(origin, SettingOrigin::File(..)) {
            let pending = std::mem::take(&mut self.origins.pending);
            self.origins.by_key.extend(pending);
        }
        self.origins.insert(&key, origin);
        let value = self.drop_unknown_container_keys(source::container_tables(value));
        self.settings.insert(key, value);
    }

    fn clear_container_origins(&mut self) {
        self.origins.by_key.retain(|key, _origin| !key.starts_with("containers"));
    }

    /// Returns the tables of `containers` without unknown keys, which are reported.
    fn drop_unknown_container_keys(&mut self, value: Value) -> Value {
        let Value::Array(items) = value else {
            let fault = ConfigError::new("containers", "write [[containers]] above the keys of each container");
            self.errors.push(self.origins.locate(fault));
            return Value::Array(Vec::new());
        };
        let inherited = self.container_defaults();
        let known_keys = || inherited.keys().map(String::as_str).chain(["name", "root"]);
        let mut tables = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            let mut filtered = Table::new();
            for (key, value) in item.as_table().cloned().unwrap_or_default() {
                if known_keys().any(|known| known == key) {
                    filtered.insert(key, value);
                } else {
                    let message = suggest("unknown key", nearest_key(&key, known_keys()));
                    self.errors
                        .push(self.origins.locate(ConfigError::new(format!("containers[{index}].{key}"), message)));
                }
            }
            tables.push(Value::Table(filtered));
        }
        Value::Array(tables)
    }

    fn unknown_key_message(&self, key: &str) -> String {
        let last_segment = key.rsplit('.').next().unwrap_or(key);
        let same_name =
            self.defaults.keys().find(|known| known.split_once('.').is_some_and(|(_, k)| k == last_segment));
        if let Some(known) = nearest_key(key, self.defaults.keys().map(String::as_str)) {
            return suggest("unknown key", Some(known));
        }
        suggest("unknown key", same_name.map(String::as_str))
    }

    /// Deserializes the merged settings. Each setting of the wrong form is reported and replaced by its default, then
    /// deserialization is repeated, so all such errors show at once.
    fn deserialize(&mut self) -> Result<Config, ConfigErrors> {
        loop {
            let Err(error) = serde_path_to_error::deserialize::<_, Config>(Value::Table(self.to_table())) else {
                self.inherit_container_defaults();
                let config = Value::Table(self.to_table()).try_into();
                return config.map_err(|error| ConfigErrors(vec![syntax_error("containers", &error)]));
            };
            let path = error.path().to_string();
            let fault = ConfigError::new(&path, error.inner().message().trim());
            self.errors.push(self.origins.locate(fault));
            if !self.reset_to_default(&path) {
                return Err(ConfigErrors(std::mem::take(&mut self.errors)));
            }
        }
    }

    /// Replaces the setting at `path` by its default. Returns false if it already was the default.
    fn reset_to_default(&mut self, path: &str) -> bool {
        if let Some((index, key)) = container_path(path) {
            let table = self.settings.get_mut("containers").and_then(Value::as_array_mut);
            let table = table.and_then(|items| items.get_mut(index)).and_then(Value::as_table_mut);
            return table.is_some_and(|table| table.remove(key).is_some());
        }
        let key = path.split('[').next().unwrap_or(path);
        let Some(default) = self.defaults.get(key) else { return false };
        self.settings.insert(key.to_owned(), default.clone()).is_some_and(|old| old != *default)
    }

    fn to_table(&self) -> Table {
        let mut table = Table::new();
        for (path, value) in &self.settings {
            match path.split_once('.') {
                None => drop(table.insert(path.clone(), value.clone())),
                Some((section, key)) => {
                    let inner = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
                    if let Value::Table(inner) = inner {
                        inner.insert(key.to_owned(), value.clone());
                    }
                }
            }
        }
        table
    }

    /// Returns the settings of `container_defaults`.
    fn container_defaults(&self) -> Table {
        let inherited = |(key, value): (&String, &Value)| {
            Some((key.strip_prefix("container_defaults.")?.to_owned(), value.clone()))
        };
        self.settings.iter().filter_map(inherited).collect()
    }

    /// Gives each container the settings of `container_defaults` that it does not have.
    fn inherit_container_defaults(&mut self) {
        let inherited = self.container_defaults();
        let containers = self.settings.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_table_mut) {
            for (key, value) in &inherited {
                container.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
    }
}

/// Places where settings were written, by key.
#[derive(Default)]
struct SettingOrigins {
    by_key: BTreeMap<String, SettingOrigin>,
    /// Origins within `containers` of the file, until that setting is merged.
    pending: BTreeMap<String, SettingOrigin>,
}

impl SettingOrigins {
    fn insert(&mut self, key: &str, origin: SettingOrigin) {
        self.by_key.insert(key.to_owned(), origin);
    }

    /// Adds to the error the origin of its key, or of the nearest enclosing key.
    fn locate(&self, fault: ConfigError) -> ConfigError {
        let mut key = fault.key.as_str();
        loop {
            if let Some(origin) = self.by_key.get(key) {
                let origin = origin.clone();
                return fault.with_origin(origin);
            }
            match key.rfind(['.', '[']) {
                Some(end) => key = key.get(..end).unwrap_or_default(),
                None => return fault,
            }
        }
    }
}

/// Collects the line of every key of a document, such as `section.key` and `containers[0].name`.
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

/// Returns the known key most similar to `key`, if any is similar enough.
fn nearest_key<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const MIN_SIMILARITY: f64 = 0.7;
    known
        .map(|known| (strsim::normalized_damerau_levenshtein(key, known), known))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

fn suggest(message: &str, known: Option<&str>) -> String {
    known.map_or_else(|| message.to_owned(), |known| format!("{message}; did you mean {known}?"))
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
