"""A run directory on a store and its working copies on several machines."""

import shutil
from itertools import count

import pytest
from s3_server import BUCKET

from batchpaged.errors import RunDirectoryError
from batchpaged.run import store_lock, stored
from batchpaged.run.outline import check_free, outline
from batchpaged.run.store import Store, StoreError

IDENTITY = {"pipeline": {}, "model": "m", "input": []}
OTHER = {**IDENTITY, "model": "n"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Moves to the machine of this name: each has a cache folder of its own."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(store_lock, "SETTLE_SECONDS", 0.0)
    return lambda name: monkeypatch.setenv("BATCHPAGED_CACHE", str(tmp_path / name))


@pytest.fixture
def url(server, request):
    return f"s3://{BUCKET}/{request.node.name}"


def opened(url):
    return stored.opening(url, print)


def begin(directory, identity=IDENTITY, fresh=False):
    with directory.lock():
        return directory.open("mine", identity, fresh)


def write(directory, **contents):
    for name, content in contents.items():
        path = directory.path / name.replace("__", "/").replace("_json", ".json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)


def files(server, url):
    return [name for name in server.names(url.removeprefix(f"s3://{BUCKET}/"))]


def plan_and_finish(url, num_units=2):
    with opened(url) as (directory, keeper):
        info = begin(directory)
        write(directory, plan__a="plan", plan_json="{}")
        keeper.keep_all()
        for unit in range(num_units):
            directory.unit_file(unit).write_text(f"unit {unit}")
            keeper.keep(f"units/unit-{unit:06}.parquet")
        keeper.keep_all()
    return info


def test_another_machine_gets_the_run(server, machine, url):
    machine("first")
    info = plan_and_finish(url)
    machine("second")
    with opened(url) as (directory, _):
        assert directory.info() == info and directory.unit_file(1).read_text() == "unit 1"
        assert (directory.path / "plan" / "a").read_text() == "plan"
        directory.check_usable(IDENTITY, fresh=False)
        with pytest.raises(RunDirectoryError, match="of something else"):
            directory.check_usable(OTHER, fresh=False)


def test_units_that_were_not_sent_are_sent_when_the_run_goes_on(server, machine, url):
    machine("first")
    plan_and_finish(url)
    with opened(url) as (directory, _):
        directory.unit_file(2).write_text("committed, and then the client was killed")
    with opened(url) as (directory, keeper):
        begin(directory)
        keeper.keep_all()
    assert "units/unit-000002.parquet" in files(server, url)


def test_a_working_copy_of_another_run_or_plan_is_dropped(server, machine, url):
    machine("first")
    plan_and_finish(url)
    with opened(url) as (directory, _):
        write(directory, plan_json="another")
    with opened(url) as (directory, _):
        assert (directory.path / "plan.json").read_text() == "{}" and directory.is_unit_done(1)
    machine("second")
    with opened(url) as (directory, keeper):
        second = begin(directory, OTHER, fresh=True)
        keeper.keep_all()
    assert files(server, url) == ["run.json"]
    machine("first")
    with opened(url) as (directory, _):
        assert directory.info() == second and not directory.is_unit_done(1)


def test_a_run_that_the_store_has_lost_is_no_run(server, machine, url):
    machine("first")
    plan_and_finish(url)
    server.look().delete_dir(url.removeprefix("s3://"))
    with opened(url) as (directory, _):
        assert not directory.exists and not directory.is_unit_done(0)


def test_units_that_are_set_aside_stay_so_on_every_machine(server, machine, url):
    machine("first")
    plan_and_finish(url)
    with opened(url) as (directory, keeper):
        write(directory, report_json="{}", output___SUCCESS="")
        keeper.keep_results(is_new_output=True)
        directory.set_aside([1])
        keeper.keep_all()
    assert [name for name in files(server, url) if name.startswith(("units", "report"))] == [
        "units/retry-000001.parquet",
        "units/unit-000000.parquet",
    ]
    for name in ("first", "second"):
        machine(name)
        with opened(url) as (directory, _):
            assert directory.retry_file(1).exists() and not directory.is_unit_done(1)


def test_a_new_output_takes_the_place_of_the_old_one(server, machine, url):
    machine("first")
    plan_and_finish(url)
    with opened(url) as (directory, keeper):
        write(directory, output__a="1", output__b="2", output___SUCCESS="", report_json="{}")
        keeper.keep_results(is_new_output=True)
        shutil.rmtree(directory.output)
        write(directory, output__a="3", output___SUCCESS="", report_json="{}")
        keeper.keep_results(is_new_output=True)
    assert [name for name in files(server, url) if name.startswith("output")] == ["output/_SUCCESS", "output/a"]
    machine("second")
    with opened(url) as (directory, _):
        assert (directory.output / "a").read_text() == "3" and directory.is_finished


def finish(url, text):
    """A sitting whose results say `text`, unless there are results already."""
    with opened(url) as (directory, keeper):
        begin(directory)
        keeper.keep_all()
        is_new = not directory.is_finished
        if is_new:
            directory.unit_file(0).write_text("unit")
            keeper.keep("units/unit-000000.parquet")
            write(directory, output__a=text, output__b=text, output___SUCCESS="", report_json=text)
        keeper.keep_results(is_new_output=is_new)


def cut_off(patch, request):
    """The store answers so many requests that change it, and then no more."""
    numbers = count()

    def unless_cut_off(function):
        def asked(*args):
            if next(numbers) >= request:
                raise StoreError("cut off")
            return function(*args)

        return asked

    for name in ("put", "delete"):
        patch.setattr(Store, name, unless_cut_off(getattr(Store, name)))


def results(server, url):
    folder = url.removeprefix("s3://")
    names = [name for name in files(server, url) if name.startswith(("output/", "report"))]
    texts = {server.look().open_input_stream(f"{folder}/{name}").read().decode() for name in names}
    return names, texts - {""}


@pytest.mark.parametrize("next_machine", ["first", "second"])
def test_a_sitting_that_is_cut_off_at_any_request_leaves_a_run_that_ends_as_one(server, machine, url, next_machine):
    whole = ["output/_SUCCESS", "output/a", "output/b", "report.json"]
    for request in range(6):  # run.json, the unit, and the four results
        place = f"{url}-{request}"
        machine("first")
        with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreError, match="cut off"):
            cut_off(patch, request)
            finish(place, "one")
        names = results(server, place)[0]
        assert "report.json" not in names and ("output/_SUCCESS" not in names or set(whole[:3]) <= set(names))
        machine(next_machine)
        finish(place, "another")
        assert results(server, place) == (whole, {"one" if next_machine == "first" and request else "another"})


def test_results_that_were_not_sent_give_way_to_those_of_another_machine(server, machine, url):
    machine("first")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreError):
        cut_off(patch, 2)
        finish(url, "one")
    machine("second")
    finish(url, "two")  # as long, so that sizes do not tell
    machine("first")
    finish(url, "three")
    assert results(server, url)[1] == {"two"}
    with opened(url) as (directory, _):
        assert {path.read_text() for path in (directory.output / "a", directory.report)} == {"two"}


def test_units_that_were_set_aside_before_the_store_was_told_are_open(server, machine, url):
    machine("first")
    finish(url, "one")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreError), opened(url) as (directory, keeper):
        directory.set_aside([0])
        cut_off(patch, 0)
        keeper.keep_all()
    with opened(url) as (directory, _):
        assert not directory.is_finished and not directory.is_unit_done(0)


def test_a_look_from_outside_reads_names_and_writes_nothing(server, machine, url):
    machine("first")
    with pytest.raises(RunDirectoryError, match="is not a run directory"), outline(url):
        pass
    info = plan_and_finish(url)
    before = files(server, url)
    with outline(url) as (directory, owner):
        assert owner is None and directory.info() == info and directory.is_unit_done(1)
        assert directory.updated_at() > "2020"
    check_free(url)
    with opened(url):
        with outline(url) as (_, owner):
            assert owner["host"]
        with pytest.raises(RunDirectoryError, match="has a lock"):
            check_free(url)
    assert files(server, url) == before
