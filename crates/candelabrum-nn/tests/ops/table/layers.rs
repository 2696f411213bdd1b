//! Layers with the values that PyTorch computed from the same parameters, which are inputs of the case.

use std::collections::BTreeMap;
use std::sync::Arc;

use candelabrum_nn::layers::{
    Gru, Lstm, MultiHeadAttention, Rnn, SeparableConv2d, TransformerBlock,
};
use candelabrum_nn::{InitialValues, Params};
use candle_core::{DType, Device, Module, Result, Shape, Tensor, Var};

use super::case::{Arguments, Cases, GoldenCase, golden_cases};

/// Gives the layer's parameters the variables of a case, by the names of the golden file.
struct FromCase {
    variables: BTreeMap<String, Var>,
    name_there: fn(&str) -> String,
}

impl InitialValues for FromCase {
    fn variable(&self, name: &str, _: &Shape, _: DType, _: &Device) -> Result<Option<Var>> {
        Ok(self.variables.get(&(self.name_there)(name)).cloned())
    }
}

/// Asks a layer about the cases of a golden file. It gets a store, those inputs of the file that are `INPUTS`, and
/// the lengths of the sequences.
fn check<L>(
    file: &str,
    name_there: fn(&str) -> String,
    layer: impl Fn(&GoldenCase) -> L,
) -> Result<()>
where
    L: Fn(&Params, [Option<&Tensor>; 5]) -> Result<Tensor> + Send + Sync + 'static,
{
    const INPUTS: [&str; 4] = ["xs", "memory", "h0", "c0"];
    for case in golden_cases(file) {
        let has_gradient = |name: &&String| case.tensors.contains_key(&format!("d{name}"));
        let names = case.tensors.keys().filter(has_gradient).map(String::as_str);
        let names: Vec<&str> = names.filter(|name| !INPUTS.contains(name)).collect();
        let parameters: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let layer = layer(&case);
        let mut cases = Cases::new("layer", &[&INPUTS, &names[..]].concat(), &["lengths"]);
        let case = cases.add_golden(&case, move |t: &Arguments| {
            let variable = |(number, name): (usize, &String)| {
                Ok((name.clone(), Var::from_tensor(&t[INPUTS.len() + number])?))
            };
            let variables = parameters.iter().enumerate().map(variable).collect::<Result<_>>()?;
            let params = Params::on(0, t[0].dtype(), t[0].device());
            params.set_initial_values(Some(Arc::new(FromCase { variables, name_there })));
            let lengths = t.get(INPUTS.len() + parameters.len());
            let ys = layer(&params, [t.get(0), t.get(1), t.get(2), t.get(3), lengths])?;
            assert_eq!(params.len(), parameters.len());
            Ok(ys)
        });
        case.is_layer = true;
        cases.check_part()?;
    }
    Ok(())
}

#[test]
fn transformer_layers() -> Result<()> {
    check(
        "transformer_layers",
        |name| format!("param.{name}"),
        |case| {
            let name = case.name.clone();
            move |params: &Params, [xs, memory, ..]: [Option<&Tensor>; 5]| {
                let (root, xs) = (params.root(), xs.expect("an input"));
                let block = || TransformerBlock::new(&root, 3).hidden(20);
                match &*name {
                    "cross" => {
                        let memory = memory.expect("another sequence");
                        MultiHeadAttention::new(&root, 2).forward_to(xs, memory, None)
                    }
                    "causal" => block().causal().forward(xs),
                    _ => block().forward(xs),
                }
            }
        },
    )
}

#[test]
fn separable_convolution() -> Result<()> {
    let name_there = |name: &str| match name {
        "conv1.weight" => "depthwise".to_owned(),
        _ => "pointwise".to_owned(),
    };
    check("separable_conv2d", name_there, |_| {
        |params: &Params, [xs, ..]: [Option<&Tensor>; 5]| {
            let layer = SeparableConv2d::new(&params.root(), 5, 3).stride(2).padding(1);
            layer.forward(xs.expect("an input"))
        }
    })
}

/// `weight_ih_l0` for `weight_ih`, `weight_ih_l0_reverse` for `weight_ih_reverse`.
fn recurrent_name(name: &str) -> String {
    match (name.contains("_l"), name.strip_suffix("_reverse")) {
        (true, _) => name.to_owned(),
        (false, Some(name)) => format!("{name}_l0_reverse"),
        (false, None) => format!("{name}_l0"),
    }
}

/// Layers of 4 units above each other, in one direction or both, with lengths as PyTorch's packed sequences. The
/// results are all hidden states, then the final hidden and cell states.
#[test]
fn stacked_recurrent_layers() -> Result<()> {
    check("stacked_recurrent", recurrent_name, |case| {
        let parts: Vec<String> = case.name.split('_').map(str::to_owned).collect();
        let layers = parts[1].parse().expect("the number of layers");
        move |params: &Params, [xs, _, h0, c0, lengths]: [Option<&Tensor>; 5]| {
            macro_rules! layer {
                ($Layer:ident) => {{
                    let layer = $Layer::new(&params.root(), 4).layers(layers);
                    if parts[2] == "1" { layer.bidirectional() } else { layer }
                }};
            }
            // A single layer in one direction takes a state without the dimension of layers.
            let squeezed = |state: &Tensor| match state.dim(0)? {
                1 => state.squeeze(0),
                _ => Ok(state.clone()),
            };
            let (h, c) = (h0.map(squeezed).transpose()?, c0.map(squeezed).transpose()?);
            let (h, c, xs) = (h.as_ref(), c.as_ref(), xs.expect("an input"));
            let all = Tensor::new(&[6u32; 4], &Device::Cpu)?;
            let lengths = lengths.unwrap_or(&all);
            let results = match &*parts[0] {
                "RNN" => <[_; 2]>::from(layer!(Rnn).forward_lengths(xs, lengths, h)?).to_vec(),
                "GRU" => <[_; 2]>::from(layer!(Gru).forward_lengths(xs, lengths, h)?).to_vec(),
                _ => {
                    let (ys, (h, c)) = layer!(Lstm).forward_lengths(xs, lengths, h.zip(c))?;
                    vec![ys, h, c]
                }
            };
            let flat = results.iter().map(Tensor::flatten_all).collect::<Result<Vec<_>>>()?;
            Tensor::cat(&flat, 0)
        }
    })
}
