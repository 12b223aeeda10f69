//! The contract, held against every kind of pool on the simulated device.

mod contract;

use contract::Kind;
use flagstone::config::Source;
use flagstone::driver::Stream;
use flagstone::driver::pinned::Pinned;
use flagstone::driver::sim::{Device, Options, Sim, StreamKind};

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
