//! The exchange of a step. Buckets are sent in order, as soon as they are complete, and their
//! averages arrive in the same order.
//!
//! During the backward pass the exchange receives each bucket whose gradients are complete. It
//! sends the bucket at once if all buckets before it have been sent. All ranks send the same buckets in
//! the same order, whatever the order in which their gradients become complete (Li et al., "PyTorch
//! Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020).
//!
//! The last bucket leaves only after the backward pass. So a rank whose pass fails always has a bucket
//! left through which the other ranks learn of the failure.
//!
//! The host does not wait for a GPU while buckets leave. So for gradients on a GPU, the host learns of
//! bad numbers only when it asks: before a vote, or after an average has shown that there are some.
//! Strategies without code for GPUs get a copy of the bucket on the host.

use std::collections::VecDeque;
use std::sync::Arc;

use candelabrum_memory::{ElementType, FiniteCheck, FlatTensor, SpanMut, reduce};
use candelabrum_nn::with_span;
use candle_core::{DType, Tensor};

use super::StepFigures;
use super::bucket_sets::BucketSet;
use super::context::StepContext;
use super::figures::timed;
use super::own_averages::{ON_THEIR_WAY, OwnAverages};
use super::step_failure::{BadGradient, StepFailure, check_scalar, is_finite, spread};
use super::used::ExchangeKind;
use crate::comm::{Announcement, Collective, Payload, Pending, ReduceOp};
use crate::strategy::{self, Message, Subject};
use crate::{Error, Result};

/// The exchange of one step.
#[derive(Debug)]
pub(super) struct BucketExchange {
    pub(super) context: StepContext,
    pub(super) subject: Subject,
    pub(super) kind: ExchangeKind,
    pub(super) figures: StepFigures,
    /// The factor of gradients that undoes a scaling of the loss.
    unscale: Option<f32>,
    /// The reason why this rank's gradients must not be used.
    failure: Option<StepFailure>,
    /// The loss on a GPU, which shows only later whether it is finite.
    loss: Option<Tensor>,
    /// The search for bad numbers in this rank's gradients.
    search: FiniteCheck,
    /// Whether the all-reduce searches for them instead. It reads the numbers anyway, and on a host whose
    /// ranks share no cache, lines that a rank has read are slow to write for another rank.
    all_reduce_searches: bool,
    /// What the all-reduce has found, of any rank.
    found: Option<BadGradient>,
    /// By bucket: memory for numbers in the wire's type, while they are not being sent.
    pub(super) wire: Vec<Option<FlatTensor>>,
    /// The averages of this rank's shard, if buckets are lent.
    pub(super) own: Option<OwnAverages>,
    /// The search for averages that are not finite, in this rank's shard of them.
    pub(super) average_search: FiniteCheck,
    /// Complete buckets whose turn has not come yet.
    complete: Vec<Option<FlatTensor>>,
    /// The next bucket to send.
    next: usize,
    /// The messages under way, in the order in which they left.
    flights: VecDeque<SentBucket>,
}

/// A message under way.
#[derive(Debug)]
struct SentBucket {
    index: usize,
    /// Its memory, unless the memory itself is the message.
    bucket: Option<FlatTensor>,
    /// Its memory on a GPU, if the strategy works on a copy on the host.
    on_device: Option<FlatTensor>,
    pending: Vec<Pending>,
}

impl BucketExchange {
    pub(super) fn new(
        context: StepContext,
        subject: Subject,
        kind: ExchangeKind,
        (wire, own): (Vec<Option<FlatTensor>>, Option<OwnAverages>),
        unscale: Option<f32>,
    ) -> Self {
        let complete = context.plans.iter().map(|_| None).collect();
        let (figures, flights) = (StepFigures::default(), VecDeque::new());
        let (failure, loss, found) = (None, None, None);
        let (search, average_search) = (FiniteCheck::default(), FiniteCheck::default());
        let is_in_place =
            matches!(&kind, ExchangeKind::AllReduce(all_reduce) if all_reduce.is_in_place());
        let all_reduce_searches = is_in_place && context.ranks.all.finds_bad_numbers();
        Self {
            context,
            subject,
            kind,
            figures,
            unscale,
            failure,
            loss,
            search,
            all_reduce_searches,
            found,
            wire,
            own,
            average_search,
            complete,
            next: 0,
            flights,
        }
    }

    /// Records the reason why this rank's gradients must not be used.
    pub(super) fn fail(&mut self, failure: StepFailure) {
        self.failure = Some(failure);
    }

    /// Records the loss, whose gradients must not be used if it is not finite. A loss on a GPU is
    /// checked there, and the host does not wait for it.
    pub(super) fn check_loss(&mut self, loss: &Tensor) -> Result<()> {
        check_scalar(loss)?;
        let loss = loss.detach().to_dtype(DType::F32)?;
        if !loss.device().is_cpu() {
            self.loss = Some(loss);
        } else if !is_finite(&loss)? {
            self.failure = Some(StepFailure::Loss);
        }
        Ok(())
    }

    /// The reason why the gradients must not be used, as far as this rank knows it. Waits for a GPU.
    pub(super) fn failure(&mut self) -> Result<Option<&StepFailure>> {
        // A loss that is not finite explains gradients that are not.
        if matches!(self.failure, None | Some(StepFailure::Gradient(_)))
            && let Some(loss) = self.loss.take()
            && !is_finite(&loss)?
        {
            self.failure = Some(StepFailure::Loss);
        }
        if self.failure.is_none() {
            let rank = self.context.ranks.all.rank();
            let own = self.search.first()?;
            let own = own.map(|(bucket, position)| BadGradient { rank, bucket, position });
            self.failure = own.into_iter().chain(self.found).min().map(StepFailure::Gradient);
        }
        Ok(self.failure.as_ref())
    }

    /// The error of a step with a failure on some rank, for all ranks. All ranks call it together.
    pub(super) fn share_failure(&mut self) -> Result<Option<Error>> {
        self.failure()?;
        spread(&self.context, self.failure.as_ref())
    }

    /// Accepts a bucket that is complete before the backward pass has ended, and sends the buckets whose
    /// turn it is.
    pub(super) fn accept_early(&mut self, index: usize, bucket: FlatTensor) -> Result<()> {
        self.complete[index] = Some(self.check(index, bucket)?);
        while self.next + 1 < self.context.plans.len() {
            let Some(bucket) = self.complete[self.next].take() else { break };
            self.next += 1;
            self.launch(self.next - 1, bucket)?;
            self.make_room()?;
        }
        self.figures.early_buckets = self.figures.buckets;
        Ok(())
    }

    /// Sends the buckets that have not left during the backward pass.
    pub(super) fn send_rest(&mut self, layout: &mut BucketSet) -> Result<()> {
        while self.next < self.context.plans.len() {
            let index = self.next;
            let bucket = match self.complete[index].take() {
                // The pass may have failed after the bucket was complete.
                Some(mut bucket) => {
                    self.show_failure(&mut bucket)?;
                    bucket
                }
                None => {
                    let bucket = layout.gradients.take(index)?;
                    self.check(index, bucket)?
                }
            };
            self.next += 1;
            self.launch(index, bucket)?;
            self.make_room()?;
        }
        Ok(())
    }

    /// Where buckets are lent, takes the averages out of all but the last ones that have left, so that later buckets
    /// can have the memory. All ranks do so after the same bucket.
    fn make_room(&mut self) -> Result<()> {
        while self.own.is_some() && self.flights.len() > ON_THEIR_WAY {
            let Some((index, bucket)) = self.arrive()? else { break };
            self.look_at_average(index, bucket)?;
            if let Some(own) = &mut self.own {
                own.arrived.push(index);
            }
        }
        Ok(())
    }

    /// Looks for averages that are not finite in a bucket that has arrived. Returns the bucket, unless it is lent: then
    /// the averages of this rank's shard are taken out of it.
    pub(super) fn look_at_average(
        &mut self,
        index: usize,
        mut bucket: FlatTensor,
    ) -> Result<Option<FlatTensor>> {
        let range = self.context.own_range(index);
        let known = if self.averages_are_shared_out() { range.clone() } else { 0..bucket.len() };
        let mean = self.mean();
        let Self { average_search, own, figures, .. } = self;
        timed(&mut figures.decompress, || {
            mean.apply(bucket.range_mut(known)?)?;
            average_search.look(index, bucket.range(range.clone())?)?;
            match own {
                Some(own) => own.take_out(index, bucket, range).map(|()| None),
                None => Ok(Some(bucket)),
            }
        })
    }

    /// Removes the scale of the loss from a bucket, and looks for numbers that are not finite.
    fn check(&mut self, index: usize, mut bucket: FlatTensor) -> Result<FlatTensor> {
        if let Some(factor) = self.unscale {
            bucket.span_mut()?.scale(factor)?;
        }
        self.show_failure(&mut bucket)?;
        if let Some(loss) = &self.loss
            && index + 1 == self.context.plans.len()
        {
            let mut values = bucket.span_mut()?;
            with_span(loss, |loss| Ok::<_, Error>(values.poison_unless_finite(loss)?))?;
        }
        if !self.all_reduce_searches {
            self.look_at(index, &bucket)?;
        }
        Ok(bucket)
    }

    /// Fills a bucket with NaN if this rank's gradients must not be used and may not show it. Every bucket
    /// must leave in its turn, and so it shows the failure to the other ranks.
    fn show_failure(&self, bucket: &mut FlatTensor) -> Result<()> {
        if self.failure.as_ref().is_some_and(StepFailure::is_hidden) {
            bucket.span_mut()?.fill(f32::NAN)?;
        }
        Ok(())
    }

    /// Records gradients that are not finite, for buckets that are not sent themselves.
    pub(super) fn look_at_all(&mut self, layout: &mut BucketSet) -> Result<()> {
        for index in 0..layout.buckets() {
            self.look_at(index, layout.gradients.bucket(index)?)?;
        }
        Ok(())
    }

    fn look_at(&mut self, index: usize, bucket: &FlatTensor) -> Result<()> {
        Ok(self.search.look(index, bucket.span()?)?)
    }

    /// Whether this rank is known to have a failure. It does not wait for a GPU.
    fn has_failure(&self) -> bool {
        self.failure.is_some() || self.search.is_bad_so_far()
    }

    /// Announces the all-reduces of a step whose buckets are on a GPU and sent whole. Each bucket then
    /// leaves by one of them, in the order of the buckets' numbers. `bucket` is the first of them.
    fn announce(&self, bucket: &FlatTensor) {
        let Self { context, kind, wire: memory, .. } = self;
        let (ExchangeKind::AllReduce(all_reduce), true) = (kind, bucket.is_on_device()) else {
            return;
        };
        // Memory that a failed step has lost is not there yet.
        let on_gpu = memory.iter().flatten().filter(|memory| memory.is_on_device()).count();
        if let Collective::AllReduce(op) = all_reduce.op(context.ranks.has_servers())
            && (all_reduce.is_in_place() || on_gpu == context.plans.len())
        {
            let numbered = context.plans.iter().zip(&*context.labels).enumerate();
            let buckets = numbered.map(|(index, (plan, label))| {
                let element = all_reduce.element;
                let bucket = match &context.shards {
                    None => Announcement::all_reduce(op, element, plan.len),
                    Some(shards) => {
                        Announcement::reduce_scatter_v(op, element, Arc::clone(shards.parts(index)))
                    }
                };
                bucket.labelled(label.clone()).of_step(context.step)
            });
            // Where hosts have copies, a bucket leaves by several operations, and this has no effect.
            context.ranks.replica.announce(buckets.collect());
        }
    }

    /// Makes a bucket's message and starts its collectives.
    pub(super) fn launch(&mut self, index: usize, mut bucket: FlatTensor) -> Result<()> {
        if index == 0 {
            self.announce(&bucket);
        }
        let on_device = match &self.kind {
            ExchangeKind::Strategy(strategy)
                if bucket.is_on_device() && strategy.lock().on_gpu().is_none() =>
            {
                let copy = bucket.to_host()?;
                // The search on the GPU has looked at the bucket. Here its result is known at once.
                self.look_at(index, &copy)?;
                Some(std::mem::replace(&mut bucket, copy))
            }
            _ => None,
        };
        let has_failure = self.has_failure();
        let Self { context, subject, kind, figures, .. } = self;
        let info = context.bucket(index);
        let message = match kind {
            ExchangeKind::AllReduce(all_reduce) if all_reduce.is_in_place() => {
                Message::InPlace(all_reduce.op(context.ranks.has_servers()))
            }
            ExchangeKind::AllReduce(all_reduce) => {
                // A failed step may have lost this memory, and lent buckets have none. It is then allocated.
                let memory = self.wire.get_mut(index).and_then(Option::take);
                let mut memory = match memory {
                    Some(memory) => memory,
                    None => {
                        let location = context.location();
                        FlatTensor::zeros_on(&location, all_reduce.element, info.len())?
                    }
                };
                if has_failure && !all_reduce.shows_bad_numbers() {
                    bucket.span_mut()?.fill(0.0)?;
                }
                timed(&mut figures.compress, || {
                    all_reduce.pack(bucket.span_mut()?, &mut memory, context.ranks.count)
                })?;
                Message::new(all_reduce.op(context.ranks.has_servers()), memory.into())
            }
            ExchangeKind::Strategy(strategy) => {
                let mut strategy = strategy.lock();
                let mut values = bucket.span_mut()?;
                // The vote will report the failure. Zeros spare the strategy the bad numbers.
                let is_gradient = *subject == Subject::Gradients;
                if has_failure && is_gradient && !strategy.shows_bad_numbers() {
                    values.fill(0.0)?;
                }
                timed(&mut figures.compress, || {
                    strategy.compensate(&info, values.reborrow())?;
                    let message = strategy::compress(&mut **strategy, &info, values.reborrow())?;
                    let in_place = matches!(message, Message::InPlace(_));
                    strategy.update(&info, (!in_place).then(|| values.as_span()))?;
                    Ok::<_, Error>(message)
                })?
            }
        };
        figures.buckets += 1;
        self.start(index, bucket, on_device, message)
    }

    fn start(
        &mut self,
        index: usize,
        bucket: FlatTensor,
        on_device: Option<FlatTensor>,
        message: Message,
    ) -> Result<()> {
        let search = self.all_reduce_searches;
        let Self { context, kind, flights, .. } = self;
        let kind = &*kind;
        let start = |op, payload: Payload| -> Result<Pending> {
            let payload = payload.labelled(context.labels[index].clone()).of_step(context.step);
            let payload = if search { payload.searched() } else { payload };
            Ok(match (kind, op, &context.shards) {
                (ExchangeKind::AllReduce(_), Collective::AllReduce(op), Some(shards)) => {
                    let payload = payload.with_parts(&**shards.parts(index))?;
                    context.ranks.replica.start(Collective::ReduceScatterV(op), payload)
                }
                (ExchangeKind::AllReduce(_), ..) => context.ranks.all.start(op, payload),
                (ExchangeKind::Strategy(strategy), ..) => {
                    strategy.lock().exchange(&*context.ranks.all, op, payload)
                }
            })
        };
        let flight = match message {
            Message::InPlace(op) => {
                let pending = vec![start(op, bucket.into())?];
                SentBucket { index, bucket: None, on_device, pending }
            }
            Message::Payloads(parts) => {
                let pending = parts.into_iter().map(|(op, payload)| start(op, payload));
                let pending = pending.collect::<Result<_>>()?;
                SentBucket { index, bucket: Some(bucket), on_device, pending }
            }
        };
        flights.push_back(flight);
        Ok(())
    }

    /// Whether the next average comes by itself, so that this thread has time for other work.
    pub(super) fn is_underway(&mut self) -> bool {
        let comes = |pending: &mut Pending| !pending.is_complete() && !pending.needs_a_wait();
        self.flights.front_mut().is_some_and(|flight| flight.pending.iter_mut().any(comes))
    }

    /// Returns an error if an average on a GPU is not what NCCL should have computed. The caller has
    /// waited for the GPU since the average arrived.
    pub(super) fn check_stream(&self, bucket: &FlatTensor) -> Result<()> {
        let failure = bucket.is_on_device().then(|| self.context.ranks.all.failure()).flatten();
        failure.map_or(Ok(()), Err)
    }

    /// Waits for the next bucket, which then contains the average. `None` if all have arrived.
    /// For a bucket on a GPU, the stream of the bucket waits and the host does not.
    pub(super) fn arrive(&mut self) -> Result<Option<(usize, FlatTensor)>> {
        while let Some(flight) = self.flights.pop_front() {
            let SentBucket { index, bucket, on_device, pending } = flight;
            let received: Result<Vec<Payload>> = {
                let _span =
                    tracing::trace_span!(target: "candelabrum::step", "wait", bucket = index)
                        .entered();
                // For numbers on a GPU the host does not wait: see `check_stream`.
                pending.into_iter().map(Pending::wait_on_stream).collect()
            };
            let mut received = received?;
            let Self { context, kind, figures, .. } = self;
            let info = context.bucket(index);
            let Some(mut bucket) = bucket else {
                let result = received.pop().filter(|result| result.len() == info.len());
                let what = || format!("{} made a bucket shorter or longer", kind.describe());
                let result = result.ok_or_else(|| Error::Protocol { what: what() })?;
                let bad = result.bad_number().map(|bad| BadGradient {
                    rank: bad.part,
                    bucket: index,
                    position: bad.position,
                });
                self.found = self.found.into_iter().chain(bad).min();
                return Ok(Some((index, back_on_device(result.into_flat(), on_device)?)));
            };
            let message = match kind {
                ExchangeKind::AllReduce(_) => {
                    for result in received {
                        let result = result.into_flat();
                        timed(&mut figures.decompress, || result.widen_into(bucket.span_mut()?))?;
                        if let Some(wire) = self.wire.get_mut(index) {
                            *wire = Some(result);
                        }
                    }
                    None
                }
                ExchangeKind::Strategy(strategy) => {
                    let mut strategy = strategy.lock();
                    timed(&mut figures.decompress, || {
                        strategy::aggregate(&mut **strategy, &info, received, bucket.span_mut()?)
                    })?
                }
            };
            match message {
                None => return Ok(Some((index, back_on_device(bucket, on_device)?))),
                Some(message) => {
                    // The strategy may have waited for a GPU and read what has arrived there.
                    self.check_stream(&bucket)?;
                    self.start(index, bucket, on_device, message)?;
                }
            }
        }
        Ok(None)
    }

    /// What makes a mean over the gradients of a bucket that has arrived.
    fn mean(&self) -> BucketMean {
        let ranks = &self.context.ranks;
        match &self.kind {
            _ if !ranks.has_servers() => BucketMean::Itself,
            ExchangeKind::AllReduce(all_reduce) if all_reduce.is_in_place() => {
                BucketMean::Sum(ranks.count)
            }
            // Each rank has divided its gradients before it rounded them.
            ExchangeKind::AllReduce(_) => BucketMean::Itself,
            ExchangeKind::Strategy(strategy) if strategy.lock().averages_workers() => {
                BucketMean::Itself
            }
            ExchangeKind::Strategy(_) => {
                BucketMean::Scaled(ranks.all.world_size() as f32 / ranks.count as f32)
            }
        }
    }

    /// Whether each rank has only the averages of its own shard. Other strategies than an all-reduce give all ranks all
    /// of them.
    pub(super) fn averages_are_shared_out(&self) -> bool {
        self.context.shards.is_some() && matches!(self.kind, ExchangeKind::AllReduce(_))
    }

    /// Starts the vote of all ranks on whether their gradients can be used. It serves strategies whose
    /// averages would not show a bad gradient, and strategies that remember gradients.
    pub(super) fn start_vote(&mut self) -> Result<Pending> {
        let vote = Payload::from_slice(&[i32::from(self.failure()?.is_some())]);
        let vote = vote.labelled("the vote on finite gradients").of_step(self.context.step);
        Ok(self.context.ranks.all.start(Collective::AllReduce(ReduceOp::Max), vote))
    }

    /// The error that follows from the vote; `None` if all ranks' gradients can be used.
    pub(super) fn check_vote(&mut self, vote: Pending) -> Result<Option<Error>> {
        if vote.wait()?.as_slice::<i32>()? == [0] {
            return Ok(None);
        }
        let what = || "a vote against the gradients that no rank explains".to_owned();
        let error = self.share_failure()?;
        error.map(Some).ok_or_else(|| Error::Protocol { what: what() })
    }

    /// After an error, returns the buckets under way to the layout, as far as they arrive.
    pub(super) fn recall(&mut self, layout: &mut BucketSet) {
        for (index, bucket) in self.complete.iter_mut().enumerate() {
            if let Some(bucket) = bucket.take() {
                layout.put_back(index, bucket);
            }
        }
        while let Some(SentBucket { index, bucket, on_device, pending }) = self.flights.pop_front()
        {
            let travelled = pending.into_iter().map(Pending::wait).last();
            let travelled = travelled.and_then(Result::ok).map(Payload::into_flat);
            match (on_device.or(bucket), travelled) {
                (Some(bucket), travelled) => {
                    layout.put_back(index, bucket);
                    if let (ExchangeKind::AllReduce(_), Some(place)) =
                        (&self.kind, self.wire.get_mut(index))
                    {
                        *place = travelled;
                    }
                }
                (None, Some(bucket)) => layout.put_back(index, bucket),
                (None, None) => {}
            }
        }
    }
}

/// How a bucket that has arrived is a mean over the gradients.
#[derive(Clone, Copy, Debug)]
enum BucketMean {
    Itself,
    /// The bucket is the sum of so many gradients.
    Sum(usize),
    /// The bucket is the mean over more ranks, and this many times too small.
    Scaled(f32),
}

impl BucketMean {
    fn apply(self, mut values: SpanMut<'_>) -> Result<()> {
        match (self, values.reborrow()) {
            (Self::Itself, _) => {}
            // As a mean over ranks divides, so that the bits are the same.
            (Self::Sum(of), SpanMut::Host(values)) => {
                reduce::divide(ElementType::F32, bytemuck::cast_slice_mut(values), of);
            }
            (Self::Sum(of), mut values) => values.scale((of as f32).recip())?,
            (Self::Scaled(factor), mut values) => values.scale(factor)?,
        }
        Ok(())
    }
}

/// The numbers of a bucket in their place on a GPU, if they were copied from there.
fn back_on_device(values: FlatTensor, on_device: Option<FlatTensor>) -> Result<FlatTensor> {
    let Some(mut bucket) = on_device else { return Ok(values) };
    bucket.copy_from_host(&values)?;
    Ok(bucket)
}
