"""Renders docs/examples/xquad.yaml's prompts for other programs, with transformers alone, and counts what they share.

    python docs/examples/peer_prompts.py xquad_en_dev.parquet MODEL_FOLDER prompts.json
"""

import json
import sys

import pyarrow.parquet as pq
from transformers import AutoTokenizer

SYSTEM = (
    "You answer questions from the given context only. "
    "Reply with the shortest phrase from the context that answers the question."
)


def render(rows: list[dict], model: str) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = []
    for row in rows:
        user = "Context:\n" + "\n\n".join(row["contexts"]) + "\n\nQuestion: " + row["question"]
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompts.append(tokenizer(text, add_special_tokens=False).input_ids)
    return prompts


def count_unique(prompts: list[list[int]]) -> int:
    """Tokens left when every shared prefix is counted once."""
    ordered = sorted(prompts)
    unique = len(ordered[0])
    for before, prompt in zip(ordered[:-1], ordered[1:], strict=True):
        shared = next((i for i, (a, b) in enumerate(zip(before, prompt)) if a != b), min(len(before), len(prompt)))
        unique += len(prompt) - shared
    return unique


def main(source: str, model: str, target: str) -> None:
    prompts = render(pq.read_table(source).to_pylist(), model)
    total, unique = sum(map(len, prompts)), count_unique(prompts)
    print(f"{len(prompts)} rows, {total:,} prompt tokens, {unique:,} unique, ceiling {1 - unique / total:.4f}")
    with open(target, "w", encoding="utf-8") as file:
        json.dump(prompts, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
