//! The errors between ranks. Each one says what happened, on which rank, and what to do.

use std::io;
use std::time::Duration;

use candelabrum_memory::ElementType;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of worlds, communicators and distributed optimizers.
///
/// Clones share their source, because every operation after a failed one gives the same error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process of a rank ended without a message.
    #[error("rank {peer} died while rank {rank} was in {during}")]
    PeerDied {
        /// The rank that died.
        peer: usize,
        /// The rank that noticed.
        rank: usize,
        /// What this rank was doing.
        during: String,
    },
    /// A rank ended its part of the job, although other ranks still need it.
    #[error(
        "rank {peer} has finished while rank {rank} is in {during}: do all ranks run the same number of steps?"
    )]
    PeerLeft {
        /// The rank that finished.
        peer: usize,
        /// The rank that noticed.
        rank: usize,
        /// What this rank was doing.
        during: String,
    },
    /// A rank failed and sent the reason to the other ranks.
    #[error("{}", of_rank(*.peer, .message))]
    PeerFailed {
        /// The rank that failed.
        peer: usize,
        /// The error of that rank.
        message: String,
    },
    /// Servers refused a request of this worker, or could not be reached.
    #[error("{source}")]
    Servers {
        /// The error of the store.
        source: std::sync::Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The deadline passed.
    #[error(
        "rank {rank} waited {} s in {during} for rank(s) {missing}; deadlines are set with CANDELABRUM_TIMEOUT (seconds)",
        waited.as_secs()
    )]
    Timeout {
        /// The rank that waited.
        rank: usize,
        /// The operation it was in.
        during: String,
        /// The ranks that had not arrived.
        missing: String,
        /// The time it waited.
        waited: Duration,
    },
    /// Two ranks called different operations, or with different lengths.
    #[error(
        "rank {rank} calls {what} where rank {first} calls {expected}: all ranks must make the same calls in the same order, with the same dist option and spars"
    )]
    Disagreement {
        /// The first rank that differs from the group's first.
        rank: usize,
        /// The operation of that rank.
        what: String,
        /// The group's first rank.
        first: usize,
        /// The operation of the group's first rank.
        expected: String,
    },
    /// A rank is asked for another operation than the next one that it has announced
    /// ([`Communicator::announce`](crate::Communicator::announce)), or leaves before it.
    #[error(
        "rank {rank} {what} where it has announced {expected}: an operation inside of a backward pass must call `interleave` of its group first"
    )]
    NotAnnounced {
        /// The rank.
        rank: usize,
        /// What the rank does instead.
        what: String,
        /// The next announced operation.
        expected: String,
    },
    /// Ranks that were started with different programs, models or settings.
    #[error("{what} differs between ranks: rank 0 has `{expected}`, rank(s) {ranks} `{got}`")]
    Inconsistent {
        /// The first thing that differs.
        what: String,
        /// The value of rank 0.
        expected: String,
        /// The ranks that have another value.
        ranks: String,
        /// The value of the first of these ranks.
        got: String,
    },
    /// Ranks that have the same parameters in different orders.
    #[error(
        "the order of the parameters differs between ranks: rank 0 has `{expected}` where rank(s) {ranks} have `{got}`, and all names are the same; the variables of a map (`HashMap`, `VarMap::data`) have another order in every process: sort them by name before `Params::from_vars`, or take `Params::from_varmap`"
    )]
    Order {
        /// The first parameter of rank 0 that has another place.
        expected: String,
        /// The ranks with another order.
        ranks: String,
        /// The parameter that the first of these ranks has in this place.
        got: String,
    },
    /// A rank joins the other ranks' steps in the middle of an accumulation.
    #[error(
        "gradients were accumulated and belong to no step: take the step with them before joining the others"
    )]
    AccumulatedBeforeJoin,
    /// A rank number that does not exist.
    #[error("{op}: there is no rank {rank} in a world of {world_size}")]
    RankOutOfRange {
        /// The operation.
        op: &'static str,
        /// The requested rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// A buffer that cannot be cut into equal parts.
    #[error("{op}: {len} elements do not divide by {world_size} ranks")]
    NotDivisible {
        /// The operation.
        op: &'static str,
        /// The buffer's length in elements.
        len: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// A buffer that is not cut into as many parts as there are ranks.
    #[error("{op}: the buffer has {parts} parts for {world_size} ranks: cut it with `with_parts`")]
    Parts {
        /// The operation.
        op: &'static str,
        /// The number of parts of the buffer; 0 if it is not cut.
        parts: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// A slice whose length is not the length of the operation's result.
    #[error("{op}: the slice has {got} elements, {expected} are needed")]
    Length {
        /// The operation.
        op: &'static str,
        /// The length of the result in elements.
        expected: usize,
        /// The length of the slice in elements.
        got: usize,
    },
    /// An operation that does not exist, or not for these arguments.
    #[error("{what} is not supported")]
    Unsupported {
        /// The requested operation.
        what: String,
    },
    /// A parameter of which other ranks keep values that this rank reads no more.
    #[error(
        "other ranks keep values of `{name}`, and this rank does not reach them after its optimizer was dropped: call `gather_parameters` of the optimizer on all ranks before"
    )]
    Closed {
        /// The parameter.
        name: String,
    },
    /// A feature that this build leaves out.
    #[error("{what}: build with `--features {feature}`")]
    NotCompiled {
        /// The requested feature.
        what: String,
        /// The cargo feature that contains it.
        feature: &'static str,
    },
    /// A launch environment that contradicts itself.
    #[error("{what}")]
    Launch {
        /// The problem, and what to do.
        what: String,
    },
    /// The ranks did not find each other.
    #[error(
        "rank {rank} of {world_size} waited {} s for rank {peer} to start; deadlines are set with CANDELABRUM_TIMEOUT (seconds)",
        waited.as_secs()
    )]
    Rendezvous {
        /// The rank that waited.
        rank: usize,
        /// The number of ranks in the job.
        world_size: usize,
        /// The first rank that did not arrive.
        peer: usize,
        /// The time it waited.
        waited: Duration,
    },
    /// Bytes from another rank that this crate cannot interpret.
    #[error("protocol error: {what}")]
    Protocol {
        /// The received bytes, in words.
        what: String,
    },
    /// A call of the operating system failed.
    #[error("{what}: {source}")]
    Io {
        /// The action that failed.
        what: String,
        /// The system's error.
        source: std::sync::Arc<io::Error>,
    },
    /// A call of the MPI library failed.
    #[error("{call}: {message}")]
    Mpi {
        /// The function.
        call: &'static str,
        /// The library's message.
        message: String,
    },
    /// A call of NCCL failed.
    #[error("rank {rank}: {call}: {message}")]
    Nccl {
        /// The rank that made it.
        rank: usize,
        /// The function.
        call: &'static str,
        /// NCCL's message.
        message: String,
    },
    /// The communicator can no longer be used: an earlier operation failed, or its thread panicked.
    #[error("the communication of rank {rank} has stopped after an earlier failure")]
    Stopped {
        /// The rank of the communicator.
        rank: usize,
    },
    /// A gradient or loss that is NaN or infinite.
    #[error("{what} is not finite on rank {rank}; no parameter was changed")]
    NotFinite {
        /// The loss, or the gradient of a named parameter.
        what: String,
        /// The first rank that saw it.
        rank: usize,
    },
    /// Parameters that the loss does not depend on.
    #[error("no gradient reached {names}: {why}")]
    NoGradient {
        /// The parameters, comma-separated.
        names: String,
        /// The possible causes with their remedies, the most certain one first.
        why: String,
    },
    /// A loss that was computed from one whose weight varies, and that carries no weight.
    #[error(
        "the loss of this step was computed from a cross entropy with `ignore_index`, so ranks and micro-batches count different numbers of rows, and the weight of the loss is not known: give the cross entropy itself to the optimizer, or say what the loss counts by `weighted(&loss, rows)`"
    )]
    UnknownWeight,
    /// The losses of a step weigh something else than was said before.
    #[error(
        "the losses of this step weigh {counted}, but an exchange of the weight {begun} was begun for them: does `Model::loss_weight` count what the loss counts?"
    )]
    BegunWeight {
        /// The weight that this rank has begun to exchange.
        begun: f64,
        /// What its losses weigh.
        counted: f64,
    },
    /// Ranks that may run out of batches, with layers that need all ranks in every pass.
    #[error(
        "`uneven` lets a rank without a batch leave out its forward pass, but a synchronized batch normalisation needs all ranks in every pass: leave `uneven` out, so that an epoch drops the samples that do not fill all ranks' batches, or do not synchronize the normalisation"
    )]
    UnevenStatistics,
    /// Parameters that were created after the first step, too late to be trained.
    #[error(
        "{names} came into being after the first step and would never be trained: compile the model first"
    )]
    LateParameters {
        /// The parameters, comma-separated.
        names: String,
    },
    /// Parameters that are no longer frozen, but were when the optimizer took its first step.
    #[error(
        "{names} was frozen when this optimizer took its first step, so the optimizer has no state for it, and it is not frozen any more: make a new optimizer after `unfreeze`, on all ranks"
    )]
    Unfrozen {
        /// The parameters, comma-separated.
        names: String,
    },
    /// An optimizer without parameters.
    #[error("there are no parameters to train: were the layers built in another `Params`?")]
    NoParameters,
    /// A parameter of an element type that cannot be trained.
    #[error("parameter `{name}` is {dtype}: only parameters in f32, f16 and bf16 can be trained")]
    ParameterType {
        /// The parameter.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// An average that is not finite, although every rank's gradient is.
    #[error(
        "the average of `{name}` by {strategy} overflowed although every rank's gradient is finite; no parameter was changed: a half precision overflows above 65504 (fp16) or 3e38 (bf16), clip the gradient, take fp32, or skip such steps (on overflow)"
    )]
    Overflow {
        /// The strategy that computed the average.
        strategy: String,
        /// The first parameter with such an average.
        name: String,
    },
    /// Parameters that became infinite or NaN while each rank trained on its own.
    #[error("parameter `{name}` is no longer finite: is the learning rate too high?")]
    Diverged {
        /// The first such parameter.
        name: String,
    },
    /// A saved state that does not fit this optimizer.
    #[error("the saved state does not fit: {what}")]
    State {
        /// The difference.
        what: String,
    },
    /// A saved residual that does not fit its parameter.
    #[error(
        "the saved residual of `{name}` has {got} elements, the parameter {expected}: is it another model's?"
    )]
    Residual {
        /// The parameter.
        name: String,
        /// The number of the parameter's elements; 0 if there is no such parameter.
        expected: usize,
        /// The number of the residual's elements.
        got: usize,
    },
    /// A strategy that was not registered.
    #[error(
        "dist option `{option}` has no strategy: call `strategy::register` on every rank first"
    )]
    DistOption {
        /// The name of the strategy.
        option: String,
    },
    /// An option that the strategy does not have, or a value that the option cannot have.
    #[error("strategy option `{option}`: {why}")]
    StrategyOption {
        /// The option as the user gave it.
        option: String,
        /// The problem with the option.
        why: String,
    },
    /// A setting outside its range.
    #[error("{setting} is {value}: it must be {range}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// The permitted values.
        range: &'static str,
    },
    /// Memory that could not be allocated, reached or read as the requested type.
    #[error(transparent)]
    Memory(#[from] candelabrum_memory::Error),
    /// The optimizer returned an error.
    #[error(transparent)]
    Optimizer(#[from] candelabrum_optim::Error),
    /// The parameter store returned an error.
    #[error("{message}")]
    Model {
        /// The error of the parameter store.
        message: String,
    },
    /// candle returned an error.
    #[error("{source}")]
    Tensor {
        /// candle's error.
        source: std::sync::Arc<candle_core::Error>,
    },
}

impl Error {
    /// A rank that should be a member of a group that was made, and is not.
    pub(crate) fn no_member() -> Self {
        Self::Protocol { what: "a group without its member".to_owned() }
    }

    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: std::sync::Arc::new(source.into()) }
    }

    /// The error for numbers of the type `expected` that were requested as `got`.
    pub(crate) fn element_type(expected: ElementType, got: ElementType) -> Self {
        Self::Memory(candelabrum_memory::Error::ElementType { expected, got })
    }

    /// Adds to the message of an error in `operation` of rank `own`: the content of the payload
    /// (`label`) and the `group` of the operation.
    pub(crate) fn with_context(
        mut self,
        own: usize,
        operation: &str,
        label: &str,
        group: &str,
    ) -> Self {
        match &mut self {
            Self::PeerDied { during, .. }
            | Self::PeerLeft { during, .. }
            | Self::Timeout { during, .. } => {
                during.push_str(label);
                during.push_str(group);
            }
            Self::Disagreement { rank, what, expected, .. } => {
                if *rank == own {
                    what.push_str(label);
                } else if expected == operation {
                    expected.push_str(label);
                }
                expected.push_str(group);
            }
            Self::NotAnnounced { expected, .. } => expected.push_str(group),
            _ => {}
        }
        self
    }

    /// Whether every rank gets this error, or finds it by itself. Such an error need not be sent.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::NotFinite { .. }
            | Self::Overflow { .. }
            | Self::Diverged { .. }
            | Self::Inconsistent { .. }
            | Self::Order { .. }
            | Self::UnevenStatistics
            | Self::Disagreement { .. }
            | Self::Timeout { .. }
            | Self::PeerLeft { .. }
            | Self::Stopped { .. } => true,
            other => other.is_echo(),
        }
    }

    /// Whether this rank only reports a failure of another rank. The other rank, or the launcher,
    /// reports the cause. [`Error::PeerLeft`] is no echo, because a rank that left in order reports
    /// no failure.
    pub fn is_echo(&self) -> bool {
        matches!(self, Self::PeerDied { .. } | Self::PeerFailed { .. })
    }
}

/// `message` of `rank`, which is named once: many messages begin with the rank that they are about.
#[doc(hidden)]
pub fn of_rank(rank: usize, message: &str) -> String {
    let is_named = message
        .strip_prefix("rank ")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if is_named { message.to_owned() } else { format!("rank {rank}: {message}") }
}

/// Returns the error of a collective inside a candle operation unchanged.
impl From<candle_core::Error> for Error {
    fn from(source: candle_core::Error) -> Self {
        carried::<Self>(&source)
            .cloned()
            .unwrap_or_else(|| Self::Tensor { source: std::sync::Arc::new(source) })
    }
}

/// For candle operations that communicate. `Error::from` converts the candle error back.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        // candle's `Wrapped` loses the type. `Io` keeps it, and displays the error's own message.
        Self::Io(io::Error::other(error)).bt()
    }
}

/// The error of type `E` inside candle's, below any context that candle has added.
#[doc(hidden)]
pub fn carried<E: std::error::Error + 'static>(error: &candle_core::Error) -> Option<&E> {
    match error {
        candle_core::Error::Io(error) => error.get_ref()?.downcast_ref(),
        candle_core::Error::Context { inner, .. }
        | candle_core::Error::WithPath { inner, .. }
        | candle_core::Error::WithBacktrace { inner, .. } => carried(inner),
        _ => None,
    }
}

impl From<candelabrum_nn::Error> for Error {
    fn from(error: candelabrum_nn::Error) -> Self {
        match error {
            // Values that other ranks keep may not have come.
            candelabrum_nn::Error::Tensor(error) => Self::from(error),
            other => Self::Model { message: other.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_its_rank_once() {
        let of = |message: &str| Error::PeerFailed { peer: 3, message: message.to_owned() };
        for (message, whole) in [
            ("no data", "rank 3: no data"),
            ("rank 0: no data", "rank 0: no data"),
            ("rank 12 waited 4 s in barrier", "rank 12 waited 4 s in barrier"),
            ("rank and file", "rank 3: rank and file"),
        ] {
            assert_eq!(of(message).to_string(), whole);
        }
    }

    #[test]
    fn an_error_survives_candle() {
        let carry = || candle_core::Error::from(Error::Stopped { rank: 3 });
        let words = Error::Stopped { rank: 3 }.to_string();
        assert!(carry().to_string().starts_with(&words), "{}", carry());
        for error in [carry(), carry().context("a layer"), carry().with_path("a file")] {
            assert!(matches!(Error::from(error), Error::Stopped { rank: 3 }));
        }
        let other = candle_core::Error::Msg("shapes".to_owned());
        assert!(matches!(Error::from(other), Error::Tensor { .. }));
    }
}
