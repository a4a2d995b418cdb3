"""The buffer moves pixels and counts ages; the stream never loses or doubles an image."""

import numpy as np
import pytest
import torch

from sofed_flwr.core.records import Selection
from sofed_flwr.device.buffer import Buffer
from sofed_flwr.device.stream import Stream
from sofed_flwr.sources.dataset import DatasetSource


def segment(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 3, 2, 2)


def test_a_pool_is_the_buffer_one_iteration_older_then_the_new_segment() -> None:
    buffer = Buffer(2)
    first = buffer.pool(segment(1, 2))
    buffer.keep(first, Selection(torch.tensor([0, 1]), torch.tensor([0.1, 0.2])))
    second = buffer.pool(segment(3))
    assert second.images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert second.ages.tolist() == [1, 1, 0]
    assert second.is_new.tolist() == [False, False, True]
    assert second.scores[:2].tolist() == torch.tensor([0.1, 0.2]).tolist()
    assert second.scores[2].isnan()


def test_a_buffer_keeps_what_was_selected_with_the_scores_it_got() -> None:
    buffer = Buffer(2)
    pool = buffer.pool(segment(1, 2, 3))
    buffer.keep(pool, Selection(torch.tensor([2, 0]), torch.tensor([0.1, 0.2, 0.3])))
    assert buffer.images[:, 0, 0, 0].tolist() == [3, 1]
    torch.testing.assert_close(buffer.scores, torch.tensor([0.3, 0.1]))


def test_a_buffer_comes_back_and_a_smaller_one_keeps_the_youngest() -> None:
    buffer = Buffer(3)
    buffer.images, buffer.scores, buffer.ages = segment(1, 2, 3), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([5, 9, 2])
    same, smaller = Buffer(3), Buffer(2)
    same.load_state_dict(buffer.state_dict())
    smaller.load_state_dict(buffer.state_dict())
    assert same.images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert smaller.images[:, 0, 0, 0].tolist() == [1, 3]


def test_images_of_another_size_make_way(caplog: pytest.LogCaptureFixture) -> None:
    buffer = Buffer(2)
    buffer.keep(buffer.pool(segment(1, 2)), Selection(torch.tensor([0, 1]), torch.zeros(2)))
    pool = buffer.pool(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
    assert (pool.images.shape, pool.ages.tolist()) == ((1, 3, 4, 4), [0])
    assert "images of shape (3, 2, 2) are dropped: the stream gives images of shape (3, 4, 4)" in caplog.text


def test_a_stream_shows_each_image_once_per_pass_over_any_restarts() -> None:
    images = np.arange(10, dtype=np.uint8).reshape(-1, 1, 1, 1).repeat(3, 1)
    order = np.random.default_rng(0).permutation(10)
    seen: list[int] = []
    cursor = None
    for _ in range(5):
        stream = Stream(DatasetSource(images, order), cursor)
        seen += stream.next(4).images[:, 0, 0, 0].tolist()
        cursor = stream.cursor
    assert seen == [*order, *order]


def test_one_segment_may_be_longer_than_the_source() -> None:
    images = np.arange(3, dtype=np.uint8).reshape(-1, 1, 1, 1).repeat(3, 1)
    read = Stream(DatasetSource(images, np.arange(3))).next(7).images
    assert read[:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
