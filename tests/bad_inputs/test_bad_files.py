"""Every bad file is refused before any work, in words, without a traceback."""

import pytest
from bad_inputs.bad_files import ALL

from batchpaged.config import parse_pipeline
from batchpaged.errors import RefusedError
from batchpaged.prepare import open_input


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_bad_file_is_refused_with_its_reason(tmp_path, case, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")  # with it a CPU runs Triton's kernels
    case.make(tmp_path)
    pipeline = parse_pipeline(case.pipeline(tmp_path))
    with pytest.raises(RefusedError) as caught:
        open_input(pipeline)
    message = str(caught.value)
    missing = [word for word in case.words if word not in message]
    assert not missing, message
    assert "Traceback" not in message and not (tmp_path / "run").exists()


def test_names_are_unique():
    assert len({case.name for case in ALL}) == len(ALL) >= 60
