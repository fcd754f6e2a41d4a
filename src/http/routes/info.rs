//! `GET /info/{path}`: one document about a group or dataset. With `recursive=1`, `recursive_info` answers.

use axum::http::HeaderValue;
use serde_json::{Value, json};

use crate::container::ZarrFormat;
use crate::http::request::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::routes::recursive_info::{self, SubtreeQuery};
use crate::http::{forwarded, route};
use crate::view::{self, LoadedNode};
use n5_format::JsonObjectBuilder;
use n5_metadata::{ChannelDisplay, Description, NeuroglancerSource, Node, NodeKind};

/// Maximum length of attributes that are repeated in the TensorStore spec. If they are longer, the spec has only the
/// attributes that TensorStore interprets, so that the response contains the others only once.
const MAX_REPEATED_BYTES: usize = 1 << 20;

pub(crate) async fn handle(context: &RequestContext<'_>) -> HandlerResult {
    if let Some(query) = SubtreeQuery::parse(context.parts.uri.query())? {
        return recursive_info::handle(context, &query).await;
    }
    let Some((mount, key)) = context.locate(&context.target.segments)? else {
        // The common root of the containers is a group without attributes.
        let no_attributes = (JsonObjectBuilder::default(), JsonObjectBuilder::default());
        let no_cache = HeaderValue::from_static("no-cache");
        return document(context, DescribedDirectory::default(), no_attributes, no_cache);
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
    let zarr = match &loaded.node.document {
        Some(_) => None,
        None => mount.container.zarr_store_around(context.read_options, &key).await.map_err(to_problem)?,
    };
    // The response is never immutable, because it depends on the version of the server and on the enclosing groups.
    let cache_control = mount.missing_cache_control.clone();
    let is_mount = key.is_root() && !mount.name.is_empty();
    let is_container = is_mount || view::is_container_root(&key, &loaded.node);
    let path = mount.path_of(&key);
    let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(&mount.title);
    let name = Some(name.to_owned()).filter(|name| !name.is_empty());
    let directory = DescribedDirectory { path, name, loaded, zarr, is_container };
    document(context, directory, (attributes, tensorstore_attributes), cache_control)
}

/// A directory and what the response says about it in addition to its description.
#[derive(Default)]
struct DescribedDirectory {
    /// Path from the server's root.
    path: String,
    /// Last name of the path; for a single container, the name of its directory without `.n5`.
    name: Option<String>,
    loaded: LoadedNode,
    /// Format of the Zarr store to which the directory belongs.
    zarr: Option<ZarrFormat>,
    /// True if the directory is the root of an N5 container.
    is_container: bool,
}

/// Returns the response about `directory`. The pair holds copies of all its attributes, and of those that the
/// TensorStore spec repeats.
fn document(
    context: &RequestContext<'_>,
    directory: DescribedDirectory,
    (attributes, tensorstore_attributes): (JsonObjectBuilder, JsonObjectBuilder),
    cache_control: HeaderValue,
) -> HandlerResult {
    let path = directory.path.as_str();
    let LoadedNode { node, problems, memory, .. } = directory.loaded;
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
    members.insert("channels".to_owned(), channels(&node));
    members.insert("path".to_owned(), json!(path));
    members.insert("name".to_owned(), json!(directory.name));
    members.insert("store".to_owned(), json!(directory.zarr.map(ZarrFormat::name)));
    members.insert("container".to_owned(), json!(directory.is_container));
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

/// Returns the display of the channels of a dataset or an image according to `omero`; null if there is none. The
/// members are those of `omero`, so that a client can treat both alike.
fn channels(node: &Node) -> Value {
    let described = n5_metadata::channel_displays(node);
    let channel = |display: &ChannelDisplay| {
        let colour = display.colour.map(|[red, green, blue]| format!("{red:02X}{green:02X}{blue:02X}"));
        let window = display.window.map(|(start, end)| json!({"start": start, "end": end}));
        json!({"label": display.label, "color": colour, "window": window, "active": display.is_active})
    };
    if described.is_empty() { Value::Null } else { described.iter().map(channel).collect() }
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
    let has_picture =
        description.kind != NodeKind::Group && (description.kind != NodeKind::Dataset || description.is_decoded());
    let mut urls = json!({
        "n5": directory_url("n5"),
        "attributes": directory_url("n5") + "attributes.json",
        "info": format!("{base}/info/{encoded_path}"),
        "page": directory_url("n5"),
        "neuroglancer": format!("n5://{base}/n5/{encoded_path}"),
        "slice": (description.kind == NodeKind::Dataset).then(|| format!("{base}/slice/{encoded_path}")),
        "stats": (description.kind != NodeKind::Group).then(|| format!("{base}/stats/{encoded_path}")),
        "thumbnail": has_picture.then(|| format!("{base}/thumbnail/{encoded_path}")),
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
