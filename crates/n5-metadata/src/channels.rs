//! Display of channels: the attribute `omero` of OME-NGFF.
//!
//! Source: <https://ngff.openmicroscopy.org/0.4/#omero-md>.

use serde_json::{Map, Value};

use crate::node::Node;

/// Maximum number of directories above a dataset whose `omero` applies to it, with the dataset's own.
const MAX_DISTANCE: usize = 2;

/// Display of a channel according to the metadata.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChannelDisplay {
    /// Name of the channel.
    pub label: Option<String>,
    /// Red, green and blue.
    pub colour: Option<[u8; 3]>,
    /// Values shown as black and in the full colour: two different finite numbers.
    pub window: Option<(f64, f64)>,
    /// True if the channel is to be shown at first.
    pub is_active: bool,
}

/// Returns the display of the channels of a dataset or group, in the order of the channels. The list is empty if
/// neither its own attributes nor those of a directory closely above have `omero`. Malformed values count as absent.
pub fn channel_displays(node: &Node) -> Vec<ChannelDisplay> {
    let above = node.ancestors.iter().rev().take(MAX_DISTANCE).map(n5_format::AttributesDocument::members);
    let channels = std::iter::once(node.attributes()).chain(above).find_map(listed_channels);
    channels.unwrap_or_default().iter().map(display).collect()
}

fn listed_channels(attributes: &Map<String, Value>) -> Option<&[Value]> {
    let root = attributes.get("ome").and_then(Value::as_object).unwrap_or(attributes);
    let channels = root.get("omero").or_else(|| attributes.get("omero"))?.get("channels")?.as_array()?;
    Some(channels.as_slice())
}

fn display(channel: &Value) -> ChannelDisplay {
    let window = channel.get("window").and_then(|window| {
        let end = |key: &str| window.get(key).and_then(Value::as_f64).filter(|number| number.is_finite());
        end("start").zip(end("end")).filter(|(start, end)| end - start > 0.0)
    });
    ChannelDisplay {
        label: channel.get("label").and_then(Value::as_str).filter(|label| !label.is_empty()).map(str::to_owned),
        colour: channel.get("color").and_then(Value::as_str).and_then(hexadecimal_colour),
        window,
        is_active: channel.get("active").and_then(Value::as_bool).unwrap_or(true),
    }
}

/// Parses six hexadecimal digits, with or without `#`.
fn hexadecimal_colour(text: &str) -> Option<[u8; 3]> {
    let digits = text.strip_prefix('#').unwrap_or(text);
    let is_hexadecimal = digits.len() == 6 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let [_, red, green, blue] = u32::from_str_radix(digits, 16).ok().filter(|_| is_hexadecimal)?.to_be_bytes();
    Some([red, green, blue])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::*;

    #[test]
    fn the_channels_of_omero_are_read_in_both_places() {
        let omero = json!({"channels": [
            {"label": "DAPI", "color": "0000FF", "window": {"start": 10, "end": 200.5, "min": 0, "max": 255}},
            {"color": "#ff0000", "active": false, "window": {"start": 5, "end": 5}, "label": ""},
            {"color": "red", "window": {"start": "0"}},
            7,
        ]});
        let expected = [
            ChannelDisplay {
                label: Some("DAPI".into()),
                colour: Some([0, 0, 255]),
                window: Some((10.0, 200.5)),
                is_active: true,
            },
            ChannelDisplay { colour: Some([255, 0, 0]), ..ChannelDisplay::default() },
            ChannelDisplay { is_active: true, ..ChannelDisplay::default() },
            ChannelDisplay { is_active: true, ..ChannelDisplay::default() },
        ];
        for own in [json!({"omero": omero}), json!({"ome": {"version": "0.5", "omero": omero}})] {
            assert_eq!(channel_displays(&group(&[], &own, &[])), expected);
            // A level of the image has the channels, too.
            assert_eq!(channel_displays(&group(&[own], &array(&[4, 4], &json!({})), &[])), expected);
        }
        for own in [json!({}), json!({"omero": 1}), json!({"omero": {"channels": {}}})] {
            assert_eq!(channel_displays(&group(&[], &own, &[])), []);
        }
    }
}
