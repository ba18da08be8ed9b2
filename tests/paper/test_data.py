"""The official files: read, verified, downloaded, and drawn from."""

import dataclasses
import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pactune.errors import DataError, SettingError
from pactune.paper import data
from pactune.paper.data import load_images, parse_cifar, parse_idx
from pactune.paper.downloads import CIFAR10, MNIST, Archive, data_home, ensure_files, find_files, user_cache


def idx(array):
    """An array of bytes as an idx file."""
    shape = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes()


def mnist_files(rows=40):
    rng = np.random.default_rng(0)
    files = {}
    for split, count in (("train", rows), ("t10k", 10)):
        files[f"{split}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (count, 28, 28)))
        files[f"{split}-labels-idx1-ubyte"] = idx(rng.integers(0, 10, count))
    return files


def cifar_files():
    rng = np.random.default_rng(1)
    names = list(CIFAR10.sums)
    rows = [np.concatenate([rng.integers(0, 10, (4, 1)), rng.integers(0, 256, (4, 3072))], 1) for _ in names]
    return {name: row.astype(np.uint8).tobytes() for name, row in zip(names, rows, strict=True)}


def archive_of(archive: Archive, files) -> Archive:
    """The same data set with the checksums of other files."""
    return dataclasses.replace(archive, sums={name: hashlib.md5(c).hexdigest() for name, c in files.items()})


def write(folder: Path, files, *, zipped=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_is_read_from_every_usual_place(tmp_path, monkeypatch, place, zipped):
    files = mnist_files()
    monkeypatch.setattr(data, "MNIST", archive_of(MNIST, files))
    write(tmp_path / place, files, zipped=zipped)
    images = load_images("mnist", tmp_path)
    raw = parse_idx(files["t10k-images-idx3-ubyte"])
    assert images.shape == (1, 28, 28)
    x, y = images.test
    assert torch.equal((x * 255).round().to(torch.uint8)[:, 0], torch.tensor(raw))
    assert y.tolist() == parse_idx(files["t10k-labels-idx1-ubyte"]).tolist()
    assert 0 <= x.min() <= x.max() <= 1


def test_cifar_is_read_and_centred(tmp_path, monkeypatch):
    files = cifar_files()
    monkeypatch.setattr(data, "CIFAR10", archive_of(CIFAR10, files))
    write(tmp_path / "cifar10", files)
    images = load_images("cifar10", tmp_path)
    assert images.shape == (3, 32, 32)
    assert len(images.pool[1]) == 20
    pixels, labels = parse_cifar(files["test_batch.bin"])
    assert images.test[1].tolist() == labels.tolist()
    assert torch.allclose(images.test[0], torch.tensor(pixels / 127.5 - 1, dtype=torch.float32), atol=1e-6)


def test_a_file_that_is_not_the_official_one_is_refused(tmp_path):
    write(tmp_path / "mnist", mnist_files())
    with pytest.raises(DataError, match=r"train-images.* is not the official file of mnist: its md5 is [0-9a-f]{32}"):
        find_files(MNIST, tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x08\x01\x00\x00\x00\x09abc", b"PNG....."])
def test_a_damaged_idx_file_is_refused(content):
    with pytest.raises(DataError, match="idx file"):
        parse_idx(content)


def test_a_damaged_cifar_batch_is_refused():
    with pytest.raises(DataError, match="3073 bytes per image, got 5"):
        parse_cifar(b"12345")


def test_download_of_single_files_skips_a_home_that_does_not_answer(tmp_path):
    files, home, said = mnist_files(), tmp_path / "home", []
    write(home, files, zipped=True)
    archive = dataclasses.replace(archive_of(MNIST, files), homes=("file:///nowhere/", f"{home.as_uri()}/"))
    assert ensure_files(archive, tmp_path / "cache", report=said.append) == files
    assert len(said) == 2
    assert find_files(archive, tmp_path / "cache") == files


def test_download_of_a_tar(tmp_path):
    files, buffer = cifar_files(), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (tmp_path / "all.tar.gz").write_bytes(buffer.getvalue())
    archive = dataclasses.replace(archive_of(CIFAR10, files), homes=((tmp_path / "all.tar.gz").as_uri(),))
    assert ensure_files(archive, tmp_path / "cache") == files


def test_without_network_the_error_says_what_to_put_where(tmp_path):
    archive = dataclasses.replace(MNIST, homes=("file:///nowhere/",))
    with pytest.raises(DataError) as error:
        ensure_files(archive, tmp_path)
    words = str(error.value)
    assert all(name in words for name in (*MNIST.sums, str(tmp_path / "mnist"), "--data-dir", "$PACTUNE_DATA"))
    assert not (tmp_path / "mnist").exists()


def test_a_download_that_is_not_the_official_file_is_not_kept(tmp_path):
    write(tmp_path / "home", mnist_files(), zipped=True)
    archive = dataclasses.replace(MNIST, homes=(f"{(tmp_path / 'home').as_uri()}/",))
    with pytest.raises(DataError, match="md5"):
        ensure_files(archive, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_where_data_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PACTUNE_DATA", str(tmp_path))
    assert data_home(None) == tmp_path
    assert data_home(Path("given")) == Path("given")
    monkeypatch.delenv("PACTUNE_DATA")
    assert data_home(None) == user_cache()
    assert load_images("mnist", tmp_path, download=False) is None


def test_draws_are_functions_of_their_number():
    images = load_images("digits")
    one, again, other = images.draw(3), images.draw(3), images.draw(4)
    assert torch.equal(one.train[0], again.train[0])
    assert not torch.equal(one.train[0], other.train[0])
    assert one.train[0].shape == one.valid[0].shape == (50, 1, 28, 28)
    order = np.random.default_rng(3).permutation(len(images.pool[1]))
    assert one.valid[1].tolist() == images.pool[1][torch.tensor(order[50:100])].tolist()
    with pytest.raises(SettingError, match="between 1 and 500"):
        images.draw(0, 501)


def test_the_digits_of_a_draw_are_not_in_the_test_set():
    images = load_images("digits")
    held = {row.numpy().tobytes() for row in images.test[0]}
    assert not any(row.numpy().tobytes() in held for row in images.draw(0).train[0])
    assert len(held) == 797


@pytest.mark.skipif("PACTUNE_DATA" not in os.environ, reason="$PACTUNE_DATA names no folder with the real files")
def test_the_real_files():
    mnist, cifar = load_images("mnist", download=False), load_images("cifar10", download=False)
    if mnist is None or cifar is None:
        pytest.skip("$PACTUNE_DATA lacks a data set")
    assert [len(i.pool[1]) for i in (mnist, cifar)] == [60_000, 50_000]
    assert [len(i.test[1]) for i in (mnist, cifar)] == [10_000, 10_000]
    assert mnist.test[1][:5].tolist() == [7, 2, 1, 0, 4]
    assert cifar.test[1][:5].tolist() == [3, 8, 8, 0, 6]
