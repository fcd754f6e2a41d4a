//! `tiff`: a plane as one page, or a stack of pages, of any element type, uncompressed.
//!
//! This module is used instead of the crate tiff, which puts a directory before every page. ImageJ reads a stack as one
//! contiguous run of pages from the first one, so all directories must come before the elements. The elements are then
//! sent as they are in memory: without a copy, and in bands.

use bytes::Bytes;

use super::encoding::{EncodeError, EncodeOptions, element_count};
use super::image::long_axes;
use super::{Format, StreamedFormat};
use n5_format::{Array, DataType};

/// Directories of all pages, then the elements of all pages without gaps.
///
/// Of the axes longer than 1, the first runs to the right, the second down, and the third across the pages. The file is
/// little-endian, has one strip per page, and shows 0 as black. A file of up to 4 GiB is a classic TIFF, with a
/// description that makes ImageJ show a stack. A larger file is a BigTIFF.
///
/// Source: TIFF 6.0 §2 and §19 (`SampleFormat`); BigTIFF: <https://www.awaresystems.be/imaging/tiff/bigtiff.html>.
#[derive(Debug)]
pub(super) struct TiffFormat;

/// Maximum number of pages, which keeps the directories small relative to the images. ImageJ does not support more.
const MAX_PAGES: u32 = 65_535;

/// Maximum number of pixels per side.
const MAX_SIDE: u64 = (1 << 31) - 1;

/// Number of entries of a directory, without the description.
const ENTRIES: u64 = 10;

/// Alignment of the elements in bytes.
const ALIGNMENT: u64 = 16;

/// Types of directory values. Source: TIFF 6.0 §2; BigTIFF.
const ASCII: u16 = 2;
const SHORT: u16 = 3;
const LONG: u16 = 4;
const LONG8: u16 = 16;

impl Format for TiffFormat {
    fn name(&self) -> &'static str {
        "tiff"
    }

    fn media_type(&self) -> &'static str {
        "image/tiff"
    }

    fn supports(&self, shape: &[u64], data_type: &DataType, _: &EncodeOptions) -> Result<(), String> {
        ImageStack::of(shape, data_type).map(|_| ())
    }

    /// Returns the size of the directories of all pages.
    fn encoder_bytes(&self, shape: &[u64], _: &DataType, _: &EncodeOptions) -> u64 {
        let pages = shape.iter().copied().filter(|size| *size > 1).nth(2).unwrap_or(1);
        if element_count(shape) == u64::MAX {
            u64::MAX
        } else {
            pages.saturating_mul(directory_bytes(true, ENTRIES)).saturating_add(512)
        }
    }

    fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
        self.encode_whole(array, options)
    }

    fn as_streamed(&self) -> Option<&dyn StreamedFormat> {
        Some(self)
    }
}

impl StreamedFormat for TiffFormat {
    fn header(&self, shape: &[u64], data_type: &DataType, _: &EncodeOptions) -> Option<Bytes> {
        let stack = ImageStack::of(shape, data_type).ok()?;
        stack.header(&stack.layout()?).map(Bytes::from)
    }

    fn header_bytes(&self, shape: &[u64], data_type: &DataType, _: &EncodeOptions) -> Option<u64> {
        ImageStack::of(shape, data_type).ok()?.layout().map(|layout| layout.first_page_offset)
    }
}

/// Properties that all pages share.
struct ImageStack {
    width: u32,
    height: u32,
    pages: u32,
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
    fn of(shape: &[u64], data_type: &DataType) -> Result<Self, String> {
        let sides = long_axes("tiff", shape, MAX_SIDE)?;
        let mut sides = sides.into_iter();
        let width = sides.next().unwrap_or(1);
        let height = sides.next().unwrap_or(1);
        let pages = sides.next().unwrap_or(1);
        if sides.next().is_some() {
            return Err(format!(
                "tiff needs a plane or a stack with at most three axes longer than 1, but the shape is {shape:?}; \
                 reduce the other axes to 1 with start and size"
            ));
        }
        if pages > MAX_PAGES {
            return Err(format!(
                "a tiff has at most {MAX_PAGES} pages here, but the shape is {shape:?}; request a smaller region"
            ));
        }
        let sample_format = match data_type {
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => 1,
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => 2,
            DataType::Float32 | DataType::Float64 => 3,
            DataType::Other(_) => return Err(format!("tiff does not support {data_type}")),
        };
        let width_bytes = data_type.size_bytes().unwrap_or(1);
        let bits = u16::try_from(width_bytes.saturating_mul(8)).unwrap_or(u16::MAX);
        let page_pixels = u64::from(width).saturating_mul(height.into());
        let page_bytes = page_pixels.saturating_mul(width_bytes as u64);
        Ok(Self { width, height, pages, bits, sample_format, page_bytes })
    }

    /// Returns the layout of a classic TIFF, or of a BigTIFF if the offsets exceed 32 bits. Returns `None` if they
    /// exceed 64 bits.
    fn layout(&self) -> Option<FileLayout> {
        self.layout_of(false).or_else(|| self.layout_of(true))
    }

    /// Returns the layout of a BigTIFF or a classic TIFF; `None` if its offsets exceed 64 or 32 bits.
    fn layout_of(&self, is_big: bool) -> Option<FileLayout> {
        // Only a classic TIFF has ImageJ's description, because ImageJ does not support BigTIFF.
        let description = if self.pages > 1 && !is_big {
            format!("ImageJ=1.11a\nimages={0}\nslices={0}\nloop=false\n\0", self.pages)
        } else {
            String::new()
        };
        let first_entries = if description.is_empty() { ENTRIES } else { ENTRIES.checked_add(1)? };
        let other_directories_bytes =
            directory_bytes(is_big, ENTRIES).checked_mul(u64::from(self.pages).checked_sub(1)?)?;
        let description_offset = file_header_bytes(is_big)
            .checked_add(directory_bytes(is_big, first_entries))?
            .checked_add(other_directories_bytes)?;
        let first_page_offset =
            description_offset.checked_add(description.len() as u64)?.checked_next_multiple_of(ALIGNMENT)?;
        let file_bytes = self.page_bytes.checked_mul(self.pages.into())?.checked_add(first_page_offset)?;
        let is_addressable = is_big || u32::try_from(file_bytes).is_ok();
        is_addressable.then_some(FileLayout { is_big, description, description_offset, first_page_offset })
    }

    /// Returns all bytes before the elements.
    fn header(&self, layout: &FileLayout) -> Option<Vec<u8>> {
        let FileLayout { is_big, ref description, description_offset, first_page_offset } = *layout;
        let mut out = Vec::with_capacity(usize::try_from(first_page_offset).ok()?);
        out.extend_from_slice(b"II");
        if is_big {
            out.extend_from_slice(&[43, 0, 8, 0, 0, 0]);
        } else {
            out.extend_from_slice(&[42, 0]);
        }
        put_offset(&mut out, is_big, file_header_bytes(is_big))?;
        for page in 0..self.pages {
            let strip_offset = self.page_bytes.checked_mul(page.into())?.checked_add(first_page_offset)?;
            let description_entry =
                (page == 0 && !description.is_empty()).then_some((description.len() as u64, description_offset));
            let is_last = page.checked_add(1) == Some(self.pages);
            self.put_directory(&mut out, is_big, strip_offset, description_entry, is_last)?;
        }
        out.extend_from_slice(description.as_bytes());
        out.resize(usize::try_from(first_page_offset).ok()?, 0);
        Some(out)
    }

    /// Appends the directory of a page whose elements are at `strip_offset`. Entries are in ascending order of their
    /// tags.
    fn put_directory(
        &self,
        out: &mut Vec<u8>,
        is_big: bool,
        strip_offset: u64,
        description: Option<(u64, u64)>,
        is_last: bool,
    ) -> Option<()> {
        let entries = if description.is_some() { ENTRIES.checked_add(1)? } else { ENTRIES };
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
        entry(256, LONG, 1, self.width.into())?;
        entry(257, LONG, 1, self.height.into())?;
        entry(258, SHORT, 1, self.bits.into())?;
        // Compression: none. PhotometricInterpretation: black is zero.
        entry(259, SHORT, 1, 1)?;
        entry(262, SHORT, 1, 1)?;
        if let Some((count, offset)) = description {
            entry(270, ASCII, count, offset)?;
        }
        entry(273, offset_type, 1, strip_offset)?;
        entry(277, SHORT, 1, 1)?;
        entry(278, LONG, 1, self.height.into())?;
        entry(279, offset_type, 1, self.page_bytes)?;
        entry(339, SHORT, 1, self.sample_format.into())?;
        let field = if is_big { 8 } else { 4 };
        let next = if is_last { 0 } else { (out.len() as u64).checked_add(field)? };
        put_offset(out, is_big, next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check_supported;
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
        assert!(refusal(&[2, 2, 2, 2]).contains("three axes"));
        assert!(refusal(&[2, 0]).contains("empty"));
        assert!(refusal(&[2, 2, 65_536]).contains("65535 pages"));
        assert!(refusal(&[1 << 31]).contains("2147483647"));
    }
}
