//! Keys of other people's files that change nothing here.
//!
//! A key is in a table where it has no effect on what this crate computes, whatever its value is, or where it has none at
//! certain values. The reason stands beside the keys. What is in no table, and is not read, is refused
//! ([`Config::finish`](crate::config::Config::finish)). `scripts/transformers_keys.py` lists the keys of the classes of
//! transformers, and a test walks over all of them.

use serde_json::Value;

/// Keys without effect, for one reason.
#[derive(Debug)]
pub(crate) struct Neutral {
    /// Why the keys change nothing or, with `values`, what other values would ask for.
    why: &'static str,
    /// The only values without effect, as a list in JSON. Without one, no value has an effect.
    values: Option<&'static str>,
    /// With a space between them. A star at the end of a key stands for any characters.
    keys: &'static str,
}

/// Keys that have no effect, whatever their values are.
const fn any(why: &'static str, keys: &'static str) -> Neutral {
    Neutral { why, values: None, keys }
}

/// Keys that have no effect at `values`. Other values ask for what `why` says.
const fn only(values: &'static str, why: &'static str, keys: &'static str) -> Neutral {
    Neutral { why, values: Some(values), keys }
}

impl Neutral {
    /// What a key asks for that is not neutral by these tables, or nothing if no table knows the key. `None` for a neutral
    /// key.
    pub(crate) fn refuses(tables: &[&[Self]], key: &str, value: &Value) -> Option<&'static str> {
        let known = tables
            .iter()
            .copied()
            .flatten()
            .find(|entry| entry.keys.split_whitespace().any(|one| names(one, key)));
        let Some(known) = known else { return Some("") };
        let values = known.values.map(serde_json::from_str::<Vec<Value>>);
        match values {
            None => None,
            // 0 and 0.0 are one number.
            Some(Ok(values)) if values.iter().any(|one| same(one, value)) => None,
            Some(_) => Some(known.why),
        }
    }
}

fn names(pattern: &str, key: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => key.starts_with(start),
        None => pattern == key,
    }
}

fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Of `config.json`, for every family.
pub(crate) const CONFIG: &[Neutral] = &[
    any(
        "who wrote the file, and from what",
        "architectures transformers_version _name_or_path name_or_path _commit_hash model_name \
         finetuning_task task_specific_params is_llama_config transformers.js_config \
         unsloth_version unsloth_fixed unsloth_training_args tokenizer_class processor_class \
         language",
    ),
    any(
        "parameters have the type of the store, whatever the type in the files is",
        "dtype torch_dtype use_bfloat16",
    ),
    any(
        "the initial values of parameters that no file has, which have a scale of their own here",
        "initializer_range initializer_factor",
    ),
    any(
        "how Python computes the same numbers, or what it returns besides",
        "use_cache output_attentions output_hidden_states output_past return_dict torchscript \
         gradient_checkpointing chunk_size_feed_forward attn_implementation _attn_implementation \
         _attn_implementation_autoset _attn_implementation_internal \
         _experts_implementation_internal experts_implementation _flash_attn_2_enabled \
         tie_last_hidden_states tf_legacy_loss keys_to_ignore_at_inference pretraining_tp \
         base_model_tp_plan base_model_pp_plan memory_efficient",
    ),
    any(
        "the probabilities of an attention have no dropout here",
        "attention_dropout attention_probs_dropout_prob attn_pdrop",
    ),
    any(
        "the tokens of texts are those of the tokenizer and of generation_config.json",
        "bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id \
         unk_token_id",
    ),
    any(
        "settings of a generation, of which transformers reads generation_config.json alone",
        "max_length max_new_tokens min_length min_new_tokens early_stopping max_time stop_strings \
         do_sample num_beams num_beam_groups penalty_alpha temperature top_k top_p min_p top_h \
         typical_p epsilon_cutoff eta_cutoff diversity_penalty repetition_penalty \
         encoder_repetition_penalty length_penalty no_repeat_ngram_size \
         encoder_no_repeat_ngram_size bad_words_ids force_words_ids renormalize_logits \
         constraints forced_bos_token_id forced_eos_token_id remove_invalid_values \
         exponential_decay_length_penalty suppress_tokens begin_suppress_tokens \
         forced_decoder_ids sequence_bias token_healing guidance_scale num_return_sequences \
         output_scores output_logits return_dict_in_generate decoder_start_token_id \
         cache_implementation prompt_lookup_num_tokens prefix",
    ),
    only(
        "[false]",
        "this model is one stack, and no encoder with a decoder",
        "is_encoder_decoder add_cross_attention tie_encoder_decoder",
    ),
    only("[{}, []]", "layers without some of their heads", "pruned_heads"),
    only("[{}, []]", "layers of different sizes", "per_layer_config"),
    only(
        "[{}]",
        "code of the model's own, which is not run: if the model is a plain one of its model_type, accept the key",
        "auto_map",
    ),
    only(
        "[]",
        "weights that another library has quantised: take the folder without quantisation, or a GGUF file",
        "quantization_config",
    ),
    only("[1.0]", "rotary positions of a part of each head", "partial_rotary_factor"),
    only("[false]", "another order of rotary positions", "rope_interleaved use_mrope"),
];

/// Of BERT, RoBERTa, DistilBERT and ViT.
pub(crate) const ENCODER: &[Neutral] = &[
    only("[false]", "an encoder that computes as a decoder", "is_decoder"),
    any("a head of the pretraining, which no model here has", "tie_word_embeddings tie_weights_"),
    any(
        "a pooler of the first releases",
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers \
         pooler_size_per_head pooler_type",
    ),
    any("the first values of a table that the files have", "sinusoidal_pos_embds"),
    any("heads of other tasks", "qa_dropout encoder_stride pooler_act pooler_output_size"),
];

/// Of Llama, Mistral and Qwen.
pub(crate) const LLAMA: &[Neutral] = &[
    any("every model of these families is one", "is_decoder"),
    only("[false]", "biases that a family does not have", "attention_bias mlp_bias"),
];

/// Of GPT-2.
pub(crate) const GPT2: &[Neutral] = &[
    any("every model of this family is one", "is_decoder"),
    any(
        "heads of other tasks",
        "summary_type summary_use_proj summary_activation summary_proj_to_labels \
         summary_first_dropout",
    ),
    any("an order of operations in half precision", "reorder_and_upcast_attn"),
    any("an old name of n_positions, which transformers does not read", "n_ctx"),
];

/// Of `rope_parameters` and `rope_scaling`.
pub(crate) const ROTARY: &[Neutral] = &[
    only("[1.0]", "rotary positions of a part of each head", "partial_rotary_factor"),
    only("[true]", "a variant of yarn", "truncate"),
    only("[]", "a variant of yarn", "mscale mscale_all_dim"),
];

/// Of a model that has no head of classes.
pub(crate) const WITHOUT_CLASSES: &[Neutral] = &[any(
    "the head of a classifier, which this model does not have",
    "id2label label2id num_labels _num_labels problem_type classifier_dropout \
         seq_classif_dropout classifier_activation classifier_bias classifier_pooling \
         sentence_transformers",
)];

/// Of a classifier.
pub(crate) const CLASSES: &[Neutral] = &[
    any("names of classes, which the saved model gets anew", "label2id _num_labels"),
    any("how another library shows the logits", "sentence_transformers"),
];

/// Of `adapter_config.json`, `peft`'s `LoraConfig`.
pub(crate) const ADAPTER: &[Neutral] = &[
    any(
        "what the adapter is for, who made it, and of which model",
        "task_type auto_mapping peft_version base_model_name_or_path revision inference_mode",
    ),
    any(
        "the tensors say which layers have adapters",
        "target_modules exclude_modules layers_to_transform layers_pattern",
    ),
    any("the tensors say whether two tables are one", "ensure_weight_tying"),
    any(
        "how initial values are computed, which the tensors replace",
        "loftq_config eva_config corda_config lora_ga_config",
    ),
    any(
        "how Python's layers store and compute the same",
        "fan_in_fan_out runtime_config megatron_core",
    ),
    any("a part of use_qalora", "qalora_group_size"),
    only("[\"none\"]", "trained biases", "bias"),
    only("[false]", "trained biases", "lora_bias"),
    only("[false]", "inputs that are pooled", "use_qalora"),
    only("[{}]", "another rank or alpha in some layers", "rank_pattern alpha_pattern"),
    only("[[]]", "layers that are used several times", "layer_replication"),
    only("[[]]", "adapters of parameters that are no linear layers", "target_parameters"),
    only("[[], {}]", "single rows of a table of tokens", "trainable_token_indices"),
    only("[[]]", "adapters that work behind certain tokens alone", "alora_invocation_tokens"),
    only(
        "[false]",
        "another kind of adapter",
        "arrow_config kasa_config monteclora_config velora_config use_bdlora megatron_config \
         enable_lora merge_weights",
    ),
];

/// Of a GGUF file: its sections.
pub(crate) const GGUF: &[Neutral] = &[
    any("how the file was made", "quantize imatrix mradermacher"),
    any("read with the tokenizer", "tokenizer"),
    any("read with the parts of a file in several parts", "split"),
];

/// Of `general` in a GGUF file.
pub(crate) const GGUF_GENERAL: &[Neutral] = &[
    any(
        "who made the file, and from what",
        "name author version organization finetune basename description quantized_by size_label license* url doi uuid \
         repo_url source.* source_url base_model.* dataset.* datasets tags languages quantization_version file_type \
         alignment",
    ),
    any("read as a generation_config.json", "sampling.*"),
    only("[\"model\"]", "a file that is no model", "type"),
];

/// Of the architecture in a GGUF file.
pub(crate) const GGUF_MODEL: &[Neutral] = &[
    any("whether the training knew the scaling", "rope.scaling.finetuned"),
    any("how an embedding is made of the states, which are the same", "pooling_type"),
    only("[\"Meta AI original pth\"]", "another order of the rows", "tensor_data_layout"),
    only("[true]", "attention to later tokens", "attention.causal"),
    only("[0]", "experts", "expert_count expert_used_count"),
    only(
        "[0.0]",
        "other scores of the attention",
        "attention.clamp_kqv attention.max_alibi_bias attention.sliding_window",
    ),
    only("[0.0, 1.0]", "scaled numbers", "logit_scale residual_scale embedding_scale"),
    only("[-1.0, 1.0]", "a variant of yarn", "rope.scaling.yarn_ext_factor"),
    only("[1.0]", "a variant of yarn", "rope.scaling.yarn_attn_factor"),
    only("[0.0]", "a variant of yarn", "rope.scaling.yarn_log_multiplier rope.scaling.alpha"),
];

/// Of `tokenizer` in a GGUF file.
pub(crate) const GGUF_TOKENIZER: &[Neutral] = &[
    any(
        "byte-level BPE has merges and no scores",
        "ggml.scores ggml.precompiled_charsmap ggml.token_type_count",
    ),
    any(
        "tokens that no text gets by itself",
        "ggml.eot_token_id ggml.eom_token_id ggml.seperator_token_id ggml.cls_token_id ggml.mask_token_id \
         ggml.fim_* ggml.prefix_token_id ggml.suffix_token_id ggml.middle_token_id",
    ),
    any("templates beside the default one", "chat_templates chat_template.*"),
    any("the same tokenizer in another form", "huggingface.json"),
    only(
        "[false]",
        "other spaces in the tokens",
        "ggml.add_space_prefix ggml.remove_extra_whitespaces",
    ),
    only("[false]", "a token between the texts of a pair", "ggml.add_sep_token"),
];

/// Of `tokenizer_config.json` and `special_tokens_map.json`.
pub(crate) const TOKENIZER_CONFIG: &[Neutral] = &[
    any(
        "who wrote the file, and which class of Python reads it",
        "tokenizer_class processor_class name_or_path _name_or_path tokenizer_file special_tokens_map_file vocab_file \
         merges_file backend is_local local_files_only files_loaded init_inputs use_fast device_map \
         transformers_version unsloth_version from_slow cache_dir added_tokens_file verbose",
    ),
    any(
        "the datasets cut and pad: at the end, and padding is hidden",
        "model_max_length max_length max_len truncation truncation_strategy stride padding padding_side pad_to_multiple_of \
         pad_to_max_length pad_token_type_id return_token_type_ids return_tensors model_input_names max_len_single_sentence \
         max_len_sentences_pair",
    ),
    any(
        "transformers does not read the flags where tokenizer.json has a post-processor",
        "add_bos_token add_eos_token",
    ),
    any(
        "settings of the tokenizer without tokenizer.json, which has them",
        "do_basic_tokenize never_split wordpieces_prefix do_lower_case strip_accents tokenize_chinese_chars \
         add_prefix_space trim_offsets errors legacy sp_model_kwargs use_default_system_prompt remove_space keep_accents \
         spaces_between_special_tokens unk_id byte_fallback vocab_size additional_special_tokens_ids",
    ),
    any(
        "the spaces of decoded texts, which the decoder of tokenizer.json writes",
        "clean_up_tokenization_spaces",
    ),
    any(
        "the form of an answer, which the program reads",
        "response_template response_schema chat_control_tokens",
    ),
    only(
        "[{}]",
        "code of the tokenizer's own, which is not run: if tokenizer.json does the same, accept the key",
        "auto_map",
    ),
    only("[false]", "special tokens that are divided in a text", "split_special_tokens"),
    only(
        "[false]",
        "other spaces in decoded texts",
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    ),
    only("[false]", "a regular expression instead of that of tokenizer.json", "fix_mistral_regex"),
];

/// Of `generation_config.json`.
pub(crate) const GENERATION_CONFIG: &[Neutral] = &[
    any("who wrote the file, and from what", "transformers_version _from_model_config"),
    any("tokens that no text gets by itself", "bos_token_id pad_token_id decoder_start_token_id"),
    any(
        "how Python computes the same tokens, or what it returns besides",
        "use_cache cache_implementation cache_config max_cache_len compile_config disable_compile low_memory \
         prefill_chunk_size continuous_batching_config output_attentions output_hidden_states output_scores output_logits \
         return_dict_in_generate num_return_sequences",
    ),
    any(
        "guesses of several tokens at once, which the model then checks",
        "is_assistant num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold \
         prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind \
         assistant_ensemble_weight speculation_type use_mtp",
    ),
    any("settings of several beams, of which there is one", "early_stopping length_penalty"),
    only("[1]", "several beams", "num_beams num_beam_groups"),
    only(
        "[0.0]",
        "another choice of the tokens",
        "min_p top_h epsilon_cutoff eta_cutoff diversity_penalty penalty_alpha",
    ),
    only(
        "[1.0]",
        "another choice of the tokens",
        "typical_p encoder_repetition_penalty guidance_scale",
    ),
    only(
        "[0]",
        "a rule of which tokens may follow",
        "no_repeat_ngram_size encoder_no_repeat_ngram_size",
    ),
    only("[0]", "a least length", "min_length min_new_tokens"),
    only(
        "[[]]",
        "a rule of which tokens may follow",
        "bad_words_ids force_words_ids suppress_tokens begin_suppress_tokens sequence_bias constraints dola_layers \
         forced_bos_token_id forced_eos_token_id exponential_decay_length_penalty watermarking_config",
    ),
    only("[[]]", "texts that end a text, which are not one token each", "stop_strings"),
    only(
        "[false]",
        "another choice of the tokens",
        "renormalize_logits remove_invalid_values token_healing",
    ),
    only("[]", "a limit of time", "max_time"),
];

/// Of `1_Pooling/config.json` of sentence-transformers.
pub(crate) const POOLING: &[Neutral] =
    &[only("[true]", "prompts that do not count", "include_prompt")];

/// Of `sentence_bert_config.json` and `config_sentence_transformers.json`.
pub(crate) const SENTENCES: &[Neutral] = &[
    any(
        "who wrote the file, and how Python compares embeddings",
        "__version__ similarity_fn_name model_type transformer_task modality_config module_output_name \
         tokenizer_name_or_path",
    ),
    any("prompts that Python puts before a text if the program names one", "prompts"),
    only("[]", "a prompt before every text", "default_prompt_name"),
    only("[false]", "lower case before the tokenizer", "do_lower_case"),
    only(
        "[{}]",
        "arguments of Python's classes",
        "model_args config_args tokenizer_args processing_kwargs",
    ),
];

/// Of `preprocessor_config.json`.
pub(crate) const IMAGE_PROCESSOR: &[Neutral] = &[
    any(
        "which class of Python prepares the images, and in which form",
        "image_processor_type feature_extractor_type processor_class _processor_class _valid_processor_keys \
         return_tensors input_data_format data_format device disable_grouping default_to_square do_convert_rgb \
         image_seq_length",
    ),
    only("[true]", "images in another size or in bytes", "do_resize do_rescale"),
    only("[2]", "another filter than the bilinear one", "resample"),
    only("[false]", "borders around the image", "do_pad"),
    any("the size of borders that are not there", "pad_size size_divisor"),
];
