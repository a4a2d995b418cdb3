"""Streams: every image exactly once, ordered by STC, dealt by rule; and where images come from."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sofed_flwr.build import build_dataset, build_streams
from sofed_flwr.config.instantiate import build
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.records import Labels
from sofed_flwr.datasets import cache
from sofed_flwr.datasets.cache import open_split
from sofed_flwr.datasets.npz import Npz
from sofed_flwr.datasets.partition import IID, Blocks, ByClass, Dirichlet, stc_order
from sofed_flwr.datasets.shapes import CLASS_NAMES, Shapes
from sofed_flwr.datasets.subset import proportional
from tests.datasets.test_folder import save_image
from tests.support.federation import compose_once, conf_names, labelled
from tests.support.published import write_published


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def run_lengths(values: Labels) -> list[int]:
    edges = np.flatnonzero(np.diff(values)) + 1
    return np.diff([0, *edges, len(values)]).tolist()


def test_stc_order_is_a_permutation_of_same_class_blocks() -> None:
    labels = labelled([12, 8, 4]).labels
    order = stc_order(labels, 4, rng())
    assert sorted(order) == list(range(24))
    blocks = labels[order].reshape(-1, 4)
    assert (blocks == blocks[:, :1]).all()
    assert sorted(blocks[:, 0]) == [0, 0, 0, 1, 1, 2]
    assert blocks[:, 0].tolist() != [0, 0, 0, 1, 1, 2]


def test_a_class_that_is_no_multiple_of_stc_ends_in_a_shorter_block_and_loses_nothing() -> None:
    labels = labelled([10, 7]).labels
    order = stc_order(labels, 4, rng())
    assert sorted(order) == list(range(17))
    assert len(run_lengths(labels[order])) <= 3 + 2


def test_a_larger_stc_means_longer_runs_and_stc_1_is_a_shuffle() -> None:
    labels = labelled([100] * 5).labels
    longest = [max(run_lengths(labels[stc_order(labels, stc, rng())])) for stc in (1, 10, 100)]
    assert longest[0] < 10 <= longest[1] < 100 <= longest[2]


PARTITIONS = {
    "iid": IID(),
    "blocks": Blocks(stc=7),
    "by_class": ByClass(classes_per_client=2),
    "dirichlet": Dirichlet(alpha=0.5, minimum=5),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_partition_deals_each_image_to_one_client_and_repeats_itself(name: str) -> None:
    labels = labelled([31, 40, 29, 50]).labels
    shares = PARTITIONS[name](labels, 4, rng())
    assert len(shares) == 4
    assert sorted(np.concatenate(shares)) == list(range(len(labels)))
    again = PARTITIONS[name](labels, 4, rng())
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))


def test_every_partition_has_a_yaml_and_every_yaml_a_test() -> None:
    assert conf_names("partition") == sorted(PARTITIONS)


@pytest.mark.parametrize("name", ["iid", "blocks"])
def test_shares_are_equal(name: str) -> None:
    sizes = [len(share) for share in PARTITIONS[name](labelled([31, 40, 29, 50]).labels, 4, rng())]
    assert max(sizes) - min(sizes) <= 1


def test_blocks_give_the_papers_cifar10_split() -> None:
    """50,000 images, STC 500, 5 clients: 20 whole blocks each; STC 2500: 4 blocks each (paper, sec. IV-B)."""
    labels = labelled([5000] * 10, size=1).labels
    for stc, blocks in ((500, 20), (2500, 4)):
        for share in Blocks(stc=stc)(labels, 5, rng()):
            assert len(share) == blocks * stc
            assert all(len(set(labels[share[i : i + stc]])) == 1 for i in range(0, len(share), stc))


def test_the_papers_two_wordings_of_stc_2500_are_two_partitions() -> None:
    """Sec. IV-A: "2 classes and 20 classes to each client"; sec. IV-B: "data from four classes" (four blocks)."""
    cifar10, cifar100 = labelled([5000] * 10, size=1).labels, labelled([500] * 100, size=1).labels
    setting = ["experiment=table3_policies", "stream.stc=2500"]
    for stream in build_streams(compose_once(*setting, "partition=by_class"), cifar10):
        assert len(np.unique(cifar10[stream])) == 2
        assert set(run_lengths(cifar10[stream])) <= {2500, 5000}
    counts = [len(np.unique(cifar10[stream])) for stream in build_streams(compose_once(*setting), cifar10)]
    assert set(counts) <= {3, 4}
    fine = ["partition=by_class", "partition.classes_per_client=20", "stream.stc=500"]
    for stream in build_streams(compose_once("experiment=table3_policies", *fine), cifar100):
        assert len(np.unique(cifar100[stream])) == 20


def test_by_class_gives_every_client_its_number_of_classes() -> None:
    labels = labelled([30] * 10).labels
    for share in ByClass(classes_per_client=3)(labels, 7, rng()):
        assert len(np.unique(labels[share])) == 3


def test_a_partition_that_would_lose_a_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"classes_per_client=1 does not deal 10 classes to 5 clients.*2 to 10"):
        ByClass(classes_per_client=1)(labelled([30] * 10).labels, 5, rng())


def test_small_alpha_concentrates_classes_and_large_alpha_spreads_them() -> None:
    labels = labelled([200] * 10).labels

    def largest_class_share(alpha: float) -> float:
        shares = Dirichlet(alpha=alpha, minimum=1)(labels, 5, rng())
        return float(np.mean([np.bincount(labels[s], minlength=10).max() / len(s) for s in shares]))

    assert largest_class_share(0.1) > largest_class_share(100) + 0.2


def test_an_impossible_minimum_is_refused_after_a_bounded_search() -> None:
    with pytest.raises(ValueError, match=r"alpha=0\.5 left a client with fewer than 900 images"):
        Dirichlet(alpha=0.5, minimum=900)(labelled([100] * 10).labels, 5, rng())


def save_npz(path: Path, **arrays: np.ndarray) -> Npz:
    defaults = {
        "train_images": np.zeros((4, 8, 8, 3), np.uint8),
        "train_labels": np.arange(4)[:, None],
        "test_images": np.zeros((2, 8, 8, 3), np.uint8),
        "test_labels": np.arange(2),
    }
    np.savez(path, **{k: v for k, v in (defaults | arrays).items() if v is not None})
    return Npz(path=str(path))


def test_npz_gives_channels_first_images_and_flat_labels(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(256, size=(4, 8, 9, 3), dtype=np.uint8)
    split = save_npz(tmp_path / "data.npz", train_images=images).load()
    assert np.array_equal(split.train.images[1, 2], images[1, :, :, 2])
    assert split.train.labels.tolist() == [0, 1, 2, 3]


def test_gray_npz_images_become_three_channels(tmp_path: Path) -> None:
    split = save_npz(tmp_path / "data.npz", test_images=np.full((2, 8, 8), 9, np.uint8)).load()
    assert split.test.images.shape == (2, 3, 8, 8)


def test_groups_order_the_stream_and_labels_stay_for_the_evaluation(tmp_path: Path) -> None:
    """Four classes of 6 in two groups of 12: blocks of 12 exist among groups only."""
    labels, images = np.repeat(np.arange(4), 6), np.zeros((24, 8, 8, 3), np.uint8)
    groups = labels // 2
    path = save_npz(tmp_path / "data.npz", train_images=images, train_labels=labels, train_groups=groups).path
    config = compose_once("dataset=npz", f"dataset.path={path}", "clients=2", "buffer=4", "stream.stc=12")
    train = build_dataset(config).train
    assert isinstance(train.images, np.memmap)
    assert train.labels.tolist() == labels.tolist()
    assert train.groups.tolist() == groups.tolist()
    streams = build_streams(config, train.groups)
    assert sorted(np.unique(groups[stream]).tolist() for stream in streams) == [[0], [1]]


def test_without_groups_the_classes_are_the_groups(tmp_path: Path) -> None:
    train = open_split(save_npz(tmp_path / "data.npz")).train
    assert train.groups.tolist() == train.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"test_labels": None}, "no 'test_labels'; it holds test_images, train_images, train_labels"),
        ({"train_images": np.zeros((4, 8, 8, 3))}, "train_images is float64"),
        ({"train_groups": np.zeros(3, int)}, "train_groups holds 3 values for 4 images"),
        ({"train_images": np.zeros((3, 8, 8, 3), np.uint8)}, r"train_images is uint8 \(3, 8, 8, 3\) with 4 labels"),
    ],
)
def test_a_file_that_is_not_a_dataset_says_what_is_wrong(tmp_path: Path, arrays: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        save_npz(tmp_path / "data.npz", **arrays).load()


def test_the_cache_decodes_once_shares_and_notices_a_changed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFED_CACHE", str(tmp_path / "cache"))
    dataset = save_npz(tmp_path / "data.npz")
    first = open_split(dataset)
    assert isinstance(first.train.images, np.memmap)
    monkeypatch.setattr(Npz, "load", lambda self: pytest.fail("decoded twice"))
    assert np.array_equal(open_split(dataset).train.images, first.train.images)
    monkeypatch.undo()
    monkeypatch.setenv("SOFED_CACHE", str(tmp_path / "cache"))
    save_npz(tmp_path / "data.npz", train_images=np.ones((4, 8, 8, 3), np.uint8))
    assert open_split(dataset).train.images.max() == 1


def test_a_cached_folder_of_another_layout_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFED_CACHE", str(tmp_path / "cache"))
    dataset = save_npz(tmp_path / "data.npz")
    with monkeypatch.context() as earlier:
        earlier.setattr(cache, "LAYOUT", cache.LAYOUT - 1)
        earlier.setattr(cache, "PARTS", ("images", "labels"))
        open_split(dataset)
    assert open_split(dataset).train.groups.tolist() == [0, 1, 2, 3]
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 2


def test_shapes_are_seeded_balanced_and_never_shared_between_train_and_test() -> None:
    split, again, other = (Shapes(train=205, test=100, seed=seed).load() for seed in (1, 1, 2))
    assert split.train.images.shape == (205, 3, 32, 32)
    assert split.train.images.dtype == np.uint8
    counts = np.bincount(split.train.labels)
    assert len(counts) == len(CLASS_NAMES) == 10
    assert counts.max() - counts.min() <= 1
    assert np.array_equal(split.train.images, again.train.images)
    assert not np.array_equal(split.train.images, other.train.images)
    train, test = ({image.tobytes() for image in half.images} for half in (split.train, split.test))
    assert len(train) == 205
    assert not train & test


DATASETS = ["cifar10", "cifar100", "folder", "npz", "shapes", "svhn"]


def test_every_dataset_has_a_yaml_and_every_yaml_a_test() -> None:
    assert conf_names("dataset") == DATASETS


def tiny(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What makes `dataset=NAME` a few images below `path`."""
    match name:
        case "shapes":
            return ["dataset.train=50"]
        case "npz":
            return [f"dataset.path={save_npz(path / 'data.npz').path}"]
        case "folder":
            for number in range(4):
                save_image(path / f"{number}.png")
            return [f"dataset.path={path}"]
        case _:
            write_published(name, path / "root", monkeypatch)
            return [f"dataset.root={path / 'root'}"]


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_loads_uint8_images_with_labels(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = build(compose_once(f"dataset={name}", *tiny(name, tmp_path, monkeypatch)).dataset, "dataset")
    assert dataset.fingerprint() == dataset.fingerprint()
    split = dataset.load()
    for half in (split.train, split.test):
        assert half.images.dtype == np.uint8
        assert half.images.flags.c_contiguous
        assert half.images.ndim == 4
        assert half.images.shape[:2] == (len(half), 3)
        assert half.labels.dtype == half.groups.dtype == np.int64
        assert half.labels.shape == half.groups.shape == (len(half),)


def test_a_subset_keeps_classes_in_proportion_and_is_the_same_every_time(smoke: Callable[..., RunConfig]) -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    chosen = proportional(labels, 20)
    assert np.bincount(labels[chosen]).tolist() == [12, 6, 2]
    assert np.array_equal(chosen, proportional(labels, 20))

    whole, part = build_dataset(smoke()), build_dataset(smoke("subset.train=50", "subset.test=20"))
    assert (len(part.train), len(part.test)) == (50, 20)
    assert np.bincount(part.train.labels).tolist() == [5] * 10
    images = {image.tobytes() for image in whole.train.images}
    assert all(image.tobytes() in images for image in part.train.images)
    assert len(build_dataset(smoke("subset.train=100000")).train) == len(whole.train)
