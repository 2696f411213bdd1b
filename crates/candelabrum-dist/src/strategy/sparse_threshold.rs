//! sparseThreshold: each rank sends every element of u = g + r with a magnitude of `spars` or more.
//!
//! The idea is from Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
//! Interspeech 2015. The exchange has two rounds. The ranks first gather their counts of elements.
//! Then they gather messages as long as the longest one. If these take as many bytes as the whole
//! bucket, the ranks average the whole bucket instead.

use candelabrum_memory::cuda::CudaSpanMut;
use candelabrum_memory::{FlatTensor, SpanMut};

use super::gpu::{self, GpuStrategy};
use super::select::Selector;
use super::sparse_exchange::DenseExchange;
use super::{Bucket, ErrorFeedback, Message, Strategy, sparse_exchange};
use crate::comm::{Collective, Communicator, Payload};
use crate::{Error, Result};

/// Sends the elements from a threshold on.
#[derive(Debug)]
pub(super) struct SparseThreshold {
    error_feedback: Option<ErrorFeedback>,
    selector: Selector,
    /// The state of each bucket's exchange.
    rounds: Vec<GatherRound>,
    note: Option<String>,
    dense: DenseExchange,
    /// The number of messages without an element so far; `None` after the first message with one.
    silent: Option<u32>,
}

/// The number of messages without an element after which the user is notified.
const SILENCE: u32 = 100;

#[derive(Debug, Default)]
enum GatherRound {
    #[default]
    Idle,
    /// The ranks gather their counts. These are this rank's elements.
    Counting(SelectedByThreshold),
    /// The ranks gather messages that have room for the longest count.
    Gathering { counts: Vec<usize>, room: usize },
}

/// The elements that this rank has taken out of a bucket.
#[derive(Debug)]
enum SelectedByThreshold {
    OnHost {
        positions: Vec<u32>,
        sent: Vec<f32>,
    },
    /// As many elements as a sparse message can have at most. If there are more, the whole bucket is
    /// sent, and the other ones have never left it.
    OnGpu(gpu::SelectedElements),
}

impl SelectedByThreshold {
    /// The message of these elements, with room for `room`. `count` is their number, which the ranks
    /// have gathered.
    fn message(&self, count: usize, room: usize) -> Result<Payload> {
        match self {
            Self::OnHost { positions, sent } => sparse_exchange::pack(positions, sent, room),
            Self::OnGpu(taken) => Ok(taken.message(count, room)?.into()),
        }
    }

    /// Returns the elements to their places in `values`.
    fn put_back(&self, count: usize, values: SpanMut<'_>) -> Result<()> {
        match self {
            Self::OnHost { positions, sent } => {
                let values = values.host()?;
                for (&at, &value) in positions.iter().zip(sent) {
                    values[at as usize] = value;
                }
                Ok(())
            }
            Self::OnGpu(taken) => taken.put_back(count, values.cuda()?),
        }
    }
}

impl SparseThreshold {
    pub(super) fn new(corr: bool) -> Self {
        Self {
            error_feedback: corr.then(ErrorFeedback::default),
            selector: Selector::default(),
            rounds: Vec::new(),
            note: None,
            dense: DenseExchange::default(),
            silent: Some(0),
        }
    }

    /// Notifies the user of a threshold above all elements, because nothing is trained then.
    fn count_silence(&mut self, bucket: &Bucket<'_>) {
        if let Some(silent) = &mut self.silent {
            *silent += 1;
            if *silent == SILENCE {
                let spars = bucket.spars;
                self.note = Some(format!(
                    "sparseThreshold has found no element of magnitude {spars} or more in its first \
                     {SILENCE} messages: nothing is trained"
                ));
            }
        }
    }

    fn round(&mut self, bucket: &Bucket<'_>) -> &mut GatherRound {
        if self.rounds.len() <= bucket.index {
            self.rounds.resize_with(bucket.index + 1, GatherRound::default);
        }
        &mut self.rounds[bucket.index]
    }

    /// Starts the exchange of the counts.
    fn count(
        &mut self,
        bucket: &Bucket<'_>,
        found: SelectedByThreshold,
        count: FlatTensor,
    ) -> Message {
        *self.round(bucket) = GatherRound::Counting(found);
        Message::new(Collective::AllGather, count.into())
    }

    fn receive(
        &mut self,
        bucket: &Bucket<'_>,
        received: &[Payload],
        values: SpanMut<'_>,
    ) -> Result<Option<Message>> {
        let round = std::mem::take(self.round(bucket));
        let Some(gathered) = received.first() else { return Ok(None) };
        match round {
            GatherRound::Counting(found) => {
                // The host must know the counts, because it allocates the messages of the second
                // round. On a GPU this copies one word for each rank. The host waits for it here,
                // when all buckets have left, and not in the backward pass.
                let counts = gathered.to_host()?;
                let counts = counts.as_slice::<i32>()?;
                let counts = counts.iter().map(|&count| usize::try_from(count).unwrap_or(0));
                self.after_counting(bucket, counts.collect(), &found, values)
            }
            GatherRound::Gathering { counts, room } => {
                sparse_exchange::average(bucket, gathered, room, &counts, values)?;
                Ok(None)
            }
            GatherRound::Idle => {
                let what = format!("a message for {bucket}, which sent none");
                Err(Error::Protocol { what })
            }
        }
    }

    /// Chooses the message of the second round, once all ranks know all counts.
    fn after_counting(
        &mut self,
        bucket: &Bucket<'_>,
        counts: Vec<usize>,
        found: &SelectedByThreshold,
        mut values: SpanMut<'_>,
    ) -> Result<Option<Message>> {
        let most = counts.iter().copied().max().unwrap_or(0);
        if most == 0 {
            self.count_silence(bucket);
            values.fill(0.0)?;
            return Ok(None);
        }
        self.silent = None;
        let own = counts.get(bucket.rank).copied().unwrap_or(0);
        if sparse_exchange::pays(bucket, most) {
            let buffer = found.message(own, most)?;
            *self.round(bucket) = GatherRound::Gathering { counts, room: most };
            return Ok(Some(Message::new(Collective::AllGather, buffer)));
        }
        // The whole bucket is sent: the elements return to their places, and no residual is left.
        found.put_back(own, values)?;
        self.update(bucket, None)?;
        Ok(Some(self.dense.message("sparseThreshold", bucket, most, &mut self.note)))
    }
}

impl Strategy for SparseThreshold {
    fn describe(&self) -> String {
        format!("sparseThreshold corr={}", self.error_feedback.is_some())
    }

    fn check_spars(&self, spars: f32) -> Result<()> {
        if spars > 0.0 && spars.is_finite() {
            return Ok(());
        }
        let range = "above 0 (the least magnitude that sparseThreshold sends)";
        Err(Error::Setting { setting: "spars", value: spars.to_string(), range })
    }

    fn prepare(&mut self, buckets: &[Bucket<'_>], _comm: &dyn Communicator) -> Result<()> {
        sparse_exchange::check(buckets)
    }

    fn error_feedback(&mut self) -> Option<&mut ErrorFeedback> {
        self.error_feedback.as_mut()
    }

    fn on_gpu(&mut self) -> Option<&mut dyn GpuStrategy> {
        Some(self)
    }

    fn compress(&mut self, bucket: &Bucket<'_>, values: &mut [f32]) -> Result<Message> {
        let mut positions = Vec::new();
        self.selector.at_least(values, bucket.spars, &mut positions);
        let sent = sparse_exchange::take_out(&positions, values);
        let count = positions.len() as i32; // positions have 31 bits, see `check`
        Ok(self.count(
            bucket,
            SelectedByThreshold::OnHost { positions, sent },
            FlatTensor::from_slice(&[count]),
        ))
    }

    fn aggregate(
        &mut self,
        bucket: &Bucket<'_>,
        received: Vec<Payload>,
        values: &mut [f32],
    ) -> Result<Option<Message>> {
        self.receive(bucket, &received, SpanMut::Host(values))
    }

    fn note(&mut self) -> Option<String> {
        self.note.take()
    }
}

impl GpuStrategy for SparseThreshold {
    fn compress(&mut self, bucket: &Bucket<'_>, values: CudaSpanMut<'_>) -> Result<Message> {
        let room = sparse_exchange::most_that_pays(bucket);
        let (taken, count) = gpu::take_at_least(&bucket.gpu()?, values, bucket.spars, room)?;
        Ok(self.count(bucket, SelectedByThreshold::OnGpu(taken), count))
    }

    fn aggregate(
        &mut self,
        bucket: &Bucket<'_>,
        received: Vec<Payload>,
        values: CudaSpanMut<'_>,
    ) -> Result<Option<Message>> {
        self.receive(bucket, &received, SpanMut::Cuda(values))
    }
}
