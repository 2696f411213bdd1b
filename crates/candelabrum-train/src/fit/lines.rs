//! SINGA's lines on the output of rank 0.

use std::fmt::Arguments;
use std::io::Write;

use candelabrum_runlog::Memory;

use crate::Metrics;

/// The output of rank 0; nothing on other ranks.
pub(super) struct Lines<'a>(Option<&'a mut dyn Write>);

impl<'a> Lines<'a> {
    pub(super) fn new(out: Option<&'a mut dyn Write>) -> Self {
        Self(out)
    }

    pub(super) fn starting(&mut self, epoch: usize) {
        self.say(format_args!("Starting Epoch {epoch}:"));
    }

    pub(super) fn trained(&mut self, metrics: &Metrics) {
        let measures = others(metrics, "training");
        self.say(format_args!("Training loss = {:.6}{measures}", metrics.loss));
    }

    /// The end of an epoch. A classifier has SINGA's line, other models have their mean loss in it. Each further
    /// evaluation set has a line of its own.
    pub(super) fn evaluated(&mut self, metrics: Option<&Metrics>, seconds: f64) {
        match metrics {
            Some(metrics) if metrics.measure("accuracy").is_some() => self.say(format_args!(
                "Evaluation accuracy = {:.6}, Elapsed Time = {seconds:.6}s",
                metrics.accuracy()
            )),
            Some(metrics) => {
                let (loss, measures) = (metrics.mean_loss(), others(metrics, "evaluation"));
                self.say(format_args!(
                    "Evaluation loss = {loss:.6}{measures}, Elapsed Time = {seconds:.6}s"
                ));
            }
            None => self.say(format_args!("Elapsed Time = {seconds:.6}s")),
        }
        for (set, metrics) in metrics.into_iter().flat_map(Metrics::sets) {
            let measures = others(metrics, set);
            self.say(format_args!("{set} loss = {:.6}{measures}", metrics.mean_loss()));
        }
    }

    /// Where the memory of a step was.
    pub(super) fn memory(&mut self, memory: &Memory) {
        self.say(format_args!("{memory}"));
    }

    /// Training continues if the reader has closed the output.
    fn say(&mut self, line: Arguments<'_>) {
        if let Some(out) = &mut self.0 {
            drop(writeln!(out, "{line}").and_then(|()| out.flush()));
        }
    }
}

fn others(metrics: &Metrics, phase: &str) -> String {
    metrics.measures().map(|(name, value)| format!(", {phase} {name} = {value:.6}")).collect()
}
