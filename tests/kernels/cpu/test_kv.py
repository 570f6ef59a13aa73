"""Storing and copying slots, against the same with numpy's indices."""

import numpy as np
import pytest

from batchpaged.kernels.cpu.kv import copy_slots, store_keys, store_values

GROUPS, BLOCKS = 3, 6


def caches(head_dim: int, value_dim: int, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(block_size)
    keys = rng.standard_normal((GROUPS, BLOCKS, head_dim, block_size), dtype=np.float32)
    return keys, rng.standard_normal((GROUPS, BLOCKS, block_size, value_dim), dtype=np.float32)


@pytest.mark.parametrize("block_size", [1, 5, 8, 128])
@pytest.mark.parametrize("dim", [1, 7, 24])
def test_stored_in_their_slots_and_nowhere_else(dim: int, block_size: int) -> None:
    keys, values = caches(dim, dim, block_size)
    expected_keys, expected_values = keys.copy(), values.copy()
    rng = np.random.default_rng(dim)
    slots = rng.permutation(BLOCKS * block_size)[: BLOCKS * block_size // 2 + 1]
    new = rng.standard_normal((len(slots), GROUPS, dim), dtype=np.float32)
    store_keys(new, keys, slots)
    store_values(new, values, slots)
    for i, slot in enumerate(slots):
        expected_keys[:, slot // block_size, :, slot % block_size] = new[i]
        expected_values[:, slot // block_size, slot % block_size] = new[i]
    assert np.array_equal(keys, expected_keys) and np.array_equal(values, expected_values)


def test_what_is_not_finite_is_stored_as_zero() -> None:
    keys, values = caches(4, 4, 8)
    new = np.full((1, GROUPS, 4), 2, dtype=np.float32)
    new[0, :, :3] = [np.nan, np.inf, -np.inf]
    store_keys(new, keys, np.array([9]))
    store_values(new, values, np.array([9]))
    assert (keys[:, 1, :, 1] == [0, 0, 0, 2]).all() and (values[:, 1, 1] == [0, 0, 0, 2]).all()


def test_no_slots() -> None:
    keys, values = caches(4, 4, 8)
    before = keys.copy()
    store_keys(np.zeros((0, GROUPS, 4), np.float32), keys, np.zeros(0, np.int64))
    assert np.array_equal(keys, before)


def test_copies_read_all_sources_first() -> None:
    keys, values = caches(3, 5, 8)
    expected_keys, expected_values = keys.copy(), values.copy()
    copies = np.array([(0, 1, 5), (1, 2, 8), (2, 3, 0), (4, 0, 1)])
    for source, target, n in copies:
        expected_keys[:, target, :, :n] = keys[:, source, :, :n]
        expected_values[:, target, :n] = values[:, source, :n]
    copy_slots(keys, values, copies)
    assert np.array_equal(keys, expected_keys) and np.array_equal(values, expected_values)
