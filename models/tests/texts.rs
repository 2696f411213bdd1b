//! The models of texts with weights of PyTorch compute PyTorch's scores, losses and gradients. `scripts/golden`
//! writes the files, without padding or packing where PyTorch needs none.

use std::path::PathBuf;

use candelabrum_models::{
    CharCell, CharRnn, CharRnnConfig, Han, HanConfig, TextGru, TextGruConfig,
};
use candelabrum_nn::{Model, NameMap, Params, Scope};
use candelabrum_testkit::{assert_close, golden};
use candle_core::{DType, Device, Result};

#[expect(clippy::print_stdout, reason = "names the parameter when a comparison fails")]
fn check<M: Model>(name: &str, count: usize, new: impl Fn(&Scope) -> M) -> Result<()> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let path = folder.join(format!("{name}.safetensors"));
    let file = golden(&path);
    let params = Params::on(0, DType::F64, &Device::Cpu);
    let model = new(&params.root());
    let (tokens, labels) = (&file["result.tokens"], &file["result.labels"]);
    model.forward(tokens)?; // creates the parameters
    let names = NameMap::new().skip("result.").skip("gradient.").rename("_l0", "");
    let report = params.load_weights(&path, &names)?.complete()?;
    assert_eq!(report.to_string(), format!("{count} parameters loaded"));
    let scores = model.forward(tokens)?;
    assert_close(&scores, &file["result.scores"], 1e-12, 1e-12);
    let loss = model.loss(&scores, labels)?;
    assert_close(&loss, &file["result.loss"], 1e-12, 1e-12);
    let gradients = loss.backward()?;
    for (key, expected) in &file {
        let Some(theirs) = key.strip_prefix("gradient.") else { continue };
        println!("{name}: gradient of {theirs}");
        let param = params.get(&names.translate(theirs).expect("it is not skipped"))?;
        let gradient = gradients.get(param.tensor()).expect("every parameter has a gradient");
        assert_close(gradient, expected, 1e-11, 1e-12);
    }
    Ok(())
}

#[test]
fn models_of_characters_are_pytorchs() -> Result<()> {
    for (name, cell) in
        [("char_rnn", CharCell::Rnn), ("char_gru", CharCell::Gru), ("char_lstm", CharCell::Lstm)]
    {
        let config = CharRnnConfig { vocabulary: 7, hidden: 5, layers: 2, cell };
        check(name, 10, |scope| CharRnn::new(scope, config))?;
    }
    Ok(())
}

#[test]
fn the_classifier_of_texts_is_pytorchs() -> Result<()> {
    let config = TextGruConfig { vocabulary: 9, embedding: 4, hidden: 5, classes: 3 };
    check("text_gru", 7, |scope| TextGru::new(scope, config))
}

#[test]
fn the_hierarchical_attention_network_is_pytorchs() -> Result<()> {
    let config = HanConfig { vocabulary: 11, embedding: 4, hidden: 3, context: 5, classes: 3 };
    check("han", 25, |scope| Han::new(scope, config))
}
