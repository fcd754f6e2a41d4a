//! The names of the directories and files that hold blocks.

/// Parses a path segment as a grid component: decimal, without leading zeros.
pub(crate) fn grid_component(name: &str) -> Option<u64> {
    let is_numeric = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    (is_numeric && (name == "0" || !name.starts_with('0'))).then(|| name.parse().ok()).flatten()
}
