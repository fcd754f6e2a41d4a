//! `GET /slice/{dataset}`: samples of a dataset in the format that the client asks for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, HeaderMap, HeaderName, IF_MATCH,
    IF_NONE_MATCH,
};
use axum::http::{HeaderValue, Method};
use xxhash_rust::xxh3::xxh3_128;

use crate::container::Container;
use crate::http::body::{self, BandReader};
use crate::http::compress::{self, ContentCoding};
use crate::http::file_name;
use crate::http::problem::Problem;
use crate::http::query::slice_query::SliceQuery;
use crate::http::request::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::route;
use crate::http::slice_picture::{self, PictureNeeds};
use crate::http::slice_request::{self, PlannedResponse, SliceRequest};
use crate::http::slice_source::SliceSource;
use crate::output::{self, AxisOrder, Composite, EncodeOptions, Endian, Format, StackAxis, StackChannel};
use crate::read::{self, BandStream, ReadPurpose, ReadStats, SliceRead, SliceReader, Streaming};
use crate::store::Key;

/// Number of headers that describe a slice, at most.
const MAX_DESCRIBING_HEADERS: usize = 14;

/// Handles `GET /slice/{dataset}`.
pub(crate) async fn handle(context: &RequestContext<'_>) -> HandlerResult {
    let query = SliceQuery::parse(context.parts.uri.query())?;
    let format = negotiate_format(context, &query)?;
    let (mount, key) = context.locate(&context.target.segments)?.ok_or_else(Problem::not_found)?;
    let container = &mount.container;
    let (mut source, selection) = SliceSource::find(context, mount, &key, &query).await?;

    let may_compress = context.app.options.compress_slices && format.is_compressible();
    let accepted_codings = may_compress.then(|| context.list_header(&ACCEPT_ENCODING)).flatten();
    let content_coding = accepted_codings.as_deref().and_then(compress::best_coding);
    let dataset = Arc::clone(&source.dataset);
    let mut request = SliceRequest::new(dataset, &query, selection, format, content_coding)?;
    if let Some(needs) = PictureNeeds::of(mount, &query, &request)? {
        Box::pin(slice_picture::resolve(context, mount, &query, &mut source, &mut request, needs)).await?;
    }
    // A streamed response has no entity tag, so a request with a precondition waits for memory.
    let has_precondition = [IF_MATCH, IF_NONE_MATCH].iter().any(|name| context.parts.headers.contains_key(name));
    let is_rate_limited = context.app.options.client_limits.bytes_per_second > 0;
    let streaming = if is_rate_limited { Streaming::IfLargeInSmallBands } else { Streaming::IfLarge };
    let plan = request.plan(container, context.read_options, streaming, !has_precondition).await?;

    let mut entity = Entity::new(format.media_type(), mount.found_cache_control.clone());
    entity.subject = "this slice";
    entity.extra = slice_headers(&plan, &source);
    if query.format.is_none() {
        respond::add_vary(&mut entity.extra, "accept");
    }
    if may_compress {
        respond::add_vary(&mut entity.extra, "accept-encoding");
    }
    let disposition = || disposition(&plan, (&mount.name, &source.dataset.key), &source.axes);
    if context.parts.method == Method::HEAD || plan.slice.is_streamed() {
        entity.extra.insert(CONTENT_DISPOSITION, disposition());
        entity.len = plan.response_bytes();
        return respond_unread(context, container, plan, &entity).await;
    }
    if context.parts.headers.contains_key(IF_NONE_MATCH) {
        // The blocks' entity tags tell whether the client's copy is current. Nothing needs to be decoded.
        let blocks = read::fingerprint(container, context.read_options, &plan.slice).await?;
        entity.etag = Some(etag(&plan, blocks.etags_hash).into());
        if let Some(response) = entity.not_modified(context.parts) {
            return Ok(response);
        }
    }
    entity.extra.insert(CONTENT_DISPOSITION, disposition());
    respond_whole(context, container, plan, entity).await
}

/// Reads and encodes the slice, and responds with all of it.
async fn respond_whole(
    context: &RequestContext<'_>,
    container: &Container,
    plan: PlannedResponse,
    mut entity: Entity<'_>,
) -> HandlerResult {
    let reader = SliceReader { container, options: context.read_options, slice: &plan.slice };
    let SliceRead { pieces, memory, stats } = if plan.is_verbatim() {
        reader.read_pieces().await?
    } else {
        reader.read_whole(plan.extra_bytes, ReadPurpose::Response).await?
    };
    entity.etag = Some(etag(&plan, stats.fingerprint.etags_hash).into());
    entity
        .extra
        .extend(plan.content_coding().map(|coding| (CONTENT_ENCODING, HeaderValue::from_static(coding.name()))));
    let (mut response, range) = entity.select(context.parts)?;
    if range.is_none() {
        return Ok(response);
    }
    let started = Instant::now();
    let parts = slice_request::encode_slice(container, plan, pieces, memory).await?;
    let headers = response.headers_mut();
    headers.insert("n5-missing-blocks", HeaderValue::from(stats.missing));
    let timing = server_timing(&stats, started.elapsed());
    respond::insert_header(headers, HeaderName::from_static("server-timing"), &timing);
    let (body, len) = body::from_parts(parts);
    Ok(respond::with_body(response, body, len))
}

/// Chooses the format that the query names, or else the one that `Accept` prefers.
fn negotiate_format(context: &RequestContext<'_>, query: &SliceQuery) -> Result<&'static dyn Format, Problem> {
    let accept = context.list_header(&ACCEPT);
    output::negotiate(query.format.as_deref(), accept.as_deref()).map_err(|error| {
        let problem = Problem::from(error);
        if query.format.is_none() { problem.with_vary("accept") } else { problem }
    })
}

/// Returns the value of `Content-Disposition` for a slice of the dataset at a key of a mount.
fn disposition(plan: &PlannedResponse, (mount, key): (&str, &Key), axes: &[String]) -> HeaderValue {
    let SliceRequest { selection, format, dataset, .. } = &plan.request;
    let samples = (selection, dataset.attributes.dimensions().as_slice());
    let name = file_name::slice(mount, key, samples, axes, format.file_suffix());
    file_name::content_disposition(&name, format.is_shown_by_browsers())
}

/// Returns the headers that describe the elements.
fn slice_headers(plan: &PlannedResponse, source: &SliceSource) -> HeaderMap {
    let axes = &source.axes;
    let SliceRequest { selection, options, data_type, .. } = &plan.request;
    let order = options.order;
    let mut headers = HeaderMap::with_capacity(MAX_DESCRIBING_HEADERS);
    let mut put = |name, value: &str| respond::insert_header(&mut headers, HeaderName::from_static(name), value);
    put("n5-data-type", data_type.name());
    put("n5-shape", &comma_separated(&order.label(&selection.shape())));
    put("n5-order", order.name());
    put("n5-byte-order", options.endian.name());
    put("n5-start", &comma_separated(&options.start));
    put("n5-step", &comma_separated(&options.step));
    if !axes.is_empty() {
        let kept_names = selection.kept_axes.iter().filter_map(|axis| axes.get(*axis));
        let mut names: Vec<String> = kept_names.map(|name| route::encode_segment(name).to_string()).collect();
        if order == AxisOrder::C {
            names.reverse();
        }
        let names = names.join(",");
        // Clients refuse heads of more than a few kilobytes.
        if names.len() <= 2 << 10 {
            put("n5-axes", &names);
        }
    }
    if let Some(level) = source.level_path() {
        let level: Vec<String> = level.split('/').map(|name| route::encode_segment(name).to_string()).collect();
        respond::insert_header(&mut headers, HeaderName::from_static("n5-level"), &level.join("/"));
    }
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    headers
}

/// Responds without an entity tag: to HEAD without a body, to GET with a body of bands. The first band is assembled
/// before the status is sent, and each further band while the previous one is being sent.
async fn respond_unread(
    context: &RequestContext<'_>,
    container: &Container,
    plan: PlannedResponse,
    entity: &Entity<'_>,
) -> HandlerResult {
    let (mut response, _) = entity.select(context.parts)?;
    if context.parts.method == Method::HEAD {
        return Ok(response);
    }
    let PlannedResponse { request, slice, .. } = plan;
    let SliceRequest { format, data_type, options, selection, .. } = request;
    let streamed_format = format.as_streamed();
    let endian = streamed_format.map_or(Endian::Little, |format| format.byte_order(&options));
    let swapped_width = endian.swapped_width(&data_type);
    let bands = BandStream::new(container.clone(), context.read_options, slice, swapped_width);
    let mut bands = BandReader::new(container.clone(), bands);
    let first_band = bands.next().await?.unwrap_or_default();
    // The first band's memory permit covers the header as well.
    let header = streamed_format.and_then(|format| format.header(&selection.shape(), &data_type, &options));
    *response.body_mut() = bands.into_body(header.unwrap_or_default(), first_band, context.id.to_owned());
    Ok(response)
}

/// Returns an entity tag that depends on the blocks, on the attributes and on everything that the request says about
/// the encoding. It is the same on every replica and after every restart.
///
/// The version of this server is not included, so that copies of clients stay valid after an upgrade. If a release
/// encodes the same elements in other bytes, the tag stays the same.
fn etag(plan: &PlannedResponse, blocks_hash: u128) -> String {
    let request = &plan.request;
    let region = &request.selection.region;
    // Without `..`, so that a new option cannot be forgotten. The selection contains `start` and `step`.
    let EncodeOptions { order, endian, window, composite, quality, axes, stack_channels, start: _, step: _ } =
        &request.options;
    let hashed_text = format!(
        "attributes={} start={:?} shape={:?} step={:?} axes={:?} dtype={} format={} order={} endian={} window={:?} \
         quality={:?} coding={}{} blocks={blocks_hash:x}",
        request.dataset.etag,
        region.start(),
        region.shape(),
        region.step(),
        request.selection.kept_axes,
        request.data_type.name(),
        request.format.name(),
        order.name(),
        endian.name(),
        window,
        quality,
        plan.content_coding().map_or("", ContentCoding::name),
        picture_text(composite.as_ref(), axes, stack_channels),
    );
    format!("\"{:032x}\"", xxh3_128(hashed_text.as_bytes()))
}

/// Returns the text of those options that only pictures and stacks have; empty for other slices.
fn picture_text(composite: Option<&Composite>, axes: &[StackAxis], channels: &[StackChannel]) -> String {
    let composite = composite.map_or_else(String::new, |composite| format!(" composite={composite:?}"));
    let axes = if axes.is_empty() { String::new() } else { format!(" stack={axes:?}") };
    let channels = if channels.is_empty() { String::new() } else { format!(" channels={channels:?}") };
    composite + &axes + &channels
}

/// Returns the value of `Server-Timing`: milliseconds of each stage. `store` and `decode` are sums over concurrent
/// work.
fn server_timing(stats: &ReadStats, encode: Duration) -> String {
    let cache = match (stats.hits, stats.loaded) {
        (_, 0) => "hit",
        (0, _) => "miss",
        _ => "partial",
    };
    let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
    format!(
        "cache;desc={cache};dur={:.3}, store;dur={:.3}, decode;dur={:.3}, assemble;dur={:.3}, encode;dur={:.3}",
        milliseconds(stats.cache),
        milliseconds(stats.store),
        milliseconds(stats.decode),
        milliseconds(stats.assemble),
        milliseconds(encode)
    )
}

fn comma_separated<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
