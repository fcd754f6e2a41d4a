"""A made-up piece of neuropil: grey values as an electron microscope might see them, and its cells.

Nothing here is measured data. Arrays are indexed `[x, y, z]`; lengths are nanometres.
"""

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

SHAPE = (192, 192, 40)
VOXEL_NM = np.array([8.0, 8.0, 32.0])
SEED = 20_240_517
CELLS = 130
# Adjacent ids at this height collapse into one when a program reads them as float64.
FIRST_ID = 2**56 + 1
VESSEL_RADIUS_NM = 640.0
# Five bits are enough for the eye and halve what the noise costs when compressed.
GREY_STEP = 8


@dataclass
class Tissue:
    """Grey values (uint8), cell ids (uint64, 0 = vessel) and nanometres to the nearest membrane (float32)."""

    em: np.ndarray
    labels: np.ndarray
    distance: np.ndarray


def smooth_noise(rng: np.random.Generator, sigma_nm: float) -> np.ndarray:
    """Gaussian noise of zero mean and unit deviation, smooth over `sigma_nm`."""
    noise = ndimage.gaussian_filter(rng.standard_normal(SHAPE), sigma_nm / VOXEL_NM, mode="reflect")
    return (noise - noise.mean()) / noise.std()


def coordinates() -> np.ndarray:
    """Voxel centres in nanometres, shape (3, x, y, z)."""
    return np.stack(np.meshgrid(*[(np.arange(n) + 0.5) * v for n, v in zip(SHAPE, VOXEL_NM)], indexing="ij"))


def cells(rng: np.random.Generator, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the cell at every voxel, and a smooth distance to the nearest membrane.

    A Voronoi partition of warped space with one elongated metric per seed: processes run in
    all directions and differ in calibre. The smooth distance antialiases membranes, which a
    distance transform of the index image would not.
    """
    bounds = np.array(SHAPE) * VOXEL_NM
    warped = points + np.stack([55.0 * smooth_noise(rng, 110.0) for _ in range(3)])
    nearest = np.full(SHAPE, np.inf)
    second = np.full(SHAPE, np.inf)
    index = np.zeros(SHAPE, np.int32)
    for cell in range(CELLS):
        centre = rng.uniform(-0.15, 1.15, 3) * bounds
        direction = rng.standard_normal(3)
        direction /= np.linalg.norm(direction)
        elongation = rng.uniform(1.0, 3.2)
        calibre = rng.gamma(1.6, 45.0)
        offset = warped - centre[:, None, None, None]
        along = np.tensordot(direction, offset, 1)
        across = (offset**2).sum(0) - along**2
        d = np.sqrt(np.maximum(across, 0) + (along / elongation) ** 2) - calibre
        closer = d < nearest
        second = np.where(closer, nearest, np.minimum(second, d))
        index[closer] = cell
        nearest = np.where(closer, d, nearest)
    gap = second - nearest
    slope = np.sqrt(sum(g**2 for g in np.gradient(gap, *VOXEL_NM)))
    # On a ridge of `gap` the slope vanishes; membranes lie in its valleys, where it is near 2.
    return index, gap / np.clip(ndimage.median_filter(slope, (3, 3, 1)), 0.7, None)


def vessel(rng: np.random.Generator, points: np.ndarray) -> np.ndarray:
    """Signed distance to the wall of a blood vessel in one corner, negative inside."""
    x, y, z = points
    sway = 40.0 * np.sin(z / 380.0)
    wall = np.hypot(x - SHAPE[0] * VOXEL_NM[0] + sway, y + sway) - VESSEL_RADIUS_NM
    return wall + 14.0 * smooth_noise(rng, 130.0)


def add_mitochondria(rng, grey, points, index, inside):
    """Dark rods with a double-edged outline and cristae, kept inside the roomy parts of cells."""
    roomy = np.argwhere(inside > 80.0)
    for centre in roomy[rng.choice(len(roomy), 34, replace=False)]:
        cell = index[tuple(centre)]
        direction = rng.standard_normal(3)
        direction /= np.linalg.norm(direction)
        stripe = np.cross(direction, rng.standard_normal(3))
        stripe = stripe / np.linalg.norm(stripe) * 0.5 + direction
        radius, length = rng.uniform(65.0, 115.0), rng.uniform(160.0, 420.0)
        offset = points - (points[(slice(None), *centre)])[:, None, None, None]
        along = np.tensordot(direction, offset, 1)
        # A capsule: distance to a segment.
        rest = np.abs(along) - length / 2
        across = np.sqrt(np.maximum((offset**2).sum(0) - along**2, 0) + np.maximum(rest, 0) ** 2)
        depth = np.minimum(radius - across, inside - 22.0)
        body = (depth > 0) & (index == cell)
        cristae = np.sin(np.tensordot(stripe, offset, 1) / 7.5 + 1.5 * np.sin(across / 30.0))
        value = 104.0 + 17.0 * cristae * np.clip(depth / 25.0, 0, 1) - 42.0 * np.exp(-((depth / 8.0) ** 2))
        grey[body] = value[body]


def add_vesicles(rng, grey, points, index, inside):
    """Synapses: clusters of small rings against a membrane that is darkened beside them."""
    near = np.argwhere((inside > 30.0) & (inside < 60.0))
    for centre in near[rng.choice(len(near), 30, replace=False)]:
        cell = index[tuple(centre)]
        origin = points[(slice(None), *centre)]
        reach = np.sqrt(((points - origin[:, None, None, None]) ** 2).sum(0))
        density = (reach < 110.0) & (inside < 14.0)
        grey[density] -= 45.0
        for position in origin + rng.normal(0, 75.0, (46, 3)):
            voxel = np.floor(position / VOXEL_NM).astype(int)
            if (voxel < 0).any() or (voxel >= SHAPE).any() or index[tuple(voxel)] != cell or inside[tuple(voxel)] < 24.0:
                continue
            box = tuple(slice(max(0, v - r), v + r + 1) for v, r in zip(voxel, (5, 5, 1)))
            r = np.sqrt(((points[(slice(None), *box)] - position[:, None, None, None]) ** 2).sum(0))
            patch = grey[box]
            patch -= 52.0 * np.exp(-(((r - 21.0) / 7.0) ** 2))
            patch += 14.0 * np.exp(-((r / 12.0) ** 2))


def make() -> Tissue:
    """The whole volume; the same on every run."""
    rng = np.random.default_rng(SEED)
    points = coordinates()
    index, gap = cells(rng, points)
    wall = vessel(rng, points)
    lumen = wall < 0
    inside = np.where(lumen, -wall, np.minimum(gap, wall))
    index[lumen] = -1

    shade = rng.normal(0, 9.0, CELLS)
    grey = 158.0 + np.where(lumen, 0, shade[index])
    grey += 6.0 * smooth_noise(rng, 28.0) + 5.0 * smooth_noise(rng, 12.0)
    # Endoplasmic reticulum: thin sheets, the zero surface of a noise field where another is high.
    sheet = np.abs(smooth_noise(rng, 60.0)) * 60.0
    patchy = np.clip(smooth_noise(rng, 160.0) - 0.2, 0, 1) * np.clip((inside - 30.0) / 20.0, 0, 1)
    grey -= 55.0 * np.exp(-((sheet / 6.0) ** 2)) * patchy
    add_mitochondria(rng, grey, points, index, np.where(lumen, 0, inside))
    add_vesicles(rng, grey, points, index, np.where(lumen, 0, inside))
    grey -= 92.0 * np.exp(-((inside / 9.5) ** 2)) * (~lumen | (inside < 12.0))
    grey[lumen] = np.maximum(grey[lumen], 205.0 - 120.0 * np.exp(-((inside[lumen] / 9.0) ** 2)))

    grey = ndimage.gaussian_filter(grey, (0.55, 0.55, 0))
    grey += rng.normal(0, 2.5, SHAPE[2])
    grey += ndimage.gaussian_filter(rng.standard_normal(SHAPE), (0.5, 0.5, 0)) * 7.0
    em = (np.clip(np.rint(grey / GREY_STEP), 1, 255 // GREY_STEP) * GREY_STEP).astype(np.uint8)

    ids = np.unique(index[~lumen])
    compact = np.searchsorted(ids, index)
    labels = np.where(lumen, np.uint64(0), np.uint64(FIRST_ID) + compact.astype(np.uint64))
    return Tissue(em, labels, membrane_distance(labels))


def membrane_distance(labels: np.ndarray) -> np.ndarray:
    """Nanometres from each voxel to the nearest voxel of another id, in steps of 4; 0 in the vessel."""
    edge = np.zeros(labels.shape, bool)
    for axis in range(labels.ndim):
        here = [slice(None)] * labels.ndim
        there = list(here)
        here[axis], there[axis] = slice(1, None), slice(None, -1)
        differs = labels[tuple(here)] != labels[tuple(there)]
        edge[tuple(here)] |= differs
        edge[tuple(there)] |= differs
    distance = ndimage.distance_transform_edt(~edge, sampling=VOXEL_NM)
    distance[labels == 0] = 0
    return (np.rint(distance / 4.0) * 4.0).astype(np.float32)
