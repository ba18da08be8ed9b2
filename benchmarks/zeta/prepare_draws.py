"""Pack the images of every draw, and the test sets, as compact uint8 files for `simulate_runs.py`."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

IMAGES_PER_DRAW = 100


def read_mnist(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 784] and labels [n] of one official idx pair."""
    images = np.frombuffer((folder / f"{split}-images-idx3-ubyte").read_bytes(), np.uint8, offset=16)
    labels = np.frombuffer((folder / f"{split}-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    return images.reshape(len(labels), -1), labels


def read_cifar(folder: Path, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 3072] and labels [n] of the official binary batches."""
    rows = np.concatenate([np.frombuffer((folder / name).read_bytes(), np.uint8).reshape(-1, 3073) for name in names])
    return rows[:, 1:], rows[:, 0]


def pick(images: np.ndarray, labels: np.ndarray, draws: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Draw `d` is 100 images without replacement from generator `d`: 50 training, then 50 validation."""
    index = np.stack([np.random.default_rng(d).permutation(len(labels))[:IMAGES_PER_DRAW] for d in draws])
    return images[index], labels[index]


def pack_digits(draws: list[int]) -> dict[str, np.ndarray]:
    """scikit-learn's digits: the images of a draw are cut out of its test set by label 255."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = images.astype(np.uint8), labels.astype(np.uint8)
    index = np.stack([np.random.default_rng(d).permutation(len(labels))[:IMAGES_PER_DRAW] for d in draws])
    return {"x": images[index], "y": labels[index], "index": index, "xt": images, "yt": labels}


def main() -> None:
    """Write one file per data set and the test sets once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=Path, required=True, help="folder with mnist/ and cifar10/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", default="0-11", help="ranges of draw numbers, such as 0-11,100-129")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    bounds = [[int(end) for end in part.split("-")] for part in args.draws.split(",")]
    draws = [draw for low, high in bounds for draw in range(low, high + 1)]
    mnist, cifar = args.datasets / "mnist", args.datasets / "cifar10"
    x, y = pick(*read_mnist(mnist, "train"), draws)
    xt, yt = read_mnist(mnist, "t10k")
    np.savez_compressed(args.out / "mnist.npz", x=x, y=y, xt=xt, yt=yt, draws=draws)
    x, y = pick(*read_cifar(cifar, [f"data_batch_{k}.bin" for k in range(1, 6)]), draws)
    xt, yt = read_cifar(cifar, ["test_batch.bin"])
    np.savez_compressed(args.out / "cifar10.npz", x=x, y=y, xt=xt, yt=yt, draws=draws)
    digits: dict[str, Any] = pack_digits(draws)
    np.savez_compressed(args.out / "digits.npz", draws=draws, **digits)


if __name__ == "__main__":
    main()
