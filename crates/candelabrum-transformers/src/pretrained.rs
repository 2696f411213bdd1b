//! A pretrained model on disk: a folder as Hugging Face has them, or a GGUF file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candelabrum_nn::{LoadReport, Params, Scope};

use crate::companions::{Companions, GENERATION};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::models::family;
use crate::neutral::Neutral;
use crate::source_files::SourceFiles;
use crate::tokenizer::Tokenizer;
use crate::weights::{
    GgufFile, INDEX, Naming, Quantization, SafetensorsFiles, WeightFiles, WeightSource,
    gguf_config, gguf_generation,
};

/// A pretrained model on disk, of which only the headers have been read: a folder with `config.json` and
/// `model.safetensors` (one file, or several with an index), or a GGUF file.
///
/// Each of [`causal_lm`](Self::causal_lm), [`classifier`](Self::classifier) and [`encoder`](Self::encoder) creates a model
/// whose parameters start with the numbers of the files. Every rank reads its files for itself, and `DistOpt` compares
/// the results.
///
/// ```no_run
/// use candelabrum_nn::Params;
/// use candelabrum_transformers::Pretrained;
///
/// let folder = Pretrained::open("SmolLM2-135M")?;
/// let tokenizer = folder.tokenizer()?;
/// let params = Params::new(0);
/// let model = folder.causal_lm(&params)?;
/// println!("{} parameters of {}", params.element_count(), model.config().model_type()?);
/// # Ok::<(), candelabrum_transformers::Error>(())
/// ```
#[derive(Debug)]
pub struct Pretrained {
    path: PathBuf,
    config: Config,
    files: WeightFiles,
    quantization: Quantization,
    accepted: Arc<[String]>,
}

/// What a model of one kind takes of a folder.
pub(crate) struct FolderTask {
    pub(crate) naming: Naming,
    /// Keys of the config that have no effect on such a model.
    pub(crate) neutral: &'static [Neutral],
    /// Other files, which are saved again with the model.
    pub(crate) companions: &'static [&'static str],
}

impl Pretrained {
    /// Reads the headers of the folder, or of the GGUF file, at `path`.
    ///
    /// # Errors
    /// A folder without a config or without weights, a file that is damaged, truncated or missing, an index that does
    /// not agree with its files, an architecture of a GGUF file that is not supported. The error names the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.is_file() {
            let file = GgufFile::open(path)?;
            let config = Config::new(path, gguf_config(&file, None)?);
            return Ok(Self::new(path, config, WeightFiles::Gguf(Box::new(file))));
        }
        if !path.is_dir() {
            let what = "is neither a folder nor a file: name a folder with config.json and model.safetensors, or a GGUF file";
            return Err(Error::file(path, what));
        }
        let config = Config::open(path)?;
        let Some(files) = SafetensorsFiles::open(path)? else {
            return Err(without_weights(path));
        };
        Ok(Self::new(path, config, WeightFiles::Safetensors(files)))
    }

    fn new(path: &Path, config: Config, files: WeightFiles) -> Self {
        let accepted = Arc::from([]);
        let config = config.with_tensors(files.names().len()).accepting(&accepted);
        let quantization = Quantization::default();
        Self { path: path.to_owned(), config, files, quantization, accepted }
    }

    /// [`open`](Self::open), where a name of the form `owner/model` that is no folder stands for a model of Hugging
    /// Face's hub, which is downloaded unless it is in the hub's cache.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and a download that failed.
    pub fn find(name: impl AsRef<Path>) -> Result<Self> {
        Self::open(crate::hub::folder(name.as_ref())?)
    }

    /// Chooses whether matrices that a GGUF file has in few bits stay so, frozen, as a LoRA training wants them.
    /// Safetensors files are not affected.
    #[must_use]
    pub fn quantization(mut self, quantization: Quantization) -> Self {
        self.quantization = quantization;
        self
    }

    /// Names keys of the model's JSON files, of a GGUF file's metadata, or tensors of the files, that this crate does not
    /// know and that have no effect on the model's results. Without that, each of them is an error when the model or the
    /// tokenizer is made.
    #[must_use]
    pub fn accept(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.accepted =
            self.accepted.iter().cloned().chain(names.into_iter().map(Into::into)).collect();
        self.config = self.config.accepting(&self.accepted);
        self
    }

    /// The folder or file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn accepted(&self) -> &Arc<[String]> {
        &self.accepted
    }

    /// The config.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tokenizer: that of the folder, or the one in the metadata of the GGUF file, unless a `tokenizer.json` is beside
    /// this file.
    ///
    /// # Errors
    /// No tokenizer, or one that cannot be read.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let accepted = &self.accepted;
        match &self.files {
            WeightFiles::Safetensors(_) => Tokenizer::open_accepting(&self.path, accepted),
            WeightFiles::Gguf(file) => match Tokenizer::beside(&self.path, accepted)? {
                Some(beside) => Ok(beside),
                None => Tokenizer::from_gguf_accepting(&self.path, file.raw_metadata(), accepted),
            },
        }
    }

    /// Builds a model in `params` and calls it once with `run`, so that it creates its parameters, with the numbers of
    /// the files. Those that `may_be_new` names may be missing there.
    pub(crate) fn create<M>(
        self,
        params: &Params,
        FolderTask { naming, neutral, companions: names }: FolderTask,
        build: impl FnOnce(&Scope, &Config) -> Result<M>,
        run: impl FnOnce(&M) -> candle_core::Result<()>,
        may_be_new: impl Fn(&str) -> bool,
    ) -> Result<(M, SourceFiles)> {
        let Self { path, config, files, quantization, accepted } = self;
        let model = build(&params.root(), &config)?;
        let [all, family] = family::neutral(&config)?;
        match &files {
            WeightFiles::Safetensors(_) => config.finish(&[all, family, neutral])?,
            // The config was made of the metadata, which are asked for again to refuse the others.
            WeightFiles::Gguf(file) => drop(gguf_config(file, Some(&accepted))?),
        }
        let mut companions = Companions::new(&path, &accepted);
        names.iter().try_for_each(|name| companions.add(name))?;
        if let WeightFiles::Gguf(file) = &files
            && let Some(settings) = gguf_generation(file)?
        {
            companions.insert(GENERATION, &settings);
        }
        let source = Arc::new(WeightSource::new(files, config.clone(), naming, quantization));
        params.set_initial_values(Some(source.clone()));
        let created = params.in_mode(false, || run(&model));
        params.set_initial_values(None);
        created.map_err(|error| source.failure(error))?;
        let report = source.report()?;
        let is_lost = |name: &String| !may_be_new(name);
        if !report.unfit.is_empty() || report.missing.iter().any(is_lost) {
            let report = LoadReport {
                missing: report.missing.into_iter().filter(is_lost).collect(),
                ..report
            };
            return Err(Error::file(path, format!("does not fit the model: {report}")));
        }
        let is_strange = |name: &&String| naming.is_of_body(name) && !accepted.contains(name);
        let strange: Vec<String> =
            report.unused.iter().filter(is_strange).map(|name| format!("`{name}`")).collect();
        if let [first, ..] = &strange[..] {
            let (count, some) = (strange.len(), strange[..strange.len().min(4)].join(", "));
            let what = format!(
                "has tensors that the model does not have ({count}: {some}): is config.json that of these weights? If {first} \
                 and the others have no effect on the model's results, name them in `Pretrained::accept` (the examples have \
                 `--accept NAME`)"
            );
            return Err(Error::file(path, what));
        }
        let kept = source.kept(params.dtype())?;
        Ok((model, SourceFiles { config, naming, report, kept, companions }))
    }
}

/// The error of a folder that has a config and no `model.safetensors`: what is there instead, and what to do.
fn without_weights(folder: &Path) -> Error {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut others: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    others.sort();
    let of = |end: &str| others.iter().find(|name| name.ends_with(end));
    let what = if let Some(shard) =
        others.iter().find(|name| name.contains("-of-") && name.ends_with(".safetensors"))
    {
        format!(
            "has {shard} and no {INDEX}, which says what is in each file: download the index, too"
        )
    } else if let Some(adapters) = others.iter().find(|name| name.starts_with("adapter_model")) {
        format!(
            "has {adapters} and no model: open the model of the adapters, and then `load_adapter` (the example `generate` has `--adapters`)"
        )
    } else if let Some(gguf) = of(".gguf") {
        format!("has no model.safetensors: name the file {gguf} instead of the folder")
    } else if let Some(other) = of(".safetensors") {
        format!(
            "has {other} and no model.safetensors: the folder that transformers opens has a file of this name"
        )
    } else {
        let other = of(".bin").or(of(".h5")).or(of(".msgpack")).or(of(".pth"));
        let other = other.map_or_else(String::new, |other| format!("{other} and "));
        format!(
            "has {other}no model.safetensors: convert the weights of another format with `save_pretrained` of transformers"
        )
    };
    Error::file(folder, what)
}
