//! What a model keeps of its files, and how it is written as a folder again.

use std::path::Path;

use candelabrum_nn::{LoadReport, Params};

use crate::companions::Companions;
use crate::config::Config;
use crate::error::Result;
use crate::new_files::NewFiles;
use crate::tokenizer::Tokenizer;
use crate::weights::{NamedTensors, Naming, WEIGHTS};

/// What a model keeps of the files from which it was loaded.
#[derive(Debug)]
pub(crate) struct SourceFiles {
    pub(crate) config: Config,
    pub(crate) naming: Naming,
    pub(crate) report: LoadReport,
    /// Tensors that no layer uses and that are written again.
    pub(crate) kept: NamedTensors,
    pub(crate) companions: Companions,
}

impl SourceFiles {
    /// Writes the parameters of `params`, the companions, the tokenizer and the config, with some values replaced, into
    /// `folder`. A null leaves a key out.
    pub(crate) fn save(
        &self,
        params: &Params,
        folder: &Path,
        tokenizer: Option<&Tokenizer>,
        changes: impl IntoIterator<Item = (&'static str, serde_json::Value)>,
    ) -> Result<()> {
        let mut config = self.config.json().clone();
        if let Some(config) = config.as_object_mut() {
            for old in ["torch_dtype", "quantization_config", "_name_or_path"] {
                config.remove(old);
            }
            let dtype = match params.dtype() {
                candle_core::DType::F16 => "float16",
                candle_core::DType::BF16 => "bfloat16",
                candle_core::DType::F64 => "float64",
                _ => "float32",
            };
            config.insert("dtype".to_owned(), dtype.into());
            for (key, value) in changes {
                match value.is_null() {
                    true => drop(config.remove(key)),
                    false => drop(config.insert(key.to_owned(), value)),
                }
            }
        }
        let mut folder = NewFiles::new(folder)?;
        folder
            .write(WEIGHTS, |path| crate::weights::save(params, &self.kept, &self.naming, path))?;
        self.companions.save_with(&mut folder)?;
        if let Some(tokenizer) = tokenizer {
            tokenizer.save_with(&mut folder)?;
        }
        folder.finish("config.json", &format!("{config:#}\n"))
    }
}
