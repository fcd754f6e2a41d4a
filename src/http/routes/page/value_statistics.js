// Value statistics: the distribution of the elements of a dataset, from the server's `/stats` or from planes on screen.

const SAMPLES = 20000;

/** Ranks of the values that are black and white by default. */
const DARK = 0.01;
const BRIGHT = 0.999;

/** Largest share of elements at the limit of an integer type that counts as hot or dead pixels, not as data. */
const FAULTY = 0.02;

/** Number of times that a value may be farther from the median than most values, before it counts as an outlier. */
const FAR = 1e6;

const LIMITS = {
  uint8: [0, 255], int8: [-128, 127], uint16: [0, 65535], int16: [-32768, 32767], uint32: [0, 2 ** 32 - 1],
  int32: [-(2 ** 31), 2 ** 31 - 1], uint64: [0n, 2n ** 64n - 1n], int64: [-(2n ** 63n), 2n ** 63n - 1n],
};

/** Returns the smallest and the largest value of an integer type; null for another type. */
export function limitsOf(dataType) {
  return LIMITS[dataType] ?? null;
}

/**
 * The distribution of values. `min` and `max` are the extremes of the finite ones, null if there are none; `nan` and
 * `infinite` count the others. Values are numbers, or `BigInt`s where numbers are not exact. Then `base` is the
 * smallest value, and `near` and `far` convert between values and exact distances from it.
 */
class Distribution {
  /** `knots` are pairs of a value and its rank from 0 to 1, in any order. The rest counts the elements. */
  constructor(dataType, knots, { nan = 0, infinite = 0, elements = 0, exact = false, missing = 0 } = {}) {
    this.whole = !dataType.startsWith("float");
    Object.assign(this, { dataType, nan, infinite, elements, exact, missing });
    const least = knots.reduce((low, [value]) => (low === null || value < low ? value : low), null);
    const most = knots.reduce((high, [value]) => (high === null || value > high ? value : high), null);
    const large = [least, most].some((value) => value !== null && (value > Number.MAX_SAFE_INTEGER || value < Number.MIN_SAFE_INTEGER));
    this.base = this.whole && large ? BigInt(least) : null;
    const plain = (value) => (value === null || this.base !== null ? value : Number(value));
    this.min = plain(least);
    this.max = plain(most);
    const sorted = knots.map(([value, rank]) => [this.near(value), rank]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    this.values = Float64Array.from(sorted, ([value]) => value);
    let highest = 0;
    this.ranks = Float64Array.from(sorted, ([, rank]) => (highest = Math.max(highest, rank)));
  }

  /** Converts a value to a number that is exact near the other values. */
  near(value) {
    return this.base === null ? Number(value) : Number(BigInt(value) - this.base);
  }

  /** Converts a number from `near` to a value. Those of integers are rounded. */
  far(number) {
    if (this.base !== null) return this.base + BigInt(Math.round(number));
    return this.whole ? Math.round(number) : number;
  }

  get empty() {
    return this.values.length === 0;
  }

  get constant() {
    return !this.empty && this.min === this.max;
  }

  /** Returns the value of a rank, as from `near`. */
  at(rank) {
    const { ranks, values } = this;
    let [low, high] = [0, ranks.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ranks[middle] < rank) low = middle + 1;
      else high = middle;
    }
    if (low === 0) return values[0];
    const [from, to] = [ranks[low - 1], ranks[low]];
    if (to <= from || rank >= to) return values[low];
    return values[low - 1] + (values[low] - values[low - 1]) * ((rank - from) / (to - from));
  }

  /** Returns the share of the elements that are at most `value`, which is as from `near`. */
  rankOf(value) {
    const { ranks, values } = this;
    let [low, high] = [0, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= value) low = middle + 1;
      else high = middle;
    }
    if (low === 0) return 0;
    if (low === values.length) return ranks[low - 1];
    const [from, to] = [values[low - 1], values[low]];
    return ranks[low - 1] + (ranks[low] - ranks[low - 1]) * ((value - from) / (to - from));
  }

  /** Returns the values, as from `near`, between which the data lie. Outliers such as hot pixels are outside. */
  get robust() {
    if (this.empty) return [0, 1];
    const limits = limitsOf(this.dataType)?.map((limit) => this.near(limit));
    const [first, last] = [0, this.values.length - 1];
    // Elements at the limit of the type, far from the others, are saturated.
    let [from, to] = [0, 1];
    const knot = this.values.findIndex((value) => value >= this.values[last]);
    if (limits && this.values[last] === limits[1] && knot > 0) {
      const below = this.ranks[knot - 1];
      const gap = this.values[last] - this.values[knot - 1];
      if (1 - below < FAULTY && gap > 4 * (this.values[knot - 1] - this.at(0.5 * below))) to = below;
    }
    const rank = (share) => this.at(from + share * (to - from));
    const median = rank(0.5);
    const pick = (shares) => {
      let found = rank(shares[0]);
      for (const share of shares.slice(1)) {
        const next = rank(share);
        if (next !== median && Math.abs(found - median) > FAR * Math.abs(next - median)) found = next;
      }
      return found;
    };
    const [low, high] = [pick([DARK, 0.02, 0.1]), pick([BRIGHT, 0.99, 0.98, 0.9])];
    if (high > low) return [low, high];
    return [this.values[first], this.values[last]];
  }

  /** Returns the default values of black and white. */
  get window() {
    const limits = limitsOf(this.dataType);
    if (this.empty) return [0, 1];
    if (this.constant) {
      // Zero is black. Any other value is grey between the limits of its type, or between 0 and twice the value.
      if (Number(this.min) === 0) return [this.min, this.far(this.near(this.min) + 1)];
      if (/int8$/.test(this.dataType)) return [...limits];
      if (this.base !== null) return [BigInt(this.min) - 1n, BigInt(this.min) + 1n];
      return this.min > 0 ? [0, 2 * this.min] : [2 * this.min, 0];
    }
    const [low, high] = this.robust;
    // An 8-bit image that uses most of its range is shown as it is.
    if (/int8$/.test(this.dataType) && high - low >= 128) return [...limits];
    const window = [this.far(low), this.far(high)];
    return window[0] < window[1] ? window : [this.min, this.max];
  }
}

/**
 * Returns the distribution of elements. Each source has their `count` and `at(n)`, which returns an element; undefined
 * for one that is not known.
 */
export function measureData(dataType, sources) {
  const total = sources.reduce((sum, { count }) => sum + count, 0);
  // An odd distance does not always hit the same columns of a picture.
  const every = Math.floor(total / SAMPLES) | 1;
  const values = [];
  let [nan, infinite] = [0, 0];
  for (const { count, at } of sources) {
    for (let n = 0; n < count; n += every) {
      const value = at(n);
      if (value === undefined) continue;
      if (typeof value === "bigint" || Number.isFinite(value)) values.push(value);
      else if (Number.isNaN(value)) nan += 1;
      else infinite += 1;
    }
  }
  values.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  const last = Math.max(1, values.length - 1);
  const knots = values.map((value, n) => [value, values.length === 1 ? 1 : n / last]);
  return new Distribution(dataType, knots, { nan, infinite, elements: values.length + nan + infinite });
}

/** Converts a response of `/stats`; null if there is none. */
export function distributionOf(stats) {
  if (!stats) return null;
  const knots = Object.entries(stats.percentiles ?? {}).filter(([, value]) => value !== null).map(([percent, value]) => [value, Number(percent) / 100]);
  if (stats.min !== null && stats.min !== undefined) knots.push([stats.min, 0], [stats.max, 1]);
  const { counts, min, max } = stats.histogram ?? {};
  // The edges of the bins are exact only as numbers.
  if (counts && [min, max].every((value) => typeof value === "number")) {
    const all = counts.reduce((a, b) => a + b, 0);
    let below = 0;
    counts.forEach((count, bin) => {
      if (bin > 0 && all > 0 && max > min) knots.push([min + (max - min) * (bin / counts.length), below / all]);
      below += count;
    });
  }
  return new Distribution(stats.data_type, knots, {
    nan: stats.nan ?? 0, infinite: stats.infinite ?? 0, elements: stats.sample?.elements ?? 0,
    missing: stats.sample?.elements_missing ?? 0, exact: stats.exact === true,
  });
}

/** Returns the extremes and the default window of a response of `/stats` as numbers; null without finite values. */
export function fromStats(stats) {
  const found = distributionOf(stats);
  if (!found || found.empty) return null;
  const [low, high] = found.window;
  return { min: Number(found.min), max: Number(found.max), low: Number(low), high: Number(high) };
}

/** Returns sentences about values that a picture does not show as grey levels. */
export function remarks(distribution) {
  if (!distribution || (distribution.elements === 0 && distribution.empty)) return [];
  const { nan, infinite, elements, exact, missing } = distribution;
  const found = [];
  const share = (count) => {
    if (count === elements) return "every value";
    const percent = (100 * count) / elements;
    return `${percent < 0.1 ? "less than 0.1" : percent > 99.9 ? "more than 99.9" : Number(percent.toPrecision(2))} % of the values`;
  };
  if (distribution.empty && nan + infinite > 0) found.push("No finite values.");
  else if (distribution.constant && nan + infinite === 0 && missing === 0) {
    found.push(`Constant: every ${exact ? "" : "sampled "}value is ${text(distribution.min)}.`);
  }
  if (nan > 0) found.push(`NaN: ${share(nan)}, drawn as purple stripes.`);
  if (infinite > 0) found.push(`Infinite: ${share(infinite)}, drawn as white (∞) and black (−∞).`);
  return found;
}

function text(value) {
  return typeof value === "bigint" || Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
}
