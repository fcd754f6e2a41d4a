//! Which answers are compressed on their way: documents always, whole slices by configuration, data as
//! stored never.

use std::io::Write;

use axum::http::header::ACCEPT_ENCODING;
use axum::http::{HeaderMap, Response};
use bytes::Bytes;
use tower_http::compression::predicate::Predicate;

use crate::output::{Format, weight_of};

/// Marks an answer as a document that may be compressed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compressible;

/// Compresses marked answers only: blocks and attributes leave byte for byte, with their length.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnlyMarked;

impl Predicate for OnlyMarked {
    fn should_compress<B: http_body::Body>(&self, response: &Response<B>) -> bool {
        response.extensions().get::<Compressible>().is_some()
    }
}

/// A content coding of whole slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Zstd,
    Brotli,
    Gzip,
}

impl Encoding {
    /// Best first, where a client likes several equally.
    const ALL: [Self; 3] = [Self::Zstd, Self::Gzip, Self::Brotli];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// `parts` one after the other, compressed for speed.
    pub(super) fn compress(self, parts: &[Bytes]) -> std::io::Result<Bytes> {
        let out = Vec::new();
        match self {
            Self::Zstd => {
                let mut encoder = zstd::Encoder::new(out, 1)?;
                parts.iter().try_for_each(|part| encoder.write_all(part))?;
                Ok(encoder.finish()?.into())
            }
            Self::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::fast());
                parts.iter().try_for_each(|part| encoder.write_all(part))?;
                Ok(encoder.finish()?.into())
            }
            Self::Brotli => {
                let mut encoder = brotli::CompressorWriter::new(out, 1 << 16, 1, 20);
                parts.iter().try_for_each(|part| encoder.write_all(part))?;
                Ok(encoder.into_inner().into())
            }
        }
    }
}

/// Whether a format gains from compression: `npy` stays as `numpy.load` wants it, `png` is compressed.
pub(super) fn is_worthwhile(format: &dyn Format) -> bool {
    matches!(format.name(), "raw" | "json")
}

/// Upper bound of what compressing `bytes` allocates: the result, were it incompressible, and the
/// encoder's window.
pub(super) fn extra_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 64).saturating_add(4 << 20)
}

/// The coding that `Accept-Encoding` likes best; `None` for none.
pub(super) fn negotiate(headers: &HeaderMap) -> Option<Encoding> {
    let accepted = headers.get(ACCEPT_ENCODING)?.to_str().ok()?;
    // Codings are weighed as media types are; each becomes one of a common type.
    let ranges: Vec<String> = accepted
        .split(',')
        .map(str::trim)
        .filter(|coding| !coding.is_empty())
        .map(|coding| format!("coding/{coding}"))
        .collect();
    let ranges = ranges.join(", ");
    let weighed =
        Encoding::ALL.into_iter().map(|coding| (weight_of(&format!("coding/{}", coding.name()), &ranges), coding));
    let best = weighed.rev().filter(|(weight, _)| *weight > 0).max_by_key(|(weight, _)| *weight);
    best.map(|(_, coding)| coding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(accept: &str) -> Option<&'static str> {
        let headers = [(ACCEPT_ENCODING, accept.parse().unwrap())].into_iter().collect();
        negotiate(&headers).map(Encoding::name)
    }

    #[test]
    fn the_coding_that_the_client_weighs_highest_is_chosen() {
        assert_eq!(chosen("gzip, br"), Some("gzip"));
        assert_eq!(chosen("gzip;q=0.5, br"), Some("br"));
        assert_eq!(chosen("gzip, deflate, br, zstd"), Some("zstd"));
        assert_eq!(chosen("gzip;q=0"), None);
        assert_eq!(chosen("identity"), None);
        assert_eq!(chosen("*"), Some("zstd"));
        assert_eq!(chosen("deflate"), None);
        assert_eq!(chosen(""), None);
    }

    #[test]
    fn what_is_compressed_comes_back() {
        let parts = [Bytes::from_static(b"header"), Bytes::from(vec![7; 10_000])];
        let whole: Vec<u8> = parts.concat();
        let gzip = Encoding::Gzip.compress(&parts).unwrap();
        let mut back = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&gzip[..]), &mut back).unwrap();
        assert_eq!(back, whole);
        assert_eq!(zstd::decode_all(&Encoding::Zstd.compress(&parts).unwrap()[..]).unwrap(), whole);
        let brotli = Encoding::Brotli.compress(&parts).unwrap();
        let mut back = Vec::new();
        std::io::Read::read_to_end(&mut brotli::Decompressor::new(&brotli[..], 4096), &mut back).unwrap();
        assert_eq!(back, whole);
    }
}
