"""What a simulation found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SimulationResult:
    """What a run on so many workers comes to. Times are virtual."""

    num_workers: int
    num_rows: int  # computed, or given the completion of an equal row
    num_units: int
    num_steals: int  # ranges that were cut again because a worker had run out of units
    num_prompt_tokens: int
    num_unique_tokens: int
    num_prefilled_tokens: int
    num_recomputed_tokens: int
    num_completion_tokens: int  # generated
    num_preemptions: int
    mean_cache_usage: float  # share of the pool's blocks in use, mean over workers and their time in steps
    peak_cache_usage: float
    seconds: float  # until the last worker is done
    mean_worker_seconds: float  # that a worker spent in steps

    @property
    def hit_rate(self) -> float:
        return 1 - self.num_prefilled_tokens / self.num_prompt_tokens

    @property
    def reuse_efficiency(self) -> float | None:
        """As in report.json; None where nothing can be reused."""
        num_reusable = self.num_prompt_tokens - self.num_unique_tokens
        return (self.num_prompt_tokens - self.num_prefilled_tokens) / num_reusable if num_reusable else None

    @property
    def balance(self) -> float:
        """Time until the last worker is done over the mean time at work: 1 is even."""
        return self.seconds / self.mean_worker_seconds

    @property
    def rows_per_second(self) -> float:
        return self.num_rows / self.seconds


@dataclass(frozen=True)
class Simulation:
    """One result per number of workers, over the same rows."""

    results: tuple[SimulationResult, ...]
    num_rows: int  # replayed
    num_rows_planned: int  # that have a prompt; more than `num_rows` where a sample was replayed
    mean_completion: float  # tokens
    time_note: str  # what virtual time is taken from
    num_sequences: int = 1  # of each row
