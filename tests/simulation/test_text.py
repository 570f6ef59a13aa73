from batchpaged.simulation.result import Simulation, SimulationResult
from batchpaged.simulation.text import HEAD, simulation_lines

RESULT = SimulationResult(
    num_workers=64,
    num_rows=1000,
    num_units=96,
    num_steals=7,
    num_prompt_tokens=500_000,
    num_unique_tokens=100_000,
    num_prefilled_tokens=101_000,
    num_recomputed_tokens=0,
    num_completion_tokens=32_000,
    num_preemptions=3,
    mean_cache_usage=0.25,
    peak_cache_usage=0.5,
    seconds=105.0,
    mean_worker_seconds=100.0,
)


def test_a_line_for_each_number_of_workers():
    lines = list(simulation_lines(Simulation((RESULT, RESULT), 1000, 1000, 16.0, "virtual time, at 1 FLOP/s")))
    assert lines[1] == "Simulated with all 1,000 rows, completions of 16.0 tokens on average:"
    assert lines[3].split() == " ".join(HEAD).split()
    assert lines[4].split() == [
        "64", "0.7980", "0.99750", "101,000", "25.0%", "50.0%", "3", "96", "7", "1", "min", "45", "s", "1.050", "9.52",
    ]  # fmt: skip
    assert lines[5] == lines[4] and len(lines[3]) == len(lines[4])
    assert lines[-1].endswith("virtual time, at 1 FLOP/s.")


def test_a_sample_is_said_to_be_one():
    lines = list(simulation_lines(Simulation((RESULT,), 1000, 20_000, 16.0, "")))
    assert "1,000 of 20,000 rows, in slices of the plan" in lines[1]


def test_figures():
    assert (RESULT.hit_rate, RESULT.reuse_efficiency, RESULT.balance) == (0.798, 0.9975, 1.05)


def test_where_nothing_is_shared_there_is_no_efficiency():
    nothing = SimulationResult(**{**vars(RESULT), "num_unique_tokens": 500_000, "num_prefilled_tokens": 500_000})
    assert nothing.reuse_efficiency is None
    assert "–" in list(simulation_lines(Simulation((nothing,), 1, 1, 1.0, "")))[4]
