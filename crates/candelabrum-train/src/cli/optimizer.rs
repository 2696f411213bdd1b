//! The options of the optimizer.

use std::fmt;
use std::str::FromStr;

use candelabrum_optim::{
    AdaGrad, Adafactor, Adam, AdamW, AdamW8bit, Clip, Lamb, Lars, Muon, MuonScale, OneCycle,
    ParamGroup, Recipe, RmsProp, Schedule, Sgd,
};
use clap::{Args, ValueEnum};

use crate::{Error, Result};

/// Options of the optimizer and its learning rate.
#[derive(Args, Clone, Debug)]
pub struct OptimizerArgs {
    /// The optimizer
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    pub optimizer: OptimizerKind,

    /// Learning rate, the highest one of a schedule
    #[arg(long, allow_negative_numbers = true, default_value_t = 0.005)]
    pub lr: f64,

    /// Momentum of sgd, rmsprop and lars; muon has 0.95
    #[arg(long, allow_negative_numbers = true, default_value_t = 0.9)]
    pub momentum: f64,

    /// Weight decay: added to the gradient (L2), or apart from it in adamw, adamw8bit, adafactor, muon and
    /// lamb. Without the option 0.01 with adamw, adamw8bit and lamb, 0.1 with muon, 0.0005 with lars, 0 with
    /// adafactor, and 0.00001 with all others
    #[arg(long, allow_negative_numbers = true)]
    pub weight_decay: Option<f64>,

    /// The matrices that muon leaves to AdamW, as it does all vectors: patterns with commas between them, where * stands
    /// for any characters. Usual for embeddings and the last layer: '*embedding*,*head*'
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',')]
    pub muon_except: Vec<String>,

    /// The numbers in which the optimizer keeps its state: f32, or bf16 with stochastic rounding
    #[arg(long, value_name = "TYPE", value_enum, default_value_t)]
    pub optimizer_state: StateType,

    /// The learning rate over the steps: constant, step:EVERY:FACTOR, cosine:STEPS, cosine:STEPS:MIN,
    /// linear:STEPS, exponential:STEPS:FACTOR or onecycle:STEPS
    #[arg(long, value_name = "SCHEDULE", default_value_t)]
    pub schedule: ScheduleKind,

    /// Steps in which the learning rate rises linearly from a hundredth, before the schedule begins
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    pub warmup: u64,

    /// Clips the averaged gradients: a number limits the norm of all of them together, value:NUMBER each
    /// element
    #[arg(long, value_name = "LIMIT", value_parser = parse_clip)]
    pub clip: Option<Clip>,
}

/// The optimizers by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
#[expect(missing_docs, reason = "the names of the optimizers")]
pub enum OptimizerKind {
    #[default]
    Sgd,
    Adam,
    AdamW,
    RmsProp,
    AdaGrad,
    Lamb,
    Lars,
    Muon,
    Adafactor,
    AdamW8bit,
}

/// The numbers of an optimizer's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
#[expect(missing_docs, reason = "the names of the types")]
pub enum StateType {
    #[default]
    F32,
    Bf16,
}

/// A schedule whose highest rate is given apart.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum ScheduleKind {
    /// One rate.
    #[default]
    Constant,
    /// Multiplied by `factor` every so many steps.
    Step {
        /// The steps between two changes.
        every: u64,
        /// The factor.
        factor: f64,
    },
    /// Half a wave of the cosine, from the highest rate to `min`.
    Cosine {
        /// The steps of the half wave.
        steps: u64,
        /// The lowest rate.
        min: f64,
    },
    /// A line to 0.
    Linear {
        /// The steps of the line.
        steps: u64,
    },
    /// Multiplied by `factor` in so many steps, a little in each.
    Exponential {
        /// The steps.
        steps: u64,
        /// The factor.
        factor: f64,
    },
    /// One rise and one fall.
    OneCycle {
        /// The steps of both.
        steps: u64,
    },
}

impl FromStr for ScheduleKind {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let steps = |text: &str| match text.parse::<u64>() {
            Ok(steps) if steps > 0 => Ok(steps),
            _ => Err(format!("`{text}` is no number of steps")),
        };
        let number = |text: &str| text.parse::<f64>().map_err(|_| format!("`{text}` is no number"));
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["constant"] => Ok(Self::Constant),
            ["step", every, factor] => {
                Ok(Self::Step { every: steps(every)?, factor: number(factor)? })
            }
            ["cosine", count] => Ok(Self::Cosine { steps: steps(count)?, min: 0.0 }),
            ["cosine", count, min] => Ok(Self::Cosine { steps: steps(count)?, min: number(min)? }),
            ["linear", count] => Ok(Self::Linear { steps: steps(count)? }),
            ["exponential", count, factor] => {
                Ok(Self::Exponential { steps: steps(count)?, factor: number(factor)? })
            }
            ["onecycle", count] => Ok(Self::OneCycle { steps: steps(count)? }),
            _ => Err("there are constant, step:EVERY:FACTOR, cosine:STEPS, cosine:STEPS:MIN, \
                      linear:STEPS, exponential:STEPS:FACTOR and onecycle:STEPS"
                .to_owned()),
        }
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => f.write_str("constant"),
            Self::Step { every, factor } => write!(f, "step:{every}:{factor}"),
            Self::Cosine { steps, min } if *min == 0.0 => write!(f, "cosine:{steps}"),
            Self::Cosine { steps, min } => write!(f, "cosine:{steps}:{min}"),
            Self::Linear { steps } => write!(f, "linear:{steps}"),
            Self::Exponential { steps, factor } => write!(f, "exponential:{steps}:{factor}"),
            Self::OneCycle { steps } => write!(f, "onecycle:{steps}"),
        }
    }
}

/// The factor of the first rate of a warm-up.
const COLD: f64 = 0.01;

impl OptimizerArgs {
    /// The schedule of the learning rate.
    pub fn rates(&self) -> Schedule {
        let lr = self.lr;
        let schedule = match self.schedule {
            ScheduleKind::Constant => Schedule::Constant(lr),
            ScheduleKind::Step { every, factor } => Schedule::Step { lr, every, factor },
            ScheduleKind::Cosine { steps, min } => {
                // Behind its end PyTorch's rate rises again, which nobody wants here.
                Schedule::Cosine { lr, steps, min }.then(steps, Schedule::Constant(min))
            }
            ScheduleKind::Linear { steps } => Schedule::Linear { lr, from: 1.0, to: 0.0, steps },
            ScheduleKind::Exponential { steps, factor } => Schedule::Exponential {
                lr,
                decay_steps: steps,
                decay_rate: factor,
                staircase: false,
            },
            ScheduleKind::OneCycle { steps } => Schedule::OneCycle(OneCycle::new(lr, steps)),
        };
        if self.warmup == 0 { schedule } else { schedule.warm_up(self.warmup, COLD) }
    }

    /// The weight decay. Without the option, optimizers that apply it apart from the gradient have that of their
    /// constructors, and the others SINGA's.
    pub fn decay(&self) -> f64 {
        self.weight_decay.unwrap_or(match self.optimizer {
            OptimizerKind::AdamW | OptimizerKind::AdamW8bit | OptimizerKind::Lamb => 0.01,
            OptimizerKind::Muon => 0.1,
            OptimizerKind::Lars => 0.0005,
            OptimizerKind::Adafactor => 0.0,
            OptimizerKind::Sgd
            | OptimizerKind::Adam
            | OptimizerKind::RmsProp
            | OptimizerKind::AdaGrad => 1e-5,
        })
    }

    /// The optimizer of these options.
    pub fn recipe(&self) -> Recipe {
        let (rates, momentum, decay) = (self.rates(), self.momentum, self.decay());
        let recipe = match self.optimizer {
            OptimizerKind::Sgd => Sgd::new(rates).momentum(momentum).weight_decay(decay).into(),
            OptimizerKind::Adam => Adam::new(rates).weight_decay(decay).into(),
            OptimizerKind::AdamW => AdamW::new(rates).weight_decay(decay).into(),
            OptimizerKind::RmsProp => {
                RmsProp::new(rates).momentum(momentum).weight_decay(decay).into()
            }
            OptimizerKind::AdaGrad => AdaGrad::new(rates).weight_decay(decay).into(),
            OptimizerKind::Lamb => Lamb::new(rates).weight_decay(decay).into(),
            OptimizerKind::Lars => Lars::new(rates).momentum(momentum).weight_decay(decay).into(),
            OptimizerKind::Muon => {
                // With this scale one learning rate suits both of its formulas.
                let muon = Muon::new(rates).weight_decay(decay).scale(MuonScale::MatchRmsAdamW);
                let except = |muon: Muon, pattern: &String| {
                    muon.group(ParamGroup::matching(pattern).muon(false))
                };
                self.muon_except.iter().fold(muon, except).into()
            }
            OptimizerKind::Adafactor => Adafactor::new(rates).weight_decay(decay).into(),
            OptimizerKind::AdamW8bit => AdamW8bit::new(rates).weight_decay(decay).into(),
        };
        match self.optimizer_state {
            StateType::F32 => recipe,
            StateType::Bf16 => recipe.with_bf16_state(),
        }
    }

    /// Refuses settings with which no optimizer can be made.
    pub(super) fn check(&self) -> Result<()> {
        let dist =
            |error: candelabrum_optim::Error| Error::from(candelabrum_dist::Error::from(error));
        if !self.muon_except.is_empty() && self.optimizer != OptimizerKind::Muon {
            let range = "left out, or used with --optimizer muon";
            return Err(Error::option("--muon-except", &self.muon_except.join(","), range));
        }
        self.clip.map_or(Ok(()), Clip::check).map_err(dist)?;
        self.recipe().check(&[]).map_err(dist)
    }
}

fn parse_clip(text: &str) -> std::result::Result<Clip, String> {
    let (is_value, number) = match text.strip_prefix("value:") {
        Some(number) => (true, number),
        None => (false, text),
    };
    let limit = number.parse::<f32>().map_err(|_| format!("`{number}` is no number"))?;
    Ok(if is_value { Clip::Value(limit) } else { Clip::Norm(limit) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_read_as_it_is_written() {
        for text in [
            "constant",
            "step:100:0.5",
            "cosine:300",
            "cosine:300:0.001",
            "linear:7",
            "exponential:100:0.1",
            "onecycle:50",
        ] {
            assert_eq!(text.parse::<ScheduleKind>().unwrap().to_string(), text);
        }
        for text in ["", "cosine", "cosine:0", "step:5", "linear:x", "step:5:y", "exponential:5"] {
            assert!(text.parse::<ScheduleKind>().is_err(), "{text}");
        }
    }

    #[test]
    fn decay_apart_from_the_gradient_is_that_of_the_constructors() {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            optimizer: OptimizerArgs,
        }
        let options = |text: &str| {
            let words = ["program"].into_iter().chain(text.split(' '));
            <Program as clap::Parser>::parse_from(words).optimizer
        };
        let described = |recipe: Recipe| format!("{recipe:?}");
        let by_constructors = [
            ("adamw", AdamW::new(1.0).into()),
            ("lamb", Lamb::new(1.0).into()),
            ("lars", Lars::new(1.0).into()),
            ("muon", Muon::new(1.0).scale(MuonScale::MatchRmsAdamW).into()),
            ("adafactor", Adafactor::new(1.0).into()),
            ("adamw8bit", AdamW8bit::new(1.0).into()),
        ];
        for (name, recipe) in by_constructors {
            let here = options(&format!("--lr 1 --optimizer {name}"));
            assert_eq!(described(here.recipe()), described(recipe), "{name}");
        }
        assert_eq!(options("--optimizer adam").decay(), 1e-5);
        assert_eq!(options("--optimizer adamw --weight-decay 0").decay(), 0.0);
    }

    #[test]
    fn limits_are_of_the_norm_or_of_each_element() {
        assert_eq!(parse_clip("0.5"), Ok(Clip::Norm(0.5)));
        assert_eq!(parse_clip("value:2"), Ok(Clip::Value(2.0)));
        assert!(parse_clip("norm").is_err());
    }
}
