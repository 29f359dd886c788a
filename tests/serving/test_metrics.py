"""Counts, times and logs of requests.

nearkin.serving.observing, nearkin.serving.logs
"""

from __future__ import annotations

import json
import logging
import re

from nearkin.serving.logs import JsonLines
from nearkin.serving.metrics import BUCKETS, Metrics

SAMPLE = re.compile(r'[a-z_]+(\{[a-z]+="[^"\\\n]*"(,[a-z]+="[^"\\\n]*")*\})? [0-9.e+-]+')


def test_histograms_are_cumulative():
    metrics = Metrics({})
    for seconds in (0.001, 0.02, 0.02, 100.0):
        metrics.note("GET", "/a", 200, seconds)
    text = metrics.text()
    counts = [int(found) for found in re.findall(r'bucket\{route="/a",le="[^"]+"\} (\d+)', text)]
    assert len(counts) == len(BUCKETS) + 1
    assert counts == sorted(counts)
    assert (counts[0], counts[2], counts[-1]) == (1, 3, 4)
    assert 'nearkin_request_seconds_sum{route="/a"} 100.041000' in text
    assert 'nearkin_requests_total{method="GET",route="/a",status="200"} 4' in text


def test_what_is_shown_is_prometheus(client, make_image):
    client.post("/search", files={"image": ("a", make_image())})
    client.post("/search", files={"image": ("a", b"none")})
    for number in range(5):
        client.get(f"/items/{number}")
    client.get('/no"such%0A')
    client.request("BREW", "/items")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    for line in answer.text.splitlines():
        assert line.startswith("# ") or SAMPLE.fullmatch(line), line
    assert 'nearkin_requests_total{method="GET",route="/items/{id}",status="200"} 5' in answer.text
    assert 'nearkin_requests_total{method="POST",route="/search",status="415"} 1' in answer.text
    assert 'route="other",status="404"' in answer.text
    assert "nearkin_items 20" in answer.text
    assert "nearkin_images_embedded_total 1" in answer.text
    assert "nearkin_images_refused_total 1" in answer.text


def test_logs_are_json_and_do_not_hold_what_was_sent(served, caplog):
    client = served(key="a long secret key")
    with caplog.at_level(logging.DEBUG, logger="nearkin.serving"):
        client.get("/items/1?token=secret", headers={"authorization": "Bearer a long secret key"})
        client.get("/items/1/thumbnail", headers={"authorization": "Bearer a long secret key"})
        client.get("/items/1", headers={"authorization": "Bearer wrong"})
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert [line["status"] for line in lines] == [200, 200, 401]
    assert [line["level"] for line in lines] == ["info", "debug", "info"]
    assert lines[0]["path"] == "/items/1"
    assert {"time", "event", "method", "seconds", "client"} <= set(lines[0])
    assert "secret" not in json.dumps(lines)


def test_a_traceback_is_one_line():
    try:
        raise RuntimeError("on\ntwo lines")
    except RuntimeError as error:
        record = logging.LogRecord("a", logging.ERROR, "", 0, "failed", (), (type(error), error, error.__traceback__))
    text = JsonLines().format(record)
    assert "\n" not in text
    assert "two lines" in json.loads(text)["traceback"]
