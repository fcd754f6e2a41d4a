//! `GET /info/{path}`: one document about a group or dataset.

use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::compress::Compressible;
use super::problem::Problem;
use super::{HandlerResult, RequestContext, forwarded, respond, route};
use crate::metadata::{self, Description, NeuroglancerSource, Node, NodeKind};
use crate::n5::JsonObjectBuilder;
use crate::view::{self, LoadedNode};

/// Maximum length of attributes that the response repeats in the TensorStore spec. With longer attributes, the spec has
/// only those that TensorStore interprets, so that the response contains them once.
const MAX_REPEATED_BYTES: usize = 1 << 20;

pub(super) async fn answer(ask: &RequestContext<'_>) -> HandlerResult {
    let Some((mount, key)) = ask.locate(&ask.target.segments)? else {
        // The common root of the containers is a group without attributes.
        let copied = (JsonObjectBuilder::default(), JsonObjectBuilder::default());
        return Ok(document(ask, "", LoadedNode::default(), copied, HeaderValue::from_static("no-cache")));
    };
    let blame = |error| Problem::from(error).with_cache_control_if_missing(mount.missing_cache_control.clone());
    let known = view::read_node_with_text(&mount.container, ask.freshness, &key).await.map_err(blame)?;
    let attributes = known.attributes(&mount.container, |_| true).await.map_err(blame)?;
    let is_dataset = matches!(&known.node.document, Some(Ok(document)) if document.describes_dataset());
    let repeated = if is_dataset && known.text_bytes() <= MAX_REPEATED_BYTES {
        known.attributes(&mount.container, metadata::TensorStoreInfo::is_passed_through).await.map_err(blame)?
    } else {
        JsonObjectBuilder::default()
    };
    let path = [mount.name.as_str(), key.as_str()].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
    // Never immutable: the document depends on the server's release and on everything around the directory.
    Ok(document(ask, &path.join("/"), known, (attributes, repeated), mount.missing_cache_control.clone()))
}

/// Returns the document about the directory `known`. The pair holds copies of its attributes: all of them, and those
/// that a TensorStore spec repeats.
fn document(
    ask: &RequestContext<'_>,
    path: &str,
    known: LoadedNode,
    (attributes, repeated): (JsonObjectBuilder, JsonObjectBuilder),
    cache: HeaderValue,
) -> axum::http::Response<axum::body::Body> {
    let LoadedNode { node, problems, memory, .. } = known;
    let mut description = metadata::describe(&node);
    description.problems.extend(problems.into_iter().map(metadata::MetadataProblem::from));
    let base = forwarded::public_base_url(ask);
    let encoded = path.split('/').map(|name| route::encode_segment(name).to_string()).collect::<Vec<_>>().join("/");
    let urls = urls(&base, &encoded, &node, &description);
    let tensorstore = description.tensorstore.take().map(|tensorstore| {
        let host = base.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let prefix = base.strip_prefix(&host).unwrap_or_default();
        let kvstore = metadata::http_kvstore(&host, &format!("{prefix}/n5/{path}"));
        tensorstore.to_object_text(&kvstore, &repeated)
    });
    let mut members = match serde_json::to_value(&description) {
        Ok(Value::Object(members)) => members,
        _ => serde_json::Map::new(),
    };
    members.insert("volume".to_owned(), json!(metadata::volume_kind(&node, path)));
    members.insert("path".to_owned(), json!(path));
    members.insert("urls".to_owned(), urls);
    let mut object = JsonObjectBuilder::default();
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

/// Returns the URLs of the directory at every endpoint, and in every view that shows it.
fn urls(base: &str, encoded: &str, node: &Node, description: &Description) -> Value {
    let slash = if encoded.is_empty() { "" } else { "/" };
    let directory = |first: &str| format!("{base}/{first}/{encoded}{slash}");
    let mut urls = json!({
        "n5": directory("n5"),
        "attributes": directory("n5") + "attributes.json",
        "info": format!("{base}/info/{encoded}"),
        "page": directory("n5"),
        "neuroglancer": format!("n5://{base}/n5/{encoded}"),
        "slice": (description.kind == NodeKind::Dataset).then(|| format!("{base}/slice/{encoded}")),
        "stats": (description.kind != NodeKind::Group).then(|| format!("{base}/stats/{encoded}")),
    });
    for view in view::VIEWS {
        urls[view.name()] = json!(view.link_prefix(node, description).map(directory));
    }
    urls["recommended"] = json!(metadata::recommended_source(node, description).map(|form| {
        let (view, first, data_type) = match form {
            NeuroglancerSource::N5 => ("n5", "n5".to_owned(), None),
            NeuroglancerSource::Zarr3 => ("zarr3", "zarr3".to_owned(), None),
            NeuroglancerSource::Reencoded(None) => ("as", "as/gzip".to_owned(), None),
            NeuroglancerSource::Reencoded(Some(other)) => {
                ("as", format!("as/gzip,{other}"), Some(other.name().to_owned()))
            }
        };
        let scheme = if view == "zarr3" { "zarr3" } else { "n5" };
        json!({ "view": view, "source": format!("{scheme}://{}", directory(&first)), "data_type": data_type })
    }));
    urls
}
