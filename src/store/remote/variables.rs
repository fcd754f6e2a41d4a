//! Variables of the environment that name credentials of stores.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Beginnings of the names of such variables.
const PREFIXES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// Variables by name. Their text is not shown, because some are secrets.
#[derive(Clone, Default)]
pub(super) struct Variables(BTreeMap<String, String>);

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Variables {
    /// Returns the variables of this process that are not empty.
    pub(super) fn from_env() -> Self {
        let all = std::env::vars_os();
        let text = all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self::new(text.filter(|(name, _)| name == "HOME" || PREFIXES.iter().any(|prefix| name.starts_with(prefix))))
    }

    /// Creates variables from pairs of names and values. Ignores empty values.
    pub(super) fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(pairs.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns true if one of the variables is set.
    pub(super) fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.0.contains_key(*name))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the path in the variable `name`, or the path below the home directory.
    pub(super) fn path(&self, name: &str, below_home: &str) -> Option<PathBuf> {
        let configured = self.get(name).map(PathBuf::from);
        configured.or_else(|| Some(PathBuf::from(self.get("HOME")?).join(below_home)))
    }

    /// Parses the lines of a file, each `KEY=VALUE`, as in the environment. Empty lines, comments that begin with `#`,
    /// a leading `export` and quotes around a value are allowed.
    ///
    /// # Errors
    /// Returns a message with the number of a line that has another form. It does not contain the line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut pairs = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let line = line.strip_prefix("export ").unwrap_or(line);
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| format!("line {} is not KEY=VALUE, such as AWS_ACCESS_KEY_ID=…", number + 1))?;
            let value = value.trim();
            let unquoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
            pairs.push((name.trim().to_ascii_uppercase(), unquoted.unwrap_or(value).to_owned()));
        }
        Ok(Self::new(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_file_are_variables() {
        let text = "# keys\nexport AWS_ACCESS_KEY_ID = AKIA\n\naws_secret_access_key=\"a=b\"\nAWS_SESSION_TOKEN=\n";
        let variables = Variables::parse(text).unwrap();
        assert_eq!(variables.get("AWS_ACCESS_KEY_ID"), Some("AKIA"));
        assert_eq!(variables.get("AWS_SECRET_ACCESS_KEY"), Some("a=b"));
        assert!(!variables.has_any(&["AWS_SESSION_TOKEN"]));
        assert!(!format!("{variables:?}").contains("AKIA"));
    }

    #[test]
    fn an_error_does_not_repeat_a_secret() {
        let error = Variables::parse("A=b\ncanary").unwrap_err();
        assert!(error.contains("line 2") && !error.contains("canary"), "{error}");
    }
}
