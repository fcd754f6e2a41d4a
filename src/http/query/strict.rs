//! Query strings of routes that refuse unknown parameters.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

use crate::http::query::numpy_index;
use crate::http::redact::excerpt;
use n5_format::Coords;

/// Reason why a query string is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// A parameter that cannot be parsed or conflicts with the others.
    #[error("{detail}")]
    Invalid {
        /// Its name as given, at most 40 characters of it.
        parameter: String,
        /// Message to the client: what was requested, what is allowed, and what to do.
        detail: String,
        /// The known names or values, if the given one is unknown.
        known: Vec<&'static str>,
    },
    /// Wrong rank, or samples outside the dataset.
    #[error("{detail}")]
    OutOfBounds {
        /// Message to the client: what was requested, what is allowed, and what to do.
        detail: String,
        /// The dataset's dimensions.
        dimensions: Coords,
    },
}

/// Parses a query string whose parameters must all be in `known`. Returns the decoded values by name, without `token`.
///
/// # Errors
/// [`QueryError::Invalid`] for a parameter that is unknown, repeated or not percent-encoded UTF-8.
pub(crate) fn parse_query(query: &str, known: &[&'static str]) -> Result<BTreeMap<&'static str, String>, QueryError> {
    let mut parameters = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (raw_name, raw_value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = percent_decode(raw_name, raw_name)?;
        let Some(known_name) = known.iter().copied().find(|known| *known == name) else {
            let detail = format!("unknown parameter {:?}; known: {}", excerpt(&name), known.join(", "));
            return Err(QueryError::Invalid { parameter: excerpt(&name), detail, known: known.to_vec() });
        };
        if known_name == "token" {
            continue;
        }
        if parameters.insert(known_name, percent_decode(known_name, raw_value)?).is_some() {
            return Err(invalid_parameter(
                known_name,
                format!("{known_name} is given more than once; give it only once"),
            ));
        }
    }
    Ok(parameters)
}

fn percent_decode(parameter: &str, raw: &str) -> Result<String, QueryError> {
    let mut escapes = raw.split('%').skip(1).map(str::as_bytes);
    let is_valid = escapes.all(|after| after.get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)));
    let text = percent_decode_str(raw).decode_utf8().ok().filter(|_| is_valid);
    text.map(String::from).ok_or_else(|| {
        let detail = format!("{:?} is not percent-encoded UTF-8; a literal percent sign is %25", excerpt(raw));
        invalid_parameter(&excerpt(parameter), detail)
    })
}

pub(crate) fn invalid_parameter(parameter: &str, detail: String) -> QueryError {
    QueryError::Invalid { parameter: parameter.to_owned(), detail, known: Vec::new() }
}

pub(crate) fn unknown_value(parameter: &str, value: &str, known: &[&'static str]) -> QueryError {
    let detail = format!("{parameter} is {:?}; known: {}", excerpt(value), known.join(", "));
    QueryError::Invalid { parameter: parameter.to_owned(), detail, known: known.to_vec() }
}

/// Parses comma-separated integers. An empty text is an empty list, as rank 0 has.
pub(crate) fn parse_integers(parameter: &'static str, text: &str, is_signed: bool) -> Result<Vec<i64>, QueryError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let parsed = text.split(',').map(|item| match numpy_index::parse_integer(item) {
        Some(_) if item.starts_with('-') && !is_signed => {
            let hint = match parameter {
                "start" | "stop" => "give outside=clip or outside=zero for regions that leave the dataset",
                _ => "give numbers without a sign",
            };
            Err(invalid_parameter(parameter, format!("{parameter} contains {:?}; {hint}", excerpt(item))))
        }
        Some(number) => Ok(number),
        None => {
            let detail = format!(
                "{parameter} contains {:?}; give decimal integers up to 2^63-1, separated by commas",
                excerpt(item)
            );
            Err(invalid_parameter(parameter, detail))
        }
    });
    parsed.collect()
}

/// Parses a finite decimal number.
pub(crate) fn parse_decimal(text: &str) -> Option<f64> {
    let is_decimal = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E'));
    text.parse::<f64>().ok().filter(|number| is_decimal && number.is_finite())
}
