//! The hierarchical attention network (Yang, Yang, Dyer, He, Smola and Hovy, *Hierarchical Attention Networks for
//! Document Classification*, NAACL 2016): words make sentences and sentences make a document, by the same two
//! layers each.
//!
//! ```text
//! words      embedding -> GRU in both directions -> attention to a context vector -> sentence vector
//! sentences              GRU in both directions -> attention to a context vector -> document vector
//! document   linear layer -> classes
//! ```

use candelabrum_nn::layers::{AttentionPooling, Embedding, Gru, Linear};
use candelabrum_nn::{Model, Scope, ops};
use candle_core::{Device, Module, Result, Tensor, bail};

use crate::padding::{PADDING, trimmed};

/// The sizes of a [`Han`]. The defaults are those of the paper's section 3.3, but for the vocabulary and the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HanConfig {
    /// The number of different tokens, with the padding.
    pub vocabulary: usize,
    /// The size of a word's embedding.
    pub embedding: usize,
    /// The size of the hidden state in one direction, for words and for sentences. Vectors of sentences and documents
    /// have twice as many elements.
    pub hidden: usize,
    /// The size of the context vectors.
    pub context: usize,
    /// The number of outputs.
    pub classes: usize,
}

impl Default for HanConfig {
    fn default() -> Self {
        Self { vocabulary: 10_000, embedding: 200, hidden: 50, context: 100, classes: 2 }
    }
}

/// Tokens `(documents, sentences, words) -> (documents, classes)`. The token 0 is padding: a sentence ends before the
/// padding at its end, and a document before the empty sentences at its end.
#[derive(Debug)]
pub struct Han {
    embedding: Embedding,
    words: HanEncoder,
    sentences: HanEncoder,
    linear: Linear,
}

/// A level of the hierarchy: `(N, T, in) -> (N, 2 hidden)`.
#[derive(Debug)]
struct HanEncoder {
    gru: Gru,
    attention: AttentionPooling,
}

impl HanEncoder {
    fn new(scope: &Scope, hidden: usize, context: usize) -> Self {
        Self {
            gru: Gru::new(&scope.pp("gru"), hidden).bidirectional(),
            attention: AttentionPooling::new(&scope.pp("attention"), context),
        }
    }

    fn forward(&self, xs: &Tensor, lengths: &Tensor) -> Result<Tensor> {
        let (states, _) = self.gru.forward_lengths(xs, lengths, None)?;
        self.attention.forward_lengths(&states, lengths)
    }
}

impl Han {
    /// The network with the sizes of `config`.
    pub fn new(scope: &Scope, config: HanConfig) -> Self {
        let HanConfig { vocabulary, embedding, hidden, context, classes } = config;
        let words = Embedding::new(&scope.pp("embedding"), vocabulary, embedding);
        Self {
            embedding: words.padding_index(PADDING as usize),
            words: HanEncoder::new(&scope.pp("words"), hidden, context),
            sentences: HanEncoder::new(&scope.pp("sentences"), hidden, context),
            linear: Linear::new(&scope.pp("linear"), classes),
        }
    }

    /// The vectors of all sentences that have words, and for each place of a sentence the number of its vector. The
    /// number behind the last vector stands for an empty sentence.
    fn sentence_vectors(&self, tokens: &Tensor) -> Result<(Tensor, Vec<u32>)> {
        let lengths = ops::sequence_lengths(tokens, PADDING)?.to_vec1::<u32>()?;
        let mut filled: Vec<u32> = (0..lengths.len() as u32).collect();
        filled.retain(|&place| lengths[place as usize] > 0);
        let mut numbers = vec![filled.len().max(1) as u32; lengths.len()];
        filled.iter().zip(0..).for_each(|(&place, number)| numbers[place as usize] = number);
        let tokens = if filled.is_empty() {
            // The layers need a sentence.
            Tensor::full(PADDING, (1, tokens.dim(1)?), tokens.device())?
        } else {
            let filled = Tensor::new(filled, &Device::Cpu)?.to_device(tokens.device())?;
            tokens.index_select(&filled, 0)?
        };
        let (tokens, lengths) = trimmed(&tokens)?;
        let vectors = self.words.forward(&self.embedding.forward(&tokens)?, &lengths)?;
        Ok((vectors, numbers))
    }
}

impl Model for Han {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let [documents, sentences, _] = xs.dims()[..] else {
            bail!("tokens of shape {:?}, expected (documents, sentences, words)", xs.shape())
        };
        let (vectors, numbers) = self.sentence_vectors(&xs.flatten_to(1)?)?;
        let empty = vectors.narrow(0, 0, 1)?.zeros_like()?;
        let vectors = ops::cat(&[&vectors, &empty], 0)?;
        let numbers = Tensor::from_vec(numbers, (documents, sentences), &Device::Cpu)?;
        let lengths = ops::sequence_lengths(&numbers, vectors.dim(0)? as u32 - 1)?;
        let numbers = numbers.to_device(xs.device())?;
        let sentences = ops::embedding(&vectors, &numbers, None)?; // (documents, sentences, 2 hidden)
        self.linear.forward(&self.sentences.forward(&sentences, &lengths)?)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;
    use candle_core::DType;

    use super::*;

    const CONFIG: HanConfig =
        HanConfig { vocabulary: 30, embedding: 6, hidden: 4, context: 5, classes: 3 };

    /// The scores of documents that are padded to these numbers of sentences and words.
    fn scores(
        model: &Han,
        documents: &[&[&[u32]]],
        [sentences, words]: [usize; 2],
    ) -> Result<Vec<Vec<f32>>> {
        let mut tokens = vec![0; documents.len() * sentences * words];
        for (document, tokens) in documents.iter().zip(tokens.chunks_mut(sentences * words)) {
            for (sentence, tokens) in document.iter().zip(tokens.chunks_mut(words)) {
                tokens[..sentence.len()].copy_from_slice(sentence);
            }
        }
        let shape = (documents.len(), sentences, words);
        model.forward(&Tensor::from_vec(tokens, shape, &Device::Cpu)?)?.to_vec2()
    }

    #[test]
    fn padding_changes_nothing() -> Result<()> {
        let model = Han::new(&Params::new(0).root(), CONFIG);
        let (short, long): (&[&[u32]], &[&[u32]]) =
            (&[&[3, 4], &[5]], &[&[7, 8, 9], &[], &[2], &[10, 29, 28, 27]]);
        let both = scores(&model, &[short, long, &[]], [6, 7])?;
        let alone = [scores(&model, &[short], [2, 2])?, scores(&model, &[long], [4, 4])?];
        for (row, alone) in both.iter().zip(&alone) {
            assert!(row.iter().zip(&alone[0]).all(|(a, b)| (a - b).abs() < 1e-6), "{row:?}");
        }
        assert_ne!(both[0], both[1]);
        // A document of nothing has the scores of the last layer's bias.
        assert_eq!(scores(&model, &[&[]], [3, 2])?[0], both[2]);
        Ok(())
    }

    #[test]
    fn a_batch_without_documents_has_no_scores() -> Result<()> {
        let params = Params::new(0);
        let model = Han::new(&params.root(), CONFIG);
        let scores = model.forward(&Tensor::zeros((0, 3, 4), DType::U32, &Device::Cpu)?)?;
        assert_eq!(scores.dims(), [0, CONFIG.classes]);
        let gradients = scores.sum_all()?.backward()?;
        for param in params.list() {
            let Some(gradient) = gradients.get(param.tensor()) else { continue };
            assert_eq!(gradient.abs()?.sum_all()?.to_scalar::<f32>()?, 0.0, "{}", param.name());
        }
        Ok(())
    }

    #[test]
    fn every_parameter_has_its_place_and_a_gradient() -> Result<()> {
        let params = Params::new(0);
        let model = Han::new(&params.root(), CONFIG);
        let tokens = Tensor::arange(0_u32, 24, &Device::Cpu)?.reshape((2, 3, 4))?;
        let loss =
            model.loss(&model.forward(&tokens)?, &Tensor::new(&[0_u32, 2], &Device::Cpu)?)?;
        let gradients = loss.backward()?;
        assert!(params.list().iter().all(|param| gradients.get(param.tensor()).is_some()));
        // Embedding, GRU of words, attention, GRU of sentences, attention, linear.
        let gru = |inputs: usize| 2 * 12 * (inputs + 4 + 2);
        let attention = 5 * 8 + 5 + 5;
        assert_eq!(params.element_count(), 180 + gru(6) + attention + gru(8) + attention + 27);
        assert!(model.forward(&tokens.flatten_to(1)?).is_err());
        Ok(())
    }
}
