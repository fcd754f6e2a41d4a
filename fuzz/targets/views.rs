//! Views of a container with hostile metadata: documents, keys and chunks of Zarr and precomputed, descriptions,
//! slices.
//!
//! Input: parts separated by lines of `---`: paths, one per line; then `attributes.json` of the group `a`, that of its
//! dataset `s0`, and the file of the first block of `s0`.

use axum::body::Body;
use axum::http::{Request, Uri};
use bytes::Bytes;
use n5_format::{AttributesDocument, DatasetAttributes};

use super::attributes::parts;
use super::server::Server;

/// Maximum number of paths of one input.
const PATHS: usize = 4;

pub(crate) fn run(data: &[u8]) {
    let parts = parts(data);
    let part = |at: usize| parts.get(at).map_or(Bytes::new(), |bytes| Bytes::copy_from_slice(bytes));
    let rank = AttributesDocument::parse(&part(2))
        .ok()
        .and_then(|own| DatasetAttributes::parse(own).ok())
        .map_or(0, |d| d.rank());
    let block = format!("a/s0{}", "/0".repeat(rank.max(1)));
    let server = Server::of([
        ("attributes.json", Bytes::from_static(b"{\"n5\":\"4.0.0\"}")),
        ("a/attributes.json", part(1)),
        ("a/s0/attributes.json", part(2)),
        ("a/s1/attributes.json", part(2)),
        (&block, part(3)),
    ]);
    for path in parts[0].split(|byte| *byte == b'\n').take(PATHS) {
        let Ok(uri) = Uri::try_from(path) else { continue };
        let request = |uri: &Uri| Request::get(uri.clone()).body(Body::empty()).unwrap();
        let once = server.ask(request(&uri), true);
        let again = server.ask(request(&uri), true);
        assert_eq!(once.status, again.status, "{uri} asked again");
        assert_eq!(once.is_broken, again.is_broken, "{uri} asked again");
        assert!(once.body == again.body || once.is_broken || once.status != 200, "{uri} asked again");
        assert_eq!(once.headers.get("etag"), again.headers.get("etag"), "{uri} asked again");
    }
}
