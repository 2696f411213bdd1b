//! The translation of another library's names into those of a model.

/// Translates the names of a file. Rules apply in the order in which they were added.
///
/// ```
/// use candelabrum_nn::NameMap;
///
/// let names = NameMap::new()
///     .strip_prefix("module.")              // of PyTorch's DDP
///     .rename("downsample.0", "shortcut.conv")
///     .skip("num_batches_tracked");
/// assert_eq!(names.translate("module.layer2.0.downsample.0.weight").as_deref(),
///            Some("layer2.0.shortcut.conv.weight"));
/// assert_eq!(names.translate("module.bn1.num_batches_tracked"), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct NameMap {
    rules: Vec<NameRule>,
    transposed: Vec<String>,
}

#[derive(Clone, Debug)]
enum NameRule {
    StripPrefix(String),
    AddPrefix(String),
    Rename { from: String, to: String },
    Skip(String),
}

impl NameMap {
    /// The file's names are those of the model. PyTorch's counters of batches
    /// (`num_batches_tracked`) are skipped.
    pub fn new() -> Self {
        Self::default().skip("num_batches_tracked")
    }

    /// Removes `prefix` from the names that begin with it.
    #[must_use]
    pub fn strip_prefix(mut self, prefix: &str) -> Self {
        self.rules.push(NameRule::StripPrefix(prefix.to_owned()));
        self
    }

    /// Puts `prefix` before every name.
    #[must_use]
    pub fn add_prefix(mut self, prefix: &str) -> Self {
        self.rules.push(NameRule::AddPrefix(prefix.to_owned()));
        self
    }

    /// Replaces every `from` in a name by `to`.
    #[must_use]
    pub fn rename(mut self, from: &str, to: &str) -> Self {
        self.rules.push(NameRule::Rename { from: from.to_owned(), to: to.to_owned() });
        self
    }

    /// Leaves out the names that contain `part`.
    #[must_use]
    pub fn skip(mut self, part: &str) -> Self {
        self.rules.push(NameRule::Skip(part.to_owned()));
        self
    }

    /// Transposes the matrices whose names in the file contain `part`: GPT-2's files store the weights of
    /// linear layers as (in, out).
    #[must_use]
    pub fn transpose(mut self, part: &str) -> Self {
        self.transposed.push(part.to_owned());
        self
    }

    /// The model's name for a name of the file; `None` if it is left out.
    pub fn translate(&self, name: &str) -> Option<String> {
        let mut name = name.to_owned();
        for rule in &self.rules {
            match rule {
                NameRule::StripPrefix(prefix) => {
                    if let Some(rest) = name.strip_prefix(prefix.as_str()) {
                        name = rest.to_owned();
                    }
                }
                NameRule::AddPrefix(prefix) => name = format!("{prefix}{name}"),
                NameRule::Rename { from, to } => name = name.replace(from.as_str(), to),
                NameRule::Skip(part) => {
                    if name.contains(part.as_str()) {
                        return None;
                    }
                }
            }
        }
        Some(name)
    }

    pub(super) fn is_transposed(&self, name: &str) -> bool {
        self.transposed.iter().any(|part| name.contains(part.as_str()))
    }
}
