"""In a local worker: SIGTERM counts if the client sends it, and only then.

`timeout`, systemd and shells signal every process of a run, but the client alone decides what becomes of it: it finishes the
units at work, for which it needs its workers. Dask loads this module into every worker that it starts, `dask_setup` first. The worker's
threads have SIGTERM blocked from their start, so that it waits here to be asked where it is from. A worker whose client is gone ends by
itself, however the client ended: Dask watches a pipe between them.
"""

import os
import signal
import threading

EXIT_CODE = 128 + signal.SIGTERM


def dask_setup(worker: object) -> None:
    """Called by Dask."""
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=end_with_the_client_s_signal, args=(os.getppid(),), daemon=True).start()


def end_with_the_client_s_signal(client: int) -> None:
    """Ends this process once the process `client` says so. SIGTERM has to be blocked in all threads."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != client:
        pass
    os._exit(EXIT_CODE)
