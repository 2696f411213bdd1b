//! A network whose parameters can be divided among ranks, trainings of it with and without shards, and an optimizer whose rank dies.

use std::time::Duration;

use candelabrum::candle;
use candelabrum::dist::Group;
use candelabrum::memory::{Span, SpanMut};
use candelabrum::nn::Recompute;
use candelabrum::nn::layers::Blocks;
use candelabrum::optim::{Error, ParamInfo, Recipe};
use candelabrum::prelude::*;
use candelabrum_testkit::uniform;

/// Features between the layers: a weight of 40,000 elements is cut, because the sum of its norm has two parts.
pub(crate) const WIDTH: usize = 200;

/// Layers that are computed again in the backward pass, and a last one.
pub(crate) struct Mlp {
    pub(crate) blocks: Blocks<Linear>,
    pub(crate) last: Linear,
}

impl Mlp {
    pub(crate) fn new(params: &Params, widths: &[usize]) -> Self {
        params.set_recompute(Recompute::All);
        let (scope, (last, widths)) = (params.root(), widths.split_last().unwrap());
        let layers = widths.iter().enumerate();
        let layer = |(number, &width)| Linear::new(&scope.pp(format!("l{number}")), width);
        let blocks = Blocks::new(&scope, layers.map(layer));
        Self { blocks, last: Linear::new(&scope.pp("last"), *last) }
    }
}

impl Model for Mlp {
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        let ys = self.blocks.forward_by(xs, |layer, xs| layer.forward(xs)?.relu())?;
        self.last.forward(&ys)?.relu()
    }
}

/// The bits of all parameters, whose values are f32 or converted to f32.
pub(crate) fn bits(params: &Params) -> Vec<u32> {
    let values = |param: &candelabrum::nn::Param| {
        let values = param.var().flatten_all().unwrap().to_dtype(DType::F32).unwrap();
        values.to_vec1::<f32>().unwrap()
    };
    params.list().iter().flat_map(values).map(f32::to_bits).collect()
}

/// One training.
pub(crate) struct Training<'a> {
    pub(crate) ranks: &'a Group,
    pub(crate) dtype: DType,
    pub(crate) recipe: Recipe,
    pub(crate) option: DistOption,
    pub(crate) config: DistOptConfig,
    pub(crate) steps: usize,
    /// The steps in which the loss of the last rank is NaN.
    pub(crate) bad: &'static [usize],
    /// Whether every second step has gradients that are too large for f16, so that it is left out.
    pub(crate) overflows: bool,
}

/// What a training leaves on this rank.
pub(crate) struct Outcome {
    pub(crate) bits: Vec<u32>,
    /// The ends of the steps: nothing, or the error.
    pub(crate) ends: Vec<String>,
    /// Of the optimizer.
    pub(crate) bytes: usize,
    /// Of the parameters, before anybody reads them.
    pub(crate) of_parameters: usize,
    pub(crate) sent: u64,
}

impl Training<'_> {
    pub(crate) fn run(&self, shard: Shard) -> Outcome {
        let &Self { ranks, dtype, option, steps, bad, overflows, .. } = self;
        let params = Params::on(7, dtype, &Device::Cpu);
        let model = Mlp::new(&params, &[WIDTH, WIDTH, WIDTH, 5]);
        let rows = |seed: usize| {
            let seed = (seed * 16 + ranks.rank()) as u64;
            uniform((3, WIDTH), seed, -1.0, 1.0, DType::F32).unwrap().to_dtype(dtype).unwrap()
        };
        model.compile_with(&params, &rows(0)).unwrap();
        let config = DistOptConfig { shard, ..self.config.clone() };
        let opt = DistOpt::with_config(self.recipe.build(), &params, Group::clone(ranks), config);
        let mut opt = opt.unwrap();
        let loss = |number: usize| {
            let ys = model.forward(&rows(number)).unwrap().to_dtype(DType::F32).unwrap();
            let factor = if overflows && number % 2 == 1 { 1e9 } else { 1.0 };
            (ys.sqr().unwrap().mean_all().unwrap() * factor).unwrap()
        };
        let mut ends = Vec::new();
        for step in 0..steps {
            let is_bad = bad.contains(&step) && ranks.rank() + 1 == ranks.world_size();
            let factor = if is_bad { f64::NAN } else { 1.0 };
            let loss = (loss(step) * factor).unwrap();
            let end = opt.backward_and_update_with(&loss, option, 0.05);
            assert_eq!(end.is_err(), bad.contains(&step), "step {step}: {end:?}");
            ends.push(end.map_or_else(|error| error.to_string(), |()| String::new()));
        }
        let of_parameters = opt.memory().unwrap().parameters;
        Outcome {
            bits: bits(&params),
            ends,
            bytes: opt.optimizer_bytes().unwrap(),
            of_parameters,
            sent: opt.figures(option).bytes_sent,
        }
    }
}

/// The time for which one rank lets the other one go ahead.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);

/// An optimizer of a rank that dies in one of its calls, or waits at the end of a step or before it undoes an update.
#[derive(Debug)]
pub(crate) struct Dying {
    pub(crate) inner: Box<dyn Optimizer>,
    pub(crate) phase: Option<String>,
    pub(crate) steps: u64,
    pub(crate) gate: Option<Group>,
    /// The parameters that have been updated since the last step.
    pub(crate) updated: Vec<usize>,
    pub(crate) undoes_late: bool,
}

impl Dying {
    pub(crate) fn new(inner: impl Optimizer + 'static) -> Self {
        Self {
            inner: Box::new(inner),
            phase: None,
            steps: 0,
            gate: None,
            updated: Vec::new(),
            undoes_late: false,
        }
    }

    fn dies(&self, phase: &str) {
        if self.steps == 2 && self.phase.as_deref() == Some(phase) {
            std::process::abort();
        }
    }
}

impl Optimizer for Dying {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn bind(&mut self, params: &[ParamInfo<'_>]) -> Result<(), Error> {
        self.inner.bind(params)
    }
    fn update(&mut self, index: usize, value: SpanMut<'_>, grad: Span<'_>) -> Result<(), Error> {
        self.dies("updates");
        self.updated.push(index);
        self.inner.update(index, value, grad)
    }
    fn is_elementwise(&self) -> bool {
        true
    }
    fn state_mut(&mut self) -> Result<Vec<SpanMut<'_>>, Error> {
        self.inner.state_mut()
    }
    fn parameter_state(&mut self, index: usize) -> Result<Option<Vec<SpanMut<'_>>>, Error> {
        // Of a step that is left out, before the first value is restored.
        if self.undoes_late && self.updated.contains(&index) {
            self.updated.clear();
            std::thread::sleep(PAUSE);
        }
        self.inner.parameter_state(index)
    }
    fn step(&mut self) {
        // The next call is the gathering of new values.
        self.dies("gathers");
        if let Some(gate) = &self.gate {
            gate.recv(&mut [0], 0).expect("the other rank has ended its step");
        }
        self.steps += 1;
        self.updated.clear();
        self.inner.step();
    }
    fn learning_rate(&self) -> f32 {
        self.inner.learning_rate()
    }
    fn steps(&self) -> u64 {
        self.inner.steps()
    }
    fn set_steps(&mut self, steps: u64) {
        self.inner.set_steps(steps);
    }
}
