"""Leading slots of blocks are copied, in many caches at once; one program copies one piece of one block of one cache."""

import triton
import triton.language as tl


@triton.jit
def copy_blocks_kernel(
    source_addresses,  # int64 [num_caches]
    target_addresses,  # int64 [num_caches]
    slot_words,  # int64 [num_caches] words of one slot
    sources,  # int64 [num_copies] block ids
    targets,  # int64 [num_copies]
    num_slots,  # int64 [num_copies]
    block_size,
    WORD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    copy, cache = tl.program_id(0), tl.program_id(1)
    words_of_slot = tl.load(slot_words + cache)
    end = tl.load(num_slots + copy) * words_of_slot
    at = tl.program_id(2).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    words_of_block = words_of_slot * block_size
    source = tl.load(source_addresses + cache).to(tl.pointer_type(WORD)) + tl.load(sources + copy) * words_of_block
    target = tl.load(target_addresses + cache).to(tl.pointer_type(WORD)) + tl.load(targets + copy) * words_of_block
    tl.store(target + at, tl.load(source + at, mask=at < end), mask=at < end)
