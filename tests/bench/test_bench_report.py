"""The bench's arithmetic by hand: percentiles, paired ratios, histograms, the client's reading of a stream."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

from calserve.bench.client import measure
from calserve.bench.report import Samples, histogram_percentile, percentile, write_json
from calserve.bench.workload import Work

HISTOGRAM = """
# TYPE x_seconds histogram
x_seconds_bucket{le="0.001"} 2
x_seconds_bucket{le="0.002"} 6
x_seconds_bucket{le="+Inf"} 8
x_seconds_count 8
"""


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 3.0
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([], 0.5) == 0.0


def test_histogram_percentile_is_linear_within_a_bucket() -> None:
    assert histogram_percentile(HISTOGRAM, "x_seconds", 0.5) == 0.001 + 0.001 * (4 - 2) / 4
    assert histogram_percentile(HISTOGRAM, "x_seconds", 0.99) == 0.002
    assert histogram_percentile(HISTOGRAM, "y_seconds", 0.5) is None


def test_ratio_is_the_median_of_pairs_and_not_of_medians() -> None:
    """A slow minute halves both sides of the second pair: the ratio must not see it."""
    samples = Samples(4, rates={"served": [90.0, 45.0, 99.0], "raw": [100.0, 50.0, 110.0]})
    assert samples.ratio("served", "raw") == 0.9
    assert samples.median("served") == 90.0
    assert samples.ratio("served", "nobody") is None


def test_json_has_every_sample(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write_json(path, [Samples(1, rates={"raw": [1.5, 2.5]})], {"machine": "two cores"})
    read = json.loads(path.read_text())
    assert read["samples"][0]["tokens_per_s"] == {"raw": [1.5, 2.5]}
    assert read["facts"] == {"machine": "two cores"}


def test_client_counts_tokens_from_usage_and_times_from_arrival() -> None:
    """A server of three lines: one event, then usage and the end in a second write."""
    first = b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices": [{"text": "a"}]}\n\n'
    last = b'data: {"choices": [], "usage": {"completion_tokens": 128}}\n\ndata: [DONE]\n\n'
    bodies = []

    def serve(listening: socket.socket) -> None:
        peer, _ = listening.accept()
        head, body = peer.recv(65536).split(b"\r\n\r\n", 1)
        wanted = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(body) < wanted:
            body += peer.recv(65536)
        bodies.append(json.loads(body))
        peer.sendall(first)
        peer.sendall(last)
        peer.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        answer = measure("127.0.0.1", listening.getsockname()[1], "m", Work(((1, 2, 3),), 128))
        thread.join()
    assert answer["tokens"] == 128
    assert 0 < answer["ttft"][0] <= answer["seconds"]
    assert bodies[0]["prompt"] == [1, 2, 3]
    assert (bodies[0]["min_tokens"], bodies[0]["ignore_eos"], bodies[0]["stream"]) == (128, True, True)
