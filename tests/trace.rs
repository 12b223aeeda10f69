//! Reading untrusted traces: no input panics, and what is written is read back.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

use flagstone::trace::{Builder, Trace};
use proptest::prelude::*;

/// Starts of every format, so that random bytes reach the readers.
const STARTS: [&[u8]; 5] = [
    b"",
    b"op,id,size,stream,t_us\n",
    b"id,lower,upper,size\n",
    b"Thread,Time,Action,Pointer,Size,Stream\n",
    b"\x80\x04}\x8c\x0ddevice_traces",
];

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(start in 0..STARTS.len(), rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Trace::read("bytes", [STARTS[start], &rest].concat().as_slice());
    }

    #[test]
    fn arbitrary_rows_never_panic(
        start in 1..4_usize,
        rows in prop::collection::vec("[pafcxegrmuo0-9]{0,2},[0-9-]{0,3},[0-9]{0,20},[a-z0-9]{0,6}(,[0-9]{0,4})?", 0..20),
    ) {
        let text = [STARTS[start], rows.join("\n").as_bytes()].concat();
        let _ = Trace::read("rows", text.as_slice());
    }

    /// Opcodes of plain data with small operands: programs that get far before they fail.
    #[test]
    fn arbitrary_pickles_never_panic(
        program in prop::collection::vec(prop::sample::select(b"N(.012]}ea)tlduqhK\x85\x86\x87\x88\x8f\x90\x91\x94\x00\x01".to_vec()), 0..100),
    ) {
        let _ = Trace::read("pickle", [b"\x80\x04".as_slice(), &program].concat().as_slice());
    }

    #[test]
    fn what_is_written_is_read_back(trace in trace()) {
        let mut written = Vec::new();
        trace.write(&mut written).unwrap();
        let read = Trace::read(trace.name(), written.as_slice()).unwrap();
        prop_assert_eq!(read.events(), trace.events());
        prop_assert_eq!((read.has_time(), read.blocks(), read.streams()), (trace.has_time(), trace.blocks(), trace.streams()));
    }
}

/// Any trace: random calls of a builder, of which it refuses those that cannot have happened.
fn trace() -> impl Strategy<Value = Trace> {
    let call = (0..7_u8, 0..12_u32, 0..5000_u64, 0..4_u64, 0..100_u64);
    (prop::collection::vec(call, 0..60), any::<bool>()).prop_map(|(calls, has_time)| {
        let mut builder = Builder::new();
        let mut time = 0;
        for (call, block, size, stream, step) in calls {
            time += step;
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
