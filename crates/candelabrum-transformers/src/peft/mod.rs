//! LoRA adapters as folders of Python's `peft`: `adapter_config.json` and `adapter_model.safetensors`.

mod config;
mod load;
mod python;
mod save;

pub use load::load_adapter;
pub use save::save_adapter;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// What `peft` puts before a model's own names.
const PREFIX: &str = "base_model.model.";

/// What PyTorch's batch normalisations count besides, which changes nothing while their momentum is a number.
const BATCHES: &str = "num_batches_tracked";

/// The layer or module to which a parameter of this name belongs.
fn layer_of(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(layer, _)| layer)
}

/// Whether `peft` takes the module `path` for one that `modules` name: it compares the ends of the names of the module and
/// of those around it, and not whole parts.
fn is_named(path: &str, modules: &[impl AsRef<str>]) -> bool {
    let around = path.match_indices('.').map(|(end, _)| &path[..end]);
    around.chain([path]).any(|path| modules.iter().any(|module| path.ends_with(module.as_ref())))
}
