//! Compression of responses. Documents are compressed whenever the client accepts it, whole slices only if the
//! configuration says so, and stored data never.

use std::io::Write;

use axum::body::Body;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::{HeaderValue, Response};
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::http::problem::Problem;
use crate::http::request::RequestContext;
use crate::http::respond::{HandlerResult, add_vary};
use crate::output::accept_weight;
use crate::runtime::cpu_pool::Priority;

/// Smallest document that is compressed.
const MIN_DOCUMENT_BYTES: usize = 64;

/// Compresses the document in a response if the client accepts a content coding and memory is free. Does not wait for
/// memory: the request already holds the memory of the document, and requests that hold memory while waiting could
/// deadlock.
pub(crate) async fn compress_document(context: &RequestContext<'_>, response: Response<Body>) -> HandlerResult {
    let resources = &context.app.resources;
    let (mut parts, body) = response.into_parts();
    add_vary(&mut parts.headers, "accept-encoding");
    let length = body.size_hint().exact().unwrap_or(0);
    let accepted = context.list_header(&ACCEPT_ENCODING);
    let coding = accepted.as_deref().and_then(best_coding).filter(|_| length >= MIN_DOCUMENT_BYTES as u64);
    let memory = coding.and_then(|_| resources.try_reserve_memory(document_buffer_bytes(length)));
    let Some((coding, mut memory)) = coding.zip(memory) else { return Ok(Response::from_parts(parts, body)) };
    let bytes = body.collect().await.map_err(Problem::internal)?.to_bytes();
    let len = bytes.len();
    // The job owns its memory permit, because it continues when the client has disconnected.
    let compress = move || -> std::io::Result<Bytes> {
        let compressed = Bytes::from(Vec::from(coding.compress(&[bytes])?).into_boxed_slice());
        memory.shrink(compressed.len() as u64);
        Ok(memory.own_pooled(compressed))
    };
    let compressed = resources.cpu().run(Priority::for_input_bytes(len), 0, compress).await;
    let compressed = compressed.map_err(Problem::internal)?.map_err(Problem::internal)?;
    parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(compressed.len()));
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    Ok(Response::from_parts(parts, Body::from(compressed)))
}

/// A content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    Zstd,
    Brotli,
    Gzip,
}

impl ContentCoding {
    /// In order of preference, for codings of equal weight.
    const ALL: [Self; 3] = [Self::Zstd, Self::Gzip, Self::Brotli];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// Compresses the concatenation of `parts` at a fast level.
    pub(crate) fn compress(self, parts: &[Bytes]) -> std::io::Result<Bytes> {
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

/// Returns the maximum size of the output buffer when a document of `bytes` is compressed. The factor of 3 covers the
/// old buffer that exists beside the new one while the buffer is growing. The encoder's window is not included, because
/// it lives no longer than the job, and there is one job per core.
fn document_buffer_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 64).saturating_add(1 << 10).saturating_mul(3)
}

/// Returns the maximum memory that compressing `bytes` allocates: the result for incompressible input, and the
/// encoder's window.
pub(crate) fn compression_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 64).saturating_add(4 << 20)
}

/// Returns the coding with the highest weight in an `Accept-Encoding` header; `None` for no compression.
pub(crate) fn best_coding(accepted: &str) -> Option<ContentCoding> {
    best_coding_of(&ContentCoding::ALL, accepted)
}

/// Returns that one of `codings` with the highest weight in an `Accept-Encoding` header, the first if several have it;
/// `None` for no compression.
pub(crate) fn best_coding_of(codings: &[ContentCoding], accepted: &str) -> Option<ContentCoding> {
    // `accept_weight` weighs media types, so every coding becomes a subtype of `coding/`.
    let ranges: Vec<String> = accepted
        .split(',')
        .map(str::trim)
        .filter(|coding| !coding.is_empty())
        .map(|coding| format!("coding/{coding}"))
        .collect();
    let ranges = ranges.join(", ");
    let weighted = codings.iter().map(|coding| (accept_weight(&format!("coding/{}", coding.name()), &ranges), *coding));
    // An unlisted `identity` is preferred less than any listed coding (RFC 9110, section 12.5.3).
    let identity_weight =
        if ranges.contains("coding/identity") { accept_weight("coding/identity", &ranges) } else { 0 };
    let best = weighted
        .rev()
        .filter(|(weight, _)| *weight > 0 && *weight >= identity_weight)
        .max_by_key(|(weight, _)| *weight);
    best.map(|(_, coding)| coding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(accept: &str) -> Option<&'static str> {
        best_coding(accept).map(ContentCoding::name)
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
    fn the_first_of_equally_weighted_codings_is_chosen() {
        let codings = [ContentCoding::Brotli, ContentCoding::Gzip];
        let choose = |accept: &str| best_coding_of(&codings, accept).map(ContentCoding::name);
        assert_eq!(choose("gzip, deflate, br, zstd"), Some("br"));
        assert_eq!(choose("gzip, deflate"), Some("gzip"));
        assert_eq!(choose("br;q=0.5, gzip"), Some("gzip"));
        assert_eq!(choose("zstd"), None);
    }

    #[test]
    fn compression_round_trips() {
        let parts = [Bytes::from_static(b"header"), Bytes::from(vec![7; 10_000])];
        let expected: Vec<u8> = parts.concat();
        let gzip = ContentCoding::Gzip.compress(&parts).unwrap();
        let mut decompressed = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&gzip[..]), &mut decompressed).unwrap();
        assert_eq!(decompressed, expected);
        assert_eq!(zstd::decode_all(&ContentCoding::Zstd.compress(&parts).unwrap()[..]).unwrap(), expected);
        let brotli = ContentCoding::Brotli.compress(&parts).unwrap();
        let mut decompressed = Vec::new();
        std::io::Read::read_to_end(&mut brotli::Decompressor::new(&brotli[..], 4096), &mut decompressed).unwrap();
        assert_eq!(decompressed, expected);
    }
}
