//! Reading untrusted traces: no input panics, and what is written is read back.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

#[path = "common/random_trace.rs"]
mod random_trace;

use flagstone::trace::Trace;
use proptest::prelude::*;
use random_trace::trace;

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
        let about = |trace: &Trace| (trace.has_time(), trace.blocks(), trace.streams());
        prop_assert_eq!(about(&read), about(&trace));
    }
}
