//! The views: documents, chunks and listings of the container in other programs' forms.

use std::ops::Range;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::banded::BandReader;
use super::conditional::{self, Verdict};
use super::problem::{self, Problem};
use super::{Answer, Ask, Mount, listing, query, stored};
use crate::container::ReadError;
use crate::fair::Client;
use crate::view::{Chunk, Document, Found, Lookup, Pieces, PiecesFrom, Sent, View};

/// `GET /{view}/…`.
pub(super) async fn answer(ask: &Ask<'_>, view: &dyn View) -> Answer {
    let Some((parameters, path)) = ask.target.segments.split_at_checked(view.parameters()) else {
        return Err(Problem::missing());
    };
    if !view.accepts(parameters) {
        return Err(Problem::missing());
    }
    // What is not UTF-8 is no value that a view knows.
    let query: Vec<_> =
        query::pairs(ask.query()).map(|(name, value)| (name, value.unwrap_or("\u{fffd}".into()))).collect();
    view.check(&query)?;
    let Some((mount, key)) = ask.locate(path)? else {
        return if ask.target.trailing_slash { listing::of_mounts(ask).await } else { Err(Problem::missing()) };
    };
    let lookup = Lookup { container: &mount.container, access: ask.access, parameters, key: &key, query: &query };
    let blame = |error: ReadError| Problem::from(error).cached(mount.cache_missing.clone());
    if ask.target.trailing_slash {
        // A listing shows what can be seen.
        let documents = match ReadError::or_hidden(view.documents(&lookup).await.map(Some)) {
            Err(ReadError::AttributesTooLarge { .. }) => Vec::new(),
            found => found.map_err(blame)?.unwrap_or_default(),
        };
        return listing::of_view(ask, mount, &key, &documents).await;
    }
    match view.resolve(&lookup).await.map_err(blame)? {
        Found::Document(document) => Ok(of_document(ask, mount, document)?),
        Found::Chunk(chunk) => of_chunk(ask, mount, &chunk).await,
        Found::Missing => {
            let missing = || Problem::missing().cached(mount.cache_missing.clone());
            let container = &mount.container;
            if !container.is_directory(ask.access, &key).await? || container.is_at_block(ask.access, &key).await? {
                return Err(missing());
            }
            Ok(stored::redirect(ask))
        }
    }
}

fn of_document(ask: &Ask<'_>, mount: &Mount, document: Document) -> Answer {
    let Document { mut text, memory } = document;
    text.shrink_to_fit();
    let etag = format!("\"{:032x}\"", xxh3_128(text.as_bytes()));
    let bytes = match memory {
        Some(mut memory) => {
            memory.shrink(text.len() as u64);
            memory.own(text.into())
        }
        None => text.into(),
    };
    // Never immutable: what a document says depends on the release and on everything around the directory.
    of_bytes(ask, &bytes, &etag, "application/json", mount.cache_missing.clone())
}

async fn of_chunk(ask: &Ask<'_>, mount: &Mount, chunk: &Chunk) -> Answer {
    let missing = || Problem::missing().cached(mount.cache_missing.clone());
    let found = mount.cache_found.clone();
    if ask.headers().contains_key(IF_NONE_MATCH) {
        // The tags of the blocks say whether the client has this already; nothing needs to be made.
        let etag = chunk.tag(&mount.container, ask.access).await?.ok_or_else(missing)?;
        let verdict = conditional::evaluate(ask.method(), ask.headers(), Some(&etag), None, None);
        if verdict == Verdict::NotModified {
            return of_bytes(ask, &Bytes::new(), &etag, chunk.media_type(), found);
        }
    }
    let mut turn = None;
    loop {
        let ready = match chunk.sent(&mount.container, ask.access).await?.ok_or_else(missing)? {
            Sent::Whole(ready) => ready,
            Sent::Pieces(pieces) => return of_pieces(ask, mount, *pieces, chunk.media_type(), found).await,
        };
        let sent = match turn.take() {
            Some(turn) => Some(mount.container.sent_in_turn(turn, ready.bytes.clone())),
            None => mount.container.sent(Client::current(), &ready.bytes),
        };
        if let Some(bytes) = sent {
            return of_bytes(ask, &bytes, &ready.etag, chunk.media_type(), found);
        }
        // Its client has to take something else first; nothing is held meanwhile.
        let len = ready.bytes.len();
        drop(ready);
        turn = Some(mount.container.turn_to_send(len).await?);
    }
}

/// An object that is held whole: preconditions and ranges as for stored ones.
fn of_bytes(ask: &Ask<'_>, bytes: &Bytes, etag: &str, media_type: &'static str, cache: HeaderValue) -> Answer {
    let (mut response, range) = described(ask, bytes.len() as u64, etag, media_type, cache)?;
    let (from, to) = (usize::try_from(range.start).unwrap_or(0), usize::try_from(range.end).unwrap_or(0));
    if !range.is_empty() {
        *response.body_mut() = Body::from(bytes.slice(from.min(bytes.len())..to.min(bytes.len())));
    }
    Ok(response)
}

/// A chunk that is read while it is sent.
async fn of_pieces(
    ask: &Ask<'_>,
    mount: &Mount,
    pieces: Pieces,
    media_type: &'static str,
    cache: HeaderValue,
) -> Answer {
    let (mut response, range) = described(ask, pieces.len, &pieces.etag, media_type, cache)?;
    if range.is_empty() || ask.method() == Method::HEAD {
        return Ok(response);
    }
    *response.body_mut() = match pieces.from.clone() {
        PiecesFrom::Stored(large, within) => {
            let at = |byte: u64| within.start.saturating_add(byte);
            stored::pieces(large, at(range.start), at(range.end), ask.id.to_owned())
        }
        PiecesFrom::Elements(plain) => {
            let header_bytes = plain.header.len() as u64;
            let of_header = |byte: u64| usize::try_from(byte.min(header_bytes)).unwrap_or(usize::MAX);
            let start = plain.header.slice(of_header(range.start)..of_header(range.end));
            let (from, to) = (range.start.saturating_sub(header_bytes), range.end.saturating_sub(header_bytes));
            if from == to {
                Body::from(start)
            } else {
                let (slice, skipped) = pieces.slice(&mount.container, &plain, from, to)?;
                let finish = pieces.finish(&plain);
                let reader = BandReader::new(mount.container.clone(), ask.access, slice, finish);
                let mut reader = reader.of_unchanged(pieces).cut(skipped, to.saturating_sub(from));
                let first = reader.next().await?.unwrap_or_default();
                reader.into_body(start, first, ask.id.to_owned())
            }
        }
    };
    Ok(response)
}

/// The head of an answer of `len` bytes, and which of them it has.
fn described(
    ask: &Ask<'_>,
    len: u64,
    etag: &str,
    media_type: &'static str,
    cache: HeaderValue,
) -> Result<(Response<Body>, Range<u64>), Problem> {
    let (status, from, to) = match conditional::evaluate(ask.method(), ask.headers(), Some(etag), None, Some(len)) {
        Verdict::Whole => (StatusCode::OK, 0, len),
        Verdict::Part(from, to) => (StatusCode::PARTIAL_CONTENT, from, to),
        Verdict::NotModified => (StatusCode::NOT_MODIFIED, 0, 0),
        Verdict::PreconditionFailed => {
            return Err(Problem::new(problem::PRECONDITION_FAILED, format!("this has the entity tag {etag} now")));
        }
        Verdict::Unsatisfiable => return Err(Problem::range(len)),
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if let Ok(etag) = HeaderValue::from_str(etag) {
        headers.insert(ETAG, etag);
    }
    headers.insert(CACHE_CONTROL, cache);
    if status == StatusCode::NOT_MODIFIED {
        return Ok((response, 0..0));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(to - from));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // As for stored objects, for Java N5.
    headers.insert("accept-range", HeaderValue::from_static("bytes"));
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {from}-{}/{len}", to - 1);
        headers.insert(CONTENT_RANGE, HeaderValue::from_str(&range).unwrap_or(HeaderValue::from_static("bytes */*")));
    }
    Ok((response, from..to))
}
