"""Whether a model can be run, decided by its configuration before any row or weight is read."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from batchpaged.errors import ModelError
from batchpaged.models.quiet import quiet_transformers
from batchpaged.models.refusals import first_reason

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def check_supported(config: "PreTrainedConfig", max_model_len: int) -> None:
    """Raises ModelError with the reason why this model, or this length with it, cannot be run."""
    with quiet_transformers():
        reason = first_reason(config)
    if reason is not None:
        raise ModelError(
            f"a model of type {config.model_type!r} cannot be run: {reason}. "
            "`batchpaged models` lists the types that can"
        )
    _check_length(config, max_model_len)


def supported_architectures() -> list[str]:
    """The model types that can be run as they usually come, sorted; imports every model file of transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    with quiet_transformers():
        return sorted(name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if _is_supported_by_default(name))


def _is_supported_by_default(model_type: str) -> bool:
    from transformers import CONFIG_MAPPING

    try:
        return first_reason(CONFIG_MAPPING[model_type]()) is None
    except Exception:  # whatever a class raises: without a default configuration nothing can be promised
        return False


def _check_length(config: "PreTrainedConfig", max_model_len: int) -> None:
    num_positions = getattr(config, "max_position_embeddings", None)
    if num_positions is not None and max_model_len > num_positions:
        raise ModelError(
            f"model.max_model_len is {max_model_len}, but this model has {num_positions} positions: "
            f"set model.max_model_len to {num_positions} or less"
        )
    for switch in _rope_switches(config):
        if max_model_len > switch:
            raise ModelError(
                f"model.max_model_len is {max_model_len}, but this model changes its rotary positions for the whole "
                f"batch once any row in it is longer than {switch} tokens, so that rows would depend on each other: "
                f"set model.max_model_len to {switch} or less"
            )


def _rope_switches(config: "PreTrainedConfig") -> Iterator[int]:
    """Lengths beyond which the rotary table depends on the longest row of a batch.

    Of the scaling types, `dynamic` does so beyond max_position_embeddings, which is refused anyway.
    """
    for parameters in _rope_parameter_sets(config):
        switch = parameters.get("original_max_position_embeddings")
        if parameters.get("rope_type") == "longrope" and switch is not None:
            yield int(switch)


def _rope_parameter_sets(config: "PreTrainedConfig") -> list[dict[str, Any]]:
    """One set for all layers, or one for each layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]
