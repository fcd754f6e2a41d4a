//! `GET /slice/{dataset}`: the steps from a query to an encoded array, in order.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG,
    HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH,
};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use crate::container::{Dataset, PieceTransform, PlannedSlice, ReadError, ReadStats};
use crate::cpu_pool::Priority;
use crate::http::admission::slice_admission::{AdmittedSlice, SliceRequest};
use crate::http::band_reader::BandReader;
use crate::http::compress::ContentCoding;
use crate::http::conditional::{self, ConditionalOutcome};
use crate::http::mount::Mount;
use crate::http::parts_body::PartsBody;
use crate::http::problem::{self, Problem};
use crate::http::query::slice_query::{Selection, SliceQuery};
use crate::http::request_context::RequestContext;
use crate::http::respond::{HandlerResult, add_vary};
use crate::http::{compress, encode, route};
use crate::metadata;
use crate::n5::{Array, AttributesDocument, DataType, DescribedDataset};
use crate::output::{self, EncodeOptions, Format};

/// Everything about a response that is known before a block is read.
struct SlicePlan {
    dataset: Arc<Dataset>,
    selection: Selection,
    /// Type of the elements as they are sent.
    data_type: DataType,
    format: &'static dyn Format,
    options: EncodeOptions,
    slice: PlannedSlice,
    /// Memory that encoding takes, in bytes.
    extra_bytes: u64,
    /// Length of the format's header, if the elements follow it as they are in memory. The header is made once there is
    /// memory for it.
    header_bytes: Option<u64>,
    encoding: Option<ContentCoding>,
}

pub(crate) async fn answer(context: &RequestContext<'_>) -> HandlerResult {
    let query = SliceQuery::parse(context.query())?;
    let accept = context.list_header(&ACCEPT);
    let negotiated = output::negotiate(query.format.as_deref(), accept.as_deref()).map_err(Problem::from);
    let with_vary = |problem: Problem| if query.format.is_none() { problem.with_vary("accept") } else { problem };
    let format = negotiated.map_err(with_vary)?;
    let (mount, key) = context.locate(&context.target.segments)?.ok_or_else(Problem::not_found)?;
    let (dataset, axes) = mount
        .container
        .dataset_and_axes(context.freshness, &key, axis_names)
        .await
        .map_err(|error| Problem::from(error).with_cache_control_if_missing(mount.missing_cache_control.clone()))?;
    let plan = plan_slice(context, mount, dataset, &query, format).await?;
    let mut headers = slice_headers(&plan, mount, &axes);
    if query.format.is_none() {
        add_vary(&mut headers, "accept");
    }
    if context.app.options.compress_slices && compress::is_worthwhile(format) {
        add_vary(&mut headers, "accept-encoding");
    }
    if context.method() == Method::HEAD {
        return Ok(head_response(&plan, headers));
    }
    if plan.slice.is_streamed() {
        return respond_streamed(context, mount, plan, headers).await;
    }
    respond_whole(context, mount, plan, headers).await
}

/// Plans a response, and checks everything that can be checked before a block is read.
async fn plan_slice(
    context: &RequestContext<'_>,
    mount: &Mount,
    dataset: Arc<Dataset>,
    query: &SliceQuery,
    format: &'static dyn Format,
) -> Result<SlicePlan, Problem> {
    let attributes = &dataset.attributes;
    let selection = query.select(attributes.dimensions())?;
    let compression = attributes.compression().name();
    if attributes.compression().codec().is_none() || attributes.data_type().size_bytes().is_none() {
        let detail = format!(
            "this server cannot decode compression {compression:?} with data type {:?}; the blocks can be fetched as stored",
            attributes.data_type().name()
        );
        return Err(Problem::new(problem::UNSUPPORTED, detail).with_member("compression", compression));
    }
    let data_type = query.data_type.as_ref().unwrap_or(attributes.data_type()).clone();
    let options = query.options(&selection);
    let content_coding = if context.app.options.compress_slices && compress::is_worthwhile(format) {
        context.list_header(&ACCEPT_ENCODING).as_deref().and_then(compress::best_coding)
    } else {
        None
    };
    let (kept_axes, region) = (selection.kept_axes.as_slice(), &selection.region);
    let request =
        SliceRequest { dataset: &dataset, kept_axes, data_type: &data_type, format, options: &options, content_coding };
    let memory = request
        .encoding_memory(region)
        .map_err(|reason| Problem::new(problem::INVALID_PARAMETER, reason).with_member("parameter", "format"))?;
    let delivery = request.delivery(&memory, context.app.client_limiter.limits_bandwidth(), false);
    let (container, limit_bytes) = (&mount.container, mount.container.max_buffered_bytes());
    let planned = container.plan_sparse_slice(context.freshness, &dataset, region.clone(), &delivery).await?;
    let admitted = planned.map_err(Problem::from).and_then(|slice| request.admit(slice, &memory, limit_bytes));
    let mut admitted = admitted
        .map_err(|problem| problem.with_piece_hint(request.largest_admitted_piece(container, region).as_deref()))?;
    // If slow clients hold the memory for a whole response, a streamed one need not wait for them. It has no entity
    // tag, so a request with a precondition waits.
    let has_precondition = [IF_MATCH, IF_NONE_MATCH].iter().any(|name| context.headers().contains_key(name));
    if !has_precondition
        && !admitted.slice.is_streamed()
        && !container.has_capacity_for(&admitted.slice, admitted.extra_bytes)
    {
        let streamed =
            container.plan_converted_slice(&dataset, region.clone(), &request.delivery(&memory, false, true));
        let streamed = streamed
            .ok()
            .filter(PlannedSlice::is_streamed)
            .and_then(|slice| request.admit(slice, &memory, limit_bytes).ok());
        admitted = streamed.unwrap_or(admitted);
    }
    let AdmittedSlice { slice, extra_bytes, encoding } = admitted;
    let header_bytes = memory.header_bytes;
    Ok(SlicePlan { dataset, selection, data_type, format, options, slice, extra_bytes, header_bytes, encoding })
}

/// Returns the names of a dataset's axes; empty if its attributes do not give them.
fn axis_names(document: AttributesDocument) -> Vec<String> {
    let described = DescribedDataset::parse(document).ok();
    described
        .and_then(|described| metadata::Calibration::from_dataset(&described, &mut Vec::new()).axes)
        .unwrap_or_default()
}

/// Returns the headers that are known before a block is read.
fn slice_headers(plan: &SlicePlan, mount: &Mount, axes: &[String]) -> HeaderMap {
    let order = plan.options.order;
    let mut headers = HeaderMap::new();
    let mut put = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    put("n5-data-type", plan.data_type.name().to_owned());
    put("n5-shape", comma_separated(&order.label(&plan.selection.shape())));
    put("n5-order", order.name().to_owned());
    put("n5-byte-order", plan.options.endian.name().to_owned());
    put("n5-start", comma_separated(&plan.options.start));
    put("n5-step", comma_separated(&plan.options.step));
    if !axes.is_empty() {
        let kept_names = plan.selection.kept_axes.iter().filter_map(|axis| axes.get(*axis));
        let mut names: Vec<String> = kept_names.map(|name| route::encode_segment(name).to_string()).collect();
        if order == output::AxisOrder::C {
            names.reverse();
        }
        let names = names.join(",");
        // Clients refuse heads of more than a few kilobytes.
        if names.len() <= 2 << 10 {
            put("n5-axes", names);
        }
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(plan.format.media_type()));
    headers.insert(CACHE_CONTROL, mount.found_cache_control.clone());
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    headers
}

/// Returns the response to HEAD, with the headers that are known before a block is read.
fn head_response(plan: &SlicePlan, headers: HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = headers;
    if let (Some(header_bytes), None) = (plan.header_bytes, plan.encoding) {
        let length = plan.slice.bytes().saturating_add(header_bytes);
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// Reads and encodes the whole slice, then responds.
async fn respond_whole(
    context: &RequestContext<'_>,
    mount: &Mount,
    plan: SlicePlan,
    mut headers: HeaderMap,
) -> HandlerResult {
    if context.headers().contains_key(IF_NONE_MATCH) {
        // The blocks' entity tags tell whether the client's copy is current. Nothing needs to be decoded.
        let etag = etag(&plan, mount.container.fingerprint(context.freshness, &plan.slice).await?.etags_hash);
        if conditional::evaluate(context.method(), context.headers(), Some(&etag), None, None)
            == ConditionalOutcome::NotModified
        {
            headers.remove(CONTENT_TYPE);
            insert_header(&mut headers, ETAG, &etag);
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            *response.headers_mut() = headers;
            return Ok(response);
        }
    }
    let is_encoded = plan.extra_bytes > 0 || plan.slice.is_converted();
    // Elements that are sent as they are need not be in one buffer.
    let is_verbatim = plan.header_bytes.is_some() && !is_encoded;
    let has_several_pieces = plan.format.piece_count(&plan.selection.shape(), &plan.data_type, &plan.options) > 1;
    let (pieces, memory, stats) = if is_verbatim {
        mount.container.read_pieces(context.freshness, &plan.slice).await?
    } else {
        mount
            .container
            .read_slice(context.freshness, &plan.slice, plan.extra_bytes)
            .await
            .map(|(a, b, c)| (vec![a], b, c))?
    };
    let etag = etag(&plan, stats.fingerprint.etags_hash);
    if conditional::evaluate(context.method(), context.headers(), Some(&etag), None, None)
        == ConditionalOutcome::PreconditionFailed
    {
        let detail = format!("the entity tag of this slice is now {etag}");
        return Err(Problem::new(problem::PRECONDITION_FAILED, detail));
    }
    let (started, encoding) = (Instant::now(), plan.encoding);
    let SlicePlan { slice, data_type, format, options, selection, .. } = plan;
    let (shape, dataset_id) = (selection.shape(), slice.dataset_id());
    let parts = if is_verbatim {
        format.header(&shape, &data_type, &options).into_iter().chain(pieces).collect()
    } else if encoding.is_none() && !slice.is_converted() && has_several_pieces {
        let data = pieces.into_iter().next().unwrap_or_default();
        encode::encode_in_parallel(
            &mount.container,
            dataset_id,
            format,
            Array { shape, data_type, data },
            (options, memory),
        )
        .await?
    } else {
        let len = pieces.iter().map(Bytes::len).sum();
        // The job holds its memory permit, because it continues if the client disconnects.
        let encode = encode::timed(format.name(), move || -> Result<Vec<Bytes>, Problem> {
            let data = slice.convert(pieces.into_iter().next().unwrap_or_default()).map_err(ReadError::from)?;
            let array = Array { shape, data_type, data };
            let mut parts = format.encode(&array, &options).map_err(|error| Problem::internal(error.to_string()))?;
            if let Some(encoding) = encoding {
                parts = vec![encoding.compress(&parts).map_err(|error| Problem::internal(error.to_string()))?];
            }
            if is_encoded && let Some(last) = parts.pop() {
                parts.push(memory.own(last));
            }
            Ok(parts)
        });
        // Encoding that takes no memory of its own is too cheap for the CPU pool.
        if is_encoded {
            mount
                .container
                .resources()
                .cpu()
                .run(Priority::for_input_bytes(len), dataset_id, encode)
                .await
                .map_err(ReadError::from)?
        } else {
            encode()
        }?
    };
    insert_header(&mut headers, ETAG, &etag);
    if let Some(encoding) = encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
    }
    headers.insert("n5-missing-blocks", HeaderValue::from(stats.missing));
    insert_header(&mut headers, HeaderName::from_static("server-timing"), &server_timing(&stats, started.elapsed()));
    let length: usize = parts.iter().map(Bytes::len).sum();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    let mut response = Response::new(body_from_parts(parts));
    *response.headers_mut() = headers;
    Ok(response)
}

/// Assembles the first band before the status is sent, and each further band while the previous one is being sent.
async fn respond_streamed(
    context: &RequestContext<'_>,
    mount: &Mount,
    plan: SlicePlan,
    mut headers: HeaderMap,
) -> HandlerResult {
    let shape = plan.selection.shape();
    let length = plan.slice.bytes().saturating_add(plan.header_bytes.unwrap_or(0));
    let (format, options, data_type) = (plan.format, plan.options, plan.data_type);
    let transform: Option<PieceTransform> = format
        .changes_bands(&data_type, &options)
        .then(|| (data_type.clone(), options.clone()))
        .map(|(data_type, options)| {
            Arc::new(move |piece| format.finish_band(piece, &data_type, &options)) as PieceTransform
        });
    let container = mount.container.clone();
    let mut bands = BandReader::new(container, context.freshness, plan.slice, transform);
    let first_band = bands.next().await?.unwrap_or_default();
    // The first band's memory permit covers the header as well.
    let header = format.header(&shape, &data_type, &options).unwrap_or_default();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    let mut response = Response::new(bands.into_body(header, first_band, context.id.to_owned()));
    *response.headers_mut() = headers;
    Ok(response)
}

/// Returns an entity tag that depends on everything that the response's bytes depend on, and on nothing else. It is the
/// same on every replica and after every restart.
fn etag(plan: &SlicePlan, fingerprint: u128) -> String {
    let mut hashed_text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        hashed_text,
        "{} {:?} {:?} {:?} {} {fingerprint:x} {}",
        plan.dataset.etag,
        plan.selection,
        plan.options,
        plan.data_type,
        plan.format.name(),
        plan.encoding.map_or("", ContentCoding::name),
    );
    format!("\"{:032x}\"", xxh3_128(hashed_text.as_bytes()))
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

fn body_from_parts(mut parts: Vec<Bytes>) -> Body {
    parts.retain(|part| !part.is_empty());
    match parts.len() {
        0 => Body::empty(),
        1 => Body::from(parts.remove(0)),
        _ => Body::new(PartsBody::new(parts)),
    }
}

fn comma_separated<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn insert_header(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
