from batchpaged.cluster.worker_slots import WorkerSlots


def slots_of(num_slots, workers):
    slots = WorkerSlots(num_slots)
    assert slots.update(workers) == 0
    return slots


def test_workers_take_slots_in_the_order_of_their_names():
    workers = {f"tcp://{i}": str(i) for i in (10, 2, 0, 1)}
    assert slots_of(4, workers).addresses == {0: "tcp://0", 1: "tcp://1", 2: "tcp://2", 3: "tcp://10"}


def test_more_workers_than_slots_are_left_alone():
    assert slots_of(1, {"a": "x", "b": "y"}).addresses == {0: "a"}


def test_a_worker_that_is_started_again_goes_on_with_its_range():
    slots = slots_of(2, {"a": "0", "b": "1"})
    assert slots.update({"b": "1"}) == 1
    assert slots.addresses == {1: "b"}
    assert slots.update({"b": "1", "c": "0"}) == 0
    assert slots.addresses == {0: "c", 1: "b"}


def test_a_worker_that_is_started_again_between_two_looks_is_counted_as_lost():
    slots = slots_of(2, {"a": "0", "b": "1"})
    assert slots.update({"a2": "0", "b": "1"}) == 1
    assert slots.addresses == {0: "a2", 1: "b"}


def test_another_worker_takes_the_place_of_one_that_is_gone():
    slots = slots_of(2, {"a": "x", "b": "y", "c": "z"})
    assert slots.update({"b": "y", "c": "z"}) == 1
    assert slots.addresses == {0: "c", 1: "b"}


def test_nobody_left():
    slots = slots_of(2, {"a": "0", "b": "1"})
    assert slots.update({}) == 2
    assert slots.addresses == {}
    assert slots.update({}) == 0
