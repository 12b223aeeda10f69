"""Pools as metrics, read by the real libraries."""

import re
from pathlib import Path

import opentelemetry.sdk.metrics as sdk
import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly
from prometheus_client.parser import text_string_to_metric_families

import flagstone
from flagstone.metrics._table import METRICS
from flagstone.metrics.opentelemetry import observe
from flagstone.metrics.prometheus import Collector
from flagstone.testing import SimulatedDevice

MIB = 1 << 20


@pytest.fixture
def pool():
    """A pool that has been used, and was short of memory once."""
    pool = flagstone.Pool(SimulatedDevice(capacity=1 << 30, backed=False), limit=64 * MIB)
    pool.alloc_raw(10 * MIB)
    pool.free_raw(pool.alloc_raw(20 * MIB))
    with pytest.raises(flagstone.OutOfMemoryError):
        pool.alloc_raw(60 * MIB)
    with pytest.raises(flagstone.InvalidPointerError):
        pool.free_raw(12345)
    return pool


def scrape(registry):
    """The samples of the pool "mine", by name and label; other tests may have made a pool of the process."""
    text = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        (sample.name, *(value for key, value in sample.labels.items() if key not in {"pool", "device"})): sample
        for sample in samples
        if sample.labels["pool"] == "mine"
    }


def collect(reader):
    """The points of the pool "mine" and their metric, by the metric's name."""
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("flagstone", flagstone.__version__)
    return {
        metric.name: (
            [point for point in metric.data.data_points if point.attributes["flagstone.pool"] == "mine"],
            metric,
        )
        for metric in scope.metrics
    }


def test_prometheus_scrapes_what_stats_says(pool):
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Collector({"mine": pool}))
    samples, stats = scrape(registry), pool.stats()
    assert samples["flagstone_memory_reserved_bytes",].value == stats.reserved_bytes
    assert samples["flagstone_memory_requested_bytes",].value == 10 * MIB
    assert samples["flagstone_memory_limit_bytes",].value == 64 * MIB
    assert samples["flagstone_allocations_total",].value == 2
    assert samples["flagstone_allocated_bytes_total",].value == 30 * MIB
    assert samples["flagstone_driver_returned_bytes_total",].value == stats.given_bytes
    assert samples["flagstone_out_of_memory_total",].value == 1
    assert samples["flagstone_invalid_calls_total", "foreign_pointer"].value == 1
    (step,) = {step for step in stats.steps if step.name == "idle memory given back"}
    assert samples["flagstone_pressure_steps_total", step.name].value == step.count == 1
    assert samples["flagstone_pressure_time_seconds_total", step.name].value == pytest.approx(step.nanoseconds / 1e9)
    assert {sample.labels["device"] for sample in samples.values()} == {"0"}


@pytest.mark.parametrize("what", ["hit", "miss"])
def test_prometheus_has_histograms_of_hits_and_misses(pool, what):
    for _ in range(2000):
        pool.free_raw(pool.alloc_raw(1000))
    registry = CollectorRegistry()
    registry.register(Collector({"mine": pool}))
    buckets = [sample for (name, *_), sample in scrape(registry).items() if name == f"flagstone_{what}_seconds_bucket"]
    counts = [sample.value for sample in buckets]
    assert counts == sorted(counts)
    assert counts[-1] == sum(getattr(pool.stats(), f"{what}_times")) > 0
    bounds = [float(sample.labels["le"]) for sample in buckets]
    assert bounds[0] == 2e-9
    assert bounds[-1] == float("inf")
    assert len(bounds) == len(pool.stats().miss_times)
    samples, stats = scrape(registry), pool.stats()
    assert samples[f"flagstone_{what}_seconds_count",].value == counts[-1]
    assert samples[f"flagstone_{what}_seconds_sum",].value == getattr(stats, f"{what}_nanoseconds") / 1e9
    # Each time is at least the least of its range.
    least = sum(count << place for place, count in enumerate(getattr(stats, f"{what}_times")))
    assert least <= getattr(stats, f"{what}_nanoseconds") + counts[-1] < 3 * least


def test_all_of_it_keeps_the_rules_of_openmetrics(pool):
    """The parser refuses names without their units, counters without `_total`, and histograms that do not add up."""
    registry = CollectorRegistry()
    registry.register(Collector({"mine": pool}))
    families = {family.name: family for family in strictly(openmetrics(registry).decode())}
    assert families.keys() == {family.name for family in registry.collect()}
    for name, family in families.items():
        assert re.fullmatch(r"flagstone(_[a-z]+)+", name)
        assert family.type in {"counter", "gauge", "histogram"}
        assert family.documentation.endswith(".")
        assert all(sample.labels.keys() >= {"pool", "device"} for sample in family.samples)
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_info")), "these are suffixes of samples"


def test_a_second_collector_in_a_registry_is_refused(pool):
    registry = CollectorRegistry()
    registry.register(Collector())
    with pytest.raises(ValueError, match="flagstone_memory_requested"):
        registry.register(Collector({"mine": pool}))


def test_a_pool_without_a_limit_has_no_limit_metric():
    registry = CollectorRegistry()
    registry.register(Collector({"mine": flagstone.Pool(backend="sim")}))
    samples = scrape(registry)
    assert ("flagstone_memory_reserved_bytes",) in samples
    assert ("flagstone_memory_limit_bytes",) not in samples


@pytest.mark.parametrize("name", ["process", "pinned"])
def test_names_that_are_taken(pool, name):
    with pytest.raises(ValueError, match=name):
        Collector({name: pool})


def test_opentelemetry_reads_what_stats_says(pool):
    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    observe(provider.get_meter("flagstone", flagstone.__version__), {"mine": pool})
    metrics, stats = collect(reader), pool.stats()
    assert metrics.keys() == {f"flagstone.{metric.name}" for metric in METRICS}
    (point,), reserved = metrics["flagstone.memory.reserved"]
    assert (point.value, reserved.unit) == (stats.reserved_bytes, "By")
    assert point.attributes == {"flagstone.pool": "mine", "flagstone.device": 0}
    assert not reserved.data.is_monotonic
    (point,), allocations = metrics["flagstone.allocations"]
    assert (point.value, allocations.unit) == (2, "{allocation}")
    assert allocations.data.is_monotonic
    points, _ = metrics["flagstone.invalid_calls"]
    assert {point.attributes["flagstone.kind"]: point.value for point in points}["foreign_pointer"] == 1
    pool.alloc_raw(MIB)
    (point,), _ = collect(reader)["flagstone.allocations"]
    assert point.value == 3
    provider.shutdown()


def test_names_and_units_are_those_of_opentelemetry(pool):
    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    observe(provider.get_meter("flagstone", flagstone.__version__), {"mine": pool})
    for name, (points, metric) in collect(reader).items():
        assert re.fullmatch(r"flagstone(\.[a-z][a-z_]*)+", name)
        assert re.fullmatch(r"By|s|\{[a-z]+\}", metric.unit), "UCUM"
        assert metric.description.endswith(".")
        for point in points:
            assert all(re.fullmatch(r"flagstone\.[a-z]+", key) for key in point.attributes)
            assert point.value >= 0
    provider.shutdown()


def test_the_process_s_pools_are_there_as_soon_as_they_are_made(child):
    ran = child(
        "from flagstone import _core\n"
        "from flagstone.metrics.prometheus import Collector\n"
        "from prometheus_client import CollectorRegistry\n"
        "registry = CollectorRegistry()\n"
        "registry.register(Collector())\n"
        "value = lambda: registry.get_sample_value('flagstone_blocks_live', {'pool': 'process', 'device': '0'})\n"
        "_core.configure('sim')\n"
        "assert value() is None\n"
        "block = _core.process_pool().alloc(1000)\n"
        "assert value() == 1\n"
    )
    assert ran.returncode == 0, ran.stderr


def test_a_forked_child_has_no_metrics(child):
    ran = child(
        "import os, flagstone\n"
        "from flagstone.metrics.prometheus import Collector\n"
        "collector = Collector({'mine': flagstone.Pool(backend='sim')})\n"
        "count = lambda: sum(len(family.samples) for family in collector.collect())\n"
        "assert count() > 0\n"
        "if os.fork() == 0:\n"
        "    os._exit(count())\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("library", ["prometheus", "opentelemetry"])
def test_without_the_library_the_error_says_what_to_install(child, library):
    package = {"prometheus": "prometheus_client", "opentelemetry": "opentelemetry"}[library]
    ran = child(f"import sys; sys.modules[{package!r}] = None\nimport flagstone.metrics.{library}")
    assert ran.returncode == 1
    assert f"pip install 'flagstone[{library}]'" in ran.stderr.splitlines()[-1]


def test_the_page_has_every_metric():
    page = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    told = re.findall(r"^\| `flagstone\.([\w.]+)` \| `(\w+)` \|", page, re.MULTILINE)
    registry = CollectorRegistry()
    registry.register(Collector({"mine": flagstone.Pool(backend="sim", limit=MIB)}))
    names = {sample.name for family in registry.collect() for sample in family.samples}
    assert [name for name, _ in told] == [metric.name for metric in METRICS]
    histograms = {f"flagstone_{what}_seconds_{part}" for what in ("hit", "miss") for part in ("bucket", "count", "sum")}
    assert {name for _, name in told} == names - histograms
    assert histograms < names
