//! The contract, held against every kind of pool on the simulated device.

mod contract;

use contract::Kind;
use flagstone::Pool;
use flagstone::config::Source;
use flagstone::driver::pinned::Pinned;
use flagstone::driver::sim::{Device, Options, Sim, StreamKind, Work};
use flagstone::driver::{Driver, Stream};

fn stream(device: &Device) -> Stream {
    device.stream_create(StreamKind::NonBlocking).expect("a stream")
}

fn dead_stream(device: &Device) -> Stream {
    let stream = stream(device);
    device.stream_destroy(stream).expect("destroyed");
    stream
}

/// Device memory from one of the sources.
struct OnDevice(Source);

impl Kind for OnDevice {
    type Driver = Sim;

    fn driver(&self, capacity: u64) -> Sim {
        Sim::new(Options {
            capacity,
            backed: false,
            ..Options::default()
        })
    }
    fn source(&self) -> Source {
        self.0
    }
    fn stream(&self, driver: &Sim) -> Stream {
        stream(driver)
    }
    fn dead_stream(&self, driver: &Sim) -> Stream {
        dead_stream(driver)
    }
    fn finish(&self, driver: &Sim) {
        driver.advance(1_000_000_000);
    }
}

/// Pinned host memory.
struct OnHost;

impl Kind for OnHost {
    type Driver = Pinned<Sim>;

    fn driver(&self, capacity: u64) -> Pinned<Sim> {
        Pinned::new(
            Sim::new(Options {
                backed: false,
                ..Options::default()
            }),
            capacity,
        )
    }
    fn source(&self) -> Source {
        Source::Auto
    }
    fn stream(&self, driver: &Pinned<Sim>) -> Stream {
        stream(driver.driver())
    }
    fn dead_stream(&self, driver: &Pinned<Sim>) -> Stream {
        dead_stream(driver.driver())
    }
    fn finish(&self, driver: &Pinned<Sim>) {
        driver.driver().advance(1_000_000_000);
    }
}

mod virtual_memory {
    use super::*;
    contract!(OnDevice(Source::VirtualMemory));
}

mod slabs {
    use super::*;
    contract!(OnDevice(Source::Slabs));
}

mod driver_pool {
    use super::*;
    contract!(OnDevice(Source::DriverPool));
}

mod pinned {
    use super::*;
    contract!(OnHost);
}

#[test]
fn pinned_memory_that_is_short_asks_no_stream_to_wait() {
    let sim = Sim::default();
    let pool = Pool::new(Pinned::new(sim.clone(), 1 << 30), flagstone::Config::default()).expect("a pool");
    pool.set_limit(Some(4 << 20));
    let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
    pool.keep_stream(stream).expect("live");
    let alloc = || pool.alloc(4 << 20, pool.driver().home()).expect("memory");
    let ptr = alloc();
    sim.launch(stream, Work::new().takes(1_000_000)).expect("launched");
    pool.record_stream(ptr, stream).expect("live");
    pool.free(ptr).expect("freed");
    assert_eq!(pool.stats().pending_blocks, 1);
    // The host waits for the copy instead.
    assert_eq!(alloc(), ptr);
    assert_eq!(
        (pool.stats().driver_error_count, pool.stats().stream_wait_count),
        (0, 0)
    );
}

/// Pinned memory of one NUMA node is given out to threads on that node only, whoever freed it.
#[test]
fn pinned_memory_stays_on_its_node() {
    use std::cell::Cell;
    thread_local!(static NODE: Cell<usize> = const { Cell::new(0) });
    let sim = Sim::new(Options {
        backed: false,
        ..Options::default()
    });
    let pool = Pool::new(
        Pinned::with_nodes(sim, 1 << 30, || NODE.get()),
        flagstone::Config::default(),
    )
    .expect("a pool");
    let slab_of = |ptr: u64| {
        let segments = pool.snapshot().segments;
        let slab = segments
            .iter()
            .find(|slab| (slab.addr..slab.addr + slab.bytes).contains(&ptr));
        slab.expect("a segment").addr
    };
    let on = |node: usize| {
        NODE.set(node);
        pool.alloc(3 << 20, pool.driver().home()).expect("memory")
    };
    let (first, second) = (on(0), on(1));
    assert_ne!(slab_of(first), slab_of(second));
    // Freed on the other node.
    pool.free(first).expect("freed");
    assert_ne!(slab_of(on(1)), slab_of(first));
    assert_eq!(on(0), first);
}
