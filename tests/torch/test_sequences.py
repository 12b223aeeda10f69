"""Random programs against a naive reference: every tensor has the value that its program gave it.

A program allocates, writes, uses and drops tensors on several streams of two devices and from two threads, captures,
aborts captures, replays and resets graphs, gives memory back and changes the limit, and keeps to the rules of streams
as a careful user does. `FLAGSTONE_SEQUENCE_STEPS` makes the programs longer, `FLAGSTONE_SEQUENCE_SEED` makes others
of them.
"""

import ctypes
import gc
import os
import random
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import simcuda
import torch
from simcuda import MIB

import flagstone.torch

STEPS = int(os.environ.get("FLAGSTONE_SEQUENCE_STEPS", "250"))
FIRST_SEED = int(os.environ.get("FLAGSTONE_SEQUENCE_SEED", "0"))
DEVICES = 2
MEMORY = 256 * MIB
NON_BLOCKING = 1
PER_THREAD = 2
"""The handle of each thread's own default stream."""


class Item:
    """A tensor, what each of its elements is, the stream that it was allocated on, and others that read it."""

    def __init__(self, tensor: torch.Tensor, value: int, stream: torch.cuda.Stream) -> None:
        self.tensor, self.value, self.stream = tensor, value, stream
        self.readers: list[torch.cuda.Stream] = []


class Graph:
    """A graph, and what it computes: its result is its source and so much more."""

    def __init__(self, stream: torch.cuda.Stream, source: Item) -> None:
        self.graph, self.stream, self.source = torch.cuda.CUDAGraph(), stream, source
        self.result: Item | None = None
        self.added = 0


class Program:
    """A device's part of a program."""

    def __init__(self, rng: random.Random, device: int, other: ThreadPoolExecutor) -> None:
        self.random, self.device, self.other = rng, device, other
        with torch.cuda.device(device):
            self.streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.items: list[Item] = []
        self.graphs: list[Graph] = []
        self.open: Graph | None = None
        self.count = self.refused = 0

    def value(self) -> int:
        self.count += 1
        return self.count

    def eager(self) -> torch.cuda.Stream:
        """Return a stream that does not capture."""
        capturing = self.open.stream if self.open else None
        return self.random.choice([stream for stream in self.streams if stream is not capturing])

    def is_eager(self, item: Item) -> bool:
        return self.open is None or item.stream is not self.open.stream

    def pick(self) -> Item | None:
        items = [item for item in self.items if self.is_eager(item)]
        return self.random.choice(items) if items else None

    def elsewhere(self, call: object) -> object:
        """Call from this thread or the other one."""
        return call() if self.random.random() < 0.7 else self.other.submit(call).result()

    def full(self, value: int, stream: torch.cuda.Stream) -> torch.Tensor:
        # Floats: their kernels are simulated.
        size = self.random.choice((1, 500, 5000, MIB // 4, 5 * MIB // 4, 6 * MIB)) + self.random.randrange(500)
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            return torch.full((size,), float(value), device=f"cuda:{self.device}")

    def alloc(self) -> None:
        stream, value = self.eager(), self.value()
        try:
            tensor = self.elsewhere(lambda: self.full(value, stream))
        except torch.OutOfMemoryError:
            self.refused += 1
            return
        self.items.append(Item(tensor, value, stream))

    def drop(self) -> None:
        graphs = [*self.graphs, *([self.open] if self.open else [])]
        items = [item for item in self.items if not any(item is graph.source for graph in graphs)]
        if items:
            item = self.random.choice(items)
            self.items.remove(item)
            # The last reference goes in the thread that drops it.
            tensors, item.tensor = [item.tensor], None
            self.elsewhere(tensors.clear)

    def write(self) -> None:
        item = self.pick()
        # One that captures cannot be waited for.
        if item and (self.open is None or self.open.stream not in item.readers):
            item.value = self.value()
            for stream in item.readers:
                item.stream.wait_stream(stream)
            item.readers.clear()
            with torch.cuda.stream(item.stream):
                item.tensor.fill_(item.value)

    def use(self) -> None:
        """Compute something of a tensor on another stream."""
        item, stream = self.pick(), self.eager()
        if not item:
            return
        stream.wait_stream(item.stream)
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            try:
                tensor = item.tensor + 1
            except torch.OutOfMemoryError:
                self.refused += 1
                return
        item.tensor.record_stream(stream)
        item.readers.append(stream)
        self.items.append(Item(tensor, item.value + 1, stream))

    def foreign(self) -> None:
        """Allocate on a stream that is gone when the tensor goes."""
        handle = ctypes.c_void_p()
        library = ctypes.CDLL("libcuda.so.1")
        with torch.cuda.device(self.device):
            assert library.cudaStreamCreateWithFlags(ctypes.byref(handle), NON_BLOCKING) == 0
            stream = torch.cuda.ExternalStream(handle.value)
            try:
                tensor = self.full(self.value(), stream)
            except torch.OutOfMemoryError:
                tensor = None
            assert library.cudaStreamDestroy(handle) == 0
        del tensor

    def threads_own(self) -> None:
        """Allocate on the default stream of a thread and use it on another stream."""
        value, stream = self.value(), self.eager()

        def compute() -> torch.Tensor:
            own = torch.cuda.ExternalStream(PER_THREAD, self.device)
            tensor = self.full(value, own)
            stream.wait_stream(own)
            tensor.record_stream(stream)
            with torch.cuda.device(self.device), torch.cuda.stream(stream):
                return tensor + 1

        try:
            tensor = self.elsewhere(compute)
        except torch.OutOfMemoryError:
            self.refused += 1
            return
        self.items.append(Item(tensor, value + 1, stream))

    def begin(self) -> None:
        if self.open is not None or not self.items:
            return
        stream = self.random.choice(self.streams[1:])
        source = self.random.choice(self.items)
        graph = Graph(stream, source)
        for before in self.streams:
            stream.wait_stream(before)
        mode = self.random.choice(("global", "thread_local", "relaxed"))
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            graph.graph.capture_begin(capture_error_mode=mode)
        self.open = graph
        self.step_in_capture()

    def step_in_capture(self) -> None:
        graph = self.open
        with torch.cuda.device(self.device), torch.cuda.stream(graph.stream):
            try:
                before = graph.source.tensor if graph.result is None else graph.result.tensor
                middle = before + 1
                tensor = middle + 1
            except torch.OutOfMemoryError:
                self.refused += 1
                return
        graph.added += 2
        graph.result = Item(tensor, 0, graph.stream)

    def end(self) -> None:
        graph, self.open = self.open, None
        if graph is not None:
            with torch.cuda.device(self.device), torch.cuda.stream(graph.stream):
                graph.graph.capture_end()
            self.graphs.append(graph)

    def abort(self) -> None:
        """Do what no capture survives."""
        graph, self.open = self.open, None
        if graph is not None:
            with pytest.raises(RuntimeError):
                graph.stream.query()
            with torch.cuda.device(self.device), torch.cuda.stream(graph.stream), pytest.raises(RuntimeError):
                graph.graph.capture_end()
            assert all("invalidated capture" in found for found in simcuda.violations())
            simcuda.forgive()

    def replay(self) -> None:
        if not self.graphs or self.open is not None:
            return
        graph, stream = self.random.choice(self.graphs), self.eager()
        for before in self.streams:
            stream.wait_stream(before)
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            graph.graph.replay()
        for after in self.streams:
            after.wait_stream(stream)
        if graph.result is not None and graph.result.tensor is not None:
            graph.result.value = graph.source.value + graph.added
            if graph.result not in self.items:
                self.items.append(graph.result)

    def reset(self) -> None:
        if self.graphs:
            graph = self.graphs.pop(self.random.randrange(len(self.graphs)))
            graph.graph.reset()

    def compare(self) -> None:
        """Compare a tensor whole; reading it waits for its stream."""
        item = self.pick()
        if item and self.open is None and self.others_capture is None:
            self.look_at(item)

    def look_at(self, item: Item) -> None:
        with torch.cuda.stream(item.stream):
            found = item.tensor.cpu()
        assert (found == item.value).all(), f"{found.unique().tolist()} instead of {item.value}"

    def give_back(self) -> None:
        self.random.choice((torch.cuda.empty_cache, torch.cuda.memory_snapshot, gc.collect))()

    def limit(self) -> None:
        fraction = self.random.choice((0.3, 0.5, 1.0))
        torch.cuda.set_per_process_memory_fraction(fraction, self.device)

    def step(self, others: list["Program"]) -> None:
        self.others_capture = next((program for program in others if program.open is not None), None)
        steps = {
            self.alloc: 12,
            self.drop: 9,
            self.write: 4,
            self.use: 4,
            self.foreign: 1,
            self.threads_own: 2,
            self.begin: 2,
            self.end: 2,
            self.abort: 1,
            self.replay: 4,
            self.reset: 1,
            self.compare: 4,
            self.give_back: 1,
            self.limit: 1,
        }
        if self.open is not None:
            steps[self.step_in_capture] = 4
        (step,) = self.random.choices(list(steps), list(steps.values()))
        step()

    def finish(self) -> None:
        self.end()
        torch.cuda.set_per_process_memory_fraction(1.0, self.device)
        while self.graphs:
            self.replay()
            self.reset()
        for item in self.items:
            self.look_at(item)
        self.items.clear()


@pytest.mark.process(install={}, devices=DEVICES, memory=MEMORY, timeout=300)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 8))
def test_a_random_program_gets_what_it_computed(seed):
    # That of a capture that had no memory.
    warnings.filterwarnings("ignore", "The CUDA Graph is empty")
    rng = random.Random(seed)
    with ThreadPoolExecutor(1) as other:
        programs = [Program(rng, device, other) for device in range(DEVICES)]
        for _ in range(STEPS):
            program = rng.choice(programs)
            program.step([others for others in programs if others is not program])
            assert simcuda.violations() == []
        for program in programs:
            program.end()
        for program in programs:
            program.others_capture = None
            program.finish()
    assert sum(program.count for program in programs) > STEPS / 5
    del program, programs
    gc.collect()
    for device in range(DEVICES):
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    for device in range(DEVICES):
        stats = flagstone.torch.memory_stats(device)
        assert (stats.live_blocks, stats.reserved_bytes) == (0, 0), "memory was lost"
