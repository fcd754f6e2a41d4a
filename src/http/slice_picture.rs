//! Pictures of slices: automatic windows, the channels that one colour image shows, and the calibration and the
//! channels of stacks.

use std::sync::Arc;

use crate::cache::Dataset;
use crate::http::mount::Mount;
use crate::http::problem::Problem;
use crate::http::query::numpy_index::Selection;
use crate::http::query::slice_query::{SliceQuery, WindowChoice};
use crate::http::request::RequestContext;
use crate::http::slice_request::{SliceRequest, check_decodable};
use crate::http::slice_source::{SliceSource, axis_names_in};
use crate::output::{
    self, Composite, CompositeChannel, MAX_CHANNELS, MAX_STACK_CHANNELS, StackAxis, StackAxisKind, StackChannel,
};
use crate::read::{self, DatasetPart};
use crate::view::{self, Volume};
use n5_format::DataType;
use n5_metadata::{AxisKind, BaseUnit, ChannelDisplay, CoordinateSpace, default_channel_colour};

/// Minimum number of elements in the pyramid level that an automatic window is computed from, if any level has that
/// many. `/stats` has the same rule.
const ENOUGH_ELEMENTS: u64 = 1 << 20;

/// Maximum number of characters of a channel's label that are kept for a stack.
const MAX_LABEL_CHARS: usize = 64;

/// Smallest slice budget with which stacks are calibrated, in bytes. Describing a dataset takes 64 KiB of it.
const MIN_CALIBRATING_BUDGET: u64 = 128 << 10;

/// Data for a picture that are neither in the query nor in the attributes of its dataset.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each need is independent")]
pub(crate) struct PictureNeeds {
    /// True if the format shows the channels of a region in one image.
    shows_channels: bool,
    /// True if the query names channels, colours, or a window for each channel.
    names_channels: bool,
    /// True if the region's channels are shown in one image, if it has any.
    combines_channels: bool,
    /// True if a window is computed from the values.
    has_automatic_window: bool,
    /// True if the response says the size and the kind of its axes.
    is_calibrated: bool,
}

impl PictureNeeds {
    /// Returns what the picture of `request` takes, or `None` if that is nothing, as for most slices.
    ///
    /// # Errors
    /// Returns 400 if the query does not fit the format.
    pub(crate) fn of(mount: &Mount, query: &SliceQuery, request: &SliceRequest) -> Result<Option<Self>, Problem> {
        let windows = query.windows.as_deref().unwrap_or_default();
        let given = [
            ("channels", query.channels.is_some()),
            ("colors", query.colours.is_some()),
            ("window", !windows.is_empty()),
        ];
        for (parameter, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            output::check_parameter(request.format, parameter)
                .map_err(|reason| Problem::invalid_parameter(parameter, reason))?;
        }
        let shows_channels = request.format.parameters().contains(&"channels");
        if !shows_channels && windows.len() > 1 {
            let detail = format!("window has {} values, but {} has one window", windows.len(), request.format.name());
            return Err(Problem::invalid_parameter("window", detail));
        }
        let names_channels = query.channels.is_some() || query.colours.is_some() || windows.len() > 1;
        let long_axes = || request.selection.shape().iter().filter(|size| **size > 1).count();
        let combines_channels = shows_channels && (names_channels || long_axes() > 2);
        let has_automatic_window = windows.contains(&WindowChoice::Auto);
        let has_memory = || mount.container.resources().settings().slice_budget >= MIN_CALIBRATING_BUDGET;
        let is_calibrated = request.format.is_calibrated() && has_memory();
        let is_any = combines_channels || has_automatic_window || is_calibrated;
        Ok(is_any.then_some(Self {
            shows_channels,
            names_channels,
            combines_channels,
            has_automatic_window,
            is_calibrated,
        }))
    }
}

/// Fills in those options of `request` that depend on more than the query: automatic windows and channels. Fills in the
/// names of the axes that the dataset takes from a group.
///
/// # Errors
/// Returns 400 if the query does not fit the dataset, and the errors of reading a sample of the dataset.
pub(crate) async fn resolve(
    context: &RequestContext<'_>,
    mount: &Mount,
    query: &SliceQuery,
    source: &mut SliceSource,
    request: &mut SliceRequest,
    needs: PictureNeeds,
) -> Result<(), Problem> {
    let PictureNeeds { shows_channels, names_channels, combines_channels, has_automatic_window, is_calibrated } = needs;
    let own_volume = match &source.level {
        Some(_) => None,
        None => read_volume(context, mount, &source.dataset).await?,
    };
    if source.axes.is_empty()
        && let Some(level) = own_volume.as_ref().and_then(|volume| volume.levels.first())
    {
        source.axes = axis_names_in(&level.space);
    }
    let source = &*source;
    let volume = source.level.as_ref().map(|(volume, _)| volume).or(own_volume.as_ref());
    if is_calibrated
        && let Some(level) =
            volume.and_then(|volume| volume.levels.get(source.level.as_ref().map_or(0, |level| level.1)))
    {
        request.options.axes = stack_axes(&level.space, &request.selection);
    }
    let picture = Picture { context, mount, source, volume };
    let channel_axis = volume.and_then(Volume::channel_axis);
    let position = channel_axis.and_then(|axis| request.selection.kept_axes.iter().position(|kept| *kept == axis));
    if let (Some(axis), Some(position)) = (channel_axis, position)
        && combines_channels
    {
        request.options.composite = Some(picture.composite(query, request, axis, position).await?);
        request.options.window = None;
        return Ok(());
    }
    if let (Some(axis), Some(_)) = (channel_axis, position)
        && is_calibrated
    {
        let window = query.windows.as_ref().and_then(|windows| windows.first().copied());
        request.options.stack_channels = picture.stack_channels(window, request, axis).await?;
    }
    if shows_channels && names_channels {
        let axes = source.axes.join(", ");
        let detail = match channel_axis {
            Some(axis) => format!("channels and colors need the channel axis {axis}, but select drops it"),
            None if axes.is_empty() => {
                "the dataset names no axes, so it has no channel axis; leave out channels, colors \
                                        and windows of channels"
                    .to_owned()
            }
            None => format!("the dataset has no channel axis; its axes are {axes}"),
        };
        return Err(Problem::invalid_parameter(given_name(query), detail));
    }
    if has_automatic_window {
        let selected = channel_axis.and_then(|axis| {
            let region = &request.selection.region;
            let index = u64::try_from(*region.start().get(axis)?).ok()?;
            (region.shape().get(axis) == Some(&1)).then_some(DatasetPart { axis, index })
        });
        request.options.window = Some(picture.auto_window(selected).await?);
    }
    Ok(())
}

/// Returns the axes of a response as a stack has them.
#[expect(clippy::cast_precision_loss, reason = "positions are far below 2^53")]
fn stack_axes(space: &CoordinateSpace, selection: &Selection) -> Vec<StackAxis> {
    let region = &selection.region;
    let stack_axis = |number: &usize| {
        let (Some(axis), Some(scale)) = (space.axes.get(*number), space.scale.get(*number)) else {
            return StackAxis::default();
        };
        let start = region.start().get(*number).copied().unwrap_or(0) as f64;
        let step = region.step().get(*number).copied().unwrap_or(1) as f64;
        let kind = match axis.kind {
            AxisKind::Channel if axis.has_given_name => StackAxisKind::Channel,
            AxisKind::Time if axis.has_given_name => StackAxisKind::Time,
            AxisKind::Space if axis.has_given_name && axis.name.eq_ignore_ascii_case("x") => StackAxisKind::Right,
            AxisKind::Space if axis.has_given_name && axis.name.eq_ignore_ascii_case("y") => StackAxisKind::Down,
            AxisKind::Channel | AxisKind::Time | AxisKind::Space | AxisKind::Other => StackAxisKind::Space,
        };
        let unit = axis.unit.filter(|unit| match unit.base {
            BaseUnit::Metre => !matches!(kind, StackAxisKind::Channel | StackAxisKind::Time),
            BaseUnit::Second => kind == StackAxisKind::Time,
            BaseUnit::Hertz | BaseUnit::RadianPerSecond => false,
        });
        StackAxis {
            kind,
            spacing: axis.is_calibrated.then_some(scale * step),
            unit: unit.map(|unit| unit.factor * 10f64.powi(i32::from(unit.exponent))),
            position: space.translation.get(*number).copied().unwrap_or(0.0) + start * scale,
        }
    };
    selection.kept_axes.iter().map(stack_axis).collect()
}

/// Returns the name of the parameter that asks for channels.
fn given_name(query: &SliceQuery) -> &'static str {
    match (&query.channels, &query.colours) {
        (Some(_), _) => "channels",
        (None, Some(_)) => "colors",
        (None, None) => "window",
    }
}

async fn read_volume(
    context: &RequestContext<'_>,
    mount: &Mount,
    dataset: &Arc<Dataset>,
) -> Result<Option<Volume>, Problem> {
    let path = mount.path_of(&dataset.key);
    let volume = view::read_volume(&mount.container, context.read_options, &dataset.key, &path).await;
    volume.map_err(|error| mount.problem(error))
}

/// A picture that is being resolved.
struct Picture<'a> {
    context: &'a RequestContext<'a>,
    mount: &'a Mount,
    source: &'a SliceSource,
    volume: Option<&'a Volume>,
}

impl Picture<'_> {
    /// Returns the channels of a colour image, and narrows the region to them. `position` is the place of the channel
    /// axis among the kept axes.
    async fn composite(
        &self,
        query: &SliceQuery,
        request: &mut SliceRequest,
        axis: usize,
        position: usize,
    ) -> Result<Composite, Problem> {
        let region = &request.selection.region;
        let count = region.shape().get(axis).copied().unwrap_or(0);
        let index_of = |sample: u64| region.index(axis, sample).unwrap_or(u64::MAX);
        let samples: Vec<u64> = match &query.channels {
            None if count <= MAX_CHANNELS as u64 => (0..count).collect(),
            None => {
                let detail = format!(
                    "the region has {count} channels, and an image shows at most {MAX_CHANNELS}; \
                     name them with channels, as in channels=0,1,2"
                );
                return Err(Problem::invalid_parameter("channels", detail));
            }
            Some(indices) => {
                let start = region.start().get(axis).copied().unwrap_or(0);
                let step = region.step().get(axis).copied().unwrap_or(1).max(1);
                let sample_of = |index: &u64| {
                    let distance = i128::from(*index) - i128::from(start);
                    let sample = u64::try_from(distance).ok().filter(|distance| distance % step == 0)? / step;
                    (sample < count).then_some(sample)
                };
                let missing = indices.iter().find(|index| sample_of(index).is_none());
                if let Some(missing) = missing {
                    let detail = format!(
                        "channel {missing} is not among the {count} channels of the region, which begin at {start}"
                    );
                    return Err(Problem::invalid_parameter("channels", detail));
                }
                indices.iter().filter_map(sample_of).collect()
            }
        };
        let shown = samples.len();
        let attributes = &self.source.dataset.attributes;
        let existing = attributes.dimensions().get(axis).copied().unwrap_or(0);
        // A single channel is white, unless the metadata gives its colour.
        let default_colour =
            |index| default_channel_colour(index, if shown == 1 { 1 } else { existing }, attributes.data_type());
        check_count("colors", query.colours.as_ref().map(Vec::len), shown)?;
        let windows = query.windows.as_deref().unwrap_or_default();
        check_count("window", (windows.len() > 1).then_some(windows.len()), shown)?;
        let mut channels = Vec::new();
        for (number, sample) in samples.iter().enumerate() {
            let index = index_of(*sample);
            let display = self.display(index);
            let given = query.colours.as_ref().and_then(|colours| colours.get(number)).copied();
            let colour = given.or_else(|| display.and_then(|display| display.colour));
            let window = windows.get(number).or(windows.first().filter(|_| windows.len() == 1));
            let part = DatasetPart { axis, index };
            channels.push(CompositeChannel {
                index: *sample,
                colour: colour.unwrap_or_else(|| default_colour(index)),
                window: self.window(window.copied(), display, part).await?,
            });
        }
        // Only the channels from the first to the last one are read.
        let first = samples.iter().min().copied().unwrap_or(0);
        let last = samples.iter().max().copied().unwrap_or(0);
        if shown > 0 {
            request.selection.region = region.narrow(axis, first, last - first + 1);
            request.options.start = request.selection.region.start().to_vec();
        }
        for channel in &mut channels {
            channel.index -= first;
        }
        Ok(Composite { axis: position, channels })
    }

    /// Returns the display of the channels of a stack; empty if ImageJ would not show them in one image. Windows are
    /// computed only if the request asks for it, because a stack is sent without reading other elements.
    async fn stack_channels(
        &self,
        given: Option<WindowChoice>,
        request: &SliceRequest,
        axis: usize,
    ) -> Result<Vec<StackChannel>, Problem> {
        let region = &request.selection.region;
        let count = region.shape().get(axis).copied().unwrap_or(0);
        if !(2..=MAX_STACK_CHANNELS as u64).contains(&count) {
            return Ok(Vec::new());
        }
        let attributes = &self.source.dataset.attributes;
        let existing = attributes.dimensions().get(axis).copied().unwrap_or(0);
        let is_existing = |index: &u64| *index < existing;
        let indices: Vec<u64> =
            (0..count).filter_map(|sample| region.index(axis, sample)).filter(is_existing).collect();
        if indices.len() as u64 != count {
            return Ok(Vec::new());
        }
        let label = |index: u64| self.display(index).and_then(|display| display.label.as_deref());
        let are_named = indices.iter().any(|index| label(*index).is_some());
        let mut channels = Vec::new();
        for index in indices {
            let display = self.display(index);
            let own_name = label(index).map(|label| label.chars().take(MAX_LABEL_CHARS).collect());
            let colour = display.and_then(|display| display.colour);
            let is_known = given.is_some()
                || display.is_some_and(|display| display.window.is_some())
                || *attributes.data_type() == DataType::UInt8;
            let part = DatasetPart { axis, index };
            channels.push(StackChannel {
                name: if are_named { own_name.unwrap_or_else(|| format!("channel {index}")) } else { String::new() },
                colour: colour.unwrap_or_else(|| default_channel_colour(index, existing, attributes.data_type())),
                window: if is_known { Some(self.window(given, display, part).await?) } else { None },
            });
        }
        Ok(channels)
    }

    fn display(&self, channel: u64) -> Option<&ChannelDisplay> {
        self.volume?.channels.get(usize::try_from(channel).ok()?)
    }

    /// Returns the window of a channel: the given one, or else that of `omero`. Otherwise, elements of 8 bits are shown
    /// unchanged and others through an automatic window.
    async fn window(
        &self,
        given: Option<WindowChoice>,
        display: Option<&ChannelDisplay>,
        part: DatasetPart,
    ) -> Result<(f64, f64), Problem> {
        let described = display.and_then(|display| display.window);
        match (given, described) {
            (Some(WindowChoice::Fixed(low, high)), _) => Ok((low, high)),
            (None, Some(window)) => Ok(window),
            (None, None) if *self.source.dataset.attributes.data_type() == DataType::UInt8 => Ok((0.0, 255.0)),
            (Some(WindowChoice::Auto) | None, _) => self.auto_window(Some(part)).await,
        }
    }

    /// Returns the automatic window of a part of the dataset. All levels of a multiscale group have the same window.
    async fn auto_window(&self, part: Option<DatasetPart>) -> Result<(f64, f64), Problem> {
        let Self { context, mount, source, .. } = *self;
        let elements = |dataset: &Dataset| dataset.attributes.dimensions().iter().copied().fold(1, u64::saturating_mul);
        let dataset = match &source.level {
            None => &source.dataset,
            Some((volume, _)) => {
                let sampled = volume.levels.iter().rev().find(|level| elements(&level.dataset) >= ENOUGH_ELEMENTS);
                sampled.or(volume.levels.first()).map_or(&source.dataset, |level| &level.dataset)
            }
        };
        check_decodable(dataset)?;
        Ok(read::auto_window(&mount.container, context.read_options, dataset, part).await?)
    }
}

/// Checks that a parameter has a value for each of the shown channels.
fn check_count(parameter: &'static str, count: Option<usize>, shown: usize) -> Result<(), Problem> {
    match count.filter(|count| *count != shown) {
        None => Ok(()),
        Some(count) => {
            let detail = format!("{parameter} has {count} values for {shown} channels; give one for each");
            Err(Problem::invalid_parameter(parameter, detail))
        }
    }
}
