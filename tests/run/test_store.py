"""Files and locks on an object store, against a server that speaks S3 over HTTP."""

import json
import os
import socket
import threading
from types import SimpleNamespace

import pytest
from s3_server import BUCKET

from batchpaged.errors import RunDirectoryError, UnfinishedError
from batchpaged.run import store_lock
from batchpaged.run.store import StoreError, open_store

MULTIPART = 11 << 20  # bytes; more than one request


@pytest.fixture
def store(server, request):
    if server.door.poll() is not None:
        server.start()
    return open_store(f"s3://{BUCKET}/{request.node.name}/?region=us-east-1")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(store_lock, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(store_lock, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(store_lock, "STALE_SECONDS", 0.6)


@pytest.mark.parametrize("num_bytes", [0, 5, MULTIPART])
def test_files_come_back_as_they_were_put(store, tmp_path, num_bytes):
    (tmp_path / "a").write_bytes(os.urandom(num_bytes))
    assert store.put("x/a", tmp_path / "a") == num_bytes
    assert {name: info.size for name, info in store.files().items()} == {"x/a": num_bytes}
    store.get("x/a", tmp_path / "deep" / "b")
    assert (tmp_path / "deep" / "b").read_bytes() == (tmp_path / "a").read_bytes()
    store.delete("x/a")
    assert store.files() == {} and store.read("x/a") is None


def test_a_put_that_breaks_off_publishes_nothing(server, store):
    stream = store._open("half")
    stream.write(os.urandom(MULTIPART))
    server.kill()
    with pytest.raises(OSError):
        stream.write(os.urandom(MULTIPART))
        stream.close()
    server.start()
    assert store.files() == {}


def test_a_store_that_does_not_answer_is_said(server, store, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    server.kill()
    for action in (lambda: store.put("a", tmp_path / "a"), lambda: store.read("a"), store.files, lambda: store.delete("a")):
        with pytest.raises(StoreError, match=rf"s3://{BUCKET}/.*: .*(connect|Connect)"):
            action()


def test_a_full_disk_is_not_the_stores_fault(store, tmp_path):
    store.write("a", b"a")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        store.get("a", tmp_path / "file" / "a")


# --- the lock ---


def left_behind(store, **changes):
    owner = {"pid": 1, "host": "elsewhere", "started_at": "2026-01-01T00:00:00+00:00", "token": "t", **changes}
    store.write(store_lock.LOCK_FILE, json.dumps(owner).encode())


def test_a_client_that_renews_its_lock_keeps_others_out(store, monkeypatch):
    monkeypatch.setattr(store_lock, "STALE_SECONDS", 60)  # a sign comes much sooner, but not at once on a busy machine
    notes = []
    with store_lock.store_lock(store, notes.append) as lock:
        with pytest.raises(RunDirectoryError, match=f"is in use by process {os.getpid()} on {socket.gethostname()}, since"):
            with store_lock.store_lock(store, notes.append):
                pass
        lock.check()
    assert "waiting up to" in notes[0]
    assert store_lock.read_owner(store) is None


@pytest.mark.parametrize("content", [b"{", b'{"pid": 1}', None])
def test_a_lock_that_nobody_renews_is_taken_over_after_a_while(store, content):
    left_behind(store)
    if content:
        store.write(store_lock.LOCK_FILE, content)
    notes = []
    with store_lock.store_lock(store, notes.append):
        pass
    assert len(notes) == 2 and notes[1].endswith("gave none; its lock is taken over")


def test_a_lock_of_a_dead_process_of_this_host_is_taken_at_once(store):
    for pid in (2**22 + 1, os.getpid()):
        left_behind(store, pid=pid, host=socket.gethostname())
        notes = []
        with store_lock.store_lock(store, notes.append):
            assert notes == []


def test_of_clients_that_come_at_once_one_gets_it(store, monkeypatch):
    got, refused = [], []
    barrier = threading.Barrier(3, timeout=60)
    settled = SimpleNamespace(sleep=lambda seconds: barrier.wait())  # when all have written, however long that takes
    monkeypatch.setattr(store_lock, "time", settled)

    def come():
        lock = store_lock.StoreLock(store)
        barrier.wait()
        try:
            lock.acquire()
            got.append(lock)
        except RunDirectoryError:
            refused.append(lock)

    threads = [threading.Thread(target=come) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 2)
    got[0].release()


def test_a_client_whose_lock_was_taken_ends_and_leaves_the_other_one_alone(store):
    with store_lock.store_lock(store, print) as lock:
        while lock._thread.is_alive():  # a renewal that was under way may have been the last to write
            left_behind(store)
            lock._thread.join(0.1)
        with pytest.raises(UnfinishedError, match="was taken over by another run"):
            lock.check()
    assert store_lock.read_owner(store)["token"] == "t"
