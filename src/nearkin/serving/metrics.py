"""Counts and times in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What was answered and how fast; ``gauges`` are asked when somebody looks.

    >>> metrics = Metrics({"nearkin_items": ("gauge", "Items.", lambda: 3)})
    >>> metrics.note("GET", "/health", 200, 0.001)
    >>> "nearkin_items 3" in metrics.text().splitlines()
    True
    """

    def __init__(self, gauges: Mapping[str, tuple[str, str, Callable[[], float]]]) -> None:
        self._gauges = gauges
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._within: Counter[tuple[str, float]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._count: Counter[str] = Counter()

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """An answer to a request, by the route's pattern: an id in it would make a line for every item."""
        self._requests[method, route, status] += 1
        self._count[route] += 1
        self._seconds[route] += seconds
        for bucket in BUCKETS:
            if seconds <= bucket:
                self._within[route, bucket] += 1

    def text(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# HELP nearkin_requests_total Requests answered."
        yield "# TYPE nearkin_requests_total counter"
        for (method, route, status), n in sorted(self._requests.items()):
            yield f'nearkin_requests_total{{method="{method}",route="{route}",status="{status}"}} {n}'
        yield "# HELP nearkin_request_seconds Time from a request to the end of its answer."
        yield "# TYPE nearkin_request_seconds histogram"
        for route, n in sorted(self._count.items()):
            for bucket in BUCKETS:
                yield f'nearkin_request_seconds_bucket{{route="{route}",le="{bucket}"}} {self._within[route, bucket]}'
            yield f'nearkin_request_seconds_bucket{{route="{route}",le="+Inf"}} {n}'
            yield f'nearkin_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'nearkin_request_seconds_count{{route="{route}"}} {n}'
        for name, (kind, meaning, value) in self._gauges.items():
            yield f"# HELP {name} {meaning}"
            yield f"# TYPE {name} {kind}"
            yield f"{name} {value():g}"
