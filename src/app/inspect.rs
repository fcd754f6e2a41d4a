//! `n5-server inspect`: what `/info` knows, asked of the router in this process, for people.

mod text;

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, bail};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use tower::ServiceExt;

use self::text::{Level, Tree};
use super::mounts::{mount, store};
use super::{options, settings};
use crate::config::{CachePolicy, Config, Inspect, Listen};
use crate::container::{Container, EntryKind, Resources};
use crate::http::{self, App};
use crate::store::Key;

/// Groups and datasets that a tree shows.
const MAX_TREE: usize = 500;

/// Entries of one directory that are looked at.
const MAX_ENTRIES: usize = 10_000;

/// Prints what a container, group or dataset is; the exit status.
///
/// # Errors
/// When there is no such thing, or it cannot be read.
pub fn inspect(config: &Config, wanted: &Inspect) -> anyhow::Result<u8> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot be started")?;
    let shown = runtime.block_on(run(config, wanted));
    // A read that hangs in the storage must not keep the process.
    runtime.shutdown_background();
    let text = shown?;
    // A reader that has seen enough (`| head`) is not a fault.
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(0),
    }
}

async fn run(config: &Config, wanted: &Inspect) -> anyhow::Result<String> {
    let [place] = config.containers.as_slice() else { bail!("inspect takes one container") };
    let resources = Resources::new(settings(config));
    let container = Container::new(store(place, config)?, Arc::clone(&resources));
    let mount = mount("", container.clone(), CachePolicy::Revalidate);
    let name = wanted.dataset.trim_matches('/');
    let key = if name.is_empty() { Key::root() } else { Key::parse(name)? };
    let asked = Asked { app: App::new(vec![mount], resources, options(config, None), String::new), config };
    let body = asked.info(&key).await?;
    if wanted.json {
        return Ok(body);
    }
    let document = document(&body).context("/info")?;
    let mut levels = Vec::new();
    for path in document["multiscale"]["levels"].as_array().into_iter().flatten() {
        let path = path["path"].as_str().unwrap_or_default();
        let below = Key::from_segments(key.segments().chain(path.split('/')))?;
        let info = asked.info(&below).await.unwrap_or_default();
        levels.push(Level { path: path.to_owned(), info: self::document(&info).unwrap_or_default() });
    }
    let is_group = document["kind"] == "group";
    let tree = if is_group { Some(tree(&container, &asked, &key).await?) } else { None };
    let shown = if key.is_root() { place.root.display().to_string() } else { key.as_str().to_owned() };
    Ok(text::shown(&shown, &document, &levels, tree.as_ref()))
}

/// A document of `/info`, with the number of the attributes in their place: they may hold numbers and strings that Rust's
/// types cannot.
fn document(text: &str) -> serde_json::Result<Value> {
    #[derive(Deserialize)]
    struct Info {
        attributes: Count,
        #[serde(rename = "tensorstore")]
        _tensorstore: IgnoredAny,
        #[serde(flatten)]
        others: Map<String, Value>,
    }
    let Info { attributes, mut others, .. } = serde_json::from_str(text)?;
    others.insert("attributes".to_owned(), attributes.0.into());
    Ok(Value::Object(others))
}

/// Number of the members of an object.
struct Count(usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counting;
        impl<'de> Visitor<'de> for Counting {
            type Value = Count;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while members.next_entry::<Name, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
        }
        deserializer.deserialize_map(Counting)
    }
}

/// A name, of which nothing is kept; as bytes, since it may have unpaired surrogates.
struct Name;

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Passing;
        impl Visitor<'_> for Passing {
            type Value = Name;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a name")
            }

            fn visit_bytes<E>(self, _: &[u8]) -> Result<Name, E> {
                Ok(Name)
            }
        }
        deserializer.deserialize_bytes(Passing)
    }
}

/// The server's own router, without a socket.
struct Asked<'a> {
    app: Arc<App>,
    config: &'a Config,
}

impl Asked<'_> {
    /// The document of `/info` about `key`, as the server would answer.
    async fn info(&self, key: &Key) -> anyhow::Result<String> {
        let path: Vec<String> = key.segments().map(|name| http::target::encode(name).to_string()).collect();
        let host = match &self.config.server.listen {
            Listen::Tcp(address) => address.to_string(),
            Listen::Unix(_) => "localhost".to_owned(),
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

/// What is below a group, depth first, as far as it is shown.
async fn tree(container: &Container, asked: &Asked<'_>, key: &Key) -> anyhow::Result<Tree> {
    let access = container.resources().begin();
    let mut tree = Tree::default();
    // The next of each directory that is being walked come last.
    let mut left: Vec<(Key, usize)> = Vec::new();
    let mut below = Some((key.clone(), 0));
    loop {
        if let Some((key, depth)) = below.take()
            && let Some(page) = container.list(access, &key, None, MAX_ENTRIES, false).await?
        {
            tree.is_cut |= page.more;
            let directories = page.entries.iter().rev().filter(|entry| entry.kind != EntryKind::File);
            left.extend(directories.filter_map(|entry| Some((key.child(&entry.name).ok()?, depth))));
        }
        let Some((key, depth)) = left.pop() else { return Ok(tree) };
        if tree.lines.len() >= MAX_TREE {
            tree.is_cut = true;
            return Ok(tree);
        }
        let info = asked.info(&key).await.unwrap_or_default();
        let document = document(&info).unwrap_or_default();
        tree.lines.push(text::line(key.name().unwrap_or_default(), depth, &document));
        if depth < 64 {
            below = Some((key, depth + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_counted_whatever_they_hold() {
        let text = r#"{"attributes":{"a":1e999,"b":"\ud800","\udfff":[1]},"kind":"group","tensorstore":{"x":1e999}}"#;
        assert_eq!(document(text).unwrap(), serde_json::json!({"attributes": 3, "kind": "group"}));
    }
}
