//! The choice of the device in the environment.

use super::vars;
use crate::{Error, Result};

/// The value of `CANDELABRUM_DEVICE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// A GPU if this build and host have one.
    Auto,
    /// The CPU, even if there is a GPU.
    Cpu,
    /// A GPU: the given one, or the one with the rank's number on its host.
    Cuda(Option<usize>),
}

/// Reads the environment: `auto`, `cpu`, `cuda`, or `cuda:N` for GPU number N on every rank.
///
/// # Errors
/// Any other value.
pub(crate) fn device_choice() -> Result<DeviceChoice> {
    parse(std::env::var(vars::DEVICE).as_deref().unwrap_or("auto"))
}

fn parse(text: &str) -> Result<DeviceChoice> {
    match text.trim() {
        "" | "auto" => Ok(DeviceChoice::Auto),
        "cpu" => Ok(DeviceChoice::Cpu),
        "cuda" => Ok(DeviceChoice::Cuda(None)),
        other => {
            let ordinal = other.strip_prefix("cuda:").and_then(|number| number.parse().ok());
            let ordinal = ordinal.ok_or_else(|| Error::Setting {
                setting: vars::DEVICE,
                value: text.to_owned(),
                range: "auto, cpu, cuda, or cuda:N",
            })?;
            Ok(DeviceChoice::Cuda(Some(ordinal)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_others_refused() -> Result<()> {
        assert_eq!(parse("auto")?, DeviceChoice::Auto);
        assert_eq!(parse("cpu")?, DeviceChoice::Cpu);
        assert_eq!(parse("cuda")?, DeviceChoice::Cuda(None));
        assert_eq!(parse("cuda:3")?, DeviceChoice::Cuda(Some(3)));
        for text in ["gpu", "cuda:", "cuda:x", "cuda:-1"] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains(text) && message.contains("cuda:N"), "{message}");
        }
        Ok(())
    }
}
