"""Random calls of torch's hooks against a naive reference: `python hooks.py SEED STEPS`, in a process of its own."""

import ctypes
import random
import sys

from flagstone import _core

LIMIT = 64 << 20
# The memory of a simulated device that nobody described.
DEVICE = 24 << 30
SIGNATURES = {
    "alloc": (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p),
    "free": (None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p),
    "init": (None, ctypes.c_int),
    "reset": (None,),
    "memory_fraction": (None, ctypes.c_double, ctypes.c_int),
    "base_alloc": (ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    "record_stream": (None, ctypes.c_void_p, ctypes.c_void_p),
    "begin_allocate_to_pool": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p),
    "end_allocate_to_pool": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
    "release_pool": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
}
# The legacy stream by both of its handles, and the thread's own.
STREAMS = (0, 1, 2)
POOLS = (1, 2)


class Model:
    """The hooks, and what is live by the reference: for each address its bytes and its stream."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.live: dict[int, tuple[int, int]] = {}
        self.freed: list[int] = []
        self.open: list[int] = []
        self.held = dict.fromkeys(POOLS, 0)
        self.wrong = 0
        self.refused = 0
        addresses = _core.c_functions()
        self.call = {name: ctypes.CFUNCTYPE(*types)(addresses[name]) for name, types in SIGNATURES.items()}
        self.pool = _core.process_pool()

    def alloc(self) -> None:
        size = self.random.choice((0, 1, 512, 5000, 20_000, 1 << 20, 3 << 20, 20 << 20)) + self.random.randrange(512)
        stream = self.random.choice(STREAMS)
        address = self.call["alloc"](size, 0, stream)
        if address is None:
            self.refused += 1
            return
        assert address % 512 == 0
        bytes_ = self.size_of(address)
        assert bytes_ >= size
        overlap = [other for other in self.live if other < address + bytes_ and address < other + self.size_of(other)]
        assert not overlap, f"{address:#x} overlaps {overlap}"
        self.live[address] = (size, stream)

    def size_of(self, address: int) -> int:
        size = ctypes.c_size_t()
        assert self.call["base_alloc"](address, ctypes.byref(size)) == address
        return size.value

    def free(self) -> None:
        if self.live:
            address = self.random.choice(list(self.live))
            size, _ = self.live.pop(address)
            # The stream is the allocation's and may be dead by now: it says nothing.
            self.call["free"](address, size, 0, self.random.choice((*STREAMS, 0xDEAD)))
            self.freed.append(address)

    def free_wrong(self) -> None:
        gone = [address for address in self.freed[-20:] if address not in self.live]
        address = self.random.choice(gone or [0x1234])
        self.call["free"](address, 1, 0, None)
        self.wrong += 1

    def record_stream(self) -> None:
        if self.live:
            self.call["record_stream"](self.random.choice(list(self.live)), self.random.choice(STREAMS))

    def begin(self) -> None:
        name = self.random.choice(POOLS)
        # No filter: every request of every thread.
        self.call["begin_allocate_to_pool"](0, name, 0, None)
        self.open.append(name)
        self.held[name] += 1

    def end(self) -> None:
        if self.open:
            self.call["end_allocate_to_pool"](0, self.open.pop(), 0)
        else:
            self.call["end_allocate_to_pool"](0, 99, 0)

    def release(self) -> None:
        name = self.random.choice(POOLS)
        self.call["release_pool"](0, name, 0)
        self.held[name] = max(0, self.held[name] - 1)

    def reset(self) -> None:
        self.call["reset"]()

    def fraction(self) -> None:
        self.call["memory_fraction"](self.random.choice((-1.0, 0.0, 0.004, 1.0, 7.0)), 0)
        # A small one would leave the reference nothing to say.
        self.call["memory_fraction"](LIMIT / DEVICE, 0)

    def verify(self) -> None:
        stats = self.pool.stats()
        assert stats.live_blocks == len(self.live)
        assert stats.requested_bytes == sum(size for size, _ in self.live.values())
        assert stats.invalid_free_count + stats.double_free_count == self.wrong
        assert stats.out_of_memory_count == self.refused

    def step(self) -> None:
        actions = {
            self.alloc: 20,
            self.free: 16,
            self.free_wrong: 1,
            self.record_stream: 4,
            self.begin: 1,
            self.end: 1,
            self.release: 1,
            self.reset: 1,
            self.fraction: 1,
        }
        (action,) = self.random.choices(list(actions), list(actions.values()))
        action()
        self.verify()

    def finish(self) -> None:
        while self.live:
            self.free()
        while self.open:
            self.end()
        for name, count in self.held.items():
            for _ in range(count):
                self.call["release_pool"](0, name, 0)
        self.reset()
        self.verify()
        assert self.pool.stats().reserved_bytes == 0, "memory was lost"


def main(seed: int, steps: int) -> None:
    _core.configure("sim", f"limit:{LIMIT}")
    model = Model(seed)
    model.call["init"](1)
    for _ in range(steps):
        model.step()
    model.finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
