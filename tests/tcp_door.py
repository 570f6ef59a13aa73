"""Passes TCP connections on: python tcp_door.py PORT BACKEND_PORT. Killed, it takes them all with it."""

import contextlib
import socket
import sys
import threading


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def main(port: int, backend_port: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        while True:
            client = listener.accept()[0]
            backend = socket.create_connection(("127.0.0.1", backend_port))
            for pair in ((client, backend), (backend, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
