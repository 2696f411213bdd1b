//! What can go wrong between ranks: what happened, where, and what to do.

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
    /// A rank's process ended without a word.
    #[error("rank {peer} died while rank {rank} was in {during}")]
    PeerDied {
        /// The rank that died.
        peer: usize,
        /// The rank that noticed.
        rank: usize,
        /// What this rank was doing.
        during: String,
    },
    /// A rank ended its part of the job, although others still need it.
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
    /// A rank failed and told the others why.
    #[error("rank {peer}: {message}")]
    PeerFailed {
        /// The rank that failed.
        peer: usize,
        /// Its own error.
        message: String,
    },
    /// The deadline passed.
    #[error(
        "rank {rank} waited {} s in {during} for rank(s) {missing}; deadlines are set with CANDELABRUM_TIMEOUT (seconds)",
        waited.as_secs()
    )]
    Timeout {
        /// The rank that waited.
        rank: usize,
        /// What it was doing.
        during: String,
        /// Who had not arrived.
        missing: String,
        /// For how long.
        waited: Duration,
    },
    /// Two ranks called different operations, or with different lengths.
    #[error(
        "rank {rank} calls {what} where rank {first} calls {expected}: all ranks must make the same calls in the same order, with the same dist option and spars"
    )]
    Disagreement {
        /// The first rank that differs from the group's first.
        rank: usize,
        /// Its operation.
        what: String,
        /// The group's first rank.
        first: usize,
        /// Its operation.
        expected: String,
    },
    /// Ranks that were started with different programs, models or settings.
    #[error("{what} differs between ranks: rank 0 has `{expected}`, rank(s) {ranks} `{got}`")]
    Inconsistent {
        /// The first thing that differs.
        what: String,
        /// Rank 0's.
        expected: String,
        /// The ranks that have something else.
        ranks: String,
        /// What the first of those has.
        got: String,
    },
    /// A step whose units are not those that gradients were accumulated in.
    #[error(
        "gradients were accumulated for units of another size than this step asks for: take a step of that kind first, or set `threshold`"
    )]
    Accumulated,
    /// A rank that joins the others' steps in the middle of an accumulation.
    #[error(
        "gradients were accumulated and belong to no step: take the step with them before joining the others"
    )]
    AccumulatedBeforeJoin,
    /// A rank number that does not exist.
    #[error("{op}: there is no rank {rank} in a world of {world_size}")]
    RankOutOfRange {
        /// The operation.
        op: &'static str,
        /// The rank asked for.
        rank: usize,
        /// How many there are.
        world_size: usize,
    },
    /// A buffer that cannot be cut into equal parts.
    #[error("{op}: {len} elements do not divide by {world_size} ranks")]
    NotDivisible {
        /// The operation.
        op: &'static str,
        /// The buffer's length in elements.
        len: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// A buffer that is not cut into as many parts as there are ranks.
    #[error("{op}: the buffer has {parts} parts for {world_size} ranks: cut it with `with_parts`")]
    Parts {
        /// The operation.
        op: &'static str,
        /// Into how many parts it is cut; 0 where it is not.
        parts: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// A slice whose length is not what the operation gives.
    #[error("{op}: the slice has {got} elements, {expected} are needed")]
    Length {
        /// The operation.
        op: &'static str,
        /// What it gives.
        expected: usize,
        /// What it was given room for.
        got: usize,
    },
    /// Something that does not exist, here or at all.
    #[error("{what} is not supported")]
    Unsupported {
        /// What was asked for.
        what: String,
    },
    /// Something that this build leaves out.
    #[error("{what}: build with `--features {feature}`")]
    NotCompiled {
        /// What was asked for.
        what: String,
        /// The cargo feature that has it.
        feature: &'static str,
    },
    /// A launch environment that does not hold together.
    #[error("{what}")]
    Launch {
        /// What is wrong, and what to do.
        what: String,
    },
    /// The ranks did not find each other.
    #[error("rank {rank} of {world_size} waited {} s for rank {peer} to start", waited.as_secs())]
    Rendezvous {
        /// The rank that waited.
        rank: usize,
        /// How many should come.
        world_size: usize,
        /// The first that did not.
        peer: usize,
        /// For how long.
        waited: Duration,
    },
    /// Bytes from another rank that make no sense.
    #[error("protocol error: {what}")]
    Protocol {
        /// What was received.
        what: String,
    },
    /// A call of the operating system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: std::sync::Arc<io::Error>,
    },
    /// A call of the MPI library failed.
    #[error("{call}: {message}")]
    Mpi {
        /// The function.
        call: &'static str,
        /// The library's own words.
        message: String,
    },
    /// A call of NCCL failed.
    #[error("rank {rank}: {call}: {message}")]
    Nccl {
        /// The rank that made it.
        rank: usize,
        /// The function.
        call: &'static str,
        /// The library's own words.
        message: String,
    },
    /// The communicator is of no use any more: an earlier operation failed, or its thread panicked.
    #[error("the communication of rank {rank} has stopped after an earlier failure")]
    Stopped {
        /// Whose communicator.
        rank: usize,
    },
    /// A gradient or loss that is no number.
    #[error("{what} is not finite on rank {rank}; no parameter was changed")]
    NotFinite {
        /// The loss, or the gradient of a named parameter.
        what: String,
        /// The first rank that saw it.
        rank: usize,
    },
    /// Parameters that the loss does not depend on.
    #[error(
        "no gradient reached {names}: is an operation without a backward in the way (candle's layer_norm, rms_norm, softmax_last_dim), or is it unused? `allow_unused` permits it"
    )]
    NoGradient {
        /// The parameters, comma-separated.
        names: String,
    },
    /// Parameters that came into being after the first step, too late to be trained.
    #[error(
        "{names} came into being after the first step and would never be trained: compile the model first"
    )]
    LateParameters {
        /// The parameters, comma-separated.
        names: String,
    },
    /// An optimizer of nothing.
    #[error("there are no parameters to train: were the layers built in another `Params`?")]
    NoParameters,
    /// A parameter of an element type that cannot be trained.
    #[error("parameter `{name}` is {dtype}: only f32 parameters can be trained")]
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
        /// What it was averaged by.
        strategy: String,
        /// The first parameter that it happened to.
        name: String,
    },
    /// Parameters that have become infinite or no numbers while ranks trained on their own.
    #[error("parameter `{name}` is no longer finite: is the learning rate too high?")]
    Diverged {
        /// The first such parameter.
        name: String,
    },
    /// A saved residual that does not fit.
    #[error(
        "the saved residual of `{name}` has {got} elements, the parameter {expected}: is it another model's?"
    )]
    Residual {
        /// The parameter.
        name: String,
        /// Its elements; 0 where there is no such parameter.
        expected: usize,
        /// The residual's.
        got: usize,
    },
    /// A strategy that nobody registered.
    #[error(
        "dist option `{option}` has no strategy: call `strategy::register` on every rank first"
    )]
    DistOption {
        /// Its name.
        option: String,
    },
    /// An option that the strategy has not, or a value that it cannot have.
    #[error("strategy option `{option}`: {why}")]
    StrategyOption {
        /// The option as it was given.
        option: String,
        /// What is wrong with it.
        why: String,
    },
    /// A setting outside its range.
    #[error("{setting} is {value}: it must be {range}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// Memory that cannot be had, reached or read as the type asked for.
    #[error(transparent)]
    Memory(#[from] candelabrum_memory::Error),
    /// The optimizer refused.
    #[error(transparent)]
    Optimizer(#[from] candelabrum_optim::Error),
    /// The model's parameters refused.
    #[error("{message}")]
    Model {
        /// The error of the parameter store.
        message: String,
    },
    /// candle refused an operation.
    #[error("{source}")]
    Tensor {
        /// candle's error.
        source: std::sync::Arc<candle_core::Error>,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: std::sync::Arc::new(source.into()) }
    }

    /// Numbers of the type `expected` that were asked for as `got`.
    pub(crate) fn element_type(expected: ElementType, got: ElementType) -> Self {
        Self::Memory(candelabrum_memory::Error::ElementType { expected, got })
    }

    /// Says more of the `operation` that rank `own` is in: what is in its payload (`label`), and which
    /// `group` it belongs to.
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
            _ => {}
        }
        self
    }

    /// Whether every rank gets it, or comes to the same by itself: nobody needs to be told.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::NotFinite { .. }
            | Self::Overflow { .. }
            | Self::Diverged { .. }
            | Self::Inconsistent { .. }
            | Self::Disagreement { .. }
            | Self::Timeout { .. }
            | Self::PeerLeft { .. }
            | Self::Stopped { .. } => true,
            other => other.is_echo(),
        }
    }

    /// Whether this rank only reports what happened elsewhere: another rank, or the launcher, knows
    /// the cause. A rank that has left in order knows of nothing, so that is no echo.
    pub fn is_echo(&self) -> bool {
        matches!(self, Self::PeerDied { .. } | Self::PeerFailed { .. })
    }
}

/// An error of a collective inside of a candle operation is given back as it was.
impl From<candle_core::Error> for Error {
    fn from(source: candle_core::Error) -> Self {
        carried(&source)
            .cloned()
            .unwrap_or_else(|| Self::Tensor { source: std::sync::Arc::new(source) })
    }
}

/// For candle operations that communicate; `Error::from` gives the same error again.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        // candle's `Wrapped` forgets the type. This variant keeps it, and shows the error's own words.
        Self::Io(io::Error::other(error)).bt()
    }
}

/// This crate's error in candle's, whatever candle has put around it.
fn carried(error: &candle_core::Error) -> Option<&Error> {
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
        Self::Model { message: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
