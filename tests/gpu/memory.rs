//! The arithmetic on memory of the GPU gives the bits of the arithmetic on the host.

use candelabrum::candle::Device;
use candelabrum::memory::{
    ElementType, FiniteCheck, FlatTensor, Location, Norm, Result, Span, SpanMut,
};

use crate::device::gpu;

const LENGTHS: [usize; 6] = [0, 1, 255, 257, 8193, 70_001];

/// Numbers of many magnitudes, some of them subnormal or too large for fp16.
fn numbers(len: usize) -> Vec<f32> {
    let number = |i: usize| {
        let magnitude = (i % 61) as f32 - 40.0;
        (1.0 + (i * 7919 % 1000) as f32 / 999.0) * magnitude.exp2() * [1.0, -1.0][i % 2]
    };
    (0..len).map(number).collect()
}

pub(crate) fn on(device: &Device, values: &[f32]) -> FlatTensor {
    let mut flat =
        FlatTensor::zeros_on(&Location::from_device(device), ElementType::F32, values.len())
            .unwrap();
    flat.copy_from_host(&FlatTensor::from_slice(values)).unwrap();
    flat
}

pub(crate) fn bits(flat: &FlatTensor) -> Vec<u32> {
    let values = flat.to_host().unwrap().to_vec::<f32>().unwrap();
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `change` on the host and on the GPU, on equal numbers, and compares the results.
fn compare(gpu: &Device, change: impl Fn(&mut SpanMut<'_>, Span<'_>) -> Result<()>) {
    for len in LENGTHS {
        let (values, others) = (numbers(len), numbers(len + 13).split_off(13));
        let changed = |device: &Device| {
            let (mut values, others) = (on(device, &values), on(device, &others));
            change(&mut values.span_mut().unwrap(), others.span().unwrap()).unwrap();
            bits(&values)
        };
        assert_eq!(changed(gpu), changed(&Device::Cpu), "{len} numbers");
    }
}

#[test]
fn every_change_gives_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    compare(&gpu, |values, _| values.fill(-2.5));
    compare(&gpu, |values, _| values.scale(1.0 / 3.0));
    compare(&gpu, |values, _| values.clamp(0.01));
    compare(&gpu, |values, others| values.copy_from(others));
    compare(&gpu, |values, others| values.add(others));
    compare(&gpu, |values, others| values.poison_unless_finite(others));
    compare(&gpu, |values, _| {
        let half = values.len() / 3;
        let (mut head, mut tail) = values.reborrow().split_at(half);
        head.scale(2.0)?;
        tail.fill(1.0)
    });
}

#[test]
fn sixteen_bits_are_rounded_alike() {
    let Some(gpu) = gpu() else { return };
    for element in [ElementType::F16, ElementType::Bf16] {
        for (len, divisor) in [(70_001, 3.0), (70_001, 1.0), (5, 2e-5)] {
            let values = numbers(len);
            let sent = |device: &Device| {
                let mut values = on(device, &values);
                let mut wire =
                    FlatTensor::zeros_on(&Location::from_device(device), element, len).unwrap();
                wire.narrow_from(values.span().unwrap(), divisor).unwrap();
                wire.widen_into(values.span_mut().unwrap()).unwrap();
                bits(&values)
            };
            assert_eq!(sent(&gpu), sent(&Device::Cpu), "{element}");
        }
    }
}

#[test]
fn a_bad_number_is_found_and_named_by_unit_and_position() {
    let Some(gpu) = gpu() else { return };
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut check = FiniteCheck::default();
        let mut values = vec![1.0; 70_001];
        check.look(1, on(&gpu, &values).span().unwrap()).unwrap();
        assert_eq!(check.first().unwrap(), None);
        (values[69_000], values[3]) = (bad, bad);
        check.look(4, on(&gpu, &values).span().unwrap()).unwrap();
        assert_eq!(check.first().unwrap(), Some((4, 3)));
        values[3] = 0.0;
        check.look(2, on(&gpu, &values).span().unwrap()).unwrap();
        assert_eq!(check.first().unwrap(), Some((2, 69_000)));
    }
}

#[test]
fn a_loss_that_is_not_finite_poisons_the_gradients() {
    let Some(gpu) = gpu() else { return };
    let mut gradients = on(&gpu, &[1.0, 2.0]);
    let poison = |loss: f32, gradients: &mut FlatTensor| {
        let loss = on(&gpu, &[loss]);
        gradients.span_mut().unwrap().poison_unless_finite(loss.span().unwrap()).unwrap();
        gradients.to_host().unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(poison(7.0, &mut gradients), [1.0, 2.0]);
    assert!(poison(f32::INFINITY, &mut gradients)[0].is_nan());
}

#[test]
fn the_norm_is_that_of_the_host() {
    let Some(gpu) = gpu() else { return };
    let norm = |device: &Device| {
        let mut norm = Norm::default();
        for len in LENGTHS {
            norm.add(on(device, &numbers(len)).span().unwrap()).unwrap();
        }
        norm.get().unwrap()
    };
    let (on_gpu, on_cpu) = (norm(&gpu), norm(&Device::Cpu));
    assert!((on_gpu - on_cpu).abs() <= 1e-14 * on_cpu, "{on_gpu} {on_cpu}");
    assert_eq!(on_gpu.to_bits(), norm(&gpu).to_bits());
}
