"""Every error batchpaged raises on purpose.

    BatchpagedError
    ├── RefusedError           exit 2: refused before any work, nothing was written
    │   ├── ConfigError        a pipeline file, an override or an argument is wrong
    │   ├── InputError         the data set cannot be read as the pipeline file says
    │   ├── ModelError         the model cannot be found, read or run
    │   ├── RunDirectoryError  the run directory belongs to another run, or is in use
    │   └── ClusterError       the Dask cluster cannot be reached or used
    ├── UnfinishedError        exit 3: not finished; the same command goes on
    │   └── StoppedError       it was asked to stop, and did in good order
    └── RowError               one row cannot be computed; its message becomes the row's `error`

A message names the offender (file, row, key) and the way out, and never holds prompt text.
"""


class BatchpagedError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line returns."""

    exit_code = 3


class RefusedError(BatchpagedError):
    """Refused before any work; nothing was written."""

    exit_code = 2


class ConfigError(RefusedError):
    """A pipeline file, an override or an argument is wrong."""


class InputError(RefusedError):
    """The data set cannot be read as the pipeline file says. `InputError(problem, problem, ...)`."""

    @property
    def problems(self) -> tuple[str, ...]:
        return self.args

    def __str__(self) -> str:
        return "\n".join(self.args)


class ModelError(RefusedError):
    """The model cannot be found, read or run."""


class RunDirectoryError(RefusedError):
    """The run directory belongs to another run, or another process is using it."""


class ClusterError(RefusedError):
    """The Dask cluster cannot be reached or used."""


class UnfinishedError(BatchpagedError):
    """The run stopped before its end; what is committed stays, the same command goes on."""


class StoppedError(UnfinishedError):
    """A signal asked the run to stop; the units that were being computed are finished."""


class RowError(BatchpagedError):
    """One row cannot be computed. It is recorded in the row and never stops the run."""
