//! `GET /stats/{path}`: statistics of the elements of a dataset or multiscale group, from a bounded sample.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::{Dataset, GroupState, ReadError};
use crate::http::mount::Mount;
use crate::http::problem::Problem;
use crate::http::query::params::{parse_decimal, parse_query};
use crate::http::redact::excerpt;
use crate::http::request::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::slice_request::check_decodable;
use crate::read::{self, SamplePlan, SampleStatistics};
use crate::store::Key;
use crate::view;
use n5_format::ElementValue;

/// All parameters. `http::credentials` reads `token`.
const PARAMETERS: [&str; 3] = ["bins", "percentiles", "token"];

const DEFAULT_BINS: usize = 64;
const MAX_BINS: usize = 4096;
const DEFAULT_PERCENTILES: &str = "0.1,1,5,25,50,75,95,99,99.9";
const MAX_PERCENTILES: usize = 100;

/// Minimum number of elements in the sampled pyramid level, if any level has that many.
const ENOUGH_ELEMENTS: u64 = 1 << 20;

/// Generous estimate of the memory of the response without its bins, in bytes.
const RESPONSE_BYTES: u64 = 64 << 10;

/// Parsed query parameters.
struct StatsQuery {
    bins: usize,
    /// Each percentile as given, and as a number from 0 to 100.
    percentiles: Vec<(String, f64)>,
}

impl StatsQuery {
    fn parse(query: Option<&str>) -> Result<Self, Problem> {
        let parameters = parse_query(query.unwrap_or_default(), &PARAMETERS)?;
        let bins = match parameters.get("bins") {
            None => DEFAULT_BINS,
            Some(text) => text.parse().ok().filter(|bins| (1..=MAX_BINS).contains(bins)).ok_or_else(|| {
                Problem::invalid_parameter(
                    "bins",
                    format!("bins is {:?}; give a whole number from 1 to {MAX_BINS}", excerpt(text)),
                )
            })?,
        };
        let list = parameters.get("percentiles").map_or(DEFAULT_PERCENTILES, String::as_str);
        let items: Vec<&str> = if list.is_empty() { Vec::new() } else { list.split(',').collect() };
        if items.len() > MAX_PERCENTILES {
            let detail = format!("percentiles has {} numbers; at most {MAX_PERCENTILES} are allowed", items.len());
            return Err(Problem::invalid_parameter("percentiles", detail));
        }
        let percentiles = items.into_iter().map(|item| {
            let number = parse_decimal(item).filter(|number| (0.0..=100.0).contains(number));
            number.map(|number| (item.to_owned(), number)).ok_or_else(|| {
                let detail = format!(
                    "percentiles contains {:?}; give numbers from 0 to 100, separated by commas",
                    excerpt(item)
                );
                Problem::invalid_parameter("percentiles", detail)
            })
        });
        Ok(Self { bins, percentiles: percentiles.collect::<Result<_, _>>()? })
    }
}

/// The dataset or pyramid level that is sampled.
struct SampledLevel {
    dataset: Arc<Dataset>,
    /// Path of the level relative to the requested path; empty for a dataset.
    level: String,
    /// True if this is the requested dataset or the finest level.
    is_finest: bool,
    /// Reason why this level is sampled.
    reason: String,
}

/// Handles `GET /stats/{path}`.
pub(crate) async fn handle(context: &RequestContext<'_>) -> HandlerResult {
    let query = StatsQuery::parse(context.parts.uri.query())?;
    let (mount, key) = context.locate(&context.target.segments)?.ok_or_else(Problem::not_found)?;
    let sampled = choose_level(context, mount, &key).await.map_err(|error| mount.problem(error))?;
    check_decodable(&sampled.dataset)?;
    let sample = read::plan_sample(&mount.container, context.read_options, &sampled.dataset).await?;
    let entity = Entity {
        etag: Some(etag(&sampled, &sample, &query).into()),
        is_compressible: true,
        subject: "these statistics",
        ..Entity::new("application/json", mount.missing_cache_control.clone())
    };
    let (response, range) = entity.select(context.parts)?;
    if range.is_none() {
        return Ok(response);
    }
    let percentages = query.percentiles.iter().map(|(_, percentage)| *percentage).collect();
    let statistics =
        read::sample_statistics(&mount.container, context.read_options, sample, query.bins, percentages).await?;
    let memory = mount.container.reserve_memory(RESPONSE_BYTES + 64 * query.bins as u64).await?;
    let path = mount.path_of(&key);
    let text = document(&path, &sampled, &query, &statistics).to_string();
    let len = text.len() as u64;
    Ok(respond::with_body(response, memory.own_pooled(text.into()), len))
}

/// Chooses the dataset to sample: the dataset at `key`, or a level of the multiscale group at `key`. This is the
/// coarsest level that has enough elements, or the finest level if no level has.
async fn choose_level(context: &RequestContext<'_>, mount: &Mount, key: &Key) -> Result<SampledLevel, ReadError> {
    let container = &mount.container;
    let options = context.read_options;
    let whole = |dataset| SampledLevel { dataset, level: String::new(), is_finest: true, reason: String::new() };
    if let GroupState::Dataset(dataset) = &container.group(options, key).await?.state {
        return Ok(whole(Arc::clone(dataset)));
    }
    // The description is dropped here, so that the request does not hold its memory while waiting for the sample's.
    let pyramid = {
        let loaded = view::read_node(container, options, key).await?;
        n5_metadata::pyramid(&loaded.node, &mut Vec::new())
    };
    let Some(pyramid) = pyramid else {
        // The error says why there is no dataset.
        return Ok(whole(container.dataset(options, key).await?));
    };
    let mut levels = Vec::new();
    for level in pyramid.levels {
        let Ok(level_key) = Key::from_segments(key.segments().chain(level.path.split('/'))) else { continue };
        // A level that is missing or cannot be decoded does not exclude the others.
        match container.dataset(options, &level_key).await {
            Ok(dataset) if dataset.attributes.is_decodable() => levels.push((level.path, dataset)),
            Ok(_) | Err(ReadError::NotFound(_) | ReadError::NotADataset { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let elements = |dataset: &Dataset| dataset.attributes.dimensions().iter().copied().fold(1, u64::saturating_mul);
    let count = levels.len();
    let index = levels.iter().rposition(|(_, dataset)| elements(dataset) >= ENOUGH_ELEMENTS);
    let reason = match index {
        Some(_) => format!("the coarsest of {count} levels with at least {ENOUGH_ELEMENTS} elements"),
        None => format!("the finest of {count} levels, none of which has {ENOUGH_ELEMENTS} elements"),
    };
    let index = index.unwrap_or(0);
    match levels.into_iter().nth(index) {
        Some((level, dataset)) => Ok(SampledLevel { dataset, level, is_finest: index == 0, reason }),
        None => Err(ReadError::NotFound(key.clone())),
    }
}

/// Returns an entity tag that depends on everything that the response depends on. It is weak, because the bytes differ
/// between content codings.
fn etag(sampled: &SampledLevel, sample: &SamplePlan, query: &StatsQuery) -> String {
    let hashed_text = format!(
        "{} {} {:?} {:x} {} {:?} {}",
        sampled.dataset.etag,
        sampled.level,
        sampled.reason,
        sample.fingerprint.etags_hash,
        query.bins,
        query.percentiles,
        env!("CARGO_PKG_VERSION"),
    );
    format!("W/\"{:032x}\"", xxh3_128(hashed_text.as_bytes()))
}

/// Returns the document that is sent. `path` is the requested path.
fn document(path: &str, sampled: &SampledLevel, query: &StatsQuery, statistics: &SampleStatistics) -> Value {
    let SampleStatistics { summary, blocks_total, blocks_missing, .. } = statistics;
    let data_type = sampled.dataset.attributes.data_type().name();
    let values = summary.percentiles.iter().flatten().map(|number| json_number(*number));
    let values = values.chain(std::iter::repeat(Value::Null));
    let percentiles: Map<String, Value> = query.percentiles.iter().map(|(text, _)| text.clone()).zip(values).collect();
    let histogram = summary.histogram.as_ref().map(
        |counts| json!({"min": summary.min.map(json_number), "max": summary.max.map(json_number), "counts": counts}),
    );
    let is_integer = data_type.contains("int");
    let total =
        u64::try_from(*blocks_total).map_or_else(|_beyond| json!(to_f64_lossy(*blocks_total)), |total| json!(total));
    json!({
        "path": path,
        "level": sampled.level,
        "data_type": data_type,
        "exact": statistics.is_exact && sampled.is_finest,
        "sample": {
            "blocks_read": statistics.blocks_read,
            "blocks_total": total,
            "blocks_missing": blocks_missing,
            "blocks_unreadable": statistics.blocks_unreadable,
            "elements": summary.elements,
            "elements_missing": statistics.elements_missing,
        },
        "note": note(sampled, statistics),
        "min": summary.min.map(json_number),
        "max": summary.max.map(json_number),
        "mean": summary.mean,
        "nan": summary.nan,
        "infinite": summary.infinite,
        "zeros": summary.zeros,
        "percentiles": percentiles,
        "histogram": histogram,
        "labels": is_integer.then(|| json!({"distinct": summary.distinct, "capped": summary.distinct_capped})),
    })
}

#[expect(clippy::cast_precision_loss, reason = "beyond 2^64")]
fn to_f64_lossy(number: u128) -> f64 {
    number as f64
}

fn json_number(number: ElementValue) -> Value {
    match number {
        ElementValue::Unsigned(number) => json!(number),
        ElementValue::Signed(number) => json!(number),
        ElementValue::Float(number) => json!(number),
    }
}

/// Returns sentences that say what was read and why.
fn note(sampled: &SampledLevel, statistics: &SampleStatistics) -> String {
    let SampleStatistics { blocks_read, blocks_total, blocks_missing, blocks_unreadable, elements_missing, .. } =
        statistics;
    let elements = statistics.summary.elements;
    let mut sentences = Vec::new();
    if !sampled.level.is_empty() {
        sentences.push(format!("Level {} was read, {}.", sampled.level, sampled.reason));
    }
    if statistics.is_exact && *blocks_total == 0 {
        sentences.push("It has no elements.".to_owned());
    } else if statistics.is_exact {
        sentences.push(format!("Every block was read, {blocks_read} of {blocks_total}."));
    } else {
        sentences
            .push(format!("{elements} elements in {blocks_read} of {blocks_total} blocks, evenly spread, were read."));
    }
    if *blocks_unreadable > 0 {
        sentences.push(format!("{blocks_unreadable} blocks could not be decoded and were skipped."));
    }
    if *elements_missing > 0 && elements == 0 {
        sentences.push(format!(
            "No elements of the sample are stored: {blocks_missing} blocks do not exist and read as zero."
        ));
    } else if *elements_missing > 0 {
        sentences.push(format!(
            "{elements_missing} elements are not stored, including those of {blocks_missing} missing blocks; they read as zero and count only in zeros."
        ));
    }
    sentences.join(" ")
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
        let too_many_percentiles = format!("percentiles={}", vec!["1"; 101].join(","));
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
            &too_many_percentiles,
        ] {
            assert!(StatsQuery::parse(Some(bad)).is_err(), "{bad}");
        }
    }
}
