//! Views: documents, chunks and listings of the container in other programs' formats.

use std::ops::Range;

use axum::body::Body;
use axum::http::header::IF_NONE_MATCH;
use xxhash_rust::xxh3::xxh3_128;

use crate::container::Container;
use crate::http::body::{self, BandReader};
use crate::http::mount::Mount;
use crate::http::problem::Problem;
use crate::http::query::params;
use crate::http::request::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::route;
use crate::http::routes::{listing, stored};
use crate::read::BandStream;
use crate::store::Key;
use crate::view::{Chunk, ChunkSource, EncodedChunk, ResolvedKey, StreamLayout, View, ViewLookup};

/// Handles `GET /{view}/…`.
pub(crate) async fn handle(context: &RequestContext<'_>, view: &dyn View) -> HandlerResult {
    let Some((parameters, path)) = context.target.segments.split_at_checked(view.path_parameter_count()) else {
        return Err(Problem::not_found());
    };
    if !view.accepts_path_parameters(parameters) {
        return Err(Problem::not_found());
    }
    // A value that is not UTF-8 is replaced by a value that no view accepts.
    let query: Vec<_> = params::pairs(context.parts.uri.query())
        .map(|(name, value)| (name, value.unwrap_or("\u{fffd}".into())))
        .collect();
    view.check_query(&query)?;
    let Some((mount, key)) = context.locate(path)? else {
        return if context.target.has_trailing_slash {
            listing::of_mounts(context).await
        } else {
            Err(Problem::not_found())
        };
    };
    let key = if view.has_suffix_aliases() { resolve_suffixes(context, mount, key).await? } else { key };
    let lookup = ViewLookup {
        container: &mount.container,
        options: context.read_options,
        path_parameters: parameters,
        key: &key,
        query: &query,
    };
    if context.target.has_trailing_slash {
        return listing::of_view(context, mount, view, &lookup).await;
    }
    match view.resolve(&lookup).await.map_err(|error| mount.problem(error))? {
        ResolvedKey::Document { text, memory } => {
            let text = respond::text_bytes(text, memory);
            let etag = format!("\"{:032x}\"", xxh3_128(&text));
            // The response is never immutable, because it depends on the version of the server and on the
            // enclosing groups.
            let entity = Entity::new("application/json", mount.missing_cache_control.clone());
            Entity { etag: Some(etag.into()), has_ranges: true, ..entity }.respond(context.parts, text)
        }
        ResolvedKey::Chunk(chunk) => chunk_response(context, mount, &chunk).await,
        ResolvedKey::Missing => stored::redirect_to_listing(context, mount, &key).await,
    }
}

/// Replaces those names of a key that have a suffix ([`View::has_suffix_aliases`]) and do not exist by the names without
/// the suffix, if these exist. Costs nothing for other keys.
async fn resolve_suffixes(context: &RequestContext<'_>, mount: &Mount, key: Key) -> Result<Key, Problem> {
    if !key.segments().any(|name| route::without_suffix(name).is_some()) {
        return Ok(key);
    }
    let mut resolved = Key::root();
    for name in key.segments() {
        let mut candidates = std::iter::once(name).chain(name.strip_suffix(".zarr")).chain(route::without_suffix(name));
        let mut found = None;
        if route::without_suffix(name).is_some() {
            for candidate in candidates.by_ref() {
                let Ok(candidate) = resolved.child(candidate) else { continue };
                if mount.container.is_directory(context.read_options, &candidate).await? {
                    found = Some(candidate);
                    break;
                }
            }
        }
        resolved = match found {
            Some(found) => found,
            None => resolved.child(name).map_err(|_too_long| mount.not_found())?,
        };
    }
    Ok(resolved)
}

/// Returns the response whose body is `chunk`.
async fn chunk_response(context: &RequestContext<'_>, mount: &Mount, chunk: &Chunk) -> HandlerResult {
    let container = &mount.container;
    let entity = |etag: &str, len: Option<u64>| Entity {
        etag: Some(etag.into()),
        len,
        has_ranges: true,
        ..Entity::new(chunk.media_type(), mount.found_cache_control.clone())
    };
    if context.parts.headers.contains_key(IF_NONE_MATCH) {
        // The blocks' entity tags tell whether the client's copy is current, so that nothing needs to be encoded.
        let etag = chunk.lookup_etag(container, context.read_options).await?.ok_or_else(|| mount.not_found())?;
        if let Some(response) = entity(&etag, None).not_modified(context.parts) {
            return Ok(response);
        }
    }
    let mut send_permit = None;
    loop {
        let chunk_read = chunk.read(container, context.read_options).await?;
        let EncodedChunk { len, etag, source } = chunk_read.ok_or_else(|| mount.not_found())?;
        let entity = entity(&etag, Some(len));
        match source {
            ChunkSource::Stored { bytes, .. } | ChunkSource::Derived { bytes, .. } => {
                if let Some(bytes) = container.charge_or_wait(&mut send_permit, bytes).await? {
                    return entity.respond(context.parts, bytes);
                }
            }
            ChunkSource::LargeStored(large, block_range) => {
                let (mut response, range) = entity.select(context.parts)?;
                if let Some(Range { start, end }) = range {
                    let block_offset = |byte: u64| block_range.start.saturating_add(byte);
                    let range = block_offset(start)..block_offset(end);
                    *response.body_mut() = body::stream_range(large, range, context.id.to_owned());
                }
                return Ok(response);
            }
            ChunkSource::Elements(layout) => {
                let (mut response, range) = entity.select(context.parts)?;
                if let Some(range) = range {
                    *response.body_mut() = elements_body(context, container, chunk, etag, &layout, range).await?;
                }
                return Ok(response);
            }
        }
    }
}

/// Returns the body with a range of a chunk's bytes. The elements are read while the body is being sent, and the body
/// is broken off if `etag` is no longer the entity tag of the chunk.
async fn elements_body(
    context: &RequestContext<'_>,
    container: &Container,
    chunk: &Chunk,
    etag: String,
    layout: &StreamLayout,
    range: Range<u64>,
) -> Result<Body, Problem> {
    let header_bytes = layout.header.len() as u64;
    let prefix = respond::slice_bytes(&layout.header, &range);
    let from = range.start.saturating_sub(header_bytes);
    let to = range.end.saturating_sub(header_bytes);
    if from == to {
        return Ok(Body::from(prefix));
    }
    let (slice, skipped) = chunk.plan_byte_range(container, layout, from, to)?;
    let bands = BandStream::new(container.clone(), context.read_options, slice, chunk.swapped_width(layout));
    let mut reader = BandReader::new(container.clone(), bands)
        .limited_to(skipped, to.saturating_sub(from))
        .with_etag_check(chunk.clone(), etag);
    let first = reader.next().await?.unwrap_or_default();
    Ok(reader.into_body(prefix, first, context.id.to_owned()))
}
