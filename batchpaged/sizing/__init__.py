"""What a model takes of a GPU's memory, by its configuration: weights, KV cache, and how many sequences fit beside them."""
