//! Labels for the names of classes.
//!
//! A label must not depend on the order of the rows, so classes are numbered by their names once all
//! rows are read. Classes that are known before keep their numbers.

use std::collections::BTreeMap;

/// Numbers for the names of classes, at first in the order in which they appear.
#[derive(Debug)]
pub(crate) struct Classes {
    numbers: BTreeMap<String, u32>,
    /// The names in the order of their numbers, if they were known before.
    known: Option<Vec<String>>,
}

impl Classes {
    /// Classes that are known in this order, or none yet.
    pub(crate) fn new(known: Option<&[String]>) -> Self {
        let known = known.map(<[String]>::to_vec);
        let numbers = known.iter().flatten().cloned().zip(0..).collect();
        Self { numbers, known }
    }

    /// Whether there can be no other classes.
    pub(crate) fn are_known(&self) -> bool {
        self.known.is_some()
    }

    /// The number of classes so far.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The number of a class. `None`: it is not one of those that are known.
    pub(crate) fn number(&mut self, name: &str) -> Option<u32> {
        let found = self.numbers.get(name).copied();
        if found.is_some() || self.known.is_some() {
            return found;
        }
        let number = self.numbers.len() as u32; // there are fewer classes than rows
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    /// The known names, or all names in alphabetical order. Then the labels are renumbered to it.
    pub(crate) fn sorted(self, labels: &mut [u32]) -> Vec<String> {
        if let Some(known) = self.known {
            return known;
        }
        let mut renumbered = vec![0; self.numbers.len()];
        let numbers = self.numbers.values().zip(0..);
        numbers.for_each(|(&number, place)| renumbered[number as usize] = place);
        labels.iter_mut().for_each(|label| *label = renumbered[*label as usize]);
        self.numbers.into_keys().collect()
    }
}
