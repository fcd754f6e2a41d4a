//! The configuration as text: as TOML, and as the summary that `--check-config` prints.

use std::fmt::Write as _;

use super::memory_bounds::BASELINE_BYTES;
use super::sections::{Config, ContainerConfig, DefaultAccess, EntityTagSource, MemorySizes};
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
        let _ = write!(
            text,
            "\nmemory      {}MiB at most: {}; {} threads",
            self.memory_bound_bytes().div_ceil(1 << 20),
            self.sizes_summary(),
            self.threads(),
        );
        let _ = write!(
            text,
            "\nconnections {} at most, which take up to {} MiB more",
            self.server.max_connections,
            self.max_connections_bytes().div_ceil(1 << 20)
        );
        let _ = write!(text, "\nsockets     up to {} MiB more, in the kernel", self.sockets_bytes().div_ceil(1 << 20));
        let _ = write!(
            text,
            "\nlimit       {} MiB for all of these and {} MiB for the program ({})",
            self.memory_limit_bytes() >> 20,
            BASELINE_BYTES >> 20,
            self.memory_limit_origin()
        );
        text
    }

    /// Returns the sizes of caches and budgets as a phrase for the log and the summary.
    pub fn sizes_summary(&self) -> String {
        let size = values::size::format;
        let MemorySizes { decoded_cache, stored_cache, slice_budget, decode_budget, transfer_budget } =
            self.memory_sizes();
        format!(
            "caches {} decoded, {} stored; budgets {} slices, {} decoding, {} transfer",
            size(decoded_cache),
            size(stored_cache),
            size(slice_budget),
            size(decode_budget),
            size(transfer_budget),
        )
    }

    fn write_container(&self, container: &ContainerConfig, text: &mut String) {
        let slash = if container.name.is_empty() { "" } else { "/" };
        let _ = write!(
            text,
            "\nserves      {}/{}{slash} from {} (cache-control {}",
            self.server.base_path, container.name, container.root, container.cache_control,
        );
        if !container.is_remote() {
            let _ = write!(
                text,
                ", symlinks {}{}{}",
                container.symlinks.name(),
                if container.must_be_mount { ", must be a mount" } else { "" },
                if container.entity_tag == EntityTagSource::Inode { ", entity tags by inode" } else { "" },
            );
        }
        if container.immutable {
            text.push_str(", immutable");
        } else if let Some(missing) = container.missing_policy() {
            let metadata = container.metadata_policy(self.cache.recheck_cached_metadata);
            let data = container.data_policy(self.cache.recheck_cached_data);
            let _ = write!(text, ", compared with the store: attributes {metadata}, blocks {data}, missing {missing}");
        }
        text.push(')');
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

    #[test]
    fn the_summary_of_a_remote_container_shows_its_freshness() {
        let summary = |root: &str, set: &[&str]| {
            let sources = ConfigSources {
                roots: vec![(String::new(), root.into())],
                set: set.iter().map(|setting| (*setting).to_owned()).collect(),
                ..ConfigSources::default()
            };
            Config::load(&sources).unwrap().summary()
        };
        let of_bucket = summary("s3://bucket/em.n5", &["container_defaults.recheck_cached_data=2h"]);
        let freshness = "(cache-control revalidate, compared with the store: attributes 1m, blocks 2h, missing 1m)";
        assert!(of_bucket.contains(freshness), "{of_bucket}");
        let immutable = summary("s3://bucket/em.n5", &["container_defaults.immutable=true"]);
        assert!(immutable.contains("(cache-control revalidate, immutable)"), "{immutable}");
    }
}
