import numpy as np
import pytest
import torch

from nearkin.data.cache import ArrayImages
from nearkin.data.device_images import DeviceImages
from nearkin.data.loader import TrainingLoader, crop_batches, evaluation_batches
from nearkin.data.transforms import ImageRandom, transform_from
from nearkin.samplers import RandomSampler

TRANSFORM = transform_from("mild", size=16)
PIXELS = np.random.default_rng(0).integers(0, 256, (20, 24, 30, 3), dtype=np.uint8)
LABELS = np.arange(20) % 5


def loader(*, workers=2, seed=0, first_batch=0, sampler=None, device=None, transform=TRANSFORM):
    sampler = sampler or RandomSampler(20, batch_size=6, seed=1)
    images = ArrayImages(PIXELS) if device is None else DeviceImages(ArrayImages(PIXELS), torch.device(device))
    return TrainingLoader(images, LABELS, transform, sampler, seed=seed, first_batch=first_batch, workers=workers)


def take(source, count):
    with source:
        batches = iter(source)
        return [next(batches) for _ in range(count)]


def test_batches_hold_the_rows_that_the_sampler_drew():
    expected = RandomSampler(20, batch_size=6, seed=1)
    for number, batch in enumerate(take(loader(), 5)):
        assert batch.number == number
        assert batch.rows.tolist() == expected.next_batch().tolist()
        assert batch.labels.tolist() == LABELS[batch.rows].tolist()
        assert batch.images.shape == (6, 16, 16, 3)
        assert batch.images.dtype == torch.uint8


def test_pixels_depend_on_seed_batch_and_place_alone():
    one, four = take(loader(workers=1), 4), take(loader(workers=4), 4)
    for a, b in zip(one, four, strict=True):
        assert torch.equal(a.images, b.images)
    other = take(loader(seed=1), 1)[0]
    assert not torch.equal(other.images, one[0].images)
    assert not torch.equal(one[0].images[0], one[0].images[1])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("crop", ["random-resized", "random", "none"])
@pytest.mark.parametrize("squash", [False, True])
def test_images_on_the_device_have_the_same_boxes_and_flips(device, crop, squash):
    transform = transform_from("mild", size=16, train_crop=crop, squash=squash)
    for a, b in zip(
        take(loader(transform=transform), 4), take(loader(transform=transform, device=device), 4), strict=True
    ):
        assert (a.number, a.rows.tolist()) == (b.number, b.rows.tolist())
        assert b.images.device.type == b.labels.device.type == device
        assert torch.equal(a.labels, b.labels.cpu())
        assert b.images.dtype == torch.uint8
        # Of noise, another box or flip would be some 80 off on average.
        assert (a.images.int() - b.images.cpu().int()).abs().max() <= 2


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("rate", [0.6, 1.0])
def test_images_on_the_device_have_the_same_holes(device, rate):
    transform = transform_from("mild", size=16, erase=rate, fill=(1, 20, 254))
    colour, holes = torch.tensor(transform.fill, dtype=torch.uint8), 0
    plain = take(loader(), 6)
    for a, b, whole in zip(
        take(loader(transform=transform), 6), take(loader(transform=transform, device=device), 6), plain, strict=True
    ):
        assert b.images.device.type == device
        there = b.images.cpu()
        assert (a.images.int() - there.int()).abs().max() <= 2
        inside, same = (a.images == colour).all(dim=-1), (a.images == whole.images).all(dim=-1)
        assert torch.equal((there == colour).all(dim=-1), inside)
        assert (inside | same).all(), "what is not erased is as it was"
        holes += int(inside.any(dim=(1, 2)).sum())
    assert holes == 36 if rate == 1 else 10 < holes < 33


@pytest.mark.parametrize("device", [None, "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_loader_begun_later_gives_the_same_batches(device):
    whole = take(loader(device=device), 8)
    source = loader(device=device)
    with source:
        batches = iter(source)
        for _ in range(3):
            next(batches)
        state = source.sampler_state  # the sampler itself is further: it works ahead
        assert source.sampler.state_dict() != state
    sampler = RandomSampler(20, batch_size=6, seed=1)
    sampler.load_state_dict(state)
    for a, b in zip(whole[3:], take(loader(first_batch=3, sampler=sampler, device=device), 5), strict=True):
        assert a.rows.tolist() == b.rows.tolist()
        assert torch.equal(a.images, b.images)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_sampler_that_looks_at_training_is_not_asked_ahead(device):
    class Careful(RandomSampler):
        lookahead = 0

    sampler = Careful(20, batch_size=6, seed=1)
    source = loader(sampler=sampler, device=device)
    with source:
        next(iter(source))
        assert sampler.drawn == 1


def test_an_error_in_a_worker_reaches_the_loop():
    class Broken:
        def __len__(self):
            return 20

        def __getitem__(self, row):
            raise OSError("disk gone")

    source = TrainingLoader(Broken(), LABELS, TRANSFORM, RandomSampler(20, batch_size=6, seed=1), seed=0, workers=2)
    with source, pytest.raises(OSError, match="disk gone"):
        next(iter(source))


def test_evaluation_batches_keep_the_order():
    rows = np.array([7, 3, 3, 19, 0, 11, 12])
    for workers in (1, 3):
        got = torch.cat(
            list(evaluation_batches(ArrayImages(PIXELS), TRANSFORM, batch_size=3, workers=workers, rows=rows))
        )
        expected = np.stack([TRANSFORM.evaluate(PIXELS[row]) for row in rows])
        assert np.array_equal(got.numpy(), expected)
    everything = list(evaluation_batches(ArrayImages(PIXELS), TRANSFORM, batch_size=8))
    assert [len(part) for part in everything] == [8, 8, 4]


@pytest.mark.parametrize("workers", [1, 3])
def test_training_batches_of_some_places_depend_on_the_place_alone(workers):
    images = np.random.default_rng(0).integers(0, 256, (5, 20, 24, 3), dtype=np.uint8)
    transform = transform_from("mild", size=8, resize=10)
    rows = np.array([4, 0, 0, 3, 1, 2])
    given = crop_batches(
        lambda place: transform.train(images[rows[place]], ImageRandom(7).at(9, place)), range(1, 6), 2, workers
    )
    batches = [batch.numpy() for batch in given]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    wanted = [transform.train(images[rows[place]], ImageRandom(7).at(9, place)) for place in range(1, 6)]
    assert np.array_equal(np.concatenate(batches), np.stack(wanted))
    assert not np.array_equal(wanted[0], wanted[1]), "the same image twice is cropped twice"
