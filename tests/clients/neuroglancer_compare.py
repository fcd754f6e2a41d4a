"""Positions at which to look at a case in Neuroglancer, and the comparison of what is shown there with its data."""

from __future__ import annotations

import collections
import itertools
import math

import numpy as np

from neuroglancer_cases import Case, Level

#: Maximum number of elements compared per cross-section.
SAMPLES = 150


def layer_json(case: Case, low: float, high: float) -> dict:
    layer = {"name": "data", "type": case.layer, "source": case.source}
    if case.layer == "image":
        bounds = [str(low), str(high)] if "int64" in case.truth.dtype.name else [low, high]
        return layer | {"opacity": 1, "shaderControls": {"normalized": {"range": bounds}}}
    return layer | {"selectedAlpha": 1, "notSelectedAlpha": 1, "hideSegmentZero": False}


def grey_range(truth: np.ndarray):
    """Return the values that are shown as black and white."""
    if truth.dtype.kind == "f":
        # The shader computes differences in single precision, so values of 1e6 and beyond are left out.
        finite = truth[np.isfinite(truth) & (abs(truth) < 1e6)]
        low, high = (finite.min().item(), finite.max().item()) if finite.size else (0.0, 1.0)
        return (low, high) if low < high else (low - 1, high + 1)
    low, high = truth.min().item(), truth.max().item()
    if low == high:
        return (low - 1, high) if low > np.iinfo(truth.dtype).min else (low, high + 1)
    return low, high


def middle_of(truth: np.ndarray, display: list[int], channels: list[int]) -> list[int]:
    """Return an index in the middle. If possible, it lies in a plane of `display` whose elements are not all equal."""
    middle = [0 if axis in channels else size // 2 for axis, size in enumerate(truth.shape)]
    within = tuple(slice(None) if axis in display else at for axis, at in enumerate(middle))
    plane = truth[within]
    if (plane == plane.flat[0]).all():
        first = truth[tuple(0 if axis in channels else slice(None) for axis in range(truth.ndim))]
        other = [int(at) for at in np.unravel_index(np.argmax(first != plane.flat[0]), first.shape)]
        for axis in range(truth.ndim):
            at = 0 if axis in channels else other.pop(0)
            if axis not in display:
                middle[axis] = at
    return middle


def axes_of(case: Case, found: list[dict], faults: list[str]) -> list[dict] | None:
    """Map Neuroglancer's dimensions to the data's axes, with the length of an element in coordinates.

    Return None if they do not fit the data. Deviations are appended to `faults`.
    """
    shape = case.truth.shape
    order = list(reversed(range(len(shape)))) if case.reversed_axes else list(range(len(shape)))
    if len(found) < len(shape):
        faults.append(f"dimensions {[one['name'] for one in found]} of a dataset of rank {len(shape)}")
        return None
    axes = []
    for at, one in enumerate(found):
        axis = order[at] if at < len(shape) else None
        size = shape[axis] if axis is not None else 1
        step = (one["upper"] - one["lower"]) / size
        if not math.isfinite(step) or step <= 0:
            faults.append(f"{one['name']} extends from {one['lower']} to {one['upper']} for {size} elements")
            return None
        axes.append({"name": one["name"], "kind": one["kind"], "axis": axis, "low": one["lower"], "step": step})
        # Channels and similar dimensions have no voxel size.
        if (
            case.voxel
            and axis is not None
            and one["unit"]
            and not math.isclose(one["scale"] * step, case.voxel[axis], rel_tol=1e-5)
        ):
            faults.append(
                f"voxel size of {one['name']} is {one['scale'] * step} {one['unit']} instead of {case.voxel[axis]}"
            )
    return axes


class Plane:
    """The cross-section of a level that is compared."""

    def __init__(self, case: Case, level: Level, axes: list[dict]):
        # Cut off elements beyond the end of the finest level: some sources show them and some do not.
        ends = [
            min(size, max(1, math.ceil((finest - 0.5 - offset) / step - 1e-6)))
            for size, finest, offset, step in zip(level.truth.shape, case.truth.shape, level.offset, level.step)
        ]
        level = Level(level.truth[tuple(slice(end) for end in ends)], level.offset, level.step)
        self.level, self.axes, self.finest = level, axes, case.truth.shape
        self.by_axis = {axis["axis"]: axis for axis in axes if axis["axis"] is not None}
        usual = [axis for axis in range(level.truth.ndim) if self.by_axis[axis]["kind"] == "global"]
        #: Displayed axes of the data: the first two that are neither channels nor local to the layer.
        self.shown = usual[:2]
        self.display = [self.by_axis[axis]["name"] for axis in self.shown]
        self.steps = [level.step[axis] * self.by_axis[axis]["step"] for axis in self.shown]
        channels = [axis for axis, described in self.by_axis.items() if described["kind"] == "channel"]
        self.centre = middle_of(level.truth, self.shown, channels)
        self.position = self.at(self.centre)

    def at(self, index) -> list[float]:
        """Return Neuroglancer's coordinates of the middle of an element."""
        return [self.along(axis, index) for axis in self.axes]

    def along(self, axis: dict, index) -> float:
        if axis["axis"] is None:
            return axis["low"] + axis["step"] / 2
        number = axis["axis"]
        place = self.level.offset[number] + index[number] * self.level.step[number]
        return axis["low"] + axis["step"] * (place + 0.5)

    def elements(self, view: dict):
        """Choose at most `SAMPLES` elements whose middle is visible.

        Return their positions, their pixels relative to the panel's middle, and their indices in the data.
        """
        in_sight = []
        for axis in self.shown:
            described = self.by_axis[axis]
            across = view["names"].index(described["name"])
            extent = view["extent"][across] / 2 - 3
            number = self.axes.index(described)
            near = []
            for index in range(self.level.truth.shape[axis]):
                at = self.along(described, {axis: index})
                offset = (at - self.position[number]) * view["pixels_per_unit"][across]
                if abs(offset) <= extent:
                    near.append((index, offset))
            in_sight.append(near)
        chosen = list(itertools.product(*in_sight))
        if len(chosen) > SAMPLES:
            picked = np.random.default_rng(0).choice(len(chosen), SAMPLES, replace=False)
            chosen = [chosen[number] for number in picked]
        positions, pixels, indices = [], [], []
        for element in chosen:
            index, pixel = list(self.centre), [0.0, 0.0]
            for axis, (at, offset) in zip(self.shown, element):
                index[axis] = at
                pixel[view["names"].index(self.by_axis[axis]["name"])] = offset
            positions.append(self.at(index))
            pixels.append(pixel)
            indices.append(tuple(index))
        return positions, pixels, indices

    def spread(self, pixels: list[list[float]], indices: list[tuple], view: dict):
        """Return pixels and indices of the visible points: the middle of each element, and 0.4 elements beside it."""
        size = [
            per_unit * self.steps[self.display.index(name)]
            for name, per_unit in zip(view["names"], view["pixels_per_unit"])
        ]
        size += [0.0] * (2 - len(size))
        many = [
            ([x + part * size[0], y + part * size[1]], index)
            for part in (0, -0.4, 0.4)
            for (x, y), index in zip(pixels, indices)
            if all(
                -0.5 <= self.level.offset[axis] + (index[axis] + part) * self.level.step[axis] < self.finest[axis] - 0.5
                for axis in self.shown
            )
        ]
        width, height = view["extent"]
        many = [
            (pixel, index) for pixel, index in many if abs(pixel[0]) < width / 2 - 1 and abs(pixel[1]) < height / 2 - 1
        ]
        return [pixel for pixel, _ in many], [index for _, index in many]


def some(faults: list[str]) -> list[str]:
    return faults[:2] + ([f"… and {len(faults) - 2} more of {faults[0].split()[0]}"] if len(faults) > 2 else [])


def compare_values(expected, values, indices) -> list[str]:
    faults = []
    for want, got, index in zip(expected, values, indices):
        if got is None:
            faults.append(f"value at {index} is missing instead of {want}")
        elif isinstance(got, str) and want.dtype.kind != "f":
            if int(got) != int(want):
                faults.append(f"value at {index} is {got} instead of {want}")
        elif not np.array_equal(np.asarray(float(got), want.dtype), want, equal_nan=want.dtype.kind == "f"):
            faults.append(f"value at {index} is {got} instead of {want}")
    return some(faults)


def compare_greys(expected, pixels, low, high, indices) -> list[str]:
    faults = []
    for want, pixel, index in zip(expected, pixels, indices):
        if want.dtype.kind == "f" and not np.isfinite(want):
            continue
        # Neuroglancer computes differences of integers exactly and of floats in single precision.
        grey = 255 * min(max(float((want.item() - low) / (high - low)), 0), 1)
        if len({*pixel}) != 1 or abs(pixel[0] - grey) > 2:
            faults.append(f"pixel of {index} is {pixel} instead of {grey:.0f} ({want})")
    return some(faults)


def compare_colours(expected, pixels, indices) -> list[str]:
    faults, colours = [], collections.defaultdict(collections.Counter)
    for want, pixel in zip(expected, pixels):
        colours[want.item()][tuple(pixel)] += 1
    for segment, found in colours.items():
        if len(found) > 1:
            faults.append(f"colours of segment {segment}: {dict(found)}")
    distinct = len({colour for found in colours.values() for colour in found})
    # Colours are hashes of the segments, so a few may coincide.
    if len(colours) > 1 and distinct < 0.7 * len(colours):
        faults.append(f"colours: {distinct} for {len(colours)} segments")
    return some(faults)
