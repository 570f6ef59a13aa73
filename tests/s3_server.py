"""An S3 server on this machine (moto), spoken to over HTTP through a process that can be killed as a server can."""

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.fs as pafs
from moto.server import ThreadedMotoServer

BUCKET = "bucket-of-tests"


@dataclass
class Server:
    """What is stored outlives the door, as it does where a real server's process is killed."""

    backend_port: int
    port: int = 0  # of the door
    door: subprocess.Popen | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_up(self) -> bool:
        return self.door is not None and self.door.poll() is None

    def start(self) -> None:
        self.port = self.port or free_port()
        script = Path(__file__).with_name("tcp_door.py")
        self.door = subprocess.Popen([sys.executable, "-S", script, str(self.port), str(self.backend_port)])
        wait_for_port(self.port)

    def kill(self) -> None:
        """kill -9: what is under way breaks off, what comes is refused."""
        self.door.kill()
        self.door.wait()

    def look(self) -> pafs.S3FileSystem:
        """A way in beside the door."""
        return pafs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{self.backend_port}", scheme="http", region="us-east-1", allow_bucket_creation=True
        )

    def names(self, folder: str) -> list[str]:
        """Files below it."""
        selector = pafs.FileSelector(f"{BUCKET}/{folder}", allow_not_found=True, recursive=True)
        infos = self.look().get_file_info(selector)
        return sorted(i.path.removeprefix(f"{BUCKET}/{folder}/") for i in infos if i.type == pafs.FileType.File)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_port(port: int) -> None:
    for _ in range(3000):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens at port {port}")


@contextmanager
def serving() -> Iterator[Server]:
    """With an empty bucket, and an environment in which s3:// means this server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    backend = ThreadedMotoServer("127.0.0.1", free_port())
    backend.start()
    server = Server(backend.get_host_and_port()[1])
    before = os.environ.get("AWS_ENDPOINT_URL")
    try:
        server.start()
        server.look().create_dir(BUCKET)
        os.environ["AWS_ENDPOINT_URL"] = server.url
        yield server
    finally:
        os.environ.pop("AWS_ENDPOINT_URL")
        os.environ.update({"AWS_ENDPOINT_URL": before} if before else {})
        server.kill()
        backend.stop()
