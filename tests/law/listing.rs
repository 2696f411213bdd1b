//! What a directory of checkpoints lists before and after a run, and what the run may have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use candelabrum::train::checkpoint::{BestCheckpoint, Manifest};

/// The names in a directory of checkpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Listing {
    /// The checkpoints' numbers in the order of writing, by their steps.
    pub(crate) named: BTreeMap<u64, u64>,
    /// The steps of the checkpoints that were left behind.
    abandoned: Vec<u64>,
    /// The best checkpoints, by the names of their files.
    pub(crate) best: BTreeMap<String, BestCheckpoint>,
}

impl Listing {
    /// Of a directory that need not exist.
    pub(crate) fn read(dir: &Path) -> Self {
        let mut listing = Self::default();
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if let Some((before, step)) = name.split_once("step-") {
                let step = step.parse().unwrap();
                if before.is_empty() {
                    listing.named.insert(step, Manifest::read(&path).unwrap().number);
                } else {
                    listing.abandoned.push(step);
                }
            } else if name.starts_with("best") {
                let best = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
                listing.best.insert(name.to_owned(), best);
            }
        }
        listing.abandoned.sort_unstable();
        listing
    }

    /// The steps of the checkpoints that were written after `before`, the lowest first.
    pub(crate) fn written_since(&self, before: &Self) -> Vec<u64> {
        let last = before.named.values().max();
        let new = self.named.iter().filter(|(_, number)| Some(*number) > last);
        new.map(|(step, _)| *step).collect()
    }

    /// The step of the whole checkpoint that was written last.
    pub(crate) fn newest(&self, damaged: &BTreeSet<u64>) -> Option<u64> {
        let whole = self.named.iter().filter(|(step, _)| !damaged.contains(step));
        whole.max_by_key(|(_, number)| **number).map(|(step, _)| *step)
    }

    /// Refuses what a run that keeps the newest `keep` checkpoints must not have made of the directory `before`. The run
    /// went `back` to the checkpoint of this step, or continued the newest one. `source` is the step to which its
    /// branch went back.
    pub(crate) fn check(
        &self,
        before: &Self,
        back: Option<u64>,
        source: Option<u64>,
        keep: usize,
    ) -> Result<(), String> {
        let written = self.written_since(before);
        let is_later = |step: u64| back.is_some_and(|back| step > back);
        let later = before.named.keys().filter(|step| is_later(**step));
        let mut abandoned: Vec<u64> = before.abandoned.iter().chain(later).copied().collect();
        abandoned.sort_unstable();
        if self.abandoned != abandoned {
            return Err(format!("left behind are {:?}, not {abandoned:?}", self.abandoned));
        }
        let is_old = |step: &&u64| is_later(**step) && !written.contains(step);
        if let Some(step) = self.named.keys().find(is_old) {
            return Err(format!("step {step} of the branch before is still there"));
        }
        if let Some(source) = source.filter(|source| !self.named.contains_key(source)) {
            return Err(format!("step {source}, to which the run went back, is gone"));
        }
        let is_gone = |step: u64| !self.named.contains_key(&step);
        let has_gone = |best: &BestCheckpoint| best.ranked().any(|ranked| is_gone(ranked.step));
        if let Some((name, best)) = self.best.iter().find(|(_, best)| has_gone(best)) {
            return Err(format!("{name} names {best:?}, which is gone"));
        }
        let newer = |number: u64| self.named.values().filter(|other| **other > number).count();
        let mut old = before.named.iter().filter(|(step, _)| !is_later(**step));
        if let Some((step, _)) =
            old.find(|(step, number)| is_gone(**step) && newer(**number) < keep)
        {
            return Err(format!("step {step} is gone, although the newest {keep} stay"));
        }
        let best = self.best.values().flat_map(BestCheckpoint::ranked).count();
        let most = keep + best + usize::from(source.is_some());
        if !written.is_empty() && self.named.len() > most {
            return Err(format!("{:?} are more than {most}", self.named.keys()));
        }
        Ok(())
    }
}
