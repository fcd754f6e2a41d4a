//! Colours of channels and of labels.

/// Maximum number of channels in one image.
pub const MAX_CHANNELS: usize = 8;

/// Red, green and blue.
pub type Colour = [u8; 3];

/// Names of colours that requests may use.
const NAMED_COLOURS: [(&str, Colour); 10] = [
    ("white", [255, 255, 255]),
    ("gray", [255, 255, 255]),
    ("grey", [255, 255, 255]),
    ("red", [255, 0, 0]),
    ("green", [0, 255, 0]),
    ("blue", [0, 0, 255]),
    ("cyan", [0, 255, 255]),
    ("magenta", [255, 0, 255]),
    ("yellow", [255, 255, 0]),
    ("orange", [255, 128, 0]),
];

/// A channel of a [`Composite`].
#[derive(Debug, Clone, PartialEq)]
pub struct CompositeChannel {
    /// Index of the channel along the array's channel axis.
    pub index: u64,
    /// Colour of elements at the window's second value.
    pub colour: Colour,
    /// Values shown as black and in the full colour.
    pub window: (f64, f64),
}

/// An image that adds the channels of an array, each in its colour.
#[derive(Debug, Clone, PartialEq)]
pub struct Composite {
    /// Axis of the channels in the shape of the array.
    pub axis: usize,
    /// The channels that are shown, at most [`MAX_CHANNELS`].
    pub channels: Vec<CompositeChannel>,
}

/// Returns the colour that a text names: six hexadecimal digits, or a name such as `green`.
pub fn parse_colour(text: &str) -> Option<Colour> {
    let lower = text.to_ascii_lowercase();
    if let Some((_, colour)) = NAMED_COLOURS.iter().find(|(name, _)| *name == lower) {
        return Some(*colour);
    }
    let digits = lower.strip_prefix('#').unwrap_or(&lower);
    let is_hexadecimal = digits.len() == 6 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u32::from_str_radix(digits, 16).ok().filter(|_| is_hexadecimal)?;
    let [_, red, green, blue] = number.to_be_bytes();
    Some([red, green, blue])
}

/// Returns the names that [`parse_colour`] knows.
pub fn colour_names() -> impl Iterator<Item = &'static str> {
    NAMED_COLOURS.iter().map(|(name, _)| *name)
}

impl Composite {
    /// Returns the shape without the channels: the shape of the image.
    pub(super) fn image_shape(&self, shape: &[u64]) -> Vec<u64> {
        shape.iter().enumerate().map(|(axis, size)| if axis == self.axis { 1 } else { *size }).collect()
    }

    /// Checks that the array has the channels.
    ///
    /// # Errors
    /// Returns a text for the client.
    pub(super) fn check(&self, format: &str, shape: &[u64]) -> Result<(), String> {
        let available = shape.get(self.axis).copied().unwrap_or(0);
        if self.channels.is_empty() || self.channels.len() > MAX_CHANNELS {
            let count = self.channels.len();
            return Err(format!(
                "{format} shows 1 to {MAX_CHANNELS} channels in one image, but {count} are selected; \
                 name them with channels, as in channels=0,1,2"
            ));
        }
        match self.channels.iter().find(|channel| channel.index >= available) {
            Some(channel) => Err(format!("channel {} is not in the region {shape:?}", channel.index)),
            None => Ok(()),
        }
    }
}

/// Returns the colour of a label; 0 is black. The same labels have the same colours as on the page that shows a
/// container, whose script `colours.js` has this function, too.
pub fn label_colour(label: u64) -> Colour {
    if label == 0 {
        return [0, 0, 0];
    }
    let [low, high] = [label, label >> 32].map(|half| u32::try_from(half & 0xffff_ffff).unwrap_or(0));
    let mixed = (low ^ (low >> 16)).wrapping_mul(0x7feb_352d) ^ high.wrapping_mul(0x846c_a68b);
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x846c_a68b);
    palette_colour((mixed ^ (mixed >> 16)) >> 20)
}

/// Returns one of 4096 colours that are bright enough on black.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "floating-point numbers from 0 to 255")]
fn palette_colour(number: u32) -> Colour {
    let n = f64::from(number);
    let hue = (n * 0.618_033_988_75).fract() * 6.0;
    let saturation = 0.5 + 0.5 * ((n * 37.0) % 64.0 / 63.0);
    let value = 0.62 + 0.38 * ((n * 101.0) % 64.0 / 63.0);
    [5.0, 3.0, 1.0].map(|shift| {
        let k = (shift + hue) % 6.0;
        let level = 255.0 * value * (1.0 - saturation * k.min(4.0 - k).clamp(0.0, 1.0));
        // JavaScript's `Math.round` rounds a half up.
        (level + 0.5).floor() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_hexadecimal_or_names() {
        for (text, colour) in
            [("ff8000", [255, 128, 0]), ("#0000FF", [0, 0, 255]), ("Green", [0, 255, 0]), ("grey", [255, 255, 255])]
        {
            assert_eq!(parse_colour(text), Some(colour), "{text}");
        }
        for text in ["", "ff80", "ff80000", "gg0000", "+f0000", "teal?", "é"] {
            assert_eq!(parse_colour(text), None, "{text}");
        }
    }

    #[test]
    fn labels_have_the_colours_of_the_page() {
        // Computed by `colours.js`.
        assert_eq!(label_colour(0), [0, 0, 0]);
        let some: Vec<Colour> = [1, 2, 3, 1 << 32, u64::MAX].map(label_colour).to_vec();
        assert_eq!(some, LABELS_OF_THE_PAGE);
    }

    const LABELS_OF_THE_PAGE: [Colour; 5] =
        [[40, 220, 61], [32, 240, 19], [200, 74, 57], [198, 100, 58], [66, 186, 185]];
}
