//! Which format answers: the parameter `format`, else the header `Accept` (RFC 9110 §12.5.1).

use std::cmp::Reverse;

use mime::Mime;

use super::{FORMATS, Format};

/// Why no format is chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// There is no format of that name.
    #[error("unknown format {asked:?}; known: {}", known.join(", "))]
    UnknownFormat {
        /// The name given, at most 40 characters of it.
        asked: String,
        /// All names.
        known: Vec<&'static str>,
    },
    /// `Accept` excludes every media type there is.
    #[error("Accept matches none of the media types served here: {}", known.join(", "))]
    NotAcceptable {
        /// All media types.
        known: Vec<&'static str>,
    },
}

/// Picks the format: by name where the client gives one, else the media type that `Accept` weighs highest.
///
/// `accept` is the header's value, several joined by commas. Of equal weights the more specific range wins,
/// then the one named first, then the row in [`FORMATS`]. Members that are no media ranges are skipped (Java
/// sends a bare `*`); where nothing is left, anything goes. A format that loses values is picked only where no
/// other is welcome: Java names image/jpeg in every request that says nothing else.
///
/// # Errors
/// [`NegotiationError`] when the name is unknown, or `Accept` excludes everything.
pub fn negotiate(format: Option<&str>, accept: Option<&str>) -> Result<&'static dyn Format, NegotiationError> {
    if let Some(name) = format {
        let found = FORMATS.iter().copied().find(|format| format.name() == name);
        return found.ok_or_else(|| NegotiationError::UnknownFormat {
            asked: name.chars().take(40).collect(),
            known: FORMATS.iter().map(|format| format.name()).collect(),
        });
    }
    let best = [false, true].into_iter().find_map(|is_lossy| {
        let formats: Vec<_> = FORMATS.iter().copied().filter(|format| format.is_lossy() == is_lossy).collect();
        let known: Vec<&'static str> = formats.iter().map(|format| format.media_type()).collect();
        let best = best_of(&known, accept)?;
        formats.into_iter().find(|format| format.media_type() == best)
    });
    best.ok_or_else(|| NegotiationError::NotAcceptable {
        known: FORMATS.iter().map(|format| format.media_type()).collect(),
    })
}

/// The media type among `known` that `accept` weighs highest, by the rules of [`negotiate`]; `None` when
/// it excludes them all.
pub fn best_of(known: &[&'static str], accept: Option<&str>) -> Option<&'static str> {
    let ranges = accept.map_or_else(Vec::new, ranges);
    if ranges.is_empty() {
        return known.first().copied();
    }
    let welcome = known.iter().enumerate().filter_map(|(row, media_type)| {
        let (position, range) = most_specific(&ranges, media_type)?;
        (range.weight > 0).then_some(((range.weight, range.specificity(), Reverse((position, row))), *media_type))
    });
    welcome.max_by_key(|(rank, _)| *rank).map(|(_, media_type)| media_type)
}

/// How much `accept` welcomes a media type, in thousandths; 0 for what it excludes.
pub fn weight_of(media_type: &str, accept: &str) -> u16 {
    let ranges = ranges(accept);
    most_specific(&ranges, media_type).map_or(0, |(_, range)| range.weight)
}

/// A member of `Accept`.
struct Range {
    media: Mime,
    /// The parameter `q` in thousandths.
    weight: u16,
}

impl Range {
    fn parse(member: &str) -> Option<Self> {
        let media: Mime = member.parse().ok()?;
        let weight = match media.get_param("q") {
            Some(q) => thousandths(q.as_str())?,
            None => 1000,
        };
        Some(Self { media, weight })
    }

    /// 0 for `*/*`, 1 for `image/*`, 2 for `image/png`.
    fn specificity(&self) -> u8 {
        match (self.media.type_() == mime::STAR, self.media.subtype() == mime::STAR) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        }
    }

    /// Parameters besides `q` do not matter: no format has any.
    fn covers(&self, media_type: &str) -> bool {
        let Some((kind, subtype)) = media_type.split_once('/') else { return false };
        (self.media.type_() == mime::STAR || self.media.type_() == kind)
            && (self.media.subtype() == mime::STAR || self.media.subtype() == subtype)
    }
}

/// A weight, also without its leading zero (Java's `q=.2`); `None` where it is no number from 0 to 1.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: u16 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: u16 = fraction.chars().chain("000".chars()).take(3).collect::<String>().parse().ok()?;
    whole.checked_mul(1000)?.checked_add(fraction).filter(|weight| *weight <= 1000)
}

/// The members of an `Accept` header that are media ranges.
fn ranges(accept: &str) -> Vec<Range> {
    let mut quoted = false;
    let mut escaped = false;
    let members = accept.split(|c: char| {
        let separator = c == ',' && !quoted;
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        separator
    });
    members.filter_map(|member| Range::parse(member.trim())).collect()
}

/// The range that decides about a media type, with its position: the most specific, of equals the first.
fn most_specific<'a>(ranges: &'a [Range], media_type: &str) -> Option<(usize, &'a Range)> {
    let covering = ranges.iter().enumerate().filter(|(_, range)| range.covers(media_type));
    covering.max_by_key(|(position, range)| (range.specificity(), Reverse(*position)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by_accept(accept: &str) -> Option<&'static str> {
        negotiate(None, Some(accept)).ok().map(Format::name)
    }

    #[test]
    fn the_parameter_beats_the_header() {
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
        // Java's HttpURLConnection, a browser's address bar, a browser's <img>, curl and Python requests.
        assert_eq!(by_accept("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"), Some("raw"));
        let page = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8";
        assert_eq!(by_accept(page), Some("raw"));
        assert_eq!(by_accept("image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"), Some("png"));
        assert_eq!(by_accept("*/*"), Some("raw"));
    }

    #[test]
    fn members_that_are_no_media_ranges_are_skipped() {
        assert_eq!(by_accept("nonsense, image/png"), Some("png"));
        assert_eq!(by_accept("image/png;q=2, application/json;q=0.1"), Some("json"));
        assert_eq!(by_accept(",,"), Some("raw"));
    }

    #[test]
    fn nothing_acceptable_lists_the_media_types() {
        let text = negotiate(None, Some("text/html")).unwrap_err().to_string();
        for format in FORMATS {
            assert!(text.contains(format.media_type()), "{text}");
        }
    }

    #[test]
    fn weights_are_numbers_from_0_to_1() {
        let good = [("0", 0), ("1", 1000), ("1.000", 1000), ("0.5", 500), (".2", 200), ("0.", 0), ("0.9999", 999)];
        for (text, weight) in good {
            assert_eq!(thousandths(text), Some(weight), "{text}");
        }
        for text in ["", ".", "-0.1", "1.1", "nan", "1e-3", "+1", "99999999"] {
            assert_eq!(thousandths(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_header_panics(accept in r#"[ -~]{0,60}|([a-z*]{0,3}/?[a-z*]{0,3}(;q=[0-9.]{0,4})?[,"\\]?){0,6}"#) {
            let _ = negotiate(None, Some(&accept));
        }
    }
}
