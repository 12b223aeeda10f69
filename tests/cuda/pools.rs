//! The contract, held against pools on the CUDA driver.

use std::time::Duration;

use flagstone::config::Source;
use flagstone::driver::cuda::Cuda;
use flagstone::driver::{Driver, Stream};

use crate::contract::{self, Kind};
use crate::libcuda::{Library, with_driver};
use crate::program::{control, dead_stream, stream};

/// Device memory from one of the sources.
struct OnCuda(Source);

impl Kind for OnCuda {
    type Driver = Cuda;

    fn driver(&self, capacity: u64) -> Cuda {
        let cuda = Cuda::new(0).expect("the simulated device");
        // SAFETY: the type is the one that the library declares.
        unsafe { control::<unsafe extern "C" fn(i32, u64)>("simcuda_leave")(0, capacity) };
        cuda
    }
    fn source(&self) -> Source {
        self.0
    }
    fn stream(&self, _: &Cuda) -> Stream {
        stream()
    }
    fn dead_stream(&self, _: &Cuda) -> Stream {
        dead_stream()
    }
    fn finish(&self, driver: &Cuda) {
        driver.synchronize(Duration::MAX).expect("nothing captures");
    }
    fn run<F: FnOnce()>(&self, test: F) {
        with_driver(&Library::Simulated, &[], test);
    }
}

mod virtual_memory {
    use super::*;
    contract!(OnCuda(Source::VirtualMemory));
}

mod slabs {
    use super::*;
    contract!(OnCuda(Source::Slabs));
}
