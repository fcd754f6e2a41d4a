//! Chunks of views on the fast path, answered if they are available without waiting.

use futures_util::FutureExt;

use super::reply::{EntityHeaders, FastRequest, FastResponder, Reply, ReplyBody};
use super::thread_cache;
use crate::cache::Freshness;
use crate::http::route::{Endpoint, RequestTarget};
use crate::metrics::LookupResult;
use crate::store::ObjectMeta;
use crate::view::{self, ResolvedKey};

/// Media type of most chunks.
const OCTET_STREAM: &str = "application/octet-stream";

/// Replies with a chunk of a view if resolving and reading it need no waiting. Returns `None` if the HTTP library must
/// answer. No work has been started then that the library would repeat.
pub(super) fn try_respond(
    responder: &FastResponder<'_>,
    request: &FastRequest<'_>,
    freshness: Freshness,
) -> Option<Reply> {
    let app = responder.app;
    // The HTTP library handles queries, and every path that it may parse differently.
    if !request.path.bytes().all(RequestTarget::is_literal_path_byte) {
        return None;
    }
    let freshness = freshness.nonblocking();
    let target = RequestTarget::parse(request.path, &app.options.base_path).ok()??;
    let Endpoint::View(view) = target.endpoint else { return None };
    let (parameters, path) = target.segments.split_at_checked(view.path_parameter_count())?;
    if target.has_trailing_slash || !target.ends_like_chunk() || !view.accepts_path_parameters(parameters) {
        return None;
    }
    let (mount, key) = app.locate(path).ok()??;
    let mount_index = app.mounts.iter().position(|candidate| std::ptr::eq(candidate, mount))?;
    let template = app.header_templates.get(mount_index).filter(|template| template.is_public)?;
    let lookup =
        view::ViewLookup { container: &mount.container, freshness, path_parameters: parameters, key: &key, query: &[] };
    let ResolvedKey::Chunk(chunk) = view.resolve(&lookup).now_or_never()?.ok()? else { return None };
    if chunk.media_type() != OCTET_STREAM {
        return None;
    }
    let Some(encoded) = chunk.read(&mount.container, freshness).now_or_never()?.ok()? else {
        mount.container.count_lookup(LookupResult::Absent);
        return Some(responder.not_found_reply(request, template, view.name()));
    };
    let bytes = encoded.bytes()?.clone();
    mount.container.count_lookup(LookupResult::Hit);
    let meta = ObjectMeta { len: encoded.len, modified: None, etag: encoded.etag.as_str().into(), version: 0 };
    let mut headers = EntityHeaders::new(meta, false);
    headers.route = view.name();
    let body = ReplyBody::Bytes(responder.charge_to_client(request, mount, bytes)?);
    let reply = responder.entity_reply(request, template, &headers, body);
    if view.has_self_contained_chunks()
        && let Some(cached_answer) = chunk.cached_answer(&mount.container, freshness, &key, encoded)
    {
        thread_cache::insert(app.id, request.path, mount_index, Some(headers), cached_answer);
    }
    Some(reply)
}
