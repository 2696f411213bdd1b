//! A pretrained encoder with a head that classifies texts or images.

use std::collections::BTreeSet;
use std::path::Path;

use candelabrum_nn::ops::{self, CrossEntropyConfig, Reduction};
use candelabrum_nn::{LoadReport, Model, Params};
use candle_core::{DType, Result as CandleResult, Tensor, bail};
use serde_json::{Value, json};

use crate::IGNORED;
use crate::companions::IMAGES;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::models::{BertHead, DistilBertHead, TextEncoder, VitHead, family};
use crate::networks::EncoderNet;
use crate::neutral::CLASSES;
use crate::pretrained::{FolderTask, Pretrained};
use crate::source_files::SourceFiles;
use crate::tokenizer::Tokenizer;

/// A pretrained encoder with a head: tokens `(N, T)` (padded at the end), or images `(N, C, H, W)`, to logits
/// `(N, classes)`. Tokens of pairs of texts have their types beside them, `(N, 2, T)`:
/// [`Tokenizer::encode_pair`] gives both rows.
///
/// [`Pretrained::classifier`] makes one. Its loss is the one of transformers: what the config's `problem_type` says or, if
/// the config says none, what follows from the labels.
///
/// | `problem_type` | loss, a mean | labels | if none is said |
/// |---|---|---|---|
/// | `single_label_classification` | cross entropy | (N,) of class indices, of which -100 as i64 does not count, or probabilities `(N, classes)` | class indices |
/// | `multi_label_classification` | cross entropy of yes and no, for each class | numbers from 0 to 1, `(N, classes)` | numbers |
/// | `regression` | squared error | numbers, `(N, classes)`, or (N,) for one output | one output |
#[derive(Debug)]
pub struct Classifier {
    params: Params,
    encoder: EncoderNet,
    head: ClassifierHead,
    classes: usize,
    problem: Option<ProblemType>,
    loaded: SourceFiles,
}

/// What the outputs are, by the `problem_type` of a config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProblemType {
    Regression,
    SingleLabel,
    MultiLabel,
}

#[derive(Debug)]
enum ClassifierHead {
    Bert(BertHead),
    DistilBert(DistilBertHead),
    Vit(VitHead),
}

impl Pretrained {
    /// A classifier of texts or images. With `classes`, the head has so many outputs, and starts anew if the files have
    /// another number. Otherwise the config says the number.
    ///
    /// # Errors
    /// As for [`causal_lm`](Self::causal_lm).
    pub fn classifier(self, params: &Params, classes: Option<usize>) -> Result<Classifier> {
        Classifier::load(self, params, classes)
    }
}

impl Classifier {
    fn load(pretrained: Pretrained, params: &Params, classes: Option<usize>) -> Result<Self> {
        let naming = family::naming(pretrained.config())?;
        let told = pretrained.config().classes()?;
        let classes = classes.or(told).unwrap_or(2);
        if classes == 0 {
            return Err(Error::argument("a classifier of 0 classes"));
        }
        // Files with the head of another task: only the encoder is meant.
        let is_other = told.is_some_and(|told| told != classes);
        let naming = naming.without_heads(is_other);
        let problem = ProblemType::read(pretrained.config(), classes)?.filter(|_| !is_other);
        let problem = problem.or((classes == 1).then_some(ProblemType::Regression));
        let dtype = params.dtype();
        let ((encoder, head), loaded) = pretrained.create(
            params,
            FolderTask { naming, neutral: CLASSES, companions: &[IMAGES] },
            |scope, config| {
                let encoder = EncoderNet::new(scope, config, false)?;
                let head = match &encoder {
                    EncoderNet::Bert(bert) => {
                        ClassifierHead::Bert(bert.classifier(scope, config, classes)?)
                    }
                    EncoderNet::DistilBert(bert) => {
                        ClassifierHead::DistilBert(bert.classifier(scope, config, classes)?)
                    }
                    EncoderNet::Vit(vit) => ClassifierHead::Vit(vit.classifier(scope, classes)),
                };
                Ok((encoder, head))
            },
            |(encoder, head)| {
                let xs = encoder.example(dtype, params.device())?;
                head.forward(&encoder.states(&xs)?).map(drop)
            },
            is_of_head,
        )?;
        Ok(Self { params: params.clone(), encoder, head, classes, problem, loaded })
    }

    /// The config from which the model was made.
    pub fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// What was loaded, what starts anew (`missing`), and what the files have besides.
    pub fn report(&self) -> &LoadReport {
        &self.loaded.report
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The number of tokens that the model knows. `None` for a model of images.
    pub fn vocabulary(&self) -> Option<usize> {
        self.encoder.of_text().map(TextEncoder::vocabulary)
    }

    /// Writes the model as a folder that Python's `transformers` opens: config with the names of the classes, weights, and
    /// the tokenizer if there is one. Without names of `classes`, they are those of the config. One rank calls this function.
    ///
    /// # Errors
    /// A folder or file that cannot be written. Names of another number of classes, or two of one name.
    pub fn save(
        &self,
        folder: impl AsRef<Path>,
        classes: &[String],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<()> {
        let different: BTreeSet<&String> = classes.iter().collect();
        if !classes.is_empty() && (classes.len() != self.classes || different.len() != self.classes)
        {
            let names = classes.join(", ");
            let what =
                format!("the names {names} for {} classes: each needs its own", self.classes);
            return Err(Error::argument(what));
        }
        let class = match self.encoder {
            EncoderNet::Bert(_) if self.config().model_type()? == "roberta" => {
                "RobertaForSequenceClassification"
            }
            EncoderNet::Bert(_) => "BertForSequenceClassification",
            EncoderNet::DistilBert(_) => "DistilBertForSequenceClassification",
            EncoderNet::Vit(_) => "ViTForImageClassification",
        };
        let told = &self.config().json()["id2label"];
        // The files may have the head of another task.
        let is_own = self.config().classes()? == Some(self.classes);
        let name = |number: usize| {
            let told = || told[number.to_string()].as_str().filter(|_| is_own);
            let given = classes.get(number).map(String::as_str).or_else(told);
            given.map_or_else(|| format!("LABEL_{number}"), str::to_owned)
        };
        let names: Vec<String> = (0..self.classes).map(name).collect();
        let by_number = names.iter().enumerate().map(|(i, name)| (i.to_string(), json!(name)));
        let by_name = names.iter().enumerate().map(|(i, name)| (name.clone(), json!(i)));
        let changes = [
            ("architectures", json!([class])),
            ("id2label", Value::Object(by_number.collect())),
            ("label2id", Value::Object(by_name.collect())),
            ("num_labels", Value::Null),
            ("problem_type", self.problem.map_or(Value::Null, |problem| json!(problem.name()))),
        ];
        self.loaded.save(&self.params, folder.as_ref(), tokenizer, changes)
    }
}

/// Whether this parameter is of a head, which may start anew.
fn is_of_head(name: &str) -> bool {
    name.starts_with("classifier.")
        || name.starts_with("pre_classifier.")
        || name.contains("pooler.")
}

impl ProblemType {
    const ALL: [Self; 3] = [Self::Regression, Self::SingleLabel, Self::MultiLabel];

    /// What the config says.
    ///
    /// # Errors
    /// An unknown problem, or one class of which every sample is.
    fn read(config: &Config, classes: usize) -> Result<Option<Self>> {
        let Some(name) = config.text("problem_type")? else { return Ok(None) };
        let Some(problem) = Self::ALL.into_iter().find(|problem| problem.name() == name) else {
            let names = Self::ALL.map(Self::name).join(", ");
            return Err(config.fault(format!("has problem_type = {name:?}: one of {names}")));
        };
        if problem == Self::SingleLabel && classes == 1 {
            return Err(config.fault(format!(
                "has problem_type = {name:?} and one class, of which every sample is, so nothing can be learned: set it to \
                 \"regression\" (a number), or to \"multi_label_classification\" (yes or no)"
            )));
        }
        Ok(Some(problem))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Regression => "regression",
            Self::SingleLabel => "single_label_classification",
            Self::MultiLabel => "multi_label_classification",
        }
    }
}

impl ClassifierHead {
    fn forward(&self, states: &Tensor) -> CandleResult<Tensor> {
        match self {
            Self::Bert(head) => head.forward(states),
            Self::DistilBert(head) => head.forward(states),
            Self::Vit(head) => head.forward(states),
        }
    }
}

impl Model for Classifier {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        self.head.forward(&self.encoder.states(xs)?)
    }

    fn loss(&self, logits: &Tensor, labels: &Tensor) -> CandleResult<Tensor> {
        // 16 bits are too few for the sum of a batch.
        let wide = if logits.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let logits = logits.to_dtype(wide)?;
        let is_index = !labels.dtype().is_float();
        let default = if is_index { ProblemType::SingleLabel } else { ProblemType::MultiLabel };
        let problem = self.problem.unwrap_or(default);
        if problem == ProblemType::SingleLabel {
            let labels = if is_index { labels.clone() } else { labels.to_dtype(wide)? };
            let ignore_index = (labels.dtype() == DType::I64).then_some(IGNORED);
            let config = CrossEntropyConfig { ignore_index, ..Default::default() };
            return ops::softmax_cross_entropy_with(&logits, &labels, config);
        }
        let fits = labels.dims() == logits.dims()
            || self.classes == 1 && labels.dims() == &logits.dims()[..1];
        if is_index || !fits {
            bail!(
                "labels of shape {:?} in {:?} for the problem_type {}: expected numbers of shape {:?}, in f32 for instance",
                labels.dims(),
                labels.dtype(),
                problem.name(),
                logits.dims()
            )
        }
        let labels = labels.to_dtype(wide)?.reshape(logits.shape())?;
        match problem {
            ProblemType::MultiLabel => {
                ops::bce_with_logits_loss(&logits, &labels, None, Reduction::Mean)
            }
            _ => ops::mse_loss(&logits, &labels, Reduction::Mean),
        }
    }
}
