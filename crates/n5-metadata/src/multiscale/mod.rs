//! Multiscale conventions: one file and one row of [`CONVENTIONS`] each.
//!
//! A convention says in two steps whether it describes a group. `required_paths` returns the paths whose attributes the
//! caller loads, as far as they exist. `read` then makes the pyramid from the loaded attributes.

mod bdv;
mod cosem;
mod n5_viewer;
mod ome_ngff;
mod paintera;
pub(crate) mod pyramid;

use self::pyramid::Pyramid;
use crate::node::{MAX_LEVELS, Node};
use crate::problem::MetadataProblem;

/// All conventions. A group is described by the first one that it follows.
///
/// The first function of a convention returns the paths below the directory whose attributes are to be loaded. The list
/// is empty if the directory's own attributes and listing already rule the convention out. The second function returns
/// the pyramid, or `None` if the directory does not follow the convention.
///
/// The order is that of n5-universe (`N5DatasetDiscoverer.java`). Paintera and BDV, which n5-universe does not know,
/// come before n5-viewer, because they share its keys.
#[expect(clippy::type_complexity, reason = "a row of a table")]
static CONVENTIONS: &[(fn(&Node) -> Vec<String>, fn(&Node, &mut Vec<MetadataProblem>) -> Option<Pyramid>)] = &[
    (ome_ngff::required_paths, ome_ngff::read),
    (cosem::required_paths, cosem::read),
    (paintera::required_paths, paintera::read),
    (bdv::required_paths, bdv::read),
    (n5_viewer::required_paths, n5_viewer::read),
];

/// Returns the paths below a directory whose attributes must be loaded before [`describe`](crate::describe) is called,
/// at most [`MAX_LEVELS`].
///
/// The paths are relative and consist of valid segments. They need not exist. For a dataset, there are none.
pub fn required_paths(node: &Node) -> Vec<String> {
    if node.is_dataset() {
        return Vec::new();
    }
    let mut paths = Vec::new();
    for path in CONVENTIONS.iter().flat_map(|(required_paths, _)| required_paths(node)) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths.truncate(MAX_LEVELS);
    paths
}

/// Returns the pyramid that a group describes, or `None` for a plain group and for a dataset. Appends the pyramid's
/// faults to `problems`.
pub fn pyramid(node: &Node, problems: &mut Vec<MetadataProblem>) -> Option<Pyramid> {
    if node.is_dataset() {
        return None;
    }
    CONVENTIONS.iter().find_map(|(_, read)| read(node, problems))
}
