//! The header `Accept` (RFC 9110 §12.5.1): media ranges with weights.

use std::cmp::Reverse;

use mime::Mime;

/// Returns the media type in `known` to which `accept` gives the highest weight. Returns `None` if it excludes all of
/// them.
///
/// `accept` is the header's value; several values are joined by commas. Among equal weights the more specific range
/// wins, then the range that comes first, then the first of `known`. Members that are not media ranges are skipped
/// (Java sends a bare `*`). If no member is left, every media type is acceptable.
pub fn best_media_type(known: &[&'static str], accept: Option<&str>) -> Option<&'static str> {
    let ranges = accept.map_or_else(Vec::new, parse_accept);
    if ranges.is_empty() {
        return known.first().copied();
    }
    let acceptable = known.iter().enumerate().filter_map(|(row, media_type)| {
        let (position, (range, weight)) = most_specific(&ranges, media_type)?;
        (*weight > 0).then_some(((*weight, specificity(range), Reverse((position, row))), *media_type))
    });
    acceptable.max_by_key(|(rank, _)| *rank).map(|(_, media_type)| media_type)
}

/// Returns the weight that `accept` gives to a media type, in thousandths; 0 if it excludes the type.
pub fn accept_weight(media_type: &str, accept: &str) -> u16 {
    let ranges = parse_accept(accept);
    most_specific(&ranges, media_type).map_or(0, |(_, (_, weight))| *weight)
}

/// Parses a member of `Accept`: a media range and its weight, the value of the parameter `q` in thousandths.
fn parse_media_range(member: &str) -> Option<(Mime, u16)> {
    let media: Mime = member.parse().ok()?;
    let weight = match media.get_param("q") {
        Some(q) => parse_qvalue(q.as_str())?,
        None => 1000,
    };
    Some((media, weight))
}

/// Returns 0 for `*/*`, 1 for `image/*`, 2 for `image/png`.
fn specificity(range: &Mime) -> u8 {
    match (range.type_() == mime::STAR, range.subtype() == mime::STAR) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}

/// Returns true if the range includes `media_type`. Parameters other than `q` are ignored, because no format has any.
fn covers(range: &Mime, media_type: &str) -> bool {
    let Some((kind, subtype)) = media_type.split_once('/') else { return false };
    (range.type_() == mime::STAR || range.type_() == kind)
        && (range.subtype() == mime::STAR || range.subtype() == subtype)
}

/// Parses a weight in thousandths. The leading zero may be missing (Java sends `q=.2`). Returns `None` unless the
/// weight is between 0 and 1.
fn parse_qvalue(text: &str) -> Option<u16> {
    let (integer, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_decimal = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !is_decimal(integer) || !is_decimal(fraction) || integer.is_empty() && fraction.is_empty() {
        return None;
    }
    let integer: u16 = if integer.is_empty() { 0 } else { integer.parse().ok()? };
    let fraction: u16 = fraction.chars().chain("000".chars()).take(3).collect::<String>().parse().ok()?;
    integer.checked_mul(1000)?.checked_add(fraction).filter(|weight| *weight <= 1000)
}

/// Returns the media ranges of an `Accept` header with their weights. Other members are skipped.
fn parse_accept(accept: &str) -> Vec<(Mime, u16)> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    let members = accept.split(|c: char| {
        let is_separator = c == ',' && !is_quoted;
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ => {}
        }
        is_separator
    });
    members.filter_map(|member| parse_media_range(member.trim())).collect()
}

/// Returns the range that determines the weight of a media type, and its position in `ranges`. This is the first of the
/// most specific ranges that include the media type.
fn most_specific<'a>(ranges: &'a [(Mime, u16)], media_type: &str) -> Option<(usize, &'a (Mime, u16))> {
    let matching = ranges.iter().enumerate().filter(|(_, (range, _))| covers(range, media_type));
    matching.max_by_key(|(position, (range, _))| (specificity(range), Reverse(*position)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{FORMATS, Format, negotiate};
    use super::*;

    fn by_accept(accept: &str) -> Option<&'static str> {
        negotiate(None, Some(accept)).ok().map(Format::name)
    }

    #[test]
    fn the_parameter_takes_precedence_over_the_header() {
        for format in FORMATS {
            assert_eq!(negotiate(Some(format.name()), Some("text/html")).unwrap().name(), format.name());
        }
    }

    #[test]
    fn an_unknown_format_lists_the_known_ones() {
        for name in ["tif", "", "NPY"] {
            let error = negotiate(Some(name), None).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("unknown format {name:?}; known: raw, npy, json, png, jpeg, tiff, n5")
            );
        }
        let error = negotiate(Some(&"x".repeat(1000)), None).unwrap_err();
        assert!(error.to_string().len() < 120);
    }

    #[test]
    fn the_highest_weight_wins_and_more_specific_ranges_override() {
        let cases = [
            ("*/*", Some("raw")),
            ("", Some("raw")),
            ("application/*", Some("raw")),
            ("image/*", Some("png")),
            ("IMAGE/PNG", Some("png")),
            ("application/x-npy", Some("npy")),
            ("application/json;q=0.5, application/x-npy;q=0.6", Some("npy")),
            ("application/json, application/x-npy", Some("json")),
            ("*/*, image/png", Some("png")),
            ("image/png;q=0.9, */*", Some("raw")),
            ("application/octet-stream;q=0, */*", Some("npy")),
            ("application/*;q=0, */*;q=0.1", Some("png")),
            ("application/json;q=0.001", Some("json")),
            ("application/json;charset=utf-8", Some("json")),
            ("application/json;profile=\"a,b\";q=0.2, image/png;q=0.1", Some("json")),
            ("*/*;q=0", None),
            ("text/html", None),
            ("text/html, image/gif, application/json;q=0.0", None),
            ("image/jpeg", Some("jpeg")),
            ("image/jpeg, image/png;q=0.1", Some("png")),
            ("image/tiff, image/png;q=0.1", Some("tiff")),
            ("application/x-n5-block", Some("n5")),
        ];
        for (accept, expected) in cases {
            assert_eq!(by_accept(accept), expected, "{accept}");
        }
    }

    #[test]
    fn headers_of_real_clients_are_understood() {
        // Headers of Java's HttpURLConnection, a browser's address bar, a browser's <img>, curl and Python requests.
        assert_eq!(by_accept("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"), Some("raw"));
        let page = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8";
        assert_eq!(by_accept(page), Some("raw"));
        assert_eq!(by_accept("image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"), Some("png"));
        assert_eq!(by_accept("*/*"), Some("raw"));
    }

    #[test]
    fn members_that_are_not_media_ranges_are_skipped() {
        assert_eq!(by_accept("nonsense, image/png"), Some("png"));
        assert_eq!(by_accept("image/png;q=2, application/json;q=0.1"), Some("json"));
        assert_eq!(by_accept(",,"), Some("raw"));
    }

    #[test]
    fn an_unacceptable_header_lists_the_media_types() {
        let text = negotiate(None, Some("text/html")).unwrap_err().to_string();
        for format in FORMATS {
            assert!(text.contains(format.media_type()), "{text}");
        }
    }

    #[test]
    fn weights_are_numbers_from_0_to_1() {
        let valid = [("0", 0), ("1", 1000), ("1.000", 1000), ("0.5", 500), (".2", 200), ("0.", 0), ("0.9999", 999)];
        for (text, weight) in valid {
            assert_eq!(parse_qvalue(text), Some(weight), "{text}");
        }
        for text in ["", ".", "-0.1", "1.1", "nan", "1e-3", "+1", "99999999"] {
            assert_eq!(parse_qvalue(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_header_panics(accept in r#"[ -~]{0,60}|([a-z*]{0,3}/?[a-z*]{0,3}(;q=[0-9.]{0,4})?[,"\\]?){0,6}"#) {
            let _ = negotiate(None, Some(&accept));
        }
    }
}
