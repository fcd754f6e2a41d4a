//! Parsing of query strings. Some routes ignore unknown parameters, others refuse them.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

use crate::http::problem::Problem;
use crate::http::redact::excerpt;

/// Returns the decoded value of the first parameter of this name. A `+` stands for itself.
pub(crate) fn first_value(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    percent_decode_str(value).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// Returns all names and values, decoded. A value that is not UTF-8 is `None`.
pub(crate) fn pairs(query: Option<&str>) -> impl Iterator<Item = (String, Option<String>)> {
    query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8().ok().map(std::borrow::Cow::into_owned);
        (percent_decode_str(name).decode_utf8_lossy().into_owned(), value)
    })
}

/// Parses a query string whose parameters must all be in `known`. Returns the decoded values by name, without `token`.
///
/// # Errors
/// Returns a problem with status 400 for a parameter that is unknown, repeated or not percent-encoded UTF-8.
pub(crate) fn parse_query(query: &str, known: &[&'static str]) -> Result<BTreeMap<&'static str, String>, Problem> {
    let mut parameters = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (raw_name, raw_value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = percent_decode(raw_name, raw_name)?;
        let Some(known_name) = known.iter().copied().find(|known| *known == name) else {
            let detail = format!("unknown parameter {:?}; known: {}", excerpt(&name), known.join(", "));
            return Err(Problem::invalid_parameter(&excerpt(&name), detail).with_member("known", known));
        };
        if known_name == "token" {
            continue;
        }
        if parameters.insert(known_name, percent_decode(known_name, raw_value)?).is_some() {
            let detail = format!("{known_name} is given more than once; give it only once");
            return Err(Problem::invalid_parameter(known_name, detail));
        }
    }
    Ok(parameters)
}

fn percent_decode(parameter: &str, raw: &str) -> Result<String, Problem> {
    let mut escapes = raw.split('%').skip(1).map(str::as_bytes);
    let is_valid = escapes.all(|after| after.get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)));
    let text = percent_decode_str(raw).decode_utf8().ok().filter(|_| is_valid);
    text.map(String::from).ok_or_else(|| {
        let detail = format!("{:?} is not percent-encoded UTF-8; a literal percent sign is %25", excerpt(raw));
        Problem::invalid_parameter(&excerpt(parameter), detail)
    })
}

/// Creates the 400 response for a value that is not in `known`.
pub(crate) fn unknown_value(parameter: &str, value: &str, known: &[&'static str]) -> Problem {
    let detail = format!("{parameter} is {:?}; known: {}", excerpt(value), known.join(", "));
    Problem::invalid_parameter(parameter, detail).with_member("known", known)
}

/// Returns the message for a parameter with `count` numbers if the dataset has another number of dimensions.
pub(crate) fn wrong_rank(parameter: &str, count: usize, dimensions: &[u64]) -> String {
    let axes = if dimensions.len() == 1 { "axis" } else { "axes" };
    format!("{parameter} has {count} numbers, the dataset {dimensions:?} has {} {axes}", dimensions.len())
}

/// Parses a decimal integer with an optional minus and a magnitude of at most 2^63 - 1.
pub(crate) fn parse_integer(text: &str) -> Option<i64> {
    let (digits, is_negative) = text.strip_prefix('-').map_or((text, false), |digits| (digits, true));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let magnitude: i64 = digits.parse().ok()?;
    if is_negative { magnitude.checked_neg() } else { Some(magnitude) }
}

/// Parses comma-separated integers. An empty text is an empty list, which is valid for a dataset of rank 0.
pub(crate) fn parse_integers(parameter: &'static str, text: &str, is_signed: bool) -> Result<Vec<i64>, Problem> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let parsed = text.split(',').map(|item| match parse_integer(item) {
        Some(_) if item.starts_with('-') && !is_signed => {
            let hint = match parameter {
                "start" | "stop" => "give outside=clip or outside=zero for regions that leave the dataset",
                _ => "give numbers without a sign",
            };
            Err(Problem::invalid_parameter(parameter, format!("{parameter} contains {:?}; {hint}", excerpt(item))))
        }
        Some(number) => Ok(number),
        None => {
            let detail = format!(
                "{parameter} contains {:?}; give decimal integers up to 2^63-1, separated by commas",
                excerpt(item)
            );
            Err(Problem::invalid_parameter(parameter, detail))
        }
    });
    parsed.collect()
}

/// Parses a finite decimal number.
pub(crate) fn parse_decimal(text: &str) -> Option<f64> {
    let is_decimal = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E'));
    text.parse::<f64>().ok().filter(|number| is_decimal && number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_of_a_name_is_returned_decoded() {
        assert_eq!(first_value(Some("a=1&after=x%2Fy&after=z"), "after").as_deref(), Some("x/y"));
        assert_eq!(first_value(Some("after"), "after").as_deref(), Some(""));
        assert_eq!(first_value(Some("b=a+b"), "b").as_deref(), Some("a+b"));
        assert_eq!(first_value(Some("b=%ff"), "b"), None);
        assert_eq!(first_value(None, "b"), None);
    }

    #[test]
    fn a_value_that_is_not_utf_8_is_returned_as_none() {
        let pairs: Vec<_> = pairs(Some("%61=b%20c&&d=%ff&e")).collect();
        let expected = [("a", Some("b c")), ("d", None), ("e", Some(""))];
        assert_eq!(pairs, expected.map(|(name, value)| (name.to_owned(), value.map(str::to_owned))));
    }
}
