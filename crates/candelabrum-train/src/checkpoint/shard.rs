//! The names of what a rank writes of its shard of a file, and what a rank needs of it.

use std::ops::Range;

/// What distinguishes the names of files with shards.
pub(super) const SHARD: &str = "-shard-";

/// The part of a saved vector that a rank needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPart {
    /// The dimensions that the vector has here.
    pub dims: Vec<usize>,
    /// The elements, counted from the first one of the whole vector.
    pub elements: Range<usize>,
}

/// A part of a vector in a file, as its name in the file has it.
#[derive(Debug, PartialEq)]
pub(super) struct VectorShard<'k> {
    pub(super) vector: &'k str,
    /// The place of its first value in the vector.
    pub(super) start: usize,
    /// The dimensions of the whole tensor, of which the vector has the values. Optimizers' vectors have none.
    pub(super) dims: Vec<usize>,
}

impl<'k> VectorShard<'k> {
    /// The name of a part of a vector.
    pub(super) fn key(vector: &str, start: usize, dims: &[usize]) -> String {
        let dims: String = dims.iter().map(|dim| format!(",{dim}")).collect();
        format!("{vector}@{start}{dims}")
    }

    /// What [`key`](Self::key) has joined. A vector of a run without shards is whole.
    pub(super) fn from_key(key: &'k str) -> Self {
        let shard = key.rsplit_once('@').and_then(|(vector, numbers)| {
            let numbers = numbers.split(',').map(|number| number.parse().ok());
            let numbers: Vec<usize> = numbers.collect::<Option<_>>()?;
            let (&start, dims) = numbers.split_first()?;
            Some(Self { vector, start, dims: dims.to_vec() })
        });
        shard.unwrap_or(Self { vector: key, start: 0, dims: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_an_at_sign_survives() {
        for dims in [vec![], vec![4, 5]] {
            let key = VectorShard::key("a@b.weight.0", 70, &dims);
            assert_eq!(
                VectorShard::from_key(&key),
                VectorShard { vector: "a@b.weight.0", start: 70, dims }
            );
        }
        let whole = VectorShard { vector: "a@b.weight.0", start: 0, dims: Vec::new() };
        assert_eq!(VectorShard::from_key("a@b.weight.0"), whole);
    }
}
