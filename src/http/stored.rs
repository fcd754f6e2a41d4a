//! The container as stored: attributes and blocks byte for byte, directories as listings.

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, LAST_MODIFIED, LOCATION,
};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use futures_util::stream;

use super::conditional::{self, Verdict};
use super::problem::{self, Problem};
use super::{Answer, Ask, Mount, listing, observe, query, target};
use crate::container::{ATTRIBUTES, LargeObject, ReadError, Stored, Turn, grid_component};
use crate::fair::Client;
use crate::store::{Key, Meta};

/// `GET /`, `/n5/` and every path below: an object, a listing, or the way to one.
pub(super) async fn answer(ask: &Ask<'_>) -> Answer {
    let target = ask.target;
    let Some((mount, key)) = ask.locate(&target.segments)? else {
        return if target.bare { Ok(redirect(ask)) } else { listing::of_mounts(ask).await };
    };
    // Neuroglancer probes for S3; an answer in another form would only puzzle it.
    if target.trailing_slash && query::parameter(ask.query(), "list-type").is_some() {
        return Err(Problem::missing());
    }
    if target.trailing_slash {
        return listing::of_directory(ask, mount, &key).await;
    }
    let missing = || Problem::missing().cached(mount.cache_missing.clone());
    if is_n5_key(&key)
        && let Some(found) = object(ask, mount, &key).await?
    {
        return Ok(found);
    }
    if !mount.container.is_directory(ask.access, &key).await? {
        return Err(missing());
    }
    // A directory where a block would be is an absent block; only here are attributes looked at.
    if !target.bare && mount.container.is_at_block(ask.access, &key).await? {
        return Err(missing());
    }
    Ok(redirect(ask))
}

/// Whether a file of this name is served at all.
pub(super) fn is_n5_key(key: &Key) -> bool {
    key.name().is_some_and(|name| name == ATTRIBUTES || grid_component(name).is_some())
}

/// 301 to the same path with a slash: relative, so that it holds behind any prefix.
pub(super) fn redirect(ask: &Ask<'_>) -> Response<Body> {
    let last = ask.path().rsplit('/').next().unwrap_or_default();
    // Decoded and encoded again: a colon would make the reference an absolute one.
    let name = percent_encoding::percent_decode_str(last).decode_utf8_lossy();
    let query = ask.query_with_token().map(|query| format!("?{query}")).unwrap_or_default();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(&format!("{}/{query}", target::encode(&name))) {
        response.headers_mut().insert(LOCATION, location);
    }
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(0));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Result of looking for an object.
enum Looked {
    Found(Response<Body>),
    Missing,
    /// Its client has to take something else first; so many bytes are to be sent then.
    NotItsTurn(usize),
}

async fn object(ask: &Ask<'_>, mount: &Mount, key: &Key) -> Result<Option<Response<Body>>, Problem> {
    let mut turn = None;
    loop {
        match look(ask, mount, key, turn).await? {
            Looked::Found(response) => return Ok(Some(response)),
            Looked::Missing => return Ok(None),
            // Nothing is held meanwhile.
            Looked::NotItsTurn(len) => turn = Some(mount.container.turn_to_send(len).await?),
        }
    }
}

/// With a `turn` the object is sent.
async fn look(ask: &Ask<'_>, mount: &Mount, key: &Key, turn: Option<Turn>) -> Result<Looked, Problem> {
    // HEAD reads no bytes; what is too large to be held is only opened.
    let (meta, stored) = if ask.method() == Method::HEAD {
        let Some(meta) = ReadError::or_hidden(mount.container.meta(ask.access, key).await)? else {
            return Ok(Looked::Missing);
        };
        (meta, None)
    } else {
        let found = mount.container.object(ask.access, key).await;
        let Some(stored) = ReadError::or_hidden(found)? else { return Ok(Looked::Missing) };
        (stored.meta().clone(), Some(stored))
    };
    let verdict = conditional::evaluate(ask.method(), ask.headers(), Some(&meta.etag), meta.modified, Some(meta.len));
    let (status, from, to) = match verdict {
        Verdict::Whole => (StatusCode::OK, 0, meta.len),
        Verdict::Part(from, to) => (StatusCode::PARTIAL_CONTENT, from, to),
        Verdict::NotModified => (StatusCode::NOT_MODIFIED, 0, 0),
        Verdict::PreconditionFailed => {
            let detail = format!("/{key} has the entity tag {} now", meta.etag);
            return Err(Problem::new(problem::PRECONDITION_FAILED, detail));
        }
        Verdict::Unsatisfiable => return Err(Problem::range(meta.len)),
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if status != StatusCode::NOT_MODIFIED {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(to - from));
    }
    describe(headers, status, &meta, mount, key.name() == Some(ATTRIBUTES));
    if status == StatusCode::NOT_MODIFIED {
        return Ok(Looked::Found(response));
    }
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {from}-{}/{}", to - 1, meta.len);
        headers.insert(CONTENT_RANGE, HeaderValue::from_str(&range).unwrap_or(HeaderValue::from_static("bytes */*")));
    }
    *response.body_mut() = match stored {
        None => Body::empty(),
        Some(Stored::Whole(_, bytes)) => {
            let (from, to) = (usize::try_from(from).unwrap_or(0), usize::try_from(to).unwrap_or(0));
            let sent = match turn {
                Some(turn) => Some(mount.container.sent_in_turn(turn, bytes.clone())),
                None => mount.container.sent(Client::current(), &bytes),
            };
            let Some(bytes) = sent else { return Ok(Looked::NotItsTurn(bytes.len())) };
            Body::from(bytes.slice(from.min(bytes.len())..to.min(bytes.len())))
        }
        Some(Stored::Large(large)) => pieces(large, from, to, ask.id.to_owned()),
    };
    Ok(Looked::Found(response))
}

/// What the headers of an answer say of the object; not its length.
pub(super) fn describe(headers: &mut HeaderMap, status: StatusCode, meta: &Meta, mount: &Mount, is_json: bool) {
    validators(headers, meta);
    headers.insert(CACHE_CONTROL, mount.cache_found.clone());
    if status == StatusCode::NOT_MODIFIED {
        return;
    }
    let media_type = if is_json { "application/json" } else { "application/octet-stream" };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // Java N5 looks for this name before it reads ranges (`n5:HttpKeyValueAccess.java`).
    headers.insert("accept-range", HeaderValue::from_static("bytes"));
}

fn validators(headers: &mut HeaderMap, meta: &Meta) {
    if let Ok(etag) = HeaderValue::from_str(&meta.etag) {
        headers.insert(ETAG, etag);
    }
    if let Some(date) = meta.modified.and_then(conditional::last_modified) {
        headers.insert(LAST_MODIFIED, date);
    }
}

/// A body read piece by piece. A fault breaks it off, and the connection with it: its length has been
/// promised.
pub(super) fn pieces(large: LargeObject, from: u64, to: u64, id: String) -> Body {
    // The body is polled by the connection, which works for nobody in particular.
    let client = Client::current();
    Body::from_stream(stream::try_unfold(from, move |at| {
        let (large, id) = (large.clone(), id.clone());
        async move {
            if at >= to {
                return Ok(None);
            }
            let piece = client.works(large.piece(at, to)).await.inspect_err(|error| {
                observe::broken_off(&id, error);
            })?;
            let next = at.saturating_add(piece.len() as u64);
            Ok::<_, ReadError>(Some((piece, next)))
        }
    }))
}
