//! A model as Python's `transformers` and `peft` know it: the task, the class, and the names of modules.
//!
//! Parameters have the names of Hugging Face's files, which are those of Python's modules too, but for a ViT: version 5
//! of `transformers` renames its modules when it reads a file.

use candelabrum_nn::Params;

/// Modules of a ViT: in files and here, and in version 5 of `transformers`. The first one begins a name, and none of the
/// others is part of one before it.
const VIT: [(&str, &str); 7] = [
    ("vit.encoder.layer.", "vit.layers."),
    (".attention.attention.query", ".attention.q_proj"),
    (".attention.attention.key", ".attention.k_proj"),
    (".attention.attention.value", ".attention.v_proj"),
    (".attention.output.dense", ".attention.o_proj"),
    (".intermediate.dense", ".mlp.fc1"),
    (".output.dense", ".mlp.fc2"),
];

/// The name in Python of what is called `ours` here.
pub(super) fn to_python(ours: &str) -> String {
    renamed(ours, VIT)
}

/// The name here of what Python calls `theirs`. Names of earlier versions are those of the files.
pub(super) fn from_python(theirs: &str) -> String {
    renamed(theirs, VIT.map(|(ours, theirs)| (theirs, ours)))
}

fn renamed(name: &str, pairs: [(&str, &str); 7]) -> String {
    if !name.starts_with(pairs[0].0) {
        return name.to_owned();
    }
    pairs.into_iter().fold(name.to_owned(), |name, (from, to)| name.replacen(from, to, 1))
}

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskType {
    /// A language model, with the table of its tokens.
    Causal(&'static str),
    /// A classifier of texts.
    Texts,
    /// A classifier of images.
    Images,
    /// An encoder without a head.
    Features,
}

/// A parameter by which a family is known, in the model of each task.
const TASKS: [(&str, TaskType); 7] = [
    ("model.embed_tokens.weight", TaskType::Causal("model.embed_tokens.weight")),
    ("transformer.wte.weight", TaskType::Causal("transformer.wte.weight")),
    ("bert.embeddings.word_embeddings.weight", TaskType::Texts),
    ("roberta.embeddings.word_embeddings.weight", TaskType::Texts),
    ("distilbert.embeddings.word_embeddings.weight", TaskType::Texts),
    ("vit.embeddings.cls_token", TaskType::Images),
    ("embeddings.word_embeddings.weight", TaskType::Features),
];

impl TaskType {
    /// The task of the model whose parameters these are. `None` for a model of another crate.
    pub(super) fn from_params(params: &Params) -> Option<Self> {
        let is_known = |(name, _): &&(&str, Self)| has(params, name);
        TASKS.iter().find(is_known).map(|(_, task)| *task)
    }

    /// `peft`'s name of the task. `None` for one that `peft` does not know.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Self::Causal(_) => Some("CAUSAL_LM"),
            Self::Texts => Some("SEQ_CLS"),
            Self::Features => Some("FEATURE_EXTRACTION"),
            Self::Images => None,
        }
    }
}

/// The table that is also the model's output matrix, and the name of this matrix in Python.
pub(super) fn tied(params: &Params) -> Option<(&'static str, &'static str)> {
    const HEAD: &str = "lm_head.weight";
    match TaskType::from_params(params)? {
        TaskType::Causal(table) if !has(params, HEAD) => Some((table, HEAD)),
        _ => None,
    }
}

/// Whether the model has a parameter or a quantised matrix of this name.
fn has(params: &Params, name: &str) -> bool {
    params.get(name).is_ok() || params.constants().iter().any(|(other, _)| other == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_vit_are_those_of_both_versions() {
        for (ours, theirs) in [
            ("vit.encoder.layer.3.attention.attention.query", "vit.layers.3.attention.q_proj"),
            ("vit.encoder.layer.0.attention.output.dense", "vit.layers.0.attention.o_proj"),
            ("vit.encoder.layer.1.intermediate.dense", "vit.layers.1.mlp.fc1"),
            ("vit.encoder.layer.1.output.dense", "vit.layers.1.mlp.fc2"),
            ("vit.encoder.layer.1.layernorm_before", "vit.layers.1.layernorm_before"),
            ("vit.embeddings.position_embeddings", "vit.embeddings.position_embeddings"),
            ("bert.encoder.layer.0.output.dense", "bert.encoder.layer.0.output.dense"),
        ] {
            assert_eq!((&*to_python(ours), &*from_python(theirs)), (theirs, ours));
            assert_eq!(from_python(ours), ours);
        }
    }
}
