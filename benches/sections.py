"""The sections of BENCHMARKS.md: what each says, and what measures it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import measures


class Section(NamedTuple):
    """One section: `measure` gives what the braces in `text` name."""

    heading: str
    text: str
    measure: Callable[[measures.Options], measures.Found]


REPLAYED = """
on torch's allocators and on flagstone under torch (`flagstone bench fragmentation`, torch on the simulated CUDA), 3
passes: peak active over peak held bytes, with a lag of 5 ms and, in parentheses, of 0; milliseconds in the driver in
the first pass by the price list; and memory calls of flagstone in the first, second and third pass. How torch-async's
pool places blocks is the simulation's own, and simpler than NVIDIA's.

{rows}

{losses}
"""

SECTIONS = {
    "latency": Section(
        "## A pair of alloc and free",
        """
Of a size, again and again (`flagstone bench latency`). Instructions are those within the two C functions.

{rows}

A cudaMalloc and a cudaFree of the demo's recording take {driver} by the price list (`docs/simulation.md`), {times}
times the pair here.
""",
        measures.latency,
    ),
    "threads": Section(
        "## Threads",
        """
Pairs in threads that share nothing but the pool, and blocks that 4 threads put into and take out of one table, whoever
allocated them (`flagstone bench threads`, torch on the simulated CUDA). The allocator `none` is the machine: memory of
the thread's own, where nothing is shared. Ratios are medians over 21 short rounds in which each has its turn; half of
them lie between the two behind the colon.

{rows}
""",
        measures.threads,
    ),
    "handed-over": Section(
        "## Blocks that another thread frees",
        """
One thread allocates blocks of 4 KiB, and another frees them (`flagstone bench producer-consumer`, torch on the
simulated CUDA). The allocator `none` is the handing over alone.

{rows}
""",
        measures.handed_over,
    ),
    "holes": Section(
        "## A pair behind free blocks",
        """
The time should not depend on how many free blocks there are (`flagstone bench holes`).

{rows}
""",
        measures.holes,
    ),
    "random": Section(
        "## Random sizes",
        """
RMM's random_allocations: sizes at random up to the given one, freed in random order, on a device of 16 GiB (`flagstone
bench rmm-random`).

{rows}
""",
        measures.random_sizes,
    ),
    "torch": Section(
        "## Under torch",
        """
A pair of torch's raw_alloc and raw_delete in a compiled loop, and torch.empty and del in Python (`flagstone bench
torch`, torch on the simulated CUDA): nanoseconds for a pair over all threads, medians of 5 rounds in which each
allocator has its turn, and the ratio to torch's own allocator with its spread. torch-plain passes each call on to
cudaMalloc and cudaFree; it and torch-async measure the simulation more than CUDA.

{rows}

{losses}
""",
        measures.pairs_under_torch,
    ),
    "generated": Section("## Fragmentation", "\nTraces of `benches/traces/generate.py`" + REPLAYED, measures.generated),
    "given": Section(
        "## Fragmentation, other traces",
        "\nTraces that are not in this repository (`make bench TRACES=FOLDER`)" + REPLAYED,
        measures.given,
    ),
    "packing": Section(
        "## The known optimum",
        """
Instances whose optimum is known, and which are not in this repository (`make bench LIFETIMES=FILES`; `docs/limits.md`
has those that are made in it). Sizes are scaled so that the most that is live at once is 512 pages of 2 MiB: bytes held
over those, each block placed when it is met (`benches/traces/packing.py`).

{rows}
""",
        measures.packing,
    ),
    "dataloader": Section(
        "## A data loader",
        """
1,000 batches of 0.25 to 4.25 MiB from 8 workers to the device through pinned memory, with copies that are seen to be
done three batches late (`flagstone bench dataloader`, torch on the simulated CUDA). Rates are medians over short rounds
in which each way has its turn, without the first 50 batches; half of the ratios to torch's rate in the same round lie
between the two behind the colon. Processor time is the process's own, without its workers. Pinned bytes are those of
1,000 batches in one run: in use is what batches have, and what copies need that were not seen to be done. A
`Prefetcher` has 8 pieces of 2 MiB, in use as long as it runs. torch counts the bytes that it rounds up to powers of two
as in use.

{rows}
""",
        measures.loader,
    ),
    "demo": Section(
        "## A recorded model",
        """
What four allocators make of a GPT in training with sequences of varying length (`flagstone demo`), simulated.
Utilisation is bytes in use at the peak over bytes held from the driver at the peak.

{rows}
""",
        measures.demo,
    ),
    "history": Section(
        "## Recording a history",
        """
A pair of alloc and free of 4 KiB in a compiled loop, and the call of a Python function that does nothing, nanoseconds
(`flagstone bench history`).

{rows}
""",
        measures.history,
    ),
    "page": Section(
        "## The page of a recording",
        """
`flagstone report` of a trace of 100,000 allocations and frees, opened from a file in a headless browser: milliseconds
from the beginning of the navigation to the frame after the first whole drawing, median of 5 (`benches/report_page.py`).

{rows}
""",
        measures.page,
    ),
    "soak": Section(
        "## Soak",
        """
Threads that come and go, streams, frees by other threads, shortage, failing driver calls and captures, all at once on a
simulated device under its checker (`make soak`, `benches/soak.rs`). Operations are allocations and frees.

{rows}
""",
        measures.soak,
    ),
}
