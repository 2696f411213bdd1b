//! Folders that are saved here, opened by Python's `transformers` and `peft`: `scripts/open_in_transformers.py` refuses
//! names and shapes that these do not expect, and computes logits.
//!
//! Where no Python has both packages the test passes and says so.

#![expect(clippy::print_stderr, reason = "a test says what it leaves out and what it measures")]

use std::path::{Path, PathBuf};

use candelabrum_nn::{LoraConfig, LoraLayers, Model, Param, Params};
use candelabrum_testkit::Program;
use candelabrum_transformers::{CausalLm, Pretrained, Quantization, load_adapter, save_adapter};
use candle_core::{Device, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const CLOSE: f32 = 1e-5;

/// Calls the script for all requests of a file in one process, because its imports take seconds.
const DRIVER: &str = "
import io, json, sys
sys.path.insert(0, sys.argv[1])
import open_in_transformers as script
for case in json.load(open(sys.argv[2])):
    adapter = ['--adapter', case['adapter']] if case['adapter'] else []
    sys.argv[1:] = [case['folder'], *adapter]
    sys.stdin = io.StringIO(json.dumps(case['request']))
    script.main()
    sys.stdout.flush()
";

const CAUSAL: [&str; 10] = [
    "llama",
    "llama-tied",
    "llama-bias",
    "llama3-rope",
    "llama-yarn",
    "llama-sharded",
    "mistral",
    "qwen2",
    "qwen3",
    "gpt2",
];

const CLASSIFIERS: [&str; 5] = ["bert", "bert-old-names", "roberta", "distilbert", "vit"];

/// A folder for Python, and the logits that it must compute.
struct Case {
    name: String,
    folder: PathBuf,
    adapter: Option<PathBuf>,
    request: Value,
    logits: Vec<f32>,
}

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tiny").join(name)
}

/// A Python with the packages: the repository's `.venv`, `$CANDELABRUM_PYTHON`, `python3`.
fn python() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let named = std::env::var_os("CANDELABRUM_PYTHON").map(PathBuf::from);
    let question = "import importlib.util as u, sys; \
        sys.exit(any(u.find_spec(name) is None for name in ('torch', 'transformers', 'peft')))";
    let candidates = [Some(own).filter(|own| own.is_file()), named, Some("python3".into())];
    let found = candidates.into_iter().flatten().find(|python| {
        let asked = std::process::Command::new(python).args(["-c", question]).output();
        asked.is_ok_and(|asked| asked.status.success())
    });
    if found.is_none() {
        eprintln!("left out: no Python with transformers and peft. CANDELABRUM_PYTHON names one");
    }
    found
}

/// The tokens of the folder's `expected.json`, also as a request.
fn tokens(name: &str) -> Result<(Tensor, Value)> {
    let folder = tiny(name.trim_end_matches("/model.gguf"));
    let text = std::fs::read_to_string(folder.join("expected.json"))?;
    let expected: Value = serde_json::from_str(&text)?;
    let rows: Vec<Vec<u32>> = Vec::deserialize(&expected["tokens"])?;
    Ok((Tensor::new(rows, &Device::Cpu)?, json!({"tokens": expected["tokens"]})))
}

/// The images that the script makes, also as a request.
fn pixels() -> Result<(Tensor, Value)> {
    let shape = (2, 3, 16, 16);
    let pixels = (0..2 * 3 * 16 * 16).map(|i| (0.37 * f64::from(i)).sin() as f32);
    let images = Tensor::from_iter(pixels, &Device::Cpu)?.reshape(shape)?;
    Ok((images, json!({"pixels": "sin", "shape": shape})))
}

/// Changes the parameters, so that they are not those of the files any more.
fn change(params: &[Param]) -> Result {
    for param in params {
        let values = param.var().as_detached_tensor();
        let count = u32::try_from(values.elem_count())?;
        let wave = |i| (0.02 * (0.61 * f64::from(i)).cos()) as f32;
        let waves = Tensor::from_iter((0..count).map(wave), &Device::Cpu)?;
        param.set(&(values.clone() + waves.reshape(values.shape())?)?)?;
    }
    Ok(())
}

fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}

/// A changed model of language.
fn causal_lm(path: &Path, quantization: Quantization) -> Result<CausalLm> {
    let pretrained = Pretrained::open(path)?.quantization(quantization);
    let model = pretrained.causal_lm(&Params::new(0))?;
    change(&model.params().list())?;
    model.params().eval();
    Ok(model)
}

/// A model of language in a file or folder `name`.
fn causal_case(name: &str, quantization: Quantization, folder: &Path) -> Result<Case> {
    let model = causal_lm(&tiny(name), quantization)?;
    let (xs, request) = tokens(name)?;
    let name = format!("{}, {quantization:?}", name.replace('/', ", "));
    let folder = folder.join(&name);
    model.save(&folder, None)?;
    Ok(Case { name, folder, adapter: None, request, logits: numbers(&model.forward(&xs)?)? })
}

fn classifier_case(name: &str, folder: &Path) -> Result<Case> {
    let params = Params::new(0);
    let model = Pretrained::open(tiny(name))?.classifier(&params, None)?;
    change(&params.list())?;
    params.eval();
    let (xs, request) = if name == "vit" { pixels()? } else { tokens(name)? };
    let folder = folder.join(name);
    model.save(&folder, &["bad", "good", "fine"].map(str::to_owned), None)?;
    let (name, logits) = (name.to_owned(), numbers(&model.forward(&xs)?)?);
    Ok(Case { name, folder, adapter: None, request, logits })
}

/// An encoder, without the head that its folder may have.
fn encoder_case(file: &str, folder: &Path) -> Result<Case> {
    let params = Params::new(0);
    let model = Pretrained::open(tiny(file))?.encoder(&params)?;
    change(&params.list())?;
    params.eval();
    let (xs, request) = tokens(file)?;
    let name = format!("{file}, encoder");
    let folder = folder.join(&name);
    model.save(&folder, None)?;
    Ok(Case { name, folder, adapter: None, request, logits: numbers(&model.states(&xs)?)? })
}

/// Adapters that `peft` made, and new ones. A GPT-2 has transposed weights.
fn adapter_case(name: &str, base: &str, folder: &Path) -> Result<Case> {
    let model = causal_lm(&tiny(base), Quantization::Keep)?;
    let (xs, request) = tokens(base)?;
    let base = folder.join(format!("{name}, base"));
    model.save(&base, None)?;
    let params = model.params();
    let layers = if tiny(name).exists() {
        load_adapter(params, tiny(name))?
    } else {
        let dora = name.ends_with("dora");
        LoraLayers::attach(params, &LoraConfig { rank: 4, dora, ..Default::default() })?
    };
    change(layers.trained())?;
    let adapter = folder.join(name);
    save_adapter(&layers, params, &base, &adapter)?;
    let (name, logits) = (name.to_owned(), numbers(&model.forward(&xs)?)?);
    Ok(Case { name, folder: base, adapter: Some(adapter), request, logits })
}

/// An adapter of an encoder whose head is trained as a whole.
fn adapter_of_classifier(folder: &Path) -> Result<Case> {
    let params = Params::new(0);
    let model = Pretrained::open(tiny("bert"))?.classifier(&params, None)?;
    params.eval();
    let base = folder.join("bert-lora, base");
    model.save(&base, &[], None)?;
    let trained = vec!["classifier".to_owned()];
    let config = LoraConfig { rank: 4, trained, ..Default::default() };
    let layers = LoraLayers::attach(&params, &config)?;
    change(layers.trained())?;
    let adapter = folder.join("bert-lora");
    save_adapter(&layers, &params, &base, &adapter)?;
    let (xs, request) = tokens("bert")?;
    let (name, logits) = ("bert-lora".to_owned(), numbers(&model.forward(&xs)?)?);
    Ok(Case { name, folder: base, adapter: Some(adapter), request, logits })
}

#[test]
fn transformers_computes_the_same_of_what_is_saved() -> Result {
    let Some(python) = python() else { return Ok(()) };
    let place = tempfile::tempdir()?;
    let folder = place.path();
    let mut cases = Vec::new();
    for name in CAUSAL {
        cases.push(causal_case(name, Quantization::Dequantize, folder)?);
    }
    for quantization in [Quantization::Dequantize, Quantization::Keep] {
        cases.push(causal_case("llama-gguf/model.gguf", quantization, folder)?);
    }
    for name in CLASSIFIERS {
        cases.push(classifier_case(name, folder)?);
    }
    for name in ["distilbert", "bert", "bert-base"] {
        cases.push(encoder_case(name, folder)?);
    }
    for (name, base) in [
        ("llama-lora", "llama"),
        ("llama-dora", "llama"),
        ("llama-gguf-lora", "llama-gguf/model.gguf"),
        ("gpt2-lora", "gpt2"),
        ("gpt2-dora", "gpt2"),
        ("qwen3-lora", "qwen3"),
    ] {
        cases.push(adapter_case(name, base, folder)?);
    }
    cases.push(adapter_of_classifier(folder)?);

    let requests = folder.join("requests.json");
    let request = |case: &Case| {
        let Case { folder, adapter, request, .. } = case;
        json!({"folder": folder, "adapter": adapter, "request": request})
    };
    std::fs::write(&requests, Value::from_iter(cases.iter().map(request)).to_string())?;
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let program = Program::new(python).env("PYTHONDONTWRITEBYTECODE", "1");
    let ended = program.args(["-c", DRIVER]).arg(scripts).arg(requests).run();
    for (Case { name, logits, .. }, line) in cases.iter().zip(ended.out.lines()) {
        let answer: Value = serde_json::from_str(line)?;
        let theirs: Vec<f32> = Vec::deserialize(&answer["logits"])?;
        assert_eq!(theirs.len(), logits.len(), "{name}");
        let difference = theirs.iter().zip(logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        eprintln!("{name}: a difference of {difference:.1e}");
        assert!(difference <= CLOSE, "{name}: a difference of {difference:e}");
    }
    let answered = ended.out.lines().count();
    let refused = cases.get(answered).map(|case| &*case.name);
    assert_eq!(refused, None, "{}", ended.err);
    ended.success();
    Ok(())
}
