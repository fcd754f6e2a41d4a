//! Display of channels: the attribute `omero` of OME-NGFF, and the colours of channels that it does not describe.
//!
//! Source: <https://ngff.openmicroscopy.org/0.4/#omero-md>.

use n5_format::DataType;
use serde_json::{Map, Value};

use crate::node::Node;

/// Maximum number of directories above a dataset whose `omero` applies to it, with the dataset's own.
const MAX_DISTANCE: usize = 2;

/// Colours of red, green and blue.
const PHOTOGRAPH: [[u8; 3]; 3] = [[255, 0, 0], [0, 255, 0], [0, 0, 255]];

/// Colours of two channels. Readers with any form of colour blindness can tell the channels and their mixture apart:
/// magenta and green add up to white.
const TWO: [[u8; 3]; 2] = [[255, 0, 255], [0, 255, 0]];

/// Colours of three or more channels. The page that shows a container has the same colours, in `colours.js`.
const MANY: [[u8; 3]; 8] = [
    [0, 255, 255],
    [255, 0, 255],
    [255, 255, 0],
    [255, 122, 26],
    [77, 125, 255],
    [51, 224, 106],
    [255, 92, 138],
    [255, 255, 255],
];

/// Returns the colour of the channel `index` of an image with `count` channels, if neither the request nor the metadata
/// gives one.
pub fn default_channel_colour(index: u64, count: u64, data_type: &DataType) -> [u8; 3] {
    let palette: &[[u8; 3]] = match count {
        0 | 1 => &[[255; 3]],
        2 => &TWO,
        _ if is_photograph(count, data_type) => &PHOTOGRAPH,
        _ => &MANY,
    };
    let number = index.checked_rem(palette.len() as u64).and_then(|number| usize::try_from(number).ok());
    number.and_then(|number| palette.get(number)).copied().unwrap_or([255; 3])
}

/// Returns true if channels that the metadata does not describe are the red, green and blue of a photograph: three of
/// 8 bits.
pub fn is_photograph(count: u64, data_type: &DataType) -> bool {
    count == 3 && *data_type == DataType::UInt8
}

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
    let channels = std::iter::once(node.attributes()).chain(above).find_map(listed_channels).unwrap_or_default();
    let has_active = channels.iter().any(|channel| channel.get("active") == Some(&Value::Bool(true)));
    channels
        .iter()
        .map(|channel| ChannelDisplay { is_active: is_active(channel, !has_active), ..channel_display(channel) })
        .collect()
}

fn listed_channels(attributes: &Map<String, Value>) -> Option<&[Value]> {
    let root = attributes.get("ome").and_then(Value::as_object).unwrap_or(attributes);
    let channels = root.get("omero").or_else(|| attributes.get("omero"))?.get("channels")?.as_array()?;
    Some(channels.as_slice())
}

/// Returns true if a channel is to be shown at first. `default` is for a channel that does not say so.
fn is_active(channel: &Value, default: bool) -> bool {
    channel.get("active").and_then(Value::as_bool).unwrap_or(default)
}

/// Returns the display that an entry of `omero.channels` describes. Malformed values count as absent.
pub fn channel_display(channel: &Value) -> ChannelDisplay {
    let window = channel.get("window").and_then(|window| {
        let end = |key: &str| window.get(key).and_then(Value::as_f64).filter(|number| number.is_finite());
        end("start").zip(end("end")).filter(|(start, end)| end - start > 0.0)
    });
    ChannelDisplay {
        label: channel.get("label").and_then(Value::as_str).filter(|label| !label.is_empty()).map(str::to_owned),
        colour: channel.get("color").and_then(Value::as_str).and_then(hexadecimal_colour),
        window,
        is_active: is_active(channel, true),
    }
}

/// Parses six hexadecimal digits, with or without `#`. Two further digits, the opacity, are ignored.
fn hexadecimal_colour(text: &str) -> Option<[u8; 3]> {
    let digits = text.trim();
    let digits = digits.strip_prefix('#').unwrap_or(digits);
    let is_hexadecimal = matches!(digits.len(), 6 | 8) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = digits.get(..6)?;
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
            {"color": "red", "window": {"start": "0"}, "active": true},
            {"color": "00ffff80", "active": null},
            {"color": "é0000"},
            7,
        ]});
        let expected = [
            ChannelDisplay {
                label: Some("DAPI".into()),
                colour: Some([0, 0, 255]),
                window: Some((10.0, 200.5)),
                is_active: false,
            },
            ChannelDisplay { colour: Some([255, 0, 0]), ..ChannelDisplay::default() },
            ChannelDisplay { is_active: true, ..ChannelDisplay::default() },
            ChannelDisplay { colour: Some([0, 255, 255]), ..ChannelDisplay::default() },
            ChannelDisplay::default(),
            ChannelDisplay::default(),
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
    #[test]
    fn channels_are_active_unless_some_say_so() {
        let active = |channels: Value| {
            let displays = channel_displays(&group(&[], &json!({"omero": {"channels": channels}}), &[]));
            displays.iter().map(|display| display.is_active).collect::<Vec<_>>()
        };
        assert_eq!(active(json!([{}, {"active": false}])), [true, false]);
        assert_eq!(active(json!([{}, {"active": true}, {"active": "yes"}])), [false, true, false]);
    }

    #[test]
    fn default_colours_depend_on_the_number_of_channels() {
        let colours = |count: u64, data_type: &DataType| {
            (0..count.min(10)).map(|index| default_channel_colour(index, count, data_type)).collect::<Vec<_>>()
        };
        assert_eq!(colours(1, &DataType::UInt8), [[255; 3]]);
        assert_eq!(colours(2, &DataType::UInt8), TWO);
        assert_eq!(colours(3, &DataType::UInt8), PHOTOGRAPH);
        assert_eq!(colours(3, &DataType::UInt16), MANY[..3]);
        assert_eq!(colours(1 << 40, &DataType::UInt8)[7..], [MANY[7], MANY[0], MANY[1]]);
        assert_eq!(default_channel_colour(u64::MAX, 0, &DataType::UInt8), [255; 3]);
    }
}
