//! SIGTERM and SIGINT: the run saves its state and ends, and continues with the same bits.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::job::{LIMIT, Place, stderr};

const OPTIONS: [&str; 6] = ["--epochs", "2", "--batch-size", "12", "--threads", "1"];

#[test]
fn an_interrupted_run_saves_its_state_and_continues() {
    let signals = [(Signal::TERM, "SIGTERM", 143), (Signal::INT, "SIGINT", 130)];
    for (workers, (signal, name, code)) in [("1", signals[0]), ("2", signals[0]), ("2", signals[1])]
    {
        let options: Vec<&str> = OPTIONS.into_iter().chain(["--workers", workers]).collect();
        let expected = Place::new(&options).succeed(&[]);
        let place = Place::new(&options);
        let running = place.start(&["--slow", "50"]);
        let end = Instant::now() + LIMIT;
        while std::fs::read_to_string(place.notes().join("seen-0"))
            .map_or(0, |text| text.lines().count())
            < 3
        {
            assert!(Instant::now() < end, "no step was taken");
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process(Pid::from_raw(running.child.id() as i32).unwrap(), signal).unwrap();
        let (output, _) = running.finish(LIMIT);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(&format!("interrupted by {name}")), "{text}");
        assert_eq!(place.steps().len(), 1, "{text}");
        let output = place.run(&[]);
        let text = stderr(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("note: continues "), "{text}");
        assert_eq!(place.outcome(), expected, "{workers} ranks, {name}");
    }
}
