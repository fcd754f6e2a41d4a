use super::*;
use crate::config::{CacheControl, EntityTagSource, ListenAddress, LogFormat, RootArgument, SymlinkPolicy};

fn from_file(text: &str) -> ConfigSources {
    ConfigSources { file: Some(ConfigFile { name: "lab.toml".into(), text: text.into() }), ..ConfigSources::default() }
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
    assert_eq!(config.cache.decoded, 2 << 20);
    assert_eq!(config.cache.stored, 3 << 20);
    assert_eq!(config.server.listen, ListenAddress::Tcp("127.0.0.1:4".parse().unwrap()));
}

#[test]
fn the_last_set_wins() {
    assert_eq!(Config::load(&set(&["server.threads=1", "server.threads=2"])).unwrap().server.threads, 2);
}

#[test]
fn every_setting_can_come_from_the_environment() {
    let defaults: Table = DEFAULTS.parse().unwrap();
    for setting in source::flatten(defaults, |_| SettingOrigin::Flag(String::new())) {
        let variable = format!("N5_{}", setting.key.to_uppercase().replacen('.', "__", 1));
        let text = setting.value.as_str().map_or_else(|| setting.value.to_string(), str::to_owned);
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
        ];
        if texts.contains(&setting.key.as_str()) {
            // Any text is a valid path, name or claim.
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
    sources.roots = vec![RootArgument { name: String::new(), path: "/c".into() }];
    let config = Config::load(&sources).unwrap();
    assert_eq!(config.containers.len(), 1);
    assert_eq!(config.containers[0].root.to_str(), Some("/c"));
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
    assert_eq!(config.containers.iter().map(|container| container.must_be_mount).collect::<Vec<_>>(), [false, true]);
    let mut sources = from_file(text);
    sources.roots = vec![RootArgument { name: String::new(), path: "/c".into() }];
    let container = &Config::load(&sources).unwrap().containers[0];
    assert_eq!(
        (container.symlinks, container.must_be_mount, container.entity_tag),
        (SymlinkPolicy::Deny, true, EntityTagSource::Inode)
    );
    let tags: Vec<_> = config.containers.iter().map(|container| container.entity_tag).collect();
    assert_eq!(tags, [EntityTagSource::Mtime, EntityTagSource::Inode]);
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
    assert!(from_environment.contains("environment variable N5_CACHE__DECODEDD: cache.decodedd: unknown key; did you"));
    assert!(load_error(&set(&["cache.decodedd=1"])).contains("--set cache.decodedd=1: cache.decodedd: unknown key"));
}

#[test]
fn all_faults_are_reported_at_once() {
    let mut sources = from_file(
        r#"[server]
listen = "localhost:8080"
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
fn no_text_causes_a_panic() {
    for text in ["", "=", "[", "containers = 1", "[containers]\na=1", "containers = [1, {}]", "cache = 5", "[[cache]]"]
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
