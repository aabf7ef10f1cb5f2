"""Loaders: exact formats, damaged files, the cache, and the way to the hub."""

import gzip
import pickle
import sys
import tarfile
import types

import numpy as np
import pytest

from data import files
from equipoise.data.datasets import images as cifar
from equipoise.data.datasets import images as fmnist
from equipoise.data.datasets import images as tinyimagenet
from equipoise.data.datasets import shakespeare
from equipoise.data.sources import load_dataset
from equipoise.utils.errors import UsageError


def _fails(source, folder, *words):
    with pytest.raises(UsageError) as error:
        load_dataset(source, str(folder))
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


# --- Fashion-MNIST --------------------------------------------------------------------------------


def test_idx_files_to_the_byte(tmp_path):
    made = files.write_fmnist(tmp_path / "fashion-mnist")
    got = load_dataset(fmnist.FASHION_MNIST, str(tmp_path))
    assert (got["x"][..., 0] == made["train"][0]).all()
    assert (got["test_y"] == made["t10k"][1]).all()
    assert got["x"].dtype == np.uint8


def test_damaged_idx_files_are_named(tmp_path):
    files.write_fmnist(tmp_path)
    images, labels = (
        tmp_path / "train-images-idx3-ubyte.gz",
        tmp_path / "train-labels-idx1-ubyte.gz",
    )
    whole = images.read_bytes()
    images.write_bytes(whole[: len(whole) // 2])
    _fails(fmnist.FASHION_MNIST, tmp_path, "train-images", "download it again")
    images.write_bytes(gzip.compress(gzip.decompress(whole)[:-5]))
    _fails(fmnist.FASHION_MNIST, tmp_path, "train-images", "header says (60, 28, 28)")
    images.write_bytes(gzip.compress(b"not an IDX file"))
    _fails(fmnist.FASHION_MNIST, tmp_path, "not an IDX file")
    images.write_bytes(gzip.compress(b"\0\0\x08\x03\0\0"))
    _fails(fmnist.FASHION_MNIST, tmp_path, "header is cut short")
    images.write_bytes(whole)
    labels.write_bytes(gzip.compress(files.idx(np.zeros(59, np.uint8))))
    _fails(fmnist.FASHION_MNIST, tmp_path, "60 images", "59 labels")
    labels.write_bytes(gzip.compress(files.idx(np.full(60, 10, np.uint8))))
    _fails(fmnist.FASHION_MNIST, tmp_path, "labels outside 0..9")
    labels.unlink()
    _fails(fmnist.FASHION_MNIST, tmp_path, "no file 'train-labels-idx1-ubyte.gz'")


def test_the_real_fashion_mnist():
    got = load_dataset(fmnist.FASHION_MNIST, str(files.shared("fashion-mnist")))
    assert got["x"].shape == (60_000, 28, 28, 1)
    assert np.bincount(got["y"]).tolist() == [6000] * 10
    assert np.bincount(got["test_y"]).tolist() == [1000] * 10


# --- CIFAR ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "source"), [(10, cifar.CIFAR10_SOURCE), (100, cifar.CIFAR100_SOURCE)]
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_in_archive_and_folder_agree(tmp_path, classes, source, protocol):
    batches = files.cifar_batches(classes)
    contents = {name: pickle.dumps(batch, protocol=protocol) for name, batch in batches.items()}
    (tmp_path / "a").mkdir()
    layout = cifar.CIFAR10_LAYOUT if classes == 10 else cifar.CIFAR100_LAYOUT
    files.cifar_archive(tmp_path / "a" / layout.archive, classes, contents)
    folder = tmp_path / "b" / layout.folder
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    archived, unpacked = (
        load_dataset(source, str(tmp_path / "a")),
        load_dataset(source, str(tmp_path / "b")),
    )
    assert all((archived[name] == unpacked[name]).all() for name in ("x", "y", "test_x", "test_y"))
    first = batches[layout.train[0]]
    assert (
        archived["x"][3, 5, 7] == first[b"data"][3].reshape(3, 32, 32)[:, 5, 7]
    ).all()  # planes R, G, B
    assert archived["y"][:20].tolist() == first[layout.key]
    assert len(archived["x"]) == 20 * len(layout.train)


class _Evil:
    def __reduce__(self):
        return print, ("ran",)


def test_a_pickle_that_names_a_function_is_refused(tmp_path, capsys):
    contents = {name: pickle.dumps(batch) for name, batch in files.cifar_batches(100).items()}
    contents["train"] = pickle.dumps({b"data": _Evil(), b"fine_labels": [1]})
    files.cifar_archive(tmp_path / "cifar-100-python.tar.gz", 100, contents)
    _fails(cifar.CIFAR100_SOURCE, tmp_path, "'train'", "builtins.print", "do not trust")
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: pickle.dumps(b)[:-300], ["'train'", "truncated or damaged"]),
        (
            lambda b: pickle.dumps({**b, b"fine_labels": b[b"fine_labels"][1:]}),
            ["20 images", "19 labels"],
        ),
        (lambda b: pickle.dumps({**b, b"data": b[b"data"][:, 1:]}), ["3072"]),
        (lambda b: pickle.dumps({**b, b"data": b[b"data"].astype(np.float32)}), ["3072 bytes"]),
        (lambda b: pickle.dumps({**b, b"fine_labels": [100] * 20}), ["labels outside 0..99"]),
        (lambda b: pickle.dumps({**b, b"fine_labels": "none"}), ["no list of labels"]),
        (lambda b: pickle.dumps([1, 2]), ["not a batch"]),
    ],
)
def test_damaged_pickles_are_named(tmp_path, change, words):
    batches = files.cifar_batches(100)
    contents = {"train": change(batches["train"]), "test": pickle.dumps(batches["test"])}
    files.cifar_archive(tmp_path / "cifar-100-python.tar.gz", 100, contents)
    _fails(cifar.CIFAR100_SOURCE, tmp_path, *words)


def test_unsafe_and_incomplete_archives_are_refused(tmp_path):
    path = tmp_path / "cifar-100-python.tar.gz"
    link = tarfile.TarInfo("cifar-100-python/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    for entry in (tarfile.TarInfo("../train"), tarfile.TarInfo("/train"), link):
        files.cifar_archive(path, 100, extra=[entry])
        _fails(cifar.CIFAR100_SOURCE, tmp_path, "unsafe entry", "do not trust")
    files.cifar_archive(path, 100, {"train": b"x"})
    _fails(cifar.CIFAR100_SOURCE, tmp_path, "no 'cifar-100-python/test'")
    files.cifar_archive(path, 100)
    path.write_bytes(path.read_bytes()[:-2000])
    _fails(cifar.CIFAR100_SOURCE, tmp_path, "truncated or damaged")
    path.write_bytes(b"no archive at all")
    _fails(cifar.CIFAR100_SOURCE, tmp_path, "truncated or damaged")


def _parquet(folder, **changes):
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
    for split in ("train", "test"):
        columns = {"fine_label": np.arange(6) % 100, "coarse_label": np.zeros(6, int), **changes}
        files.write_parquet(
            folder / f"{split}.parquet",
            pixels,
            **{k: v for k, v in columns.items() if v is not None},
        )
    return pixels


def test_parquet_of_the_hub_to_the_byte(tmp_path):
    pixels = _parquet(tmp_path)
    got = load_dataset(cifar.CIFAR100_SOURCE, str(tmp_path))
    assert (got["x"] == pixels).all()
    assert got["y"].tolist() == [0, 1, 2, 3, 4, 5]


def test_damaged_parquet_is_named(tmp_path):
    _parquet(tmp_path, fine_label=None)
    _fails(cifar.CIFAR100_SOURCE, tmp_path, "no column 'fine_label'")
    (tmp_path / "train.parquet").write_bytes(b"PAR1 and no more")
    _fails(cifar.CIFAR100_SOURCE, tmp_path, "not a readable Parquet file")
    (tmp_path / "test.parquet").unlink()
    _fails(cifar.CIFAR100_SOURCE, tmp_path, "no 'test*.parquet'")


def test_a_broken_image_in_parquet_is_named(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    _parquet(tmp_path)
    table = {"img": [{"bytes": b"no image", "path": None}], "fine_label": [0]}
    parquet.write_table(pyarrow.table(table), tmp_path / "train.parquet")
    _fails(cifar.CIFAR100_SOURCE, tmp_path, "row 0", "not a readable image")


@pytest.mark.slow
def test_the_real_cifar_100():
    got = load_dataset(cifar.CIFAR100_SOURCE, str(files.shared("cifar-100")))
    assert got["x"].shape == (50_000, 32, 32, 3)
    assert (np.bincount(got["y"]) == 500).all()
    import hashlib

    # the official binary version, rebuilt: one record is the coarse label, the fine label, and the
    # planes
    planes = got["test_x"].transpose(0, 3, 1, 2).reshape(-1, 3072)
    parquet = pytest.importorskip("pyarrow.parquet")
    coarse = parquet.read_table(files.shared("cifar-100") / "test.parquet")[
        "coarse_label"
    ].to_numpy()
    record = np.concatenate([coarse[:, None], got["test_y"][:, None], planes], 1).astype(np.uint8)
    assert hashlib.sha1(record.tobytes()).hexdigest() == "8fb6623e830365ff53cf14adec797474f5478006"


# --- Tiny-ImageNet --------------------------------------------------------------------------------


def test_folders_of_jpegs_with_greyscale_ones(tmp_path):
    files.write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    got = load_dataset(tinyimagenet.TINY_IMAGENET, str(tmp_path))
    assert got["x"].shape == (8, 64, 64, 3)
    assert got["y"].tolist() == [0] * 4 + [1] * 4
    assert got["test_y"].tolist() == [0, 0, 1, 1]
    grey = got["x"][3]
    assert (grey[..., 0] == grey[..., 1]).all()
    assert not (got["x"][0][..., 0] == got["x"][0][..., 1]).all()


def test_incomplete_folders_are_named(tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    wnids = files.write_tiny_imagenet(folder)
    annotations = folder / "val" / "val_annotations.txt"
    lines = annotations.read_text()
    annotations.write_text(lines.replace(wnids[0], "n00000000", 1))
    _fails(tinyimagenet.TINY_IMAGENET, tmp_path, "line 1", "n00000000")
    annotations.write_text("".join(lines.splitlines(True)[:3]))
    _fails(tinyimagenet.TINY_IMAGENET, tmp_path, "holds 4 images, but 3 are annotated")
    annotations.write_bytes(b"\xff\xfe\x00")
    _fails(tinyimagenet.TINY_IMAGENET, tmp_path, "line 1", "not there")
    annotations.write_text(lines)
    victim = next((folder / "train" / wnids[1] / "images").iterdir())
    content = victim.read_bytes()
    victim.write_bytes(content[:100])
    _fails(tinyimagenet.TINY_IMAGENET, tmp_path, victim.name, "not a readable image")
    victim.write_bytes(content)
    annotations.unlink()
    _fails(tinyimagenet.TINY_IMAGENET, tmp_path, "val_annotations.txt", "missing")


def test_images_of_another_size_are_refused(tmp_path):
    files.write_tiny_imagenet(tmp_path / "tiny-imagenet-200", size=32)
    _fails(tinyimagenet.TINY_IMAGENET, tmp_path, "32x32, not 64x64")


# --- Shakespeare ----------------------------------------------------------------------------------


def test_leafs_rules_on_a_small_text():
    plays = shakespeare.plays(files.PLAYS)
    assert [title for title, _ in plays] == ["ALL'S WELL THAT ENDS WELL", "THE COMEDY OF ERRORS"]
    assert {role: len(lines) for role, lines in plays[0][1].items()} == {"KING": 4, "CLOWN": 2}
    assert set(plays[1][1]) == {"AEGEON", "DUKE"}
    spoken = shakespeare.speeches(files.PLAYS)
    assert set(spoken) == {
        (plays[0][0], "KING"),
        (plays[1][0], "AEGEON"),
    }  # three lines and 81 characters at least
    assert "death anew. but I must" in spoken[plays[0][0], "KING"]
    assert (
        "unspeakable. Enter a JAILER And" in spoken[plays[1][0], "AEGEON"]
    )  # any line, in this play alone
    assert "COPYRIGHT" not in spoken[plays[1][0], "AEGEON"]


def test_windows_are_eighty_characters_and_the_next():
    codes = shakespeare.encode("x" * 79 + "abcé")
    x, y = shakespeare.windows(codes)
    letters = np.array(list(shakespeare.ALPHABET))
    assert x.shape == (3, 80)
    assert "".join(letters[y]) == "bc "  # what is not in the alphabet becomes a space
    assert "".join(letters[x[1]]) == "x" * 78 + "ab"


def test_a_text_without_plays_is_refused(tmp_path):
    (tmp_path / "100.txt").write_text("The Complete Works, in another edition.\n")
    _fails(shakespeare.SHAKESPEARE, tmp_path, "no play marked as LEAF expects", "January 1994")


def test_a_text_that_ends_too_early_is_refused(tmp_path):
    (tmp_path / "100.txt").write_text(files.PLAYS[: files.PLAYS.rindex("THE END")])
    _fails(shakespeare.SHAKESPEARE, tmp_path, "100.txt' is truncated")


def test_the_real_shakespeare():
    """Counts of plays, roles and clients as LEAF's rules give them."""
    text = (files.shared("shakespeare") / "pg100-1994-01.txt").read_bytes().decode("latin1")
    plays = shakespeare.plays(text)
    assert len(plays) == 36
    assert sum(len(roles) for _, roles in plays) == 1302
    assert sum(len(lines) > 2 for _, roles in plays for lines in roles.values()) == 1145
    spoken = shakespeare.speeches(text)
    assert len(spoken) == 1130
    assert sum(len(words) - shakespeare.WINDOW for words in spoken.values()) == 4_226_206
    assert not set("".join(spoken.values())) - set(shakespeare.ALPHABET)


# --- cache, environment, hub ----------------------------------------------------------------------


def test_decoded_once_and_again_when_a_file_changes(tmp_path, monkeypatch):
    files.write_fmnist(tmp_path / "fmnist")
    load_dataset(fmnist.FASHION_MNIST, str(tmp_path))
    monkeypatch.setattr(fmnist, "read_idx", lambda path: pytest.fail("decoded again"))
    again = load_dataset(fmnist.FASHION_MNIST, str(tmp_path))
    assert isinstance(again["x"], np.memmap)
    monkeypatch.undo()
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    files.write_fmnist(tmp_path / "fmnist", train=70)
    assert len(load_dataset(fmnist.FASHION_MNIST, str(tmp_path))["x"]) == 70


def test_a_damaged_cache_is_made_anew(tmp_path):
    files.write_fmnist(tmp_path / "fmnist")
    load_dataset(fmnist.FASHION_MNIST, str(tmp_path))
    for path in (tmp_path / "cache").rglob("*.npy"):
        path.write_bytes(path.read_bytes()[:40])
    assert len(load_dataset(fmnist.FASHION_MNIST, str(tmp_path))["x"]) == 60
    next((tmp_path / "cache").rglob("test_y.npy")).unlink()  # as sweepers of old files do
    assert len(load_dataset(fmnist.FASHION_MNIST, str(tmp_path))["test_y"]) == 20


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "file"))
    files.write_fmnist(tmp_path / "fmnist")
    assert len(load_dataset(fmnist.FASHION_MNIST, str(tmp_path))["x"]) == 60
    assert "cannot be kept" in capsys.readouterr().err


def test_the_environment_names_the_folder_too(tmp_path, monkeypatch):
    files.write_fmnist(tmp_path / "fashion-mnist")
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    assert len(load_dataset(fmnist.FASHION_MNIST, "")["x"]) == 60
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "nowhere"))
    _fails(fmnist.FASHION_MNIST, "", "no data folder", "EQUIPOISE_DATA")


def test_what_to_download_when_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    for source in (
        fmnist.FASHION_MNIST,
        cifar.CIFAR10_SOURCE,
        cifar.CIFAR100_SOURCE,
        tinyimagenet.TINY_IMAGENET,
    ):
        _fails(source, tmp_path, f"'{source.name}' is not in", "http", "pip install datasets")
    _fails(shakespeare.SHAKESPEARE, "", "--data or EQUIPOISE_DATA", "100.txt")


def _stub_hub(monkeypatch, load_dataset):
    stub = types.ModuleType("datasets")
    stub.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", stub)


def test_the_hub_is_asked_when_nothing_is_local(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 28, 28)).astype(np.uint8)
    table = pyarrow.table(
        {"image": [{"bytes": files.png(p), "path": None} for p in pixels], "label": [0, 1, 2, 3]}
    )
    split = types.SimpleNamespace(data=types.SimpleNamespace(table=table))
    asked = []
    _stub_hub(monkeypatch, lambda name: asked.append(name) or {"train": split, "test": split})
    got = load_dataset(fmnist.FASHION_MNIST, "")
    assert asked == ["zalando-datasets/fashion_mnist"]
    assert (got["x"][..., 0] == pixels).all()
    load_dataset(fmnist.FASHION_MNIST, "")
    assert len(asked) == 1  # the second time it is in the cache


def test_a_hub_out_of_reach_is_one_sentence(monkeypatch):
    def unreachable(name):
        raise ConnectionError("no route to host\nand a long story")

    _stub_hub(monkeypatch, unreachable)
    _fails(cifar.CIFAR10_SOURCE, "", "cifar-10-python.tar.gz", "no route to host")


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    files.write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    _fails(tinyimagenet.TINY_IMAGENET, tmp_path, "PIL", "pip install 'equipoise[data]'")
