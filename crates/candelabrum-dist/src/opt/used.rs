//! The strategies that a distributed optimizer has used, with their state.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candelabrum_nn::DistOption;

use super::StepFigures;
use super::context::StepContext;
use crate::Result;
use crate::comm::ElementType;
use crate::strategy::{
    self, AllReduce, Bucket, ErrorFeedback, Method, Strategy, StrategyConfig, Subject,
};

/// A strategy that has been used, and its progress.
#[derive(Debug)]
pub(super) struct UsedStrategy {
    pub(super) option: DistOption,
    /// Its settings. An all-reduce has no state and counts as the same strategy with any settings, so it
    /// has the default settings here.
    pub(super) config: StrategyConfig,
    /// `None` for an all-reduce.
    strategy: Option<SharedStrategy>,
    /// The layouts for which it has allocated memory.
    prepared: Vec<usize>,
    /// Whether the user knows that it has no code for GPUs.
    told: bool,
    pub(super) steps: u64,
    pub(super) figures: StepFigures,
}

/// A strategy and its state, shared with the exchange of a step.
#[derive(Clone, Debug)]
pub(super) struct SharedStrategy(Arc<Mutex<Box<dyn Strategy>>>);

impl SharedStrategy {
    /// The locked strategy. After a panic in one of its methods, it is used in the state in which
    /// this method left it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Box<dyn Strategy>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way in which the buckets of a step are sent.
#[derive(Clone, Debug)]
pub(super) enum ExchangeKind {
    AllReduce(AllReduce),
    Strategy(SharedStrategy),
}

impl ExchangeKind {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::AllReduce(all_reduce) => all_reduce.describe(),
            Self::Strategy(strategy) => strategy.lock().describe(),
        }
    }

    pub(super) fn shows_bad_numbers(&self) -> bool {
        match self {
            Self::AllReduce(all_reduce) => all_reduce.shows_bad_numbers(),
            Self::Strategy(strategy) => strategy.lock().shows_bad_numbers(),
        }
    }

    /// The type in which buckets are sent, if they are not sent as they are.
    pub(super) fn separate_type(&self) -> Option<ElementType> {
        match self {
            Self::AllReduce(all_reduce) if !all_reduce.is_in_place() => Some(all_reduce.element),
            _ => None,
        }
    }

    pub(super) fn subject(&self, step: u64) -> Subject {
        match self {
            Self::AllReduce(_) => Subject::Gradients,
            Self::Strategy(strategy) => strategy.lock().subject(step),
        }
    }

    pub(super) fn takes_part(&self, bucket: &Bucket<'_>) -> bool {
        match self {
            Self::AllReduce(_) => true,
            Self::Strategy(strategy) => strategy.lock().takes_part(bucket),
        }
    }
}

/// All strategies used so far.
#[derive(Debug, Default)]
pub(super) struct UsedStrategies(Vec<UsedStrategy>);

impl UsedStrategies {
    /// The bytes of what the strategies have not sent yet.
    pub(super) fn residual_bytes(&self) -> usize {
        let bytes = |used: &UsedStrategy| used.with_error_feedback(|feedback| feedback.bytes());
        self.0.iter().filter_map(bytes).sum()
    }

    /// The index of the strategy with these settings, created now if there is none yet, and the way
    /// of its buckets.
    ///
    /// # Errors
    /// Settings that the strategy refuses.
    pub(super) fn of(
        &mut self,
        option: DistOption,
        config: &StrategyConfig,
    ) -> Result<(usize, ExchangeKind)> {
        let kept = |used: &UsedStrategy| {
            used.option == option && used.strategy.is_some() && used.config == *config
        };
        if let Some(index) = self.0.iter().position(kept) {
            return Ok((index, self.0[index].exchange(AllReduce::FP32)));
        }
        let (strategy, config, all_reduce) = match strategy::make(option, config)? {
            Method::AllReduce(all_reduce) => (None, StrategyConfig::default(), all_reduce),
            Method::Strategy(strategy) => (
                Some(SharedStrategy(Arc::new(Mutex::new(strategy)))),
                config.clone(),
                AllReduce::FP32,
            ),
        };
        let is_all_reduce = strategy.is_none();
        let same = |used: &UsedStrategy| is_all_reduce && used.option == option;
        let index = self.0.iter().position(same).unwrap_or_else(|| {
            self.0.push(UsedStrategy {
                option,
                config,
                strategy,
                prepared: Vec::new(),
                told: false,
                steps: 0,
                figures: StepFigures::default(),
            });
            self.0.len() - 1
        });
        Ok((index, self.0[index].exchange(all_reduce)))
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut UsedStrategy {
        &mut self.0[index]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &UsedStrategy> {
        self.0.iter()
    }

    /// Reports to every strategy that no step will use the layout again.
    pub(super) fn forget(&mut self, layout: usize) {
        for used in &mut self.0 {
            used.prepared.retain(|&prepared| prepared != layout);
            if let Some(strategy) = &used.strategy {
                strategy.lock().forget(layout);
            }
        }
    }

    /// Forgets all strategies and their state.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl UsedStrategy {
    fn exchange(&self, all_reduce: AllReduce) -> ExchangeKind {
        self.strategy.clone().map_or(ExchangeKind::AllReduce(all_reduce), ExchangeKind::Strategy)
    }

    /// Allocates memory for the buckets of a layout, before the first step with them. Returns a note if the
    /// strategy has no code for the GPU of the parameters, once.
    pub(super) fn prepare(&mut self, context: &StepContext) -> Result<Option<String>> {
        let Some(strategy) = &self.strategy else { return Ok(None) };
        if !self.prepared.contains(&context.layout) {
            let buckets: Vec<Bucket<'_>> =
                (0..context.plans.len()).map(|i| context.bucket(i)).collect();
            strategy.lock().prepare(&buckets, &*context.ranks.all)?;
            self.prepared.push(context.layout);
        }
        let on_gpu = context.params.iter().any(|param| !param.device().is_cpu());
        if !on_gpu || self.told || strategy.lock().on_gpu().is_some() {
            return Ok(None);
        }
        self.told = true;
        let name = self.option.name();
        Ok(Some(format!("{name} has no code for GPUs: each bucket goes through the host")))
    }

    /// Counts a step that is not taken because nothing counts in it. Returns its number.
    pub(super) fn leave_out(&mut self) -> u64 {
        self.figures += StepFigures { steps: 1, skipped: 1, ..StepFigures::default() };
        self.steps += 1;
        self.steps - 1
    }

    /// Ends a step, which was taken or not. Returns a note for the user.
    pub(super) fn end_step(&mut self, taken: bool) -> Option<String> {
        let mut strategy = self.strategy.as_ref()?.lock();
        strategy.end_step(taken);
        strategy.note()
    }

    /// Calls `f` with the strategy's error feedback, if it has one.
    pub(super) fn with_error_feedback<R>(
        &self,
        f: impl FnOnce(&mut ErrorFeedback) -> R,
    ) -> Option<R> {
        self.strategy.as_ref()?.lock().error_feedback().map(f)
    }
}
