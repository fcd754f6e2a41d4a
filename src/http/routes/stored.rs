//! The container as stored: attributes and blocks byte for byte, and listings of directories.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use futures_util::stream;

use crate::container::{ATTRIBUTES, LargeObject, ReadError, SendPermit, StoredObject};
use crate::fair_queue::ClientId;
use crate::http::conditional::{self, ConditionalOutcome};
use crate::http::mount::Mount;
use crate::http::problem::{self, Problem};
use crate::http::query::lenient;
use crate::http::request_context::RequestContext;
use crate::http::respond::{self, HandlerResult};
use crate::http::routes::listing;
use crate::http::{observe, route};
use crate::store::Key;

/// Handles `GET /`, `/n5/` and every path below: returns an object, a listing, or a redirect to one.
pub(crate) async fn answer(context: &RequestContext<'_>) -> HandlerResult {
    let target = context.target;
    let Some((mount, key)) = context.locate(&target.segments)? else {
        return if target.is_bare { Ok(redirect_to_slash(context)) } else { listing::of_mounts(context).await };
    };
    // Neuroglancer probes for S3. A listing in another format would confuse it.
    if target.has_trailing_slash && lenient::first_value(context.query(), "list-type").is_some() {
        return Err(Problem::not_found());
    }
    if target.has_trailing_slash {
        return listing::of_directory(context, mount, &key).await;
    }
    let not_found = || Problem::not_found().with_cache_control_if_missing(mount.missing_cache_control.clone());
    if route::is_n5_key(&key)
        && let Some(response) = object_response(context, mount, &key).await?
    {
        return Ok(response);
    }
    if !mount.container.is_directory(context.freshness, &key).await? {
        return Err(not_found());
    }
    // A directory in the place of a block means that the block is missing. Only this case needs the attributes.
    if !target.is_bare && mount.container.is_block_position(context.freshness, &key).await? {
        return Err(not_found());
    }
    Ok(redirect_to_slash(context))
}

/// Returns a 301 to the same path with a slash. It is relative, so that it is valid behind any prefix.
pub(crate) fn redirect_to_slash(context: &RequestContext<'_>) -> Response<Body> {
    let last_segment = context.path().rsplit('/').next().unwrap_or_default();
    // Decoded and encoded again, because a colon would make the relative reference an absolute one.
    let name = percent_encoding::percent_decode_str(last_segment).decode_utf8_lossy();
    let query = context.query_with_token().map(|query| format!("?{query}")).unwrap_or_default();
    let location = HeaderValue::from_str(&format!("{}/{query}", route::encode_segment(&name))).ok();
    let mut response = respond::redirect(StatusCode::MOVED_PERMANENTLY, location, "no-cache");
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(0));
    response
}

/// Outcome of one attempt to send an object.
enum ObjectAttempt {
    Found(Response<Body>),
    Missing,
    /// The client must receive other responses first; holds the number of bytes to send after that.
    Backpressure(usize),
}

async fn object_response(
    context: &RequestContext<'_>,
    mount: &Mount,
    key: &Key,
) -> Result<Option<Response<Body>>, Problem> {
    let mut send_permit = None;
    loop {
        match try_object(context, mount, key, send_permit).await? {
            ObjectAttempt::Found(response) => return Ok(Some(response)),
            ObjectAttempt::Missing => return Ok(None),
            // No bytes are held while waiting.
            ObjectAttempt::Backpressure(len) => send_permit = Some(mount.container.acquire_send_permit(len).await?),
        }
    }
}

/// Makes one attempt to send an object. `send_permit` is the permit to send it if the client had to wait for one.
async fn try_object(
    context: &RequestContext<'_>,
    mount: &Mount,
    key: &Key,
    send_permit: Option<SendPermit>,
) -> Result<ObjectAttempt, Problem> {
    // HEAD reads no bytes. An object that is too large to be held is only opened.
    let (meta, stored) = if context.method() == Method::HEAD {
        let Some(meta) = ReadError::hidden_as_none(mount.container.meta(context.freshness, key).await)? else {
            return Ok(ObjectAttempt::Missing);
        };
        (meta, None)
    } else {
        let result = mount.container.object(context.freshness, key).await;
        let Some(stored) = ReadError::hidden_as_none(result)? else { return Ok(ObjectAttempt::Missing) };
        (stored.meta().clone(), Some(stored))
    };
    let outcome =
        conditional::evaluate(context.method(), context.headers(), Some(&meta.etag), meta.modified, Some(meta.len));
    let (status, from, to) = match outcome {
        ConditionalOutcome::Full => (StatusCode::OK, 0, meta.len),
        ConditionalOutcome::Partial(from, to) => (StatusCode::PARTIAL_CONTENT, from, to),
        ConditionalOutcome::NotModified => (StatusCode::NOT_MODIFIED, 0, 0),
        ConditionalOutcome::PreconditionFailed => {
            let detail = format!("the entity tag of /{key} is now {}", meta.etag);
            return Err(Problem::new(problem::PRECONDITION_FAILED, detail));
        }
        ConditionalOutcome::Unsatisfiable => return Err(Problem::range_not_satisfiable(meta.len)),
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if status != StatusCode::NOT_MODIFIED {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(to - from));
    }
    respond::add_entity_headers(headers, status, &meta, mount, key.name() == Some(ATTRIBUTES));
    if status == StatusCode::NOT_MODIFIED {
        return Ok(ObjectAttempt::Found(response));
    }
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {from}-{}/{}", to - 1, meta.len);
        headers.insert(CONTENT_RANGE, HeaderValue::from_str(&range).unwrap_or(HeaderValue::from_static("bytes */*")));
    }
    *response.body_mut() = match stored {
        None => Body::empty(),
        Some(StoredObject::Whole(_, bytes)) => {
            let (from, to) = (usize::try_from(from).unwrap_or(0), usize::try_from(to).unwrap_or(0));
            let charged = match send_permit {
                Some(permit) => Some(mount.container.charge_with_permit(permit, bytes.clone())),
                None => mount.container.charge_to_client(ClientId::current(), &bytes),
            };
            let Some(bytes) = charged else { return Ok(ObjectAttempt::Backpressure(bytes.len())) };
            Body::from(bytes.slice(from.min(bytes.len())..to.min(bytes.len())))
        }
        Some(StoredObject::Large(large)) => stream_range(large, from, to, context.id.to_owned()),
    };
    Ok(ObjectAttempt::Found(response))
}

/// Returns a body that is read piece by piece. An error aborts the body and the connection, because the length has
/// already been sent.
pub(crate) fn stream_range(large: LargeObject, from: u64, to: u64, id: String) -> Body {
    // Captured here, because the connection polls the body without a current client.
    let client = ClientId::current();
    Body::from_stream(stream::try_unfold(from, move |offset| {
        let (large, id) = (large.clone(), id.clone());
        async move {
            if offset >= to {
                return Ok(None);
            }
            let piece = client.scope(large.read_piece(offset, to)).await.inspect_err(|error| {
                observe::report_body_failure(&id, error);
            })?;
            let next = offset.saturating_add(piece.len() as u64);
            Ok::<_, ReadError>(Some((piece, next)))
        }
    }))
}
