//! Models of Hugging Face's hub, by their names.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::ApiBuilder;

use crate::error::{Error, Result};

/// The folder at `name`, or, if there is none and `name` has the form `owner/model`, the model of this name from Hugging
/// Face's hub: config, safetensors and tokenizer are downloaded into its cache unless they are there. The variables
/// `HF_HOME`, `HF_ENDPOINT` and `HF_TOKEN` count, as for Python's `huggingface_hub`.
///
/// # Errors
/// Neither a folder nor the name of a model, or a download that failed: the error says which file.
pub(crate) fn folder(name: &Path) -> Result<PathBuf> {
    if name.exists() {
        return Ok(name.to_owned());
    }
    let model = name.to_str().filter(|name| {
        let parts: Vec<&str> = name.split('/').collect();
        parts.len() == 2 && parts.iter().all(|part| !part.is_empty() && !part.starts_with('.'))
    });
    let Some(model) = model else {
        let what = "is neither a folder, nor a file, nor a model of the hub (owner/name)";
        return Err(Error::file(name, what));
    };
    let failed = |what: String| {
        Error::file(
            name,
            format!("is no folder, and as a model of the hub it cannot be used: {what}"),
        )
    };
    let api = ApiBuilder::from_env().build().map_err(|error| failed(error.to_string()))?;
    let repository = api.model(model.to_owned());
    let info = repository.info().map_err(|error| failed(error.to_string()))?;
    let files: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
    let mut folder = None;
    for file in files.iter().filter(|file| is_needed(file)) {
        let path = repository.get(file).map_err(|error| failed(format!("{file}: {error}")))?;
        folder = path.parent().map(Path::to_owned);
    }
    if !files.iter().any(|file| file == "config.json") {
        return Err(failed("it has no config.json".to_owned()));
    }
    folder.ok_or_else(|| failed("it has no files".to_owned()))
}

/// Whether a model needs this file.
fn is_needed(file: &str) -> bool {
    !file.contains('/')
        && (file.ends_with(".safetensors")
            || file.ends_with(".safetensors.index.json")
            || matches!(
                file,
                "config.json"
                    | "tokenizer.json"
                    | "tokenizer_config.json"
                    | "special_tokens_map.json"
                    | "chat_template.jinja"
            ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_folder_must_be_a_name_of_the_hub() {
        for name in ["no-such-folder", "/no/such/folder", "./no/folder", "a/b/c", "a/", "../models"]
        {
            let error = folder(Path::new(name)).unwrap_err().to_string();
            assert!(error.contains("neither a folder"), "{name}: {error}");
        }
    }

    #[test]
    fn only_the_files_of_a_model_are_needed() {
        for file in ["config.json", "model.safetensors", "model-00001-of-00002.safetensors"] {
            assert!(is_needed(file), "{file}");
        }
        for file in ["README.md", "pytorch_model.bin", "onnx/model.safetensors", "vocab.txt"] {
            assert!(!is_needed(file), "{file}");
        }
    }
}
