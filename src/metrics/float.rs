//! Converts integers to the floats that gauges hold.

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float; exact below 2^53 bytes")]
/// Converts a count or a number of bytes.
pub(super) fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}
