//! Units of length, time, frequency and angular velocity: parsing of common spellings, and the spellings that readers
//! accept.
//!
//! Source: Neuroglancer `src/util/si_units.ts` (symbols); OME-NGFF 0.4 §3.1 (UDUNITS-2 names).

/// Base unit of a [`Unit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseUnit {
    /// Metre, the unit of length.
    Metre,
    /// Second, the unit of time.
    Second,
    /// Hertz, the unit of frequency.
    Hertz,
    /// Radian per second, the unit of angular velocity.
    RadianPerSecond,
}

/// A unit: `factor` · 10^`exponent` times its base unit, for example 10^-9 metres.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Base unit.
    pub base: BaseUnit,
    /// Power of ten that multiplies the base unit.
    pub exponent: i8,
    /// Additional positive factor. It is 1 except for units such as minute, hour, day, inch and foot.
    pub factor: f64,
}

/// Symbol, name and power of ten of each prefix.
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

/// Prefixes that Neuroglancer does not know and that are not in everyday use.
const RARE_PREFIXES: [&str; 2] = ["d", "da"];

const SYMBOLS: [(&str, BaseUnit); 7] = [
    ("m", BaseUnit::Metre),
    ("s", BaseUnit::Second),
    ("sec", BaseUnit::Second),
    ("secs", BaseUnit::Second),
    ("Hz", BaseUnit::Hertz),
    ("rad/s", BaseUnit::RadianPerSecond),
    ("rad s-1", BaseUnit::RadianPerSecond),
];

const NAMES: [(&str, BaseUnit); 5] = [
    ("meter", BaseUnit::Metre),
    ("metre", BaseUnit::Metre),
    ("second", BaseUnit::Second),
    ("hertz", BaseUnit::Hertz),
    ("radian/second", BaseUnit::RadianPerSecond),
];

/// Units that do not consist of a prefix and a base unit. A name is also accepted with a final `s`.
const NON_SI_UNITS: [(&str, Unit); 16] = [
    ("angstrom", Unit::new(BaseUnit::Metre, -10, 1.0)),
    ("ångström", Unit::new(BaseUnit::Metre, -10, 1.0)),
    ("ångstrom", Unit::new(BaseUnit::Metre, -10, 1.0)),
    ("å", Unit::new(BaseUnit::Metre, -10, 1.0)),
    ("micron", Unit::new(BaseUnit::Metre, -6, 1.0)),
    ("inch", Unit::new(BaseUnit::Metre, -2, 2.54)),
    ("inche", Unit::new(BaseUnit::Metre, -2, 2.54)),
    ("foot", Unit::new(BaseUnit::Metre, -2, 30.48)),
    ("yard", Unit::new(BaseUnit::Metre, -2, 91.44)),
    ("min", Unit::new(BaseUnit::Second, 0, 60.0)),
    ("minute", Unit::new(BaseUnit::Second, 0, 60.0)),
    ("h", Unit::new(BaseUnit::Second, 0, 3600.0)),
    ("hr", Unit::new(BaseUnit::Second, 0, 3600.0)),
    ("hour", Unit::new(BaseUnit::Second, 0, 3600.0)),
    ("d", Unit::new(BaseUnit::Second, 0, 86400.0)),
    ("day", Unit::new(BaseUnit::Second, 0, 86400.0)),
];

impl Unit {
    /// Creates the unit that is `factor` · 10^`exponent` times `base`.
    pub const fn new(base: BaseUnit, exponent: i8, factor: f64) -> Self {
        Self { base, exponent, factor }
    }

    /// Parses a unit in any common spelling: symbols (`nm`, `µm` with either mu, `s`, `rad/s`), English names in
    /// singular or plural and any case (`Micrometre`, `microns`, `seconds`), angstrom as `Å` or `A`, minutes, hours and
    /// days. Returns `None` for any other text, such as `pixel`.
    pub fn parse(text: &str) -> Option<Self> {
        // ImageJ writes the letter mu as the escape sequence `\u00B5`.
        let text = text.trim().replace("\\u00B5", "u").replace("\\u00b5", "u").replace(['µ', 'μ'], "u");
        for (symbol, base) in SYMBOLS {
            let prefix = text.strip_suffix(symbol);
            if let Some(row) = prefix.and_then(|prefix| PREFIXES.iter().find(|row| row.0 == prefix)) {
                return Some(Self::new(base, row.2, 1.0));
            }
        }
        if text == "A" {
            return Some(Self::new(BaseUnit::Metre, -10, 1.0));
        }
        // The angstrom sign and the letter å are different code points, which are treated alike.
        let text = text.to_lowercase().replace('\u{212b}', "å");
        let singular = text.strip_suffix('s').filter(|rest| rest.chars().count() > 2);
        [Some(text.as_str()), singular].into_iter().flatten().find_map(Self::from_name)
    }

    fn from_name(text: &str) -> Option<Self> {
        if let Some((_, unit)) = NON_SI_UNITS.iter().find(|row| row.0 == text) {
            return Some(*unit);
        }
        NAMES.iter().find_map(|(name, base)| {
            let prefix = text.strip_suffix(name)?.trim_end();
            // "umeter" combines the symbol of a prefix with the name of a unit.
            let row = PREFIXES.iter().find(|row| row.1 == prefix || (prefix == "u" && row.0 == "u"))?;
            Some(Self::new(*base, row.2, 1.0))
        })
    }

    /// Returns the unit as TensorStore and Neuroglancer spell it: an SI prefix and `m`, `s`, `Hz` or `rad/s`. It is
    /// exact only if the factor of [`Self::si_scaled`] is 1.
    pub fn si_symbol(&self) -> String {
        self.si_scaled().1
    }

    /// Returns this unit as a factor and an SI symbol: an angstrom is 0.1 `nm`, an hour 3600 `s`.
    pub fn si_scaled(&self) -> (f64, String) {
        let prefixes = PREFIXES.iter().filter(|row| !RARE_PREFIXES.contains(&row.0));
        let (prefix, exponent) =
            prefixes.filter(|row| row.2 <= self.exponent).map(|row| (row.0, row.2)).next_back().unwrap_or(("y", -24));
        let symbol = match self.base {
            BaseUnit::Metre => "m",
            BaseUnit::Second => "s",
            BaseUnit::Hertz => "Hz",
            BaseUnit::RadianPerSecond => "rad/s",
        };
        // The prefix centi is used only with metres.
        let (prefix, exponent) =
            if prefix == "c" && self.base != BaseUnit::Metre { ("m", -3) } else { (prefix, exponent) };
        // An angstrom (exponent -10) becomes 0.1 nm rather than 100 pm.
        let (prefix, exponent) = if self.exponent == -10 { ("n", -9) } else { (prefix, exponent) };
        (self.factor * power_of_ten(self.exponent - exponent), format!("{prefix}{symbol}"))
    }

    /// Returns the OME-NGFF name of a unit of length or time, or `None` if OME-NGFF has no name for the unit.
    #[expect(clippy::float_cmp, reason = "factors are constants of this file")]
    pub fn ngff_name(&self) -> Option<String> {
        if let Some((_, name)) = NGFF_UNIT_NAMES.iter().find(|(unit, _)| unit == self && unit.factor == self.factor) {
            return Some((*name).to_owned());
        }
        // Largest prefix that the OME-NGFF specification lists for the unit, and the smaller prefixes that it does not
        // list.
        let (name, largest, left_out) = match self.base {
            BaseUnit::Metre => ("meter", 18, &[1_i8][..]),
            BaseUnit::Second => ("second", 6, &[1, 2][..]),
            BaseUnit::Hertz | BaseUnit::RadianPerSecond => return None,
        };
        let is_listed = self.factor == 1.0 && self.exponent <= largest && !left_out.contains(&self.exponent);
        let row = PREFIXES.iter().find(|row| is_listed && row.2 == self.exponent)?;
        Some(format!("{}{name}", row.1))
    }

    /// Returns the length of the unit in nanometres, or `None` if this is not a unit of length.
    pub fn nanometers(&self) -> Option<f64> {
        (self.base == BaseUnit::Metre).then(|| self.factor * power_of_ten(self.exponent.saturating_add(9)))
    }
}

/// Returns a power of ten, exact where `f64` can represent it.
fn power_of_ten(exponent: i8) -> f64 {
    let magnitude = 10_f64.powi(i32::from(exponent.unsigned_abs()));
    if exponent < 0 { 1.0 / magnitude } else { magnitude }
}

/// OME-NGFF's names of units that do not consist of a prefix and a base unit.
const NGFF_UNIT_NAMES: [(Unit, &str); 7] = [
    (Unit::new(BaseUnit::Metre, -10, 1.0), "angstrom"),
    (Unit::new(BaseUnit::Metre, -2, 2.54), "inch"),
    (Unit::new(BaseUnit::Metre, -2, 30.48), "foot"),
    (Unit::new(BaseUnit::Metre, -2, 91.44), "yard"),
    (Unit::new(BaseUnit::Second, 0, 60.0), "minute"),
    (Unit::new(BaseUnit::Second, 0, 3600.0), "hour"),
    (Unit::new(BaseUnit::Second, 0, 86400.0), "day"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn si(text: &str) -> Option<(f64, String)> {
        Unit::parse(text).map(|unit| unit.si_scaled())
    }

    #[test]
    fn every_spelling_of_a_micrometre_is_understood() {
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
            assert_eq!((unit.si_symbol().as_str(), unit.ngff_name().as_deref()), ("um", Some("micrometer")), "{text}");
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
    fn units_without_an_si_symbol_are_scaled() {
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
        assert_eq!(Unit::parse("Å").unwrap().ngff_name().as_deref(), Some("angstrom"));
        assert_eq!(Unit::parse("hour").unwrap().ngff_name().as_deref(), Some("hour"));
        assert!((Unit::parse("A").unwrap().nanometers().unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(Unit::parse("s").unwrap().nanometers(), None);
    }

    #[test]
    fn other_texts_are_not_units() {
        for text in ["", " ", "pixel", "pixels", "px", "unknown", "4nm", "n m", "null", "voxel", "c", "meters/s", "S"] {
            assert_eq!(Unit::parse(text), None, "{text:?}");
        }
    }

    /// Every unit that the OME-NGFF specification names.
    const NGFF_NAMES: [&str; 38] = [
        "angstrom",
        "yoctometer",
        "zeptometer",
        "attometer",
        "femtometer",
        "picometer",
        "nanometer",
        "micrometer",
        "millimeter",
        "centimeter",
        "decimeter",
        "meter",
        "hectometer",
        "kilometer",
        "megameter",
        "gigameter",
        "terameter",
        "petameter",
        "exameter",
        "inch",
        "foot",
        "yard",
        "yoctosecond",
        "zeptosecond",
        "attosecond",
        "femtosecond",
        "picosecond",
        "nanosecond",
        "microsecond",
        "millisecond",
        "centisecond",
        "decisecond",
        "second",
        "kilosecond",
        "megasecond",
        "minute",
        "hour",
        "day",
    ];

    #[test]
    fn every_unit_has_a_symbol_that_neuroglancer_accepts() {
        for name in NGFF_NAMES {
            let unit = Unit::parse(name).unwrap();
            assert_eq!(unit.ngff_name().as_deref(), Some(name));
            let (factor, symbol) = unit.si_scaled();
            assert!(factor > 0.0 && crate::neuroglancer::is_unit(&serde_json::Value::from(symbol)));
        }
    }

    #[test]
    fn units_that_ome_ngff_does_not_list_have_no_name() {
        for text in ["dam", "Zm", "Ym", "das", "hs", "Gs", "Hz", "rad/s"] {
            assert_eq!(Unit::parse(text).unwrap().ngff_name(), None, "{text}");
        }
    }
}
