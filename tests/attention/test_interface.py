"""What transformers' models hand to the registered attention function, and what a backend gets of it."""

import threading
from types import SimpleNamespace

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from batchpaged.attention.backend import AttentionParams
from batchpaged.attention.interface import NAME, register, use_backend


class Recorder:
    """A backend that keeps its arguments and returns the queries of each token."""

    def attend(self, layer: int, query, key, value, params: AttentionParams) -> torch.Tensor:
        self.layer, self.params, self.shapes = layer, params, (query.shape, key.shape, value.shape)
        return query.transpose(0, 1)


def call(backend: Recorder, **arguments: object) -> torch.Tensor:
    register()
    query, key, value = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 3, 16), torch.randn(1, 2, 3, 8)
    with use_backend(backend):
        output, weights = AttentionInterface()[NAME](SimpleNamespace(layer_idx=5), query, key, value, None, **arguments)
    assert weights is None
    assert torch.equal(output[0].transpose(0, 1), query[0])
    return output


def test_heads_come_first_and_the_batch_axis_goes() -> None:
    backend = Recorder()
    assert call(backend).shape == (1, 3, 4, 16)
    assert backend.layer == 5
    assert backend.shapes == ((4, 3, 16), (2, 3, 16), (2, 3, 8))


def test_what_the_model_asks_for_is_passed_on() -> None:
    backend, sinks = Recorder(), torch.zeros(4)
    call(backend, scaling=0.7, sliding_window=9, softcap=30.0, s_aux=sinks, dropout=0.0, unknown=1)
    assert backend.params == AttentionParams(0.7, 9, 30.0, sinks)


def test_what_the_model_leaves_out_has_the_usual_meaning() -> None:
    backend = Recorder()
    call(backend, scaling=None, sliding_window=0)
    assert backend.params == AttentionParams(0.25, None, None, None)


def test_transformers_makes_no_mask() -> None:
    register()
    assert NAME not in AttentionMaskInterface()


def test_backends_nest_and_belong_to_one_thread() -> None:
    outer, inner, errors = Recorder(), Recorder(), []

    def other_thread() -> None:
        try:
            AttentionInterface()[NAME](SimpleNamespace(layer_idx=0), *[torch.zeros(1, 1, 1, 1)] * 3)
        except LookupError as error:
            errors.append(error)

    with use_backend(outer):
        call(inner)
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        call(outer, scaling=2.0)
    assert (inner.params.scaling, outer.params.scaling) == (0.25, 2.0)
    assert len(errors) == 1


def test_without_a_backend_nothing_is_computed() -> None:
    register()
    with pytest.raises(LookupError):
        AttentionInterface()[NAME](SimpleNamespace(layer_idx=0), *[torch.zeros(1, 1, 1, 1)] * 3)
