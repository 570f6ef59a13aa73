"""Small random models of many architectures, and the tokens that transformers' own generate gives for them.

Weights are far larger than a real initialisation: the best token changes from step to step, and a mistake in positions,
windows, soft caps or sinks changes which one it is.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

SPECIAL_TOKENS = ("<pad>", "<bos>", "<end>")  # ids 0, 1, 2; then 256 bytes
VOCAB_SIZE = 264  # five more ids than the tokenizer knows, as real models have
MAX_POSITIONS = 512
WINDOW = 8  # tokens; test prompts should be longer
CHAT_TEMPLATE = (
    "<bos>{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

_TOKENS = {"vocab_size": VOCAB_SIZE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
_BASE = _TOKENS | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": False,
}
_HEADS = {"head_dim": 16}
_EVERY_HEAD = {"num_key_value_heads": 4}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_ALTERNATING = {
    "sliding_window": WINDOW,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_GPT2 = _TOKENS | {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": MAX_POSITIONS}
_SHARED_EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LATENT = _SHARED_EXPERTS | {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
}
_NO_PER_LAYER_INPUT = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCAB_SIZE}
_RECURRENT = "recurrent state"


def _config(model_type: str, *parts: dict[str, Any], **more: Any) -> Callable[[], PreTrainedConfig]:
    """Later parts override earlier ones."""
    values: dict[str, Any] = {}
    for part in parts or (_BASE,):
        values |= part
    return lambda: CONFIG_MAPPING[model_type](**(values | more))


# Supported ones. A name is a model type, or one with what is special about the variant after a colon.
TINY: dict[str, Callable[[], PreTrainedConfig]] = {
    "afmoe": _config("afmoe", _BASE, _HEADS, _EXPERTS, _ALTERNATING, num_dense_layers=1),
    "arcee": _config("arcee"),
    "biogpt": _config("biogpt", _BASE, _EVERY_HEAD),
    "cohere": _config("cohere", logit_scale=1.0),
    "cohere2": _config("cohere2", _BASE, _ALTERNATING, logit_scale=1.0),
    "deepseek_v2": _config("deepseek_v2", _BASE, _LATENT, v_head_dim=16, topk_method="greedy"),
    "deepseek_v3": _config("deepseek_v3", _BASE, _LATENT, v_head_dim=16),
    "deepseek_v3:equal_heads": _config("deepseek_v3", _BASE, _LATENT, qk_nope_head_dim=8, v_head_dim=16),
    "dots1": _config("dots1", _BASE, _SHARED_EXPERTS, n_shared_experts=1),
    "ernie4_5": _config("ernie4_5", _BASE, _HEADS),
    "exaone4": _config("exaone4", _BASE, _ALTERNATING),
    "gemma": _config("gemma", _BASE, _HEADS, tie_word_embeddings=True),
    "gemma2": _config("gemma2", _BASE, _HEADS, _ALTERNATING, query_pre_attn_scalar=16, attn_logit_softcapping=3.0),
    "gemma3_text": _config("gemma3_text", _BASE, _HEADS, _ALTERNATING, query_pre_attn_scalar=16),
    "gemma4_text": _config(
        "gemma4_text",
        _BASE,
        _HEADS,
        _ALTERNATING,
        _NO_PER_LAYER_INPUT,
        per_layer_config={1: {"head_dim": 32}, 3: {"head_dim": 32}},
    ),
    "glm": _config("glm", _BASE, _HEADS),
    "glm4": _config("glm4", _BASE, _HEADS),
    "gpt2": _config("gpt2", _GPT2),
    "gpt_bigcode": _config("gpt_bigcode", _GPT2, n_inner=96, multi_query=True),
    "gpt_neox": _config("gpt_neox", _BASE, _EVERY_HEAD),
    "gpt_oss": _config("gpt_oss", _BASE, _ALTERNATING, num_local_experts=4, num_experts_per_tok=2, head_dim=16),
    "granite": _config("granite", attention_multiplier=0.25, residual_multiplier=0.5, logits_scaling=0.5),
    "granitemoe": _config("granitemoe", num_local_experts=4, num_experts_per_tok=2, attention_multiplier=0.25),
    "helium": _config("helium", _BASE, _HEADS),
    "llama": _config("llama"),
    "llama:scaled_rope": _config(
        "llama",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "llama:tied": _config("llama", tie_word_embeddings=True),
    "mimo_v2_flash": _config("mimo_v2_flash", _BASE, _ALTERNATING, _SHARED_EXPERTS, head_dim=24, v_head_dim=16),
    "minicpm3": _config("minicpm3", _BASE, _LATENT, v_head_dim=16),
    "mistral": _config("mistral", sliding_window=WINDOW),
    "mixtral": _config("mixtral", _BASE, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "nemotron": _config("nemotron", _BASE, _HEADS),
    "olmo": _config("olmo", clip_qkv=2.0),
    "olmo2": _config("olmo2"),
    "olmo3": _config("olmo3", _BASE, _ALTERNATING),
    "olmoe": _config("olmoe", _BASE, _EXPERTS),
    "opt": _config("opt", _BASE, _EVERY_HEAD, ffn_dim=96, word_embed_proj_dim=64),
    "persimmon": _config("persimmon", _BASE, _EVERY_HEAD),
    "phi": _config("phi"),
    "phi3": _config("phi3"),
    "phi3:window": _config("phi3", sliding_window=WINDOW),
    "qwen2": _config("qwen2"),
    "qwen2:window": _config("qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen2_moe": _config("qwen2_moe", _BASE, _EXPERTS, shared_expert_intermediate_size=48, decoder_sparse_step=1),
    "qwen3": _config("qwen3", _BASE, head_dim=32),
    "qwen3_moe": _config("qwen3_moe", _BASE, _HEADS, _EXPERTS),
    "seed_oss": _config("seed_oss", _BASE, _HEADS),
    "smollm3": _config("smollm3", _BASE, num_hidden_layers=4, no_rope_layer_interval=2),
    "stablelm": _config("stablelm"),
    "starcoder2": _config("starcoder2", sliding_window=WINDOW),
    "youtu": _config("youtu", _BASE, _LATENT, v_head_dim=16),
}

# Refused ones, and a piece of the reason.
REFUSED: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "bamba": (_config("bamba", {}), _RECURRENT),
    "bert": (_config("bert", {}), "both ways"),
    "bloom": (_config("bloom", {}), "ALiBi"),
    "diffllama": (_config("diffllama"), "twice in every layer"),
    "falcon:alibi": (_config("falcon", {}, alibi=True), "ALiBi"),
    "gemma3": (_config("gemma3", {}), "its text part alone (gemma3_text) would do"),
    "gemma3n_text": (_config("gemma3n_text", {}), "of other layers"),
    "gpt_neo": (_config("gpt_neo", {}), "attention interface"),
    "jamba": (_config("jamba", {}), _RECURRENT),
    "lfm2": (_config("lfm2", {}), "convolution"),
    "llama4_text": (_config("llama4_text", {}), "fixed chunks"),
    "llama:classifier": (_config("llama", architectures=["LlamaForSequenceClassification"]), "not a language model"),
    "mamba": (_config("mamba", {}), _RECURRENT),
    "mpt": (_config("mpt", {}), "ALiBi"),
    "qwen3_next": (_config("qwen3_next", {}), _RECURRENT),
    "recurrent_gemma": (_config("recurrent_gemma", {}), _RECURRENT),
    "rwkv": (_config("rwkv", {}), _RECURRENT),
    "t5": (_config("t5", {}), "encoder-decoder"),
    "vit": (_config("vit", {}), "no causal language model"),
}


def tiny_model(name: str = "llama", seed: int = 0) -> PreTrainedModel:
    """One of TINY in float32, in evaluation mode, with eager attention and no end-of-text id.

    torch's global random state stays as it is.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Some versions of transformers give soft-capped models an attention that ignores the cap; eager honours all.
        model = AutoModelForCausalLM.from_config(TINY[name](), dtype=torch.float32, attn_implementation="eager")
        _randomise(model)
    model.generation_config.eos_token_id = None
    return model.eval().requires_grad_(False)


def _randomise(model: PreTrainedModel) -> None:
    """Norms and biases too: left at one and zero they would hide that they are forgotten."""
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.data.normal_(0.0, 0.2)
        else:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte; `<bos>` comes from the chat template alone."""
    tokens = (*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    pad, bos, end = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=end, chat_template=CHAT_TEMPLATE
    )


def save_tiny(folder: Path, name: str = "llama", seed: int = 0) -> Path:
    """Writes model and tokenizer as a complete model folder, for what loads a model by path."""
    tiny_model(name, seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def reference_generate(model: PreTrainedModel, token_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """The new tokens of transformers' greedy generate for one row."""
    prompt = torch.tensor([list(token_ids)], device=model.device)
    generated = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
    )
    return generated[0, prompt.shape[1] :].tolist()
