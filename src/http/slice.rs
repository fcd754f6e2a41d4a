//! `GET /slice/{dataset}`: the walk from a query to an array in some format, in order.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::{
    ACCEPT, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    IF_MATCH, IF_NONE_MATCH,
};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::banded::BandReader;
use super::compress::Encoding;
use super::conditional::{self, Verdict};
use super::parts_body::PartsBody;
use super::problem::{self, Problem};
use super::slice_query::{Selection, SliceQuery};
use super::wish::{Admitted, Wish};
use super::{Answer, Ask, Mount, compress, encode, vary};
use crate::container::{Dataset, Finish, ReadError, ReadStats, Slice};
use crate::cpu::Length;
use crate::metadata;
use crate::n5::{Array, DataType, DescribedDataset, Document};
use crate::output::{self, Format, NegotiationError, Options};

/// Everything about an answer that is known before a block is read.
struct Plan {
    dataset: Arc<Dataset>,
    selection: Selection,
    /// Of the elements as they are sent.
    data_type: DataType,
    format: &'static dyn Format,
    options: Options,
    slice: Slice,
    /// Memory that encoding takes.
    extra_bytes: u64,
    /// Bytes of what comes before the elements, where these go out as they are in memory. They are made when there
    /// is memory for them.
    start_bytes: Option<u64>,
    encoding: Option<Encoding>,
}

pub(super) async fn answer(ask: &Ask<'_>) -> Answer {
    let query = SliceQuery::parse(ask.query())?;
    let accept = ask.list_header(&ACCEPT);
    let chosen = output::negotiate(query.format.as_deref(), accept.as_deref()).map_err(Problem::from);
    let negotiated = |problem: Problem| if query.format.is_none() { problem.varying("accept") } else { problem };
    let format = chosen.map_err(negotiated)?;
    let (mount, key) = ask.locate(&ask.target.segments)?.ok_or_else(Problem::missing)?;
    let (dataset, axes) = mount
        .container
        .dataset_and_axes(ask.access, &key, axes_of)
        .await
        .map_err(|error| Problem::from(error).cached(mount.cache_missing.clone()))?;
    let plan = plan(ask, mount, dataset, &query, format).await?;
    let mut headers = headers(&plan, mount, &axes);
    if query.format.is_none() {
        vary(&mut headers, "accept");
    }
    if ask.app.options.compress_slices && compress::is_worthwhile(format) {
        vary(&mut headers, "accept-encoding");
    }
    if ask.method() == Method::HEAD {
        return Ok(head(&plan, headers));
    }
    if plan.slice.is_streamed() {
        return streamed(ask, mount, plan, headers).await;
    }
    whole(ask, mount, plan, headers).await
}

/// Checks everything that can be checked before a block is read.
async fn plan(
    ask: &Ask<'_>,
    mount: &Mount,
    dataset: Arc<Dataset>,
    query: &SliceQuery,
    format: &'static dyn Format,
) -> Result<Plan, Problem> {
    let attributes = &dataset.attributes;
    let selection = query.select(attributes.dimensions())?;
    let compression = attributes.compression().name();
    if attributes.compression().codec().is_none() || attributes.data_type().size_bytes().is_none() {
        let detail = format!(
            "compression {compression:?} with data type {:?} is not decoded here; the blocks can be fetched as stored",
            attributes.data_type().name()
        );
        return Err(Problem::new(problem::UNSUPPORTED, detail).with("compression", compression));
    }
    let data_type = query.data_type.as_ref().unwrap_or(attributes.data_type()).clone();
    let options = query.options(&selection);
    let compressed = if ask.app.options.compress_slices && compress::is_worthwhile(format) {
        compress::negotiate(ask)
    } else {
        None
    };
    let (kept_axes, region) = (selection.kept_axes.as_slice(), &selection.region);
    let wish = Wish { dataset: &dataset, kept_axes, data_type: &data_type, format, options: &options, compressed };
    let needs =
        wish.needs(region).map_err(|why| Problem::new(problem::INVALID_PARAMETER, why).with("parameter", "format"))?;
    let sending = wish.sending(&needs, ask.app.clients.are_slowed(), false);
    let (container, limit) = (&mount.container, mount.container.most_held_bytes());
    let planned = container.plan_sparse_slice(ask.access, &dataset, region.clone(), &sending).await?;
    let admitted = planned.map_err(Problem::from).and_then(|slice| wish.admit(slice, &needs, limit));
    let mut admitted = admitted.map_err(|problem| problem.in_pieces(wish.piece(container, region).as_ref()))?;
    // Where slow clients keep the memory for it, it need not wait for them, unless its entity tag is asked for.
    let has_condition = [IF_MATCH, IF_NONE_MATCH].iter().any(|name| ask.headers().contains_key(name));
    if !has_condition && !admitted.slice.is_streamed() && !container.has_room_for(&admitted.slice, admitted.extra_bytes)
    {
        let banded = container.plan_converted_slice(&dataset, region.clone(), &wish.sending(&needs, false, true));
        let banded = banded.ok().filter(Slice::is_streamed).and_then(|slice| wish.admit(slice, &needs, limit).ok());
        admitted = banded.unwrap_or(admitted);
    }
    let Admitted { slice, extra_bytes, encoding } = admitted;
    let start_bytes = needs.start_bytes;
    Ok(Plan { dataset, selection, data_type, format, options, slice, extra_bytes, start_bytes, encoding })
}

/// The names of a dataset's axes; none where its attributes do not say.
fn axes_of(document: Document) -> Vec<String> {
    let described = DescribedDataset::parse(document).ok();
    described.and_then(|described| metadata::Physical::of(&described, &mut Vec::new()).axes).unwrap_or_default()
}

/// Headers that are known before a block is read.
fn headers(plan: &Plan, mount: &Mount, axes: &[String]) -> HeaderMap {
    let order = plan.options.order;
    let mut headers = HeaderMap::new();
    let mut put = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    put("n5-data-type", plan.data_type.name().to_owned());
    put("n5-shape", list(&order.label(&plan.selection.shape())));
    put("n5-order", order.name().to_owned());
    put("n5-byte-order", plan.options.endian.name().to_owned());
    put("n5-start", list(&plan.options.start));
    put("n5-step", list(&plan.options.step));
    if !axes.is_empty() {
        let kept = plan.selection.kept_axes.iter().filter_map(|axis| axes.get(*axis));
        let mut names: Vec<String> = kept.map(|name| super::target::encode(name).to_string()).collect();
        if order == output::Order::C {
            names.reverse();
        }
        let names = names.join(",");
        // Clients refuse heads of more than some kilobytes.
        if names.len() <= 2 << 10 {
            put("n5-axes", names);
        }
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(plan.format.media_type()));
    headers.insert(CACHE_CONTROL, mount.cache_found.clone());
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    headers
}

/// The headers without the body, as far as they are known without reading a block.
fn head(plan: &Plan, headers: HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = headers;
    if let (Some(start_bytes), None) = (plan.start_bytes, plan.encoding) {
        let length = plan.slice.bytes().saturating_add(start_bytes);
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// Reads, encodes and answers at once.
async fn whole(ask: &Ask<'_>, mount: &Mount, plan: Plan, mut headers: HeaderMap) -> Answer {
    if ask.headers().contains_key(IF_NONE_MATCH) {
        // The tags of the blocks say whether the client has this already; nothing needs to be decoded.
        let etag = etag(&plan, mount.container.fingerprint(ask.access, &plan.slice).await?.tags);
        if conditional::evaluate(ask.method(), ask.headers(), Some(&etag), None, None) == Verdict::NotModified {
            headers.remove(CONTENT_TYPE);
            insert(&mut headers, ETAG, &etag);
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            *response.headers_mut() = headers;
            return Ok(response);
        }
    }
    let is_made = plan.extra_bytes > 0 || plan.slice.is_converted();
    // Elements that are sent as they are need not lie in one buffer.
    let is_plain = plan.start_bytes.is_some() && !is_made;
    let is_in_pieces = plan.format.pieces(&plan.selection.shape(), &plan.data_type, &plan.options) > 1;
    let (pieces, memory, stats) = if is_plain {
        mount.container.read_pieces(ask.access, &plan.slice).await?
    } else {
        mount.container.read_slice(ask.access, &plan.slice, plan.extra_bytes).await.map(|(a, b, c)| (vec![a], b, c))?
    };
    let etag = etag(&plan, stats.fingerprint.tags);
    if conditional::evaluate(ask.method(), ask.headers(), Some(&etag), None, None) == Verdict::PreconditionFailed {
        let detail = format!("this slice has the entity tag {etag} now");
        return Err(Problem::new(problem::PRECONDITION_FAILED, detail));
    }
    let (started, encoding) = (Instant::now(), plan.encoding);
    let Plan { slice, data_type, format, options, selection, .. } = plan;
    let (shape, party) = (selection.shape(), slice.party());
    let parts = if is_plain {
        format.header(&shape, &data_type, &options).into_iter().chain(pieces).collect()
    } else if encoding.is_none() && !slice.is_converted() && is_in_pieces {
        let data = pieces.into_iter().next().unwrap_or_default();
        encode::side_by_side(&mount.container, party, format, Array { shape, data_type, data }, (options, memory))
            .await?
    } else {
        let len = pieces.iter().map(Bytes::len).sum();
        // The job holds its share of memory: it runs on when the client has hung up.
        let encode = encode::timed(format.name(), move || -> Result<Vec<Bytes>, Problem> {
            let data = slice.convert(pieces.into_iter().next().unwrap_or_default()).map_err(ReadError::from)?;
            let array = Array { shape, data_type, data };
            let mut parts = format.encode(&array, &options).map_err(|error| encode::fault(&error))?;
            if let Some(encoding) = encoding {
                parts = vec![encoding.compress(&parts).map_err(|error| encode::fault(&error))?];
            }
            if is_made && let Some(last) = parts.pop() {
                parts.push(memory.own(last));
            }
            Ok(parts)
        });
        // What costs nothing needs no core.
        if is_made {
            mount.container.resources().cpu().run(Length::of(len), party, encode).await.map_err(ReadError::from)?
        } else {
            encode()
        }?
    };
    insert(&mut headers, ETAG, &etag);
    if let Some(encoding) = encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
    }
    headers.insert("n5-missing-blocks", HeaderValue::from(stats.missing));
    insert(&mut headers, HeaderName::from_static("server-timing"), &timing(&stats, started.elapsed()));
    let length: usize = parts.iter().map(Bytes::len).sum();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    let mut response = Response::new(body_of(parts));
    *response.headers_mut() = headers;
    Ok(response)
}

/// Assembles the first band before the status is sent, and each further one while the one before is
/// on its way.
async fn streamed(ask: &Ask<'_>, mount: &Mount, plan: Plan, mut headers: HeaderMap) -> Answer {
    let shape = plan.selection.shape();
    let length = plan.slice.bytes().saturating_add(plan.start_bytes.unwrap_or(0));
    let (format, options, data_type) = (plan.format, plan.options, plan.data_type);
    let finish: Option<Finish> = format
        .changes_bands(&data_type, &options)
        .then(|| (data_type.clone(), options.clone()))
        .map(|(data_type, options)| Arc::new(move |piece| format.finish_band(piece, &data_type, &options)) as Finish);
    let container = mount.container.clone();
    let mut bands = BandReader::new(container, ask.access, plan.slice, finish);
    let first = bands.next().await?.unwrap_or_default();
    // The first band has the memory for this as well.
    let start = format.header(&shape, &data_type, &options).unwrap_or_default();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    let mut response = Response::new(bands.into_body(start, first, ask.id.to_owned()));
    *response.headers_mut() = headers;
    Ok(response)
}

/// Depends on everything that the bytes of the answer depend on, and on nothing else: equal on every
/// replica and after every restart.
fn etag(plan: &Plan, fingerprint: u128) -> String {
    let mut facts = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        facts,
        "{} {:?} {:?} {:?} {} {fingerprint:x} {}",
        plan.dataset.etag,
        plan.selection,
        plan.options,
        plan.data_type,
        plan.format.name(),
        plan.encoding.map_or("", Encoding::name),
    );
    format!("\"{:032x}\"", xxh3_128(facts.as_bytes()))
}

/// `Server-Timing`: milliseconds of each stage; `store` and `decode` are sums over what ran side by side.
fn timing(stats: &ReadStats, encode: Duration) -> String {
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

fn body_of(mut parts: Vec<Bytes>) -> Body {
    parts.retain(|part| !part.is_empty());
    match parts.len() {
        0 => Body::empty(),
        1 => Body::from(parts.remove(0)),
        _ => Body::new(PartsBody::new(parts)),
    }
}

fn list<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

impl From<NegotiationError> for Problem {
    fn from(error: NegotiationError) -> Self {
        let (kind, known) = match &error {
            NegotiationError::UnknownFormat { known, .. } => (problem::INVALID_PARAMETER, known.clone()),
            NegotiationError::NotAcceptable { known } => (problem::NOT_ACCEPTABLE, known.clone()),
        };
        Self::new(kind, error.to_string()).with("known", known)
    }
}
