"""A run: its directory, fingerprint, lock, finished units and progress.

The package stands where the public function `batchpaged.run` is looked for, so it can be called as that function.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See batchpaged.api.run."""
        from batchpaged.api import run

        return run(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
