//! The files of a tokenizer, in memory as they were read.

use std::{
    borrow::Cow,
    fs, io,
    path::{Path, PathBuf},
};

use candelabrum_datasets::hexadecimal;
use sha2::{Digest, Sha256};

use crate::config::refuse_lfs_pointer;
use crate::error::{Error, Result};
use crate::new_files::NewFiles;

pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const CONFIG: &str = "tokenizer_config.json";
pub(super) const SPECIAL_TOKENS: &str = "special_tokens_map.json";
pub(super) const ADDED_TOKENS: &str = "added_tokens.json";
pub(super) const TEMPLATE: &str = "chat_template.jinja";
pub(super) const JSON_TEMPLATE: &str = "chat_template.json";

const NAMES: [&str; 6] = [TOKENIZER, CONFIG, SPECIAL_TOKENS, ADDED_TOKENS, TEMPLATE, JSON_TEMPLATE];

/// Files by their names, in the order in which they are read, and where they come from.
pub(super) struct TokenizerFiles {
    path: PathBuf,
    is_folder: bool,
    files: Vec<(&'static str, Vec<u8>)>,
}

impl TokenizerFiles {
    /// Files that were made from another one.
    pub(super) fn made(path: &Path, files: Vec<(&'static str, Vec<u8>)>) -> Self {
        Self { path: path.to_owned(), is_folder: false, files }
    }

    /// The files of a tokenizer in a folder.
    ///
    /// # Errors
    /// No folder, or no `tokenizer.json` in the folder. A file that cannot be read.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        if !fs::metadata(folder).map_err(Error::io("open", folder))?.is_dir() {
            return Err(Error::file(
                folder,
                "not a folder: a tokenizer is a folder or a .gguf file",
            ));
        }
        let mut files = Vec::new();
        for name in NAMES {
            let path = folder.join(name);
            match fs::read(&path) {
                Ok(content) => {
                    refuse_lfs_pointer(&path, &content)?;
                    files.push((name, content));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("read", path)(error));
                }
                Err(_) if name == TOKENIZER => return Err(Error::file(folder, WITHOUT)),
                Err(_) => {}
            }
        }
        Ok(Self { path: folder.to_owned(), is_folder: true, files })
    }

    /// The folder or the file that the files come from.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path to blame for an error in a file.
    pub(super) fn path_of(&self, name: &str) -> Cow<'_, Path> {
        if self.is_folder { self.path.join(name).into() } else { self.path.as_path().into() }
    }

    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        let file = self.files.iter().find(|(file, _)| *file == name);
        file.map(|(_, content)| content.as_slice())
    }

    pub(super) fn digest(&self) -> String {
        let mut hasher = Sha256::new();
        for (name, content) in &self.files {
            hasher.update(name);
            hasher.update((content.len() as u64).to_le_bytes());
            hasher.update(content);
        }
        hexadecimal(&hasher.finalize())
    }

    pub(super) fn write(&self, folder: &mut NewFiles<'_>) -> Result<()> {
        folder.without(&NAMES);
        self.files.iter().try_for_each(|(name, content)| folder.write_bytes(name, content))
    }
}

const WITHOUT: &str = "no tokenizer.json in this folder. Download the one of the model or, where the model has none, let \
    Python's transformers make one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)";
