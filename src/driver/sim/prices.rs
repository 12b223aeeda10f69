//! What each driver call costs the host: the one table of prices.

use super::{Call, measured};

/// The price of a driver function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// Nanoseconds for each call; for unmap, for each mapping that it takes away.
    pub base_ns: u64,
    /// Nanoseconds for each MiB of memory that the call is about.
    pub per_mib_ns: u64,
}

/// A price for each driver function, and where the prices are from.
///
/// The default is what `tests/gpu/check.sh` measured last, and for functions that it did not measure, or where it has not been
/// run on a device yet, an A100 as far as figures have been published; every other figure is an estimate and marked so
/// in the source. Failed calls cost the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices {
    table: [Price; Call::COUNT],
    source: &'static str,
}

/// The source of the default prices where none were measured.
const PUBLISHED: &str = "published figures of an A100, and estimates";

impl Default for Prices {
    fn default() -> Self {
        let mut prices = Self {
            table: std::array::from_fn(|index| published(Call::ALL[index])),
            source: measured::SOURCE.unwrap_or(PUBLISHED),
        };
        for &(call, price) in measured::PRICES {
            prices.table[call as usize] = price;
        }
        prices
    }
}

impl Prices {
    /// Every call at no cost.
    #[must_use]
    pub fn free() -> Self {
        Self {
            table: [Price::default(); Call::COUNT],
            source: "none: every call is free",
        }
    }

    /// Where the prices are from, in words.
    #[must_use]
    pub const fn source(&self) -> &'static str {
        self.source
    }

    /// The price of a function.
    #[must_use]
    pub const fn get(&self, call: Call) -> Price {
        self.table[call as usize]
    }

    /// Sets the price of a function.
    pub const fn set(&mut self, call: Call, price: Price) {
        self.table[call as usize] = price;
        self.source = "set by the program";
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

const fn published(call: Call) -> Price {
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
        Call::LaunchKernel | Call::GraphLaunch | Call::MemsetD8Async => each(5_000),
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
        let prices = Prices {
            table: std::array::from_fn(|index| published(Call::ALL[index])),
            source: PUBLISHED,
        };
        assert_eq!(prices.cost(Call::MemCreate, 2 << 20), 193_000);
        assert_eq!(prices.cost(Call::MemSetAccess, 8 << 30), 36_000);
        let ms = prices.cost(Call::MemAlloc, 16 << 30) / 1_000_000;
        assert!((10..=20).contains(&ms), "16 GiB in {ms} ms");
    }

    #[test]
    fn measured_prices_come_before_published_ones_and_say_so() {
        let prices = Prices::default();
        for call in Call::ALL {
            let measured = measured::PRICES.iter().find(|(measured, _)| measured == call);
            let wanted = measured.map_or_else(|| published(*call), |&(_, price)| price);
            assert_eq!(prices.get(*call), wanted, "{}", call.name());
        }
        assert_eq!(prices.source(), measured::SOURCE.unwrap_or(PUBLISHED));
        assert_eq!(measured::SOURCE.is_none(), measured::PRICES.is_empty());
    }

    #[test]
    fn a_price_that_was_set_is_no_longer_from_where_the_others_are() {
        let mut prices = Prices::default();
        prices.set(Call::MemMap, Price::default());
        assert_eq!(prices.source(), "set by the program");
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
