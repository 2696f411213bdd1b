//! The choice of the device on which a rank computes.

use std::fmt;
use std::str::FromStr;

use super::variables::Variables;
use super::vars;
use crate::{Error, Result};

/// The device on which a rank computes. Its text is `auto`, `cpu`, `cuda` or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// A GPU if this build and host have one, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU, even if there is a GPU.
    Cpu,
    /// A GPU: the given one, or the one with the rank's number on its host.
    Cuda(Option<usize>),
}

impl DeviceChoice {
    /// The value of the environment variable `CANDELABRUM_DEVICE`, or `auto` without it.
    ///
    /// # Errors
    /// Any other text than those of [`DeviceChoice`].
    pub fn from_env() -> Result<Self> {
        Variables::of_process().get(vars::DEVICE).map_or(Ok(Self::Auto), |text| text.parse())
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "" | "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(None)),
            other => {
                let ordinal = other.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                let ordinal = ordinal.ok_or_else(|| Error::Setting {
                    setting: "the device",
                    value: text.to_owned(),
                    range: "auto, cpu, cuda, or cuda:N",
                })?;
                Ok(Self::Cuda(Some(ordinal)))
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(ordinal)) => write!(f, "cuda:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written_and_others_refused() -> Result<()> {
        for (text, device) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::Cuda(None)),
            ("cuda:3", DeviceChoice::Cuda(Some(3))),
        ] {
            assert_eq!(text.parse::<DeviceChoice>()?, device);
            assert_eq!(device.to_string(), text);
        }
        for text in ["gpu", "cuda:", "cuda:x", "cuda:-1"] {
            let message = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(message.contains(text) && message.contains("cuda:N"), "{message}");
        }
        Ok(())
    }
}
