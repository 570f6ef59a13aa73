"""What a dry run is asked to simulate."""

from dataclasses import dataclass

import numpy as np

MAX_ROWS = 100_000  # replayed unless more are asked for: some minutes per number of workers


@dataclass(frozen=True)
class SimulationRequest:
    num_workers: tuple[int, ...]  # each simulated by itself
    num_rows: int = MAX_ROWS  # a larger data set is replayed in part
    mean_completion: float | None = None  # tokens; None: every completion takes max_tokens
    seed: int = 0  # of completion lengths

    def lengths(self, num_rows: int, max_tokens: int, num_completions: int = 1) -> np.ndarray:
        """int64 [num_rows, num_completions]: tokens of each, as if each token were the last with the same probability."""
        shape = num_rows, num_completions
        if self.mean_completion is None:
            return np.full(shape, max_tokens)
        drawn = np.random.default_rng(self.seed).geometric(1 / max(self.mean_completion, 1.0), shape)
        return np.minimum(drawn, max_tokens)
