//! What happened in a run besides numbers, as lines of text: notes, checkpoints, resumes, the end.

use candelabrum_runlog::{RunHistory, Stamped, duration_in_words};

/// All entries of a run, in the order of their times.
pub(crate) fn entries(run: &RunHistory) -> Vec<Stamped<String>> {
    let mut all: Vec<Stamped<String>> = run.notes.clone();
    let mut add = |time, what| all.push(Stamped { time, what });
    for made in &run.checkpoints {
        let (step, seconds) = (made.what.step, duration_in_words(made.what.seconds));
        add(made.time, format!("checkpoint at step {step}, {seconds}: {}", made.what.path));
    }
    for resume in &run.resumes {
        let (of, ranks) = (&resume.what, resume.what.settings.world_size);
        let on = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
        add(resume.time, format!("resumed at step {} on {on} from {}", of.step, of.from));
    }
    if let Some(end) = &run.end {
        add(end.time, format!("end at step {}: {}", end.what.step, end.what.reason));
    }
    all.sort_by(|a, b| a.time.total_cmp(&b.time));
    all
}

#[cfg(test)]
mod tests {
    use candelabrum_runlog::{Checkpoint, EndEvent, Event, EventKind, ResumePoint, Settings};

    use super::*;

    #[test]
    fn entries_of_all_kinds_come_in_the_order_of_their_times() {
        let mut run = RunHistory::default();
        let settings = Settings::new(1, "0");
        let resume = ResumePoint { step: 4, epoch: 0, from: "c4".to_owned(), settings };
        for (time, kind) in [
            (2.0, EventKind::Resume(resume)),
            (1.0, EventKind::Note { text: "a note".to_owned() }),
            (
                3.0,
                EventKind::Checkpoint(Checkpoint { step: 8, path: "c8".to_owned(), seconds: 0.25 }),
            ),
            (4.0, EventKind::End(EndEvent { reason: "finished".to_owned(), step: 9 })),
        ] {
            run.event(Event { time, kind });
        }
        let texts: Vec<String> = entries(&run).into_iter().map(|entry| entry.what).collect();
        let expected = [
            "a note",
            "resumed at step 4 on 1 rank from c4",
            "checkpoint at step 8, 250 ms: c8",
            "end at step 9: finished",
        ];
        assert_eq!(texts, expected);
    }
}
