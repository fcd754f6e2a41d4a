//! The configuration as text: as TOML, and as the summary that `--check-config` prints.

use std::fmt::Write as _;

use super::sections::{Config, ContainerConfig, DefaultAccess, EntityTagSource};
use super::values;

impl Config {
    /// Returns the configuration as TOML that [`Config::load`] reads back.
    ///
    /// # Errors
    /// Returns an error if a path is not UTF-8, which TOML cannot represent.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Returns a summary of the configuration in a few lines.
    pub fn summary(&self) -> String {
        // Writing to a `String` cannot fail.
        let mut text = format!("listens on  {}", self.server.listen);
        if !self.server.base_path.is_empty() {
            let _ = write!(text, ", under {}", self.server.base_path);
        }
        if self.tls.is_enabled() {
            let _ = write!(text, ", with TLS by {}", self.tls.certificate.display());
        }
        if self.containers.is_empty() {
            text.push_str("\nserves      the embedded demo container");
        }
        for container in &self.containers {
            self.write_container(container, &mut text);
        }
        if self.has_access_control() {
            self.write_access(&mut text);
        }
        let size = values::size::format;
        let _ = write!(
            text,
            "\nmemory      {} at most: caches {} decoded, {} stored; budgets {} slices, {} decoding, {} transfer; {} threads",
            size(self.memory_bound_bytes()),
            size(self.cache.decoded),
            size(self.cache.stored),
            size(self.limits.slice_budget),
            size(self.limits.decode_budget),
            size(self.limits.transfer_budget),
            self.threads(),
        );
        let _ = write!(
            text,
            "\nconnections {} at most, which take up to {} MiB more",
            self.server.max_connections,
            self.max_connections_bytes().div_ceil(1 << 20)
        );
        let _ = write!(text, "\nsockets     up to {} MiB more, in the kernel", self.sockets_bytes().div_ceil(1 << 20));
        text
    }

    fn write_container(&self, container: &ContainerConfig, text: &mut String) {
        let slash = if container.name.is_empty() { "" } else { "/" };
        let _ = write!(
            text,
            "\nserves      {}/{}{slash} from {} (cache-control {}, symlinks {}{}{})",
            self.server.base_path,
            container.name,
            container.root,
            container.cache_control,
            container.symlinks.name(),
            if container.must_be_mount { ", must be a mount" } else { "" },
            if container.entity_tag == EntityTagSource::Inode { ", entity tags by inode" } else { "" },
        );
    }

    fn write_access(&self, text: &mut String) {
        let default = if self.access.default == DefaultAccess::Public { "public" } else { "private" };
        let rules = self.access.rules.len();
        let _ = write!(text, "\naccess      {default} except for {rules} rules; metrics: {}", self.access.metrics);
        if !self.access.tokens.as_os_str().is_empty() {
            let _ = write!(text, "; tokens of {}", self.access.tokens.display());
        }
        if !self.jwt.keys.is_empty() {
            let _ = write!(text, "; JWTs of {}", self.jwt.issuer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::ConfigSources;
    use super::*;

    #[test]
    fn the_summary_shows_addresses_containers_and_memory() {
        let mut config = Config::default();
        assert!(config.summary().contains("embedded demo"));
        let sources = ConfigSources {
            roots: vec![("em".into(), "/data/em.n5".into())],
            set: vec!["server.base_path=/n5data".into(), "server.threads=2".into()],
            ..ConfigSources::default()
        };
        config = Config::load(&sources).unwrap();
        insta::assert_snapshot!(config.summary());
    }
}
