//! The types of numbers that can be stored and sent.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

/// The type of a number. The variants are in the order of their numbers on the wire and in files.
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

/// Defines what follows from the Rust type of each variant.
macro_rules! elements {
    ($($name:ident $type:ident),*) => {
        impl ElementType {
            /// All types, for tests and tables.
            pub const ALL: [Self; [$(Self::$name),*].len()] = [$(Self::$name),*];

            /// Bytes per element.
            pub fn size(self) -> usize {
                match self { $(Self::$name => size_of::<$type>()),* }
            }
        }

        impl fmt::Display for ElementType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$name => stringify!($type)),* })
            }
        }

        $(impl Element for $type {
            const TYPE: ElementType = ElementType::$name;
        })*
    };
}

elements!(F32 f32, F16 f16, Bf16 bf16, I32 i32, U8 u8, F64 f64, I64 i64);

impl ElementType {
    /// Whether a mean is possible.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::F64)
    }

    /// The type's number on the wire and in files; [`Self::from_code`] reads it.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The type with this number, or `None` if there is none.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// A Rust type of numbers that can be stored and sent.
pub trait Element: Pod + PartialEq + fmt::Debug + Send + Sync {
    /// The type's name.
    const TYPE: ElementType;
}
