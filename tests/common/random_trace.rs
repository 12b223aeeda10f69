//! Random traces.

use flagstone::trace::{Builder, Trace};
use proptest::prelude::*;

/// Any trace: random calls of a builder, of which it refuses those that cannot have happened.
pub fn trace() -> impl Strategy<Value = Trace> {
    // Sizes from a few bytes to many megabytes, about as often each.
    let size = (0..28_u32).prop_flat_map(|bits| 0..1_u64 << bits);
    let call = (0..7_u8, 0..12_u32, size, 0..4_u64, 0..100_u64, 0..3_u64);
    (prop::collection::vec(call, 0..60), any::<bool>(), any::<bool>()).prop_map(|(calls, has_time, has_threads)| {
        let mut builder = Builder::new();
        let mut time = 0;
        for (call, block, size, stream, step, thread) in calls {
            time += step;
            if has_threads {
                builder.in_thread(7 * thread);
            }
            let _ = match call {
                0 => builder.live(size, stream).map(drop),
                1 | 2 => builder.alloc(size, stream, time).map(drop),
                3 => builder.free(block, stream, time),
                4 => builder.use_on(block, stream, time),
                5 => builder.use_done(block, stream, time),
                _ => builder.free_done(block, stream, time),
            };
        }
        builder.finish("random", has_time)
    })
}
