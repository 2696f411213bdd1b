//! The environment variables that a launcher has set for this process.

use super::ancestors;
use crate::{Error, Result};

/// The environment variables of this process and its ancestors.
pub(super) struct Variables<'a> {
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    /// See [`super::ancestors::nearest_without`].
    pub(super) started_by: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'static> {
    pub(super) fn of_process() -> Self {
        Self { variable: &|name| std::env::var(name).ok(), started_by: &ancestors::nearest_without }
    }
}

impl Variables<'_> {
    /// A variable that is set and not empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
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
