//! Every optimizer updates parameters on the GPU with the bits that it computes on the CPU.

use candelabrum::candle::Device;
use candelabrum::memory::{ElementType, Flat, Location};
use candelabrum::optim::{
    AdaGrad, Adam, AdamW, Lamb, Lars, Now, Optimizer, ParamGroup, ParamInfo, Parts, RmsProp, Rule,
    RuleOptimizer, Sgd,
};

use crate::device::gpu;

const STEPS: usize = 5;
/// The elements of the parameters. The last one needs several blocks of threads.
const SIZES: [usize; 3] = [1, 300, 20_000];

fn numbers(len: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0;
    (0..len).map(number).collect()
}

/// All parameters and states after some steps on a device.
fn train(mut optimizer: impl Optimizer, device: &Device) -> Vec<Vec<f32>> {
    let location = Location::of(device);
    let upload = |values: &[f32]| {
        let mut flat = Flat::zeros_on(&location, ElementType::F32, values.len()).unwrap();
        flat.copy_from_host(&Flat::from_slice(values)).unwrap();
        flat
    };
    let mut params: Vec<Flat> =
        SIZES.iter().enumerate().map(|(i, &len)| upload(&numbers(len, i))).collect();
    let names: Vec<String> = (0..SIZES.len()).map(|i| format!("w{i}")).collect();
    let infos: Vec<ParamInfo<'_>> = names
        .iter()
        .zip(&SIZES)
        .map(|(name, len)| ParamInfo {
            name,
            dims: std::slice::from_ref(len),
            location: location.clone(),
        })
        .collect();
    optimizer.bind(&infos).unwrap();
    for step in 0..STEPS {
        for (i, param) in params.iter_mut().enumerate() {
            let gradient = upload(&numbers(param.len(), 10 * step + i + 5));
            optimizer.update(i, param.span_mut().unwrap(), gradient.span().unwrap()).unwrap();
        }
        optimizer.step();
    }
    let mut all: Vec<Vec<f32>> =
        params.iter().map(|param| param.to_host().unwrap().to_vec().unwrap()).collect();
    for state in optimizer.state_mut().unwrap() {
        let mut values = vec![0.0; state.len()];
        state.as_span().copy_to_slice(&mut values).unwrap();
        all.push(values);
    }
    all
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|values| values.iter().map(|value| value.to_bits()).collect()).collect()
}

fn same_bits<O: Optimizer>(new: impl Fn() -> O) {
    let Some(gpu) = gpu() else { return };
    let (on_gpu, on_cpu) = (train(new(), &gpu), train(new(), &Device::Cpu));
    assert_eq!(bits(&on_gpu), bits(&on_cpu), "{}", new().describe());
    assert_ne!(on_gpu[1], numbers(SIZES[1], 1), "nothing was updated");
}

/// For updates that depend on sums over a parameter, which the GPU adds in another order.
fn close<O: Optimizer>(new: impl Fn() -> O) {
    let Some(gpu) = gpu() else { return };
    let (on_gpu, on_cpu) = (train(new(), &gpu), train(new(), &Device::Cpu));
    for (gpu, cpu) in on_gpu.iter().flatten().zip(on_cpu.iter().flatten()) {
        // An update of a few units in the last place of 1, the magnitude of the parameters.
        assert!((gpu - cpu).abs() <= 4.0 * f32::EPSILON, "{gpu} {cpu} {}", new().describe());
    }
    assert_ne!(on_gpu[1], numbers(SIZES[1], 1), "nothing was updated");
}

#[test]
fn sgd() {
    same_bits(|| Sgd::new(0.1));
    same_bits(|| Sgd::new(0.1).weight_decay(1e-2));
    same_bits(|| Sgd::new(0.1).momentum(0.9).weight_decay(1e-2));
    same_bits(|| Sgd::new(0.1).momentum(0.9).dampening(0.3));
    same_bits(|| Sgd::new(0.1).momentum(0.9).nesterov());
    same_bits(|| Sgd::new(0.1).momentum(0.9).group(ParamGroup::matching("w1").lr_scale(0.25)));
}

#[test]
fn adam() {
    same_bits(|| Adam::new(0.01).weight_decay(1e-2));
    same_bits(|| Adam::new(0.01).amsgrad());
    same_bits(|| AdamW::new(0.01).weight_decay(1e-1));
    same_bits(|| AdamW::new(0.01).amsgrad());
}

#[test]
fn ada_grad() {
    same_bits(|| AdaGrad::new(0.1).lr_decay(0.1).weight_decay(1e-2));
}

#[test]
fn rms_prop() {
    same_bits(|| RmsProp::new(0.01).weight_decay(1e-2));
    same_bits(|| RmsProp::new(0.01).momentum(0.9));
    same_bits(|| RmsProp::new(0.01).centered());
    same_bits(|| RmsProp::new(0.01).centered().momentum(0.5));
}

#[test]
fn lamb() {
    close(|| Lamb::new(0.01).weight_decay(1e-2));
    same_bits(|| Lamb::new(0.01).group(ParamGroup::matching("w*").trust_ratio(false)));
}

#[test]
fn lars() {
    close(|| Lars::new(0.1).weight_decay(1e-2));
    same_bits(|| Lars::new(0.1).group(ParamGroup::matching("w*").trust_ratio(false)));
}

/// A user's own rule, which has no kernel.
#[derive(Debug)]
struct SignRule;

impl Rule for SignRule {
    const NAME: &'static str = "Sign";

    fn check(&self) -> candelabrum::optim::Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        String::new()
    }

    fn states(&self) -> usize {
        1
    }

    fn update(&self, now: Now, parts: Parts<'_>) {
        parts.for_each(|Parts { value, grad, state: [sum, ..] }| {
            for ((p, g), s) in value.iter_mut().zip(grad).zip(sum) {
                *s += g;
                *p -= now.lr as f32 * s.signum();
            }
        });
    }
}

#[test]
fn a_rule_without_a_kernel_runs_on_the_host() {
    same_bits(|| RuleOptimizer::with_rule(SignRule, 0.01, 0.0));
}
