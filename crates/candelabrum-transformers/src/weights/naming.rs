//! How the names in files differ from a model's names.

/// How the names in files differ from a model's names.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Naming {
    /// The part of a model that other models share, `bert` for instance: files of it alone have names without it.
    pub(crate) base: &'static str,
    /// Whether this parameter is stored transposed, `(inputs, outputs)`.
    pub(crate) is_transposed: Option<fn(&str) -> bool>,
    /// Whether files may have this tensor although no model of ours uses it.
    pub(crate) is_known: Option<fn(&str) -> bool>,
    /// Whether this tensor is written again with the model although no layer of it uses it.
    pub(crate) is_kept: Option<fn(&str) -> bool>,
    /// Whether heads in the files are of another task, and left out.
    pub(crate) skips_heads: bool,
    /// The matrix that makes logits, and the table that it is one with in a model whose weights are tied.
    pub(crate) tied: Option<(&'static str, &'static str)>,
    /// Whether files may have heads of any task. The parts of the body are never left out.
    pub(crate) has_other_heads: bool,
}

impl Naming {
    /// Whether this parameter is stored transposed.
    pub(super) fn transposes(&self, name: &str) -> bool {
        self.is_transposed.is_some_and(|is_transposed| is_transposed(name))
    }

    /// Whether the results of a model that leaves out this tensor may be others.
    pub(crate) fn is_of_body(&self, name: &str) -> bool {
        const BODY: [&str; 4] = ["embeddings.", "encoder.", "transformer.", "layernorm."];
        let own = name.strip_prefix(self.base).and_then(|own| own.strip_prefix('.'));
        let own = own.unwrap_or(name);
        !self.has_other_heads || BODY.iter().any(|part| own.starts_with(part))
    }

    pub(crate) fn without_heads(self, skips_heads: bool) -> Self {
        Self { skips_heads, ..self }
    }

    pub(crate) fn keeping(self, is_kept: fn(&str) -> bool) -> Self {
        Self { is_kept: Some(is_kept), ..self }
    }
}
