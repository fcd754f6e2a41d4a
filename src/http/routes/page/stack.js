// Images that a container stores as several pyramids: BigDataViewer's setups and time points (`setup0/timepoint0`), and
// the channels of n5-viewer (`c0`, `c1`). They are presented as one volume with axes for channels and time.

import { partOf } from "./planes.js";
import { childrenOf, infoOf, join } from "./server.js";
import { volumeOf } from "./volume.js";

/** Maximum number of setups or channels that are examined. */
const MOST = 64;
const AT_ONCE = 4;

const SETUP = /^setup(\d+)$/;
const TIMEPOINT = /^timepoint(\d+)$/;
const CHANNEL = /^c(\d+)$/;

/** Returns the names that match, in the order of their numbers. */
function numbered(names, pattern) {
  const found = names.flatMap((name) => {
    const [, digits] = pattern.exec(name) ?? [];
    return digits === undefined ? [] : [[Number(digits), name]];
  });
  return found.sort((a, b) => a[0] - b[0]).map(([, name]) => name);
}

/** Calls `f` with each item, a few at once. Results of calls that fail are null. */
async function each(items, f) {
  const results = Array(items.length).fill(null);
  let next = 0;
  const work = async () => {
    while (next < items.length) {
      const n = next;
      next += 1;
      results[n] = await f(items[n]).catch(() => null);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return results;
}

/** Returns the pyramids as [{name, points}], their paths by name of the time point; null if this is no such group. */
async function membersOf(path, names) {
  const setups = numbered(names, SETUP).slice(0, MOST);
  if (setups.length) {
    const lists = await each(setups, (name) => childrenOf(join(path, name)));
    const found = setups.map((name, n) => {
      const points = numbered(lists[n] ?? [], TIMEPOINT);
      return { name, points: new Map(points.map((point) => [point, join(path, name, point)])) };
    });
    return found.filter(({ points }) => points.size > 0);
  }
  const points = numbered(names, TIMEPOINT);
  if (points.length > 1) return [{ name: null, points: new Map(points.map((point) => [point, join(path, point)])) }];
  const channels = numbered(names, CHANNEL).slice(0, MOST);
  if (channels.length > 1) return channels.map((name) => ({ name, points: new Map([["", join(path, name)]]) }));
  return null;
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** Returns true if two volumes have levels of the same shape and type. */
function agree(a, b) {
  const form = ({ path, axes, dataType, levels }) =>
    [axes, dataType, levels.map((level) => [level.dimensions, level.factors, level.path.slice(path.length)])];
  return same(form(a), form(b));
}

/** Returns the level with further axes, whose elements are datasets. `suffix` is its path below that of the pyramid. */
function extended({ path, info, dimensions, factors }, further, pyramid) {
  const ones = further.map(() => 1);
  const more = (list, values) => (list ? [...list, ...values] : list);
  return {
    path, suffix: path.slice(pyramid.length), stored: { path, info, dimensions, factors },
    info: { ...info, dimensions: more(dimensions, further), block_size: more(info.block_size, ones), grid: more(info.grid, further) },
    dimensions: more(dimensions, further), factors: more(factors, ones),
  };
}

/** Returns f(box, axes), the part of a plane that one pyramid of a stack stores; null if it has no such time point. */
function partOfStack(volume, level, channel, position) {
  const { pathOf, time, rank } = volume.stack;
  const path = pathOf(channel, time < 0 ? 0 : position[time]);
  if (path === null) return () => null;
  return (box, axes) => {
    const cut = Object.fromEntries(["start", "stop", "step"].map((key) => [key, box[key].slice(0, rank)]));
    const part = partOf({ path: path + level.suffix, level: level.stored, dataType: volume.dataType, box: cut, axes });
    return { ...part, shownChannel: channel };
  };
}

/**
 * Returns the volume that the children `names` of a group are together; null if they are not such an image. `stack` has
 * the `names` of the channels, the names of those `left` out because they differ, `pathOf(channel, time)` and `partOf`.
 */
export async function stackOf(info, names) {
  const members = await membersOf(info.path, names).catch(() => null);
  if (!members?.length) return null;
  const volumes = await each(members, async ({ points }) => {
    const first = await infoOf([...points.values()][0]);
    return first.kind === "group" ? null : volumeOf(first);
  });
  const leader = volumes.find(Boolean);
  if (!leader || leader.channel >= 0) return null;
  const fits = members.filter((_, n) => volumes[n] && agree(volumes[n], leader));
  const left = members.filter((member) => !fits.includes(member)).map(({ name }) => name);
  const times = numbered([...new Set(fits.flatMap(({ points }) => [...points.keys()]))], TIMEPOINT);
  if (fits.length < 2 && times.length < 2) return null;
  const further = [
    ...(fits.length > 1 ? [{ name: "c", count: fits.length }] : []), ...(times.length > 1 ? [{ name: "t", count: times.length }] : []),
  ];
  const counts = further.map(({ count }) => count);
  const more = (list, value) => [...list, ...further.map(() => value)];
  const { rank } = leader;
  const axisOf = (name) => {
    const n = further.findIndex((one) => one.name === name);
    return n < 0 ? -1 : rank + n;
  };
  const pathOf = (channel, time) => fits[channel]?.points.get(times.length ? times[time] : "") ?? null;
  return {
    ...leader, path: info.path, rank: rank + further.length, axes: [...leader.axes, ...further.map(({ name }) => name)],
    dimensions: [...leader.dimensions, ...counts], resolution: more(leader.resolution, 1), units: more(leader.units, ""),
    ...(leader.voxelSize ? { voxelSize: more(leader.voxelSize, null) } : {}),
    levels: leader.levels.map((level) => extended(level, counts, leader.path)),
    channel: axisOf("c"),
    stack: { names: fits.map(({ name }) => name ?? ""), times, left, pathOf, partOf: partOfStack, time: axisOf("t"), rank },
  };
}
