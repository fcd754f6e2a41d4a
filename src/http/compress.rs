//! Which answers are compressed on their way: documents always, whole slices by configuration, data as
//! stored never.

use std::io::Write;

use axum::body::Body;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::{HeaderValue, Response};
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;

use super::problem::{self, Problem};
use super::{Answer, Ask, vary};
use crate::cpu::Length;
use crate::output::{Format, weight_of};

/// Documents shorter than this are not worth it.
const SHORT_BYTES: usize = 64;

/// Marks an answer as a document that may be compressed. Blocks and attributes never are: they leave byte
/// for byte, with their length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compressible;

/// Compresses a document where the client accepts it and there is memory for it: the request holds the document's own, and must not
/// wait for more.
pub(super) async fn document(ask: &Ask<'_>, response: Response<Body>) -> Answer {
    let (mut parts, body) = response.into_parts();
    vary(&mut parts.headers, "accept-encoding");
    let length = body.size_hint().exact().unwrap_or(0);
    let encoding = negotiate(ask).filter(|_| length >= SHORT_BYTES as u64);
    let memory = encoding.and_then(|_| ask.app.resources.memory_at_once(grown_bytes(length)));
    let Some((encoding, mut memory)) = encoding.zip(memory) else { return Ok(Response::from_parts(parts, body)) };
    let fault = |cause: String| Problem::own(problem::INTERNAL, "the server has a fault", cause);
    let bytes = body.collect().await.map_err(|error| fault(error.to_string()))?.to_bytes();
    let len = bytes.len();
    // The job holds its share of memory: it runs on when the client has hung up.
    let compress = move || -> std::io::Result<Bytes> {
        let compressed = Bytes::from(Vec::from(encoding.compress(&[bytes])?).into_boxed_slice());
        memory.shrink(compressed.len() as u64);
        Ok(memory.own(compressed))
    };
    let compressed =
        ask.app.resources.cpu().run(Length::of(len), 0, compress).await.map_err(|error| fault(error.to_string()))?;
    let compressed = compressed.map_err(|error| fault(error.to_string()))?;
    parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(compressed.len()));
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
    Ok(Response::from_parts(parts, Body::from(compressed)))
}

/// A content coding.
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

/// Upper bound of the buffer that compressing a document of `bytes` fills: while it grows there is an older one beside. The encoder's
/// window is as short-lived as the job, of which there is one for each core.
fn grown_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 64).saturating_add(1 << 10).saturating_mul(3)
}

/// Upper bound of what compressing `bytes` allocates: the result, were it incompressible, and the
/// encoder's window.
pub(super) fn extra_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 64).saturating_add(4 << 20)
}

/// The coding that `Accept-Encoding` likes best; `None` for none.
pub(super) fn negotiate(ask: &Ask<'_>) -> Option<Encoding> {
    best(&ask.list_header(&ACCEPT_ENCODING)?)
}

fn best(accepted: &str) -> Option<Encoding> {
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
    // Where nothing is said of it, what is not encoded is worth less than whatever is named (RFC 9110, section 12.5.3).
    let plain = if ranges.contains("coding/identity") { weight_of("coding/identity", &ranges) } else { 0 };
    let best = weighed.rev().filter(|(weight, _)| *weight > 0 && *weight >= plain).max_by_key(|(weight, _)| *weight);
    best.map(|(_, coding)| coding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(accept: &str) -> Option<&'static str> {
        best(accept).map(Encoding::name)
    }

    #[test]
    fn the_coding_that_the_client_weighs_highest_is_chosen() {
        assert_eq!(chosen("gzip, br"), Some("gzip"));
        assert_eq!(chosen("gzip;q=0.5, br"), Some("br"));
        assert_eq!(chosen("gzip, deflate, br, zstd"), Some("zstd"));
        assert_eq!(chosen("gzip;q=0"), None);
        assert_eq!(chosen("identity"), None);
        assert_eq!(chosen("identity;q=1, gzip;q=0.1"), None);
        assert_eq!(chosen("identity;q=0.5, gzip;q=0.8, br;q=0.2"), Some("gzip"));
        assert_eq!(chosen("identity, gzip"), Some("gzip"));
        assert_eq!(chosen("identity;q=0, *"), Some("zstd"));
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
