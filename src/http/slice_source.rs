//! What the path and the query of a slice stand for: a dataset, or a level of a multiscale group, and samples of it.

use std::sync::Arc;

use crate::cache::Dataset;
use crate::http::mount::Mount;
use crate::http::problem::{self, Problem};
use crate::http::query::numpy_index::Selection;
use crate::http::query::slice_query::{LevelChoice, SliceQuery};
use crate::http::redact::excerpt;
use crate::http::request::RequestContext;
use crate::store::Key;
use crate::view::{self, Volume};
use n5_format::{AttributesDocument, DescribedDataset};
use n5_metadata::{AxisKind, CoordinateSpace};

/// The dataset of a slice.
pub(crate) struct SliceSource {
    pub(crate) dataset: Arc<Dataset>,
    /// Names of the axes; empty if they are unknown. A dataset without a level has those of its own attributes, until
    /// [`slice_picture::resolve`](super::slice_picture::resolve) reads the groups above.
    pub(crate) axes: Arc<[String]>,
    /// The multiscale group and the number of the level in it, if the query names a level.
    pub(crate) level: Option<(Volume, usize)>,
}

impl SliceSource {
    /// Finds the dataset or the level, and the samples that the query selects.
    ///
    /// # Errors
    /// Returns 404 if there is no dataset or no such level, and 400 if the query does not fit.
    pub(crate) async fn find(
        context: &RequestContext<'_>,
        mount: &Mount,
        key: &Key,
        query: &SliceQuery,
    ) -> Result<(Self, Selection), Problem> {
        if let Some(choice) = &query.level {
            // Boxed, because few requests name a level, and the others would have to reserve memory for this.
            return Box::pin(Self::find_level(context, mount, key, query, choice)).await;
        }
        let found = mount.container.dataset_and_axes(context.read_options, key, axis_names).await;
        let (dataset, axes) = found.map_err(|error| mount.problem(error))?;
        let selection = query.select(dataset.attributes.dimensions())?;
        Ok((Self { dataset, axes, level: None }, selection))
    }

    async fn find_level(
        context: &RequestContext<'_>,
        mount: &Mount,
        key: &Key,
        query: &SliceQuery,
        choice: &LevelChoice,
    ) -> Result<(Self, Selection), Problem> {
        let path = mount.path_of(key);
        let found = view::read_volume(&mount.container, context.read_options, key, &path).await;
        let found = found.map_err(|error| mount.problem(error))?;
        let Some(volume) = found else {
            let detail = format!("/{key} is neither a multiscale group nor a dataset, so it has no levels");
            return Err(mount.problem(Problem::new(problem::NOT_A_DATASET, detail)));
        };
        let number = choose_level(&volume, choice, query)?;
        let (Some(finest), Some(level)) = (volume.levels.first(), volume.levels.get(number)) else {
            return Err(mount.not_found());
        };
        let dimensions = finest.dataset.attributes.dimensions();
        let selection = query.select_in_level(dimensions, level.dataset.attributes.dimensions(), &level.factors)?;
        let axes = axis_names_in(&level.space);
        Ok((Self { dataset: Arc::clone(&level.dataset), axes, level: Some((volume, number)) }, selection))
    }

    /// Returns the path of the level in its group; `None` if the query names no level, or the path is a dataset's.
    pub(crate) fn level_path(&self) -> Option<&str> {
        let (volume, number) = self.level.as_ref()?;
        Some(volume.levels.get(*number)?.path.as_str()).filter(|path| !path.is_empty())
    }
}

/// Returns the names of a dataset's axes; empty if its own attributes do not give them.
fn axis_names(document: AttributesDocument) -> Vec<String> {
    let described = DescribedDataset::parse(document).ok();
    described
        .and_then(|described| n5_metadata::Calibration::from_dataset(&described, &mut Vec::new()).axes)
        .unwrap_or_default()
}

/// Returns the names of all axes of a space; empty if one of them has none.
pub(crate) fn axis_names_in(space: &CoordinateSpace) -> Arc<[String]> {
    let are_named = space.axes.iter().all(|axis| axis.has_given_name);
    if are_named { space.axes.iter().map(|axis| axis.name.clone()).collect() } else { Arc::default() }
}

/// Returns the number of the level that a query chooses.
fn choose_level(volume: &Volume, choice: &LevelChoice, query: &SliceQuery) -> Result<usize, Problem> {
    let last = volume.levels.len().saturating_sub(1);
    match choice {
        LevelChoice::Auto(pixels) => {
            let Some(finest) = volume.levels.first() else { return Ok(0) };
            let selection = query.select_all(finest.dataset.attributes.dimensions())?;
            Ok((0..=last).rev().find(|number| longest_side(volume, *number, &selection) >= *pixels).unwrap_or(0))
        }
        LevelChoice::Named(name) => {
            let is_decimal = name.bytes().all(|byte| byte.is_ascii_digit());
            let by_number = name.parse().ok().filter(|number| is_decimal && *number <= last);
            let number = volume.levels.iter().position(|level| level.path == *name && !name.is_empty()).or(by_number);
            number.ok_or_else(|| {
                let known: Vec<&str> =
                    volume.levels.iter().map(|level| level.path.as_str()).filter(|path| !path.is_empty()).collect();
                let detail = format!(
                    "there is no level {:?}; give auto, a number from 0 (the finest) to {last}, or one of: {}",
                    excerpt(name),
                    known.join(", ")
                );
                Problem::invalid_parameter("level", detail).with_member("known", known)
            })
        }
    }
}

/// Returns the number of samples along the longest side of a region in a level, without channels and time.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate; `as` saturates"
)]
fn longest_side(volume: &Volume, number: usize, selection: &Selection) -> u64 {
    let Some(level) = volume.levels.get(number) else { return 0 };
    let sides = selection.kept_axes.iter().filter_map(|axis| {
        let is_side = level
            .space
            .axes
            .get(*axis)
            .is_none_or(|axis| !axis.has_given_name || !matches!(axis.kind, AxisKind::Channel | AxisKind::Time));
        let samples = *selection.region.shape().get(*axis)? as f64 / level.factors.get(*axis)?.max(f64::MIN_POSITIVE);
        is_side.then_some(samples.ceil() as u64)
    });
    sides.max().unwrap_or(1)
}
