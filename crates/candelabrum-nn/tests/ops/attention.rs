//! Attention against central differences and PyTorch, and its edges.

use candelabrum_nn::ops::{AttentionConfig, Rotary, attention, cross_attention, with_composites};
use candelabrum_testkit::{assert_close, integers};
use candle_core::{DType, Device, Result, Tensor, Var};
use proptest::prelude::*;

use crate::behaviour::message;
use crate::random;
use crate::table::{Cases, gpu};

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
    let config = AttentionConfig { causal: true, ..AttentionConfig::new(2) };
    for device in [Some(Device::Cpu), gpu()].into_iter().flatten() {
        let qkv = random((1, 70, 12), 1)?.to_dtype(DType::F32)?.to_device(&device)?;
        let values = |xs: &Tensor| attention(xs, None, config)?.flatten_all()?.to_vec1::<f32>();
        assert!(values(&(&qkv * 1e4)?)?.iter().all(|y| y.is_finite()));
        assert!(values(&(&qkv * f64::NAN)?)?.iter().all(|y| y.is_nan()));
        // A query that is no number spoils its own result, and no other one.
        let mut rows = qkv.get(0)?.to_vec2::<f32>()?;
        rows[66][0] = f32::NAN; // the first head
        let ys = attention(&Tensor::new(rows, &device)?.unsqueeze(0)?, None, config)?;
        for (row, ys) in ys.get(0)?.to_vec2::<f32>()?.iter().enumerate() {
            let is_nan: Vec<bool> = ys.iter().map(|y| y.is_nan()).collect();
            assert_eq!(is_nan, [row == 66, row == 66, false, false], "row {row}");
        }
    }
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn attention_of_any_shape(
        (batch, queries, more_keys) in (1usize..3, 1usize..200, prop_oneof![Just(0), 1usize..600]),
        (kv_heads, group, half) in (1usize..4, 1usize..4, 1usize..4),
        (causal, rotates, masked) in (any::<bool>(), any::<bool>(), any::<bool>()),
        seed in 0u64..1000,
    ) {
        let (heads, dim, keys) = (kv_heads * group, 2 * half, queries + more_keys);
        let rotary = Rotary { base: 100.0, offset: seed as usize, ..Rotary::default() };
        let rotary = rotates.then_some(rotary);
        let config = AttentionConfig { heads, kv_heads, causal, rotary, scale: None };
        // A quarter of the keys is hidden.
        let mask = masked.then(|| {
            let seen = integers((batch, 1, queries, keys), seed, 4).unwrap();
            seen.clamp(0u32, 1u32).unwrap().to_dtype(DType::F64).unwrap().log().unwrap()
        });
        let mut cases = Cases::new("attention", &[], &[]);
        let keys_of = [batch, keys, kv_heads * dim];
        let shapes: [&[usize]; 3] = [&[batch, queries, heads * dim], &keys_of, &keys_of];
        let case = cases.add(config, &shapes, move |t| {
            cross_attention(&t[0], &t[1], &t[2], t.get(3), config)
        });
        case.constants(mask.clone());
        if more_keys == 0 {
            let shape = [batch, queries, (heads + 2 * kv_heads) * dim];
            let case = cases.add(config, &[&shape], move |t| attention(&t[0], t.get(1), config));
            case.constants(mask);
        }
        cases.check_drawn().unwrap();
    }
}
