//! Where the memory of a training step was.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The memory of rank 0 in a step, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The number of steps done since the beginning of the run, this one included.
    pub step: u64,
    /// The kind of memory: `heap` for that of a process, `GPU` for that of a GPU.
    pub place: String,
    /// What the memory was for, in the order of a step. If `peak` is known, this is the memory when that was reached.
    pub parts: Vec<Amount>,
    /// Of the part of saved activations, what each layer had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Amount>,
    /// The most memory in the step, as the allocator counts, with this rank's part of shared memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<u64>,
    /// The most memory of the process in the step, as the system counts. It has more than the peak: the program and its
    /// libraries, stacks, memory that ranks share, and what an allocator keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u64>,
    /// Of `process`, what is no heap: code and data of the program and its libraries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<u64>,
    /// Of `process`, memory of other ranks that it has looked into: ranks of a host share the memory of messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<u64>,
    /// `process` of each rank. 0 where a rank does not know it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u64>,
}

/// So many bytes for something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// What has them.
    pub name: String,
    /// The bytes.
    pub bytes: u64,
}

impl Amount {
    /// So many bytes for this.
    pub fn new(name: impl Into<String>, bytes: usize) -> Self {
        Self { name: name.into(), bytes: bytes as u64 }
    }
}

impl Memory {
    /// The layers whose paths differ in numbers alone, as one: `blocks.*.attention` with the number of such layers and
    /// their bytes together. The largest ones first.
    pub fn similar_layers(&self) -> Vec<(String, usize, u64)> {
        let mut groups: Vec<(String, usize, u64)> = Vec::new();
        for Amount { name, bytes } in &self.layers {
            let pattern = pattern(name);
            let is_similar = |(known, ..): &&mut (String, _, _)| self::pattern(known) == pattern;
            if let Some((known, count, sum)) = groups.iter_mut().find(is_similar) {
                (*known, *count, *sum) = (pattern, *count + 1, *sum + bytes);
            } else {
                // A layer alone keeps its own name.
                groups.push((name.clone(), 1, *bytes));
            }
        }
        groups.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
        groups
    }

    /// What is known beside the parts, by name: the peaks, and what makes the difference between them.
    pub fn totals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let totals = [
            ("peak of the allocations", self.peak),
            ("program and libraries", self.program),
            ("memory of other ranks, shared with them", self.shared),
            ("kept by the allocator, stacks and all else", self.unexplained()),
            ("peak of the process, by the system", self.process),
        ];
        let known = totals.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
        known.filter(|(_, bytes)| *bytes > 0)
    }

    /// What the process has beside the peak of its allocations, the program, and memory of other ranks: what an
    /// allocator keeps, and the stacks of threads.
    pub fn unexplained(&self) -> Option<u64> {
        Some(self.process?.saturating_sub(self.peak? + self.program? + self.shared?))
    }
}

/// A path with `*` in place of each part that is a number. The empty path, after the last layer, has no such part.
fn pattern(path: &str) -> String {
    let is_number =
        |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = path.split('.').map(|part| if is_number(&part) { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

/// The most groups of layers in the table.
const MOST_GROUPS: usize = 12;

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Memory of rank 0 in step {} ({}), in MB:", self.step, self.place)?;
        let mut line =
            |name: &str, bytes: u64| writeln!(f, "{name:<44} {:>10.1}", bytes as f64 / 1e6);
        for Amount { name, bytes } in &self.parts {
            line(&format!("  {name}"), *bytes)?;
            if name == SAVED {
                let groups = self.similar_layers();
                let (shown, others) = groups.split_at(groups.len().min(MOST_GROUPS));
                for (pattern, count, bytes) in shown {
                    let name = if pattern.is_empty() { "after the last layer" } else { pattern };
                    let times = if *count > 1 { format!(" × {count}") } else { String::new() };
                    line(&format!("    {name}{times}"), *bytes)?;
                }
                if !others.is_empty() {
                    let rest = others.iter().map(|(_, _, bytes)| bytes).sum();
                    line(&format!("    {} more", others.len()), rest)?;
                }
            }
        }
        for (name, bytes) in self.totals() {
            line(name, bytes)?;
        }
        if self.ranks.len() > 1 {
            let ranks = self.ranks.iter().map(|bytes| format!("{:.1}", *bytes as f64 / 1e6));
            writeln!(
                f,
                "peak of the process of each rank: {}",
                ranks.collect::<Vec<_>>().join(", ")
            )?;
        }
        Ok(())
    }
}

/// The name of the part of which [`Memory::layers`] are.
pub const SAVED: &str = "saved for the backward pass";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_model_is_not_similar_to_layers_that_are_numbers() {
        let layers = [("0", 3), ("1", 4), ("", 1)].map(|(name, bytes)| Amount::new(name, bytes));
        let memory = Memory { layers: layers.into(), ..Memory::default() };
        let expected = [("*", 2, 7), ("", 1, 1)];
        let expected = expected.map(|(name, count, bytes)| (name.to_owned(), count, bytes));
        assert_eq!(memory.similar_layers(), expected);
    }

    #[test]
    fn similar_layers_are_one_and_a_layer_alone_keeps_its_name() {
        let layers = ["blocks.0.mlp", "blocks.1.mlp", "head.2", ""];
        let layers = layers.iter().zip([3, 4, 9, 1]).map(|(name, bytes)| Amount::new(*name, bytes));
        let memory = Memory {
            parts: vec![Amount::new(SAVED, 17)],
            layers: layers.collect(),
            peak: Some(70),
            program: Some(20),
            shared: Some(5),
            process: Some(100),
            ..Memory::default()
        };
        let expected = [("head.2", 1, 9), ("blocks.*.mlp", 2, 7), ("", 1, 1)];
        let expected = expected.map(|(name, count, bytes)| (name.to_owned(), count, bytes));
        assert_eq!(memory.similar_layers(), expected);
        assert_eq!(memory.unexplained(), Some(5));
        let text = memory.to_string();
        assert!(
            text.contains("    blocks.*.mlp × 2") && text.contains("after the last layer"),
            "{text}"
        );
    }
}
