//! Two real models against Python's `transformers` and `peft`, of which `scripts/real_models.py` writes the answers.
//!
//! `cargo xtask setup --models` downloads the models. Where they are missing the tests pass and say so.

#![expect(clippy::print_stderr, reason = "a test says what it leaves out and what it measures")]

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

use candelabrum_dist::{DistOpt, World};
use candelabrum_nn::{LoraConfig, LoraLayers, Model, Params};
use candelabrum_optim::AdamW;
use candelabrum_testkit::runs_all;
use candelabrum_transformers::{
    CausalLm, ChatMessage, GenerationConfig, Pretrained, Quantization, Tokenizer,
};
use candle_core::{DType, Device, IndexOp, Tensor};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::common::{Result, assert_within, read, shifted, tests};

/// The largest difference of a logit, a state or an embedding.
const CLOSE: f64 = 1e-4;

/// The steps of a training in the long form.
const STEPS: usize = 20;

/// The largest difference of a loss within them.
const CLOSE_LOSS: f64 = 1e-4;

/// A file or folder of `cargo xtask setup --models`. Prints a line and returns `None` if it is not there.
fn real(name: &str) -> Option<PathBuf> {
    let path =
        |name| env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let caches = || {
        let xdg = path("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
        xdg.or_else(|| Some(path("HOME")?.join(".cache")))
    };
    let own = || path("CANDELABRUM_CACHE").or_else(|| Some(caches()?.join("candelabrum")));
    let models = path("CANDELABRUM_MODELS").or_else(|| Some(own()?.join("models")));
    let found = models.map(|models| models.join(name)).filter(|path| path.exists());
    if found.is_none() {
        eprintln!("left out: no {name} here. `cargo xtask setup --models` downloads it");
    }
    found
}

fn minilm() -> Option<PathBuf> {
    real("minilm")
}

fn smollm2() -> Option<PathBuf> {
    real("smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Whether the long tests are wanted. Prints a line if they are not.
fn is_long_run() -> bool {
    if !runs_all() {
        eprintln!("left out: it takes long. CANDELABRUM_TESTS=all runs it");
    }
    runs_all()
}

/// An entry of `expected.json`.
fn expected<T: DeserializeOwned>(model: &str, key: &str) -> Result<T> {
    Ok(T::deserialize(&read(&tests().join("real/expected.json"))?[model][key])?)
}

/// The entry `training` of a model.
#[derive(Deserialize)]
struct Training {
    tokens: Vec<Vec<u32>>,
    #[serde(default)]
    labels: Vec<u32>,
    losses: Vec<f64>,
}

impl Training {
    /// Trains the trainable parameters on one batch, and compares the losses of the first `steps`, each before its
    /// update.
    #[track_caller]
    fn check(
        &self,
        what: &str,
        (model, params): (&impl Model, &Params),
        (xs, ys): (&Tensor, &Tensor),
        optimizer: AdamW,
        steps: usize,
    ) -> Result {
        let mut opt = DistOpt::new(optimizer, params, &World::single())?;
        let mut losses = Vec::new();
        for _ in 0..steps {
            let (_, loss) = model.output_and_loss(xs, ys)?;
            losses.push(f64::from(loss.to_scalar::<f32>()?));
            opt.backward_and_update(&loss)?;
        }
        let losses = Tensor::new(losses, &Device::Cpu)?;
        assert_within(CLOSE_LOSS, &format!("{what}, losses"), &losses, &self.losses[..steps]);
        Ok(())
    }
}

/// One row of tokens, `(1, T)`.
fn row(tokens: &[u32]) -> Result<Tensor> {
    Ok(Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?)
}

/// Numbers of a size around `scale`, by the formula of `scripts/real_models.py`.
fn waves(dims: &[usize], scale: f64) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    let wave = |i| (scale * (0.37 * i as f64).sin()) as f32;
    Ok(Tensor::from_iter((0..count).map(wave), &Device::Cpu)?.reshape(dims)?)
}

fn messages(json: &[Value]) -> Vec<ChatMessage> {
    let text = |message: &Value, key: &str| message[key].as_str().expect("a text").to_owned();
    let message = |json| ChatMessage { role: text(json, "role"), content: text(json, "content") };
    json.iter().map(message).collect()
}

/// SmolLM2 with matrices in f32, in evaluation. The tests that do not train share it. `None` if it is not there.
fn language_model() -> Option<&'static CausalLm> {
    static MODEL: LazyLock<Option<CausalLm>> = LazyLock::new(|| {
        let pretrained = Pretrained::open(smollm2()?).expect("a GGUF file");
        let model = pretrained.causal_lm(&Params::new(0)).expect("a language model");
        assert!(model.report().is_complete(), "{}", model.report());
        model.params().eval();
        Some(model)
    });
    MODEL.as_ref()
}

#[test]
fn tokens_are_those_of_transformers() -> Result {
    for (name, path, special) in [("minilm", minilm(), true), ("smollm2", smollm2(), false)] {
        let Some(path) = path else { continue };
        let tokenizer = Tokenizer::open(path)?;
        let texts: Vec<String> = expected(name, "texts")?;
        let tokens: Vec<Vec<u32>> = expected(name, "tokens")?;
        assert_eq!(texts.len(), tokens.len());
        for (text, tokens) in texts.iter().zip(tokens) {
            assert_eq!(tokenizer.encode(text, special)?, tokens, "{name}: {text}");
        }
    }
    Ok(())
}

#[test]
fn a_conversation_is_written_as_by_transformers() -> Result {
    let Some(path) = smollm2() else { return Ok(()) };
    let conversation = messages(&expected::<Vec<_>>("smollm2", "conversation")?);
    let texts: Vec<String> = expected("smollm2", "texts")?;
    let written = Tokenizer::open(path)?.chat(&conversation, true)?;
    assert_eq!(Some(&written), texts.last());
    Ok(())
}

#[test]
fn embeddings_are_those_of_transformers() -> Result {
    let Some(path) = minilm() else { return Ok(()) };
    let params = Params::new(0);
    let model = Pretrained::open(&path)?.encoder(&params)?;
    assert!(model.report().is_complete(), "{}", model.report());
    params.eval();
    let texts: Vec<Vec<u32>> = expected("minilm", "tokens")?;
    let [embeddings, first, last] =
        ["embeddings", "first", "last"].map(|key| expected::<Vec<Vec<f64>>>("minilm", key));
    let (embeddings, first, last) = (embeddings?, first?, last?);
    for (at, tokens) in texts.iter().enumerate() {
        let what = format!("text {at} of MiniLM");
        let xs = row(tokens)?;
        assert_within(CLOSE, &what, &model.forward(&xs)?, &embeddings[at]);
        let states = model.states(&xs)?;
        assert_within(CLOSE, &format!("{what}, first state"), &states.i((0, 0))?, &first[at]);
        let end = states.i((0, tokens.len() - 1))?;
        assert_within(CLOSE, &format!("{what}, last state"), &end, &last[at]);
    }
    // In a batch, where short texts are padded.
    let texts: Vec<String> = expected("minilm", "texts")?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let batch = model.embed(&Tokenizer::open(path)?, &texts, 512)?;
    assert_within(CLOSE, "MiniLM in a batch", &batch, &embeddings.concat());
    Ok(())
}

#[test]
fn a_classifier_learns_what_it_learns_in_pytorch() -> Result {
    let Some(path) = minilm() else { return Ok(()) };
    // The script trains without dropout.
    let folder = tempfile::tempdir()?;
    let text = std::fs::read_to_string(path.join("config.json"))?;
    let mut config: Value = serde_json::from_str(&text)?;
    config["hidden_dropout_prob"] = 0.0.into();
    std::fs::write(folder.path().join("config.json"), config.to_string())?;
    std::fs::copy(path.join("model.safetensors"), folder.path().join("model.safetensors"))?;

    let params = Params::new(0);
    let model = Pretrained::open(folder.path())?.classifier(&params, Some(2))?;
    assert_eq!(model.report().missing, ["classifier.weight", "classifier.bias"]);
    let head = params.get("classifier.weight")?;
    head.set(&waves(head.var().dims(), 0.05)?)?;
    assert_eq!(params.get("classifier.bias")?.var().to_vec1::<f32>()?, [0.0; 2]);
    let training: Training = expected("minilm", "training")?;
    let xs = Tensor::new(training.tokens.clone(), &Device::Cpu)?;
    let ys = Tensor::new(training.labels.clone(), &Device::Cpu)?;
    let optimizer = AdamW::new(5e-5).weight_decay(0.01);
    let steps = if runs_all() { STEPS } else { 5 };
    training.check("MiniLM", (&model, &params), (&xs, &ys), optimizer, steps)
}

#[test]
fn logits_and_losses_are_those_of_transformers() -> Result {
    let Some(model) = language_model() else { return Ok(()) };
    let texts: Vec<Vec<u32>> = expected("smollm2", "tokens")?;
    let some: Vec<u32> = expected("smollm2", "tokens_of_logits")?;
    let logits: Vec<Vec<f64>> = expected("smollm2", "logits")?;
    let likeliest: Vec<Vec<u32>> = expected("smollm2", "likeliest")?;
    for (at, tokens) in texts.iter().enumerate() {
        let states = model.states(&row(tokens)?)?;
        let found = model.logits(&states.narrow(1, tokens.len() - 1, 1)?)?.flatten_all()?;
        let what = format!("text {at} of SmolLM2");
        let here = found.index_select(&Tensor::new(&*some, &Device::Cpu)?, 0)?;
        assert_within(CLOSE, &what, &here, &logits[at]);
        let found = found.to_vec1::<f32>()?;
        let mut order: Vec<u32> = (0..found.len() as u32).collect();
        order.sort_by(|&a, &b| found[b as usize].total_cmp(&found[a as usize]));
        assert_eq!(order[..5], likeliest[at], "{what}");
    }
    let passage: Value = expected("smollm2", "passage")?;
    let tokens: Vec<u32> = Vec::deserialize(&passage["tokens"])?;
    let (xs, ys) = shifted(&row(&tokens)?)?;
    let (_, loss) = model.output_and_loss(&xs, &ys)?;
    assert_within(CLOSE, "passage", &loss, &[f64::deserialize(&passage["loss"])?]);
    Ok(())
}

#[test]
fn an_answer_is_that_of_transformers() -> Result {
    let Some(path) = smollm2() else { return Ok(()) };
    let tokenizer = Tokenizer::open(&path)?;
    let greedy: Value = expected("smollm2", "greedy")?;
    let question = tokenizer.chat(&messages(&Vec::deserialize(&greedy["conversation"])?), true)?;
    let prompt = tokenizer.encode(&question, false)?;
    assert_eq!(prompt, Vec::<u32>::deserialize(&greedy["prompt"])?);
    let tokens: Vec<u32> = Vec::deserialize(&greedy["tokens"])?;
    let Some(model) = language_model() else { return Ok(()) };
    let config = GenerationConfig { max_new_tokens: tokens.len(), ..Default::default() };
    assert_eq!(model.generate(&prompt, &config, |_| {})?, tokens);
    if runs_all() {
        let pretrained = Pretrained::open(&path)?.quantization(Quantization::Keep);
        let model = pretrained.causal_lm(&Params::new(0))?;
        assert_eq!(model.generate(&prompt, &config, |_| {})?, tokens, "quantised");
    }
    Ok(())
}

#[test]
fn quantised_matrices_need_few_bytes_and_answer_as_wide_ones() -> Result {
    let Some(path) = smollm2() else { return Ok(()) };
    let params = Params::new(0);
    let pretrained = Pretrained::open(&path)?.quantization(Quantization::Keep);
    let narrow = pretrained.causal_lm(&params)?;
    let constants = params.constants();
    let numbers = |(rows, columns): (usize, usize)| rows * columns;
    let numbers: usize = constants.iter().map(|(_, matrix)| numbers(matrix.dims())).sum();
    let bytes: usize = constants.iter().map(|(_, matrix)| matrix.bytes()).sum();
    let share = bytes as f64 / (4 * numbers) as f64;
    eprintln!("{numbers} numbers in {bytes} bytes: {share:.3} of f32");
    assert!(share <= 0.2 && numbers > 130_000_000, "{bytes} bytes of {numbers} numbers");
    params.eval();
    let Some(wide) = language_model() else { return Ok(()) };
    for tokens in expected::<Vec<Vec<u32>>>("smollm2", "tokens")? {
        let xs = row(&tokens)?;
        let expected = wide.forward(&xs)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1()?;
        assert_within(CLOSE, "quantised", &narrow.forward(&xs)?, &expected);
    }
    Ok(())
}

#[test]
fn adapters_learn_what_they_learn_in_pytorch() -> Result {
    let Some(path) = smollm2().filter(|_| is_long_run()) else { return Ok(()) };
    let training: Training = expected("smollm2", "training")?;
    let (xs, ys) = shifted(&Tensor::new(training.tokens.clone(), &Device::Cpu)?)?;
    for quantization in [Quantization::Keep, Quantization::Dequantize] {
        let params = Params::new(0);
        let model = Pretrained::open(&path)?.quantization(quantization).causal_lm(&params)?;
        let config = LoraConfig { rank: 8, alpha: 16.0, ..Default::default() };
        let layers = LoraLayers::attach(&params, &config)?;
        assert_eq!(layers.names().len(), 7 * 30);
        for param in layers.trained().iter().filter(|param| param.name().contains("lora_A")) {
            let dims = param.var().dims();
            param.set(&waves(dims, (dims[1] as f64).powf(-0.5))?)?;
        }
        let optimizer = AdamW::new(1e-3).weight_decay(0.0);
        let what = format!("SmolLM2, {quantization:?}");
        training.check(&what, (&model, &params), (&xs, &ys), optimizer, STEPS)?;
    }
    Ok(())
}

#[test]
fn a_saved_model_loads_with_the_same_bits() -> Result {
    let Some(path) = smollm2().filter(|_| is_long_run()) else { return Ok(()) };
    let Some(model) = language_model() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    model.save(folder.path(), Some(&Tokenizer::open(&path)?))?;
    let bytes = std::fs::metadata(folder.path().join("model.safetensors"))?.len();
    assert!(bytes > 4 * model.params().element_count() as u64);
    let again = Pretrained::open(folder.path())?.causal_lm(&Params::new(1))?;
    assert!(again.report().is_complete(), "{}", again.report());
    let (params, others) = (model.params().list(), again.params().list());
    assert_eq!(params.len(), others.len());
    for (param, other) in params.iter().zip(&others) {
        assert_eq!(param.name(), other.name());
        assert_eq!(param.var().dims(), other.var().dims());
        let bits = |tensor: &Tensor| {
            let numbers = tensor.flatten_all()?.to_vec1::<f32>()?;
            candle_core::Result::Ok(numbers.into_iter().map(f32::to_bits))
        };
        assert!(bits(param.var())?.eq(bits(other.var())?), "{}", param.name());
    }
    let tokenizer = Tokenizer::open(folder.path())?;
    for text in expected::<Vec<String>>("smollm2", "texts")? {
        assert_eq!(tokenizer.encode(&text, false)?, Tokenizer::open(&path)?.encode(&text, false)?);
    }
    Ok(())
}
