//! The options of averages of the weights.

use clap::Args;

use crate::Result;
use crate::hooks::WeightAverage;
use crate::options::reject;

/// Options of an average of the weights beside the training.
#[derive(Args, Clone, Debug)]
pub struct AverageArgs {
    /// Keep an exponential moving average of the weights, with this decay in each step, such as 0.999
    #[arg(long, value_name = "DECAY", allow_negative_numbers = true)]
    pub ema: Option<f64>,

    /// The steps between two moves of the average of --ema [default: 1]
    #[arg(long, value_name = "STEPS")]
    pub ema_every: Option<u64>,

    /// Let the decay of --ema rise to its value from 2/11 on
    #[arg(long)]
    pub ema_warmup: bool,

    /// Keep the mean of the weights after step START and after each EVERY steps that follow (stochastic weight averaging)
    #[arg(long, value_name = "START:EVERY", value_parser = parse_swa)]
    pub swa: Option<(u64, u64)>,

    /// Whether evaluations, and the model after the training, have the average of --ema or --swa. Checkpoints have both
    /// [default: true]
    #[arg(long, value_name = "BOOL")]
    pub use_average: Option<bool>,
}

impl AverageArgs {
    /// The hook of these options.
    pub fn hook(&self) -> Option<WeightAverage> {
        let average = match (self.ema, self.swa) {
            (Some(decay), _) => WeightAverage::ema(decay).every(self.ema_every.unwrap_or(1)),
            (None, Some((start, every))) => WeightAverage::swa(start, every),
            (None, None) => return None,
        };
        let average = if self.ema_warmup { average.warm_up() } else { average };
        let is_used = self.is_used();
        Some(average.evaluates(is_used).stays_at_end(is_used))
    }

    /// Whether evaluations, and what the run leaves, have the average if there is one.
    pub(super) fn is_used(&self) -> bool {
        self.use_average.unwrap_or(true)
    }

    /// Rejects options with which no average can be made.
    pub(super) fn check(&self) -> Result<()> {
        let &Self { ema, ema_every: every, ema_warmup, swa, use_average } = self;
        let is_unused = use_average.is_some() && self.hook().is_none();
        let with_ema = "left out, or used with --ema";
        reject(&[
            ("--swa", ema.is_some() && swa.is_some(), &"set", "left out with --ema"),
            ("--ema-every", ema.is_none() && every.is_some(), &every.unwrap_or(0), with_ema),
            ("--ema-warmup", ema.is_none() && ema_warmup, &"set", with_ema),
            ("--use-average", is_unused, &self.is_used(), "left out, or used with --ema or --swa"),
        ])?;
        self.hook().map_or(Ok(()), |hook| hook.check())
    }
}

fn parse_swa(text: &str) -> std::result::Result<(u64, u64), String> {
    let steps = text.split_once(':').and_then(|(start, every)| {
        Some((start.parse().ok()?, every.parse::<u64>().ok().filter(|every| *every > 0)?))
    });
    steps.ok_or_else(|| "it must be two numbers of steps, START:EVERY".to_owned())
}
