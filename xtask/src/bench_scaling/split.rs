//! The time of a step, split into its parts.

use serde::{Deserialize, Serialize};

/// The whole and its parts: of one sample, or what several came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Split<T> {
    pub(super) total: T,
    pub(super) forward: T,
    pub(super) backward: T,
    pub(super) compress: T,
    pub(super) exposed_communication: T,
    pub(super) decompress: T,
    pub(super) update: T,
    /// What none of the parts accounts for.
    pub(super) other: T,
}

/// A part, or the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
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
    pub(super) const ALL: [Self; 7] = [
        Self::Forward,
        Self::Backward,
        Self::Compress,
        Self::Exposed,
        Self::Decompress,
        Self::Update,
        Self::Other,
    ];

    /// As in a chart.
    pub(super) fn label(self) -> &'static str {
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
    pub(super) fn get(&self, part: Part) -> &T {
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

    /// Makes each part by itself; `None` where one is missing.
    pub(super) fn try_from_parts(make: impl Fn(Part) -> Option<T>) -> Option<Self> {
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
