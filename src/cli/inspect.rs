//! `n5-server inspect`: prints the information of `/info`, taken from the router in this process, for people.

mod text;

use std::sync::Arc;

use anyhow::{Context, bail};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use tokio::runtime::Builder;
use tower::ServiceExt;

use self::text::TreeListing;
use super::arguments::InspectArgs;
use super::block_on::block_on;
use super::exit::write_stdout;
use crate::config::{CacheControl, Config, ListenAddress};
use crate::container::{Container, EntryKind, Resources};
use crate::http::{self, App};
use crate::server::{container_settings, http_options, mount, open_store};
use crate::store::Key;

/// Maximum number of groups and datasets in a tree.
const MAX_TREE_LINES: usize = 500;

/// Maximum number of entries read from one directory.
const MAX_ENTRIES: usize = 10_000;

/// Prints a description of a container, group or dataset and returns the exit status.
///
/// # Errors
/// If it does not exist or cannot be read.
pub(super) fn inspect(config: &Config, args: &InspectArgs) -> anyhow::Result<u8> {
    let text = block_on(Builder::new_multi_thread(), run(config, args))?;
    write_stdout(&format!("{}\n", text.trim_end()))?;
    Ok(0)
}

async fn run(config: &Config, args: &InspectArgs) -> anyhow::Result<String> {
    let [container_config] = config.containers.as_slice() else { bail!("inspect takes one container") };
    let resources = Resources::new(container_settings(config));
    let container = Container::new(open_store(container_config, config)?, Arc::clone(&resources));
    let mount = mount("", container.clone(), CacheControl::Revalidate);
    let name = args.dataset.trim_matches('/');
    let key = if name.is_empty() { Key::root() } else { Key::parse(name)? };
    let client =
        InProcessClient { app: App::new(vec![mount], resources, http_options(config, None), String::new), config };
    let body = client.info(&key).await?;
    if args.json {
        return Ok(body);
    }
    let document = document(&body).context("/info")?;
    let mut levels = Vec::new();
    for path in document["multiscale"]["levels"].as_array().into_iter().flatten() {
        let path = path["path"].as_str().unwrap_or_default();
        let level_key = Key::from_segments(key.segments().chain(path.split('/')))?;
        let info = client.info(&level_key).await.unwrap_or_default();
        levels.push((path.to_owned(), self::document(&info).unwrap_or_default()));
    }
    let is_group = document["kind"] == "group";
    let tree = if is_group { Some(tree(&container, &client, &key).await?) } else { None };
    let title = if key.is_root() { container_config.root.display().to_string() } else { key.as_str().to_owned() };
    Ok(text::render(&title, &document, &levels, tree.as_ref()))
}

/// Parses a document of `/info`, and replaces the attributes with their number: they may hold numbers and strings that
/// Rust's types cannot represent.
fn document(text: &str) -> serde_json::Result<Value> {
    #[derive(Deserialize)]
    struct InfoDocument {
        attributes: MemberCount,
        #[serde(rename = "tensorstore")]
        _tensorstore: IgnoredAny,
        #[serde(flatten)]
        others: Map<String, Value>,
    }
    let InfoDocument { attributes, mut others, .. } = serde_json::from_str(text)?;
    others.insert("attributes".to_owned(), attributes.0.into());
    Ok(Value::Object(others))
}

/// Number of members of a JSON object.
struct MemberCount(usize);

impl<'de> Deserialize<'de> for MemberCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MemberCountVisitor;
        impl<'de> Visitor<'de> for MemberCountVisitor {
            type Value = MemberCount;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<MemberCount, A::Error> {
                let mut count = 0;
                while members.next_entry::<IgnoredName, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(MemberCount(count))
            }
        }
        deserializer.deserialize_map(MemberCountVisitor)
    }
}

/// A member's name, which is not kept. It is read as bytes, since it may have unpaired surrogates.
struct IgnoredName;

impl<'de> Deserialize<'de> for IgnoredName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IgnoredNameVisitor;
        impl Visitor<'_> for IgnoredNameVisitor {
            type Value = IgnoredName;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a name")
            }

            fn visit_bytes<E>(self, _: &[u8]) -> Result<IgnoredName, E> {
                Ok(IgnoredName)
            }
        }
        deserializer.deserialize_bytes(IgnoredNameVisitor)
    }
}

/// A client of the server's own router, without a socket.
struct InProcessClient<'a> {
    app: Arc<App>,
    config: &'a Config,
}

impl InProcessClient<'_> {
    /// Returns the document of `/info` about `key`, as the server would answer it.
    async fn info(&self, key: &Key) -> anyhow::Result<String> {
        let path: Vec<String> = key.segments().map(|name| http::route::encode_segment(name).to_string()).collect();
        let host = match &self.config.server.listen {
            ListenAddress::Tcp(address) => address.to_string(),
            ListenAddress::Unix(_) => "localhost".to_owned(),
        };
        let base = &self.config.server.base_path;
        let request =
            Request::get(format!("{base}/info/{}", path.join("/"))).header("host", host).body(Body::empty())?;
        let response = http::router(Arc::clone(&self.app)).oneshot(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        if status != StatusCode::OK {
            let problem: Value = serde_json::from_str(&text).unwrap_or_default();
            let detail = problem["detail"].as_str().map_or_else(|| status.to_string(), str::to_owned);
            bail!("{:?}: {detail}", key.as_str());
        }
        Ok(text)
    }
}

/// Returns the tree below a group, depth first, within the limits of the display.
async fn tree(container: &Container, client: &InProcessClient<'_>, key: &Key) -> anyhow::Result<TreeListing> {
    let freshness = container.resources().request_freshness();
    let mut tree = TreeListing::default();
    // A stack: the next entry of the directory being walked is last.
    let mut pending: Vec<(Key, usize)> = Vec::new();
    let mut next_group = Some((key.clone(), 0));
    loop {
        if let Some((key, depth)) = next_group.take()
            && let Some(page) = container.list(freshness, &key, None, MAX_ENTRIES, false).await?
        {
            tree.is_truncated |= page.has_more;
            let directories = page.entries.iter().rev().filter(|entry| entry.kind != EntryKind::File);
            pending.extend(directories.filter_map(|entry| Some((key.child(&entry.name).ok()?, depth))));
        }
        let Some((key, depth)) = pending.pop() else { return Ok(tree) };
        if tree.lines.len() >= MAX_TREE_LINES {
            tree.is_truncated = true;
            return Ok(tree);
        }
        let info = client.info(&key).await.unwrap_or_default();
        let document = document(&info).unwrap_or_default();
        tree.lines.push(text::tree_line(key.name().unwrap_or_default(), depth, &document));
        if depth < 64 {
            next_group = Some((key, depth + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_may_be_as_deep_as_the_server_accepts() {
        let nested = format!("{}{}", "[".repeat(63), "]".repeat(63));
        let text = format!(r#"{{"attributes":{{"a":{nested}}},"kind":"group","tensorstore":{{"x":{nested}}}}}"#);
        assert_eq!(document(&text).unwrap()["attributes"], 1);
    }

    #[test]
    fn attributes_are_counted_regardless_of_their_values() {
        let text = r#"{"attributes":{"a":1e999,"b":"\ud800","\udfff":[1]},"kind":"group","tensorstore":{"x":1e999}}"#;
        assert_eq!(document(text).unwrap(), serde_json::json!({"attributes": 3, "kind": "group"}));
    }
}
