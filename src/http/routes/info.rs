//! `GET /info/{path}`: one document about a group or dataset.

use axum::http::HeaderValue;
use serde_json::{Value, json};

use crate::http::request::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::{forwarded, route};
use crate::view::{self, LoadedNode};
use n5_format::JsonObjectBuilder;
use n5_metadata::{Description, NeuroglancerSource, Node, NodeKind};

/// Maximum length of attributes that are repeated in the TensorStore spec. If they are longer, the spec has only the
/// attributes that TensorStore interprets, so that the response contains the others only once.
const MAX_REPEATED_BYTES: usize = 1 << 20;

pub(crate) async fn handle(context: &RequestContext<'_>) -> HandlerResult {
    let Some((mount, key)) = context.locate(&context.target.segments)? else {
        // The common root of the containers is a group without attributes.
        let no_attributes = (JsonObjectBuilder::default(), JsonObjectBuilder::default());
        let no_cache = HeaderValue::from_static("no-cache");
        return document(context, "", LoadedNode::default(), no_attributes, no_cache);
    };
    let to_problem = |error| mount.problem(error);
    let loaded = view::read_node_with_text(&mount.container, context.read_options, &key).await.map_err(to_problem)?;
    let attributes = loaded.attributes(&mount.container, |_| true).await.map_err(to_problem)?;
    let is_dataset = matches!(&loaded.node.document, Some(Ok(document)) if document.describes_dataset());
    let tensorstore_attributes = if is_dataset && loaded.text_bytes() <= MAX_REPEATED_BYTES {
        loaded
            .attributes(&mount.container, n5_metadata::TensorStoreInfo::is_passed_through)
            .await
            .map_err(to_problem)?
    } else {
        JsonObjectBuilder::default()
    };
    // The response is never immutable, because it depends on the version of the server and on the enclosing groups.
    let cache_control = mount.missing_cache_control.clone();
    document(context, &mount.path_of(&key), loaded, (attributes, tensorstore_attributes), cache_control)
}

/// Returns the response about the directory `loaded`. The pair holds copies of all its attributes, and of those that
/// the TensorStore spec repeats.
fn document(
    context: &RequestContext<'_>,
    path: &str,
    loaded: LoadedNode,
    (attributes, tensorstore_attributes): (JsonObjectBuilder, JsonObjectBuilder),
    cache_control: HeaderValue,
) -> HandlerResult {
    let LoadedNode { node, problems, memory, .. } = loaded;
    let mut description = n5_metadata::describe(&node);
    description.problems.extend(problems.into_iter().map(n5_metadata::MetadataProblem::from));
    let base = forwarded::public_base_url(context.parts, context.peer, context.presented, &context.app.options);
    let urls = urls(&base, path, &node, &description);
    let tensorstore = description
        .tensorstore
        .take()
        .map(|tensorstore| tensorstore.to_object_text(&kvstore(&base, path), &tensorstore_attributes));
    let mut members = match serde_json::to_value(&description) {
        Ok(Value::Object(members)) => members,
        _ => serde_json::Map::new(),
    };
    members.insert("volume".to_owned(), json!(n5_metadata::volume_kind(&node, path)));
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
    drop((node, description, members, attributes, tensorstore_attributes));
    let entity = Entity { is_compressible: true, ..Entity::new("application/json", cache_control) };
    entity.respond(context.parts, respond::text_bytes(object.into_text(), memory))
}

/// Returns the member `kvstore` of a TensorStore spec for the directory at `path`. `base` is the URL of this server.
fn kvstore(base: &str, path: &str) -> Value {
    let origin = base.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    let prefix = base.strip_prefix(&origin).unwrap_or_default();
    n5_metadata::http_kvstore(&origin, &format!("{prefix}/n5/{path}"))
}

/// Returns the URLs of a directory: one for each endpoint, and one for each view that can present the directory.
fn urls(base: &str, path: &str, node: &Node, description: &Description) -> Value {
    let encoded_path = route::encode_path(path.split('/'));
    let slash = if encoded_path.is_empty() { "" } else { "/" };
    let directory_url = |prefix: &str| format!("{base}/{prefix}/{encoded_path}{slash}");
    let mut urls = json!({
        "n5": directory_url("n5"),
        "attributes": directory_url("n5") + "attributes.json",
        "info": format!("{base}/info/{encoded_path}"),
        "page": directory_url("n5"),
        "neuroglancer": format!("n5://{base}/n5/{encoded_path}"),
        "slice": (description.kind == NodeKind::Dataset).then(|| format!("{base}/slice/{encoded_path}")),
        "stats": (description.kind != NodeKind::Group).then(|| format!("{base}/stats/{encoded_path}")),
    });
    for view in view::VIEWS {
        urls[view.name()] = json!(view.link_prefix(node, description).map(directory_url));
    }
    urls["recommended"] = json!(n5_metadata::recommended_source(node, description).map(|source| {
        let (view, prefix, data_type) = match source {
            NeuroglancerSource::N5 => ("n5", "n5".to_owned(), None),
            NeuroglancerSource::Zarr3 => ("zarr3", "zarr3".to_owned(), None),
            NeuroglancerSource::Reencoded(None) => ("as", "as/gzip".to_owned(), None),
            NeuroglancerSource::Reencoded(Some(target_type)) => {
                ("as", format!("as/gzip,{target_type}"), Some(target_type.name().to_owned()))
            }
        };
        let scheme = if view == "zarr3" { "zarr3" } else { "n5" };
        json!({ "view": view, "source": format!("{scheme}://{}", directory_url(&prefix)), "data_type": data_type })
    }));
    urls
}
