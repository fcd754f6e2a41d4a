//! `GET /info/{path}`: one document about a group or dataset.

use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::compress::Compressible;
use super::problem::Problem;
use super::{Answer, Ask, Mount, forwarded, respond, target};
use crate::container::{GroupState, ReadError};
use crate::metadata::{self, Kind, Node};
use crate::n5::{Document, DocumentError};
use crate::store::Key;

/// Children of a group that may be levels of a pyramid; more are not looked at.
const CHILDREN: usize = 1000;

pub(super) async fn answer(ask: &Ask<'_>) -> Answer {
    let Some((mount, key)) = ask.app.locate(&ask.target.segments)? else {
        // The containers' common root: a group without attributes.
        return Ok(document(ask, "", &Node::default(), HeaderValue::from_static("no-cache")));
    };
    let node =
        node(ask, mount, &key).await.map_err(|error| Problem::from(error).cached(mount.cache_missing.clone()))?;
    let path = [mount.name.as_str(), key.as_str()].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
    Ok(document(ask, &path.join("/"), &node, mount.cache_found.clone()))
}

/// Reads what the description of `key` needs: its attributes and those around it.
async fn node(ask: &Ask<'_>, mount: &Mount, key: &Key) -> Result<Node, ReadError> {
    let container = &mount.container;
    let document = attributes(ask, mount, key).await?;
    let is_dataset = matches!(&document, Some(Ok(document)) if document.describes_dataset());
    let mut node = Node { document, ..Node::default() };
    if !is_dataset {
        match container.directories(key, CHILDREN).await? {
            Some(children) => node.children = children,
            None => return Err(ReadError::NotFound(key.clone())),
        }
    }
    let mut above = key.parent();
    while let Some(ancestor) = above {
        let document = attributes(ask, mount, &ancestor).await?;
        node.ancestors.push(document.and_then(Result::ok).unwrap_or_default());
        above = ancestor.parent();
    }
    node.ancestors.reverse();
    for path in metadata::wanted(&node) {
        let Ok(below) = Key::from_segments(key.segments().chain(path.split('/'))) else { continue };
        if let Some(Ok(document)) = attributes(ask, mount, &below).await? {
            node.child_documents.insert(path, document);
        }
    }
    Ok(node)
}

async fn attributes(
    ask: &Ask<'_>,
    mount: &Mount,
    key: &Key,
) -> Result<Option<Result<Document, DocumentError>>, ReadError> {
    Ok(match &mount.container.group(ask.access, key).await?.state {
        GroupState::NoAttributes => None,
        GroupState::Broken(error) => Some(Err(error.clone())),
        GroupState::Attributes(document) | GroupState::Unusable(document, _) => Some(Ok(document.clone())),
        GroupState::Dataset(dataset) => Some(Ok(dataset.attributes.document().clone())),
    })
}

fn document(ask: &Ask<'_>, path: &str, node: &Node, cache: HeaderValue) -> axum::http::Response<axum::body::Body> {
    let description = metadata::describe(node);
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
    members.insert("path".to_owned(), json!(path));
    members.insert("tensorstore".to_owned(), json!(tensorstore));
    members.insert("urls".to_owned(), urls);
    let mut response = respond(StatusCode::OK, "application/json", Value::Object(members).to_string());
    response.headers_mut().insert(CACHE_CONTROL, cache);
    response.extensions_mut().insert(Compressible);
    response
}
