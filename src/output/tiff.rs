//! `tiff`: a plane as one page, or a stack of pages, of any element type, uncompressed.
//!
//! This module is used instead of the crate tiff, which puts a directory before every page. ImageJ reads a stack as one
//! contiguous run of pages from the first one, so all directories must come before the elements. The elements are then
//! sent without a copy, or in bands.

use bytes::Bytes;

use super::encoding::{EncodeError, EncodeOptions, element_count};
use super::image_stack::{StackCalibration, StackLayout, fraction};
use super::imagej_metadata::{BYTE_COUNTS_TAG, DATA_TAG, ImagejMetadata};
use super::{Format, StreamedFormat};
use n5_format::{Array, DataType};

/// Directories of all pages, then the elements of all pages without gaps.
///
/// Of the axes longer than 1, the first runs to the right, the second down, and the others across the pages, unless
/// axes are known to be x and y. Axes that are known to be channels or time are pages: channels first, then slices,
/// then frames, as ImageJ orders them. The elements are sent in this order. The file is little-endian, has one strip per
/// page, and shows 0 as black. A file of up to 4 GiB is a classic TIFF, with a description from which ImageJ takes the
/// dimensions and the calibration, and with the colours, ranges and names of channels. A larger file is a BigTIFF.
///
/// Source: TIFF 6.0 §2 and §19 (`SampleFormat`); BigTIFF: <https://www.awaresystems.be/imaging/tiff/bigtiff.html>.
#[derive(Debug)]
pub(super) struct TiffFormat;

/// Number of entries of a directory, without the description and the resolution.
const ENTRIES: u64 = 10;

/// Number of entries that describe the resolution: along both axes, and its unit.
const RESOLUTION_ENTRIES: u64 = 3;

/// Alignment of the elements in bytes.
const ALIGNMENT: u64 = 16;

/// Number of entries of ImageJ's metadata in the first directory.
const METADATA_ENTRIES: u64 = 2;

/// Types of directory values. Source: TIFF 6.0 §2; BigTIFF.
const BYTE: u16 = 1;
const ASCII: u16 = 2;
const SHORT: u16 = 3;
const LONG: u16 = 4;
const RATIONAL: u16 = 5;
const LONG8: u16 = 16;

impl Format for TiffFormat {
    fn name(&self) -> &'static str {
        "tiff"
    }

    fn file_suffix(&self) -> &'static str {
        "tif"
    }

    fn media_type(&self) -> &'static str {
        "image/tiff"
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["window"]
    }

    fn is_calibrated(&self) -> bool {
        true
    }

    fn supports(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Result<(), String> {
        ImageStack::of(shape, data_type, options).map(|_| ())
    }

    /// Returns the size of the directories of all pages and, if their order is not that in memory, of the rearranged
    /// elements.
    fn encoder_bytes(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> u64 {
        let elements = element_count(shape);
        let Some(layout) = StackLayout::of("tiff", shape, &options.axes).ok().filter(|_| elements < u64::MAX) else {
            return u64::MAX;
        };
        let directory = directory_bytes(true, ENTRIES.saturating_add(RESOLUTION_ENTRIES));
        let metadata = ImagejMetadata::of(&options.stack_channels, layout.channel_count(), layout.pages);
        let metadata_bytes = metadata.map_or(0, |metadata| {
            metadata.count_of_byte_counts().saturating_mul(4).saturating_add(metadata.data_bytes())
        });
        let header_bytes = u64::from(layout.pages).saturating_mul(directory).saturating_add(1024);
        let header_bytes = header_bytes.saturating_add(metadata_bytes);
        let is_rearranged = layout.axis_order(shape.len()).is_some();
        let rearranged_bytes = if is_rearranged { data_type.size_bytes().unwrap_or(1) as u64 } else { 0 };
        header_bytes.saturating_add(elements.saturating_mul(rearranged_bytes))
    }

    fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
        self.encode_whole(array, options)
    }

    fn as_streamed(&self) -> Option<&dyn StreamedFormat> {
        Some(self)
    }
}

impl StreamedFormat for TiffFormat {
    fn header(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Option<Bytes> {
        let stack = ImageStack::of(shape, data_type, options).ok()?;
        stack.header(&stack.file_layout()?).map(Bytes::from)
    }

    fn header_bytes(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Option<u64> {
        let stack = ImageStack::of(shape, data_type, options).ok()?;
        stack.file_layout().map(|layout| layout.first_page_offset)
    }

    fn axis_order(&self, shape: &[u64], options: &EncodeOptions) -> Option<Vec<usize>> {
        StackLayout::of(self.name(), shape, &options.axes).ok()?.axis_order(shape.len())
    }
}

/// Properties that all pages share.
struct ImageStack {
    layout: StackLayout,
    calibration: StackCalibration,
    /// Displayed range.
    window: Option<(f64, f64)>,
    /// Display of the channels.
    metadata: Option<ImagejMetadata>,
    /// Pixels per unit of length along both axes, as fractions.
    resolution: Option<[(u32, u32); 2]>,
    bits: u16,
    /// 1 for unsigned, 2 for signed, 3 for floating-point. Source: TIFF 6.0 §19.
    sample_format: u16,
    page_bytes: u64,
}

/// Version of the file and positions in it. The directories come first, then the description, then the elements.
struct FileLayout {
    is_big: bool,
    /// ImageJ's description of a stack; empty in the file of a single page and in a BigTIFF.
    description: String,
    description_offset: u64,
    /// Position of the resolution in a classic TIFF; `None` if it is unknown. A BigTIFF has it in the directories.
    resolution_offset: Option<u64>,
    /// Position of ImageJ's metadata in a classic TIFF, first the lengths, then the data; `None` if there are none.
    metadata_offset: Option<u64>,
    /// Position of the first element, which is the length of the header.
    first_page_offset: u64,
}

/// Returns the size in bytes of a directory: the number of entries, the entries, the offset of the next directory.
fn directory_bytes(is_big: bool, entries: u64) -> u64 {
    let (count, entry, next) = if is_big { (8u64, 20u64, 8u64) } else { (2, 12, 4) };
    entries.saturating_mul(entry).saturating_add(count).saturating_add(next)
}

/// Returns the size in bytes of everything before the first directory.
fn file_header_bytes(is_big: bool) -> u64 {
    if is_big { 16 } else { 8 }
}

/// Appends an offset or a number of bytes.
fn put_offset(out: &mut Vec<u8>, is_big: bool, value: u64) -> Option<()> {
    if is_big {
        out.extend_from_slice(&value.to_le_bytes());
    } else {
        out.extend_from_slice(&u32::try_from(value).ok()?.to_le_bytes());
    }
    Some(())
}

impl ImageStack {
    fn of(shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Result<Self, String> {
        let layout = StackLayout::of("tiff", shape, &options.axes)?;
        let calibration = layout.calibration(&options.axes);
        let per_unit = |size: Option<f64>| size.and_then(|size| fraction(size.recip()));
        let (x, y) = calibration.pixel_size;
        // ImageJ takes a missing resolution for 1 pixel per unit.
        let resolution = match (per_unit(x), per_unit(y)) {
            (None, None) => None,
            (x, y) => Some([x.unwrap_or((1, 1)), y.unwrap_or((1, 1))]),
        };
        let sample_format = match data_type {
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => 1,
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => 2,
            DataType::Float32 | DataType::Float64 => 3,
            DataType::Other(_) => return Err(format!("tiff does not support {data_type}")),
        };
        let width_bytes = data_type.size_bytes().unwrap_or(1);
        let bits = u16::try_from(width_bytes.saturating_mul(8)).unwrap_or(u16::MAX);
        let page_pixels = u64::from(layout.width).saturating_mul(layout.height.into());
        let page_bytes = page_pixels.saturating_mul(width_bytes as u64);
        let window = options.window;
        let metadata = ImagejMetadata::of(&options.stack_channels, layout.channel_count(), layout.pages);
        Ok(Self { layout, calibration, window, metadata, resolution, bits, sample_format, page_bytes })
    }

    /// Returns the layout of a classic TIFF, or of a BigTIFF if the offsets exceed 32 bits. Returns `None` if they
    /// exceed 64 bits.
    fn file_layout(&self) -> Option<FileLayout> {
        self.layout_of(false).or_else(|| self.layout_of(true))
    }

    /// Returns the layout of a BigTIFF or a classic TIFF; `None` if its offsets exceed 64 or 32 bits.
    fn layout_of(&self, is_big: bool) -> Option<FileLayout> {
        // Only a classic TIFF has ImageJ's description, because ImageJ does not support BigTIFF.
        let description = if is_big { String::new() } else { self.layout.description(&self.calibration, self.window) };
        let entries = self.entries();
        let metadata = self.metadata.as_ref().filter(|_| !is_big);
        let first_entries = entries
            .checked_add(u64::from(!description.is_empty()))?
            .checked_add(if metadata.is_some() { METADATA_ENTRIES } else { 0 })?;
        let other_directories_bytes =
            directory_bytes(is_big, entries).checked_mul(u64::from(self.layout.pages).checked_sub(1)?)?;
        let description_offset = file_header_bytes(is_big)
            .checked_add(directory_bytes(is_big, first_entries))?
            .checked_add(other_directories_bytes)?;
        let description_end = description_offset.checked_add(description.len() as u64)?.checked_next_multiple_of(8)?;
        let resolution_offset = self.resolution.filter(|_| !is_big).map(|_| description_end);
        let resolution_bytes = if resolution_offset.is_some() { 16 } else { 0 };
        let resolution_end = description_end.checked_add(resolution_bytes)?;
        let metadata_end = match metadata {
            None => resolution_end,
            Some(metadata) => resolution_end
                .checked_add(metadata.count_of_byte_counts().checked_mul(4)?)?
                .checked_add(metadata.data_bytes())?,
        };
        let first_page_offset = metadata_end.checked_next_multiple_of(ALIGNMENT)?;
        let file_bytes = self.page_bytes.checked_mul(self.layout.pages.into())?.checked_add(first_page_offset)?;
        let is_addressable = is_big || u32::try_from(file_bytes).is_ok();
        is_addressable.then_some(FileLayout {
            is_big,
            description,
            description_offset,
            resolution_offset,
            metadata_offset: metadata.map(|_| resolution_end),
            first_page_offset,
        })
    }

    /// Returns the number of entries of a directory, without the description and ImageJ's metadata.
    fn entries(&self) -> u64 {
        if self.resolution.is_some() { ENTRIES.saturating_add(RESOLUTION_ENTRIES) } else { ENTRIES }
    }

    /// Returns the bytes before the elements in a file with this layout.
    fn header(&self, layout: &FileLayout) -> Option<Vec<u8>> {
        let FileLayout { is_big, ref description, first_page_offset, .. } = *layout;
        let mut out = Vec::with_capacity(usize::try_from(first_page_offset).ok()?);
        out.extend_from_slice(b"II");
        if is_big {
            out.extend_from_slice(&[43, 0, 8, 0, 0, 0]);
        } else {
            out.extend_from_slice(&[42, 0]);
        }
        put_offset(&mut out, is_big, file_header_bytes(is_big))?;
        for page in 0..self.layout.pages {
            let strip_offset = self.page_bytes.checked_mul(page.into())?.checked_add(first_page_offset)?;
            self.put_directory(&mut out, layout, strip_offset, page)?;
        }
        out.extend_from_slice(description.as_bytes());
        if let (Some(offset), Some(resolution)) = (layout.resolution_offset, self.resolution) {
            out.resize(usize::try_from(offset).ok()?, 0);
            for (numerator, denominator) in resolution {
                out.extend_from_slice(&numerator.to_le_bytes());
                out.extend_from_slice(&denominator.to_le_bytes());
            }
        }
        if let (Some(offset), Some(metadata)) = (layout.metadata_offset, &self.metadata) {
            out.resize(usize::try_from(offset).ok()?, 0);
            metadata.put_byte_counts(&mut out);
            metadata.put_data(&mut out);
        }
        out.resize(usize::try_from(first_page_offset).ok()?, 0);
        Some(out)
    }

    /// Appends the directory of a page whose elements are at `strip_offset`. Entries are in ascending order of their
    /// tags.
    fn put_directory(&self, out: &mut Vec<u8>, layout: &FileLayout, strip_offset: u64, page: u32) -> Option<()> {
        let is_big = layout.is_big;
        let description = Some(&layout.description).filter(|description| page == 0 && !description.is_empty());
        let metadata = layout.metadata_offset.zip(self.metadata.as_ref()).filter(|_| page == 0);
        let entries = self
            .entries()
            .checked_add(u64::from(description.is_some()))?
            .checked_add(if metadata.is_some() { METADATA_ENTRIES } else { 0 })?;
        if is_big {
            out.extend_from_slice(&entries.to_le_bytes());
        } else {
            out.extend_from_slice(&u16::try_from(entries).ok()?.to_le_bytes());
        }
        let offset_type = if is_big { LONG8 } else { LONG };
        // `value` is the value itself, or its offset in the file if it does not fit into the entry.
        let mut entry = |tag: u16, kind: u16, count, value| {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&kind.to_le_bytes());
            put_offset(out, is_big, count)?;
            // In little-endian order, a value shorter than its field is at the start, followed by zeros.
            put_offset(out, is_big, value)
        };
        entry(256, LONG, 1, self.layout.width.into())?;
        entry(257, LONG, 1, self.layout.height.into())?;
        entry(258, SHORT, 1, self.bits.into())?;
        // Compression: none. PhotometricInterpretation: black is zero.
        entry(259, SHORT, 1, 1)?;
        entry(262, SHORT, 1, 1)?;
        if let Some(description) = description {
            entry(270, ASCII, description.len() as u64, layout.description_offset)?;
        }
        entry(273, offset_type, 1, strip_offset)?;
        entry(277, SHORT, 1, 1)?;
        entry(278, LONG, 1, self.layout.height.into())?;
        entry(279, offset_type, 1, self.page_bytes)?;
        if let Some(resolution) = self.resolution {
            for (tag, (numerator, denominator)) in (282..).zip(resolution) {
                let inline = u64::from(denominator) << 32 | u64::from(numerator);
                let offset =
                    layout.resolution_offset.and_then(|offset| offset.checked_add(if tag == 282 { 0 } else { 8 }));
                entry(tag, RATIONAL, 1, offset.unwrap_or(inline))?;
            }
            // Resolution unit: none of those that TIFF knows. ImageJ's description has the unit.
            entry(296, SHORT, 1, 1)?;
        }
        entry(339, SHORT, 1, self.sample_format.into())?;
        if let Some((offset, metadata)) = metadata {
            let count = metadata.count_of_byte_counts();
            entry(BYTE_COUNTS_TAG, LONG, count, offset)?;
            entry(DATA_TAG, BYTE, metadata.data_bytes(), offset.checked_add(count.checked_mul(4)?)?)?;
        }
        let field = if is_big { 8 } else { 4 };
        let is_last = page.checked_add(1) == Some(self.layout.pages);
        let next = if is_last { 0 } else { (out.len() as u64).checked_add(field)? };
        put_offset(out, is_big, next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check_supported;
    use super::super::encoding::{StackAxis, StackAxisKind, StackChannel};
    use super::*;

    /// Returns the tags and values of every page, parsed according to the specification.
    fn pages(file: &[u8]) -> Vec<Vec<(u16, u64)>> {
        let is_big = file[2] == 43;
        let number = |at: usize, bytes: usize| {
            file[at..at + bytes].iter().rev().fold(0u64, |n, byte| (n << 8) | u64::from(*byte))
        };
        let (count, field) = if is_big { (8, 8) } else { (2, 4) };
        let mut next = number(if is_big { 8 } else { 4 }, field);
        let mut pages = Vec::new();
        while next != 0 {
            let directory_offset = usize::try_from(next).unwrap();
            let entries = usize::try_from(number(directory_offset, count)).unwrap();
            let size = 4 + 2 * field;
            let tags: Vec<(u16, u64)> = (0..entries)
                .map(|n| directory_offset + count + n * size)
                .map(|entry_offset| {
                    (u16::try_from(number(entry_offset, 2)).unwrap(), number(entry_offset + 4 + field, field))
                })
                .collect();
            assert!(tags.is_sorted_by(|a, b| a.0 < b.0), "{tags:?}");
            pages.push(tags);
            next = number(directory_offset + count + entries * size, field);
        }
        pages
    }

    fn value(page: &[(u16, u64)], tag: u16) -> u64 {
        page.iter().find(|entry| entry.0 == tag).unwrap().1
    }

    #[test]
    fn a_stack_has_a_page_for_each_plane_and_its_elements_are_not_copied() {
        let data: Bytes = (0..48u8).collect::<Vec<u8>>().into();
        let array = Array { shape: [2, 1, 3, 4].as_slice().into(), data_type: DataType::Int16, data: data.clone() };
        let parts = TiffFormat.encode(&array, &EncodeOptions::default()).unwrap();
        assert_eq!(parts[1].as_ptr(), data.as_ptr());
        assert_eq!(parts[0].len() % 16, 0);
        let file = parts.concat();
        let pages = pages(&file);
        assert_eq!(pages.len(), 4);
        for (n, page) in pages.iter().enumerate() {
            assert_eq!([256, 257, 258, 278, 279, 339].map(|tag| value(page, tag)), [2, 3, 16, 3, 12, 2]);
            let offset = usize::try_from(value(page, 273)).unwrap();
            assert_eq!(file[offset..offset + 12], data[n * 12..][..12]);
        }
        let description_offset = usize::try_from(value(&pages[0], 270)).unwrap();
        assert!(file[description_offset..].starts_with(b"ImageJ=1.11a\nimages=4\nslices=4\nloop=false\n\0"));
    }

    #[test]
    fn a_calibrated_file_has_a_resolution_on_every_page_and_elements_in_the_order_of_imagej() {
        let sized = |kind, spacing| StackAxis { kind, spacing, unit: Some(1e-9), position: 0.0 };
        let axes = vec![
            sized(StackAxisKind::Space, Some(4.0)),
            sized(StackAxisKind::Space, Some(2.5)),
            sized(StackAxisKind::Space, Some(30.0)),
            sized(StackAxisKind::Channel, None),
        ];
        let options = EncodeOptions { axes, window: Some((1.0, 9.0)), ..EncodeOptions::default() };
        let data: Bytes = (0..24u8).collect::<Vec<u8>>().into();
        let shape = [2, 2, 3, 2];
        assert_eq!(TiffFormat.axis_order(&shape, &options), Some(vec![0, 1, 3, 2]));
        let array = Array { shape: shape.as_slice().into(), data_type: DataType::UInt8, data };
        let file = TiffFormat.encode(&array, &options).unwrap().concat();
        let pages = pages(&file);
        assert_eq!(pages.len(), 6);
        for (n, page) in pages.iter().enumerate() {
            let rational = |tag| {
                let at = usize::try_from(value(page, tag)).unwrap();
                [at, at + 4].map(|at| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()))
            };
            assert_eq!((rational(282), rational(283), value(page, 296)), ([1, 4], [2, 5], 1));
            let (slice, channel) = (n / 2, n % 2);
            let offset = usize::try_from(value(page, 273)).unwrap();
            assert_eq!(usize::from(file[offset]), channel * 12 + slice * 4);
        }
        // The same without the third axis is sent in the order in memory.
        let axes = vec![options.axes[0].clone(), options.axes[1].clone(), options.axes[3].clone()];
        let options = EncodeOptions { axes, ..options };
        assert_eq!(TiffFormat.axis_order(&[2, 2, 3], &options), None);
        // A BigTIFF has the resolution in its directories.
        let header = TiffFormat.header(&[1 << 16, 1 << 14, 5], &DataType::UInt8, &options).unwrap();
        let bytes = TiffFormat.header_bytes(&[1 << 16, 1 << 14, 5], &DataType::UInt8, &options).unwrap();
        assert_eq!((header[2], header.len() as u64), (43, bytes));
        assert_eq!(value(&self::pages(&header)[4], 282), 4 << 32 | 1);
    }

    #[test]
    fn the_first_directory_of_a_classic_tiff_has_the_display_of_the_channels() {
        let kinds = [StackAxisKind::Space, StackAxisKind::Space, StackAxisKind::Channel];
        let axes = kinds.iter().map(|kind| StackAxis { kind: *kind, ..StackAxis::default() }).collect();
        let channel =
            |name: &str| StackChannel { name: name.to_owned(), colour: [255, 0, 0], window: Some((1.0, 2.0)) };
        let stack_channels = vec![channel("a"), channel("b")];
        let options = EncodeOptions { axes, stack_channels, ..EncodeOptions::default() };
        let header = TiffFormat.header(&[4, 4, 2], &DataType::UInt16, &options).unwrap();
        assert_eq!(TiffFormat.header_bytes(&[4, 4, 2], &DataType::UInt16, &options), Some(header.len() as u64));
        assert!(header.len() as u64 <= TiffFormat.encoder_bytes(&[4, 4, 2], &DataType::UInt16, &options));
        let pages = pages(&header);
        let [counts, data] = [50838, 50839].map(|tag| usize::try_from(value(&pages[0], tag)).unwrap());
        assert_eq!((header[counts], &header[data..data + 8]), (28, &b"JIJIlbal"[..]));
        assert_eq!(u64::try_from(header.len()).unwrap(), value(&pages[0], 273));
        assert!(pages[1].iter().all(|entry| entry.0 < 50000));
        let big = TiffFormat.header(&[1 << 16, 1 << 15, 2], &DataType::UInt16, &options).unwrap();
        assert!(big[2] == 43 && self::pages(&big)[0].iter().all(|entry| entry.0 < 50000));
    }

    #[test]
    fn pages_of_reversed_axes_are_transposed() {
        use StackAxisKind::{Channel, Down, Right, Space};

        let pixels = |shape: &[u64], kinds: &[StackAxisKind]| {
            let axes = kinds.iter().map(|kind| StackAxis { kind: *kind, ..StackAxis::default() }).collect();
            let options = EncodeOptions { axes, ..EncodeOptions::default() };
            let data: Bytes = (0..24u8).collect::<Vec<u8>>().into();
            let array = Array { shape: shape.into(), data_type: DataType::UInt16, data };
            TiffFormat.encode(&array, &options).unwrap()[1].to_vec()
        };
        let bytes = |elements: [u8; 6]| elements.iter().flat_map(|n| [2 * n, 2 * n + 1]).collect::<Vec<u8>>();
        // Axes z, y, x of sizes 2, 2, 3: neighbours along x are four elements apart.
        assert_eq!(pixels(&[2, 2, 3], &[Space, Down, Right])[..12], bytes([0, 4, 8, 2, 6, 10]));
        assert_eq!(pixels(&[2, 2, 3], &[Channel, Space, Space])[..12], bytes([0, 2, 4, 6, 8, 10]));
    }

    #[test]
    fn every_type_states_its_bits_and_sample_format() {
        for (name, bits, kind) in [("uint8", 8, 1), ("int64", 64, 2), ("float32", 32, 3), ("float64", 64, 3)] {
            let header = TiffFormat.header(&[5], &DataType::from_name(name), &EncodeOptions::default()).unwrap();
            let page = &pages(&header)[0];
            assert_eq!((value(page, 258), value(page, 339), value(page, 257)), (bits, kind, 1));
            assert!(page.iter().all(|entry| entry.0 != 270), "a single page is not a stack");
        }
    }

    #[test]
    fn a_file_beyond_4_gib_is_a_bigtiff() {
        let shape = [1 << 16, 1 << 14, 5];
        let classic = TiffFormat.header(&[1 << 16, 1 << 14, 3], &DataType::UInt8, &EncodeOptions::default()).unwrap();
        assert_eq!(classic[2], 42);
        let header = TiffFormat.header(&shape, &DataType::UInt8, &EncodeOptions::default()).unwrap();
        assert_eq!(&header[..8], b"II\x2b\0\x08\0\0\0");
        let pages = pages(&header);
        assert_eq!(pages.len(), 5);
        assert_eq!(value(&pages[4], 273), header.len() as u64 + 4 * (1 << 30));
        assert!(header.len() as u64 <= TiffFormat.encoder_bytes(&shape, &DataType::UInt8, &EncodeOptions::default()));
    }

    #[test]
    fn shapes_that_are_not_stacks_are_refused_with_a_remedy() {
        let refusal = |shape: &[u64]| {
            check_supported(&TiffFormat, shape, &DataType::UInt8, &EncodeOptions::default()).unwrap_err()
        };
        assert!(refusal(&[2, 2, 2, 2, 2, 2]).contains("five axes"));
        assert!(refusal(&[2, 0]).contains("empty"));
        assert!(refusal(&[2, 2, 65_536]).contains("65535 pages"));
        assert!(refusal(&[1 << 31]).contains("2147483647"));
    }
}
