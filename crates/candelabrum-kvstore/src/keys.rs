//! The keys that a worker knows, and their numbers.

use std::collections::BTreeMap;

use crate::{Error, Key, Result};

/// Names of known keys in a message.
const SHOWN: usize = 12;

/// The keys of a store, numbered in the order of their initialisation, with what is known of each.
#[derive(Debug)]
pub(crate) struct KeyTable<T> {
    /// The rank of this process, for errors.
    rank: usize,
    numbers: BTreeMap<Key, u32>,
    entries: Vec<T>,
}

impl<T> KeyTable<T> {
    pub(crate) fn new(rank: usize) -> Self {
        Self { rank, numbers: BTreeMap::new(), entries: Vec::new() }
    }

    /// Returns an error if `key` cannot be the next one.
    pub(crate) fn check_new(&self, key: &Key) -> Result<()> {
        let (rank, key) = (self.rank, key.clone());
        if self.numbers.contains_key(&key) {
            return Err(Error::KeyTwice { rank, key });
        }
        match self.numbers.keys().next() {
            Some(other) if other.kind() != key.kind() => {
                Err(Error::KeyKinds { rank, kind: key.kind(), key })
            }
            _ => Ok(()),
        }
    }

    /// Adds a key. Returns its number.
    pub(crate) fn insert(&mut self, key: &Key, entry: T) -> Result<u32> {
        self.check_new(key)?;
        let number = self.entries.len() as u32;
        self.numbers.insert(key.clone(), number);
        self.entries.push(entry);
        Ok(number)
    }

    pub(crate) fn find(&self, key: &Key) -> Result<(u32, &T)> {
        let number = self.numbers.get(key).copied().ok_or_else(|| self.unknown(key))?;
        Ok((number, &self.entries[number as usize]))
    }

    pub(crate) fn find_mut(&mut self, key: &Key) -> Result<(u32, &mut T)> {
        let (number, _) = self.find(key)?;
        Ok((number, self.entry_mut(number)))
    }

    /// The entry of a number that [`Self::find`] has returned.
    pub(crate) fn entry_mut(&mut self, number: u32) -> &mut T {
        &mut self.entries[number as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All keys in their order, which is not the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &T)> {
        self.numbers.iter().map(|(key, number)| (key, &self.entries[*number as usize]))
    }

    /// The entries of all keys.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut()
    }

    fn unknown(&self, key: &Key) -> Error {
        let known: Vec<String> = self.numbers.keys().take(SHOWN).map(Key::to_string).collect();
        let known = match self.len() {
            0 => "no key was".to_owned(),
            all if all > SHOWN => format!("{} and {} more were", known.join(", "), all - SHOWN),
            _ => format!("these were: {}", known.join(", ")),
        };
        Error::UnknownKey { rank: self.rank, key: key.clone(), known }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_of_one_kind_and_known_once() {
        let mut keys = KeyTable::new(3);
        assert_eq!(keys.insert(&"w".into(), ()).unwrap(), 0);
        assert_eq!(keys.insert(&"a".into(), ()).unwrap(), 1);
        assert_eq!(keys.find(&"w".into()).unwrap().0, 0);
        let message = keys.insert(&"w".into(), ()).unwrap_err().to_string();
        assert_eq!(message, "rank 3: the key `w` was already initialised");
        let message = keys.insert(&7.into(), ()).unwrap_err().to_string();
        assert!(message.contains("rank 3: the key `7` is a number"), "{message}");
        let message = keys.find(&"b".into()).unwrap_err().to_string();
        assert!(message.contains("rank 3: the key `b`") && message.contains("a, w"), "{message}");
    }
}
