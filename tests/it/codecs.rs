//! A codec that a program adds before it serves.

use std::sync::Arc;

use bytes::Bytes;
use n5_format::{CancelCheck, Codec, CodecError, Codecs, Scratch};
use n5_server::container::Resources;
use n5_server::store::{Key, MemoryStore, Store};

use crate::support::{Client, options, settings};

/// Stores every byte inverted.
#[derive(Debug)]
struct InvertedCodec;

impl Codec for InvertedCodec {
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        _: &mut Scratch,
        _: CancelCheck<'_>,
    ) -> Result<(), CodecError> {
        if payload.len() != len {
            return Err(CodecError::WrongLength { expected: len, found: format!("{} bytes", payload.len()) });
        }
        output.clear();
        output.extend(payload.iter().map(|byte| !byte));
        Ok(())
    }

    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        payload_len as u64
    }

    fn scratch_bytes(&self, _: &[u8], _: usize) -> usize {
        0
    }
}

fn store() -> Arc<dyn Store> {
    let attributes = r#"{"dimensions":[3],"blockSize":[3],"dataType":"uint8","compression":{"type":"inverted"}}"#;
    let block: &[u8] = b"\0\0\0\x01\0\0\0\x03\xfe\xfd\xfc";
    let objects = [("a/attributes.json", attributes.as_bytes()), ("a/0", block)];
    let objects = objects.map(|(key, bytes)| (Key::parse(key).unwrap(), Bytes::from_static(bytes)));
    Arc::new(MemoryStore::new(objects, 0))
}

#[tokio::test]
async fn a_registered_codec_decodes_for_every_route() {
    let mut codecs = Codecs::built_in().clone();
    codecs.register("inverted", |_| Arc::new(InvertedCodec));
    let client = Client::with_resources(store(), Resources::with_codecs(settings(), codecs), options());
    assert_eq!(client.get("/slice/a?format=raw").await.body[..], [1, 2, 3]);
    assert_eq!(client.get("/as/raw/a/0").await.body[..], *b"\0\0\0\x01\0\0\0\x03\x01\x02\x03");
    assert_eq!(client.get("/stats/a").await.json()["max"], 3);
    assert_eq!(client.get("/n5/a/0").await.body[8..], [0xfe, 0xfd, 0xfc]);
    let (info, version) = (client.get("/info/a").await.json(), client.get("/version").await.json());
    assert!(!info["problems"].to_string().contains("decode"), "{}", info["problems"]);
    assert!(version["compressions"].as_array().unwrap().contains(&"inverted".into()), "{version}");

    let without = Client::new(store(), settings(), options());
    assert_eq!(without.get("/slice/a?format=raw").await.status, 501);
    assert_eq!(without.get("/as/raw/a/0").await.status, 404);
    assert_eq!(without.get("/n5/a/0").await.body[8..], [0xfe, 0xfd, 0xfc]);
    let info = without.get("/info/a").await.json();
    assert!(info["problems"].to_string().contains("decode"), "{}", info["problems"]);
}
