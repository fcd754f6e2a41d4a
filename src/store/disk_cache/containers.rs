//! The containers whose objects are in the disk cache, and their numbers. An index entry has two bytes for its
//! container.

use std::collections::HashMap;

/// Identity of a container.
#[derive(Debug)]
pub(super) struct ContainerIdentity {
    /// Hash of the text.
    pub(super) hash: u64,
    /// Text without secrets that tells containers apart.
    pub(super) text: Box<str>,
}

/// The containers, by number. A container gets another number when it is forgotten, so that entries that are added
/// later with the old number are recognized.
#[derive(Debug, Default)]
pub(super) struct ContainerTable {
    /// Hash of the container's identity, and true unless the number was given up.
    containers: Vec<(u64, bool)>,
    numbers: HashMap<u64, u16>,
}

impl ContainerTable {
    /// Returns the number of a container. Returns `None` if there is none.
    pub(super) fn number(&self, hash: u64) -> Option<u16> {
        self.numbers.get(&hash).copied()
    }

    /// Returns the number of a container, which gets one if it has none. Returns `None` if all numbers are used.
    pub(super) fn add(&mut self, hash: u64) -> Option<u16> {
        if let Some(number) = self.number(hash) {
            return Some(number);
        }
        let number = u16::try_from(self.containers.len()).ok()?;
        self.containers.push((hash, true));
        self.numbers.insert(hash, number);
        Some(number)
    }

    /// Gives a container another number. Returns the old one, if it had one.
    pub(super) fn renumber(&mut self, hash: u64) -> Option<u16> {
        let number = self.numbers.remove(&hash)?;
        if let Some((_, is_current)) = self.containers.get_mut(usize::from(number)) {
            *is_current = false;
        }
        self.add(hash);
        Some(number)
    }

    /// Returns the hash of the container with this number.
    pub(super) fn hash(&self, number: u16) -> Option<u64> {
        self.containers.get(usize::from(number)).map(|(hash, _)| *hash)
    }

    /// Returns true if a container has this number, and has not been forgotten since it got the number.
    pub(super) fn is_current(&self, number: u16) -> bool {
        self.containers.get(usize::from(number)).is_some_and(|(_, is_current)| *is_current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_container_gets_another_number() {
        let mut table = ContainerTable::default();
        assert_eq!([table.add(7), table.add(8), table.add(7)], [Some(0), Some(1), Some(0)]);
        assert_eq!((table.renumber(7), table.renumber(9)), (Some(0), None));
        assert_eq!((table.number(7), table.add(7), table.number(8)), (Some(2), Some(2), Some(1)));
        assert_eq!([0, 1, 2, 3].map(|number| table.is_current(number)), [false, true, true, false]);
        assert_eq!([0, 1, 2, 3].map(|number| table.hash(number)), [Some(7), Some(8), Some(7), None]);
    }

    #[test]
    fn containers_beyond_the_last_number_have_none() {
        let mut table = ContainerTable::default();
        assert!((0..=u64::from(u16::MAX)).all(|hash| table.add(hash).is_some()));
        assert_eq!((table.add(1 << 20), table.number(1 << 20)), (None, None));
    }
}
