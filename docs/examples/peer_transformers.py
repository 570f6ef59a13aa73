"""Times transformers' generate on the prompts that peer_prompts.py wrote: batches of 16 prompts of similar length.

    python docs/examples/peer_transformers.py prompts.json MODEL_FOLDER 32
"""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

BATCH_SIZE = 16


def padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask [num_prompts, longest], padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


@torch.inference_mode()
def main(source: str, model_folder: str, num_tokens: str) -> None:
    with open(source, encoding="utf-8") as file:
        prompts = sorted(json.load(file), key=len)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    length = {"max_new_tokens": int(num_tokens), "min_new_tokens": int(num_tokens), "do_sample": False}
    started = time.perf_counter()
    for start in range(0, len(prompts), BATCH_SIZE):
        ids, mask = padded(prompts[start : start + BATCH_SIZE])
        model.generate(ids, attention_mask=mask, **length)
    seconds = time.perf_counter() - started
    print(f"transformers generate: {len(prompts) / seconds:.3f} rows/s, {seconds:.1f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
