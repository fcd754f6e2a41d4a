//! `gzip`.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Codec;

pub(super) fn open(parameters: &Map<String, Value>) -> Arc<dyn Codec> {
    super::raw::open(parameters)
}
