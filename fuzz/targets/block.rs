//! Stored blocks: all forms of the header, and decoding by every codec within a limit.
//!
//! Input: codec, data type and rank, then block size, dimension and grid position of each axis, one byte each. The rest
//! is the block file.

use std::cell::RefCell;
use std::mem::discriminant;

use bytes::Bytes;
use n5_format::{
    AttributesDocument, Block, BlockDecoder, BlockEncoding, BlockError, BlockHeader, CancelCheck, Codecs, Coords,
    DataType, DatasetAttributes, Scratch, encode_block, swap_byte_order,
};
use serde_json::{Value, json};

use super::Numbers;

/// Limit for the decoding of one block.
const LIMIT_BYTES: u64 = 8 << 20;

thread_local! {
    /// Reused for all inputs.
    static ROOM: RefCell<(Vec<u8>, Scratch)> = RefCell::default();
}

pub(crate) fn run(data: &[u8]) {
    let mut numbers = Numbers::new(data);
    let codecs: Vec<&str> = Codecs::built_in().names().collect();
    let codec = numbers.of(&codecs);
    let types: Vec<&str> = DataType::names().chain(["string"]).collect();
    let data_type = numbers.of(&types);
    let rank = numbers.below(6);
    let axes: Vec<[u64; 3]> = (0..rank).map(|_| [(); 3].map(|()| numbers.byte().into())).collect();
    let blocks: Vec<u64> = axes.iter().map(|axis| axis[0].max(1)).collect();
    let dimensions: Vec<u64> = axes.iter().map(|axis| axis[1]).collect();
    let position: Coords = axes.iter().map(|axis| axis[2]).collect();
    let attributes = attributes(&dimensions, &blocks, data_type, &json!({ "type": codec }));
    check(&attributes, &position, numbers.rest());
}

fn attributes(dimensions: &[u64], blocks: &[u64], data_type: &str, compression: &Value) -> DatasetAttributes {
    let members = json!({"dimensions": dimensions, "blockSize": blocks, "dataType": data_type,
        "compression": compression});
    DatasetAttributes::parse(AttributesDocument::parse(members.to_string().as_bytes()).unwrap()).unwrap()
}

fn check(attributes: &DatasetAttributes, position: &Coords, stored: &[u8]) {
    if let Ok(header) = BlockHeader::parse(stored) {
        assert!(header.len <= stored.len());
    }
    let decoder = BlockDecoder::new(stored, attributes, position, u64::MAX);
    let needed = decoder.map(|decoder| decoder.memory_bytes());
    if let Ok(needed) = needed {
        let most = Block::max_decode_memory_bytes(attributes, stored.len() as u64);
        assert!(needed <= most, "{needed} bytes are needed, {most} were said to suffice");
    }
    let block = Block::decode(Bytes::copy_from_slice(stored), attributes, position, LIMIT_BYTES);
    ROOM.with_borrow_mut(|(output, scratch)| {
        let decoder = BlockDecoder::new(stored, attributes, position, LIMIT_BYTES);
        let unpacked = decoder.and_then(|decoder| decoder.decompress(output, scratch, CancelCheck::NEVER));
        match (&block, &unpacked) {
            (Ok(block), Ok((size, unpacked))) => {
                let width = attributes.data_type().size_bytes().unwrap();
                assert_eq!(block.size, *size);
                assert!(block.data == swap_byte_order(unpacked.to_vec().into(), width), "two ways to decode differ");
            }
            // Error texts of the libraries depend on the size of the buffer.
            (Err(one), Err(other)) => assert_eq!(discriminant(one), discriminant(other), "{one} but {other}"),
            (one, other) => panic!("{one:?} but {other:?}"),
        }
    });
    match block {
        Ok(block) => sound(attributes, position, &block, needed.unwrap()),
        Err(BlockError::OverLimit { needed_bytes, .. }) => assert!(needed_bytes > LIMIT_BYTES),
        Err(error) => drop(error.to_string()),
    }
}

/// Checks that a decoded block has the announced size, and that it survives every encoding.
fn sound(attributes: &DatasetAttributes, position: &Coords, block: &Block, needed: u64) {
    let width = attributes.data_type().size_bytes().unwrap();
    let elements: u64 = block.size.iter().product();
    assert_eq!(block.data.len() as u64, elements * width as u64);
    assert!(needed >= block.data.len() as u64 && needed <= LIMIT_BYTES);
    assert!(block.size.iter().zip(attributes.block_size()).all(|(size, most)| size <= most));
    if block.data.len() > 64 << 10 {
        return;
    }
    for encoding in BlockEncoding::ALL {
        let stored = encode_block(&block.size, width, block.data.clone(), encoding).unwrap();
        let (dimensions, blocks) = (attributes.dimensions(), attributes.block_size());
        let encoded =
            self::attributes(dimensions, blocks, attributes.data_type().name(), &encoding.compression_attribute());
        let again = Block::decode(stored, &encoded, position, LIMIT_BYTES).unwrap();
        assert!(again.size == block.size && again.data == block.data, "{encoding:?}");
    }
}
