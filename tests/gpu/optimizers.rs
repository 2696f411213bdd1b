//! Every optimizer updates parameters on the GPU with the bits that it computes on the CPU.

use candelabrum::candle::Device;
use candelabrum::memory::{ElementType, FlatTensor, Location};
use candelabrum::optim::{
    AdaGrad, Adam, AdamW, Lamb, Lars, Optimizer, ParamGroup, ParamInfo, ParamParts, RmsProp,
    RuleOptimizer, Schedule, Sgd, StepSettings, Update, UpdateRule,
};

use crate::device::gpu;

const STEPS: usize = 5;
/// The elements of the parameters. The table has shares of 8192 elements.
const SIZES: [usize; 7] = [1, 7, 8192, 8193, 20_000, 0, 11];
/// The number of the parameter whose gradient is 0.
const UNUSED: usize = 6;

fn numbers(len: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0;
    (0..len).map(number).collect()
}

#[derive(Clone, Copy)]
enum Way {
    /// One by one, with gradients in other memory at every step.
    Single,
    /// All at once, with gradients in the same memory.
    Joint,
}

/// All parameters and states after some steps on a device.
fn train(
    mut optimizer: impl Optimizer,
    device: &Device,
    sizes: &[usize],
    way: Way,
) -> Vec<Vec<f32>> {
    let location = Location::from_device(device);
    let upload = |values: &[f32]| {
        let mut flat = FlatTensor::zeros_on(&location, ElementType::F32, values.len()).unwrap();
        flat.copy_from_host(&FlatTensor::from_slice(values)).unwrap();
        flat
    };
    let mut params: Vec<FlatTensor> =
        sizes.iter().enumerate().map(|(i, &len)| upload(&numbers(len, i))).collect();
    let names: Vec<String> = (0..sizes.len()).map(|i| format!("w{i}")).collect();
    let infos: Vec<ParamInfo<'_>> = names
        .iter()
        .zip(sizes)
        .map(|(name, len)| ParamInfo {
            name,
            dims: std::slice::from_ref(len),
            part: None,
            location: location.clone(),
        })
        .collect();
    optimizer.bind(&infos).unwrap();
    let mut gradients: Vec<FlatTensor> = sizes.iter().map(|&len| upload(&vec![0.0; len])).collect();
    for step in 0..STEPS {
        let mut updates: Vec<Update<'_>> = Vec::new();
        for (index, (param, gradient)) in params.iter_mut().zip(&mut gradients).enumerate() {
            // One parameter has no gradient, so a norm in a trust ratio is 0.
            let mut new = numbers(param.len(), 10 * step + index + 5);
            if index == UNUSED {
                new.fill(0.0);
            }
            match way {
                Way::Single => *gradient = upload(&new),
                Way::Joint => gradient.copy_from_host(&FlatTensor::from_slice(&new)).unwrap(),
            }
            let (value, grad) = (param.span_mut().unwrap(), gradient.span().unwrap());
            match way {
                Way::Single => optimizer.update(index, value, grad).unwrap(),
                Way::Joint => updates.push(Update { index, value, grad }),
            }
        }
        optimizer.update_all(updates).unwrap();
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

/// The parameters and states after updates on the GPU, which are the same one by one and all at once,
/// and on the CPU.
fn on_both<O: Optimizer>(new: impl Fn() -> O, sizes: &[usize]) -> Option<[Vec<Vec<f32>>; 2]> {
    let gpu = gpu()?;
    let joint = train(new(), &gpu, sizes, Way::Joint);
    let single = train(new(), &gpu, sizes, Way::Single);
    assert_eq!(bits(&joint), bits(&single), "{}", new().describe());
    assert_ne!(joint[1], numbers(sizes[1], 1), "nothing was updated");
    Some([joint, train(new(), &Device::Cpu, sizes, Way::Single)])
}

/// Adds groups, so that parameters have different rates, decays and trust ratios.
fn grouped<R: UpdateRule>(optimizer: RuleOptimizer<R>) -> RuleOptimizer<R> {
    let schedule = Schedule::Linear { lr: 0.02, from: 0.5, to: 1.0, steps: 3 };
    optimizer
        .group(ParamGroup::matching("w1").lr_scale(0.25).weight_decay(0.3))
        .group(ParamGroup::matching("w3").lr(schedule))
        .group(ParamGroup::matching("w4").trust_ratio(false))
}

fn same_bits<R: UpdateRule>(new: impl Fn() -> RuleOptimizer<R>) {
    let check = |new: &dyn Fn() -> RuleOptimizer<R>| {
        let Some([on_gpu, on_cpu]) = on_both(new, &SIZES) else { return };
        assert_eq!(bits(&on_gpu), bits(&on_cpu), "{}", new().describe());
    };
    check(&new);
    check(&|| grouped(new()));
}

/// For updates that depend on sums over a parameter, which the GPU adds in another order.
fn close<R: UpdateRule>(new: impl Fn() -> RuleOptimizer<R>) {
    let check = |new: &dyn Fn() -> RuleOptimizer<R>| {
        let Some([on_gpu, on_cpu]) = on_both(new, &SIZES) else { return };
        for (gpu, cpu) in on_gpu.iter().flatten().zip(on_cpu.iter().flatten()) {
            // An update of a few units in the last place of 1, the magnitude of the parameters.
            let text = new().describe();
            assert!((gpu - cpu).abs() <= 4.0 * f32::EPSILON, "{gpu} {cpu} {text}");
        }
    };
    check(&new);
    check(&|| grouped(new()));
}

#[test]
fn sgd() {
    same_bits(|| Sgd::new(0.1));
    same_bits(|| Sgd::new(0.1).weight_decay(1e-2));
    same_bits(|| Sgd::new(0.1).momentum(0.9).weight_decay(1e-2));
    same_bits(|| Sgd::new(0.1).momentum(0.9).dampening(0.3));
    same_bits(|| Sgd::new(0.1).momentum(0.9).nesterov());
}

#[test]
fn adam() {
    same_bits(|| Adam::new(0.01).weight_decay(1e-2));
    same_bits(|| Adam::new(0.01).amsgrad());
    same_bits(|| Adam::new(0.01).betas(0.0, 0.9));
    same_bits(|| Adam::new(0.01).betas(0.3, 0.9).amsgrad());
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
    same_bits(|| RmsProp::new(0.01).centered().alpha(0.3));
    same_bits(|| RmsProp::new(0.01).centered().momentum(0.5));
}

#[test]
fn lamb() {
    close(|| Lamb::new(0.01).weight_decay(1e-2));
    close(|| Lamb::new(0.01).betas(0.0, 0.9));
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

impl UpdateRule for SignRule {
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

    fn update(&self, now: StepSettings, parts: ParamParts<'_>) {
        parts.for_each(|ParamParts { value, grad, state: [sum, ..] }| {
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

/// More different settings than one launch takes.
#[test]
fn every_parameter_can_have_its_own_settings() {
    let sizes: Vec<usize> = (1..=40).map(|i| 3 * i).collect();
    let new = || {
        let own = |i| ParamGroup::matching(format!("w{i}")).lr_scale(1.0 / (i + 1) as f64);
        (0..sizes.len()).fold(Adam::new(0.01), |adam, i| adam.group(own(i)))
    };
    let Some([on_gpu, on_cpu]) = on_both(new, &sizes) else { return };
    assert_eq!(bits(&on_gpu), bits(&on_cpu));
}
