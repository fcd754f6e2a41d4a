//! The element types of a dataset.

use std::fmt;

/// Type of the elements of a dataset, as named by the attribute `dataType`.
///
/// Source: N5 specification 4.0.0 §4; `string` and `object` from Java N5 ≥ 2.3; other names (`bool`, `float16`, …) from
/// zarr-python 2, which stores NumPy's names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DataType {
    /// Unsigned 8-bit integer.
    UInt8,
    /// Unsigned 16-bit integer.
    UInt16,
    /// Unsigned 32-bit integer.
    UInt32,
    /// Unsigned 64-bit integer.
    UInt64,
    /// Signed 8-bit integer.
    Int8,
    /// Signed 16-bit integer.
    Int16,
    /// Signed 32-bit integer.
    Int32,
    /// Signed 64-bit integer.
    Int64,
    /// IEEE 754 single precision.
    Float32,
    /// IEEE 754 double precision.
    Float64,
    /// A type that this build does not decode, by name. Its blocks are still served as stored.
    Other(String),
}

/// Name in `attributes.json`, size in bytes, and NumPy's kind letter.
const NAMES: [(DataType, &str, usize, char); 10] = [
    (DataType::UInt8, "uint8", 1, 'u'),
    (DataType::UInt16, "uint16", 2, 'u'),
    (DataType::UInt32, "uint32", 4, 'u'),
    (DataType::UInt64, "uint64", 8, 'u'),
    (DataType::Int8, "int8", 1, 'i'),
    (DataType::Int16, "int16", 2, 'i'),
    (DataType::Int32, "int32", 4, 'i'),
    (DataType::Int64, "int64", 8, 'i'),
    (DataType::Float32, "float32", 4, 'f'),
    (DataType::Float64, "float64", 8, 'f'),
];

impl DataType {
    /// Returns the type with this name. Names are case-sensitive.
    pub fn from_name(name: &str) -> Self {
        NAMES.iter().find(|row| row.1 == name).map_or_else(|| Self::Other(name.to_owned()), |row| row.0.clone())
    }

    /// Returns the name as written in `attributes.json`.
    pub fn name(&self) -> &str {
        if let Self::Other(name) = self {
            return name;
        }
        self.row().map_or("", |row| row.1)
    }

    /// Returns the size of an element in bytes, or `None` for a type that is not decoded.
    pub fn size_bytes(&self) -> Option<usize> {
        self.row().map(|row| row.2)
    }

    /// Returns NumPy's array-protocol type string for little-endian data, such as `<u2` or `|u1`.
    ///
    /// Returns `None` for a type that is not decoded.
    pub fn numpy_typestr(&self) -> Option<String> {
        self.row().map(|&(_, _, size, kind)| format!("{}{kind}{size}", if size == 1 { '|' } else { '<' }))
    }

    /// Returns the names of the ten types of the specification.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|row| row.1)
    }

    fn row(&self) -> Option<&'static (DataType, &'static str, usize, char)> {
        NAMES.iter().find(|row| row.0 == *self)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_data_type() {
        for name in DataType::names() {
            let data_type = DataType::from_name(name);
            assert_eq!(data_type.name(), name);
            assert!(data_type.size_bytes().is_some());
        }
    }

    #[test]
    fn names_are_case_sensitive_and_unknown_ones_are_kept() {
        let data_type = DataType::from_name("UINT8");
        assert_eq!(data_type, DataType::Other("UINT8".into()));
        assert_eq!(data_type.name(), "UINT8");
        assert_eq!(data_type.size_bytes(), None);
    }

    #[test]
    fn numpy_strings_name_the_byte_order() {
        assert_eq!(DataType::UInt8.numpy_typestr().as_deref(), Some("|u1"));
        assert_eq!(DataType::Float64.numpy_typestr().as_deref(), Some("<f8"));
    }
}
