//! A run that goes back to an older checkpoint is another branch: it loses nothing, and nothing of the branch that it
//! has left comes back.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candelabrum::train::checkpoint::Manifest;
use candelabrum_testkit::EndedProgram;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::job::Place;

/// Ten steps in each of two epochs.
const OPTIONS: &str = "--epochs 2 --batch-size 24 --threads 1 --checkpoint-every 2 --momentum 0.5";

/// A run of twenty steps that keeps all its checkpoints.
fn whole() -> Place {
    let place = Place::new(OPTIONS);
    place.succeed("--checkpoint-keep 100");
    place
}

fn step(place: &Place, step: u64) -> String {
    place.checkpoints().join(format!("step-{step:08}")).display().to_string()
}

/// The steps of the checkpoints, the lowest first, and those that were left behind.
fn steps(dir: &Path) -> (Vec<u64>, Vec<u64>) {
    let (mut named, mut abandoned) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some((before, step)) = name.split_once("step-") else { continue };
        let all = if before.is_empty() { &mut named } else { &mut abandoned };
        assert!(before.is_empty() || before.starts_with("abandoned-"), "{name}");
        all.push(step.parse().unwrap());
    }
    named.sort_unstable();
    abandoned.sort_unstable();
    (named, abandoned)
}

fn killed(ended: &EndedProgram) {
    assert!(!ended.succeeded(), "{}", ended.err);
}

/// Starts a run as a launcher does after a failure. It must continue this checkpoint, and succeed.
#[track_caller]
fn restart(place: &Place, options: &str, continues: &str) {
    let again = place.program(options).env("CANDELABRUM_RESTART", "1");
    again.run().success().says([format!("continues {continues}")]);
}

#[test]
fn a_run_that_goes_back_and_is_killed_goes_on_in_its_own_branch() {
    for workers in [1, 2] {
        let options = format!("{OPTIONS} --workers {workers} --batch-size {}", 24 / workers);
        let place = Place::new(&options);
        place.succeed("--checkpoint-keep 100");
        let old =
            fs::read(place.checkpoints().join("step-00000020/parameters.safetensors")).unwrap();
        let back = step(&place, 4);
        let other = format!("--lr 0.001 --resume {back}");
        killed(&place.run(&format!("{other} --die 0 update 7")));
        let (named, abandoned) = steps(&place.checkpoints());
        // The step in which it was killed was the seventh after step 4, which stays beside the newest ones.
        assert!(named.contains(&4), "{named:?}");
        assert!(named.last().is_some_and(|last| (8..=10).contains(last)), "{named:?}");
        assert_eq!(abandoned, [6, 8, 10, 12, 14, 16, 18, 20]);
        let ended = place.run("--lr 0.001");
        let text = &ended.err;
        assert!(ended.succeeded(), "{text}");
        let last = format!("continues {}", step(&place, *named.last().unwrap()));
        assert!(text.contains(&last), "{text}");
        let killed_and_resumed = place.outcome();

        // The same without the kill.
        let undisturbed = Place::new(&options);
        undisturbed.succeed("--checkpoint-keep 100");
        let back = step(&undisturbed, 4);
        let text = undisturbed.run(&format!("--lr 0.001 --resume {back}")).err;
        assert!(
            text.contains("8 later checkpoint(s) now have names that begin with `abandoned-`"),
            "{text}"
        );
        assert_eq!(killed_and_resumed, undisturbed.outcome());
        let new =
            fs::read(place.checkpoints().join("step-00000020/parameters.safetensors")).unwrap();
        assert_ne!(new, old, "the old branch came back");
        // The source stays beside the newest three.
        assert_eq!(steps(&undisturbed.checkpoints()).0, [4, 16, 18, 20]);
    }
}

#[test]
fn a_restart_goes_on_from_the_newest_checkpoint_of_its_branch() {
    let place = whole();
    let back = step(&place, 4);
    let options = format!("--lr 0.001 --resume {back}");
    killed(&place.run(&format!("{options} --die 0 update 7")));
    let newest = *steps(&place.checkpoints()).0.last().unwrap();
    restart(&place, &options, &step(&place, newest));
    assert_eq!(steps(&place.checkpoints()).1, [6, 8, 10, 12, 14, 16, 18, 20]);

    // One that was killed before its first checkpoint begins at PATH again.
    let place = whole();
    let back = step(&place, 4);
    let options = format!("--lr 0.001 --resume {back}");
    killed(&place.run(&format!("{options} --die 0 update 1")));
    restart(&place, &options, &back);
}

#[test]
fn a_restart_of_a_run_from_another_directory_goes_on_from_its_own_newest_checkpoint() {
    let (source, place) = (whole(), Place::new(OPTIONS));
    for later in (8..=20).step_by(2) {
        fs::remove_dir_all(step(&source, later)).unwrap();
    }
    let from = source.checkpoints().display().to_string();
    let options = format!("--resume {from}");
    killed(&place.run(&format!("{options} --die 0 update 7")));
    // In the seventh step after step 6. The last checkpoint may not have been whole.
    let newest = *steps(&place.checkpoints()).0.last().unwrap();
    assert!((8..=12).contains(&newest), "{newest}");
    restart(&place, &options, &step(&place, newest));
    assert_eq!(steps(&place.checkpoints()).1, [] as [u64; 0]);
}

#[test]
fn a_run_from_a_checkpoint_elsewhere_leaves_behind_what_the_directory_has() {
    let (source, place) = (whole(), whole());
    let from = step(&source, 6);
    let ended = place.run(&format!("--resume {from}"));
    let text = &ended.err;
    assert!(ended.succeeded(), "{text}");
    assert!(text.contains("10 later checkpoint(s) now have"), "{text}");
    let (named, abandoned) = steps(&place.checkpoints());
    assert_eq!((named, abandoned.len()), (vec![16, 18, 20], 10));
    assert_eq!(steps(&source.checkpoints()).0.len(), 10, "the source is not changed");
    let manifest = |place: &Place, number| Manifest::read(Path::new(&step(place, number))).unwrap();
    let parent = manifest(&place, 20).parent.unwrap();
    assert_eq!((parent.step, parent.run), (6, manifest(&source, 6).run));
    let run = manifest(&place, 20).run;
    // A directory of its own is no branch: its newest checkpoint goes on.
    let dir = place.checkpoints().display().to_string();
    let text = place.run(&format!("--epochs 3 --resume {dir}")).err;
    assert!(text.contains("continues") && !text.contains("abandoned"), "{text}");
    assert_eq!(manifest(&place, 30).run, run);
}

/// The files of a checkpoint as the version before wrote them: settings have sentences as names, counts are bits, and
/// hooks have their states by their names.
fn to_format_1(dir: &Path) {
    let bits = |value: &Value| json!(value.as_f64().unwrap().to_bits());
    let rank = dir.join("rank-0.json");
    let mut own: Value = serde_json::from_slice(&fs::read(&rank).unwrap()).unwrap();
    let metrics = &own["metrics"];
    let measures = metrics["measures"].as_object().unwrap().iter();
    let measures: BTreeMap<_, _> = measures
        .map(|(name, m)| (name, json!({"sum": bits(&m["sum"]), "weight": bits(&m["weight"])})))
        .collect();
    own["metrics"] = json!({
        "loss": bits(&metrics["loss"]), "samples": bits(&metrics["samples"]),
        "batches": bits(&metrics["batches"]), "sample_loss": bits(&metrics["weighted_loss"]["sum"]),
        "measures": measures,
    });
    let own = serde_json::to_vec(&own).unwrap();
    fs::write(&rank, &own).unwrap();
    let digest = |bytes: &[u8]| -> String {
        Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let path = dir.join("checkpoint.json");
    let signed: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut checkpoint = signed["checkpoint"].clone();
    let settings = &checkpoint["settings"];
    let text = |name: &str| match &settings[name] {
        Value::String(text) => text.clone(),
        number => number.to_string(),
    };
    checkpoint["settings"] = json!({
        "the seed": text("seed"), "the training data": text("data"),
        "the number of training samples": text("samples"),
        "the global batch size": text("global_batch_size"), "the strategy": text("strategy"),
        "the optimizer": settings["optimizers"][""],
    });
    checkpoint["shared"] = checkpoint["shared"]["session"]["hooks"].clone();
    checkpoint["format"] = json!(1);
    checkpoint["files"]["rank-0.json"] = json!({"bytes": own.len(), "sha256": digest(&own)});
    checkpoint.as_object_mut().unwrap().remove("number");
    let text = checkpoint.to_string();
    let signed = format!("{{\"sha256\":\"{}\",\"checkpoint\":{text}}}\n", digest(text.as_bytes()));
    fs::write(path, signed).unwrap();
}

#[test]
fn a_checkpoint_of_the_format_before_is_continued_with_the_same_bits() {
    let options = format!("{OPTIONS} --evaluate-every 3");
    let expected = Place::new(&options).succeed("");
    let interrupted = || {
        let place = Place::new(&options);
        killed(&place.run("--die 0 update 8"));
        place.steps().iter().for_each(|step| to_format_1(&place.checkpoints().join(step)));
        place
    };
    let place = interrupted();
    let ended = place.run("");
    let text = &ended.err;
    assert!(ended.succeeded(), "{text}");
    assert!(text.contains("note: continues ") && !text.contains("skipped"), "{text}");
    assert_eq!(place.outcome(), expected);
    // Another seed is refused by the old names, too.
    let text = interrupted().run("--seed 1").err;
    assert!(text.contains("was made with the seed `0`, this run has `1`"), "{text}");
}
