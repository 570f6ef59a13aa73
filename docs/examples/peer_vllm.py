"""Times vLLM on the prompts that peer_prompts.py wrote; in a virtual environment of its own, see docs/benchmarks.md.

    python docs/examples/peer_vllm.py prompts.json MODEL_FOLDER 32 [sorted]
"""

import json
import sys
import time

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


def main(source: str, model: str, num_tokens: str, order: str = "as in the file") -> None:
    with open(source, encoding="utf-8") as file:
        prompts = json.load(file)
    prompts = sorted(prompts) if order == "sorted" else prompts
    started = time.perf_counter()
    llm = LLM(model=model, dtype="float32", enable_prefix_caching=True, max_model_len=2048, max_num_seqs=64)
    loaded = time.perf_counter()
    params = SamplingParams(temperature=0, max_tokens=int(num_tokens), ignore_eos=True)
    llm.generate([TokensPrompt(prompt_token_ids=prompts[0][:40])], params, use_tqdm=False)  # compiles what it needs
    warm = time.perf_counter()
    outputs = llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - warm
    cached = sum(output.num_cached_tokens or 0 for output in outputs)
    print(f"vllm, {order}: {len(prompts) / seconds:.3f} rows/s, {seconds:.1f} s, {loaded - started:.0f} s to load")
    print(f"{cached:,} of {sum(map(len, prompts)):,} prompt tokens from the cache")


if __name__ == "__main__":
    main(*sys.argv[1:])
