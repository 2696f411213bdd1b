//! The table of strategies by name: built-in strategies, and custom ones.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use candelabrum_memory::ElementType;
use candelabrum_nn::DistOption;

use super::partial_update::PartialUpdate;
use super::quantized::Quantized;
use super::sparse_threshold::SparseThreshold;
use super::sparse_top_k::SparseTopK;
use super::{AllReduce, Strategy, StrategyConfig};
use crate::{Error, Result};

type StrategyConstructor = Arc<dyn Fn(&StrategyConfig) -> Result<Box<dyn Strategy>> + Send + Sync>;

struct Custom {
    option: DistOption,
    make: StrategyConstructor,
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Custom({})", self.option)
    }
}

/// The registered custom strategies. The table belongs to the whole process, as the command line
/// does.
static CUSTOM: RwLock<Vec<Custom>> = RwLock::new(Vec::new());

/// Registers a custom strategy. From now on `name` is a dist option, on the command line and in
/// [`candelabrum_nn::Model::train_one_batch`]. `make` is called to check settings, and for each
/// [`crate::DistOpt`] and [`StrategyConfig`] that use the strategy. Every rank must register it
/// before it reads the command line.
///
/// ```
/// use candelabrum_dist::comm::{Collective, ReduceOp};
/// use candelabrum_dist::strategy::{Message, Strategy, Subject, Bucket, register};
///
/// /// Local SGD: ranks train on their own and average their parameters at every tenth step.
/// #[derive(Debug)]
/// struct LocalSgd;
///
/// impl Strategy for LocalSgd {
///     fn describe(&self) -> String {
///         "localSgd".to_owned()
///     }
///     fn subject(&self, _step: u64) -> Subject {
///         Subject::Parameters
///     }
///     fn takes_part(&self, bucket: &Bucket<'_>) -> bool {
///         bucket.step % 10 == 9
///     }
///     fn compress(&mut self, _: &Bucket<'_>, _: &mut [f32]) -> candelabrum_dist::Result<Message> {
///         Ok(Message::InPlace(Collective::AllReduce(ReduceOp::Mean)))
///     }
/// }
///
/// let option = register("localSgd", |_| Ok(Box::new(LocalSgd)))?;
/// assert_eq!("localSgd".parse::<candelabrum_nn::DistOption>()?, option);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A name that is taken or is not one word.
pub fn register(
    name: &'static str,
    make: impl Fn(&StrategyConfig) -> Result<Box<dyn Strategy>> + Send + Sync + 'static,
) -> Result<DistOption> {
    let mut custom = CUSTOM.write().unwrap_or_else(PoisonError::into_inner);
    let option = DistOption::custom(name)?;
    custom.push(Custom { option, make: Arc::new(make) });
    Ok(option)
}

/// Whether a step with these settings is possible.
///
/// # Errors
/// [`Error::Setting`] if a setting is out of range, [`Error::DistOption`] for a name that was not
/// registered.
pub fn check(option: DistOption, spars: f32, config: &StrategyConfig) -> Result<()> {
    match make(option, config)? {
        Method::AllReduce(_) => Ok(()),
        Method::Strategy(strategy) => strategy.check_spars(spars),
    }
}

/// The implementation of a dist option.
#[derive(Debug)]
pub(crate) enum Method {
    /// An all-reduce of gradients in some element type.
    AllReduce(AllReduce),
    /// The parts of a [`Strategy`].
    Strategy(Box<dyn Strategy>),
}

/// The implementation of the dist option.
pub(crate) fn make(option: DistOption, config: &StrategyConfig) -> Result<Method> {
    if let DistOption::Custom(_) = option {
        return Ok(Method::Strategy(custom_make(option)?(config)?));
    }
    config.options.only(&[])?;
    let strategy: Box<dyn Strategy> = match option {
        DistOption::Fp32 => return Ok(Method::AllReduce(AllReduce::FP32)),
        DistOption::Fp16 => {
            return Ok(Method::AllReduce(AllReduce::half(ElementType::F16, config.clip)?));
        }
        DistOption::Bf16 => {
            return Ok(Method::AllReduce(AllReduce::half(ElementType::Bf16, config.clip)?));
        }
        DistOption::PartialUpdate => Box::new(PartialUpdate),
        DistOption::SparseTopK => Box::new(SparseTopK::new(config.corr)),
        DistOption::SparseThreshold => Box::new(SparseThreshold::new(config.corr)),
        DistOption::TwoBit | DistOption::OneBit => Box::new(Quantized::new(option, config.corr)),
        other => return Err(Error::DistOption { option: other.to_string() }),
    };
    Ok(Method::Strategy(strategy))
}

/// The constructor of a custom strategy. It is cloned so that the table is not locked while it
/// runs, because it may use the table.
fn custom_make(option: DistOption) -> Result<StrategyConstructor> {
    let custom = CUSTOM.read().unwrap_or_else(PoisonError::into_inner);
    let found = custom.iter().find(|custom| custom.option == option);
    let unknown = || Error::DistOption { option: option.to_string() };
    Ok(Arc::clone(&found.ok_or_else(unknown)?.make))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_ours_makes_the_strategy_that_says_its_name() {
        for option in DistOption::ALL {
            let described = match make(option, &StrategyConfig::default()).unwrap() {
                Method::AllReduce(all_reduce) => all_reduce.describe(),
                Method::Strategy(strategy) => strategy.describe(),
            };
            assert!(described.starts_with(option.name()), "{option}: {described}");
        }
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let config = StrategyConfig::default();
        for option in [DistOption::SparseTopK, DistOption::SparseThreshold] {
            for spars in [0.0, -0.1, f32::NAN, f32::INFINITY] {
                let error = check(option, spars, &config).unwrap_err().to_string();
                assert!(error.contains("spars") && error.contains("above 0"), "{error}");
            }
            assert!(check(option, 1.0, &config).is_ok());
        }
        assert!(check(DistOption::SparseTopK, 1.5, &config).is_err());
        assert!(check(DistOption::SparseThreshold, 1.5, &config).is_ok());
        for clip in [0.0, -1.0, f32::NAN] {
            let config = StrategyConfig { clip: Some(clip), ..config.clone() };
            assert!(check(DistOption::Fp16, 0.0, &config).is_err(), "{clip}");
        }
    }

    #[test]
    fn a_name_without_a_strategy_is_refused() {
        let error = make(DistOption::Custom("nobody"), &StrategyConfig::default()).unwrap_err();
        assert!(error.to_string().contains("nobody"), "{error}");
    }
}
