//! Keys: names of objects and directories in a store.

use std::fmt;
use std::sync::Arc;

/// Maximum number of path segments in a key.
const MAX_DEPTH: usize = 256;

/// Maximum length of a key in bytes: `PATH_MAX` on Linux. No file with a longer path can be opened.
const MAX_LEN: usize = 4096;

/// Path of an object or directory below the root of a store. The root itself is `""`.
///
/// - Segments are separated by a single `/`, with none at either end.
/// - No segment is empty, `.` or `..`, or contains `/`, a backslash, NUL or another control character.
/// - A key has at most 256 segments and 4,096 bytes.
///
/// Names are compared as bytes: no case folding, no normalisation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

/// Formats the key in quotes, as error messages show it.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Reason why a text is not a valid [`Key`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A segment is not allowed.
    #[error("the path segment {0:?} is not allowed: {1}")]
    Segment(String, &'static str),
    /// The key has too many segments.
    #[error("the path has more than {MAX_DEPTH} segments")]
    Depth,
    /// The key has too many bytes.
    #[error("the path has more than {MAX_LEN} bytes")]
    Length,
}

impl Key {
    /// Returns the key of the root.
    pub fn root() -> Self {
        Self(Arc::from(""))
    }

    /// Creates a key from segments that are already percent-decoded.
    ///
    /// # Errors
    /// Returns a [`KeyError`] with the first segment that is not allowed, or if the key is too deep or too long.
    pub fn from_segments<S: AsRef<str>>(segments: impl IntoIterator<Item = S>) -> Result<Self, KeyError> {
        let mut path = String::new();
        for (depth, segment) in segments.into_iter().enumerate() {
            check_segment(depth, segment.as_ref())?;
            if depth > 0 {
                path.push('/');
            }
            path.push_str(segment.as_ref());
        }
        if path.len() > MAX_LEN { Err(KeyError::Length) } else { Ok(Self(path.into())) }
    }

    /// Parses a key in the form that [`Self::as_str`] returns. Does not accept the root.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::from_segments`].
    pub fn parse(path: &str) -> Result<Self, KeyError> {
        if path.len() > MAX_LEN {
            return Err(KeyError::Length);
        }
        path.split('/').enumerate().try_for_each(|(depth, segment)| check_segment(depth, segment))?;
        Ok(Self(Arc::from(path)))
    }

    /// Returns true if a directory entry of this name can be addressed.
    pub fn is_segment(name: &str) -> bool {
        segment_fault(name).is_none()
    }

    /// Returns the key of the object or directory `name` in this directory.
    ///
    /// # Errors
    /// Returns a [`KeyError`] if `name` is not a valid segment, or if the key becomes too deep or too long.
    pub fn child(&self, name: &str) -> Result<Self, KeyError> {
        Self::from_segments(self.segments().chain([name]))
    }

    /// Returns the key below this one whose segments are the decimal `numbers`.
    #[must_use]
    pub fn join_numbers(&self, numbers: &[u64]) -> Self {
        use fmt::Write;
        let mut path = String::with_capacity(self.0.len() + 8 * numbers.len());
        path.push_str(&self.0);
        for number in numbers {
            let separator = if path.is_empty() { "" } else { "/" };
            // Writing to a String cannot fail.
            let _ = write!(path, "{separator}{number}");
        }
        Self(path.into())
    }

    /// Returns the directory that contains this key, or `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        Some(self.0.rsplit_once('/').map_or_else(Self::root, |(parent, _)| Self(parent.into())))
    }

    /// Returns the last segment, or `None` for the root.
    pub fn name(&self) -> Option<&str> {
        self.segments().next_back()
    }

    /// Returns the segments from the root down.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|segment| !segment.is_empty())
    }

    /// Returns true if this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the segments joined by `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks the segment that follows `depth` other segments.
fn check_segment(depth: usize, segment: &str) -> Result<(), KeyError> {
    match segment_fault(segment) {
        _ if depth >= MAX_DEPTH => Err(KeyError::Depth),
        Some(fault) => Err(KeyError::Segment(segment.to_owned(), fault)),
        None => Ok(()),
    }
}

fn segment_fault(segment: &str) -> Option<&'static str> {
    match segment {
        "" => Some("it is empty"),
        "." | ".." => Some("it is relative"),
        _ if segment.contains('/') => Some("it holds a slash"),
        _ if segment.contains('\\') => Some("it holds a backslash"),
        _ if segment.chars().any(char::is_control) => Some("it holds a control character"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_could_leave_the_root_are_refused() {
        for bad in ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "\u{7f}"] {
            assert!(Key::from_segments(["x", bad]).is_err(), "{bad:?}");
            assert!(!Key::is_segment(bad));
            assert!(bad == "a/b" || Key::parse(&format!("x/{bad}/y")).is_err(), "{bad:?}");
        }
        for good in ["...", "..a", ".zarray", "a b", "a%2Fb", "é", "a:b;c,d+e&f=g?h#i[j]'k\"l<m>n|o*p@q~"] {
            let key = Key::from_segments(["x", good]).unwrap();
            assert_eq!(key.name(), Some(good));
            assert_eq!(Key::parse(&format!("x/{good}")), Ok(key.clone()));
            assert_eq!(key.parent(), Some(Key::from_segments(["x"]).unwrap()));
        }
    }

    #[test]
    fn depth_and_length_are_bounded() {
        assert!(Key::from_segments(vec!["a"; 256]).is_ok());
        assert_eq!(Key::from_segments(vec!["a"; 257]), Err(KeyError::Depth));
        assert!(Key::from_segments(["a".repeat(MAX_LEN)]).is_ok() && Key::parse(&"a".repeat(MAX_LEN)).is_ok());
        assert_eq!(Key::from_segments(["a", &"a".repeat(MAX_LEN)]), Err(KeyError::Length));
        assert_eq!(Key::parse(&"a".repeat(MAX_LEN + 1)), Err(KeyError::Length));
    }

    #[test]
    fn numbers_become_segments() {
        assert_eq!(Key::root().join_numbers(&[0, 17]).as_str(), "0/17");
        let key = Key::from_segments(["a", "b"]).unwrap();
        assert_eq!(key.join_numbers(&[3]).as_str(), "a/b/3");
        assert_eq!(key.join_numbers(&[3]).parent(), Some(key));
    }
}
