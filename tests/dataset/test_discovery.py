import json
import pickle
import sys

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from batchpaged.dataset.discovery import find_files
from batchpaged.dataset.locations import mask, resolve
from batchpaged.errors import InputError

ONE = pa.table({"x": [1]})


@pytest.fixture
def tree(write):
    names = ["a.parquet", "b.PARQUET", "part-10.parquet", "part-9.parquet", "sub/c.parquet", "sub/deep/d.parquet"]
    hidden = ["_meta.parquet", ".cache/x.parquet", "sub/_tmp/y.parquet"]
    folder = write(dict.fromkeys([*names, *hidden], ONE))
    (folder / "notes.txt").write_text("text")
    return folder


def found(*paths):
    files, problems = find_files([str(path) for path in paths])
    assert problems == []
    return [file.location.name for file in files]


def problem(*paths):
    files, problems = find_files([str(path) for path in paths])
    assert files == [] and len(problems) == 1
    return problems[0]


def test_a_file_stands_for_itself(tree):
    assert found(tree / "a.parquet") == [str(tree / "a.parquet")]


def test_a_folder_is_read_recursively_in_order_without_hidden_names(tree):
    names = ["a.parquet", "b.PARQUET", "part-10.parquet", "part-9.parquet", "sub/c.parquet", "sub/deep/d.parquet"]
    assert found(tree) == [str(tree / name) for name in names]


def test_a_folder_inside_a_hidden_folder_is_read(write):
    folder = write({"_hidden/.also/a.parquet": ONE})
    assert found(folder / "_hidden/.also") == [str(folder / "_hidden/.also/a.parquet")]
    assert "what starts with _ or . is left out" in problem(folder / "_hidden")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.parquet", ["a.parquet", "part-10.parquet", "part-9.parquet"]),
        ("part-?.parquet", ["part-9.parquet"]),
        ("part-[0-9].parquet", ["part-9.parquet"]),
        ("[!p]*.parquet", ["a.parquet"]),
        ("*/*.parquet", ["sub/c.parquet"]),
        ("**/*.parquet", ["a.parquet", "part-10.parquet", "part-9.parquet", "sub/c.parquet", "sub/deep/d.parquet"]),
        ("sub/**", ["sub/c.parquet", "sub/deep/d.parquet"]),
        ("s*/**/d.parquet", ["sub/deep/d.parquet"]),
        ("_*.parquet", ["_meta.parquet"]),
    ],
)
def test_globs(tree, pattern, names):
    assert found(tree / pattern) == [str(tree / name) for name in names]


def test_a_name_with_glob_characters_is_a_file_if_it_exists(write):
    folder = write({"part[1].parquet": ONE})
    assert found(folder / "part[1].parquet") == [str(folder / "part[1].parquet")]


def test_lists_keep_their_order(tree):
    assert found(tree / "sub/c.parquet", tree / "a.parquet") == [str(tree / "sub/c.parquet"), str(tree / "a.parquet")]


def test_a_file_named_twice_is_a_problem(tree):
    _, problems = find_files([str(tree / "a.parquet"), str(tree / "*.parquet")])
    assert problems == [f"{tree}/a.parquet: named 2 times by input.path; its rows would be doubled"]


def test_relative_and_home_paths(tree, monkeypatch):
    monkeypatch.chdir(tree)
    monkeypatch.setenv("HOME", str(tree))
    assert found("a.parquet") == found("~/a.parquet") == [str(tree / "a.parquet")]


def test_a_glob_without_files_says_where_it_looked_and_what_is_there(tree):
    message = problem(tree / "*.csv")
    assert f"looked in {tree}" in message and "*.parquet" in message and "1 *.txt" in message and "folders" in message


def test_a_glob_that_matches_folders_says_so(tree):
    assert "it matches 1 folders, add /*.parquet" in problem(tree / "su*")


def test_a_folder_without_parquet_says_what_it_holds(tmp_path):
    (tmp_path / "a.csv").touch()
    assert problem(tmp_path) == f"{tmp_path}: no *.parquet file in this folder or below; it holds 1 *.csv"


def test_an_empty_folder(tmp_path):
    assert problem(tmp_path).endswith("it holds nothing")


def test_a_missing_file_gets_a_suggestion(tree):
    message = problem(tree / "part-8.parquet")
    assert "does not exist" in message and "did you mean 'part-9.parquet'?" in message


def test_a_missing_relative_path_says_what_it_counts_from(tree, monkeypatch):
    monkeypatch.chdir(tree)
    assert problem("nowhere.parquet").startswith(f"{tree}/nowhere.parquet does not exist; {tree} holds")
    assert problem("nowhere.parquet").endswith(" (a relative path counts from the current folder)")
    assert "counts from" not in problem(tree / "nowhere.parquet")


def test_a_missing_folder_shows_the_nearest_that_exists(tree):
    message = problem(tree / "data/2024/*.parquet")
    assert f"{tree}/data/2024 does not exist" in message and f"{tree} holds" in message


def test_all_paths_are_judged(tree):
    files, problems = find_files([str(tree / "no.parquet"), str(tree / "a.parquet"), "nosuch://x", str(tree / "*.csv")])
    assert len(files) == 1 and len(problems) == 3


def test_no_paths_find_nothing():
    assert find_files([]) == ([], [])


# Hugging Face datasets on disk


def test_a_saved_dataset_means_its_arrow_files_in_their_order(tmp_path):
    data = datasets.Dataset.from_dict({"x": list(range(10))})
    data.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    assert found(tmp_path / "saved") == [str(tmp_path / f"saved/data-0000{i}-of-00003.arrow") for i in range(3)]


def test_a_dataset_dict_with_one_split_is_that_split(tmp_path):
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"x": [1]})}).save_to_disk(str(tmp_path / "saved"))
    expected = [str(tmp_path / "saved/train/data-00000-of-00001.arrow")]
    assert found(tmp_path / "saved") == found(tmp_path / "saved/train") == expected


def test_a_dataset_dict_with_two_splits_wants_one_named(tmp_path):
    data = datasets.Dataset.from_dict({"x": [1]})
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(tmp_path / "saved"))
    message = problem(tmp_path / "saved")
    assert "2 splits" in message and f"{tmp_path}/saved/train, {tmp_path}/saved/test" in message


def test_a_saved_dataset_that_lost_a_file(tmp_path):
    datasets.Dataset.from_dict({"x": [1, 2]}).save_to_disk(str(tmp_path / "saved"), num_shards=2)
    (tmp_path / "saved/data-00001-of-00002.arrow").unlink()
    assert "data-00001-of-00002.arrow, which is not there" in problem(tmp_path / "saved")


def test_a_saved_dataset_with_damaged_state(tmp_path):
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "dataset_info.json").write_text("{}")
    assert "KeyError" in problem(tmp_path)


# Other filesystems


def test_file_urls(tree):
    assert found(f"file://{tree}/*.parquet") == found(tree / "*.parquet")


def test_fsspec_filesystems(memory_fs):
    for name in ("/data/a.parquet", "/data/sub/b.parquet", "/data/_c.parquet"):
        with memory_fs.open(name, "wb") as file:
            pq.write_table(ONE, file)
    both = ["memory:///data/a.parquet", "memory:///data/sub/b.parquet"]
    assert found("memory://data") == found("memory:///data/**/*.parquet") == both
    assert found("memory://data/a.parquet") == both[:1]
    assert "memory:///data holds 2 *.parquet, 1 folders" in problem("memory://data/missing.parquet")


class FakeHub(MemoryFileSystem):
    """Stands for huggingface_hub's HfFileSystem, whose paths have no leading slash: datasets/owner/name/path."""

    protocol = "hf"
    files = {"datasets/owner/name/data/train-00000.parquet": b"1", "datasets/owner/name/data/test-00000.parquet": b"2"}

    @classmethod
    def _strip_protocol(cls, path):
        return path.removeprefix("hf://").strip("/")

    def unstrip_protocol(self, name):
        return f"hf://{name}"

    def info(self, path, **options):
        path = self._strip_protocol(path)
        if path in self.files:
            return {"name": path, "type": "file", "size": len(self.files[path]), "blob_id": f"blob-{path[-13:-8]}"}
        if any(name.startswith(path + "/") for name in self.files):
            return {"name": path, "type": "directory", "size": 0}
        raise FileNotFoundError(path)

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **options):
        below = [name for name in self.files if name.startswith(self._strip_protocol(path) + "/")]
        return {name: self.info(name) for name in below}


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "hf", FakeHub)
    FakeHub.clear_instance_cache()


def test_a_hub_dataset_means_all_its_parquet_files(hub):
    both = [f"hf://datasets/owner/name/data/{split}-00000.parquet" for split in ("test", "train")]
    assert found("hf://datasets/owner/name") == both
    assert found("hf://datasets/owner/name/data/*.parquet") == both
    assert found("hf://datasets/owner/name/data/test-00000.parquet") == both[:1]


def test_a_hub_dataset_that_is_not_there(hub):
    assert "hf://datasets/owner/other does not exist" in problem("hf://datasets/owner/other")


def test_the_real_hub_filesystem_gets_the_path():
    location = resolve("hf://datasets/owner/name@main/data/*.parquet")
    assert location.path == "datasets/owner/name@main/data/*.parquet"
    assert location.name == "hf://datasets/owner/name@main/data/*.parquet"


def test_locations_are_picklable(tmp_path, memory_fs):
    for path in (str(tmp_path), "memory://x", "s3://bucket/key?region=us-east-1"):
        assert pickle.loads(pickle.dumps(resolve(path))).name == resolve(path).name


def test_s3_credentials_and_options_are_never_shown():
    location = resolve("s3://KEY:SECRET@bucket/a b/*.parquet?endpoint_override=localhost:9000&scheme=http")
    assert location.name == "s3://bucket/a b/*.parquet"
    shown = mask("s3://KEY:SECRET@bucket/x?session=TOKEN failed")
    assert "SECRET" not in shown and "TOKEN" not in shown


def test_unknown_schemes_are_refused_by_name():
    with pytest.raises(InputError, match="nosuch"):
        resolve("nosuch://bucket/x")


def test_state_json_names_stay_inside_the_folder(tmp_path):
    (tmp_path / "data").mkdir()
    pq.write_table(ONE, tmp_path / "outside.arrow")
    (tmp_path / "data/dataset_info.json").write_text("{}")
    (tmp_path / "data/state.json").write_text(json.dumps({"_data_files": [{"filename": "../outside.arrow"}]}))
    assert "../outside.arrow" in problem(tmp_path / "data")
