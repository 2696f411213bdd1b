//! What is saved here opens again with the same logits: here, and in Python's `transformers` and `peft`.
//! `scripts/open_in_transformers.py` refuses names and shapes that these do not expect, opens adapters by `PeftModel` and by
//! `AutoPeftModel`, and computes logits. The test prints a table of the largest differences.
//!
//! Where no Python has both packages, only this crate opens the folders, and the test says so.

#![expect(clippy::print_stderr, reason = "a test says what it leaves out and what it measures")]

use std::path::{Path, PathBuf};

use candelabrum_nn::{LoraConfig, LoraLayers, Model, Param, Params};
use candelabrum_testkit::Program;
use candelabrum_transformers::{
    CausalLm, Classifier, Encoder, Pretrained, Quantization, load_adapter, save_adapter,
};
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::common::{Expected, Result, pixels, tiny};

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

/// A tiny folder or file, what it is opened as, and the layers that are trained as a whole beside adapters.
const FAMILIES: [(&str, Kind, &[&str]); 19] = [
    ("llama", Kind::Causal, &["embed_tokens", "norm", "lm_head"]),
    ("llama-tied", Kind::Causal, &["embed_tokens", "norm"]),
    ("llama-bias", Kind::Causal, &["embed_tokens"]),
    ("llama3-rope", Kind::Causal, &["lm_head"]),
    ("llama-yarn", Kind::Causal, &["lm_head"]),
    ("llama-sharded", Kind::Causal, &["input_layernorm"]),
    ("llama-gguf/model.gguf", Kind::Causal, &["norm"]),
    ("mistral", Kind::Causal, &["norm"]),
    ("qwen2", Kind::Causal, &["embed_tokens", "norm"]),
    ("qwen3", Kind::Causal, &["embed_tokens", "q_norm"]),
    ("gpt2", Kind::Causal, &["wte", "ln_f"]),
    ("bert", Kind::Classifier, &["classifier", "pooler.dense"]),
    ("bert-old-names", Kind::Classifier, &["classifier"]),
    ("roberta", Kind::Classifier, &["classifier.*"]),
    ("distilbert", Kind::Classifier, &["classifier"]),
    ("vit", Kind::Classifier, &["classifier", "embeddings"]),
    ("bert", Kind::Encoder, &["word_embeddings"]),
    ("bert-base", Kind::Encoder, &["word_embeddings"]),
    ("distilbert", Kind::Encoder, &["output_layer_norm"]),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Causal,
    Classifier,
    Encoder,
}

/// What is saved of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Model,
    HalfModel,
    Lora,
    Dora,
    Merged,
    /// Adapters, and layers that are trained as a whole.
    Whole,
    /// Adapters that `peft` has made.
    OfPeft(&'static str),
    /// Adapters of a model whose matrices stay in few bits.
    Quantized,
}

const COLUMNS: [What; 6] =
    [What::Model, What::HalfModel, What::Lora, What::Dora, What::Merged, What::Whole];

enum Built {
    Causal(Box<CausalLm>),
    Classifier(Box<Classifier>),
    Encoder(Box<Encoder>),
}

impl Built {
    fn open(path: &Path, kind: Kind, params: &Params, quantization: Quantization) -> Result<Self> {
        let pretrained = Pretrained::open(path)?.quantization(quantization);
        Ok(match kind {
            Kind::Causal => Self::Causal(Box::new(pretrained.causal_lm(params)?)),
            Kind::Classifier => Self::Classifier(Box::new(pretrained.classifier(params, None)?)),
            Kind::Encoder => Self::Encoder(Box::new(pretrained.encoder(params)?)),
        })
    }

    /// Logits, or the last states of an encoder.
    fn output(&self, params: &Params, xs: &Tensor) -> Result<Vec<f32>> {
        let output = params.in_mode(false, || -> CandleResult<Tensor> {
            match self {
                Self::Causal(model) => model.forward(xs),
                Self::Classifier(model) => model.forward(&like(xs, params)?),
                Self::Encoder(model) => model.states(xs),
            }
        })?;
        Ok(output.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
    }

    fn save(&self, folder: &Path) -> Result {
        match self {
            Self::Causal(model) => model.save(folder, None)?,
            Self::Classifier(model) => {
                model.save(folder, &["bad", "good", "fine"].map(str::to_owned), None)?;
            }
            Self::Encoder(model) => model.save(folder, None)?,
        }
        Ok(())
    }
}

/// Images in the type of the parameters.
fn like(xs: &Tensor, params: &Params) -> CandleResult<Tensor> {
    if xs.dtype().is_float() { xs.to_dtype(params.dtype()) } else { Ok(xs.clone()) }
}

/// A folder for Python, and what it must compute.
struct Case {
    family: String,
    what: What,
    folder: PathBuf,
    adapter: Option<PathBuf>,
    request: Value,
    output: Vec<f32>,
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

/// The input of a tiny folder, also as a request: the tokens of its `expected.json`, or images that the script makes.
fn input(name: &str) -> Result<(Tensor, Value)> {
    if name == "vit" {
        return Ok((pixels()?, json!({"pixels": "sin", "shape": (2, 3, 16, 16)})));
    }
    let expected = Expected::of(name.trim_end_matches("/model.gguf"))?;
    Ok((expected.tokens()?, json!({"tokens": expected.0["tokens"]})))
}

/// Changes the parameters, so that they are not those of the files any more.
fn change(params: &[Param]) -> Result {
    for param in params {
        let values = param.var().as_detached_tensor();
        let count = u32::try_from(values.elem_count())?;
        let wave = |i| (0.02 * (0.61 * f64::from(i)).cos()) as f32;
        let waves = Tensor::from_iter((0..count).map(wave), &Device::Cpu)?;
        let waves = waves.reshape(values.shape())?.to_dtype(values.dtype())?;
        param.set(&(values + waves)?)?;
    }
    Ok(())
}

/// Saves one thing of one model, opens it again, and compares the outputs.
fn saved((name, kind, whole): (&str, Kind, &[&str]), what: What, place: &Path) -> Result<Case> {
    let (xs, request) = input(name)?;
    let keeps = match what {
        What::Quantized => Quantization::Keep,
        _ => Quantization::Dequantize,
    };
    let half = what == What::HalfModel;
    let open = |path: &Path, dtype: DType| -> Result<(Params, Built)> {
        let params = Params::on(0, dtype, &Device::Cpu);
        let model = Built::open(path, kind, &params, keeps)?;
        Ok((params, model))
    };
    let (params, model) = open(&tiny(name), if half { DType::BF16 } else { DType::F32 })?;
    let family = format!("{}, {kind:?}", name.replace("/model", ""));
    let base = place.join(format!("{family}, base of {what:?}").replace(['"', '/'], ""));
    let adapters = match what {
        What::Model | What::HalfModel => {
            change(&params.list())?;
            None
        }
        What::OfPeft(adapter) => Some(load_adapter(&params, tiny(adapter))?),
        _ => {
            let names = whole.iter().filter(|_| what == What::Whole);
            let config = LoraConfig {
                rank: 4,
                dora: what == What::Dora,
                trained: names.map(|&name| name.to_owned()).collect(),
                ..Default::default()
            };
            Some(LoraLayers::attach(&params, &config)?)
        }
    };
    let Some(adapters) = adapters else {
        model.save(&base)?;
        let (other, again) = open(&base, DType::F32)?;
        let output = again.output(&other, &xs)?;
        let own = model.output(&params, &xs)?;
        let bound = if half { 0.05 } else { 0.0 };
        assert!(largest_difference(&own, &output) <= bound, "{family}, {what:?}");
        return Ok(Case { family, what, folder: base, adapter: None, request, output });
    };
    // The base is saved before anything has learned.
    model.save(&base)?;
    change(adapters.trained())?;
    if what == What::Merged {
        let apart = model.output(&params, &xs)?;
        adapters.merge()?;
        let folder = place.join(format!("{family}, merged"));
        model.save(&folder)?;
        let (other, again) = open(&folder, DType::F32)?;
        let output = again.output(&other, &xs)?;
        assert_eq!(output, model.output(&params, &xs)?, "{family}, merged");
        assert!(largest_difference(&apart, &output) <= CLOSE, "{family}, merged");
        return Ok(Case { family, what, folder, adapter: None, request, output });
    }
    let adapter = place.join(format!("{family}, {what:?}").replace(['"', '/'], ""));
    save_adapter(&adapters, &params, &base, &adapter)?;
    let output = model.output(&params, &xs)?;
    let (other, again) =
        open(&if what == What::Quantized { tiny(name) } else { base.clone() }, DType::F32)?;
    load_adapter(&other, &adapter)?;
    assert_eq!(again.output(&other, &xs)?, output, "{family}, {what:?}");
    Ok(Case { family, what, folder: base, adapter: Some(adapter), request, output })
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn what_is_saved_opens_with_the_same_logits_here_and_in_python() -> Result {
    let place = tempfile::tempdir()?;
    let mut cases = Vec::new();
    for family in FAMILIES {
        for what in COLUMNS {
            cases.push(saved(family, what, place.path())?);
        }
    }
    let llama = ("llama", Kind::Causal, &[][..]);
    for adapter in ["llama-lora", "llama-dora"] {
        cases.push(saved(llama, What::OfPeft(adapter), place.path())?);
    }
    cases.push(saved(("llama-gguf/model.gguf", Kind::Causal, &[]), What::Quantized, place.path())?);

    let Some(python) = python() else { return Ok(()) };
    let requests = place.path().join("requests.json");
    let request = |case: &Case| {
        let Case { folder, adapter, request, .. } = case;
        json!({"folder": folder, "adapter": adapter, "request": request})
    };
    std::fs::write(&requests, Value::from_iter(cases.iter().map(request)).to_string())?;
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let program = Program::new(python).env("PYTHONDONTWRITEBYTECODE", "1");
    let ended = program.args(["-c", DRIVER]).arg(scripts).arg(requests).run();
    let mut row = String::new();
    for (Case { family, what, output, .. }, line) in cases.iter().zip(ended.out.lines()) {
        let answer: Value = serde_json::from_str(line)?;
        let theirs: Vec<f32> = Vec::deserialize(&answer["logits"])?;
        let difference = largest_difference(&theirs, output);
        if *what == COLUMNS[0] || !COLUMNS.contains(what) {
            eprintln!("{row}");
            row = format!("{family:<24}");
        }
        row += &format!(" {what:?} {difference:.1e}");
        assert!(difference <= CLOSE, "{family}, {what:?}: a difference of {difference:e}");
    }
    eprintln!("{row}");
    let answered = ended.out.lines().count();
    let refused = cases.get(answered).map(|case| (&*case.family, case.what));
    assert_eq!(refused, None, "{}", ended.err);
    ended.success();
    Ok(())
}
