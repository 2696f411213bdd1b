//! Ranks in rows and columns.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Ranks in rows and columns: PyTorch's device mesh with the dimensions *replicate* and *shard*. The ranks of a row have
/// all shards together ([`Shard`](crate::Shard)), so the rows are copies of each other. A reduction goes along the rows
/// first, and then across them. Usually a row is a host, because memory is faster than a network.
///
/// ```
/// use candelabrum_dist::Mesh;
///
/// let mesh = Mesh::replicate(2, 6)?; // two copies of all shards, by neighbours
/// assert_eq!(mesh.rows(), [0, 0, 0, 1, 1, 1]);
/// assert_eq!((mesh.row_of(4), mesh.column_of(4)), (vec![3, 4, 5], vec![1, 4]));
/// # Ok::<(), candelabrum_dist::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// By rank: the number of its row.
    rows: Vec<usize>,
}

impl Mesh {
    /// The row of each rank, as a number. It may be any number.
    pub fn new(rows: Vec<usize>) -> Self {
        Self { rows }
    }

    /// `copies` rows of neighbours among `ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Setting`] if the ranks cannot be divided equally.
    pub fn replicate(copies: usize, ranks: usize) -> Result<Self> {
        if copies == 0 || !ranks.is_multiple_of(copies) {
            let (setting, value) = ("replicate", format!("{copies} with {ranks} rank(s)"));
            let range = "a number by which the number of ranks can be divided";
            return Err(Error::Setting { setting, value, range });
        }
        let row = ranks / copies;
        Ok(Self { rows: (0..ranks).map(|rank| rank / row).collect() })
    }

    /// By rank: the number of its row.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// Whether all rows have equally many ranks, so that they can be copies of each other.
    pub fn is_even(&self) -> bool {
        (0..self.rows.len()).all(|rank| self.row_of(rank).len() == self.row_of(0).len())
    }

    /// The ranks of a rank's row, in rank order.
    pub fn row_of(&self, rank: usize) -> Vec<usize> {
        (0..self.rows.len()).filter(|other| self.rows[*other] == self.rows[rank]).collect()
    }

    /// A rank's place in its row, counted from 0.
    pub fn place_of(&self, rank: usize) -> usize {
        self.row_of(rank).iter().take_while(|other| **other < rank).count()
    }

    /// The ranks with a rank's place in their rows, in the order of the rows' lowest ranks.
    pub fn column_of(&self, rank: usize) -> Vec<usize> {
        let place = self.place_of(rank);
        let firsts = (0..self.rows.len()).filter(|other| self.place_of(*other) == 0);
        firsts.filter_map(|first| self.row_of(first).get(place).copied()).collect()
    }

    /// # Errors
    /// [`Error::Length`] if the mesh has not one place for each of `expected` ranks.
    pub(super) fn check(&self, expected: usize) -> Result<()> {
        let got = self.rows.len();
        if got == expected {
            Ok(())
        } else {
            Err(Error::Length { op: "hierarchical", expected, got })
        }
    }
}

/// How many copies of all shards the ranks keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replicate {
    /// One on each host.
    Hosts,
    /// So many, each by as many neighbours.
    Copies(usize),
}

impl FromStr for Replicate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match (text, text.parse()) {
            ("hosts", _) => Ok(Self::Hosts),
            (_, Ok(copies)) if copies > 0 => Ok(Self::Copies(copies)),
            _ => {
                let (setting, value) = ("replicate", text.to_owned());
                Err(Error::Setting { setting, value, range: "a number of copies, or hosts" })
            }
        }
    }
}

impl fmt::Display for Replicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosts => f.write_str("hosts"),
            Self::Copies(copies) => copies.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_rank_is_in_its_row_and_in_its_column(rows in prop::collection::vec(0..4_usize, 1..9)) {
            let mesh = Mesh::new(rows);
            for rank in 0..mesh.rows().len() {
                let (row, column) = (mesh.row_of(rank), mesh.column_of(rank));
                prop_assert_eq!(row[mesh.place_of(rank)], rank);
                prop_assert!(column.contains(&rank));
                prop_assert!(column.iter().all(|other| mesh.place_of(*other) == mesh.place_of(rank)));
                let shared: Vec<_> = row.iter().filter(|other| column.contains(other)).collect();
                prop_assert_eq!(shared, [&rank]);
            }
        }
    }

    #[test]
    fn copies_are_equal_parts() {
        assert!(Mesh::replicate(3, 6).unwrap().is_even());
        assert!(!Mesh::new(vec![0, 0, 1]).is_even());
        for copies in [0, 4] {
            let error = Mesh::replicate(copies, 6).unwrap_err().to_string();
            assert!(error.contains("replicate is"), "{error}");
        }
    }
}
