//! Texts that a language model writes, token by token.

use std::collections::BTreeSet;

use candelabrum_nn::ops;
use candle_core::{DType, Result as CandleResult, Tensor};
use rand::Rng;

use crate::CausalLm;
use crate::cache::Cache;
use crate::error::{Error, Result};

/// How the next token is chosen, and when the text ends.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationConfig {
    /// The largest number of new tokens.
    pub max_new_tokens: usize,
    /// The largest number of tokens with those of the prompt.
    pub max_length: Option<usize>,
    /// Divides the logits before the probabilities are computed. At 0 the most probable token is taken.
    pub temperature: f64,
    /// Only so many of the most probable tokens can be drawn.
    pub top_k: Option<usize>,
    /// Only the most probable tokens that have this probability together can be drawn (Holtzman et al.,
    /// arXiv:1904.09751).
    pub top_p: Option<f64>,
    /// Divides the positive logits of tokens that the text has already, and multiplies the negative ones (Keskar et al.,
    /// arXiv:1909.05858). 1 changes nothing.
    pub repetition_penalty: f64,
    /// The tokens that end the text, which they are not part of.
    pub stop: Vec<u32>,
    /// The seed of the draws.
    pub seed: u64,
    /// Whether keys and values of earlier tokens are kept. The tokens are the same without, and take longer.
    pub use_cache: bool,
}

impl Default for GenerationConfig {
    /// 64 tokens, always the most probable one.
    fn default() -> Self {
        Self {
            max_new_tokens: 64,
            max_length: None,
            temperature: 0.0,
            top_k: None,
            top_p: None,
            repetition_penalty: 1.0,
            stop: Vec::new(),
            seed: 0,
            use_cache: true,
        }
    }
}

impl GenerationConfig {
    pub(crate) fn check(&self) -> Result<()> {
        let Self { temperature, top_k, top_p, repetition_penalty: penalty, .. } = self;
        if !(temperature.is_finite() && *temperature >= 0.0) {
            let what = format!("a temperature of {temperature}: it must be 0 or a positive number");
            return Err(Error::argument(what));
        }
        if *top_k == Some(0) {
            return Err(Error::argument("a top_k of 0: no token could be drawn"));
        }
        if let Some(p) = top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            let what = format!("a top_p of {p}: it must be above 0 and at most 1");
            return Err(Error::argument(what));
        }
        if !(penalty.is_finite() && *penalty > 0.0) {
            let what = format!("a repetition_penalty of {penalty}: it must be a positive number");
            return Err(Error::argument(what));
        }
        Ok(())
    }

    /// Changes the logits of tokens that are there already.
    fn penalize(&self, logits: &mut [f32], tokens: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        for token in tokens.iter().collect::<BTreeSet<_>>() {
            if let Some(logit) = logits.get_mut(*token as usize) {
                let penalty = self.repetition_penalty as f32;
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }

    /// The next token by its `logits`.
    fn choose(&self, logits: &[f32], rng: &mut impl Rng) -> u32 {
        // The first one of the largest, as PyTorch's argmax.
        let best = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
        let largest = (0..logits.len()).fold(0, best);
        if self.temperature == 0.0 {
            return largest as u32;
        }
        let max = f64::from(logits[largest]);
        let weight = |logit: f32| ((f64::from(logit) - max) / self.temperature).exp();
        let mut tokens: Vec<(u32, f64)> =
            (0..).zip(logits).map(|(token, &logit)| (token, weight(logit))).collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1)); // stable: ties in the order of the tokens
        tokens.truncate(self.top_k.unwrap_or(usize::MAX));
        if let Some(p) = self.top_p {
            let all: f64 = tokens.iter().map(|(_, weight)| weight).sum();
            let mut sum = 0.0;
            let before = |(_, weight): &(u32, f64)| {
                let is_kept = sum < p * all;
                sum += weight;
                is_kept
            };
            let kept = tokens.iter().copied().take_while(before).collect();
            tokens = kept;
        }
        let all: f64 = tokens.iter().map(|(_, weight)| weight).sum();
        let mut place = rng.random::<f64>() * all;
        for (token, weight) in &tokens {
            if place < *weight {
                return *token;
            }
            place -= weight;
        }
        tokens.last().map_or(largest as u32, |(token, _)| *token)
    }
}

impl CausalLm {
    /// Continues `prompt` and returns the new tokens. `next` gets each of them as soon as it is known. The text ends at the
    /// latest where the model has no more [positions](Self::context).
    ///
    /// The bits of a token's logits depend neither on the cache nor on how many tokens are computed together
    /// ([`ops::with_independent_rows`]).
    ///
    /// # Errors
    /// A meaningless configuration, no prompt, a token that is not in the vocabulary, a prompt that takes all positions, or
    /// logits that are not numbers.
    pub fn generate(
        &self,
        prompt: &[u32],
        config: &GenerationConfig,
        mut next: impl FnMut(u32),
    ) -> Result<Vec<u32>> {
        config.check()?;
        if prompt.is_empty() {
            return Err(Error::argument("no tokens to continue: begin with one at least"));
        }
        if prompt.len() >= self.context() {
            let (count, positions) = (prompt.len(), self.context());
            let what =
                format!("{count} tokens to continue, but the model has {positions} positions");
            return Err(Error::argument(what));
        }
        let most = prompt.len().saturating_add(config.max_new_tokens).min(self.context());
        let most = most.min(config.max_length.unwrap_or(usize::MAX)).max(prompt.len());
        let mut cache = config.use_cache.then(|| Cache::new(most));
        let mut rng = candelabrum_nn::seed::rng(config.seed);
        let mut tokens = prompt.to_vec();
        let mut seen = 0;
        while tokens.len() < most {
            let mut logits = self.params().in_mode(false, || {
                ops::with_independent_rows(|| self.last_logits(&tokens[seen..], cache.as_mut()))
            })?;
            if cache.is_some() {
                seen = tokens.len();
            }
            if let Some(token) = logits.iter().position(|logit| logit.is_nan()) {
                let what = format!(
                    "the logits behind token {} are not numbers (that of token {token} is NaN): the weights have overflowed \
                     or are damaged; take them in f32 or bf16, or from before the training went wrong",
                    tokens.len()
                );
                return Err(Error::argument(what));
            }
            config.penalize(&mut logits, &tokens);
            let token = config.choose(&logits, &mut rng);
            if config.stop.contains(&token) {
                break;
            }
            tokens.push(token);
            next(token);
        }
        Ok(tokens.split_off(prompt.len()))
    }

    /// The logits behind the last of `tokens`.
    fn last_logits(&self, tokens: &[u32], cache: Option<&mut Cache>) -> CandleResult<Vec<f32>> {
        let tokens = Tensor::new(tokens, self.device())?.unsqueeze(0)?;
        let states = match cache {
            Some(cache) => self.states_cached(&tokens, cache)?,
            None => self.states(&tokens)?,
        };
        let last = states.narrow(1, states.dim(1)? - 1, 1)?.detach();
        self.logits(&last)?.flatten_all()?.to_dtype(DType::F32)?.to_vec1()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_respect_their_limits() {
        let logits = [1.0, 3.0, 2.0, 3.0, -9.0];
        let draws = |config: GenerationConfig| {
            let mut rng = candelabrum_nn::seed::rng(1);
            let mut counts = [0_u32; 5];
            for _ in 0..2000 {
                counts[config.choose(&logits, &mut rng) as usize] += 1;
            }
            counts
        };
        let greedy = GenerationConfig::default();
        assert_eq!(draws(greedy.clone()), [0, 2000, 0, 0, 0]);
        let warm = GenerationConfig { temperature: 1.0, ..greedy };
        let two = draws(GenerationConfig { top_k: Some(2), ..warm.clone() });
        assert_eq!([two[0], two[2], two[4]], [0, 0, 0]);
        assert!(two[1].abs_diff(two[3]) < 200, "{two:?}");
        // The two largest have a probability of 0.79 together.
        assert_eq!(draws(GenerationConfig { top_p: Some(0.7), ..warm.clone() }), two);
        let three = draws(GenerationConfig { top_p: Some(0.85), ..warm.clone() });
        assert_eq!([three[0], three[4]], [0, 0]);
        let all = draws(warm);
        // exp(-2) of 2 + exp(-1) + exp(-2) is 5.4%.
        assert!((60..160).contains(&all[0]), "{all:?}");
    }
}
