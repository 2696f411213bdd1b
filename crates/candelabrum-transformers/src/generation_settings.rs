//! How a model's own files want its texts generated: `generation_config.json`, and the end tokens of `config.json`.

use crate::CausalLm;
use crate::companions::GENERATION;
use crate::config::Config;
use crate::error::Result;
use crate::generation::GenerationConfig;
use crate::neutral;

impl CausalLm {
    /// The settings of the model's own `generation_config.json`, and otherwise the [default ones](GenerationConfig::default):
    /// end tokens, sampling and lengths. Without `do_sample` the most probable token is taken, as in transformers. The end
    /// tokens are those of `generation_config.json`, or of `config.json`, or of a GGUF file. A tokenizer may name
    /// [another one](crate::Tokenizer::end).
    ///
    /// # Errors
    /// A setting that is not supported, or makes no sense for the model: its name and value.
    pub fn generation_config(&self) -> Result<GenerationConfig> {
        let empty = GenerationConfig::default();
        let Some(json) = self.loaded().companions.json(GENERATION)? else {
            return Ok(GenerationConfig { stop: self.end_tokens(self.config())?, ..empty });
        };
        let mut stop = self.end_tokens(&json)?;
        if stop.is_empty() {
            stop = self.end_tokens(self.config())?;
        }
        let sampling = json.flag("do_sample")?.unwrap_or(false);
        let temperature = json.real("temperature")?.unwrap_or(1.0);
        // 0 is transformers' word for no limit, and 50 its default.
        let top_k = if json.is_null("top_k") { 0 } else { json.size("top_k")?.unwrap_or(50) };
        let top_p = json.real("top_p")?;
        let settings = GenerationConfig {
            max_new_tokens: json.size("max_new_tokens")?.unwrap_or(empty.max_new_tokens),
            max_length: json.size("max_length")?,
            temperature: if sampling { temperature } else { 0.0 },
            top_k: Some(top_k).filter(|&k| sampling && k > 0),
            top_p: top_p.filter(|&p| sampling && p < 1.0),
            repetition_penalty: json.real("repetition_penalty")?.unwrap_or(1.0),
            stop,
            ..empty
        };
        json.finish(&[neutral::GENERATION_CONFIG])?;
        settings.check().map_err(|error| json.fault(format!("asks for {error}")))?;
        Ok(settings)
    }

    /// The `eos_token_id` of a file: a number or a list.
    fn end_tokens(&self, json: &Config) -> Result<Vec<u32>> {
        let Some(value) = json.get("eos_token_id") else { return Ok(Vec::new()) };
        let tokens = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let vocabulary = self.vocabulary() as u64;
        let token = |token: &serde_json::Value| {
            let token = token.as_u64().filter(|&token| token < vocabulary);
            token.and_then(|token| u32::try_from(token).ok())
        };
        tokens.iter().map(token).collect::<Option<_>>().ok_or_else(|| {
            let what = format!(
                "has eos_token_id = {value}, and the model has the tokens 0 to {}",
                vocabulary - 1
            );
            json.fault(what)
        })
    }
}
