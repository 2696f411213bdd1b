//! Attention within a sequence and to another one, with positions and masks, and pooling by attention.

use candelabrum_nn::ops::{self, AttentionConfig, Rotary, RotaryScaling};
use candelabrum_testkit::integers;
use candle_core::{DType, Device, Result, Tensor};

use super::case::{Arguments, Cases, GoldenCase, Operation, golden_cases};
use super::questions::gpu;
use crate::random;

/// Attention of a packed projection, or of queries to keys and values. The mask is the last argument.
fn packed(config: AttentionConfig) -> impl Operation {
    move |t: &Arguments| ops::attention(&t[0], t.get(1), config)
}

fn cross(config: AttentionConfig) -> impl Operation {
    move |t: &Arguments| ops::cross_attention(&t[0], &t[1], &t[2], t.get(3), config)
}

fn config_of(case: &GoldenCase) -> Result<AttentionConfig> {
    let [heads, kv_heads, causal] = case.config()?;
    let rotary = case.tensors.get("rotary").map(Tensor::to_vec1::<f64>).transpose()?;
    let rotary = rotary.map(|rotary| Rotary {
        base: rotary[0],
        offset: rotary[1] as usize,
        ..Rotary::default()
    });
    Ok(AttentionConfig { heads, kv_heads, causal: causal == 1, rotary, scale: None })
}

/// Random numbers, of which a third hides a key.
fn mask(shape: &[usize], seed: u64) -> Result<Tensor> {
    let hidden = integers(shape, seed, 3)?.eq(0u32)?;
    let mask = random(shape, seed + 1)?;
    hidden.where_cond(&(mask.zeros_like()? + f64::NEG_INFINITY)?, &mask)
}

#[test]
fn attention() -> Result<()> {
    let mut cases = Cases::new("attention", &["qkv"], &["mask"]);
    for case in golden_cases("attention") {
        if case.tensors.contains_key("qkv") {
            cases.add_golden(&case, packed(config_of(&case)?));
        }
    }
    // Several of a CPU's blocks of keys. A software GPU would need a minute for them.
    let long = gpu().is_none().then_some((1, 530, 1, 1, 2));
    // Sequences, length, heads, heads of keys, size of a head. A block has 128 queries and 256 keys, on a GPU 64
    // of both, and there 64 or 128 columns of a head. Four columns are read at once where they divide the head.
    for (n, t, heads, kv_heads, dim) in [
        (2, 5, 3, 3, 3),
        (1, 7, 6, 2, 4),
        (3, 1, 2, 1, 6),
        (1, 0, 1, 1, 2),
        (0, 3, 2, 2, 2),
        (1, 64, 2, 2, 8),
        (1, 67, 2, 1, 2),
        (1, 193, 2, 2, 4),
        (2, 5, 1, 1, 1),
        (2, 66, 2, 1, 8),
        (2, 65, 2, 2, 62),
        (2, 130, 2, 1, 64),
        (2, 9, 3, 1, 80),
        (2, 67, 1, 1, 128),
        (2, 3, 2, 1, 130),
        (2, 33, 1, 1, 200),
    ]
    .into_iter()
    .chain(long)
    {
        let far = Some(Rotary { base: 50.0, offset: 3, ..Rotary::default() });
        for (causal, rotary) in
            [(false, None), (true, None), (true, Some(Rotary::default())), (false, far)]
        {
            if rotary.is_none() || dim % 2 == 0 {
                let config =
                    AttentionConfig { kv_heads, causal, rotary, ..AttentionConfig::new(heads) };
                cases.add(config, &[&[n, t, (heads + 2 * kv_heads) * dim]], packed(config)).small();
            }
        }
    }
    for scaling in [
        RotaryScaling::Linear { factor: 3.0 },
        RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 32.0 },
        RotaryScaling::Yarn { factor: 4.0, fast: 32.0, slow: 1.0, original: 16.0 },
    ] {
        for (dim, base) in [(2, 10.0), (8, 100.0), (12, 10_000.0)] {
            let rotary = Some(Rotary { base, offset: 1, scaling });
            let config = AttentionConfig { kv_heads: 1, rotary, ..AttentionConfig::new(2) };
            cases.add(config, &[&[2, 21, 4 * dim]], packed(config));
        }
    }
    let config = AttentionConfig { scale: Some(-0.3), ..AttentionConfig::new(2) };
    cases.add(config, &[&[2, 9, 12]], packed(config));
    let rotary = Some(Rotary::default());
    let config = AttentionConfig { kv_heads: 2, causal: true, rotary, ..AttentionConfig::new(4) };
    cases.add(config, &[&[2, 130, 96]], packed(config));
    cases.check()
}

#[test]
fn attention_with_a_mask() -> Result<()> {
    let mut cases = Cases::new("attention", &["qkv"], &["mask"]);
    for causal in [false, true] {
        for (n, shape) in [
            (3, &[70, 70][..]),
            (3, &[1, 70]),
            (3, &[3, 1, 1, 70]),
            (3, &[3, 4, 70, 70]),
            (3, &[1, 4, 1, 70]),
            (3, &[3, 1, 70, 70]),
            (0, &[70, 70]),
            (6, &[70, 70]),
        ] {
            let config = AttentionConfig { kv_heads: 2, causal, ..AttentionConfig::new(4) };
            let case = cases.add((causal, shape), &[&[n, 70, 24]], packed(config));
            case.constants([mask(shape, 20 + shape.len() as u64)?]);
        }
        let rotary = Some(Rotary { base: 30.0, offset: 2, ..Rotary::default() });
        let config = AttentionConfig { kv_heads: 1, causal, rotary, ..AttentionConfig::new(3) };
        cases.add(config, &[&[2, 5, 20]], packed(config)).constants([random((2, 1, 5, 5), 2)?]);
    }
    // Query 1 sees no key, and nobody sees key 2.
    let low = f64::NEG_INFINITY;
    let mask = Tensor::new(&[[0.0, 0.0, low], [low; 3], [0.0, low, low]], &Device::Cpu)?;
    for causal in [false, true] {
        let config = AttentionConfig { causal, ..AttentionConfig::new(1) };
        cases.add(config, &[&[1, 3, 6]], packed(config)).constants([mask.clone()]);
    }
    cases.check()
}

#[test]
fn cross_attention() -> Result<()> {
    let mut cases = Cases::new("cross_attention", &["q", "k", "v"], &["mask"]);
    for case in golden_cases("attention") {
        if case.tensors.contains_key("q") {
            cases.add_golden(&case, cross(config_of(&case)?));
        }
    }
    for (n, queries, keys, heads, kv_heads, dim) in [
        (2, 5, 3, 2, 2, 3),
        (1, 3, 5, 4, 2, 4),
        (2, 1, 70, 2, 1, 6),
        (1, 70, 600, 1, 1, 2),
        (0, 3, 2, 1, 1, 1),
        (3, 70, 90, 3, 3, 16),
    ] {
        let keys_of = [n, keys, kv_heads * dim];
        for causal in [false, true] {
            let rotary = (dim % 2 == 0).then_some(Rotary { offset: 2, ..Rotary::default() });
            if causal && queries > keys {
                continue;
            }
            let config =
                AttentionConfig { kv_heads, causal, rotary, ..AttentionConfig::new(heads) };
            let mask = integers((queries, keys), 4, 2)?.to_dtype(DType::F64)?.log()?;
            for mask in [None, Some(mask)] {
                let shapes: [&[usize]; 3] = [&[n, queries, heads * dim], &keys_of, &keys_of];
                let label = (config, mask.is_some());
                cases.add(label, &shapes, cross(config)).constants(mask);
            }
        }
    }
    cases.add("to itself", &[&[2, 9, 8]], |t| {
        ops::cross_attention(&t[0], &t[0], &t[0], None, AttentionConfig::new(2))
    });
    cases.check()
}

#[test]
fn attention_pool() -> Result<()> {
    let pool = |t: &Arguments| ops::attention_pool(&t[0], &t[1], t.get(2));
    let mut cases = Cases::new("attention_pool", &["xs", "scores"], &["lengths"]);
    cases.golden("attention_pool", |_| Ok(pool))?;
    let lengths = Tensor::new(&[4u32, 0, 7, 1], &Device::Cpu)?;
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let inputs = [random((4, 7, 3), 1)?, random((4, 7), 2)?.affine(3.0, 0.0)?];
        cases.add_with(dtype, &inputs, pool).constants([lengths.to_dtype(dtype)?]);
        cases.add_with("all steps", &inputs, pool);
    }
    cases.add("", &[&[0, 3, 12], &[0, 3]], pool);
    cases.add("", &[&[101, 203, 9], &[101, 203]], pool);
    cases.check()
}
