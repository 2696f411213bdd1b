//! The environment variables that a launcher has set for this process.

use std::time::Duration;

use super::{ancestors, vars};
use crate::{Error, Result};

/// How often `candelabrum run` has started this job again after a failure. It is 0 at the first start,
/// and under every other launcher.
///
/// # Errors
/// A value of CANDELABRUM_RESTART that is not a number.
pub fn restarts() -> Result<usize> {
    Ok(Variables::of_process().number(&[vars::RESTART])?.unwrap_or(0))
}

/// The number of compute threads for each rank that the user gave to `candelabrum run`, if any.
///
/// # Errors
/// A value of CANDELABRUM_THREADS that is not a number above 0.
pub fn threads_of_launcher() -> Result<Option<usize>> {
    let threads = Variables::of_process().number(&[vars::THREADS])?;
    if threads == Some(0) {
        let (setting, range) = (vars::THREADS, "a number above 0");
        return Err(Error::Setting { setting, value: "0".to_owned(), range });
    }
    Ok(threads)
}

/// The time in an environment variable, if it is set.
///
/// # Errors
/// A value that is not a number of seconds above 0.
pub(super) fn seconds(name: &'static str) -> Result<Option<Duration>> {
    let Some(text) = Variables::of_process().get(name) else { return Ok(None) };
    let seconds = text.trim().parse::<f64>().ok();
    let time = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).filter(|d| !d.is_zero());
    let range = "a number of seconds above 0";
    time.map(Some).ok_or(Error::Setting { setting: name, value: text, range })
}

/// The environment variables of this process and its ancestors.
pub(super) struct Variables<'a> {
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The names of all variables.
    pub(super) names: &'a dyn Fn() -> Vec<String>,
    /// See [`super::ancestors::nearest_without`].
    pub(super) started_by: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'static> {
    pub(super) fn of_process() -> Self {
        Self {
            // A text that is not UTF-8 is a value, too, and no number.
            variable: &|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()),
            names: &|| {
                let names = std::env::vars_os().map(|(name, _)| name);
                names.map(|name| name.to_string_lossy().into_owned()).collect()
            },
            started_by: &ancestors::nearest_without,
        }
    }
}

impl Variables<'_> {
    /// A variable that is set and not empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// The names of all variables, in no order.
    pub(super) fn names(&self) -> Vec<String> {
        (self.names)()
    }

    /// The launcher's process, see [`super::ancestors::nearest_without`].
    pub(super) fn started_by(&self, variable: &str) -> Option<String> {
        (self.started_by)(variable)
    }

    /// The number in the first of these variables that is set.
    pub(super) fn number(&self, names: &[&str]) -> Result<Option<usize>> {
        let Some((name, text)) = names.iter().find_map(|name| Some((name, self.get(name)?))) else {
            return Ok(None);
        };
        let parsed = text.trim().parse().map_err(|_| Error::Launch {
            what: format!("{name} is `{text}` in the environment, not a number"),
        })?;
        Ok(Some(parsed))
    }

    /// The same number, which must be there.
    pub(super) fn need(&self, names: &[&str]) -> Result<usize> {
        self.number(names)?.ok_or_else(|| Error::Launch {
            what: format!("{} is not set in the environment, although its partners are", names[0]),
        })
    }
}
