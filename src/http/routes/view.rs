//! Views: documents, chunks and listings of the container in other programs' formats.

use std::ops::Range;

use axum::body::Body;
use axum::http::header::IF_NONE_MATCH;
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::ReadError;
use crate::container::Container;
use crate::http::band_reader::BandReader;
use crate::http::mount::Mount;
use crate::http::problem::Problem;
use crate::http::query::lenient;
use crate::http::request_context::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::routes::listing;
use crate::http::routes::stored;
use crate::view::{Chunk, ChunkSource, EncodedChunk, ResolvedKey, View, ViewLookup};

/// Handles `GET /{view}/…`.
pub(crate) async fn answer(context: &RequestContext<'_>, view: &dyn View) -> HandlerResult {
    let Some((parameters, path)) = context.target.segments.split_at_checked(view.path_parameter_count()) else {
        return Err(Problem::not_found());
    };
    if !view.accepts_path_parameters(parameters) {
        return Err(Problem::not_found());
    }
    // A value that is not UTF-8 is replaced by one that no view knows.
    let query: Vec<_> =
        lenient::pairs(context.query()).map(|(name, value)| (name, value.unwrap_or("\u{fffd}".into()))).collect();
    view.check_query(&query)?;
    let Some((mount, key)) = context.locate(path)? else {
        return if context.target.has_trailing_slash {
            listing::of_mounts(context).await
        } else {
            Err(Problem::not_found())
        };
    };
    let lookup = ViewLookup {
        container: &mount.container,
        freshness: context.freshness,
        path_parameters: parameters,
        key: &key,
        query: &query,
    };
    if context.target.has_trailing_slash {
        // A listing omits documents that the server cannot read.
        let documents = match ReadError::hidden_as_none(view.list_documents(&lookup).await.map(Some)) {
            Err(ReadError::AttributesTooLarge { .. }) => Vec::new(),
            result => result.map_err(|error| mount.problem(error))?.unwrap_or_default(),
        };
        return listing::of_directory(context, mount, &key, Some(&documents)).await;
    }
    match view.resolve(&lookup).await.map_err(|error| mount.problem(error))? {
        ResolvedKey::Document { text, memory } => {
            let text = respond::text_bytes(text, memory);
            let etag = format!("\"{:032x}\"", xxh3_128(&text));
            // Never immutable: the document depends on the release and on everything around the directory.
            let entity = Entity::new("application/json", mount.missing_cache_control.clone());
            Entity { etag: Some(etag.into()), has_ranges: true, ..entity }.respond(context.parts, text)
        }
        ResolvedKey::Chunk(chunk) => chunk_response(context, mount, &chunk).await,
        ResolvedKey::Missing => {
            let container = &mount.container;
            if !container.is_directory(context.freshness, &key).await?
                || container.is_block_position(context.freshness, &key).await?
            {
                return Err(mount.not_found());
            }
            Ok(stored::redirect_to_slash(context))
        }
    }
}

async fn chunk_response(context: &RequestContext<'_>, mount: &Mount, chunk: &Chunk) -> HandlerResult {
    let container = &mount.container;
    let entity = |etag: &str| Entity {
        etag: Some(etag.into()),
        has_ranges: true,
        ..Entity::new(chunk.media_type(), mount.found_cache_control.clone())
    };
    if context.headers().contains_key(IF_NONE_MATCH) {
        // The blocks' entity tags tell whether the client's copy is current. Nothing needs to be encoded.
        let etag = chunk.lookup_etag(container, context.freshness).await?.ok_or_else(|| mount.not_found())?;
        if let Some(response) = entity(&etag).not_modified(context.parts) {
            return Ok(response);
        }
    }
    let mut send_permit = None;
    loop {
        let encoded = chunk.read(container, context.freshness).await?.ok_or_else(|| mount.not_found())?;
        let Some(bytes) = encoded.bytes() else {
            let entity = Entity { len: Some(encoded.len), ..entity(&encoded.etag) };
            return streamed_response(context, container, chunk, encoded, &entity).await;
        };
        if let Some(bytes) = stored::charge_to_client(container, send_permit.take(), bytes) {
            return entity(&encoded.etag).respond(context.parts, bytes);
        }
        // The client must receive other responses first. No bytes are held while waiting.
        let len = bytes.len();
        drop(encoded);
        send_permit = Some(container.acquire_send_permit(len).await?);
    }
}

/// Responds with a chunk that is read while it is sent.
async fn streamed_response(
    context: &RequestContext<'_>,
    container: &Container,
    chunk: &Chunk,
    encoded: EncodedChunk,
    entity: &Entity<'_>,
) -> HandlerResult {
    let (mut response, range) = entity.select(context.parts)?;
    let Some(Range { start, end }) = range else { return Ok(response) };
    *response.body_mut() = match encoded.source {
        ChunkSource::Stored { bytes, .. } | ChunkSource::Derived { bytes, .. } => {
            Body::from(respond::slice_bytes(&bytes, &(start..end)))
        }
        ChunkSource::LargeStored(large, block_range) => {
            let block_offset = |byte: u64| block_range.start.saturating_add(byte);
            stored::stream_range(large, block_offset(start)..block_offset(end), context.id.to_owned())
        }
        ChunkSource::Elements(layout) => {
            let header_bytes = layout.header.len() as u64;
            let prefix = respond::slice_bytes(&layout.header, &(start..end));
            let (from, to) = (start.saturating_sub(header_bytes), end.saturating_sub(header_bytes));
            if from == to {
                Body::from(prefix)
            } else {
                let (slice, skipped) = chunk.plan_byte_range(container, &layout, from, to)?;
                let transform = chunk.byte_swap(&layout);
                let reader = BandReader::new(container.clone(), context.freshness, slice, transform);
                let reader = reader.with_etag_check(chunk.clone(), encoded.etag);
                let mut reader = reader.with_byte_range(skipped, to.saturating_sub(from));
                let first = reader.next().await?.unwrap_or_default();
                reader.into_body(prefix, first, context.id.to_owned())
            }
        }
    };
    Ok(response)
}
