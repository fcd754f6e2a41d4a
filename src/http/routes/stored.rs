//! The container as stored: attributes and blocks byte for byte, and listings of directories.

use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;
use futures_util::stream;

use crate::cache::{ATTRIBUTES, LargeObject, ReadError, SendPermit, StoredObject};
use crate::container::Container;
use crate::fair_queue::ClientId;
use crate::http::mount::Mount;
use crate::http::problem::Problem;
use crate::http::query::lenient;
use crate::http::request_context::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
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
        return listing::of_directory(context, mount, &key, None).await;
    }
    if route::is_n5_key(&key)
        && let Some(response) = object_response(context, mount, &key).await?
    {
        return Ok(response);
    }
    if !mount.container.is_directory(context.freshness, &key).await? {
        return Err(mount.not_found());
    }
    // A directory in the place of a block means that the block is missing. Only this case needs the attributes.
    if !target.is_bare && mount.container.is_block_position(context.freshness, &key).await? {
        return Err(mount.not_found());
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

async fn object_response(
    context: &RequestContext<'_>,
    mount: &Mount,
    key: &Key,
) -> Result<Option<Response<Body>>, Problem> {
    let (container, mut send_permit) = (&mount.container, None);
    loop {
        // HEAD reads no bytes. An object that is too large to be held is only opened.
        let (meta, stored) = if context.method() == Method::HEAD {
            let meta = ReadError::hidden_as_none(container.meta(context.freshness, key).await)?;
            let Some(meta) = meta else { return Ok(None) };
            (meta, None)
        } else {
            let stored = ReadError::hidden_as_none(container.object(context.freshness, key).await)?;
            let Some(stored) = stored else { return Ok(None) };
            (stored.meta().clone(), Some(stored))
        };
        let entity = Entity {
            etag: Some(meta.etag),
            modified: meta.modified,
            len: Some(meta.len),
            subject: &format!("/{key}"),
            ..mount.stored_entity(key.name() == Some(ATTRIBUTES))
        };
        let (mut response, range) = entity.select(context.parts)?;
        let (Some(range), Some(stored)) = (range, stored) else { return Ok(Some(response)) };
        *response.body_mut() = match stored {
            StoredObject::Whole(_, bytes) => {
                let Some(bytes) = charge_to_client(container, send_permit.take(), &bytes) else {
                    // The client must receive other responses first. No bytes are held while waiting.
                    let len = bytes.len();
                    drop(bytes);
                    send_permit = Some(container.acquire_send_permit(len).await?);
                    continue;
                };
                Body::from(respond::slice_bytes(&bytes, &range))
            }
            StoredObject::Large(large) => stream_range(large, range, context.id.to_owned()),
        };
        return Ok(Some(response));
    }
}

/// Charges `bytes` to the current client while they are sent, with the permit to send them if it had to wait for one.
/// Returns `None` if it has to wait.
pub(crate) fn charge_to_client(container: &Container, permit: Option<SendPermit>, bytes: &Bytes) -> Option<Bytes> {
    match permit {
        Some(permit) => Some(container.charge_with_permit(permit, bytes.clone())),
        None => container.charge_to_client(ClientId::current(), bytes),
    }
}

/// Returns a body that is read piece by piece. An error aborts the body and the connection, because the length has
/// already been sent.
pub(crate) fn stream_range(large: Arc<LargeObject>, range: Range<u64>, id: String) -> Body {
    // Captured here, because the connection polls the body without a current client.
    let client = ClientId::current();
    Body::from_stream(stream::try_unfold(range.start, move |offset| {
        let (large, id) = (Arc::clone(&large), id.clone());
        async move {
            if offset >= range.end {
                return Ok(None);
            }
            let piece = client.scope(large.read_piece(offset, range.end)).await.inspect_err(|error| {
                observe::report_body_failure(&id, error);
            })?;
            let next = offset.saturating_add(piece.len() as u64);
            Ok::<_, ReadError>(Some((piece, next)))
        }
    }))
}
