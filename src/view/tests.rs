//! Datasets for the tests of this folder.

use serde_json::{Value, json};

use super::zarr_array::ZarrLayout;
use n5_format::{AttributesDocument, DatasetAttributes};

/// Returns the attributes of a dataset with these members.
pub(super) fn dataset(dimensions: &[u64], blocks: &[u64], data_type: &str, compression: &Value) -> DatasetAttributes {
    let text = json!({"dimensions": dimensions, "blockSize": blocks, "dataType": data_type,
        "compression": compression});
    DatasetAttributes::parse(AttributesDocument::parse(text.to_string().as_bytes()).unwrap()).unwrap()
}

/// Returns the layout of a dataset of 7 by 5 elements in blocks of 5 by 4.
pub(super) fn layout(data_type: &str, compression: &Value) -> ZarrLayout {
    ZarrLayout::of(&dataset(&[7, 5], &[5, 4], data_type, compression), None).unwrap()
}
