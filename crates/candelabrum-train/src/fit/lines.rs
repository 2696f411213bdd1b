//! SINGA's lines on the output of rank 0.

use std::fmt::Arguments;
use std::io::Write;

use candelabrum_runlog::Memory;

use crate::Metrics;
use crate::metrics::ACCURACY;

/// The output of rank 0; nothing on other ranks.
pub(super) struct RootOutput<'a>(Option<&'a mut dyn Write>);

impl<'a> RootOutput<'a> {
    pub(super) fn new(out: Option<&'a mut dyn Write>) -> Self {
        Self(out)
    }

    pub(super) fn starting(&mut self, epoch: usize) {
        self.say(format_args!("Starting Epoch {epoch}:"));
    }

    pub(super) fn trained(&mut self, metrics: &Metrics) {
        let measures = measures(metrics, "training", None);
        self.say(format_args!("Training loss = {:.6}{measures}", metrics.loss));
    }

    /// The end of an epoch. A classifier has SINGA's line, other models have their mean loss in it, both with their other
    /// measures. Each further evaluation set has a line of its own.
    pub(super) fn evaluated(&mut self, metrics: Option<&Metrics>, seconds: f64) {
        match metrics {
            Some(metrics) => {
                let accuracy = metrics.measure(ACCURACY);
                let (name, first) =
                    accuracy.map_or(("loss", metrics.mean_loss()), |accuracy| (ACCURACY, accuracy));
                let others = measures(metrics, "evaluation", Some(ACCURACY));
                self.say(format_args!(
                    "Evaluation {name} = {first:.6}{others}, Elapsed Time = {seconds:.6}s"
                ));
            }
            None => self.say(format_args!("Elapsed Time = {seconds:.6}s")),
        }
        for (set, metrics) in metrics.into_iter().flat_map(Metrics::sets) {
            let measures = measures(metrics, set, None);
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

/// The measures of a phase of the training, but for the one of this name.
fn measures(metrics: &Metrics, phase: &str, but: Option<&str>) -> String {
    let others = metrics.measures().filter(|(name, _)| Some(&**name) != but);
    others.map(|(name, value)| format!(", {phase} {name} = {value:.6}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_says_all_its_measures_and_a_classifiers_accuracy_first() {
        let said = |measures: &[&str]| {
            let mut metrics = Metrics::default();
            measures.iter().for_each(|name| metrics.add_measure(name, 1.0, 4.0));
            let mut out = Vec::new();
            RootOutput::new(Some(&mut out)).evaluated(Some(&metrics), 2.0);
            String::from_utf8(out).unwrap()
        };
        let time = ", Elapsed Time = 2.000000s\n";
        assert_eq!(said(&[ACCURACY]), format!("Evaluation accuracy = 0.250000{time}"));
        let both = "Evaluation accuracy = 0.250000, evaluation f1 = 0.250000";
        assert_eq!(said(&["f1", ACCURACY]), format!("{both}{time}"));
        assert!(said(&["mae"]).contains(", evaluation mae = 0.250000, Elapsed"));
    }
}
