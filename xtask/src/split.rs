//! The time of a step, split into its parts.

use serde::{Deserialize, Serialize};

/// The whole time and its parts, of one sample or summarised over several.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Split<T> {
    pub(crate) total: T,
    pub(crate) forward: T,
    pub(crate) backward: T,
    pub(crate) compress: T,
    pub(crate) exposed_communication: T,
    pub(crate) decompress: T,
    pub(crate) update: T,
    /// The rest of the time, which no part contains.
    pub(crate) other: T,
}

/// A part, or the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Total,
    Forward,
    Backward,
    Compress,
    Exposed,
    Decompress,
    Update,
    Other,
}

impl Part {
    /// The parts without the whole, in the order of a step.
    pub(crate) const ALL: [Self; 7] = [
        Self::Forward,
        Self::Backward,
        Self::Compress,
        Self::Exposed,
        Self::Decompress,
        Self::Update,
        Self::Other,
    ];

    /// The name in a chart.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Total => "step",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Compress => "compress",
            Self::Exposed => "exposed communication",
            Self::Decompress => "decompress",
            Self::Update => "update",
            Self::Other => "other",
        }
    }
}

impl<T> Split<T> {
    pub(crate) fn get(&self, part: Part) -> &T {
        match part {
            Part::Total => &self.total,
            Part::Forward => &self.forward,
            Part::Backward => &self.backward,
            Part::Compress => &self.compress,
            Part::Exposed => &self.exposed_communication,
            Part::Decompress => &self.decompress,
            Part::Update => &self.update,
            Part::Other => &self.other,
        }
    }

    /// Makes each part separately. `None` if one is missing.
    pub(crate) fn try_from_parts(make: impl Fn(Part) -> Option<T>) -> Option<Self> {
        Some(Self {
            total: make(Part::Total)?,
            forward: make(Part::Forward)?,
            backward: make(Part::Backward)?,
            compress: make(Part::Compress)?,
            exposed_communication: make(Part::Exposed)?,
            decompress: make(Part::Decompress)?,
            update: make(Part::Update)?,
            other: make(Part::Other)?,
        })
    }
}
