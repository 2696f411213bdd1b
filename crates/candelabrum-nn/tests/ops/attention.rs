//! Attention against central differences and PyTorch, and its edges.

use candelabrum_nn::ops::{AttentionConfig, Rotary, attention, cross_attention, with_composites};
use candelabrum_testkit::{assert_close, gradcheck, integers};
use candle_core::{DType, Device, Result, Tensor, Var};
use proptest::prelude::*;

use crate::behaviour::message;
use crate::golden::{cases, check};
use crate::random;

const EPS: f64 = 1e-5;
const TOL: f64 = 1e-7;

#[test]
fn gradients_with_positions_and_a_mask() -> Result<()> {
    let rotary = Some(Rotary { base: 30.0, offset: 2, ..Rotary::default() });
    let config = AttentionConfig { kv_heads: 1, rotary, ..AttentionConfig::new(3) };
    let qkv = [random((2, 5, 20), 1)?];
    let mask = random((2, 1, 5, 5), 2)?;
    for causal in [false, true] {
        let config = AttentionConfig { causal, ..config };
        gradcheck(|t| attention(&t[0], Some(&mask), config), &qkv, EPS, TOL)?;
    }
    Ok(())
}

#[test]
fn attention_is_pytorchs() -> Result<()> {
    for case in cases("attention.safetensors") {
        let [heads, kv_heads, causal] = case.config()?[..] else { panic!("three numbers") };
        let rotary = case.tensors.get("rotary").map(|rotary| {
            let [base, offset] = rotary.to_vec1::<f64>().expect("f64")[..] else {
                panic!("two numbers")
            };
            Rotary { base, offset: offset as usize, ..Rotary::default() }
        });
        let causal = causal == 1;
        let config = AttentionConfig { heads, kv_heads, causal, rotary, scale: None };
        check(&case, &["qkv", "q", "k", "v"], |t| {
            let dtype = t.values().next().expect("an input").dtype();
            let mask = case.tensors.get("mask").map(|mask| mask.to_dtype(dtype)).transpose()?;
            match t.get("qkv") {
                Some(qkv) => attention(qkv, mask.as_ref(), config),
                None => cross_attention(&t["q"], &t["k"], &t["v"], mask.as_ref(), config),
            }
        })?;
    }
    Ok(())
}

#[test]
fn the_last_query_sees_what_it_sees_alone() -> Result<()> {
    // A step of generation: one query, the keys and values of all tokens so far.
    let rotary = Some(Rotary { offset: 4, ..Rotary::default() });
    let config = AttentionConfig { causal: true, rotary, ..AttentionConfig::new(2) };
    let qkv = random((2, 7, 24), 1)?;
    let whole = attention(&qkv, None, config)?.narrow(1, 5, 2)?;
    let [q, k, v] = [0, 8, 16].map(|first| qkv.narrow(2, first, 8));
    let last = cross_attention(&q?.narrow(1, 5, 2)?, &k?, &v?, None, config)?;
    assert_close(&last, &whole, 1e-14, 1e-14);
    Ok(())
}

#[test]
fn a_query_that_sees_no_key_has_the_result_and_the_gradients_zero() -> Result<()> {
    let low = f64::NEG_INFINITY;
    // Query 1 sees no key, and nobody sees key 2.
    let mask = Tensor::new(&[[0.0, 0.0, low], [low; 3], [0.0, low, low]], &Device::Cpu)?;
    for (composite, causal) in [(false, false), (false, true), (true, false), (true, true)] {
        let qkv = Var::from_tensor(&random((1, 3, 6), 1)?)?;
        let config = AttentionConfig { causal, ..AttentionConfig::new(1) };
        let run = || attention(&qkv, Some(&mask), config);
        let ys = if composite { with_composites(run) } else { run() }?;
        assert_eq!(ys.get(0)?.get(1)?.to_vec1::<f64>()?, [0.0; 2]);
        let grads = ys.sum_all()?.backward()?;
        let gradient = grads.get(&qkv).expect("a gradient").get(0)?.to_vec2::<f64>()?;
        assert!(gradient.iter().flatten().all(|g| g.is_finite()), "{gradient:?}");
        assert_eq!(gradient[1][..2], [0.0; 2], "the query that sees nothing");
        assert_eq!(gradient[2][2..], [0.0; 4], "the key that nobody sees, and its value");
        assert_ne!(gradient[0][4..], [0.0; 2], "a value that is seen");
    }
    Ok(())
}

#[test]
fn large_scores_do_not_overflow_and_nan_is_not_hidden() -> Result<()> {
    let qkv = (random((1, 70, 12), 1)? * 1e4)?.to_dtype(DType::F32)?;
    let config = AttentionConfig { causal: true, ..AttentionConfig::new(2) };
    let ys = attention(&qkv, None, config)?.flatten_all()?.to_vec1::<f32>()?;
    assert!(ys.iter().all(|y| y.is_finite()));
    let nan = (&qkv * f64::NAN)?;
    let ys = attention(&nan, None, config)?.flatten_all()?.to_vec1::<f32>()?;
    assert!(ys.iter().all(|y| y.is_nan()));
    Ok(())
}

#[test]
fn calls_that_do_not_fit_are_refused() -> Result<()> {
    let qkv = random((2, 3, 12), 1)?;
    let config = AttentionConfig::new(2);
    let run = |config| message(attention(&qkv, None, config));
    let expected = "attention: 2 heads of keys and values do not divide 3 heads of queries";
    assert_eq!(run(AttentionConfig { kv_heads: 2, ..AttentionConfig::new(3) }), expected);
    assert!(run(AttentionConfig::new(0)).contains("do not divide 0 heads"));
    assert!(run(AttentionConfig::new(5)).contains("[2, 3, 12] do not divide into 15 heads"));
    let rotary = Some(Rotary::default());
    let odd = AttentionConfig { rotary, ..AttentionConfig::new(4) };
    assert_eq!(run(odd), "attention: heads of odd size 1 have no halves to rotate");
    let rotary = Some(Rotary { base: -1.0, ..Rotary::default() });
    assert!(run(AttentionConfig { rotary, ..config }).contains("base -1 of the rotary"));

    let masked = |mask: &Tensor| message(attention(&qkv, Some(mask), config));
    assert!(masked(&random((2, 3), 2)?).contains("expected (3, 3) or (2, 2, 3, 3)"));
    assert!(masked(&random((3, 1), 2)?).contains("mask of shape [3, 1]"));
    assert!(masked(&random((3, 3), 2)?.to_dtype(DType::F32)?).contains("F32"));
    let trained = Var::from_tensor(&random((3, 3), 2)?)?;
    assert_eq!(masked(&trained), "attention: no gradient for the mask, detach it");

    let cross = |k: [usize; 3], causal| -> Result<String> {
        let (q, v) = (random((2, 3, 4), 1)?, random((2, 2, 4), 2)?);
        let config = AttentionConfig { causal, ..config };
        Ok(message(cross_attention(&q, &random(&k[..], 3)?, &v, None, config)))
    };
    assert!(cross([2, 2, 2], false)?.contains("keys of shape [2, 2, 2], expected [2, 2, 4]"));
    assert!(cross([2, 3, 4], false)?.contains("values of shape [2, 2, 4]"));
    assert!(cross([2, 2, 4], true)?.contains("3 queries to 2 keys"));
    Ok(())
}

/// The result and the gradients of queries, keys and values.
fn step(
    inputs: &[Tensor; 3],
    mask: Option<&Tensor>,
    config: AttentionConfig,
    packed: bool,
) -> Result<Vec<Tensor>> {
    let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let [q, k, v] = &vars[..] else { panic!("three inputs") };
    let ys = if packed {
        let qkv = Tensor::cat(&[q.as_tensor(), k.as_tensor(), v.as_tensor()], 2)?;
        attention(&qkv, mask, config)?
    } else {
        cross_attention(q, k, v, mask, config)?
    };
    let grads = (&ys * random(ys.shape(), 9)?)?.sum_all()?.backward()?;
    let gradients = vars.iter().map(|var| grads.get(var).expect("a gradient").clone());
    Ok([ys.detach()].into_iter().chain(gradients).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn attention_of_any_shape_is_its_composite(
        (batch, queries, more_keys) in (1usize..3, 1usize..200, prop_oneof![Just(0), 1usize..600]),
        (kv_heads, group, half) in (1usize..4, 1usize..4, 1usize..4),
        (causal, rotates, masked) in (any::<bool>(), any::<bool>(), any::<bool>()),
        seed in 0u64..1000,
    ) {
        let (heads, dim, keys) = (kv_heads * group, 2 * half, queries + more_keys);
        let rotary = rotates.then_some(Rotary { base: 100.0, offset: seed as usize, ..Rotary::default() });
        let config = AttentionConfig { heads, kv_heads, causal, rotary, scale: None };
        let input = |rows: usize, heads: usize, seed: u64| {
            random((batch, rows, heads * dim), seed).unwrap()
        };
        let inputs = [
            input(queries, heads, seed),
            input(keys, kv_heads, seed + 1),
            input(keys, kv_heads, seed + 2),
        ];
        // A quarter of the keys is hidden.
        let mask = masked.then(|| {
            let seen = integers((batch, 1, queries, keys), seed + 3, 4).unwrap();
            seen.clamp(0u32, 1u32).unwrap().to_dtype(DType::F64).unwrap().log().unwrap()
        });
        let kernel = step(&inputs, mask.as_ref(), config, false).unwrap();
        let composite = with_composites(|| step(&inputs, mask.as_ref(), config, false)).unwrap();
        for (kernel, composite) in kernel.iter().zip(&composite) {
            assert_close(kernel, composite, 1e-12, 1e-12);
        }
        if more_keys == 0 {
            for (packed, kernel) in
                step(&inputs, mask.as_ref(), config, true).unwrap().iter().zip(&kernel)
            {
                assert_close(packed, kernel, 0.0, 0.0);
            }
        }
    }
}
