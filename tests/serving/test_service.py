"""Images of concurrent requests are embedded together, and searches do not wait for them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nearkin.serving.service import Embedder


def image(value):
    return np.full((2, 2, 3), value, np.uint8)


class Encoder:
    """Waits with its first batch until it is let go on, and remembers how many images came together."""

    def __init__(self):
        self.go, self.begun, self.sizes = threading.Event(), threading.Event(), []

    def __call__(self, images, batch_size):
        self.sizes.append(len(images))
        self.begun.set()
        assert self.go.wait(30)
        if any(each[0, 0, 0] == 13 for each in images):
            raise RuntimeError("not this one")
        return np.array([[each[0, 0, 0], 1] for each in images], dtype=np.float32)


async def ask(embedder, encoder, values):
    first = asyncio.create_task(embedder.embed(image(values[0])))
    await asyncio.to_thread(encoder.begun.wait, 30)
    others = [asyncio.create_task(embedder.embed(image(value))) for value in values[1:]]
    await asyncio.sleep(0)  # all of them are in the queue
    encoder.go.set()
    return await asyncio.gather(first, *others, return_exceptions=True)


def test_what_arrives_while_one_batch_is_embedded_is_the_next():
    encoder = Encoder()
    embedder = Embedder(encoder, batch_size=4)
    found = asyncio.run(ask(embedder, encoder, range(8)))
    assert [vector.tolist() for vector in found] == [[value, 1] for value in range(8)]
    assert encoder.sizes == [1, 4, 3]
    assert (embedder.images, embedder.batches) == (8, 3)
    embedder.close()


def test_one_image_that_fails_does_not_fail_the_others():
    encoder = Encoder()
    embedder = Embedder(encoder)
    first, second, bad, last = asyncio.run(ask(embedder, encoder, [1, 2, 13, 4]))
    assert [first[0], second[0], last[0]] == [1, 2, 4]
    assert str(bad) == "not this one"
    embedder.close()


def test_what_was_given_up_is_not_embedded():
    encoder = Encoder()
    embedder = Embedder(encoder)

    async def work():
        first = asyncio.create_task(embedder.embed(image(1)))
        await asyncio.to_thread(encoder.begun.wait, 30)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(embedder.embed(image(2)), 0.01)
        encoder.go.set()
        await first
        return await embedder.embed(image(3))

    assert asyncio.run(work())[0] == 3
    assert encoder.sizes == [1, 1]
    embedder.close()


def test_closing_finishes_what_was_given():
    encoder = Encoder()
    embedder = Embedder(encoder)

    async def work():
        tasks = [asyncio.create_task(embedder.embed(image(value))) for value in range(3)]
        await asyncio.to_thread(encoder.begun.wait, 30)
        await asyncio.sleep(0)
        encoder.go.set()
        await asyncio.to_thread(embedder.close)
        return await asyncio.gather(*tasks)

    assert len(asyncio.run(work())) == 3
    assert not embedder._thread.is_alive()


def test_searching_goes_on_while_images_are_embedded_and_added(served, make_model, colours, make_image):
    go, begun = threading.Event(), threading.Event()

    def embed(images, batch_size):
        begun.set()
        assert go.wait(30)
        return colours(images, batch_size)

    client = served(model=make_model(embed))
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(client.post, "/search", files={"image": ("a.png", make_image())})
        assert begun.wait(30)
        begun.clear()
        adding = threads.submit(client.post, "/items", files={"image": ("a.png", make_image())})
        assert begun.wait(30)
        assert client.post("/search", json={"id": 1}).status_code == 200
        assert client.get("/health").json()["items"] == 20
        go.set()
        assert waiting.result().status_code == 200
        assert adding.result().json() == {"id": 20, "added": True}
    assert client.get("/health").json()["items"] == 21
