//! `GET /info/{path}`: one document about a group or dataset.

use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::compress::Compressible;
use super::problem::Problem;
use super::{Answer, Ask, forwarded, respond, target};
use crate::metadata::{self, Description, Kind, Node, Recommended};
use crate::n5::ObjectText;
use crate::view::{self, Known};

/// Longer attributes stand in an answer once: the spec of TensorStore then has only those that it interprets.
const MOST_REPEATED_BYTES: usize = 1 << 20;

pub(super) async fn answer(ask: &Ask<'_>) -> Answer {
    let Some((mount, key)) = ask.locate(&ask.target.segments)? else {
        // The containers' common root: a group without attributes.
        let copied = (ObjectText::default(), ObjectText::default());
        return Ok(document(ask, "", Known::default(), copied, HeaderValue::from_static("no-cache")));
    };
    let blame = |error| Problem::from(error).cached(mount.cache_missing.clone());
    let known = view::read_node_with_text(&mount.container, ask.access, &key).await.map_err(blame)?;
    let attributes = known.attributes(&mount.container, |_| true).await.map_err(blame)?;
    let is_dataset = matches!(&known.node.document, Some(Ok(document)) if document.describes_dataset());
    let repeated = if is_dataset && known.text_bytes() <= MOST_REPEATED_BYTES {
        known.attributes(&mount.container, metadata::TensorStore::repeats).await.map_err(blame)?
    } else {
        ObjectText::default()
    };
    let path = [mount.name.as_str(), key.as_str()].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
    // Never immutable: what is said depends on the release and on everything around the directory.
    Ok(document(ask, &path.join("/"), known, (attributes, repeated), mount.cache_missing.clone()))
}

/// The document about the directory `known`, whose attributes are copied: all, and those that TensorStore repeats in a spec.
fn document(
    ask: &Ask<'_>,
    path: &str,
    known: Known,
    (attributes, repeated): (ObjectText, ObjectText),
    cache: HeaderValue,
) -> axum::http::Response<axum::body::Body> {
    let Known { node, problems, memory, .. } = known;
    let mut description = metadata::describe(&node);
    description.problems.extend(problems.into_iter().map(metadata::Problem::from));
    let base = forwarded::public_base(ask);
    let encoded = path.split('/').map(|name| target::encode(name).to_string()).collect::<Vec<_>>().join("/");
    let urls = urls(&base, &encoded, &node, &description);
    let tensorstore = description.tensorstore.take().map(|tensorstore| {
        let host = base.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let prefix = base.strip_prefix(&host).unwrap_or_default();
        let kvstore = metadata::http_kvstore(&host, &format!("{prefix}/n5/{path}"));
        tensorstore.written(&kvstore, &repeated)
    });
    let mut members = match serde_json::to_value(&description) {
        Ok(Value::Object(members)) => members,
        _ => serde_json::Map::new(),
    };
    members.insert("volume".to_owned(), json!(metadata::volume(&node, path)));
    members.insert("path".to_owned(), json!(path));
    members.insert("urls".to_owned(), urls);
    let mut object = ObjectText::default();
    object.insert_object("attributes", &attributes);
    for (name, value) in &members {
        match &tensorstore {
            Some(tensorstore) if name == "tensorstore" => object.insert_object(name, tensorstore),
            _ => object.insert(name, value),
        }
    }
    drop((node, description, members, attributes, repeated));
    let mut text = object.into_text();
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

/// Where everything about the directory is, in every view that shows it.
fn urls(base: &str, encoded: &str, node: &Node, description: &Description) -> Value {
    let slash = if encoded.is_empty() { "" } else { "/" };
    let directory = |first: &str| format!("{base}/{first}/{encoded}{slash}");
    let mut urls = json!({
        "n5": directory("n5"),
        "attributes": directory("n5") + "attributes.json",
        "info": format!("{base}/info/{encoded}"),
        "page": directory("n5"),
        "neuroglancer": format!("n5://{base}/n5/{encoded}"),
        "slice": (description.kind == Kind::Dataset).then(|| format!("{base}/slice/{encoded}")),
        "stats": (description.kind != Kind::Group).then(|| format!("{base}/stats/{encoded}")),
    });
    for view in view::VIEWS {
        urls[view.name()] = json!(view.link(node, description).map(directory));
    }
    urls["recommended"] = json!(metadata::recommended(node, description).map(|form| {
        let (view, first, data_type) = match form {
            Recommended::N5 => ("n5", "n5".to_owned(), None),
            Recommended::Zarr3 => ("zarr3", "zarr3".to_owned(), None),
            Recommended::Reencoded(None) => ("as", "as/gzip".to_owned(), None),
            Recommended::Reencoded(Some(other)) => ("as", format!("as/gzip,{other}"), Some(other.name().to_owned())),
        };
        let scheme = if view == "zarr3" { "zarr3" } else { "n5" };
        json!({ "view": view, "source": format!("{scheme}://{}", directory(&first)), "data_type": data_type })
    }));
    urls
}
