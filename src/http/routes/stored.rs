//! The container as stored: attributes and blocks byte for byte, and listings of directories.

use axum::body::Body;
use axum::http::{Method, Response};

use crate::cache::{ATTRIBUTES, ReadError, StoredObject};
use crate::http::mount::Mount;
use crate::http::problem::Problem;
use crate::http::query::params;
use crate::http::request::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::routes::listing;
use crate::http::{body, route};
use crate::store::Key;

/// Handles `GET /`, `/n5/` and every path below: returns an object, a listing, or a redirect to one.
pub(crate) async fn handle(context: &RequestContext<'_>) -> HandlerResult {
    let target = context.target;
    let Some((mount, key)) = context.locate(&target.segments)? else {
        return if target.is_bare { Ok(context.redirect_to_slash()) } else { listing::of_mounts(context).await };
    };
    // Neuroglancer uses this parameter to detect S3, and would take a listing of this server for one of S3.
    if target.has_trailing_slash && params::first_value(context.parts.uri.query(), "list-type").is_some() {
        return Err(Problem::not_found());
    }
    if target.has_trailing_slash {
        return listing::of_directory(context, mount, &key).await;
    }
    if route::is_n5_key(&key)
        && let Some(response) = object_response(context, mount, &key).await?
    {
        return Ok(response);
    }
    // Clients of N5 read a missing block as zeros.
    mount.container.confirm_missing_object(context.read_options, &key).await?;
    redirect_to_listing(context, mount, &key).await
}

/// Returns a redirect to the listing of a directory at `key`, or the 404 if there is none.
pub(crate) async fn redirect_to_listing(context: &RequestContext<'_>, mount: &Mount, key: &Key) -> HandlerResult {
    if !mount.container.is_group_directory(context.read_options, key).await? {
        return Err(mount.not_found());
    }
    Ok(context.redirect_to_slash())
}

/// Returns the response with the object at `key`; `None` if there is none.
async fn object_response(
    context: &RequestContext<'_>,
    mount: &Mount,
    key: &Key,
) -> Result<Option<Response<Body>>, Problem> {
    let container = &mount.container;
    let mut send_permit = None;
    loop {
        // HEAD reads no bytes. An object that is too large for memory is only opened.
        let (meta, stored) = if context.parts.method == Method::HEAD {
            let meta = ReadError::hidden_as_none(container.meta(context.read_options, key).await)?;
            let Some(meta) = meta else { return Ok(None) };
            (meta, None)
        } else {
            let headers = &context.parts.headers;
            let mut len = u64::MAX;
            if respond::requests_suffix(headers) {
                let meta = ReadError::hidden_as_none(container.meta(context.read_options, key).await)?;
                let Some(meta) = meta else { return Ok(None) };
                len = meta.len;
            }
            let range = respond::requested_part(headers, len);
            let stored = container.object_for_range(context.read_options, key, range).await;
            let stored = ReadError::hidden_as_none(stored)?;
            let Some(stored) = stored else { return Ok(None) };
            (stored.meta().clone(), Some(stored))
        };
        let entity = Entity {
            etag: Some(meta.etag),
            modified: meta.modified,
            len: Some(meta.len),
            key: Some(key),
            ..mount.stored_entity(key.name() == Some(ATTRIBUTES))
        };
        let (mut response, range) = entity.select(context.parts)?;
        let (Some(range), Some(stored)) = (range, stored) else { return Ok(Some(response)) };
        *response.body_mut() = match stored {
            StoredObject::Whole(_, bytes) => {
                let Some(bytes) = container.charge_or_wait(&mut send_permit, bytes).await? else { continue };
                Body::from(respond::slice_bytes(&bytes, &range))
            }
            StoredObject::Large(large) => body::stream_range(large, range, context.id.to_owned()),
        };
        return Ok(Some(response));
    }
}
