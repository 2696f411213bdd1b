//! Adapters and losses against Python's `peft` and `transformers`, on what `scripts/tiny_adapters.py` makes, and what is
//! saved of them.

use std::collections::BTreeMap;
use std::path::Path;

use candelabrum_dist::{DistOpt, DistOptConfig, Shard, World};
use candelabrum_nn::{
    Init, LoraConfig, LoraLayers, Model, Params, Recompute, layers::BatchNorm1d, layers::Linear,
};
use candelabrum_optim::AdamW;
use candelabrum_transformers::{Pretrained, load_adapter, save_adapter};
use candle_core::{DType, Device, Module, Result as CandleResult, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::common::{CLOSE, Expected, Result, assert_close, losses, pixels, shifted, tiny};

/// Every adapter that `peft` wrote.
const OF_PEFT: [&str; 9] = [
    "bert-classes",
    "roberta-classes",
    "distilbert-classes",
    "vit-classes",
    "vit-all-linear",
    "gpt2",
    "llama-head",
    "llama-norms",
    "llama-tied",
];

/// A model of any kind, in evaluation mode.
fn model(base: &Path, is_classifier: bool) -> Result<(Params, Box<dyn Model>)> {
    let (params, pretrained) = (Params::new(3), Pretrained::open(base)?);
    let model: Box<dyn Model> = match is_classifier {
        true => Box::new(pretrained.classifier(&params, None)?),
        false => Box::new(pretrained.causal_lm(&params)?),
    };
    params.eval();
    Ok((params, model))
}

/// The base of an adapter of `peft`, its input, and what it computes there.
struct Case {
    base: String,
    xs: Tensor,
    expected: Expected,
}

impl Case {
    fn of(name: &str) -> Result<Self> {
        let expected = Expected::of(&format!("adapters/{name}"))?;
        let base = expected.0["base"].as_str().unwrap_or_default().to_owned();
        let xs = if base == "vit" { pixels()? } else { expected.tokens()? };
        Ok(Self { base, xs, expected })
    }

    fn model(&self) -> Result<(Params, Box<dyn Model>)> {
        model(&tiny(&self.base), !self.is_causal())
    }

    fn is_causal(&self) -> bool {
        self.base.starts_with("llama") || self.base == "gpt2"
    }

    /// Logits: of a language model those behind the last token of the first row.
    fn logits(&self, model: &dyn Model) -> Result<Tensor> {
        let logits = model.forward(&self.xs)?;
        if !self.is_causal() {
            return Ok(logits);
        }
        Ok(logits.get(0)?.get(logits.dim(1)? - 1)?)
    }
}

fn bits(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}

fn config_of(folder: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&std::fs::read_to_string(folder.join("adapter_config.json"))?)?)
}

fn tensors_of(folder: &Path) -> Result<std::collections::HashMap<String, Tensor>> {
    Ok(candle_core::safetensors::load(folder.join("adapter_model.safetensors"), &Device::Cpu)?)
}

#[test]
fn adapters_of_all_families_compute_what_peft_computes_and_load_again_with_the_same_bits() -> Result
{
    let place = tempfile::tempdir()?;
    for name in OF_PEFT {
        let case = Case::of(name)?;
        let (params, model) = case.model()?;
        let adapters = tiny("adapters").join(name);
        let layers = load_adapter(&params, &adapters)?;
        let logits = case.logits(&model)?;
        assert_close(name, &logits, &case.expected.numbers("logits"));

        let saved = place.path().join(name);
        save_adapter(&layers, &params, &case.base, &saved)?;
        // What peft reads, it finds under the names that it has written itself.
        let (ours, theirs) = (tensors_of(&saved)?, tensors_of(&adapters)?);
        for (tensor, values) in BTreeMap::from_iter(&theirs) {
            let own = ours.get(tensor).unwrap_or_else(|| panic!("{name}: {tensor} is missing"));
            assert_eq!(bits(own)?, bits(values)?, "{name}: {tensor}");
        }
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let again = case.model()?;
        load_adapter(&again.0, &saved)?;
        assert_eq!(bits(&case.logits(&again.1)?)?, bits(&logits)?, "{name}");
    }
    Ok(())
}

#[test]
fn a_folder_says_the_task_and_the_whole_names_of_its_modules() -> Result {
    let place = tempfile::tempdir()?;
    for (name, task, class, modules, tied) in [
        ("bert-classes", json!("SEQ_CLS"), None, json!(["classifier", "score"]), false),
        ("roberta-classes", json!("SEQ_CLS"), None, json!(["classifier", "score"]), false),
        (
            "distilbert-classes",
            json!("SEQ_CLS"),
            None,
            json!(["classifier", "pre_classifier", "score"]),
            false,
        ),
        (
            "vit-classes",
            Value::Null,
            Some("ViTForImageClassification"),
            json!(["classifier"]),
            false,
        ),
        ("vit-all-linear", Value::Null, Some("ViTForImageClassification"), Value::Null, false),
        ("gpt2", json!("CAUSAL_LM"), None, Value::Null, false),
        ("llama-tied", json!("CAUSAL_LM"), None, json!(["lm_head", "model.embed_tokens"]), true),
    ] {
        let case = Case::of(name)?;
        let (params, _model) = case.model()?;
        let layers = load_adapter(&params, tiny("adapters").join(name))?;
        let saved = place.path().join(name);
        save_adapter(&layers, &params, "base", &saved)?;
        let config = config_of(&saved)?;
        assert_eq!(config["task_type"], task, "{name}");
        assert_eq!(config["auto_mapping"]["base_model_class"].as_str(), class, "{name}");
        assert_eq!(config["modules_to_save"], modules, "{name}");
        assert_eq!(config["ensure_weight_tying"], tied, "{name}");
    }
    // `norm` is one layer here, and for peft the end of `input_layernorm`, too.
    let (params, _model) = model(&tiny("llama"), false)?;
    let trained = vec!["norm".to_owned()];
    let layers = LoraLayers::attach(&params, &LoraConfig { trained, ..Default::default() })?;
    save_adapter(&layers, &params, "llama", place.path())?;
    assert_eq!(config_of(place.path())?["modules_to_save"], json!(["model.norm"]));
    Ok(())
}

#[test]
fn a_table_that_peft_has_parted_from_the_output_is_refused_and_ours_has_both() -> Result {
    let case = Case::of("llama-untied")?;
    assert_eq!(case.expected.0["refused"], true);
    let (params, model) = case.model()?;
    let before = bits(&case.logits(&model)?)?;
    let error = load_adapter(&params, tiny("adapters/llama-untied")).unwrap_err().to_string();
    for part in ["model.embed_tokens.weight", "lm_head.weight", "ensure_weight_tying"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(bits(&case.logits(&model)?)?, before);

    let place = tempfile::tempdir()?;
    let trained = vec!["embed_tokens".to_owned()];
    let layers = LoraLayers::attach(&params, &LoraConfig { trained, ..Default::default() })?;
    let table = params.get("model.embed_tokens.weight")?;
    table.set(&(table.var().as_detached_tensor() * 1.5)?)?;
    save_adapter(&layers, &params, "llama-tied", place.path())?;
    let tensors = tensors_of(place.path())?;
    let [table, head] = ["model.embed_tokens", "lm_head"]
        .map(|layer| &tensors[&format!("base_model.model.{layer}.weight")]);
    assert_eq!(bits(table)?, bits(head)?);
    let again = case.model()?;
    load_adapter(&again.0, place.path())?;
    assert_eq!(bits(&case.logits(&again.1)?)?, bits(&case.logits(&model)?)?);

    // Another output matrix is another model.
    let mut tensors = tensors;
    let head = "base_model.model.lm_head.weight".to_owned();
    tensors.insert(head.clone(), (&tensors[&head] * 2.0)?);
    candle_core::safetensors::save(&tensors, place.path().join("adapter_model.safetensors"))?;
    let error = load_adapter(&case.model()?.0, place.path()).unwrap_err().to_string();
    assert!(error.contains("has other numbers for"), "{error}");
    Ok(())
}

#[test]
fn what_the_files_of_an_adapter_do_not_agree_on_is_refused_by_name() -> Result {
    let place = tempfile::tempdir()?;
    let path = place.path().join("adapter_model.safetensors");
    std::fs::copy(
        tiny("adapters/bert-classes/adapter_config.json"),
        place.path().join("adapter_config.json"),
    )?;
    let all = tensors_of(&tiny("adapters/bert-classes"))?;
    let head = |part: &str| format!("base_model.model.classifier.{part}");
    let error =
        |change: &dyn Fn(&mut std::collections::HashMap<String, Tensor>)| -> Result<String> {
            let mut tensors = all.clone();
            change(&mut tensors);
            candle_core::safetensors::save(&tensors, &path)?;
            let (params, _model) = model(&tiny("bert"), true)?;
            Ok(load_adapter(&params, place.path()).unwrap_err().to_string())
        };
    let missing = error(&|tensors| {
        tensors.remove(&head("weight"));
    })?;
    assert!(missing.ends_with("lacks `classifier.weight`"), "{missing}");
    let none = error(&|tensors| tensors.retain(|name, _| name.contains("lora_")))?;
    assert!(none.contains("lacks `classifier.") && none.contains("modules_to_save"), "{none}");
    let unnamed = error(&|tensors| {
        let norm = Tensor::zeros(16, DType::F32, &Device::Cpu).expect("zeros");
        tensors.insert("base_model.model.bert.embeddings.LayerNorm.bias".into(), norm);
    })?;
    assert!(
        unnamed.contains("`bert.embeddings.LayerNorm.bias`, which modules_to_save"),
        "{unnamed}"
    );
    let unknown = error(&|tensors| {
        let value = tensors[&head("bias")].clone();
        tensors.insert("base_model.model.score.bias".into(), value);
    })?;
    assert!(unknown.contains("`score.bias`, which the model does not have"), "{unknown}");
    std::fs::remove_file(&path)?;
    let (params, _model) = model(&tiny("bert"), true)?;
    let absent = load_adapter(&params, place.path()).unwrap_err().to_string();
    assert!(absent.contains("adapter_model.safetensors: is not there"), "{absent}");
    Ok(())
}

#[test]
fn numbers_that_no_file_has_are_trained_or_refused() -> Result {
    let open = |trained: &[&str]| {
        let params = Params::new(0);
        // The files have another head.
        let model = Pretrained::open(tiny("bert"))?.classifier(&params, Some(2))?;
        let trained = trained.iter().map(|&name| name.to_owned()).collect();
        let config = LoraConfig { trained, ..Default::default() };
        Ok::<_, Box<dyn std::error::Error>>((LoraLayers::attach(&params, &config), params, model))
    };
    let error = open(&[])?.0.unwrap_err().to_string();
    assert!(error.contains("`classifier.weight` frozen") && error.contains("`trained`"), "{error}");
    let (layers, params, model) = open(&["classifier"])?;
    let (layers, place) = (layers?, tempfile::tempdir()?);
    assert!(!layers.names().contains(&"classifier"));
    save_adapter(&layers, &params, "bert", place.path())?;
    let xs = Expected::of("bert")?.tokens()?;
    let other = Params::new(9);
    let again = Pretrained::open(tiny("bert"))?.classifier(&other, Some(2))?;
    assert_ne!(bits(&again.forward(&xs)?)?, bits(&model.forward(&xs)?)?);
    load_adapter(&other, place.path())?;
    assert_eq!(bits(&again.forward(&xs)?)?, bits(&model.forward(&xs)?)?);
    Ok(())
}

/// What rank 0 saves between two steps of two ranks, in the meantime of which the other rank calls nothing.
fn saved_between_steps(shard: Shard, dtype: DType, place: &Path) -> Result {
    let (xs, ys) = shifted(&Expected::of("llama")?.tokens()?)?;
    let train = |world: &World| -> std::result::Result<(), String> {
        let run = || -> Result {
            let params = Params::on(0, dtype, &Device::Cpu);
            let model = Pretrained::open(tiny("llama"))?.causal_lm(&params)?;
            params.set_recompute(Recompute::All);
            let trained = vec!["norm".to_owned(), "embed_tokens".to_owned()];
            let config = LoraConfig { rank: 2, trained, ..Default::default() };
            let layers = LoraLayers::attach(&params, &config)?;
            let config = DistOptConfig { shard, ..Default::default() };
            let mut opt = DistOpt::with_config(AdamW::new(0.01), &params, world, config)?;
            for step in 0..4 {
                let row = |rows: &Tensor| rows.narrow(0, world.rank(), 1);
                let (_, loss) = model.output_and_loss(&row(&xs)?, &row(&ys)?)?;
                opt.backward_and_update(&loss)?;
                if step == 2 && world.is_root() {
                    save_adapter(&layers, &params, "llama", place)?;
                    model.save(place.join("model"), None)?;
                }
            }
            Ok(())
        };
        run().map_err(|error| {
            world.abort(&error.to_string());
            error.to_string()
        })
    };
    let train = &train;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = World::threads(2)?
            .into_iter()
            .map(|world| scope.spawn(move || train(&world)))
            .collect();
        for rank in ranks {
            rank.join().expect("a rank")?;
        }
        Ok(())
    })
}

#[test]
fn what_one_rank_saves_is_what_all_ranks_have_trained() -> Result {
    for dtype in [DType::F32, DType::BF16] {
        let mut all = Vec::new();
        for shard in [Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Parameters] {
            let place = tempfile::tempdir()?;
            saved_between_steps(shard, dtype, place.path())?;
            let file = |name: &str| std::fs::read(place.path().join(name));
            let saved = [file("adapter_model.safetensors")?, file("model/model.safetensors")?];
            // The file has what was trained.
            let norm = &tensors_of(place.path())?["base_model.model.model.norm.weight"];
            assert_eq!(norm.dtype(), dtype);
            let (params, _model) = model(&tiny("llama"), false)?;
            let before = params.get("model.norm.weight")?.var().as_detached_tensor();
            assert_ne!(bits(&norm.to_dtype(DType::F32)?)?, bits(&before)?);
            all.push((shard, saved));
        }
        for (shard, saved) in &all[1..] {
            assert!(saved == &all[0].1, "{shard} of {dtype:?} saves other numbers");
        }
    }
    Ok(())
}

/// A model of a user with a batch normalisation.
struct Normalised {
    first: Linear,
    norm: BatchNorm1d,
    last: Linear,
}

impl Model for Normalised {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        self.last.forward(&self.norm.forward(&self.first.forward(xs)?)?)
    }
}

#[test]
fn running_statistics_are_saved_with_the_adapters() -> Result {
    let xs = Tensor::from_iter((0..40).map(|i| (0.7 * i as f32).sin() + 2.0), &Device::Cpu)?;
    let xs = xs.reshape((8, 5))?;
    let build = |seed| -> Result<(Params, Normalised)> {
        let params = Params::new(seed);
        let scope = params.root();
        let model = Normalised {
            first: Linear::new(&scope.pp("first"), 4).init(Init::Const(0.3)),
            norm: BatchNorm1d::new(&scope.pp("norm")),
            last: Linear::new(&scope.pp("last"), 2).init(Init::Const(0.2)),
        };
        model.compile(&params, (8, 5))?;
        Ok((params, model))
    };
    for trained in [vec![], vec!["norm".to_owned()]] {
        let (params, model) = build(0)?;
        let config = LoraConfig { rank: 2, trained: trained.clone(), ..Default::default() };
        let layers = LoraLayers::attach(&params, &config)?;
        for _ in 0..3 {
            params.in_mode(true, || model.forward(&xs))?;
        }
        params.keep_buffers();
        params.eval();
        let place = tempfile::tempdir()?;
        save_adapter(&layers, &params, "base", place.path())?;
        let (other, again) = build(1)?;
        other.eval();
        assert_ne!(bits(&again.forward(&xs)?)?, bits(&model.forward(&xs)?)?);
        load_adapter(&other, place.path())?;
        assert_eq!(bits(&again.forward(&xs)?)?, bits(&model.forward(&xs)?)?);
        // peft looks for the count of batches in a module that it trains as a whole.
        let has_count =
            tensors_of(place.path())?.contains_key("base_model.model.norm.num_batches_tracked");
        assert_eq!(has_count, !trained.is_empty());
    }
    Ok(())
}

#[derive(Deserialize)]
struct Problem {
    classes: usize,
    problem_type: Option<String>,
    labels: Value,
    tokens: Vec<Vec<u32>>,
    losses: Vec<f64>,
}

/// The model `bert` with so many of its classes.
fn classes_of_bert(place: &Path, classes: usize, problem_type: Option<&str>) -> Result {
    let read = std::fs::read_to_string(tiny("bert/config.json"))?;
    let mut config: Value = serde_json::from_str(&read)?;
    let names = (0..classes).map(|number| (number.to_string(), json!(format!("LABEL_{number}"))));
    config["id2label"] = Value::Object(names.collect());
    config["problem_type"] = json!(problem_type);
    std::fs::write(place.join("config.json"), config.to_string())?;
    let mut tensors = candle_core::safetensors::load(tiny("bert/model.safetensors"), &Device::Cpu)?;
    for name in ["classifier.weight", "classifier.bias"] {
        let rows = tensors[name].narrow(0, 0, classes)?.contiguous()?;
        tensors.insert(name.to_owned(), rows);
    }
    Ok(candle_core::safetensors::save(&tensors, place.join("model.safetensors"))?)
}

fn labels(json: &Value) -> Result<Tensor> {
    let (device, json) = (&Device::Cpu, json.clone());
    if let Ok(classes) = serde_json::from_value::<Vec<i64>>(json.clone()) {
        return Ok(Tensor::new(classes, device)?);
    }
    Ok(match serde_json::from_value::<Vec<Vec<f32>>>(json.clone()) {
        Ok(rows) => Tensor::new(rows, device)?,
        Err(_) => Tensor::new(serde_json::from_value::<Vec<f32>>(json)?, device)?,
    })
}

#[test]
fn losses_of_classifiers_are_those_of_transformers_by_the_problem_type() -> Result {
    let problems = std::fs::read_to_string(tiny("problems.json"))?;
    for problem in serde_json::from_str::<Vec<Problem>>(&problems)? {
        let Problem { classes, problem_type, labels: json, tokens, losses: expected } = problem;
        let place = tempfile::tempdir()?;
        classes_of_bert(place.path(), classes, problem_type.as_deref())?;
        let params = Params::new(0);
        let model = Pretrained::open(place.path())?.classifier(&params, None)?;
        let (xs, ys) = (Tensor::new(tokens, &Device::Cpu)?, labels(&json)?);
        let got = losses(&model, &params, (&xs, &ys), 0.01)?;
        let what = format!("{problem_type:?} of {classes} with {json}");
        assert_close(&what, &Tensor::new(got.clone(), &Device::Cpu)?, &expected);
        assert!(got[19] < got[0] - CLOSE, "{what}: {got:?}");
        // The saved folder has the same loss.
        let saved = place.path().join("saved");
        model.save(&saved, &[], None)?;
        let other = Params::new(0);
        let again = Pretrained::open(&saved)?.classifier(&other, None)?;
        let loss = |model: &dyn Model| bits(&model.output_and_loss(&xs, &ys)?.1);
        assert_eq!(loss(&again)?, loss(&model)?, "{what}");
    }
    Ok(())
}

#[test]
fn a_classifier_that_could_not_learn_is_refused() -> Result {
    let place = tempfile::tempdir()?;
    let open = |classes: usize, problem: Option<&str>, taken: Option<usize>| -> Result<_> {
        classes_of_bert(place.path(), classes, problem)?;
        Ok(Pretrained::open(place.path())?.classifier(&Params::new(0), taken))
    };
    let one = open(1, Some("single_label_classification"), None)?.unwrap_err().to_string();
    assert!(one.contains("one class, of which every sample is"), "{one}");
    let unknown = open(3, Some("ranking"), None)?.unwrap_err().to_string();
    assert!(unknown.contains("problem_type = \"ranking\""), "{unknown}");

    let xs = Tensor::zeros((2, 3), DType::U32, &Device::Cpu)?;
    let error = |model: &dyn Model, labels: &Tensor| {
        model.output_and_loss(&xs, labels).unwrap_err().to_string()
    };
    let classes = Tensor::zeros(2, DType::U32, &Device::Cpu)?;
    let model = open(1, None, None)??;
    let wrong = error(&model, &classes);
    assert!(wrong.contains("problem_type regression: expected numbers of shape [2, 1]"), "{wrong}");
    let model = open(3, Some("multi_label_classification"), None)??;
    assert!(error(&model, &classes).contains("expected numbers of shape [2, 3]"));
    // The head of another task, and so its loss, is not meant where another number of classes is asked for.
    let model = open(1, Some("regression"), Some(2))??;
    model.output_and_loss(&xs, &classes)?;
    model.save(place.path().join("saved"), &[], None)?;
    let saved = Pretrained::open(place.path().join("saved"))?.classifier(&Params::new(0), None)?;
    saved.output_and_loss(&xs, &classes)?;
    Ok(())
}

#[test]
fn the_names_of_classes_are_kept_or_given_for_each_class() -> Result {
    let place = tempfile::tempdir()?;
    let names = |classes: &[&str], taken: Option<usize>| -> Result<Value> {
        let model = Pretrained::open(place.path())?.classifier(&Params::new(0), taken)?;
        let classes: Vec<String> = classes.iter().map(|&name| name.to_owned()).collect();
        model.save(place.path().join("saved"), &classes, None)?;
        let config = std::fs::read_to_string(place.path().join("saved/config.json"))?;
        Ok(serde_json::from_str::<Value>(&config)?["label2id"].clone())
    };
    classes_of_bert(place.path(), 2, None)?;
    let path = place.path().join("config.json");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, text.replace("LABEL_0", "bad").replace("LABEL_1", "good"))?;
    assert_eq!(names(&[], None)?, json!({"bad": 0, "good": 1}));
    assert_eq!(names(&["a", "b"], None)?, json!({"a": 0, "b": 1}));
    assert_eq!(names(&[], Some(3))?, json!({"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}));
    for wrong in [&["a"][..], &["a", "a"], &["a", "b", "c"]] {
        let error = names(wrong, None).unwrap_err().to_string();
        assert!(error.contains("for 2 classes: each needs its own"), "{error}");
    }
    Ok(())
}
