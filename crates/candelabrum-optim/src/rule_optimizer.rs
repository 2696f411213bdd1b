//! The common part of all optimizers: learning rate, weight decay, groups, state and the count of
//! steps.

use std::ops::Range;

use candelabrum_memory::cuda::{CudaSpan, CudaSpanMut, JointUpdate, UpdateTable};
use candelabrum_memory::{ElementType, FlatTensor, Span, SpanMut};

use crate::bf16_state::Packing;
use crate::error::AllowedRange as Allowed;
use crate::param_traits::ParamTraits;
use crate::parts::{MAX_STATES, ParamParts};
use crate::rule::{StepSettings, UpdateRule};
use crate::{Error, Optimizer, ParamGroup, ParamInfo, Result, Schedule, Update};

/// The optimizer of a [`UpdateRule`]. [`Sgd`](crate::Sgd), [`Adam`](crate::Adam) and all others are
/// aliases of it, as your own optimizer can be.
#[derive(Debug)]
pub struct RuleOptimizer<R> {
    pub(crate) rule: R,
    pub(crate) lr: Schedule,
    pub(crate) weight_decay: f64,
    pub(crate) groups: Vec<ParamGroup>,
    pub(crate) bf16_state: bool,
    steps: u64,
    /// The factor of all rates.
    rate_factor: f64,
    /// The rate in place of the schedule's.
    fixed_rate: Option<f64>,
    /// The next step's rate, then one rate for each group, used if the group sets one.
    rates: Vec<f64>,
    params: Vec<BoundParam>,
}

/// A bound parameter.
#[derive(Debug)]
struct BoundParam {
    elements: usize,
    /// The index of the parameter's rate in `rates`.
    rate: usize,
    lr_scale: f64,
    weight_decay: f64,
    trust_ratio: bool,
    traits: ParamTraits,
    /// Where the state is in bf16.
    packing: Option<Packing>,
    /// The state vectors of the rule, in the parameter's memory.
    state: Vec<FlatTensor>,
    /// The table of the joint update on a GPU that begins with this parameter.
    table: UpdateTable,
}

impl<R: UpdateRule> RuleOptimizer<R> {
    /// An optimizer of your own rule. Each built-in optimizer has a `new`.
    pub fn with_rule(rule: R, lr: impl Into<Schedule>, weight_decay: f64) -> Self {
        Self {
            rule,
            lr: lr.into(),
            weight_decay,
            groups: Vec::new(),
            bf16_state: false,
            steps: 0,
            rate_factor: 1.0,
            fixed_rate: None,
            rates: Vec::new(),
            params: Vec::new(),
        }
    }

    builder! { optimizer:
        /// The strength of the weight decay. Its effect is part of the optimizer's formula.
        weight_decay(weight_decay: f64) => optimizer.weight_decay = weight_decay;
        /// Adds other settings for some parameters. A later group overrides earlier ones.
        group(group: ParamGroup) => optimizer.groups.push(group);
        /// Keeps the state in bf16, with half of its memory. Each number is rounded up or down at random,
        /// in the mean over the steps exactly; the noise is the same on all ranks and on any number
        /// of threads. The formula itself stays in f32. A state in bf16 cannot be averaged over ranks, as
        /// `partialUpdate` may do, and is updated on the host, also for a parameter on a GPU.
        bf16_state() => optimizer.bf16_state = true;
    }

    fn check(&self) -> Result<()> {
        self.lr.check(R::NAME, "lr")?;
        Allowed::NotNegative.check(R::NAME, "weight_decay", self.weight_decay)?;
        self.rule.check()?;
        if self.bf16_state && !self.rule.has_numeric_state() {
            return Err(Error::NoNumbers { optimizer: R::NAME });
        }
        self.groups.iter().try_for_each(|group| group.check(R::NAME))
    }

    fn bound(&self, param: &ParamInfo<'_>) -> Result<BoundParam> {
        let elements = param.elements();
        let mut bound = BoundParam {
            elements,
            rate: 0,
            lr_scale: 1.0,
            weight_decay: self.weight_decay,
            trust_ratio: true,
            traits: ParamTraits { elements, ..ParamTraits::from_dims(param.dims) },
            packing: self.bf16_state.then(|| Packing::from_name(param.name)),
            state: Vec::with_capacity(self.rule.states()),
            table: UpdateTable::default(),
        };
        for (index, group) in self.groups.iter().enumerate().filter(|(_, g)| g.selects(param)) {
            if group.lr.is_some() {
                bound.rate = index + 1;
            }
            bound.lr_scale = group.lr_scale.unwrap_or(bound.lr_scale);
            bound.weight_decay = group.weight_decay.unwrap_or(bound.weight_decay);
            bound.trust_ratio = group.trust_ratio.unwrap_or(bound.trust_ratio);
            bound.traits.muon = group.muon.unwrap_or(bound.traits.muon);
            bound.traits.state_8bit = group.state_8bit.unwrap_or(bound.traits.state_8bit);
        }
        for number in 0..self.rule.states() {
            let (mut len, mut initial) =
                (self.rule.state_len(number, &bound.traits), self.rule.initial_state());
            if let Some(packing) = &mut bound.packing {
                (len, initial) = packing.pack(number, len, initial);
            }
            let mut state = FlatTensor::zeros_on(&param.location, ElementType::F32, len)?;
            // Fresh zeros take no memory before they are used, and a large table may never use most.
            if initial != 0.0 {
                state.span_mut()?.fill(initial)?;
            }
            bound.state.push(state);
        }
        Ok(bound)
    }

    /// Computes the rates of the next step.
    fn refresh(&mut self) {
        let scheduled = self.lr.at(self.steps);
        let rate = |schedule: f64| match self.fixed_rate {
            None => schedule * self.rate_factor,
            // A ratio to a rate of 0 does not exist.
            Some(rate) if scheduled == 0.0 => rate,
            Some(rate) => rate * (schedule / scheduled),
        };
        let schedules = self.groups.iter().map(|group| group.lr.as_ref());
        for (place, schedule) in
            self.rates.iter_mut().zip([Some(&self.lr)].into_iter().chain(schedules))
        {
            *place = schedule.map_or(0.0, |schedule| rate(schedule.at(self.steps)));
        }
    }
}

impl<R: UpdateRule> Optimizer for RuleOptimizer<R> {
    fn describe(&self) -> String {
        let (lr, own, decay) = (&self.lr, self.rule.describe(), self.weight_decay);
        let mut line = format!("{} lr={lr} {own} weight_decay={decay}", R::NAME);
        for group in &self.groups {
            line += &format!("; {group}");
        }
        if self.bf16_state {
            line += "; state in bf16";
        }
        line
    }

    fn bind(&mut self, params: &[ParamInfo<'_>]) -> Result<()> {
        self.check()?;
        if !params.is_empty() {
            self.groups.iter().try_for_each(|group| group.check_selects(R::NAME, params))?;
        }
        let mut numbered = params.iter().enumerate();
        numbered.try_for_each(|(index, param)| param.check_part(self, index))?;
        self.params = params.iter().map(|param| self.bound(param)).collect::<Result<_>>()?;
        self.rates = vec![0.0; 1 + self.groups.len()];
        self.refresh();
        Ok(())
    }

    fn update(&mut self, index: usize, value: SpanMut<'_>, grad: Span<'_>) -> Result<()> {
        if let SpanMut::Cuda(_) = value {
            return self.update_all(vec![Update { index, value, grad }]);
        }
        let bound = self.params.len();
        let param = self.params.get_mut(index).ok_or(Error::Unbound { index, bound })?;
        param.check_len(index, value.len(), grad.len())?;
        let now = param.now(self.steps, &self.rates);
        let (packing, state) = (param.packing.as_ref(), &mut param.state);
        on_host(&self.rule, now, value.host()?, grad.host()?, state, packing)
    }

    fn is_elementwise(&self) -> bool {
        // Two numbers in bf16 share an element of a vector.
        self.rule.is_elementwise() && !self.bf16_state
    }

    fn update_range(
        &mut self,
        index: usize,
        range: Range<usize>,
        value: &mut [f32],
        grad: &[f32],
    ) -> Result<()> {
        if !self.is_elementwise() {
            return Err(Error::Whole { index, optimizer: self.describe() });
        }
        let bound = self.params.len();
        let param = self.params.get_mut(index).ok_or(Error::Unbound { index, bound })?;
        let (expected, len) = (param.elements, range.len());
        if range.end > expected || value.len() != len || grad.len() != len {
            return Err(Error::Length { index, expected, value: value.len(), grad: grad.len() });
        }
        let now = param.now(self.steps, &self.rates);
        let mut vectors: [&mut [f32]; MAX_STATES] = Default::default();
        for (vector, kept) in vectors.iter_mut().zip(&mut param.state) {
            *vector = &mut kept.as_mut_slice()?[range.clone()];
        }
        self.rule.update(now, ParamParts { value, grad, state: vectors });
        Ok(())
    }

    fn update_all(&mut self, updates: Vec<Update<'_>>) -> Result<()> {
        let bound = self.params.len();
        let mut params: Vec<_> = self.params.iter_mut().map(Some).collect();
        let mut joint: Vec<JointUpdate<'_>> = Vec::new();
        for Update { index, value, grad } in updates {
            let param = params.get_mut(index).ok_or(Error::Unbound { index, bound })?;
            let param = param.take().ok_or(Error::Repeated { index })?;
            param.check_len(index, value.len(), grad.len())?;
            let now = param.now(self.steps, &self.rates);
            let BoundParam { state, table, packing, .. } = param;
            let packing = packing.as_ref();
            let (value, grad) = match (value, grad) {
                (SpanMut::Cuda(value), Span::Cuda(grad)) => (value, grad),
                (value, grad) => {
                    on_host(&self.rule, now, value.host()?, grad.host()?, state, packing)?;
                    continue;
                }
            };
            let kernel = if packing.is_some() { None } else { self.rule.on_gpu(now) };
            let Some((formula, scalars)) = kernel else {
                through_host(&self.rule, now, value, grad, state, packing)?;
                continue;
            };
            let state = state.iter_mut().map(|vector| Ok(vector.span_mut()?.cuda()?));
            let state = state.collect::<Result<_>>()?;
            // Another formula, or too many different scalars, need another launch.
            let with = joint.iter().position(|joint| joint.takes(formula, &scalars, grad));
            let with = with.unwrap_or(joint.len());
            if with == joint.len() {
                joint.push(JointUpdate::new(formula, grad, table));
            }
            joint[with].push(value, grad, state, scalars);
        }
        Ok(joint.into_iter().try_for_each(JointUpdate::run)?)
    }

    fn has_numeric_state(&self) -> bool {
        self.rule.has_numeric_state() && !self.bf16_state
    }

    fn state_mut(&mut self) -> Result<Vec<SpanMut<'_>>> {
        let states = self.params.iter_mut().flat_map(|param| &mut param.state);
        states.map(|state| Ok(state.span_mut()?)).collect()
    }

    fn parameter_state(&mut self, index: usize) -> Result<Option<Vec<SpanMut<'_>>>> {
        let Some(param) = self.params.get_mut(index) else { return Ok(None) };
        param.state.iter_mut().map(|state| Ok(Some(state.span_mut()?))).collect()
    }

    fn step(&mut self) {
        self.set_steps(self.steps + 1);
    }

    fn learning_rate(&self) -> f32 {
        self.fixed_rate.unwrap_or_else(|| self.lr.at(self.steps) * self.rate_factor) as f32
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
        self.refresh();
    }

    fn rate_factor(&self) -> f64 {
        self.rate_factor
    }

    fn set_rate_factor(&mut self, factor: f64) -> Result<()> {
        Allowed::NotNegative.check(R::NAME, "the factor of the learning rate", factor)?;
        self.rate_factor = factor;
        self.refresh();
        Ok(())
    }

    fn set_rate(&mut self, rate: Option<f64>) -> Result<()> {
        rate.map_or(Ok(()), |rate| Allowed::NotNegative.check(R::NAME, "the learning rate", rate))?;
        self.fixed_rate = rate;
        self.refresh();
        Ok(())
    }
}

impl BoundParam {
    fn check_len(&self, index: usize, value: usize, grad: usize) -> Result<()> {
        let expected = self.elements;
        if value == expected && grad == expected {
            return Ok(());
        }
        Err(Error::Length { index, expected, value, grad })
    }

    /// The settings after `steps` steps.
    fn now(&self, steps: u64, rates: &[f64]) -> StepSettings {
        StepSettings {
            step: steps + 1,
            lr: rates[self.rate] * self.lr_scale,
            weight_decay: self.weight_decay,
            trust_ratio: self.trust_ratio,
            param: self.traits,
        }
    }
}

/// Updates a whole parameter.
fn on_host<R: UpdateRule>(
    rule: &R,
    now: StepSettings,
    value: &mut [f32],
    grad: &[f32],
    state: &mut [FlatTensor],
    packing: Option<&Packing>,
) -> Result<()> {
    let mut vectors: [&mut [f32]; MAX_STATES] = Default::default();
    for (vector, kept) in vectors.iter_mut().zip(state) {
        *vector = kept.as_mut_slice()?;
    }
    let parts = ParamParts { value, grad, state: vectors };
    match packing {
        None => rule.update(now, parts),
        Some(packing) => packing.update(rule, now, parts),
    }
    Ok(())
}

/// Updates a parameter on a GPU by a rule without a kernel, or with a state in bf16.
fn through_host<R: UpdateRule>(
    rule: &R,
    now: StepSettings,
    mut value: CudaSpanMut<'_>,
    grad: CudaSpan<'_>,
    state: &mut [FlatTensor],
    packing: Option<&Packing>,
) -> Result<()> {
    let len = value.len();
    let (mut new, mut gradient) = (vec![0.0; len], vec![0.0; len]);
    value.as_span().download(&mut new)?;
    grad.download(&mut gradient)?;
    let mut copies =
        state.iter().map(FlatTensor::to_host).collect::<std::result::Result<Vec<_>, _>>()?;
    on_host(rule, now, &mut new, &gradient, &mut copies, packing)?;
    value.upload(&new)?;
    for (vector, copy) in state.iter_mut().zip(&copies) {
        vector.copy_from_host(copy)?;
    }
    Ok(())
}
