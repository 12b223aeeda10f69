//! The rules of capture.

use super::*;
use crate::driver::Event;
use crate::driver::sim::{Options, StreamKind, Work, exchange_capture_mode};

/// A device with two streams that are not blocking and an event.
fn scene() -> (Device, Stream, Stream, Event) {
    let device = Device::new(Options::default());
    let stream = || device.stream_create(StreamKind::NonBlocking).expect("a stream");
    let (a, b, event) = (stream(), stream(), device.event_create(false).expect("an event"));
    (device, a, b, event)
}

/// Runs the function in another thread, in that capture mode.
fn elsewhere<T: Send>(mode: CaptureMode, function: impl FnOnce() -> T + Send) -> T {
    let in_mode = || {
        exchange_capture_mode(mode);
        function()
    };
    std::thread::scope(|scope| scope.spawn(in_mode).join().expect("no panic"))
}

#[test]
fn captured_work_is_carried_out_at_each_launch_of_its_graph() {
    let (device, a, b, _) = scene();
    let addr = device.mem_alloc(512).expect("memory");
    device.stream_begin_capture(a, CaptureMode::Global).expect("a capture");
    device
        .launch(a, Work::new().fills(addr, 512, 7).takes(10))
        .expect("a launch");
    let graph = device.stream_end_capture(a).expect("a graph");
    let byte = || {
        let mut byte = [0];
        device.read(addr, &mut byte).expect("memory");
        byte[0]
    };
    device.advance(100);
    assert_eq!((byte(), graph.len(), device.stream_query(a)), (0, 1, Ok(true)));
    for _ in 0..2 {
        device.graph_launch(&graph, b).expect("a launch");
        assert_eq!(byte(), 0);
        device.advance(10);
        assert_eq!(byte(), 7);
        device.write(addr, &[0]).expect("memory");
    }
    assert!(
        device.check_handout(addr, 512, a).is_err(),
        "the last launch may still use it"
    );
}

#[test]
fn beginning_and_ending() {
    let (device, a, b, event) = scene();
    let begin = |stream| device.stream_begin_capture(stream, CaptureMode::ThreadLocal);
    assert_eq!(begin(Stream::LEGACY), Err(Code::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(device.stream_end_capture(a).err(), Some(Code::ILLEGAL_STATE));
    assert_eq!(begin(a), Ok(()));
    assert_eq!(begin(a), Err(Code::ILLEGAL_STATE));
    let (status, first) = device.stream_get_capture_info(a).expect("a capture");
    assert_eq!(
        (status, device.stream_is_capturing(b)),
        (CaptureStatus::Active, Ok(CaptureStatus::None))
    );
    device.event_record(event, a).expect("a record");
    device.stream_wait_event(b, event).expect("a wait");
    assert_eq!(device.stream_end_capture(b).err(), Some(Code::STREAM_CAPTURE_UNMATCHED));
    let end = || device.stream_end_capture(a);
    assert_eq!(
        elsewhere(CaptureMode::Relaxed, end).err(),
        Some(Code::STREAM_CAPTURE_WRONG_THREAD)
    );
    assert!(end().is_ok_and(|graph| graph.is_empty()));
    assert_eq!(begin(a), Ok(()));
    assert!(
        device
            .stream_get_capture_info(a)
            .is_ok_and(|(_, second)| second > first)
    );
    device.abort_capture(a);
    assert_eq!(device.stream_is_capturing(a), Ok(CaptureStatus::None));
    device.stream_begin_capture(a, CaptureMode::Relaxed).expect("a capture");
    assert!(
        elsewhere(CaptureMode::Global, end).is_ok(),
        "a relaxed one can be ended anywhere"
    );
    assert_eq!(device.violations(), []);
}

#[test]
fn unsafe_calls_fail_and_invalidate_by_the_modes_of_capture_and_thread() {
    use CaptureMode::{Global, Relaxed, ThreadLocal};
    // Capture mode, thread mode, whether the call is allowed to the capturing thread and to another.
    let rule = [
        (Global, Global, false, false),
        (Global, ThreadLocal, false, true),
        (Global, Relaxed, true, true),
        (ThreadLocal, Global, false, true),
        (ThreadLocal, ThreadLocal, false, true),
        (ThreadLocal, Relaxed, true, true),
        (Relaxed, Global, true, true),
        (Relaxed, ThreadLocal, true, true),
        (Relaxed, Relaxed, true, true),
    ];
    for (capture, thread, own, other) in rule {
        for (is_own, allowed) in [(true, own), (false, other)] {
            let (device, a, ..) = scene();
            device.stream_begin_capture(a, capture).expect("a capture");
            let call = || device.mem_alloc(512);
            let result = if is_own {
                let before = exchange_capture_mode(thread);
                let result = call();
                exchange_capture_mode(before);
                result
            } else {
                elsewhere(thread, call)
            };
            let case = format!("capture {capture:?}, thread {thread:?}, own thread {is_own}");
            assert_eq!(result.is_ok(), allowed, "{case}");
            assert_eq!(device.violations().is_empty(), allowed, "{case}");
            let expected = if allowed {
                CaptureStatus::Active
            } else {
                CaptureStatus::Invalidated
            };
            assert_eq!(device.stream_is_capturing(a), Ok(expected), "{case}");
            assert_eq!(
                call().is_ok(),
                capture == Relaxed,
                "{case}: until its end, whether it is valid or not"
            );
            assert_eq!(
                device.stream_end_capture(a).is_ok(),
                allowed && capture == Relaxed,
                "{case}"
            );
            assert!(call().is_ok(), "{case}: after its end");
        }
    }
}

#[test]
fn each_unsafe_call_is_refused_and_the_safe_ones_are_not() {
    let (device, a, b, event) = scene();
    let addr = device.mem_alloc(512).expect("memory");
    let pinned = device.mem_host_alloc(512).expect("memory");
    let refused = |call: &dyn Fn() -> CuResult| {
        device.stream_begin_capture(a, CaptureMode::Global).expect("a capture");
        let result = call();
        device.abort_capture(a);
        assert_eq!(device.take_violations().len(), usize::from(result.is_err()));
        result == Err(Code::STREAM_CAPTURE_UNSUPPORTED)
    };
    let unsafe_calls: [&dyn Fn() -> CuResult; 9] = [
        &|| device.mem_alloc(512).map(drop),
        &|| device.mem_free(addr),
        &|| device.mem_host_alloc(512).map(drop),
        &|| device.mem_free_host(pinned),
        &|| device.event_query(event).map(drop),
        &|| device.event_synchronize(event),
        &|| device.stream_query(b).map(drop),
        &|| device.stream_synchronize(b),
        &|| device.ctx_synchronize(),
    ];
    for (index, call) in unsafe_calls.iter().enumerate() {
        assert!(refused(call), "unsafe call {index}");
    }
    assert!(!refused(&|| device.mem_get_info().map(drop)));
    assert!(!refused(&|| device.mem_create(2 << 20).map(drop)));
    assert!(!refused(&|| device.event_record(event, b)));
    assert!(!refused(&|| device.stream_get_id(b).map(drop)));
    assert!(
        device.mem_free(addr).is_ok() && device.mem_free_host(pinned).is_ok(),
        "nothing had been freed"
    );
}

#[test]
fn some_calls_are_refused_even_in_relaxed_mode() {
    let (device, a, _, event) = scene();
    let refused = |call: &dyn Fn() -> CuResult| {
        device.stream_begin_capture(a, CaptureMode::Relaxed).expect("a capture");
        device.event_record(event, a).expect("a record");
        let code = call().expect_err("an error");
        assert_eq!(
            device.stream_end_capture(a).err(),
            Some(Code::STREAM_CAPTURE_INVALIDATED)
        );
        code
    };
    assert_eq!(refused(&|| device.event_query(event).map(drop)), Code::CAPTURED_EVENT);
    assert_eq!(refused(&|| device.event_synchronize(event)), Code::CAPTURED_EVENT);
    assert_eq!(
        refused(&|| device.stream_query(a).map(drop)),
        Code::STREAM_CAPTURE_UNSUPPORTED
    );
    assert_eq!(
        refused(&|| device.stream_synchronize(a)),
        Code::STREAM_CAPTURE_UNSUPPORTED
    );
    assert_eq!(
        refused(&|| device.stream_get_id(a).map(drop)),
        Code::STREAM_CAPTURE_UNSUPPORTED
    );
    assert_eq!(refused(&|| device.stream_destroy(a)), Code::STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(refused(&|| device.ctx_synchronize()), Code::STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(
        device.event_query(event),
        Err(Code::CAPTURED_EVENT),
        "also after the capture"
    );
}

#[test]
fn streams_fork_from_a_capture_and_must_be_joined() {
    for join in [true, false] {
        let (device, a, b, event) = scene();
        device.stream_begin_capture(a, CaptureMode::Global).expect("a capture");
        device.event_record(event, a).expect("a record");
        device.stream_wait_event(b, event).expect("a wait");
        assert_eq!(device.stream_is_capturing(b), Ok(CaptureStatus::Active));
        device.launch(b, Work::new()).expect("a launch");
        if join {
            device.event_record(event, b).expect("a record");
            device.stream_wait_event(a, event).expect("a wait");
        }
        let end = device.stream_end_capture(a);
        assert_eq!(
            end.err(),
            if join {
                None
            } else {
                Some(Code::STREAM_CAPTURE_UNJOINED)
            }
        );
        assert_eq!(device.stream_is_capturing(b), Ok(CaptureStatus::None));
        assert_eq!(
            device.stream_wait_event(b, event),
            Err(Code::CAPTURED_EVENT),
            "its capture is over"
        );
    }
}

#[test]
fn captures_are_kept_apart_from_other_work_and_from_each_other() {
    let (device, a, b, event) = scene();
    device.event_record(event, b).expect("a record");
    device.stream_begin_capture(a, CaptureMode::Relaxed).expect("a capture");
    assert_eq!(device.stream_wait_event(a, event), Err(Code::STREAM_CAPTURE_ISOLATION));
    assert_eq!(device.launch(a, Work::new()), Err(Code::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(device.event_record(event, a), Err(Code::STREAM_CAPTURE_INVALIDATED));
    device.abort_capture(a);
    device.stream_begin_capture(a, CaptureMode::Relaxed).expect("a capture");
    device.stream_begin_capture(b, CaptureMode::Relaxed).expect("a capture");
    device.event_record(event, a).expect("a record");
    assert_eq!(device.stream_wait_event(b, event), Err(Code::STREAM_CAPTURE_MERGE));
    for stream in [a, b] {
        assert_eq!(
            device.stream_end_capture(stream).err(),
            Some(Code::STREAM_CAPTURE_INVALIDATED)
        );
    }
}

#[test]
fn the_legacy_stream_disturbs_captures_of_blocking_streams_only() {
    for (kind, disturbs) in [(StreamKind::Blocking, true), (StreamKind::NonBlocking, false)] {
        let device = Device::new(Options::default());
        let stream = device.stream_create(kind).expect("a stream");
        device
            .stream_begin_capture(stream, CaptureMode::Relaxed)
            .expect("a capture");
        let implicit = disturbs.then_some(Code::STREAM_CAPTURE_IMPLICIT);
        assert_eq!(device.stream_is_capturing(Stream::LEGACY).err(), implicit);
        assert_eq!(
            device.stream_is_capturing(stream),
            Ok(CaptureStatus::Active),
            "asking does not disturb"
        );
        assert_eq!(device.launch(Stream::LEGACY, Work::new()).err(), implicit);
        assert_eq!(device.stream_end_capture(stream).is_err(), disturbs);
    }
}
