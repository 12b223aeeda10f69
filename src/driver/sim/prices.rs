//! What each driver call costs the host: the one table of prices.

use super::Call;

/// The price of a driver function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// Nanoseconds for each call; for unmap, for each mapping that it takes away.
    pub base_ns: u64,
    /// Nanoseconds for each MiB of memory that the call is about.
    pub per_mib_ns: u64,
}

/// A price for each driver function.
///
/// The default is an A100 as far as figures have been published; every other figure is an estimate and marked so.
/// Failed calls cost the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices([Price; Call::COUNT]);

impl Default for Prices {
    fn default() -> Self {
        Self(std::array::from_fn(|index| price(Call::ALL[index])))
    }
}

impl Prices {
    /// Every call at no cost.
    #[must_use]
    pub fn free() -> Self {
        Self([Price::default(); Call::COUNT])
    }

    /// The price of a function.
    #[must_use]
    pub const fn get(&self, call: Call) -> Price {
        self.0[call as usize]
    }

    /// Sets the price of a function.
    pub const fn set(&mut self, call: Call, price: Price) {
        self.0[call as usize] = price;
    }

    /// Nanoseconds that a call about that many bytes costs.
    #[must_use]
    pub fn cost(&self, call: Call, bytes: u64) -> u64 {
        let Price { base_ns, per_mib_ns } = self.get(call);
        // In u128 no number of bytes overflows.
        let memory = u128::from(bytes) * u128::from(per_mib_ns) / (1 << 20);
        base_ns.saturating_add(u64::try_from(memory).unwrap_or(u64::MAX))
    }
}

const fn each(base_ns: u64) -> Price {
    Price { base_ns, per_mib_ns: 0 }
}

const fn price(call: Call) -> Price {
    match call {
        // kvcached, benchmarks, A100, 4096 handles of 2 MiB, one thread, averages: create 193 us, map 1.45, set access
        // 36, unmap 25.6, reserve 19 (8 GB at once). That the cost goes with the number of handles and hardly with
        // their size: pytorch/pytorch#96995 ("10 separate 2 MiB pages take 10x one 20 MiB allocation"). The part that
        // goes with size is that of cuMemAlloc below; the base is the rest of the 193 us.
        Call::MemCreate => Price {
            base_ns: 191_200,
            per_mib_ns: 900,
        },
        Call::MemMap => each(1_450),
        // Measured on single pages. Charged once a call, whatever its range: an estimate in favour of one call over a run
        // of mappings; no figure for long runs is published.
        Call::MemSetAccess => each(36_000),
        Call::MemUnmap => each(25_600),
        Call::MemAddressReserve => each(19_000),
        // Estimates: no figures found. As the calls that they undo.
        Call::MemAddressFree => each(19_000),
        Call::MemRelease => each(25_600),
        // JuliaGPU/CuArrays.jl#414, RTX 5000, a real network: cudaMalloc 59 us, cudaFree 46 us on average. By size:
        // ggml-org/llama.cpp#5429, A10: 16 GB in 10 to 20 ms, thus about 0.9 us a MiB.
        Call::MemAlloc => Price {
            base_ns: 59_000,
            per_mib_ns: 900,
        },
        Call::MemFree => each(46_000),
        // kvcached, benchmarks: cudaMemGetInfo about 6 us.
        Call::MemGetInfo => each(6_000),
        // Estimates: pinning is a page-table walk in the kernel, some 100 ns for each page of 4 KiB.
        Call::MemHostAlloc => Price {
            base_ns: 50_000,
            per_mib_ns: 25_600,
        },
        Call::MemFreeHost => Price {
            base_ns: 50_000,
            per_mib_ns: 12_800,
        },
        // Estimates: no figures found. As a stream, whose bookkeeping is of the same kind.
        Call::MemPoolCreate | Call::MemPoolDestroy | Call::MemPoolSetAttribute => each(20_000),
        // As cuMemFree, for what it gives back.
        Call::MemPoolTrimTo => each(46_000),
        // A block that the pool keeps costs about 1 us; one that it takes from the device costs what cuMemAlloc does, beside.
        Call::MemAllocFromPoolAsync | Call::MemFreeAsync => each(1_000),
        // Estimates, uncontended. With many threads records have been seen at 23 us (cms-patatrack/
        // pixeltrack-standalone#218) and 114 us (rapidsai/rmm#448).
        Call::EventRecord => each(1_500),
        Call::EventCreate | Call::EventDestroy | Call::EventQuery | Call::StreamWaitEvent => each(1_000),
        Call::EventSynchronize | Call::StreamSynchronize | Call::CtxSynchronize => each(5_000),
        Call::StreamCreate | Call::StreamDestroy => each(20_000),
        Call::LaunchKernel | Call::GraphLaunch => each(5_000),
        Call::StreamBeginCapture | Call::StreamEndCapture => each(5_000),
        Call::StreamQuery | Call::EventElapsedTime => each(1_000),
        // Estimates: look-ups in the driver's own tables.
        Call::StreamGetId | Call::StreamIsCapturing | Call::MemGetAddressRange => each(50),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_figures_are_met() {
        let prices = Prices::default();
        assert_eq!(prices.cost(Call::MemCreate, 2 << 20), 193_000);
        assert_eq!(prices.cost(Call::MemSetAccess, 8 << 30), 36_000);
        let ms = prices.cost(Call::MemAlloc, 16 << 30) / 1_000_000;
        assert!((10..=20).contains(&ms), "16 GiB in {ms} ms");
    }

    #[test]
    fn no_size_overflows() {
        let mut prices = Prices::free();
        assert_eq!(prices.cost(Call::MemAlloc, u64::MAX), 0);
        prices.set(
            Call::MemAlloc,
            Price {
                base_ns: 1,
                per_mib_ns: u64::MAX,
            },
        );
        assert_eq!(prices.cost(Call::MemAlloc, u64::MAX), u64::MAX);
    }
}
