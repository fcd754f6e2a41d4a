//! Chunks of views on the fast path, answered as in [`super::fastpath`] if they are available without waiting.

use bytes::Bytes;
use futures_util::FutureExt;

use super::Mount;
use super::fastpath::{EntityHeaders, FastRequest, FastResponder, Reply, ReplyBody};
use super::route::{Endpoint, RequestTarget};
use super::thread_cache::{self, ThreadCacheEntry};
use crate::container::Freshness;
use crate::metrics::LookupResult;
use crate::store::ObjectMeta;
use crate::view::{self, ChunkBody, ResolvedKey};

/// Media type of most chunks.
const OCTET_STREAM: &str = "application/octet-stream";

/// Replies with a chunk of a view if resolving and reading it need no waiting. Returns `None` if the HTTP library must
/// answer. No work has been started then that the library would repeat.
pub(super) fn try_respond(begun: &FastResponder<'_>, asked: &FastRequest<'_>, access: Freshness) -> Option<Reply> {
    let app = begun.app;
    // The HTTP library handles queries, and every path that it may parse differently.
    if !asked.path.bytes().all(RequestTarget::is_literal_path_byte) {
        return None;
    }
    let access = access.nonblocking();
    let target = RequestTarget::parse(asked.path, &app.options.base_path).ok()??;
    let Endpoint::View(view) = target.endpoint else { return None };
    let (parameters, path) = target.segments.split_at_checked(view.path_parameter_count())?;
    if target.trailing_slash || !target.ends_like_chunk() || !view.accepts_path_parameters(parameters) {
        return None;
    }
    let (mount, key) = app.locate(path).ok()??;
    if !mount.container.supports_nonblocking() {
        return None;
    }
    let at = app.mounts.iter().position(|one| std::ptr::eq(one, mount))?;
    let template = app.header_templates.mounts.get(at).filter(|template| template.is_public)?;
    let lookup = view::ViewLookup {
        container: &mount.container,
        freshness: access,
        path_parameters: parameters,
        key: &key,
        query: &[],
    };
    let ResolvedKey::Chunk(chunk) = view.resolve(&lookup).now_or_never()?.ok()? else { return None };
    if chunk.media_type() != OCTET_STREAM {
        return None;
    }
    let ready = match chunk.read(&mount.container, access).now_or_never()?.ok()? {
        Some(ChunkBody::Whole(ready)) => ready,
        Some(ChunkBody::Streamed(_)) => return None,
        None => {
            mount.container.count_lookup(LookupResult::Absent);
            return Some(begun.not_found_reply(asked, template, view.name()));
        }
    };
    mount.container.count_lookup(LookupResult::Hit);
    let facts =
        ObjectMeta { len: ready.bytes.len() as u64, modified: None, etag: ready.etag.as_str().into(), version: 0 };
    let mut said = EntityHeaders::new(facts, false);
    said.route = view.name();
    let body = ReplyBody::Bytes(begun.charge_to_client(asked, mount, ready.bytes.clone())?);
    let reply = begun.entity_reply(asked, template, &said, body);
    if view.has_self_contained_chunks()
        && let Some(trail) = chunk.cached_answer(&mount.container, access, &key, ready)
    {
        thread_cache::insert(
            app,
            asked.path,
            ThreadCacheEntry { mount: at, headers: Some(said), cached_answer: trail },
        );
    }
    Some(reply)
}

/// Smallest body whose memory is charged to the client.
const MIN_CHARGED_BYTES: usize = 64 << 10;

impl FastResponder<'_> {
    /// Charges `bytes` of a container to the client while they are sent. Returns `None` if that would have to wait, or
    /// if the peer's address does not identify the client; the HTTP library then answers.
    pub(super) fn charge_to_client(&self, asked: &FastRequest<'_>, mount: &Mount, bytes: Bytes) -> Option<Bytes> {
        if asked.is_head {
            return Some(Bytes::new());
        }
        // The kernel accepts a smaller body at once.
        if bytes.len() < MIN_CHARGED_BYTES {
            return Some(bytes);
        }
        let client = self.app.client_limiter.identify_direct_peer(self.peer)?;
        mount.container.charge_to_client(client, &bytes)
    }
}
