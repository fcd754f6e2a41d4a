//! Names of files to save: `Content-Disposition` of slices and thumbnails.
//!
//! Source: RFC 6266; RFC 8187 for names beyond ASCII.

use std::borrow::Cow;
use std::fmt::Write;

use axum::http::HeaderValue;

use crate::http::query::numpy_index::Selection;
use crate::http::route;
use crate::store::Key;

/// Maximum number of characters of a name, without its suffix.
const MAX_NAME_CHARACTERS: usize = 120;

/// Maximum number of path segments in a name.
const MAX_SEGMENTS: usize = 3;

/// Maximum number of characters of an axis's name in a name.
const MAX_AXIS_NAME_CHARACTERS: usize = 8;

/// Names of the first axes if they have none in the metadata.
const AXIS_NAMES: [&str; 3] = ["x", "y", "z"];

/// Capacity in bytes that is enough for most names and headers.
const USUAL_BYTES: usize = 160;

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
        name.push('_');
        let given = axes.get(axis).map(|given| safe_text(given)).filter(|given| !given.is_empty());
        // Writing to a string does not fail.
        match (given, AXIS_NAMES.get(axis)) {
            (Some(given), _) => name.extend(given.chars().take(MAX_AXIS_NAME_CHARACTERS)),
            (None, Some(known)) => name.push_str(known),
            (None, None) => {
                let _ = write!(name, "d{axis}_");
            }
        }
        let _ = write!(name, "{start}");
        if *samples != 1 {
            let extent = u64::try_from(i128::from(*samples) * i128::from(*step)).unwrap_or(u64::MAX);
            let end = i128::from(*start) + i128::from(extent);
            let end = if *start >= 0 { end.min(i128::from(size).max(i128::from(*start) + 1)) } else { end };
            let _ = write!(name, "-{end}");
        }
        if *step > 1 && *samples > 1 {
            let _ = write!(name, "by{step}");
        }
    }
    with_suffix(name, suffix)
}

/// Returns the name of the thumbnail of the volume at `key`.
pub(crate) fn thumbnail(mount: &str, key: &Key, format: &str) -> String {
    with_suffix(stem(mount, key) + "_thumbnail", if format == "jpeg" { "jpg" } else { format })
}

/// Returns the value of `Content-Disposition`. A browser shows an `is_inline` response if it can, and saves others.
pub(crate) fn content_disposition(name: &str, is_inline: bool) -> HeaderValue {
    let kind = if is_inline { "inline" } else { "attachment" };
    let mut text = String::with_capacity(USUAL_BYTES);
    for part in [kind, "; filename=\""] {
        text.push_str(part);
    }
    if name.is_ascii() {
        text.push_str(name);
    } else {
        text.extend(name.chars().map(|c| if c.is_ascii() { c } else { '_' }));
    }
    text.push('"');
    if !name.is_ascii() {
        // Every byte that may not stand in an extended value is percent-encoded.
        let _ = write!(text, "; filename*=UTF-8''{}", route::encode_segment(name));
    }
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("attachment"))
}

/// Returns the last names of a path, joined. The name of the container stands for its root.
fn stem(mount: &str, key: &Key) -> String {
    let path = key.as_str();
    let first = path.rmatch_indices('/').nth(MAX_SEGMENTS - 1).map_or(0, |(slash, _)| slash + 1);
    let mut stem = String::with_capacity(USUAL_BYTES);
    let names = path.get(first..).unwrap_or_default().split('/').map(safe_text);
    for name in names.filter(|name| !name.is_empty()) {
        if !stem.is_empty() {
            stem.push('_');
        }
        stem.push_str(&name);
    }
    if stem.is_empty() {
        stem.push_str(&safe_text(mount));
    }
    if stem.is_empty() { "data".to_owned() } else { stem }
}

/// Replaces characters that are not letters, digits, `-` or `.` by `_`. Dots at the ends are removed, because such
/// names are hidden or invalid on some systems.
fn safe_text(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        return Cow::Borrowed(text.trim_matches(['.', '_']));
    }
    let safe = text.chars().map(|c| if c.is_alphanumeric() || matches!(c, '-' | '.') { c } else { '_' });
    Cow::Owned(safe.collect::<String>().trim_matches(['.', '_']).to_owned())
}

/// Appends the suffix to a name that is cut in the middle if it is too long.
fn with_suffix(mut name: String, suffix: &str) -> String {
    let half = MAX_NAME_CHARACTERS / 2;
    // No name has more characters than bytes.
    if name.len() > MAX_NAME_CHARACTERS
        && name.chars().count() > MAX_NAME_CHARACTERS
        && let Some((start_len, _)) = name.char_indices().nth(half)
        && let Some((end_offset, _)) = name.char_indices().nth_back(half - 1)
    {
        name.replace_range(start_len..end_offset, "_");
    }
    name.push('.');
    name + suffix
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
