"""Which models can be run, which cannot, and what the refusal says."""

from typing import Any

import pytest
from tiny_models import MAX_POSITIONS, REFUSED, TINY
from transformers import CONFIG_MAPPING

from batchpaged.errors import ModelError
from batchpaged.models.support import check_supported, supported_architectures


@pytest.mark.parametrize("name", TINY)
def test_supported(name: str) -> None:
    check_supported(TINY[name](), MAX_POSITIONS)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_reason(name: str) -> None:
    config, reason = REFUSED[name]
    with pytest.raises(ModelError) as refusal:
        check_supported(config(), 64)
    assert reason in str(refusal.value)
    assert repr(name.split(":")[0]) in str(refusal.value)


def test_too_long_names_the_number_to_use() -> None:
    with pytest.raises(ModelError, match=f"set model.max_model_len to {MAX_POSITIONS} or less"):
        check_supported(TINY["llama"](), MAX_POSITIONS + 1)


def test_too_long_by_another_name_for_positions() -> None:
    with pytest.raises(ModelError, match=f"to {MAX_POSITIONS} or less"):
        check_supported(TINY["gpt2"](), MAX_POSITIONS + 1)


def _longrope(model_type: str = "phi3") -> Any:
    factors = [1.0] * 8
    return CONFIG_MAPPING[model_type](
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        pad_token_id=0,
        max_position_embeddings=256,
        original_max_position_embeddings=128,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": 128,
        },
    )


def test_rotary_table_that_depends_on_the_batch_is_allowed_up_to_where_it_does() -> None:
    check_supported(_longrope(), 128)
    with pytest.raises(ModelError, match="set model.max_model_len to 128 or less"):
        check_supported(_longrope(), 129)


def test_a_kv_sharing_model_without_shared_layers_passes_that_rule() -> None:
    config, reason = REFUSED["gemma3n_text"]
    alone = config()
    alone.num_kv_shared_layers = 0
    try:
        check_supported(alone, 64)
    except ModelError as refusal:
        assert reason not in str(refusal)


def test_supported_architectures_hold_the_common_ones_and_no_refused_one() -> None:
    listed = supported_architectures()
    assert listed == sorted(set(listed))
    assert {name.split(":")[0] for name in TINY} <= set(listed)
    assert not {name for name in REFUSED if ":" not in name} & set(listed)
