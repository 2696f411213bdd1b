//! Why parameters have no gradient after a backward pass: the causes that can be told apart, each with its
//! remedy.
//!
//! Some causes are certain: a name of running statistics, a loss without a graph, a parameter that no layer
//! has used. For the others, candle does not tell which operation cuts the gradient. But the graph ends
//! there, so the parameters on both sides of the cut are known.

use std::collections::HashMap;

use candle_core::{DType, Tensor};

use crate::Param;
use crate::params::is_running_statistic;

/// The parameters that are named. More are counted.
const NAMED: usize = 6;

/// What may cut a gradient: first the shortest cure, then what to take instead of each operation. docs/porting.md has
/// the code.
const CUTS: &str = "an operation without a backward pass or a `detach`. LayerNorm, RmsNorm, \
    `softmax_last_dim` and `rope` of candle-nn have none: put `candelabrum-compat` in the place of candle-nn \
    (one line of Cargo.toml, docs/porting.md), and they have one. One by one: LayerNorm (take \
    `candelabrum::nn::ops::layer_norm`), RmsNorm and `ops::rms_norm` \
    (`candelabrum::nn::ops::rms_norm`), `ops::softmax_last_dim` (`candelabrum::nn::ops::softmax`), \
    `rotary_emb::rope`, `rope_i` and `rope_thd` (`rotary_emb::rope_slow` and `rope_i_slow`), `ops::sdpa` \
    and `attention` (`candelabrum::nn::ops::cross_attention`), `KvCache` (`Tensor::cat`), `QMatMul` \
    (`Linear`), `round` and `sign`, or a product with 0.0, which candle leaves out of the backward pass";

const ALLOW: &str = "if this loss is not meant to train them, `allow_unused` takes zeros for their \
    gradients on all ranks: the loss then never trains them, but weight decay and momentum move them";

/// Parameters that a backward pass has left without a gradient, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingGradients {
    /// The names, for a message.
    pub names: String,
    /// The causes and the remedies, from the most certain to the least.
    pub why: String,
}

/// Explains why those of `params` that `has_gradient` does not know have none after the backward pass of
/// `loss`. `None` if each has one.
pub(crate) fn explain(
    params: &[Param],
    has_gradient: impl Fn(usize) -> bool,
    loss: &Tensor,
) -> Option<MissingGradients> {
    let missing: Vec<usize> = (0..params.len()).filter(|&param| !has_gradient(param)).collect();
    if missing.is_empty() {
        return None;
    }
    let name = |&param: &usize| params[param].name();
    let (merged, rest): (Vec<usize>, Vec<usize>) =
        missing.iter().partition(|&&param| params[param].is_merged());
    let (statistics, rest): (Vec<usize>, Vec<usize>) =
        rest.iter().partition(|param| is_running_statistic(name(param)));
    let mut why = Vec::new();
    if !merged.is_empty() {
        why.push(format!(
            "{} are of adapters that are merged into the weights, which compute without them: call \
             `LoraLayers::unmerge` before a step",
            list(merged.iter().map(name))
        ));
    }
    if !statistics.is_empty() {
        why.push(format!(
            "{} are running statistics, which are not trained: make them buffers, by \
             `Params::from_varmap` or `Params::add_buffer`",
            list(statistics.iter().map(name))
        ));
    }
    if !rest.is_empty() {
        explain_rest(params, &rest, &has_gradient, loss, &mut why);
        why.push(ALLOW.to_owned());
    }
    Some(MissingGradients { names: list(missing.iter().map(name)), why: why.join("; ") })
}

fn explain_rest(
    params: &[Param],
    missing: &[usize],
    has_gradient: &impl Fn(usize) -> bool,
    loss: &Tensor,
    why: &mut Vec<String>,
) {
    let name = |&param: &usize| params[param].name();
    let numbers: HashMap<_, usize> =
        params.iter().enumerate().map(|(number, param)| (param.id(), number)).collect();
    let graph = loss.sorted_nodes();
    let variables: Vec<_> = graph.iter().filter(|node| node.is_variable()).collect();
    if variables.is_empty() {
        why.push(without_graph(loss).to_owned());
        return;
    }
    // In the order of the backward pass.
    let reached: Vec<usize> =
        variables.iter().filter_map(|variable| numbers.get(&variable.id()).copied()).collect();
    if reached.is_empty() {
        why.push(format!(
            "the loss depends on {} variable(s), but on none of these parameters: was the model built \
             with another `VarMap` or `Params`?",
            variables.len()
        ));
        return;
    }
    // A model of candle_nn keeps tensors, so it is not known which parameters it uses.
    let uses_are_known = params.iter().any(|param| param.was_used() == Some(true));
    let (unused, cut): (Vec<usize>, Vec<usize>) = missing
        .iter()
        .partition(|&&param| uses_are_known && params[param].was_used() == Some(false));
    if !unused.is_empty() {
        why.push(format!(
            "the forward pass does not use {}: leave these layers out, or freeze them before the first \
             step (`Params::freeze`)",
            list(unused.iter().map(name))
        ));
    }
    let Some(last_cut) = cut.last() else { return };
    let first = (0..params.len()).find(|&param| has_gradient(param));
    let all_are_known = params.iter().all(|param| param.was_used().is_some()) && uses_are_known;
    let place = match (first, reached.last()) {
        // The order of the parameters is that of the layers.
        (Some(first), _) if all_are_known && *last_cut < first => format!(
            "the gradient reaches `{}` and not `{}`, the one before it in the model: what stands \
             between them is",
            name(&first),
            name(last_cut)
        ),
        (_, Some(furthest)) => format!(
            "of the parameters that the gradient reaches, `{}` is the furthest from the loss: behind \
             it, in the way to {}, there is",
            name(furthest),
            list(cut.iter().map(name))
        ),
        _ => "in the way there is".to_owned(),
    };
    let unless = if all_are_known { "" } else { "; or the model does not use them" };
    why.push(format!("{place} {CUTS}{unless}"));
}

/// The reason why a loss has no graph.
fn without_graph(loss: &Tensor) -> &'static str {
    let value = loss.to_dtype(DType::F32).and_then(|value| value.to_scalar::<f32>());
    match value {
        Ok(0.0) => {
            "the loss is 0 and depends on no parameter: candle leaves a product with 0.0 out of the \
             backward pass, so leave such a step out, or begin with a small factor"
        }
        _ => {
            "the loss depends on no parameter: it, or what it is computed from, was detached, copied \
             out of the graph (`detach`, `to_vec`, `to_scalar`, `as_detached_tensor`), or is the result \
             of an operation without a backward pass (docs/porting.md lists them)"
        }
    }
}

/// The first names, in quotes, and the number of the others.
fn list<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let names: Vec<String> = names.take(NAMED).map(|name| format!("`{name}`")).collect();
    let names = names.join(", ");
    if more == 0 { names } else { format!("{names} and {more} more") }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Result, Var};

    use super::*;
    use crate::{Init, Params};

    /// The explanation for a model of `names` whose parameters numbered `with` have a gradient.
    fn explained(params: &Params, with: &[usize], loss: &Tensor) -> String {
        let missing = explain(&params.list(), |param| with.contains(&param), loss);
        missing.map_or_else(String::new, |missing| format!("{}: {}", missing.names, missing.why))
    }

    #[track_caller]
    fn contains(text: &str, parts: &[&str], absent: &[&str]) {
        parts.iter().for_each(|part| assert!(text.contains(part), "`{part}` is missing: {text}"));
        absent.iter().for_each(|part| assert!(!text.contains(part), "`{part}`: {text}"));
        // `allow_unused` comes last.
        let (allow, cuts) = (text.find("allow_unused"), text.find("layer_norm"));
        assert!(allow.is_none() || cuts.is_none() || allow > cuts, "{text}");
    }

    #[test]
    fn each_cause_is_told_apart() -> Result<()> {
        let layers = |names: &[&str]| -> Result<(Params, Vec<Tensor>)> {
            let params = Params::new(0);
            let init = Init::Const(0.5);
            for name in names {
                params.root().param(name, 2, init)?;
            }
            let list = params.list();
            let tensors = list.iter().map(|param| param.variable().as_tensor().clone()).collect();
            Ok((params, tensors))
        };
        let (params, t) = layers(&["a", "b", "c"])?;
        let whole = (&t[0] + &t[1])?.add(&t[2])?.sum_all()?;
        assert_eq!(explained(&params, &[0, 1, 2], &whole), "");

        // No graph.
        let detached = explained(&params, &[], &whole.detach());
        contains(&detached, &["`a`, `b`, `c`: the loss depends on no", "detach"], &["factor"]);
        let zero = explained(&params, &[], &(&whole * 0.0)?);
        contains(&zero, &["is 0 and", "small factor", "allow_unused"], &["to_scalar"]);
        let other = Var::zeros((), DType::F32, &Device::Cpu)?;
        let foreign = explained(&params, &[], other.as_tensor());
        contains(&foreign, &["depends on 1 variable(s)", "VarMap"], &["rope"]);

        // Tensors that a model keeps.
        let last = t[2].sum_all()?;
        let kept = explained(&params, &[2], &last);
        contains(
            &kept,
            &["`c` is the furthest", "candelabrum-compat", "rope_slow", "does not use them"],
            &["reaches `c`"],
        );

        // Layers of ours.
        for used in params.list() {
            used.tensor();
        }
        let cut = explained(&params, &[2], &last);
        contains(&cut, &["reaches `c` and not `b`", "rope_slow"], &["does not use"]);
        let split = explained(&params, &[0, 2], &(&t[0] + &t[2])?.sum_all()?);
        contains(&split, &["`b`: of the", "0.0"], &["does not use"]);
        params.list().iter().for_each(Param::forget_use);
        params.get("c")?.tensor();
        let unused = explained(&params, &[2], &last);
        contains(&unused, &["does not use `a`, `b`: leave", "freeze"], &["rope", "detach"]);

        // Adapters that are merged, whatever else may be missing.
        params.get("a")?.note_merged(true);
        let merged = explained(&params, &[2], &last);
        let parts = ["`a` are of adapters that are merged", "`LoraLayers::unmerge`", "use `b`"];
        contains(&merged, &parts, &["rope", "`a`, `b`: leave"]);
        params.get("b")?.note_merged(true);
        let merged = explained(&params, &[2], &last);
        contains(
            &merged,
            &["`a`, `b` are of adapters"],
            &["allow_unused", "detach", "does not use"],
        );

        // A model that keeps some tensors, beside a layer of ours.
        let (var, ours) = (Var::ones(2, DType::F32, &Device::Cpu)?, Init::Const(0.5));
        let params = Params::from_vars([("kept", var)])?;
        let used = params.root().param("used", 2, ours)?;
        let mixed = explained(&params, &[1], &used.tensor().sum_all()?);
        contains(&mixed, &["`used` is the furthest", "does not use them"], &["does not use `"]);

        // Running statistics.
        let (params, t) = layers(&["weight", "norm.running_mean", "norm.running_var"])?;
        let statistics = explained(&params, &[0], &t[0].sum_all()?);
        let parts = ["`norm.running_mean`, `norm.running_var` are running", "add_buffer"];
        contains(&statistics, &parts, &["allow_unused", "rope"]);
        Ok(())
    }

    #[test]
    fn many_names_are_counted() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        assert_eq!(list(names[..2].iter().copied()), "`a`, `b`");
        assert_eq!(list(names.iter().copied()), "`a`, `b`, `c`, `d`, `e`, `f` and 2 more");
    }
}
