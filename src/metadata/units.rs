//! Units of length, time, frequency and angular velocity: from any spelling to those that readers take.
//!
//! Source: Neuroglancer `src/util/si_units.ts` (symbols); OME-NGFF 0.4 §3.1 (UDUNITS-2 names).

/// What a [`Unit`] measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Length.
    Metre,
    /// Time.
    Second,
    /// Frequency.
    Hertz,
    /// Angular velocity.
    RadianPerSecond,
}

/// `factor` · 10^`exponent` of its base, e.g. 1 · 10^-9 metres.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// What it measures.
    pub base: Base,
    /// Power of ten of the base.
    pub exponent: i8,
    /// Further factor, positive; 1 for all but minute, hour, day, inch, foot and their like.
    pub factor: f64,
}

/// Symbol, name and power of ten of a prefix.
const PREFIXES: [(&str, &str, i8); 21] = [
    ("y", "yocto", -24),
    ("z", "zepto", -21),
    ("a", "atto", -18),
    ("f", "femto", -15),
    ("p", "pico", -12),
    ("n", "nano", -9),
    ("u", "micro", -6),
    ("m", "milli", -3),
    ("c", "centi", -2),
    ("d", "deci", -1),
    ("", "", 0),
    ("da", "deca", 1),
    ("h", "hecto", 2),
    ("k", "kilo", 3),
    ("M", "mega", 6),
    ("G", "giga", 9),
    ("T", "tera", 12),
    ("P", "peta", 15),
    ("E", "exa", 18),
    ("Z", "zetta", 21),
    ("Y", "yotta", 24),
];

/// Prefixes that neither Neuroglancer nor everyday use knows.
const RARE: [&str; 2] = ["d", "da"];

const SYMBOLS: [(&str, Base); 7] = [
    ("m", Base::Metre),
    ("s", Base::Second),
    ("sec", Base::Second),
    ("secs", Base::Second),
    ("Hz", Base::Hertz),
    ("rad/s", Base::RadianPerSecond),
    ("rad s-1", Base::RadianPerSecond),
];

const NAMES: [(&str, Base); 5] = [
    ("meter", Base::Metre),
    ("metre", Base::Metre),
    ("second", Base::Second),
    ("hertz", Base::Hertz),
    ("radian/second", Base::RadianPerSecond),
];

/// Units that are no prefix and base. A name also counts with an `s` at its end.
const OTHERS: [(&str, Unit); 16] = [
    ("angstrom", Unit::new(Base::Metre, -10, 1.0)),
    ("ångström", Unit::new(Base::Metre, -10, 1.0)),
    ("ångstrom", Unit::new(Base::Metre, -10, 1.0)),
    ("å", Unit::new(Base::Metre, -10, 1.0)),
    ("micron", Unit::new(Base::Metre, -6, 1.0)),
    ("inch", Unit::new(Base::Metre, -2, 2.54)),
    ("inche", Unit::new(Base::Metre, -2, 2.54)),
    ("foot", Unit::new(Base::Metre, -2, 30.48)),
    ("yard", Unit::new(Base::Metre, -2, 91.44)),
    ("min", Unit::new(Base::Second, 0, 60.0)),
    ("minute", Unit::new(Base::Second, 0, 60.0)),
    ("h", Unit::new(Base::Second, 0, 3600.0)),
    ("hr", Unit::new(Base::Second, 0, 3600.0)),
    ("hour", Unit::new(Base::Second, 0, 3600.0)),
    ("d", Unit::new(Base::Second, 0, 86400.0)),
    ("day", Unit::new(Base::Second, 0, 86400.0)),
];

impl Unit {
    /// 10^`exponent` of `base`, times `factor`.
    pub const fn new(base: Base, exponent: i8, factor: f64) -> Self {
        Self { base, exponent, factor }
    }

    /// The unit that a program means by `text`: symbols (`nm`, `µm` with either mu, `s`, `rad/s`),
    /// names in English, singular or plural, any case (`Micrometre`, `microns`, `seconds`), angstrom as
    /// `Å` or `A`, minutes, hours and days. `None` for anything else (`pixel`, `""`).
    pub fn parse(text: &str) -> Option<Self> {
        // ImageJ writes the escape of a mu instead of the letter.
        let text = text.trim().replace("\\u00B5", "u").replace("\\u00b5", "u").replace(['µ', 'μ'], "u");
        for (symbol, base) in SYMBOLS {
            let prefix = text.strip_suffix(symbol);
            if let Some(row) = prefix.and_then(|prefix| PREFIXES.iter().find(|row| row.0 == prefix)) {
                return Some(Self::new(base, row.2, 1.0));
            }
        }
        if text == "A" {
            return Some(Self::new(Base::Metre, -10, 1.0));
        }
        // The angstrom sign and the letter with a ring are different code points.
        let text = text.to_lowercase().replace('\u{212b}', "å");
        let singular = text.strip_suffix('s').filter(|rest| rest.chars().count() > 2);
        [Some(text.as_str()), singular].into_iter().flatten().find_map(Self::named)
    }

    fn named(text: &str) -> Option<Self> {
        if let Some((_, unit)) = OTHERS.iter().find(|row| row.0 == text) {
            return Some(*unit);
        }
        NAMES.iter().find_map(|(name, base)| {
            let prefix = text.strip_suffix(name)?.trim_end();
            // "umeter" mixes both ways.
            let row = PREFIXES.iter().find(|row| row.1 == prefix || (prefix == "u" && row.0 == "u"))?;
            Some(Self::new(*base, row.2, 1.0))
        })
    }

    /// The unit as TensorStore and Neuroglancer spell it: an SI prefix and `m`, `s`, `Hz` or `rad/s`.
    /// Exact only where the factor of [`Self::si_scaled`] is 1.
    pub fn si(&self) -> String {
        self.si_scaled().1
    }

    /// That spelling, and how many of it one of this unit is: an angstrom is 0.1 `nm`, an hour 3600 `s`.
    pub fn si_scaled(&self) -> (f64, String) {
        let known = PREFIXES.iter().filter(|row| !RARE.contains(&row.0));
        let (prefix, exponent) =
            known.filter(|row| row.2 <= self.exponent).map(|row| (row.0, row.2)).next_back().unwrap_or(("y", -24));
        let symbol = match self.base {
            Base::Metre => "m",
            Base::Second => "s",
            Base::Hertz => "Hz",
            Base::RadianPerSecond => "rad/s",
        };
        // Hundredths of a unit are written in metres alone.
        let (prefix, exponent) = if prefix == "c" && self.base != Base::Metre { ("m", -3) } else { (prefix, exponent) };
        // An angstrom, -10, becomes tenths of nanometres rather than hundreds of picometres.
        let (prefix, exponent) = if self.exponent == -10 { ("n", -9) } else { (prefix, exponent) };
        (self.factor * power(self.exponent - exponent), format!("{prefix}{symbol}"))
    }

    /// The name that OME-NGFF wants for a unit of length or time; `None` where it has none.
    pub fn ngff(&self) -> Option<&'static str> {
        #[expect(clippy::float_cmp, reason = "factors are constants of this file")]
        let name = NGFF.iter().find(|(unit, _)| unit == self && unit.factor == self.factor);
        name.map(|(_, name)| *name)
    }

    /// Nanometres per unit, for lengths.
    pub fn nanometers(&self) -> Option<f64> {
        (self.base == Base::Metre).then(|| self.factor * power(self.exponent.saturating_add(9)))
    }
}

/// A power of ten, exact wherever one is.
fn power(exponent: i8) -> f64 {
    let magnitude = 10_f64.powi(i32::from(exponent.unsigned_abs()));
    if exponent < 0 { 1.0 / magnitude } else { magnitude }
}

const fn length(exponent: i8) -> Unit {
    Unit::new(Base::Metre, exponent, 1.0)
}

const fn time(exponent: i8) -> Unit {
    Unit::new(Base::Second, exponent, 1.0)
}

const NGFF: [(Unit, &str); 38] = [
    (length(-10), "angstrom"),
    (length(-24), "yoctometer"),
    (length(-21), "zeptometer"),
    (length(-18), "attometer"),
    (length(-15), "femtometer"),
    (length(-12), "picometer"),
    (length(-9), "nanometer"),
    (length(-6), "micrometer"),
    (length(-3), "millimeter"),
    (length(-2), "centimeter"),
    (length(-1), "decimeter"),
    (length(0), "meter"),
    (length(2), "hectometer"),
    (length(3), "kilometer"),
    (length(6), "megameter"),
    (length(9), "gigameter"),
    (length(12), "terameter"),
    (length(15), "petameter"),
    (length(18), "exameter"),
    (Unit::new(Base::Metre, -2, 2.54), "inch"),
    (Unit::new(Base::Metre, -2, 30.48), "foot"),
    (Unit::new(Base::Metre, -2, 91.44), "yard"),
    (time(-24), "yoctosecond"),
    (time(-21), "zeptosecond"),
    (time(-18), "attosecond"),
    (time(-15), "femtosecond"),
    (time(-12), "picosecond"),
    (time(-9), "nanosecond"),
    (time(-6), "microsecond"),
    (time(-3), "millisecond"),
    (time(-2), "centisecond"),
    (time(-1), "decisecond"),
    (time(0), "second"),
    (time(3), "kilosecond"),
    (time(6), "megasecond"),
    (Unit::new(Base::Second, 0, 60.0), "minute"),
    (Unit::new(Base::Second, 0, 3600.0), "hour"),
    (Unit::new(Base::Second, 0, 86400.0), "day"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn si(text: &str) -> Option<(f64, String)> {
        Unit::parse(text).map(|unit| unit.si_scaled())
    }

    #[test]
    fn every_spelling_of_a_micrometre_is_one() {
        for text in [
            "um",
            "µm",
            "μm",
            " um ",
            "\\u00B5m",
            "micrometer",
            "micrometers",
            "Micrometre",
            "micrometres",
            "micron",
            "Microns",
            "umeter",
            "micro meter",
        ] {
            let unit = Unit::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((unit.si().as_str(), unit.ngff()), ("um", Some("micrometer")), "{text}");
            assert!((unit.nanometers().unwrap() - 1000.0).abs() < 1e-9);
        }
    }

    #[test]
    fn symbols_and_names_agree() {
        for (text, symbol) in [
            ("nm", "nm"),
            ("nanometer", "nm"),
            ("nanometres", "nm"),
            ("mm", "mm"),
            ("Mm", "Mm"),
            ("cm", "cm"),
            ("m", "m"),
            ("METER", "m"),
            ("kilometers", "km"),
            ("s", "s"),
            ("sec", "s"),
            ("seconds", "s"),
            ("msec", "ms"),
            ("ms", "ms"),
            ("millisecond", "ms"),
            ("µs", "us"),
            ("Hz", "Hz"),
            ("kHz", "kHz"),
            ("hertz", "Hz"),
            ("rad/s", "rad/s"),
        ] {
            assert_eq!(si(text), Some((1.0, symbol.to_owned())), "{text}");
        }
    }

    #[test]
    fn what_has_no_si_spelling_is_scaled() {
        for (text, factor, symbol) in [
            ("angstrom", 0.1, "nm"),
            ("Å", 0.1, "nm"),
            ("\u{212b}", 0.1, "nm"),
            ("A", 0.1, "nm"),
            ("Ångströms", 0.1, "nm"),
            ("dm", 10.0, "cm"),
            ("min", 60.0, "s"),
            ("hours", 3600.0, "s"),
            ("inches", 2.54, "cm"),
        ] {
            let (scale, unit) = si(text).unwrap_or_else(|| panic!("{text}"));
            assert!((scale - factor).abs() < 1e-12 && unit == symbol, "{text}: {scale} {unit}");
        }
        assert_eq!(Unit::parse("Å").unwrap().ngff(), Some("angstrom"));
        assert_eq!(Unit::parse("hour").unwrap().ngff(), Some("hour"));
        assert!((Unit::parse("A").unwrap().nanometers().unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(Unit::parse("s").unwrap().nanometers(), None);
    }

    #[test]
    fn anything_else_is_no_unit() {
        for text in ["", " ", "pixel", "pixels", "px", "unknown", "4nm", "n m", "null", "voxel", "c", "meters/s", "S"] {
            assert_eq!(Unit::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn every_unit_has_a_spelling_that_neuroglancer_takes() {
        for (unit, name) in NGFF {
            assert_eq!(Unit::parse(name).map(|unit| unit.ngff()), Some(Some(name)));
            let (factor, symbol) = unit.si_scaled();
            assert!(factor > 0.0 && super::super::neuroglancer::is_unit(&serde_json::Value::from(symbol)));
        }
    }
}
