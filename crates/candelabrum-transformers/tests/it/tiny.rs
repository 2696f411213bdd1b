//! All families against Python's `transformers`, on tiny folders that `scripts/tiny_models.py` makes.
//!
//! Besides logits and states, the losses of 20 training steps are compared: they show the gradients of all parameters.

use candelabrum_nn::{Model, Params};
use candelabrum_transformers::{
    CausalLm, Classifier, GenerationConfig, Pretrained, Quantization, load_adapter, save_adapter,
};
use candle_core::{Device, Tensor};

use crate::common::{Expected, Result, assert_close, losses, pixels, shifted, tiny};

fn causal_lm(name: &str) -> Result<(Params, CausalLm)> {
    let params = Params::new(0);
    let model = Pretrained::open(tiny(name))?.causal_lm(&params)?;
    assert!(model.report().unused.is_empty(), "{}", model.report());
    Ok((params, model))
}

fn check_causal_lm(name: &str) -> Result {
    let (params, model) = causal_lm(name)?;
    let expected = Expected::of(name)?;
    let tokens = expected.tokens()?;
    assert_close(name, &model.forward(&tokens)?, &expected.numbers("logits"));
    if !expected.0["losses"].is_null() {
        let (xs, ys) = shifted(&tokens)?;
        let losses = losses(&model, &params, (&xs, &ys), 0.01)?;
        let losses = Tensor::new(losses, &Device::Cpu)?;
        assert_close(&format!("losses of {name}"), &losses, &expected.numbers("losses"));
    }
    Ok(())
}

#[test]
fn decoders_compute_what_transformers_computes() -> Result {
    for name in [
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
        "llama-gguf/model.gguf",
    ] {
        let expected = name.trim_end_matches("/model.gguf");
        if expected == name {
            check_causal_lm(name)?;
        } else {
            let params = Params::new(0);
            let model = Pretrained::open(tiny(name))?.causal_lm(&params)?;
            let expected = Expected::of(expected)?;
            assert_close(name, &model.forward(&expected.tokens()?)?, &expected.numbers("logits"));
        }
    }
    Ok(())
}

#[test]
fn encoders_compute_what_transformers_computes() -> Result {
    for name in ["bert", "bert-old-names", "roberta", "distilbert", "vit"] {
        let params = Params::new(0);
        let model = Pretrained::open(tiny(name))?.classifier(&params, None)?;
        let report = model.report();
        assert!(report.is_complete(), "{name}: {report}");
        let expected = Expected::of(name)?;
        let xs = if name == "vit" { pixels()? } else { expected.tokens()? };
        assert_close(name, &model.forward(&xs)?, &expected.numbers("logits"));
        let losses = losses(&model, &params, (&xs, &expected.labels()?), 0.01)?;
        let losses = Tensor::new(losses, &Device::Cpu)?;
        assert_close(&format!("losses of {name}"), &losses, &expected.numbers("losses"));
    }
    Ok(())
}

#[test]
fn embeddings_are_those_of_sentence_transformers() -> Result {
    let params = Params::new(0);
    let model = Pretrained::open(tiny("bert-base"))?.encoder(&params)?;
    let expected = Expected::of("bert-base")?;
    let tokens = expected.tokens()?;
    assert_close("states", &model.states(&tokens)?, &expected.numbers("states"));
    assert_close("embeddings", &model.forward(&tokens)?, &expected.numbers("mean"));
    Ok(())
}

#[test]
fn adapters_compute_what_peft_computes() -> Result {
    for name in ["llama-lora", "llama-dora"] {
        let (params, model) = causal_lm("llama")?;
        let layers = load_adapter(&params, tiny(name))?;
        assert_eq!(layers.names().len(), 6);
        let expected = Expected::of(name)?;
        let tokens = expected.tokens()?;
        let apart = model.forward(&tokens)?;
        assert_close(name, &apart, &expected.numbers("logits"));
        layers.merge()?;
        assert_close("merged", &model.forward(&tokens)?, &expected.numbers("logits"));
        layers.unmerge()?;
        let again = model.forward(&tokens)?.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(again, apart.flatten_all()?.to_vec1::<f32>()?);
        let (xs, ys) = shifted(&tokens)?;
        let losses = losses(&model, &params, (&xs, &ys), 0.0)?;
        let losses = Tensor::new(losses, &Device::Cpu)?;
        assert_close(&format!("losses of {name}"), &losses, &expected.numbers("losses"));
    }
    Ok(())
}

#[test]
fn what_is_saved_loads_with_the_same_bits() -> Result {
    let place = tempfile::tempdir()?;
    for name in ["llama-tied", "qwen3", "gpt2"] {
        let (_, model) = causal_lm(name)?;
        let tokens = Expected::of(name)?.tokens()?;
        let saved = place.path().join(name);
        model.save(&saved, None)?;
        let params = Params::new(1);
        let again = Pretrained::open(&saved)?.causal_lm(&params)?;
        let bits = |model: &CausalLm| model.forward(&tokens)?.flatten_all()?.to_vec1::<f32>();
        assert_eq!(bits(&again)?, bits(&model)?);
    }
    let params = Params::new(0);
    let model = Pretrained::open(tiny("bert"))?.classifier(&params, None)?;
    let classes = ["bad", "good", "fine"].map(str::to_owned);
    model.save(place.path().join("bert"), &classes, None)?;
    let other = Params::new(1);
    let again = Pretrained::open(place.path().join("bert"))?.classifier(&other, None)?;
    assert_eq!(again.config().json()["label2id"]["fine"], 2);
    let tokens = Expected::of("bert")?.tokens()?;
    let bits = |model: &Classifier| model.forward(&tokens)?.flatten_all()?.to_vec1::<f32>();
    assert_eq!(bits(&again)?, bits(&model)?);
    Ok(())
}

#[test]
fn an_adapter_that_is_saved_loads_with_the_same_bits() -> Result {
    let place = tempfile::tempdir()?;
    for name in ["llama-lora", "llama-dora"] {
        let (params, model) = causal_lm("llama")?;
        let layers = load_adapter(&params, tiny(name))?;
        save_adapter(&layers, &params, "llama", place.path().join(name))?;
        let (other, again) = causal_lm("llama")?;
        let loaded = load_adapter(&other, place.path().join(name))?;
        assert_eq!(loaded.config().rank, 4);
        let tokens = Expected::of(name)?.tokens()?;
        let bits = |model: &CausalLm| model.forward(&tokens)?.flatten_all()?.to_vec1::<f32>();
        assert_eq!(bits(&again)?, bits(&model)?);
    }
    Ok(())
}

#[test]
fn generated_tokens_are_those_of_transformers_with_and_without_a_cache() -> Result {
    for name in ["llama", "qwen3", "gpt2"] {
        let (_, model) = causal_lm(name)?;
        let expected = Expected::of(name)?;
        let prompt = expected.tokens()?.narrow(0, 0, 1)?.narrow(1, 0, 5)?.flatten_all()?;
        let greedy = GenerationConfig { max_new_tokens: 10, ..Default::default() };
        let tokens = model.generate(&prompt.to_vec1::<u32>()?, &greedy, |_| {})?;
        let generated: Vec<u32> = serde_json::from_value(expected.0["generated"].clone())?;
        assert_eq!(tokens, generated, "{name}");
        let drawn = GenerationConfig { temperature: 2.0, max_new_tokens: 30, ..greedy };
        let with = model.generate(&prompt.to_vec1::<u32>()?, &drawn, |_| {})?;
        let without = GenerationConfig { use_cache: false, ..drawn };
        assert_eq!(with, model.generate(&prompt.to_vec1::<u32>()?, &without, |_| {})?);
    }
    Ok(())
}

#[test]
fn logits_have_the_same_bits_with_and_without_a_cache() -> Result {
    use candelabrum_nn::ops::with_independent_rows;
    use candelabrum_transformers::Cache;
    for name in ["llama", "mistral", "qwen3", "gpt2", "llama3-rope"] {
        let (params, model) = causal_lm(name)?;
        let tokens: Vec<u32> = (0..60_u32).map(|i| i * i % 61).collect();
        let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let rows = |logits: Tensor| logits.squeeze(0)?.to_vec2::<f32>();
        params.eval();
        with_independent_rows(|| {
            let whole = rows(model.forward(&tokens)?)?;
            let mut cache = Cache::new(60);
            let (mut first, mut parts) = (0, Vec::new());
            for count in [20, 1, 1, 7, 1, 30] {
                let part = tokens.narrow(1, first, count)?;
                parts.extend(rows(model.logits(&model.states_cached(&part, &mut cache)?)?)?);
                first += count;
            }
            assert!(whole == parts, "{name}");
            candle_core::Result::Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn matrices_that_stay_quantised_compute_as_dequantised_ones() -> Result {
    let path = tiny("llama-gguf/model.gguf");
    let expected = Expected::of("llama-gguf")?;
    let params = Params::new(0);
    let open = || Pretrained::open(&path);
    let model = open()?.quantization(Quantization::Keep).causal_lm(&params)?;
    assert_eq!(params.list().len(), 5, "only norms are parameters");
    let tokens = expected.tokens()?;
    assert_close("quantised", &model.forward(&tokens)?, &expected.numbers("logits"));
    // The same adapter learns the same on both.
    let (xs, ys) = shifted(&tokens)?;
    let wide = Params::new(0);
    let dequantised = open()?.causal_lm(&wide)?;
    let config = candelabrum_nn::LoraConfig { rank: 4, ..Default::default() };
    candelabrum_nn::LoraLayers::attach(&params, &config)?;
    candelabrum_nn::LoraLayers::attach(&wide, &config)?;
    let quantised = losses(&model, &params, (&xs, &ys), 0.0)?;
    let dequantised = losses(&dequantised, &wide, (&xs, &ys), 0.0)?;
    assert!(quantised[19] < quantised[0] - 0.1, "{quantised:?}");
    assert_close("losses", &Tensor::new(quantised, &Device::Cpu)?, &dequantised);
    Ok(())
}
