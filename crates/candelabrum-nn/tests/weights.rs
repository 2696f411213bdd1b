//! Weights in files: what matches is set, what does not is reported, and nothing changes after an error.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use candelabrum_nn::layers::{BatchNorm2d, Conv2d, Linear};
use candelabrum_nn::{Model, NameMap, Params};
use candelabrum_testkit::uniform;
use candle_core::{DType, Device, Module, Result, Tensor, safetensors};

struct Net {
    conv: Conv2d,
    norm: BatchNorm2d,
    fc: Linear,
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.fc.forward(&self.norm.forward(&self.conv.forward(xs)?)?.flatten_from(1)?)
    }
}

fn net(seed: u64, dtype: DType) -> Result<Params> {
    let params = Params::on(seed, dtype, &Device::Cpu);
    let root = params.root();
    let net = Net {
        conv: Conv2d::new(&root.pp("conv"), 2, 3),
        norm: BatchNorm2d::new(&root.pp("norm")),
        fc: Linear::new(&root.pp("fc"), 3),
    };
    net.compile(&params, (1, 1, 4, 4))?;
    Ok(params)
}

fn values(params: &Params) -> Vec<(String, Vec<f32>)> {
    let list =
        params.list().into_iter().map(|p| (p.name().to_owned(), p.var().as_detached_tensor()));
    let buffers = params.buffers().into_iter().map(|b| (b.name().to_owned(), b.value()));
    let of = |(name, value): (String, Tensor)| {
        let value = value.to_dtype(DType::F32).and_then(|v| v.flatten_all()?.to_vec1());
        (name, value.expect("numbers"))
    };
    list.chain(buffers).map(of).collect()
}

#[test]
fn what_is_saved_is_loaded_bit_for_bit() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("net.safetensors");
    for dtype in [DType::F32, DType::BF16] {
        let (from, to) = (net(1, dtype)?, net(2, dtype)?);
        assert_ne!(values(&from), values(&to));
        from.save_weights(&path)?;
        let report = to.load_weights(&path, &NameMap::new())?.complete()?;
        assert_eq!(report.to_string(), "8 parameters loaded");
        assert_eq!(values(&from), values(&to));
        assert_eq!(fs::read_dir(dir.path())?.count(), 1, "no partial file is left");
    }
    Ok(())
}

#[test]
fn names_of_another_library_are_translated_and_the_rest_is_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("theirs.safetensors");
    let mut theirs = HashMap::new();
    theirs.insert(
        "module.features.weight".to_owned(),
        uniform((2, 1, 3, 3), 1, -1.0, 1.0, DType::F64)?,
    );
    theirs.insert("module.features.bias".to_owned(), uniform(3, 2, -1.0, 1.0, DType::F32)?);
    theirs.insert("module.head.weight".to_owned(), uniform((8, 3), 3, -1.0, 1.0, DType::F32)?);
    theirs.insert("module.extra".to_owned(), uniform(1, 4, -1.0, 1.0, DType::F32)?);
    theirs.insert("module.bn.num_batches_tracked".to_owned(), Tensor::new(7_i64, &Device::Cpu)?);
    safetensors::save(&theirs, &path)?;
    let names = NameMap::new()
        .strip_prefix("module.")
        .rename("features", "conv")
        .rename("head", "fc")
        .transpose("head.weight");
    let params = net(1, DType::F32)?;
    let before: HashMap<_, _> = values(&params).into_iter().collect();
    let report = params.load_weights(&path, &names)?;
    assert_eq!(report.loaded, ["conv.weight", "fc.weight"]);
    assert_eq!(report.unused, ["module.extra"]);
    let unfit = &report.unfit[0];
    assert_eq!(
        (&*unfit.name, &unfit.expected[..], &unfit.got[..]),
        ("conv.bias", &[2][..], &[3][..])
    );
    assert_eq!(report.missing.len(), 5, "{report}");
    let message = report.complete().unwrap_err().to_string();
    assert!(message.contains("not in the model: `module.extra`"), "{message}");
    assert!(message.contains("`conv.bias` is [2], `module.features.bias` [3]"), "{message}");
    let after: HashMap<_, _> = values(&params).into_iter().collect();
    let expected =
        theirs["module.head.weight"].t()?.contiguous()?.flatten_all()?.to_vec1::<f32>()?;
    assert_eq!(after["fc.weight"], expected);
    assert_eq!(after["conv.bias"], before["conv.bias"]);
    Ok(())
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing_and_is_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let whole = dir.path().join("whole.safetensors");
    net(1, DType::F32)?.save_weights(&whole)?;
    let bytes = fs::read(&whole)?;
    let params = net(2, DType::F32)?;
    let before = values(&params);
    let path = dir.path().join("w.safetensors");
    let refuse = |what: &str, names: &NameMap| {
        let message = params.load_weights(&path, names).unwrap_err().to_string();
        assert!(message.contains(what) && message.contains("w.safetensors"), "{message}");
    };
    refuse("cannot be read", &NameMap::new());
    for len in [0, 7, 100, bytes.len() - 1] {
        fs::write(&path, &bytes[..len])?;
        refuse("is no safetensors file", &NameMap::new());
    }
    fs::write(&path, &bytes)?;
    refuse("`conv.bias` and `fc.bias`, both as `fc.bias`", &NameMap::new().rename("conv", "fc"));
    let one = |value: Tensor| safetensors::save(&HashMap::from([("fc.bias", value)]), &path);
    one(Tensor::new(&[1_i64, 2, 3], &Device::Cpu)?)?;
    refuse("`fc.bias` as i64", &NameMap::new());
    one(Tensor::new(&[1f64, 2.0, 1e300], &Device::Cpu)?)?;
    refuse("`fc.bias` that are too large for f32", &NameMap::new());
    assert_eq!(values(&params), before);
    let message = params.save_weights(dir.path().join("no/w")).unwrap_err().to_string();
    assert!(message.contains("no/w cannot be used: the file cannot be written"), "{message}");
    assert!(message.ends_with("(os error 2)") && !message.contains("partial"), "{message}");
    // Others may read the file as far as they may read any new file.
    fs::write(dir.path().join("plain"), "")?;
    let mode = |path: &Path| fs::metadata(path).map(|about| about.permissions().mode());
    assert_eq!(mode(&whole)?, mode(&dir.path().join("plain"))?);
    Ok(())
}

#[test]
fn a_frozen_parameter_is_a_constant_of_the_graph_that_follows_its_values() -> Result<()> {
    let params = net(1, DType::F32)?;
    assert_eq!(params.freeze(|name| name.starts_with("conv")), 2);
    let names = |list: Vec<candelabrum_nn::Param>| -> Vec<String> {
        list.iter().map(|p| p.name().to_owned()).collect()
    };
    assert_eq!(names(params.trainable()), ["norm.weight", "norm.bias", "fc.weight", "fc.bias"]);
    let weight = params.get("conv.weight")?;
    assert!(!weight.tensor().track_op());
    weight.set(&Tensor::ones((2, 1, 3, 3), DType::F32, &Device::Cpu)?)?;
    assert_eq!(weight.tensor().sum_all()?.to_scalar::<f32>()?, 18.0);
    weight.unfreeze();
    assert!(weight.tensor().is_variable());
    Ok(())
}
