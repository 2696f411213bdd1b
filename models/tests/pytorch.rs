//! Networks for images compute what PyTorch computes from the same weights: outputs, losses, and the norms of the
//! gradients of all parameters. `scripts/golden/models.py` has written what is expected.

use std::path::PathBuf;

use candelabrum_models::{
    AlexNet, AlexNetConfig, LeNet, ResNet34, ResNet101, Vgg, VggConfig, VggDepth, Vit, VitConfig,
    Xception,
};
use candelabrum_nn::{Model, NameMap, Params, Scope};
use candelabrum_testkit::{assert_close, golden, golden_metadata, integers, uniform};
use candle_core::{DType, Device, Result, Shape, Tensor};

const CLASSES: usize = 5;

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Sets parameters and buffers to the numbers of `fill` in the script. Returns their names in order.
fn fill(params: &Params, seed: u64) -> Result<Vec<String>> {
    let (list, buffers) = (params.list(), params.buffers());
    let parameters = list.iter().map(|param| (param.name(), param.var().shape().clone()));
    let statistics = buffers.iter().map(|buffer| (buffer.name(), buffer.value().shape().clone()));
    let mut names: Vec<(&str, Shape)> = parameters.chain(statistics).collect();
    names.sort_by_key(|(name, _)| *name);
    for (seed, (name, shape)) in (seed..).zip(&names) {
        let (low, high) = if shape.rank() > 1 {
            let inputs = shape.elem_count() / shape.dims()[0];
            let bound = (6.0 / inputs as f64).sqrt();
            (-bound, bound)
        } else if name.ends_with("bias") || name.ends_with("running_mean") {
            (-0.1, 0.1)
        } else {
            (0.5, 1.5)
        };
        let values = uniform(shape, seed, low, high, DType::F64)?;
        match buffers.iter().find(|buffer| buffer.name() == *name) {
            Some(buffer) => buffer.set(&values)?,
            None => params.get(name)?.set(&values)?,
        }
    }
    Ok(names.iter().map(|(name, _)| (*name).to_owned()).collect())
}

/// Compares the results of a model for images of the script with those in the file. `to_torchs` is torchvision's
/// name of a parameter.
fn compare<M: Model>(
    (file, name): (&str, &str),
    (model, params): (&M, &Params),
    (images, seed): (&[usize], u64),
    to_torchs: impl Fn(&str) -> String,
) -> Result<()> {
    let expected = golden(golden_path(file));
    let expected = |what: &str| &expected[&format!("{name}.{what}")];
    let xs = uniform(images, seed, -1.0, 1.0, DType::F64)?;
    let labels = integers(images[0], seed + 1, CLASSES as u32)?;
    params.eval();
    assert_close(&model.forward(&xs)?, expected("ys"), 1e-9, 1e-9);
    params.train();
    let loss = model.loss(&model.forward(&xs)?, &labels)?;
    assert_close(&loss, expected("loss"), 1e-9, 1e-9);
    let gradients = loss.backward()?;
    let norm = |gradient: &Tensor| gradient.sqr()?.sum_all()?.sqrt()?.to_scalar::<f64>();
    let mut norms = Vec::new();
    for param in params.list() {
        let gradient = gradients.get(param.tensor()).expect("every parameter has a gradient");
        norms.push((to_torchs(param.name()), norm(gradient)?));
    }
    norms.sort_by(|(a, _), (b, _)| a.cmp(b));
    let norms: Vec<f64> = norms.into_iter().map(|(_, norm)| norm).collect();
    // Normalisations amplify roundings, and take away what some parameters add.
    assert_close(&Tensor::new(norms, &Device::Cpu)?, expected("norms"), 1e-7, 1e-9);
    Ok(())
}

/// Compares a network of the script's list, whose number there is `index`.
fn check<M: Model>(
    index: u64,
    name: &str,
    images: [usize; 4],
    new: impl Fn(&Scope) -> M,
) -> Result<()> {
    let params = Params::on(0, DType::F64, &Device::Cpu);
    let model = new(&params.root());
    model.compile(&params, &images[..])?;
    let seed = 20_000 + 1000 * index;
    let names = fill(&params, seed)?;
    // JSON and Rust write lists of names alike.
    let file = "models.safetensors";
    assert_eq!(format!("{names:?}"), golden_metadata(golden_path(file))[name]);
    compare((file, name), (&model, &params), (&images, seed - 2), str::to_owned)
}

#[test]
fn lenet() -> Result<()> {
    check(0, "lenet", [3, 1, 28, 28], |root| LeNet::new(root, CLASSES))
}

#[test]
fn alexnet() -> Result<()> {
    let config = AlexNetConfig { units: 8, dropout: 0.0, ..AlexNetConfig::default() };
    check(1, "alexnet", [2, 3, 64, 70], |root| AlexNet::with_config(root, CLASSES, config))
}

#[test]
fn vgg() -> Result<()> {
    let config = VggConfig { units: 8, dropout: 0.0, ..VggConfig::new(VggDepth::Vgg11) };
    check(2, "vgg11", [2, 3, 32, 70], |root| Vgg::new(root, CLASSES, config))?;
    let config = VggConfig { batch_norm: true, depth: VggDepth::Vgg16, ..config };
    check(3, "vgg16_bn", [3, 3, 32, 32], |root| Vgg::new(root, CLASSES, config))
}

#[test]
fn resnet34() -> Result<()> {
    check(4, "resnet34", [3, 3, 64, 64], |root| ResNet34::new(root, CLASSES))
}

#[test]
fn resnet101() -> Result<()> {
    check(5, "resnet101", [3, 3, 64, 64], |root| ResNet101::new(root, CLASSES))
}

#[test]
fn xception() -> Result<()> {
    check(6, "xception", [3, 3, 71, 75], |root| Xception::new(root, CLASSES))
}

/// The weights are a file of torchvision's names.
#[test]
fn vision_transformer() -> Result<()> {
    let params = Params::on(0, DType::F64, &Device::Cpu);
    let config = VitConfig { patch: 4, width: 6, layers: 2, heads: 2, hidden: 10, dropout: 0.0 };
    let model = Vit::new(&params.root(), CLASSES, config);
    model.compile(&params, (3, 3, 8, 8))?;
    let names = Vit::torchvision_names();
    let weights = golden_path("vit_weights.safetensors");
    params.load_weights(&weights, &names)?.complete()?;
    let of_the_file = golden(&weights);
    let to_torchs = |name: &str| {
        let theirs =
            of_the_file.keys().find(|theirs| names.translate(theirs).as_deref() == Some(name));
        theirs.expect("every parameter is in the file").clone()
    };
    compare(("vit.safetensors", "vit"), (&model, &params), (&[3, 3, 8, 8], 29_998), to_torchs)?;
    // Names that are not translated are not found.
    assert!(params.load_weights(&weights, &NameMap::new())?.complete().is_err());
    Ok(())
}
