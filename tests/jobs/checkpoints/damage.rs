//! What a checkpoint cannot be used for is an error that says so, and nothing that was saved is lost.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candelabrum_testkit::{Program, until};
use sha2::{Digest, Sha256};

use super::job::Place;

const OPTIONS: &str =
    "--epochs 2 --batch-size 24 --threads 1 --checkpoint-every 4 --optimizer adam";

/// A run that has died in its second epoch, and what it would have ended with.
fn interrupted() -> (Place, super::job::Outcome) {
    let expected = Place::new(OPTIONS).succeed("");
    let place = Place::new(OPTIONS);
    let ended = place.run("--die 0 backward 18");
    assert!(!ended.succeeded());
    // A checkpoint that the dead run had written whole gets its name from the first run that comes.
    assert_eq!(place.run("--resume never").code, Some(1));
    assert!(place.steps().len() >= 2, "{:?}", place.steps());
    (place, expected)
}

/// The bytes of all files of a directory, without those of a checkpoint that was being written or removed when its run
/// died.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.to_string_lossy();
        if name.contains(".partial-") || name.contains(".removed-") {
            continue;
        }
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    all
}

#[test]
fn a_damaged_checkpoint_is_skipped_with_its_reason() {
    let (place, expected) = interrupted();
    let newest = place.checkpoints().join(&place.steps()[0]);
    let whole = contents(&place.checkpoints());
    let names: Vec<PathBuf> = contents(&newest).into_keys().collect();
    assert!(names.len() >= 4, "{names:?}");
    for path in &names {
        let name = path.file_name().unwrap().to_str().unwrap();
        let bytes = &whole[path];
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 2] ^= 4;
        let cut = bytes[..bytes.len() / 2].to_vec();
        for (what, damaged) in
            [("a flipped bit", Some(flipped)), ("cut", Some(cut)), ("missing", None)]
        {
            restore(&place.checkpoints(), &whole);
            match damaged {
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => fs::remove_file(path).unwrap(),
            }
            let ended = place.run("");
            let text = &ended.err;
            assert!(ended.succeeded(), "{name}, {what}: {text}");
            assert_eq!(place.outcome(), expected, "{name}, {what}");
            if !(name == "checkpoint.json" && what == "missing") {
                // Without its manifest a directory is no checkpoint.
                assert!(
                    text.contains("note: skipped a newer checkpoint: "),
                    "{name}, {what}: {text}"
                );
                assert!(text.contains(name), "{name}, {what}: {text}");
            }
            println!("{name}, {what}: {}", text.lines().next().unwrap_or_default());
        }
    }
}

/// Makes the files of `dir` those of `whole`.
fn restore(dir: &Path, whole: &BTreeMap<PathBuf, Vec<u8>>) {
    fs::remove_dir_all(dir).unwrap();
    for (path, bytes) in whole {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn a_directory_without_a_whole_checkpoint_is_refused() {
    let (place, _) = interrupted();
    for step in place.steps() {
        let path = place.checkpoints().join(step).join("parameters.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..100]).unwrap();
    }
    refused(&place, "", &["has no whole checkpoint", "parameters.safetensors"]);
}

#[test]
fn a_checkpoint_of_another_version_is_named() {
    let (place, _) = interrupted();
    for step in place.steps() {
        let path = place.checkpoints().join(step).join("checkpoint.json");
        let text = fs::read_to_string(&path).unwrap();
        let (_, checkpoint) = text.split_once("\"checkpoint\":").unwrap();
        let checkpoint = checkpoint.trim_end().strip_suffix('}').unwrap();
        let later = checkpoint.replacen("\"format\":2", "\"format\":7", 1);
        assert_ne!(later, checkpoint);
        let digest: String =
            Sha256::digest(&later).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(&path, format!("{{\"sha256\":\"{digest}\",\"checkpoint\":{later}}}\n")).unwrap();
    }
    refused(&place, "", &["has the format 7", "reads the formats 1 to 2"]);
}

#[test]
fn a_checkpoint_of_another_run_is_refused_by_its_difference() {
    let (place, _) = interrupted();
    let cases: [(&str, &[&str]); 7] = [
        ("--width 25", &["hidden", "25", "24"]),
        ("--plain", &["norm"]),
        ("--optimizer adamw", &["optimizer"]),
        ("--seed 1", &["the seed", "1"]),
        ("--data 4", &["the training data"]),
        ("--resume never", &["has checkpoints"]),
        ("--kvstore dist_async --workers 1", &["leave --kvstore dist_async out"]),
    ];
    for (options, parts) in cases {
        refused(&place, options, parts);
    }
    let missing = place.notes().join("nothing");
    refused(&place, &format!("--resume {}", missing.display()), &["nothing"]);
}

/// The program ends with an error that has `parts`, and leaves the checkpoints as they are.
fn refused(place: &Place, options: &str, parts: &[&str]) {
    let before = contents(&place.checkpoints());
    let ended = place.run(options);
    let text = &ended.err;
    println!("{options}: {}", text.trim());
    assert_eq!(ended.code, Some(1), "{options}: {text}");
    let error = text.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    for part in parts {
        assert!(error.contains(part), "{options}: `{part}` is missing: {text}");
    }
    // A failed assertion would print all bytes.
    assert!(contents(&place.checkpoints()) == before, "{options} changed checkpoints");
}

#[test]
fn an_optimizer_with_other_vectors_is_refused_before_anything_changes() {
    for (before, now) in [("0", "0.9"), ("0.9", "0")] {
        let place = Place::new("--epochs 1 --batch-size 24 --threads 1");
        place.succeed(&format!("--momentum {before}"));
        refused(&place, &format!("--momentum {now} --epochs 2"), &["is of the optimizer `Sgd"]);
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_an_error_on_all_ranks() {
    let place = Place::new(OPTIONS);
    let file = place.notes().join("file");
    fs::write(&file, "").unwrap();
    // No user may make a directory in the system's own one.
    let system = "/sys/kernel/checkpoints";
    for dir in [file.to_str().unwrap(), system] {
        for workers in ["1", "2"] {
            let ended =
                place.run(&format!("--workers {workers} --batch-size 12 --checkpoint-dir {dir}"));
            let text = &ended.err;
            println!("{}", text.trim());
            assert_eq!(ended.code, Some(1), "{text}");
            assert!(text.contains(dir) && text.contains("cannot be used"), "{text}");
        }
    }
}

#[test]
fn two_runs_cannot_have_one_directory() {
    let place = Place::new(OPTIONS);
    let first = place.start("--slow 200");
    until("its first step", || place.notes().join("seen-0").exists().then_some(()));
    let text = place.run("").err;
    assert!(text.contains("is in use by another run"), "{text}");
    drop(first);
}

/// A full disk is a small file system in memory, which an ordinary user can mount in a namespace of its own.
#[test]
fn a_full_disk_loses_nothing_and_ends_with_an_error() {
    let place = Place::new(OPTIONS);
    fs::create_dir(place.checkpoints()).unwrap();
    let script =
        "mount -t tmpfs -o size=112k none \"$DISK\" && \"$@\"; code=$?; ls \"$DISK\"; exit $code";
    let apart = |script| {
        let unshare = Program::new("unshare").args(["--user", "--map-root-user", "--mount"]);
        unshare.args(["sh", "-c", script])
    };
    if !apart("mount -t tmpfs none /mnt").run().succeeded() {
        println!("left out: no file system can be mounted here");
        return;
    }
    let program = place.program("--epochs 4 --checkpoint-keep 9 --width 200");
    let program = program.behind(apart(script).arg("sh")).env("DISK", place.checkpoints());
    let ended = program.run();
    let (out, text) = (&ended.out, &ended.err);
    println!("{}\n{out}", text.trim());
    assert_eq!(ended.code, Some(1), "{text}");
    assert!(text.contains("No space left on device"), "{text}");
    assert!(out.contains("step-00000004"), "{out}");
    assert!(!out.contains("partial"), "{out}");
    assert!(place.notes().join("seen-0").exists());
}
