//! Options of an encoding: axis order, byte order, window and quality.

/// Options that the client sets, and the values that a response states about the region.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EncodeOptions {
    /// Axis order in which the shape is labelled.
    pub order: AxisOrder,
    /// Byte order of elements in `raw`.
    pub endian: Endian,
    /// Values shown as black and as white in `png` and `jpeg`.
    pub window: Option<(f64, f64)>,
    /// Quality of `jpeg`, 1 to 100.
    pub quality: Option<u8>,
    /// First sample along every axis of the dataset, in N5 axis order.
    pub start: Vec<i64>,
    /// Distance between samples along every axis of the dataset, in N5 axis order.
    pub step: Vec<u64>,
}

/// Axis order in which a shape is labelled. The bytes are the same in both orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AxisOrder {
    /// First axis fastest: the shape is in N5 axis order.
    #[default]
    F,
    /// Last axis fastest: the shape is reversed.
    C,
}

impl AxisOrder {
    /// Names of both orders.
    pub const NAMES: [&'static str; 2] = ["F", "C"];

    /// Returns the order named `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "F" => Some(Self::F),
            "C" => Some(Self::C),
            _ => None,
        }
    }

    /// Returns `F` or `C`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F => "F",
            Self::C => "C",
        }
    }

    /// Returns `shape`, which is in N5 axis order, as this order labels it.
    pub fn label(self, shape: &[u64]) -> Vec<u64> {
        match self {
            Self::F => shape.to_vec(),
            Self::C => shape.iter().rev().copied().collect(),
        }
    }
}

/// Byte order of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Endian {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// Names of both byte orders.
    pub const NAMES: [&'static str; 2] = ["little", "big"];

    /// Returns the byte order named `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "little" => Some(Self::Little),
            "big" => Some(Self::Big),
            _ => None,
        }
    }

    /// Returns `little` or `big`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Little => "little",
            Self::Big => "big",
        }
    }
}
