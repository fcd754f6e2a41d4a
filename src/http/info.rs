//! `GET /info/{path}`: one document about a group or dataset.

use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::compress::Compressible;
use super::problem::Problem;
use super::{Answer, Ask, Mount, forwarded, respond, target};
use crate::container::{ATTRIBUTES, GroupState, Memory, ReadError};
use crate::metadata::{self, Kind, Node};
use crate::n5::{Document, DocumentError};
use crate::store::Key;

/// Children of a group that may be levels of a pyramid; more are not looked at.
const CHILDREN: usize = 1000;

/// A parsed document, what is made of it and the answer take at most about this many times the memory of
/// its text.
const DESCRIBED_FACTOR: u64 = 64;

pub(super) async fn answer(ask: &Ask<'_>) -> Answer {
    let Some((mount, key)) = ask.app.locate(&ask.target.segments)? else {
        // The containers' common root: a group without attributes.
        return Ok(document(ask, "", Known::default(), HeaderValue::from_static("no-cache")));
    };
    let known =
        known(ask, mount, &key).await.map_err(|error| Problem::from(error).cached(mount.cache_missing.clone()))?;
    let path = [mount.name.as_str(), key.as_str()].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
    // Never immutable: what is said depends on the release and on everything around the directory.
    Ok(document(ask, &path.join("/"), known, mount.cache_missing.clone()))
}

/// What a description is made of.
#[derive(Default)]
struct Known {
    node: Node,
    /// Attributes that were not looked at, and why.
    problems: Vec<String>,
    /// Stands for the node and then for the answer.
    memory: Option<Memory>,
}

/// Reads what the description of `key` needs: its attributes and those around it.
async fn known(ask: &Ask<'_>, mount: &Mount, key: &Key) -> Result<Known, ReadError> {
    let mut texts =
        Texts { ask, mount, left_bytes: mount.container.resources().settings().attributes, problems: vec![] };
    let own_bytes = texts.admit(key).await?;
    let mut ancestors = Vec::new();
    let mut above = key.parent();
    while let Some(ancestor) = above {
        let bytes = texts.admit(&ancestor).await?;
        above = ancestor.parent();
        ancestors.push((ancestor, bytes));
    }
    ancestors.reverse();
    let mut bytes = own_bytes + ancestors.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let mut children = None;
    let mut wanted: Option<Vec<(String, Key, u64)>> = None;
    loop {
        let memory = mount.container.reserve(bytes.saturating_mul(DESCRIBED_FACTOR)).await?;
        let mut node = Node { document: texts.read(key, own_bytes).await?, ..Node::default() };
        for (ancestor, bytes) in &ancestors {
            let document = texts.read(ancestor, *bytes).await?;
            node.ancestors.push(document.and_then(Result::ok).unwrap_or_default());
        }
        if !matches!(&node.document, Some(Ok(document)) if document.describes_dataset()) {
            if children.is_none() {
                children = mount.container.directories(key, CHILDREN).await?;
            }
            node.children = children.clone().ok_or_else(|| ReadError::NotFound(key.clone()))?;
        }
        if let Some(wanted) = &wanted {
            for (path, below, bytes) in wanted {
                if let Some(Ok(document)) = texts.read(below, *bytes).await? {
                    node.child_documents.insert(path.clone(), document);
                }
            }
            return Ok(Known { node, problems: texts.problems, memory: Some(memory) });
        }
        let mut found = Vec::new();
        for path in metadata::wanted(&node) {
            let Ok(below) = Key::from_segments(key.segments().chain(path.split('/'))) else { continue };
            match texts.admit(&below).await? {
                0 => {}
                bytes => found.push((path, below, bytes)),
            }
        }
        if found.is_empty() {
            return Ok(Known { node, problems: texts.problems, memory: Some(memory) });
        }
        // Once more from the start, with memory for all: nobody waits for memory who holds some.
        bytes += found.iter().map(|(_, _, bytes)| bytes).sum::<u64>();
        wanted = Some(found);
    }
}

/// The attributes that one request may parse: together no more text than `limits.attributes`.
struct Texts<'a> {
    ask: &'a Ask<'a>,
    mount: &'a Mount,
    left_bytes: u64,
    problems: Vec<String>,
}

impl Texts<'_> {
    /// Length of the attributes of `key`; 0 where there are none or they are too much, which becomes a
    /// problem.
    async fn admit(&mut self, key: &Key) -> Result<u64, ReadError> {
        let Ok(file) = key.child(ATTRIBUTES) else { return Ok(0) };
        let Some(meta) = self.mount.container.meta(self.ask.access, &file).await? else { return Ok(0) };
        if meta.len > self.left_bytes {
            let limit = self.mount.container.resources().settings().attributes;
            self.problems.push(if meta.len > limit {
                format!(
                    "{file} has {} bytes and counts as missing: at most {limit} are parsed; the setting \
                     limits.attributes can be raised",
                    meta.len
                )
            } else {
                format!(
                    "{file} counts as missing: all attributes around this directory have more than {limit} bytes; \
                     the setting limits.attributes can be raised"
                )
            });
            return Ok(0);
        }
        self.left_bytes -= meta.len;
        // An empty file is no absent one.
        Ok(meta.len.max(1))
    }

    /// The attributes of `key`, which were admitted with `bytes`.
    async fn read(&self, key: &Key, bytes: u64) -> Result<Option<Result<Document, DocumentError>>, ReadError> {
        if bytes == 0 {
            return Ok(None);
        }
        let group = match self.mount.container.group(self.ask.access, key).await {
            // It has grown meanwhile.
            Err(ReadError::AttributesTooLarge { .. }) => return Ok(None),
            group => group?,
        };
        Ok(match &group.state {
            GroupState::NoAttributes => None,
            GroupState::Broken(error) => Some(Err(error.clone())),
            GroupState::Attributes(document) | GroupState::Unusable(document, _) => Some(Ok(document.clone())),
            GroupState::Dataset(dataset) => Some(Ok(dataset.attributes.document().clone())),
        })
    }
}

fn document(ask: &Ask<'_>, path: &str, known: Known, cache: HeaderValue) -> axum::http::Response<axum::body::Body> {
    let Known { node, problems, memory } = known;
    let mut description = metadata::describe(&node);
    description.problems.extend(problems);
    let base = forwarded::public_base(ask);
    let encoded = path.split('/').map(|name| target::encode(name).to_string()).collect::<Vec<_>>().join("/");
    let slash = if encoded.is_empty() { "" } else { "/" };
    let mut urls = json!({
        "n5": format!("{base}/n5/{encoded}{slash}"),
        "attributes": format!("{base}/n5/{encoded}{slash}attributes.json"),
        "info": format!("{base}/info/{encoded}"),
        "neuroglancer": format!("n5://{base}/n5/{encoded}"),
    });
    if description.kind == Kind::Dataset {
        urls["slice"] = json!(format!("{base}/slice/{encoded}"));
    }
    let tensorstore = description.tensorstore.as_ref().map(|tensorstore| {
        let host = base.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let prefix = base.strip_prefix(&host).unwrap_or_default();
        let kvstore = metadata::http_kvstore(&host, &format!("{prefix}/n5/{path}"));
        json!({ "spec": tensorstore.spec(Some(kvstore)), "schema": tensorstore.schema() })
    });
    let mut members = match serde_json::to_value(&description) {
        Ok(Value::Object(members)) => members,
        _ => serde_json::Map::new(),
    };
    members.insert("volume".to_owned(), json!(metadata::volume(&node, path)));
    members.insert("path".to_owned(), json!(path));
    members.insert("tensorstore".to_owned(), json!(tensorstore));
    members.insert("urls".to_owned(), urls);
    let mut text = Value::Object(members).to_string();
    drop((node, description));
    text.shrink_to_fit();
    let body = match memory {
        Some(mut memory) => {
            memory.shrink(text.len() as u64);
            memory.own(text.into())
        }
        None => text.into(),
    };
    let mut response = respond(StatusCode::OK, "application/json", body);
    response.headers_mut().insert(CACHE_CONTROL, cache);
    response.extensions_mut().insert(Compressible);
    response
}
