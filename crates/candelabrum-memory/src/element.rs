//! The types of numbers that can be stored and sent.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

/// The type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision; sums are accumulated in f32.
    F16,
    /// bfloat16; sums are accumulated in f32.
    Bf16,
    /// Signed 32-bit integers; sums and products wrap.
    I32,
    /// Bytes; sums and products wrap.
    U8,
    /// IEEE double precision.
    F64,
    /// Signed 64-bit integers; sums and products wrap.
    I64,
}

impl ElementType {
    /// All types, for tests and tables.
    pub const ALL: [Self; 7] =
        [Self::F32, Self::F16, Self::Bf16, Self::I32, Self::U8, Self::F64, Self::I64];

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    /// Whether a mean is possible.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::F64)
    }

    /// The type's number on the wire and in files; [`Self::from_code`] reads it.
    pub fn code(self) -> u8 {
        Self::ALL.iter().position(|&t| t == self).unwrap_or_default() as u8
    }

    /// The type with this number, or `None` if there is none.
    pub fn from_code(code: u8) -> Option<Self> {
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
            Self::F64 => "f64",
            Self::I64 => "i64",
        })
    }
}

/// A Rust type of numbers that can be stored and sent.
pub trait Element: Pod + PartialEq + fmt::Debug + Send + Sync {
    /// The type's name.
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
impl Element for f64 {
    const TYPE: ElementType = ElementType::F64;
}
impl Element for i64 {
    const TYPE: ElementType = ElementType::I64;
}
