//! `GET /stats/{path}`: what the elements of a dataset or multiscale group are like, from a bounded sample.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, ETAG};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

use super::compress::Compressible;
use super::conditional::{self, Verdict};
use super::parameters::{QueryError, decimal, invalid, parameters};
use super::problem::{self, Problem};
use super::{Answer, Ask, Mount, respond};
use crate::container::{Dataset, GroupState, ReadError, Sample, Survey};
use crate::metadata;
use crate::n5::{Number, Summary};
use crate::store::Key;
use crate::view;

/// Every parameter; `token` is read elsewhere.
const PARAMETERS: [&str; 3] = ["bins", "percentiles", "token"];

const BINS: usize = 64;
const MOST_BINS: usize = 4096;
const PERCENTILES: &str = "0.1,1,5,25,50,75,95,99,99.9";
const MOST_PERCENTILES: usize = 100;

/// A level of a pyramid suffices when it has as many elements.
const ENOUGH_ELEMENTS: u64 = 1 << 20;

/// Bookkeeping of the answer beside its bins, in bytes, estimated generously.
const ANSWER_BYTES: u64 = 64 << 10;

/// The parameters.
struct StatsQuery {
    bins: usize,
    /// As given, and as numbers from 0 to 100.
    percentiles: Vec<(String, f64)>,
}

impl StatsQuery {
    fn parse(query: Option<&str>) -> Result<Self, QueryError> {
        let given = parameters(query.unwrap_or_default(), &PARAMETERS)?;
        let bins = match given.get("bins") {
            None => BINS,
            Some(text) => text.parse().ok().filter(|bins| (1..=MOST_BINS).contains(bins)).ok_or_else(|| {
                invalid("bins", format!("bins is {:?}; give a whole number from 1 to {MOST_BINS}", shown(text)))
            })?,
        };
        let list = given.get("percentiles").map_or(PERCENTILES, String::as_str);
        let items: Vec<&str> = if list.is_empty() { Vec::new() } else { list.split(',').collect() };
        if items.len() > MOST_PERCENTILES {
            let detail = format!("percentiles has {} numbers; at most {MOST_PERCENTILES} are allowed", items.len());
            return Err(invalid("percentiles", detail));
        }
        let percentiles = items.into_iter().map(|item| {
            let number = decimal(item).filter(|number| (0.0..=100.0).contains(number));
            number.map(|number| (item.to_owned(), number)).ok_or_else(|| {
                let detail = format!("percentiles holds {:?}; give numbers from 0 to 100, with commas", shown(item));
                invalid("percentiles", detail)
            })
        });
        Ok(Self { bins, percentiles: percentiles.collect::<Result<_, _>>()? })
    }
}

fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// What is sampled.
struct Chosen {
    dataset: Arc<Dataset>,
    /// Path of the level, relative to the path asked for; empty for a dataset itself.
    level: String,
    /// Whether it is the dataset asked for, or the finest level.
    finest: bool,
    /// Why this level.
    reason: String,
}

pub(super) async fn answer(ask: &Ask<'_>) -> Answer {
    let query = StatsQuery::parse(ask.query())?;
    let (mount, key) = ask.locate(&ask.target.segments)?.ok_or_else(Problem::missing)?;
    let missing = |error: ReadError| Problem::from(error).cached(mount.cache_missing.clone());
    let chosen = choose(ask, mount, &key).await.map_err(missing)?;
    let attributes = &chosen.dataset.attributes;
    let compression = attributes.compression().name();
    if attributes.compression().codec().is_none() || attributes.data_type().size_bytes().is_none() {
        let detail = format!(
            "compression {compression:?} with data type {:?} is not decoded here; the blocks can be fetched as stored",
            attributes.data_type().name()
        );
        return Err(Problem::new(problem::UNSUPPORTED, detail).with("compression", compression));
    }
    let sample = mount.container.plan_sample(&chosen.dataset).await?;
    let mut headers = HeaderMap::new();
    headers.insert(CACHE_CONTROL, mount.cache_missing.clone());
    let etag = etag(&chosen, &sample, &query);
    if let Ok(value) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, value);
    }
    match conditional::evaluate(ask.method(), ask.headers(), Some(&etag), None, None) {
        Verdict::NotModified => return Ok(bare(StatusCode::NOT_MODIFIED, headers)),
        Verdict::PreconditionFailed => {
            let detail = format!("these statistics have the entity tag {etag} now");
            return Err(Problem::new(problem::PRECONDITION_FAILED, detail));
        }
        Verdict::Whole | Verdict::Part(..) | Verdict::Unsatisfiable => {}
    }
    let path = [mount.name.as_str(), key.as_str()].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
    let percentages = query.percentiles.iter().map(|(_, percentage)| *percentage).collect();
    let (total, looked_for) = (sample.blocks_total, sample.blocks_missing);
    let survey = mount.container.survey(ask.access, sample, query.bins, percentages).await?;
    let memory = mount.container.reserve(ANSWER_BYTES + 64 * query.bins as u64).await?;
    let text = document(&path.join("/"), &chosen, &query, &survey, total, looked_for).to_string();
    let mut response = respond(StatusCode::OK, "application/json", memory.own(text.into()));
    response.headers_mut().extend(headers);
    response.extensions_mut().insert(Compressible);
    Ok(response)
}

fn bare(status: StatusCode, headers: HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The dataset at `key`, or the level of the multiscale group there that is sampled: the coarsest that still has
/// enough elements, else the finest.
async fn choose(ask: &Ask<'_>, mount: &Mount, key: &Key) -> Result<Chosen, ReadError> {
    let (container, access) = (&mount.container, ask.access);
    if let GroupState::Dataset(dataset) = &container.group(access, key).await?.state {
        let dataset = Arc::clone(dataset);
        return Ok(Chosen { dataset, level: String::new(), finest: true, reason: String::new() });
    }
    // Lets go of the memory for the description before that for the sample is waited for.
    let pyramid = {
        let known = view::read_node(container, access, key).await?;
        metadata::pyramid(&known.node, &mut Vec::new())
    };
    let Some(pyramid) = pyramid else {
        // Says why it is no dataset.
        let dataset = container.dataset(access, key).await?;
        return Ok(Chosen { dataset, level: String::new(), finest: true, reason: String::new() });
    };
    let mut levels = Vec::new();
    for level in pyramid.levels {
        let Ok(at) = Key::from_segments(key.segments().chain(level.path.split('/'))) else { continue };
        // One that is gone or that nobody decodes is no reason to pass over the others.
        match container.dataset(access, &at).await {
            Ok(dataset) if is_decoded(&dataset) => levels.push((level.path, dataset)),
            Ok(_) | Err(ReadError::NotFound(_) | ReadError::NotADataset { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let elements = |dataset: &Dataset| dataset.attributes.dimensions().iter().copied().fold(1, u64::saturating_mul);
    let count = levels.len();
    let number = levels.iter().rposition(|(_, dataset)| elements(dataset) >= ENOUGH_ELEMENTS);
    let reason = match number {
        Some(_) => format!("the coarsest of {count} levels that has at least {ENOUGH_ELEMENTS} elements"),
        None => format!("the finest of {count} levels, none of which has {ENOUGH_ELEMENTS} elements"),
    };
    let number = number.unwrap_or(0);
    match levels.into_iter().nth(number) {
        Some((level, dataset)) => Ok(Chosen { dataset, level, finest: number == 0, reason }),
        None => Err(ReadError::NotFound(key.clone())),
    }
}

fn is_decoded(dataset: &Dataset) -> bool {
    dataset.attributes.compression().codec().is_some() && dataset.attributes.data_type().size_bytes().is_some()
}

/// Depends on everything that the answer depends on. Weak, for the bytes differ by content coding.
fn etag(chosen: &Chosen, sample: &Sample, query: &StatsQuery) -> String {
    let facts = format!(
        "{} {} {:?} {:x} {} {:?} {}",
        chosen.dataset.etag,
        chosen.level,
        chosen.reason,
        sample.fingerprint.tags,
        query.bins,
        query.percentiles,
        env!("CARGO_PKG_VERSION"),
    );
    format!("W/\"{:032x}\"", xxh3_128(facts.as_bytes()))
}

fn document(
    path: &str,
    chosen: &Chosen,
    query: &StatsQuery,
    survey: &Survey,
    blocks_total: u128,
    blocks_missing: u64,
) -> Value {
    let summary = &survey.summary;
    let data_type = chosen.dataset.attributes.data_type().name();
    let values = summary.percentiles.iter().flatten().map(|number| json_number(*number));
    let values = values.chain(std::iter::repeat(Value::Null));
    let percentiles: Map<String, Value> = query.percentiles.iter().map(|(text, _)| text.clone()).zip(values).collect();
    let histogram = summary.histogram.as_ref().map(
        |counts| json!({"min": summary.min.map(json_number), "max": summary.max.map(json_number), "counts": counts}),
    );
    let integers = data_type.contains("int");
    let total = u64::try_from(blocks_total).map_or_else(|_beyond| json!(wide(blocks_total)), |total| json!(total));
    json!({
        "path": path,
        "level": chosen.level,
        "data_type": data_type,
        "exact": survey.exact && chosen.finest,
        "sample": {
            "blocks_read": survey.blocks_read,
            "blocks_total": total,
            "blocks_missing": blocks_missing,
            "blocks_unreadable": survey.blocks_unreadable,
            "elements": summary.elements,
            "elements_missing": survey.elements_missing,
        },
        "note": note(chosen, survey, blocks_total, blocks_missing),
        "min": summary.min.map(json_number),
        "max": summary.max.map(json_number),
        "mean": summary.mean,
        "nan": summary.nan,
        "infinite": summary.infinite,
        "zeros": summary.zeros,
        "percentiles": percentiles,
        "histogram": histogram,
        "labels": integers.then(|| json!({"distinct": summary.distinct, "capped": summary.distinct_capped})),
    })
}

#[expect(clippy::cast_precision_loss, reason = "beyond 2^64")]
fn wide(number: u128) -> f64 {
    number as f64
}

fn json_number(number: Number) -> Value {
    match number {
        Number::Unsigned(number) => json!(number),
        Number::Signed(number) => json!(number),
        Number::Float(number) => json!(number),
    }
}

/// What was read and why, in sentences.
fn note(chosen: &Chosen, survey: &Survey, blocks_total: u128, blocks_missing: u64) -> String {
    let Summary { elements, .. } = survey.summary;
    let mut text = String::new();
    let mut say = |sentence: String| {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&sentence);
    };
    if !chosen.level.is_empty() {
        say(format!("Level {} was read, {}.", chosen.level, chosen.reason));
    }
    let Survey { blocks_read, blocks_unreadable, elements_missing, exact, .. } = survey;
    if *exact && blocks_total == 0 {
        say("It has no elements.".to_owned());
    } else if *exact {
        say(format!("Every block was read, {blocks_read} of {blocks_total}."));
    } else {
        say(format!("{elements} elements in {blocks_read} of {blocks_total} blocks, spread evenly, were looked at."));
    }
    if *blocks_unreadable > 0 {
        say(format!("{blocks_unreadable} blocks could not be decoded and were passed over."));
    }
    if *elements_missing > 0 && elements == 0 {
        say(format!(
            "Nothing is stored of what was looked for: {blocks_missing} blocks do not exist and read as zero."
        ));
    } else if *elements_missing > 0 {
        say(format!(
            "{elements_missing} elements are not stored, {blocks_missing} blocks among them; they read as zero and count in zeros alone."
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_defaults_and_bounds() {
        let query = StatsQuery::parse(None).ok().unwrap();
        assert_eq!((query.bins, query.percentiles.len()), (64, 9));
        let query = StatsQuery::parse(Some("bins=4096&percentiles=0,100,99.90&token=x")).ok().unwrap();
        assert_eq!((query.bins, query.percentiles[2].clone()), (4096, ("99.90".to_owned(), 99.9)));
        assert!(StatsQuery::parse(Some("percentiles=")).ok().unwrap().percentiles.is_empty());
        let many = format!("percentiles={}", vec!["1"; 101].join(","));
        for bad in [
            "bins=0",
            "bins=4097",
            "bins=x",
            "bins=1&bins=1",
            "percentiles=-1",
            "percentiles=101",
            "percentiles=1,",
            "percentiles=nan",
            "start=1",
            &many,
        ] {
            assert!(StatsQuery::parse(Some(bad)).is_err(), "{bad}");
        }
    }
}
