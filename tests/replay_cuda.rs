//! Replaying a trace on the CUDA driver, here that of the simulated `libcuda.so.1`.
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[path = "common/libcuda.rs"]
#[allow(dead_code)] // not every library is needed here
mod libcuda;

use flagstone::driver::cuda::Cuda;
use flagstone::replay::{Metered, Options, replay};
use flagstone::trace::Builder;
use flagstone::{Config, Pool};

use libcuda::Library::Simulated;
use libcuda::with_driver;

#[test]
fn a_trace_replays_on_a_cuda_device() {
    with_driver(&Simulated, &[("SIMCUDA_MEMORY", "268435456")], || {
        let mut builder = Builder::new();
        for time in 0..100 {
            let stream = 1 + time % 2;
            let block = builder.alloc(3 << 20, stream, time).unwrap();
            builder.use_on(block, 0, time).unwrap();
            builder.free(block, stream, time).unwrap();
            builder.use_done(block, 0, time).unwrap();
        }
        let trace = builder.finish("cuda", true);
        let pool = Pool::new(Metered::new(Cuda::new(0).unwrap()), Config::default()).unwrap();
        let options = Options {
            passes: 2,
            threads: 2,
            ..Options::default()
        };
        let report = replay(&pool, &trace, &options, &mut |_, _| {}).unwrap();
        assert_eq!((report.backend, report.allocations), ("cuda", 200));
        assert_eq!((report.errors, report.first_error), (0, None));
        assert!(
            report.driver_calls["cuMemCreate"] >= 2,
            "each stream has memory of its own"
        );
        let last = &report.driver_calls_last_pass;
        assert!(
            last["cuEventRecord"] <= 100,
            "one for each recorded use: nothing grows any more"
        );
        assert_eq!(last.get("cuMemCreate"), None);
        assert!(report.driver_time_us.unwrap() > 0.0);
    });
}
