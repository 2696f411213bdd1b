//! The small files of a model's folder that say something beside its config, and that are saved again with the model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::new_files::NewFiles;

/// How texts are generated.
pub(crate) const GENERATION: &str = "generation_config.json";
/// How images are prepared.
pub(crate) const IMAGES: &str = "preprocessor_config.json";
/// How sentence-transformers cuts texts.
pub(crate) const TEXT_CONFIG: &str = "sentence_bert_config.json";
/// The parts of a model of sentence-transformers.
pub(crate) const MODULES: &str = "modules.json";

/// Files by their names, as they were read.
#[derive(Debug)]
pub(crate) struct Companions {
    folder: PathBuf,
    files: Vec<(String, Vec<u8>)>,
    accepted: Arc<[String]>,
}

impl Companions {
    pub(crate) fn new(folder: &Path, accepted: &Arc<[String]>) -> Self {
        Self { folder: folder.to_owned(), files: Vec::new(), accepted: accepted.clone() }
    }

    /// Reads a file, if there is one.
    ///
    /// # Errors
    /// A file that cannot be read, or whose name leads out of the folder.
    pub(crate) fn add(&mut self, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        if Path::new(name).components().any(|part| !matches!(part, std::path::Component::Normal(_)))
        {
            return Err(Error::file(&path, "is not in the folder"));
        }
        match std::fs::read(&path) {
            Ok(bytes) => self.files.push((name.to_owned(), bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            // A GGUF file has no files within.
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(Error::io("read", path)(error)),
        }
        Ok(())
    }

    /// Adds a file that was made of what another one says.
    pub(crate) fn insert(&mut self, name: &str, json: &Json) {
        self.files.push((name.to_owned(), format!("{json:#}\n").into_bytes()));
    }

    pub(crate) fn bytes(&self, name: &str) -> Option<&[u8]> {
        let file = self.files.iter().find(|(file, _)| file == name);
        file.map(|(_, bytes)| bytes.as_slice())
    }

    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A file's JSON object, if there is a file.
    ///
    /// # Errors
    /// A file that is no JSON object.
    pub(crate) fn json(&self, name: &str) -> Result<Option<Config>> {
        let config = |bytes| Config::of_bytes(&self.path_of(name), bytes);
        let config = self.bytes(name).map(config).transpose()?;
        Ok(config.map(|config| config.accepting(&self.accepted)))
    }

    /// Adds the files to those of a model.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn save_with(&self, folder: &mut NewFiles<'_>) -> Result<()> {
        folder.without(&[GENERATION, IMAGES, MODULES, TEXT_CONFIG]);
        self.files.iter().try_for_each(|(name, bytes)| folder.write_bytes(name, bytes))
    }
}
