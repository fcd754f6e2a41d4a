//! Names of files to save: `Content-Disposition` of slices and thumbnails.
//!
//! Source: RFC 6266; RFC 8187 for names beyond ASCII.

use std::fmt::Write;

use axum::http::HeaderValue;

use crate::http::query::numpy_index::Selection;
use crate::http::route;
use crate::store::Key;

/// Maximum number of characters of a name, without its suffix.
const MAX_NAME_CHARACTERS: usize = 120;

/// Maximum number of path segments in a name.
const MAX_SEGMENTS: usize = 3;

/// Returns the name of a slice of the dataset at `key`, such as `em_s0_x0-512_y0-512_z20.tif`. Axes that are selected
/// as a whole are left out. `axes` are the names of all axes, or empty.
pub(crate) fn slice(
    mount: &str,
    key: &Key,
    (selection, dimensions): (&Selection, &[u64]),
    axes: &[String],
    suffix: &str,
) -> String {
    let region = &selection.region;
    let mut name = stem(mount, key);
    for (axis, (start, (samples, step))) in
        region.start().iter().zip(region.shape().iter().zip(region.step())).enumerate()
    {
        let size = dimensions.get(axis).copied().unwrap_or(0);
        if *start == 0 && *samples == size && *step == 1 && size != 1 {
            continue;
        }
        let axis_name: String = match axes.get(axis) {
            Some(given) => safe_text(given).chars().take(8).collect(),
            None => String::new(),
        };
        let fallback = ["x", "y", "z", "t", "c"].get(axis).map_or_else(|| format!("d{axis}_"), ToString::to_string);
        let axis_name = if axis_name.is_empty() { fallback } else { axis_name };
        let extent = u64::try_from(i128::from(*samples) * i128::from(*step)).unwrap_or(u64::MAX);
        let end = i128::from(*start) + i128::from(extent);
        let end = if *start >= 0 { end.min(i128::from(size).max(i128::from(*start) + 1)) } else { end };
        // Writing to a string does not fail.
        let _ = match *samples {
            1 => write!(name, "_{axis_name}{start}"),
            _ => write!(name, "_{axis_name}{start}-{end}"),
        };
        if *step > 1 && *samples > 1 {
            let _ = write!(name, "by{step}");
        }
    }
    with_suffix(&name, suffix)
}

/// Returns the name of the thumbnail of the volume at `key`.
pub(crate) fn thumbnail(mount: &str, key: &Key, format: &str) -> String {
    with_suffix(&format!("{}_thumbnail", stem(mount, key)), if format == "jpeg" { "jpg" } else { format })
}

/// Returns the value of `Content-Disposition`. A browser shows an `is_inline` response if it can, and saves others.
pub(crate) fn content_disposition(name: &str, is_inline: bool) -> HeaderValue {
    let kind = if is_inline { "inline" } else { "attachment" };
    let ascii: String = name.chars().map(|c| if c.is_ascii() { c } else { '_' }).collect();
    let mut text = format!("{kind}; filename=\"{ascii}\"");
    if ascii != name {
        // Every byte that may not stand in an extended value is percent-encoded.
        let _ = write!(text, "; filename*=UTF-8''{}", route::encode_segment(name));
    }
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("attachment"))
}

/// Returns the last names of a path, joined. The name of the container stands for its root.
fn stem(mount: &str, key: &Key) -> String {
    let mut names: Vec<String> = key.segments().rev().take(MAX_SEGMENTS).map(safe_text).collect();
    names.reverse();
    names.retain(|name| !name.is_empty());
    if names.is_empty() {
        names.push(safe_text(mount));
    }
    let name = names.join("_");
    if name.is_empty() { "data".to_owned() } else { name }
}

/// Replaces characters that are not letters, digits, `-` or `.` by `_`. Dots at the ends are removed, because such
/// names are hidden or invalid on some systems.
fn safe_text(text: &str) -> String {
    let safe = text.chars().map(|c| if c.is_alphanumeric() || matches!(c, '-' | '.') { c } else { '_' });
    safe.collect::<String>().trim_matches(['.', '_']).to_owned()
}

/// Appends the suffix to a name that is cut in the middle if it is too long.
fn with_suffix(name: &str, suffix: &str) -> String {
    let characters: Vec<char> = name.chars().collect();
    let half = MAX_NAME_CHARACTERS / 2;
    let name = match (characters.get(..half), characters.len().checked_sub(half).and_then(|at| characters.get(at..))) {
        (Some(start), Some(end)) if characters.len() > MAX_NAME_CHARACTERS => {
            format!("{}_{}", start.iter().collect::<String>(), end.iter().collect::<String>())
        }
        _ => name.to_owned(),
    };
    format!("{name}.{suffix}")
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use n5_format::Region;

    fn key(path: &str) -> Key {
        Key::parse(path).unwrap()
    }

    fn selection(start: &[i64], shape: &[u64], step: &[u64]) -> Selection {
        let region = Region::new(start.into(), shape.into(), step.into()).unwrap();
        Selection { region, kept_axes: smallvec![] }
    }

    #[test]
    fn a_name_says_what_the_slice_is() {
        let dimensions = [2000, 1000, 500];
        let name = |path, axes: &[&str], start: &[i64], shape: &[u64], step: &[u64]| {
            let axes: Vec<String> = axes.iter().map(ToString::to_string).collect();
            slice("demo", &key(path), (&selection(start, shape, step), &dimensions), &axes, "tif")
        };
        let ones = [1, 1, 1];
        assert_eq!(
            name("em/volume/s0", &["x", "y", "z"], &[0, 0, 20], &[512, 512, 1], &ones),
            "em_volume_s0_x0-512_y0-512_z20.tif"
        );
        assert_eq!(name("a/b/c/d", &[], &[0, 0, 0], &dimensions, &ones), "b_c_d.tif");
        assert_eq!(name("a", &[], &[0, -5, 7], &[2000, 10, 4], &[1, 1, 10]), "a_y-5-5_z7-47by10.tif");
        assert_eq!(name("a", &["c/\"", "y", "z"], &[3, 0, 0], &[1, 1000, 500], &ones), "a_c3.tif");
        assert_eq!(thumbnail("demo", &Key::root(), "jpeg"), "demo_thumbnail.jpg");
        assert_eq!(thumbnail("", &Key::root(), "png"), "data_thumbnail.png");
    }

    #[test]
    fn names_are_safe_and_short_in_a_header() {
        let long = format!("{}/{}", "é\"; x".repeat(40), ".hidden..");
        let name = thumbnail("", &key(&long), "png");
        assert!(name.chars().count() <= MAX_NAME_CHARACTERS + 5 && name.ends_with("hidden_thumbnail.png"), "{name}");
        let header = content_disposition(&name, true);
        let text = header.to_str().unwrap();
        assert!(text.starts_with("inline; filename=\"_"), "{text}");
        assert!(text.contains("; filename*=UTF-8''%C3%A9_"), "{text}");
        assert_eq!(text.matches('"').count(), 2, "{text}");
        assert_eq!(content_disposition("a.npy", false), "attachment; filename=\"a.npy\"");
    }
}
