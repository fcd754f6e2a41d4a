//! Query strings of routes that refuse what they do not know.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use serde_json::json;

use super::problem::{self, Problem};
use super::select;
use crate::n5::Coords;

/// Why a query string is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// A parameter that cannot be read or does not go with the others.
    #[error("{detail}")]
    Invalid {
        /// Its name as given, at most 40 characters of it.
        parameter: String,
        /// What was asked, what is allowed, what to do.
        detail: String,
        /// The names or values that are known, where the one given is not.
        known: Vec<&'static str>,
    },
    /// Wrong rank, or samples that the dataset does not have.
    #[error("{detail}")]
    OutOfBounds {
        /// What was asked, what is allowed, what to do.
        detail: String,
        /// The dataset's dimensions.
        dimensions: Coords,
    },
}

/// Parameters by name, decoded; `token` left out.
pub(super) type Parameters = BTreeMap<&'static str, String>;

/// The parameters of a query string, each of them one of `known`.
///
/// # Errors
/// [`QueryError::Invalid`] for unknown or repeated ones and what is not percent-encoded UTF-8.
pub(super) fn parameters(query: &str, known: &[&'static str]) -> Result<Parameters, QueryError> {
    let mut given = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (raw_name, raw_value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decoded(raw_name, raw_name)?;
        let Some(found) = known.iter().copied().find(|known| *known == name) else {
            let detail = format!("unknown parameter {:?}; known: {}", shown(&name), known.join(", "));
            return Err(QueryError::Invalid { parameter: shown(&name), detail, known: known.to_vec() });
        };
        if found == "token" {
            continue;
        }
        if given.insert(found, decoded(found, raw_value)?).is_some() {
            return Err(invalid(found, format!("{found} is given more than once; give it once")));
        }
    }
    Ok(given)
}

fn decoded(parameter: &str, raw: &str) -> Result<String, QueryError> {
    let mut escapes = raw.split('%').skip(1).map(str::as_bytes);
    let sound = escapes.all(|after| after.get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)));
    let text = percent_decode_str(raw).decode_utf8().ok().filter(|_| sound);
    text.map(String::from).ok_or_else(|| {
        let detail = format!("{:?} is not percent-encoded UTF-8; a literal percent sign is %25", shown(raw));
        invalid(&shown(parameter), detail)
    })
}

/// The beginning of a client's text, for repeating it.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

pub(super) fn invalid(parameter: &str, detail: String) -> QueryError {
    QueryError::Invalid { parameter: parameter.to_owned(), detail, known: Vec::new() }
}

pub(super) fn unknown_value(parameter: &str, value: &str, known: &[&'static str]) -> QueryError {
    let detail = format!("{parameter} is {:?}; known: {}", shown(value), known.join(", "));
    QueryError::Invalid { parameter: parameter.to_owned(), detail, known: known.to_vec() }
}

/// Comma-separated integers; none in an empty text, which is what rank 0 has.
pub(super) fn numbers(parameter: &'static str, text: &str, signed: bool) -> Result<Vec<i64>, QueryError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let parsed = text.split(',').map(|item| match select::number(item) {
        Some(_) if item.starts_with('-') && !signed => {
            let hint = match parameter {
                "start" | "stop" => "give outside=clip or outside=zero for regions that leave the dataset",
                _ => "give numbers without a sign",
            };
            Err(invalid(parameter, format!("{parameter} holds {:?}; {hint}", shown(item))))
        }
        Some(number) => Ok(number),
        None => {
            let detail =
                format!("{parameter} holds {:?}; give decimal integers up to 2^63-1, separated by commas", shown(item));
            Err(invalid(parameter, detail))
        }
    });
    parsed.collect()
}

/// A finite decimal number.
pub(super) fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E'));
    text.parse::<f64>().ok().filter(|number| plain && number.is_finite())
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Invalid { parameter, detail, known } => {
                let problem = Self::new(problem::INVALID_PARAMETER, detail).with("parameter", parameter);
                if known.is_empty() { problem } else { problem.with("known", known) }
            }
            QueryError::OutOfBounds { detail, dimensions } => {
                Self::new(problem::OUT_OF_BOUNDS, detail).with("dimensions", json!(dimensions.as_slice()))
            }
        }
    }
}
