"""A worker process that ends while its engine is at work."""

import subprocess
import sys

SCRIPT = """
import multiprocessing, threading, time

def work():
    import torch
    from batchpaged.cluster.current_engine import CurrentEngine

    class Busy:
        def start(self):
            self.thread = threading.Thread(target=self.run, daemon=True)
            self.thread.start()
            return self
        def run(self):
            x = torch.zeros(100, 100)
            while True:
                x @ x
        @property
        def is_alive(self):
            return self.thread.is_alive()

    busy = Busy().start()
    current = CurrentEngine()
    current.of("sitting", lambda: busy)
    time.sleep(0.1)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    print(child.exitcode)
"""


def test_it_ends_without_a_word(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
