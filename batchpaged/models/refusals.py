"""Why a model cannot be run, from its configuration alone: each function gives a reason, or None.

What is needed: one attention call per layer through transformers' attention interface, causal, whose keys and values
depend only on the tokens before them. Then a prefix's blocks can be shared.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    ModelClass = type[PreTrainedModel]

# Sub-configurations that describe parts of one language model; any other means that several models are combined.
_OWN_PARTS = {"attn_config", "ffn_config"}
_LAYER_TYPES = {"full_attention", "sliding_attention", "attention"}
_LAYER_REASONS = {
    "chunked_attention": "attend within fixed chunks",
    "conv": "keep a convolution's state",
    "indexed_attention": "choose which tokens to attend to",
    "linear_attention": "keep a recurrent state instead of keys and values",
    "mamba": "keep a recurrent state instead of keys and values",
}
# These look as if they could run; what they do inside cannot be seen in a configuration.
_KNOWN_TYPES = {
    "diffllama": "it computes attention twice in every layer",
    "doge": "it makes an attention mask of its own",
    "dory": "it runs its layers several times for each token",
    "hrm_text": "it runs its layers several times for each token",
    "lfm2": "some of its layers keep a convolution's state",
    "lfm2_moe": "some of its layers keep a convolution's state",
    "longcat_flash": "it computes attention twice in every layer",
    "minimax_m3_vl_text": "its layers choose which tokens to attend to",
}


def first_reason(config: "PreTrainedConfig") -> str | None:
    """The first thing that stands in the way of running a model with this configuration."""
    return next((reason for reason in _reasons(config) if reason is not None), None)


def _reasons(config: "PreTrainedConfig") -> Iterator[str | None]:
    """From what the model is to how it is built, so that the first reason is the plainest one."""
    yield several_models(config)
    yield encoder(config)
    model_class = causal_class(config)
    if model_class is None:
        yield "transformers has no causal language model of this type"
        return
    yield other_task(config, model_class)
    yield recurrent_state(config, model_class)
    yield _KNOWN_TYPES.get(config.model_type)
    yield shared_keys_and_values(config)
    yield alibi(config)
    yield no_attention_interface(model_class)


def causal_class(config: "PreTrainedConfig") -> "ModelClass | None":
    """The class that transformers' AutoModelForCausalLM would make of this configuration."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return found[0] if isinstance(found, (tuple, list)) else found


def several_models(config: "PreTrainedConfig") -> str | None:
    parts = sorted(name.removesuffix("_config") for name in set(config.sub_configs) - _OWN_PARTS)
    if not parts:
        return None
    text = config.get_text_config()
    can_run_text = text is not config and first_reason(text) is None
    hint = f"; a checkpoint of its text part alone ({text.model_type}) would do" if can_run_text else ""
    return f"it is made of several models ({', '.join(parts)}), and only plain text models can be run{hint}"


def encoder(config: "PreTrainedConfig") -> str | None:
    if config.is_encoder_decoder:
        return "it is an encoder-decoder model"
    if hasattr(config, "is_decoder") and hasattr(config, "add_cross_attention"):  # the BERT family
        return "it is an encoder: its attention looks both ways"
    return None


def other_task(config: "PreTrainedConfig", model_class: "ModelClass") -> str | None:
    """A classifier or reward model has the same layers and no language model head."""
    saved_as = config.architectures or []
    endings = ("ForCausalLM", "LMHeadModel", model_class.__name__)
    if not saved_as or any(name.endswith(endings) for name in saved_as):
        return None
    return f"its checkpoint holds {saved_as[0]}, not a language model ({model_class.__name__})"


def recurrent_state(config: "PreTrainedConfig", model_class: "ModelClass") -> str | None:
    odd = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
    if odd:
        return f"some of its layers ({odd[0]}) {_LAYER_REASONS.get(odd[0], 'keep more than keys and values')}"
    if model_class._is_stateful:
        return "its layers keep a recurrent state instead of keys and values"
    return None


def shared_keys_and_values(config: "PreTrainedConfig") -> str | None:
    num_shared = getattr(config, "num_kv_shared_layers", None)
    return f"{num_shared} of its layers use the keys and values of other layers" if num_shared else None


def alibi(config: "PreTrainedConfig") -> str | None:
    attention = getattr(config, "attn_config", None)
    has_alibi = getattr(config, "alibi", False) or getattr(attention, "alibi", False) or config.model_type == "bloom"
    if not has_alibi:
        return None
    return "it tells positions apart by ALiBi biases, which the attention interface does not pass on"


def no_attention_interface(model_class: "ModelClass") -> str | None:
    """A class may use the interface without saying so, hence the look into its module."""
    if model_class._supports_attention_backend:
        return None
    if hasattr(sys.modules[model_class.__module__], "ALL_ATTENTION_FUNCTIONS"):
        return None
    return f"its class {model_class.__name__} does not use transformers' attention interface"
