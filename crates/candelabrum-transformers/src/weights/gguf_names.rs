//! The names of tensors in GGUF files, as Hugging Face has them.

/// Hugging Face's name of a tensor of the Llama family. `None` for a tensor that no model of ours has.
pub(super) fn hugging_face_name(name: &str) -> Option<String> {
    let whole = match name {
        "token_embd.weight" => "model.embed_tokens.weight",
        "output_norm.weight" => "model.norm.weight",
        "output.weight" => "lm_head.weight",
        _ => "",
    };
    if !whole.is_empty() {
        return Some(whole.to_owned());
    }
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let number: usize = number.parse().ok()?;
    let (part, kind) = rest.rsplit_once('.')?;
    let part = match part {
        "attn_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    matches!(kind, "weight" | "bias").then(|| format!("model.layers.{number}.{part}.{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_blocks_become_names_of_layers() {
        let ours = |name| hugging_face_name(name);
        assert_eq!(ours("output.weight").as_deref(), Some("lm_head.weight"));
        let q = "model.layers.12.self_attn.q_proj.bias";
        assert_eq!(ours("blk.12.attn_q.bias").as_deref(), Some(q));
        for other in ["rope_freqs.weight", "blk.x.attn_q.weight", "blk.0.ffn_gate_exps.weight"] {
            assert_eq!(ours(other), None, "{other}");
        }
    }
}
