//! Merges the sources, types the result once, and gathers every fault on the way.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::source::{self, Setting};
use super::{Config, ContainerConfig, DEFAULTS, Fault, Faults, File, Origin, Sources};

/// Keys of a table in `containers`.
const CONTAINER_KEYS: [&str; 6] = ["name", "root", "cache_control", "symlinks", "must_be_mount", "entity_tag"];

impl Config {
    /// Builds the configuration from the defaults and `sources`, which are listed in [`Sources`] weakest first.
    ///
    /// # Errors
    /// Every fault at once: text that is not TOML, unknown keys (with the nearest known one), values of the wrong
    /// form, and whatever [`Config::validate`] finds. A setting at fault counts as its default for the rest.
    pub fn load(sources: &Sources) -> Result<Self, Faults> {
        let defaults: Table = DEFAULTS.parse().map_err(|error| Faults(vec![syntax("default.toml", &error)]))?;
        let mut merge = Merge::new(defaults);
        merge.sources(sources);
        let mut config = merge.typed()?;
        if !sources.roots.is_empty() {
            let defaults = &config.container_defaults;
            config.containers = sources
                .roots
                .iter()
                .map(|root| ContainerConfig {
                    name: root.name.clone(),
                    root: root.path.clone(),
                    cache_control: defaults.cache_control,
                    symlinks: defaults.symlinks,
                    must_be_mount: defaults.must_be_mount,
                    entity_tag: defaults.entity_tag,
                })
                .collect();
            merge.forget_containers();
        }
        let faults = config.validate(&sources.reserved).err().map(|faults| faults.0).unwrap_or_default();
        merge.faults.extend(faults.into_iter().map(|fault| merge.origins.located(fault)));
        if merge.faults.is_empty() { Ok(config) } else { Err(Faults(merge.faults)) }
    }
}

/// Settings by key, and where each was written; defaults have no origin.
struct Merge {
    defaults: BTreeMap<String, Value>,
    settings: BTreeMap<String, Value>,
    origins: Origins,
    faults: Vec<Fault>,
}

impl Merge {
    fn new(defaults: Table) -> Self {
        let flat = source::flatten(defaults, |_key| Origin::Flag(String::new()));
        let mut defaults: BTreeMap<_, _> = flat.into_iter().map(|setting| (setting.key, setting.value)).collect();
        defaults.insert("containers".to_owned(), Value::Array(Vec::new()));
        Self { settings: defaults.clone(), defaults, origins: Origins::default(), faults: Vec::new() }
    }

    fn sources(&mut self, sources: &Sources) {
        let mut settings = Vec::new();
        if let Some(file) = &sources.file {
            settings.extend(self.file(file));
        }
        let default = |key: &str| self.defaults.get(key);
        settings.extend(source::environment(&sources.environment, default, &mut self.faults));
        settings.extend(source::set(&sources.set, default, &mut self.faults));
        if let Some(listen) = &sources.listen {
            let (key, value) = ("server.listen".to_owned(), listen.as_str().into());
            settings.push(Setting { key, value, origin: Origin::Flag(format!("--listen {listen}")) });
        }
        for setting in settings {
            self.put(setting);
        }
    }

    fn file(&mut self, file: &File) -> Vec<Setting> {
        match file.text.parse::<Table>() {
            Err(error) => {
                self.faults.push(syntax(&file.name, &error));
                Vec::new()
            }
            Ok(table) => {
                let mut lines = BTreeMap::new();
                if let Ok(document) = DeTable::parse(&file.text) {
                    table_lines("", document.get_ref(), &file.text, &mut lines);
                }
                let origin = |key: &str| Origin::File(file.name.clone(), lines.get(key).copied().unwrap_or(1));
                let inner = lines.keys().filter(|key| key.starts_with("containers"));
                self.origins.pending = inner.map(|key| (key.clone(), origin(key))).collect();
                source::flatten(table, origin)
            }
        }
    }

    fn put(&mut self, setting: Setting) {
        let Setting { key, value, origin } = setting;
        let Some(default) = self.defaults.get(&key) else {
            self.faults.push(Fault::new(&key, self.unknown(&key)).at(origin));
            return;
        };
        if key != "containers" {
            // What a stronger source says replaces a list, too: merged lists could not be made shorter.
            if default.is_array() != value.is_array() {
                let message = if default.is_array() { "write a list, [...]" } else { "is one value, not a list" };
                self.faults.push(Fault::new(&key, message).at(origin));
                return;
            }
            self.origins.insert(&key, origin);
            self.settings.insert(key, value);
            return;
        }
        self.forget_containers();
        if matches!(origin, Origin::File(..)) {
            let pending = std::mem::take(&mut self.origins.pending);
            self.origins.known.extend(pending);
        }
        self.origins.insert(&key, origin);
        let value = self.containers(source::container_tables(value));
        self.settings.insert(key, value);
    }

    fn forget_containers(&mut self) {
        self.origins.known.retain(|key, _origin| !key.starts_with("containers"));
    }

    /// The tables of `containers` without unknown keys, which are reported.
    fn containers(&mut self, value: Value) -> Value {
        let Value::Array(items) = value else {
            let fault = Fault::new("containers", "write [[containers]] above the keys of each container");
            self.faults.push(self.origins.located(fault));
            return Value::Array(Vec::new());
        };
        let mut tables = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            let mut kept = Table::new();
            for (key, value) in item.as_table().cloned().unwrap_or_default() {
                if CONTAINER_KEYS.contains(&key.as_str()) {
                    kept.insert(key, value);
                } else {
                    let message = suggest("unknown key", nearest(&key, CONTAINER_KEYS.into_iter()));
                    self.faults.push(self.origins.located(Fault::new(format!("containers[{index}].{key}"), message)));
                }
            }
            tables.push(Value::Table(kept));
        }
        Value::Array(tables)
    }

    fn unknown(&self, key: &str) -> String {
        let last = key.rsplit('.').next().unwrap_or(key);
        let elsewhere = self.defaults.keys().find(|known| known.split_once('.').is_some_and(|(_, k)| k == last));
        if let Some(known) = nearest(key, self.defaults.keys().map(String::as_str)) {
            return suggest("unknown key", Some(known));
        }
        suggest("unknown key", elsewhere.map(String::as_str))
    }

    /// Types the merged settings. One that has the wrong form is reported and replaced by its default until the
    /// rest is typed, so that all such faults show at once.
    fn typed(&mut self) -> Result<Config, Faults> {
        loop {
            let error = match serde_path_to_error::deserialize::<_, Config>(Value::Table(self.table())) {
                Ok(config) => return Ok(self.inherited(config)),
                Err(error) => error,
            };
            let path = error.path().to_string();
            let fault = Fault::new(&path, error.inner().message().trim());
            self.faults.push(self.origins.located(fault));
            if !self.heal(&path) {
                return Err(Faults(std::mem::take(&mut self.faults)));
            }
        }
    }

    /// Puts the default in the place of the setting at `path`; false when it is there already.
    fn heal(&mut self, path: &str) -> bool {
        if let Some((index, key)) = container_path(path) {
            let table = self.settings.get_mut("containers").and_then(Value::as_array_mut);
            let table = table.and_then(|items| items.get_mut(index)).and_then(Value::as_table_mut);
            return table.is_some_and(|table| table.remove(key).is_some());
        }
        let key = path.split('[').next().unwrap_or(path);
        let Some(default) = self.defaults.get(key) else { return false };
        self.settings.insert(key.to_owned(), default.clone()).is_some_and(|old| old != *default)
    }

    fn table(&self) -> Table {
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

    /// Gives containers what they do not say themselves.
    fn inherited(&self, mut config: Config) -> Config {
        let tables = self.settings.get("containers").and_then(Value::as_array);
        for (container, table) in config.containers.iter_mut().zip(tables.into_iter().flatten()) {
            if table.get("cache_control").is_none() {
                container.cache_control = config.container_defaults.cache_control;
            }
            if table.get("symlinks").is_none() {
                container.symlinks = config.container_defaults.symlinks;
            }
            if table.get("must_be_mount").is_none() {
                container.must_be_mount = config.container_defaults.must_be_mount;
            }
            if table.get("entity_tag").is_none() {
                container.entity_tag = config.container_defaults.entity_tag;
            }
        }
        config
    }
}

/// Where settings were written, by key.
#[derive(Default)]
struct Origins {
    known: BTreeMap<String, Origin>,
    /// Places inside `containers` of the file, until that setting is merged.
    pending: BTreeMap<String, Origin>,
}

impl Origins {
    fn insert(&mut self, key: &str, origin: Origin) {
        self.known.insert(key.to_owned(), origin);
    }

    /// The fault with the origin of its key, or of the nearest thing around it.
    fn located(&self, fault: Fault) -> Fault {
        let mut key = fault.key.as_str();
        loop {
            if let Some(origin) = self.known.get(key) {
                let origin = origin.clone();
                return fault.at(origin);
            }
            match key.rfind(['.', '[']) {
                Some(end) => key = key.get(..end).unwrap_or_default(),
                None => return fault,
            }
        }
    }
}

/// The line of every key of a document, `section.key` and `containers[0].name`.
fn table_lines(prefix: &str, table: &DeTable<'_>, text: &str, lines: &mut BTreeMap<String, usize>) {
    for (key, value) in table {
        let path = format!("{prefix}{}", key.get_ref());
        let line = |start: usize| text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        lines.insert(path.clone(), line(key.span().start));
        match value.get_ref() {
            DeValue::Table(inner) => table_lines(&format!("{path}."), inner, text, lines),
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    lines.insert(path.clone(), line(item.span().start));
                    if let Some(inner) = Spanned::get_ref(item).as_table() {
                        table_lines(&format!("{path}."), inner, text, lines);
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

/// Index and key of `containers[1].symlinks`.
fn container_path(path: &str) -> Option<(usize, &str)> {
    let (index, key) = path.strip_prefix("containers[")?.split_once("].")?;
    Some((index.parse().ok()?, key))
}

fn syntax(name: &str, error: &toml::de::Error) -> Fault {
    Fault::new("", format!("{name}: {}", error.to_string().trim_end().replace('\n', "\n  ")))
}

/// The known key most like `key`, if one is alike at all.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const ALIKE: f64 = 0.7;
    known
        .map(|known| (strsim::normalized_damerau_levenshtein(key, known), known))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

fn suggest(message: &str, known: Option<&str>) -> String {
    known.map_or_else(|| message.to_owned(), |known| format!("{message}; did you mean {known}?"))
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
