//! Stacks of images as ImageJ has them: the order of the pages, and the description that calibrates them.
//!
//! Source: ImageJ 1.53t, `ij/io/TiffDecoder.java`, `ij/io/FileOpener.java` and `ij/io/FileSaver.java`.

use std::fmt::Write;

use super::encoding::{StackAxis, StackAxisKind};
use super::image::long_axes;
use super::imagej_metadata::MAX_STACK_CHANNELS;

/// Largest number of pages, which keeps the directories small relative to the images. ImageJ does not support more.
const MAX_PAGES: u64 = 65_535;

/// Maximum number of pixels per side.
const MAX_SIDE: u64 = (1 << 31) - 1;

/// Arrangement of an array as a stack of pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StackLayout {
    /// Axes longer than 1 in the order of the file, fastest first: the two of a page, channels, slices, frames.
    order: Vec<usize>,
    /// Axes that run to the right and down.
    page_axes: (Option<usize>, Option<usize>),
    /// Axis of channels, of slices and of frames.
    stacked: [Option<usize>; 3],
    /// Numbers of channels, slices and frames.
    counts: [u64; 3],
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) pages: u32,
}

/// Unit of length of a calibration: its name in ImageJ, and its size in metres.
const LENGTH_UNITS: [(&str, f64); 5] = [("nm", 1e-9), ("\\u00B5m", 1e-6), ("mm", 1e-3), ("cm", 1e-2), ("m", 1.0)];

/// Voxel size of a stack.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct StackCalibration {
    /// Name of the unit of length; empty if it is unknown.
    pub(super) unit: &'static str,
    /// Width and height of a pixel.
    pub(super) pixel_size: (Option<f64>, Option<f64>),
    /// Distance between slices.
    spacing: Option<f64>,
    /// Seconds between frames.
    frame_interval: Option<f64>,
    /// Pixel and slice at which the coordinates are 0.
    origin: [Option<f64>; 3],
}

impl StackLayout {
    /// Arranges an array. `axes` describes the axes of `shape`; it is empty if they are unknown.
    ///
    /// # Errors
    /// Returns a text for the client: why the array is no stack, and what to request instead.
    pub(super) fn of(format: &str, shape: &[u64], axes: &[StackAxis]) -> Result<Self, String> {
        long_axes(format, shape, MAX_SIDE)?;
        let kind = |axis: usize| axes.get(axis).map_or(StackAxisKind::Space, |axis| axis.kind);
        let long: Vec<usize> = shape.iter().enumerate().filter(|(_, size)| **size > 1).map(|(axis, _)| axis).collect();
        // A page shows the axes x and y, or else the first two axes of space, or else further ones.
        let named = |wanted| long.iter().copied().find(|axis| kind(*axis) == wanted);
        let page = if let (Some(right), Some(down)) = (named(StackAxisKind::Right), named(StackAxisKind::Down)) {
            vec![right, down]
        } else {
            let space = long.iter().filter(|axis| kind(**axis).is_space());
            let others = long.iter().filter(|axis| !kind(**axis).is_space());
            let mut page: Vec<usize> = space.chain(others).take(2).copied().collect();
            page.sort_unstable();
            page
        };
        let mut stacked = [None; 3];
        let mut homeless = Vec::new();
        for axis in long.iter().copied().filter(|axis| !page.contains(axis)) {
            let wanted = match kind(axis) {
                StackAxisKind::Channel => 0,
                StackAxisKind::Space | StackAxisKind::Right | StackAxisKind::Down => 1,
                StackAxisKind::Time => 2,
            };
            match stacked.get_mut(wanted) {
                Some(place @ None) => *place = Some(axis),
                _ => homeless.push(axis),
            }
        }
        // A further axis takes a place that is left: that of frames, slices or channels.
        for axis in homeless {
            let free = [2, 1, 0].into_iter().find(|place| stacked.get(*place) == Some(&None));
            let place = free.and_then(|place| stacked.get_mut(place)).ok_or_else(|| {
                format!(
                    "{format} has at most five axes longer than 1: a page, channels, slices and frames; the shape is \
                     {shape:?}; reduce the other axes to 1 with start and size"
                )
            })?;
            *place = Some(axis);
        }
        let size = |axis: usize| shape.get(axis).copied().unwrap_or(1);
        let pages = stacked.iter().flatten().fold(1u64, |pages, axis| pages.saturating_mul(size(*axis)));
        if pages > MAX_PAGES {
            return Err(format!(
                "a {format} has at most {MAX_PAGES} pages here, but the shape is {shape:?}; request a smaller region"
            ));
        }
        let side = |axis: Option<&usize>| axis.map_or(1, |axis| u32::try_from(size(*axis)).unwrap_or(u32::MAX));
        Ok(Self {
            width: side(page.first()),
            height: side(page.get(1)),
            pages: u32::try_from(pages).unwrap_or(u32::MAX),
            order: page.iter().copied().chain(stacked.iter().flatten().copied()).collect(),
            page_axes: (page.first().copied(), page.get(1).copied()),
            counts: stacked.map(|axis| axis.map_or(1, size)),
            stacked,
        })
    }

    /// Returns the number of channels, which are consecutive pages.
    pub(super) fn channel_count(&self) -> u64 {
        self.counts[0]
    }

    /// Returns the order of the axes of an array of `rank` axes in the file, fastest first; `None` if it is the order in
    /// memory. Axes that have one element come last.
    pub(super) fn axis_order(&self, rank: usize) -> Option<Vec<usize>> {
        if self.order.is_sorted() {
            return None;
        }
        let short_axes = (0..rank).filter(|axis| !self.order.contains(axis));
        Some(self.order.iter().copied().chain(short_axes).collect())
    }

    /// Returns the calibration of the stack. Sizes along the axes of space are in one unit; a size that is unknown, or
    /// whose unit does not fit the others, is left out.
    pub(super) fn calibration(&self, axes: &[StackAxis]) -> StackCalibration {
        let [_, slices, frames] = self.stacked;
        let (right, down) = self.page_axes;
        let space = |axis: Option<usize>| {
            axis.and_then(|axis| axes.get(axis)).filter(|axis| axis.kind.is_space() && axis.spacing.is_some())
        };
        let sized = [space(right), space(down), space(slices)];
        let Some(reference) = sized.iter().flatten().next() else {
            return StackCalibration { frame_interval: frame_interval(axes, frames), ..StackCalibration::default() };
        };
        let metres = |axis: &StackAxis| axis.spacing.zip(axis.unit).map(|(spacing, unit)| spacing * unit);
        let smallest = sized.iter().flatten().filter_map(|axis| metres(axis)).fold(f64::INFINITY, f64::min);
        let is_own =
            |(_, metres): &&(&str, f64)| reference.unit.is_some_and(|unit| (unit / *metres - 1.0).abs() < 1e-6);
        let unit = match LENGTH_UNITS.iter().find(is_own) {
            _ if reference.unit.is_none() => ("", 1.0),
            Some(own) => *own,
            // Any other unit is replaced by the largest one in which no size is below 1.
            None => *LENGTH_UNITS.iter().rev().find(|(_, metres)| smallest >= *metres).unwrap_or(&LENGTH_UNITS[0]),
        };
        let fitting = sized.map(|axis| axis.filter(|axis| axis.unit.is_some() == reference.unit.is_some()));
        let [x, y, z] =
            fitting.map(|axis| axis.and_then(|axis| Some(tidied(axis.spacing? * (axis.unit.unwrap_or(1.0) / unit.1)))));
        let origin = fitting.map(|axis| {
            let axis = axis?;
            let pixels = tidied(-axis.position / axis.spacing?);
            Some(pixels).filter(|pixels| pixels.is_finite() && *pixels != 0.0)
        });
        let frame_interval = frame_interval(axes, frames);
        StackCalibration { unit: unit.0, pixel_size: (x, y), spacing: z, frame_interval, origin }
    }

    /// Returns ImageJ's description; empty if there is nothing to describe. `window` is the displayed range.
    pub(super) fn description(&self, calibration: &StackCalibration, window: Option<(f64, f64)>) -> String {
        if self.pages <= 1 && window.is_none() && *calibration == StackCalibration::default() {
            return String::new();
        }
        let mut text = "ImageJ=1.11a\n".to_owned();
        // Writing to a string does not fail.
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(text, "{name}={value}");
        };
        if self.pages > 1 {
            line("images", &self.pages);
            let counts = self.counts;
            let [channels, slices, frames] = counts;
            let is_hyperstack = counts.iter().filter(|count| **count > 1).count() > 1 || slices == 1;
            for (name, count) in [("channels", channels), ("slices", slices), ("frames", frames)] {
                if count > 1 {
                    line(name, &count);
                }
            }
            if is_hyperstack {
                line("hyperstack", &true);
                let is_composite = (2..=MAX_STACK_CHANNELS as u64).contains(&channels);
                line("mode", &if is_composite { "composite" } else { "grayscale" });
            }
        }
        let StackCalibration { unit, spacing, frame_interval, origin, .. } = calibration;
        if !unit.is_empty() {
            line("unit", unit);
        }
        for (name, value) in [
            ("spacing", spacing),
            ("finterval", frame_interval),
            ("xorigin", &origin[0]),
            ("yorigin", &origin[1]),
            ("zorigin", &origin[2]),
        ] {
            if let Some(value) = value {
                line(name, value);
            }
        }
        if self.pages > 1 {
            line("loop", &false);
        }
        if let Some((low, high)) = window {
            line("min", &low);
            line("max", &high);
        }
        text.push('\0');
        text
    }
}

/// Returns the seconds between frames; `None` if they are unknown.
fn frame_interval(axes: &[StackAxis], frames: Option<usize>) -> Option<f64> {
    let axis = axes.get(frames?).filter(|axis| axis.kind == StackAxisKind::Time)?;
    axis.spacing.zip(axis.unit).map(|(spacing, unit)| tidied(spacing * unit))
}

/// Rounds to 12 significant digits, so that 4 nm is not 4.000000000000001 nm.
fn tidied(number: f64) -> f64 {
    format!("{number:.11e}").parse().unwrap_or(number)
}

/// Returns the fraction of two 32-bit numbers that is nearest to a positive number, by its continued fraction. Returns
/// `None` for a number that is too large or too small.
pub(super) fn fraction(number: f64) -> Option<(u32, u32)> {
    if !number.is_finite() || number < 1.0 / f64::from(u32::MAX) || number > f64::from(u32::MAX) {
        return None;
    }
    let (mut previous, mut current) = ((0u64, 1u64), (1u64, 0u64));
    let mut rest = number;
    let mut best = None;
    for _ in 0..40 {
        let whole = whole_part(rest)?;
        let next = (
            whole.checked_mul(current.0)?.checked_add(previous.0)?,
            whole.checked_mul(current.1)?.checked_add(previous.1)?,
        );
        let (Ok(numerator), Ok(denominator)) = (u32::try_from(next.0), u32::try_from(next.1)) else { break };
        best = Some((numerator, denominator)).filter(|(numerator, _)| *numerator > 0).or(best);
        (previous, current) = (current, next);
        let error = (f64::from(numerator) / f64::from(denominator) - number).abs();
        let remainder = rest - rest.floor();
        if error <= number * 1e-12 || remainder <= 0.0 {
            break;
        }
        rest = remainder.recip();
    }
    best
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be below 2^53")]
fn whole_part(number: f64) -> Option<u64> {
    (number < 9e15).then_some(number.floor() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(kind: StackAxisKind) -> StackAxis {
        StackAxis { kind, ..StackAxis::default() }
    }

    fn sized(spacing: f64, unit: f64, position: f64) -> StackAxis {
        StackAxis { spacing: Some(spacing), unit: Some(unit), position, ..StackAxis::default() }
    }

    use StackAxisKind::{Channel as C, Down as D, Right as R, Space as S, Time as T};

    fn layout(shape: &[u64], kinds: &[StackAxisKind]) -> StackLayout {
        let axes: Vec<StackAxis> = kinds.iter().copied().map(axis).collect();
        StackLayout::of("tiff", shape, &axes).unwrap()
    }

    #[test]
    fn pages_are_channels_then_slices_then_frames() {
        for (shape, kinds, order, counts) in [
            (&[9, 8, 2, 3, 4][..], &[S, S, C, S, T][..], &[0, 1, 2, 3, 4][..], [2, 3, 4]),
            (&[9, 8, 3, 2, 4], &[S, S, S, C, T], &[0, 1, 3, 2, 4], [2, 3, 4]),
            (&[2, 9, 8], &[C, S, S], &[1, 2, 0], [2, 1, 1]),
            (&[4, 2, 3, 8, 9], &[T, C, S, S, S], &[2, 3, 1, 4, 0], [2, 9, 4]),
            (&[4, 2, 3, 8, 9], &[T, C, S, D, R], &[4, 3, 1, 2, 0], [2, 3, 4]),
            (&[3, 8, 1], &[S, D, R], &[0, 1], [1, 1, 1]),
            (&[9, 8, 1, 5], &[S, S, S, T], &[0, 1, 3], [1, 1, 5]),
            // Without names, the third axis has the slices.
            (&[9, 8, 3], &[], &[0, 1, 2], [1, 3, 1]),
            (&[9, 8, 3, 4, 2], &[], &[0, 1, 4, 2, 3], [2, 3, 4]),
            // A line through time is a page.
            (&[9, 1, 1, 5], &[S, S, S, T], &[0, 3], [1, 1, 1]),
        ] {
            let layout = layout(shape, kinds);
            assert_eq!((layout.order.as_slice(), layout.counts), (order, counts), "{shape:?} {kinds:?}");
        }
        assert_eq!(layout(&[9, 8, 2, 3, 4], &[S, S, C, S, T]).axis_order(5), None);
        assert_eq!(layout(&[1, 8, 9, 1], &[S, D, R, C]).axis_order(4), Some(vec![2, 1, 0, 3]));
        let refused = StackLayout::of("tiff", &[2; 6], &[]).unwrap_err();
        assert!(refused.contains("five axes"), "{refused}");
    }

    #[test]
    fn the_description_has_what_imagej_reads() {
        let axes = [sized(4.0, 1e-9, 0.0), sized(4.0, 1e-9, 40.0), sized(0.04, 1e-6, -0.08), axis(C)];
        let layout = StackLayout::of("tiff", &[9, 8, 3, 2], &axes).unwrap();
        let calibration = layout.calibration(&axes);
        assert_eq!(calibration.pixel_size, (Some(4.0), Some(4.0)));
        assert_eq!(
            layout.description(&calibration, Some((0.0, 255.5))),
            "ImageJ=1.11a\nimages=6\nchannels=2\nslices=3\nhyperstack=true\nmode=composite\nunit=nm\nspacing=40\n\
             yorigin=-10\nzorigin=2\nloop=false\nmin=0\nmax=255.5\n\0"
        );
        let micrometres = [sized(0.325, 1e-6, 0.0), sized(0.325, 1e-6, 0.0)];
        let calibration = StackLayout::of("tiff", &[9, 8], &micrometres).unwrap().calibration(&micrometres);
        assert_eq!((calibration.unit, calibration.pixel_size), ("\\u00B5m", (Some(0.325), Some(0.325))));
        // Angstroms become nanometres, and sizes in other units follow.
        let other = [sized(25.0, 1e-10, 0.0), sized(0.003, 1e-6, 0.0)];
        let calibration = StackLayout::of("tiff", &[9, 8], &other).unwrap().calibration(&other);
        assert_eq!((calibration.unit, calibration.pixel_size), ("nm", (Some(2.5), Some(3.0))));
        let time = [axis(S), axis(S), StackAxis { kind: T, ..sized(250.0, 1e-3, 0.0) }];
        let layout = StackLayout::of("tiff", &[9, 8, 4], &time).unwrap();
        assert_eq!(
            layout.description(&layout.calibration(&time), None),
            "ImageJ=1.11a\nimages=4\nframes=4\nhyperstack=true\nmode=grayscale\nfinterval=0.25\nloop=false\n\0"
        );
    }

    #[test]
    fn what_is_unknown_stays_unknown() {
        let layout = layout(&[9, 8, 3], &[S, S, S]);
        let calibration = layout.calibration(&[axis(S), axis(S), axis(S)]);
        assert_eq!(calibration, StackCalibration::default());
        assert_eq!(layout.description(&calibration, None), "ImageJ=1.11a\nimages=3\nslices=3\nloop=false\n\0");
        assert_eq!(self::layout(&[9, 8], &[]).description(&StackCalibration::default(), None), "");
        // Sizes without a unit are kept, but sizes in different units are not mixed.
        let mixed = [
            StackAxis { spacing: Some(2.0), ..axis(S) },
            sized(1.0, 1e-9, 0.0),
            StackAxis { spacing: Some(5.0), ..axis(S) },
        ];
        let calibration = layout.calibration(&mixed);
        assert_eq!((calibration.unit, calibration.pixel_size, calibration.spacing), ("", (Some(2.0), None), Some(5.0)));
    }

    #[test]
    fn fractions_are_exact_where_possible() {
        for (number, expected) in
            [(0.25, (1, 4)), (2.5, (5, 2)), (1.0 / 0.325, (40, 13)), (1.0 / 3.0, (1, 3)), (4e9, (4_000_000_000, 1))]
        {
            assert_eq!(fraction(number), Some(expected), "{number}");
        }
        let (numerator, denominator) = fraction(std::f64::consts::PI * 1e-4).unwrap();
        assert!((f64::from(numerator) / f64::from(denominator) - std::f64::consts::PI * 1e-4).abs() < 1e-15);
        for number in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300] {
            assert_eq!(fraction(number), None, "{number}");
        }
    }
}
