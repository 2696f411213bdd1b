//! The element types that travel.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

/// The type of a buffer's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision; sums are accumulated in f32.
    F16,
    /// bfloat16; sums are accumulated in f32.
    Bf16,
    /// Signed 32-bit integers; sums wrap.
    I32,
    /// Bytes; sums wrap.
    U8,
}

impl ElementType {
    /// Every type, for tests and tables.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::I32, Self::U8];

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    /// Whether a mean makes sense.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    pub(crate) fn code(self) -> u8 {
        Self::ALL.iter().position(|&t| t == self).unwrap_or_default() as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::U8 => "u8",
        })
    }
}

/// A Rust type that can travel.
pub trait Element: Pod + PartialEq + fmt::Debug + Send + Sync {
    /// Its name on the wire.
    const TYPE: ElementType;
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;
}
impl Element for f16 {
    const TYPE: ElementType = ElementType::F16;
}
impl Element for bf16 {
    const TYPE: ElementType = ElementType::Bf16;
}
impl Element for i32 {
    const TYPE: ElementType = ElementType::I32;
}
impl Element for u8 {
    const TYPE: ElementType = ElementType::U8;
}
