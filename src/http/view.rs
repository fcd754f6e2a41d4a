//! Views: documents, chunks and listings of the container in other programs' formats.

use std::ops::Range;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::band_reader::BandReader;
use super::conditional::{self, ConditionalOutcome};
use super::problem::{self, Problem};
use super::{HandlerResult, Mount, RequestContext, lenient_query, listing, stored};
use crate::container::ReadError;
use crate::fair_queue::ClientId;
use crate::view::{Chunk, ChunkSource, EncodedChunk, ResolvedKey, View, ViewDocument, ViewLookup};

/// Handles `GET /{view}/…`.
pub(super) async fn answer(context: &RequestContext<'_>, view: &dyn View) -> HandlerResult {
    let Some((parameters, path)) = context.target.segments.split_at_checked(view.path_parameter_count()) else {
        return Err(Problem::not_found());
    };
    if !view.accepts_path_parameters(parameters) {
        return Err(Problem::not_found());
    }
    // A value that is not UTF-8 is replaced by one that no view knows.
    let query: Vec<_> =
        lenient_query::pairs(context.query()).map(|(name, value)| (name, value.unwrap_or("\u{fffd}".into()))).collect();
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
    let to_problem =
        |error: ReadError| Problem::from(error).with_cache_control_if_missing(mount.missing_cache_control.clone());
    if context.target.has_trailing_slash {
        // A listing omits documents that the server cannot read.
        let documents = match ReadError::hidden_as_none(view.list_documents(&lookup).await.map(Some)) {
            Err(ReadError::AttributesTooLarge { .. }) => Vec::new(),
            result => result.map_err(to_problem)?.unwrap_or_default(),
        };
        return listing::of_view(context, mount, &key, &documents).await;
    }
    match view.resolve(&lookup).await.map_err(to_problem)? {
        ResolvedKey::Document(document) => Ok(document_response(context, mount, document)?),
        ResolvedKey::Chunk(chunk) => chunk_response(context, mount, &chunk).await,
        ResolvedKey::Missing => {
            let not_found = || Problem::not_found().with_cache_control_if_missing(mount.missing_cache_control.clone());
            let container = &mount.container;
            if !container.is_directory(context.freshness, &key).await?
                || container.is_block_position(context.freshness, &key).await?
            {
                return Err(not_found());
            }
            Ok(stored::redirect_to_slash(context))
        }
    }
}

fn document_response(context: &RequestContext<'_>, mount: &Mount, document: ViewDocument) -> HandlerResult {
    let ViewDocument { mut text, memory } = document;
    text.shrink_to_fit();
    let etag = format!("\"{:032x}\"", xxh3_128(text.as_bytes()));
    let bytes = match memory {
        Some(mut memory) => {
            memory.shrink(text.len() as u64);
            memory.own(text.into())
        }
        None => text.into(),
    };
    // Never immutable: the document depends on the release and on everything around the directory.
    bytes_response(context, &bytes, &etag, "application/json", mount.missing_cache_control.clone())
}

async fn chunk_response(context: &RequestContext<'_>, mount: &Mount, chunk: &Chunk) -> HandlerResult {
    let not_found = || Problem::not_found().with_cache_control_if_missing(mount.missing_cache_control.clone());
    let cache_control = mount.found_cache_control.clone();
    if context.headers().contains_key(IF_NONE_MATCH) {
        // The blocks' entity tags tell whether the client's copy is current. Nothing needs to be encoded.
        let etag = chunk.lookup_etag(&mount.container, context.freshness).await?.ok_or_else(not_found)?;
        let outcome = conditional::evaluate(context.method(), context.headers(), Some(&etag), None, None);
        if outcome == ConditionalOutcome::NotModified {
            return bytes_response(context, &Bytes::new(), &etag, chunk.media_type(), cache_control);
        }
    }
    let mut send_permit = None;
    loop {
        let encoded = chunk.read(&mount.container, context.freshness).await?.ok_or_else(not_found)?;
        let Some(bytes) = encoded.bytes() else {
            return streamed_response(context, mount, chunk, encoded, cache_control).await;
        };
        let charged = match send_permit.take() {
            Some(permit) => Some(mount.container.charge_with_permit(permit, bytes.clone())),
            None => mount.container.charge_to_client(ClientId::current(), bytes),
        };
        if let Some(bytes) = charged {
            return bytes_response(context, &bytes, &encoded.etag, chunk.media_type(), cache_control);
        }
        // The client must receive other responses first. No bytes are held while waiting.
        let len = bytes.len();
        drop(encoded);
        send_permit = Some(mount.container.acquire_send_permit(len).await?);
    }
}

/// Responds with bytes that are entirely in memory. Preconditions and ranges work as for stored objects.
fn bytes_response(
    context: &RequestContext<'_>,
    bytes: &Bytes,
    etag: &str,
    media_type: &'static str,
    cache_control: HeaderValue,
) -> HandlerResult {
    let (mut response, range) = response_head(context, bytes.len() as u64, etag, media_type, cache_control)?;
    if !range.is_empty() {
        *response.body_mut() = bytes_body(bytes, range);
    }
    Ok(response)
}

fn bytes_body(bytes: &Bytes, range: Range<u64>) -> Body {
    let (from, to) = (usize::try_from(range.start).unwrap_or(0), usize::try_from(range.end).unwrap_or(0));
    Body::from(bytes.slice(from.min(bytes.len())..to.min(bytes.len())))
}

/// Responds with a chunk that is read while it is sent.
async fn streamed_response(
    context: &RequestContext<'_>,
    mount: &Mount,
    chunk: &Chunk,
    encoded: EncodedChunk,
    cache_control: HeaderValue,
) -> HandlerResult {
    let EncodedChunk { len, etag, source } = encoded;
    let (mut response, range) = response_head(context, len, &etag, chunk.media_type(), cache_control)?;
    if range.is_empty() || context.method() == Method::HEAD {
        return Ok(response);
    }
    *response.body_mut() = match source {
        ChunkSource::Stored { bytes, .. } | ChunkSource::Derived { bytes, .. } => bytes_body(&bytes, range),
        ChunkSource::LargeStored(large, block_range) => {
            let block_offset = |byte: u64| block_range.start.saturating_add(byte);
            stored::stream_range(large, block_offset(range.start), block_offset(range.end), context.id.to_owned())
        }
        ChunkSource::Elements(layout) => {
            let header_bytes = layout.header.len() as u64;
            let header_offset = |byte: u64| usize::try_from(byte.min(header_bytes)).unwrap_or(usize::MAX);
            let prefix = layout.header.slice(header_offset(range.start)..header_offset(range.end));
            let (from, to) = (range.start.saturating_sub(header_bytes), range.end.saturating_sub(header_bytes));
            if from == to {
                Body::from(prefix)
            } else {
                let (slice, skipped) = chunk.plan_byte_range(&mount.container, &layout, from, to)?;
                let transform = chunk.byte_swap(&layout);
                let reader = BandReader::new(mount.container.clone(), context.freshness, slice, transform);
                let mut reader =
                    reader.with_etag_check(chunk.clone(), etag).with_byte_range(skipped, to.saturating_sub(from));
                let first = reader.next().await?.unwrap_or_default();
                reader.into_body(prefix, first, context.id.to_owned())
            }
        }
    };
    Ok(response)
}

/// Returns the head of a response of `len` bytes, and the range of them that its body has.
fn response_head(
    context: &RequestContext<'_>,
    len: u64,
    etag: &str,
    media_type: &'static str,
    cache_control: HeaderValue,
) -> Result<(Response<Body>, Range<u64>), Problem> {
    let (status, from, to) =
        match conditional::evaluate(context.method(), context.headers(), Some(etag), None, Some(len)) {
            ConditionalOutcome::Full => (StatusCode::OK, 0, len),
            ConditionalOutcome::Partial(from, to) => (StatusCode::PARTIAL_CONTENT, from, to),
            ConditionalOutcome::NotModified => (StatusCode::NOT_MODIFIED, 0, 0),
            ConditionalOutcome::PreconditionFailed => {
                return Err(Problem::new(
                    problem::PRECONDITION_FAILED,
                    format!("the entity tag of this object is now {etag}"),
                ));
            }
            ConditionalOutcome::Unsatisfiable => return Err(Problem::range_not_satisfiable(len)),
        };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if let Ok(etag) = HeaderValue::from_str(etag) {
        headers.insert(ETAG, etag);
    }
    headers.insert(CACHE_CONTROL, cache_control);
    if status == StatusCode::NOT_MODIFIED {
        return Ok((response, 0..0));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(to - from));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // For Java N5, as for stored objects.
    headers.insert("accept-range", HeaderValue::from_static("bytes"));
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {from}-{}/{len}", to - 1);
        headers.insert(CONTENT_RANGE, HeaderValue::from_str(&range).unwrap_or(HeaderValue::from_static("bytes */*")));
    }
    Ok((response, from..to))
}
