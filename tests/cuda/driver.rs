//! The CUDA driver: what each method does, what it leaves as it was, and how it fails.

use std::ffi::{CString, c_char};
use std::ptr::null_mut;
use std::time::Duration;

use cudarc::driver::sys;
use flagstone::driver::cuda::Cuda;
use flagstone::driver::{Driver, DriverError, DriverResult, Event, PoolOptions, Stream};
use flagstone::error::{Error, Unavailable};
use flagstone::{Config, Pool};

use crate::libcuda::Library::{Broken, Simulated, Without};
use crate::libcuda::with_driver;
use crate::program::{SUCCESS, control, enter, leave, stream};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;
const GLOBAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

fn cuda() -> Cuda {
    Cuda::new(0).expect("the simulated device")
}

/// The context that is current, as a number: 0 for none.
fn current() -> usize {
    let mut context = null_mut();
    // SAFETY: the handle is written to a local.
    assert_eq!(unsafe { sys::cuCtxGetCurrent(&mut context) }, SUCCESS);
    context as usize
}

/// Sets the thread's capture mode; the one that it had.
fn exchange(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: the mode is a local.
    assert_eq!(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }, SUCCESS);
    mode
}

/// Begins a capture that forbids unsafe calls in every thread that is not in relaxed mode.
fn begin_capture(stream: Stream) {
    // SAFETY: the stream is live.
    let begun = unsafe { sys::cuStreamBeginCapture_v2(stream.0 as sys::CUstream, GLOBAL) };
    assert_eq!(begun, SUCCESS);
}

fn end_capture(stream: Stream) -> sys::CUresult {
    let mut graph = null_mut();
    // SAFETY: the stream is live; the graph is written to a local.
    unsafe { sys::cuStreamEndCapture(stream.0 as sys::CUstream, &mut graph) }
}

/// Makes the next call of a driver function fail.
fn fail_next(symbol: &str, code: u32) {
    let symbol = CString::new(symbol).expect("no zero in a name");
    // SAFETY: the type is the one that the library declares; the name lives through the call.
    unsafe { control::<unsafe extern "C" fn(*const c_char, u64, u32)>("simcuda_fail")(symbol.as_ptr(), 1, code) };
}

/// How often a driver function was called.
fn calls(symbol: &str) -> u64 {
    let symbol = CString::new(symbol).expect("no zero in a name");
    // SAFETY: the type is the one that the library declares; the name lives through the call.
    unsafe { control::<unsafe extern "C" fn(*const c_char) -> u64>("simcuda_calls")(symbol.as_ptr()) }
}

/// What the driver's methods need: one of everything.
struct Things {
    cuda: Cuda,
    stream: Stream,
    event: Event,
}

impl Things {
    fn new() -> Self {
        let (cuda, stream) = (cuda(), stream());
        let event = cuda.event_create().expect("an event");
        cuda.event_record(event, stream).expect("recorded");
        Self { cuda, stream, event }
    }
}

/// One driver method, called so that it succeeds, and the function behind it.
struct Method {
    symbol: &'static str,
    /// The function's name in errors.
    call: &'static str,
    run: fn(&Things) -> DriverResult<()>,
}

const fn method(symbol: &'static str, call: &'static str, run: fn(&Things) -> DriverResult<()>) -> Method {
    Method { symbol, call, run }
}

/// All driver methods. Each puts the device back as it was.
const METHODS: &[Method] = &[
    method("cuMemGetInfo_v2", "cuMemGetInfo", |t| t.cuda.memory_info().map(drop)),
    method("cuMemAlloc_v2", "cuMemAlloc", |t| t.cuda.free(t.cuda.alloc(PAGE)?)),
    method("cuMemFree_v2", "cuMemFree", |t| {
        let addr = t.cuda.alloc(PAGE)?;
        t.cuda
            .free(addr)
            .inspect_err(|_| t.cuda.free(addr).expect("a failed free changes nothing"))
    }),
    method("cuMemAddressReserve", "cuMemAddressReserve", with_page),
    method("cuMemAddressFree", "cuMemAddressFree", with_page),
    method("cuMemCreate", "cuMemCreate", with_page),
    method("cuMemRelease", "cuMemRelease", with_page),
    method("cuMemMap", "cuMemMap", with_page),
    method("cuMemSetAccess", "cuMemSetAccess", with_page),
    method("cuMemUnmap", "cuMemUnmap", with_page),
    method("cuMemPoolCreate", "cuMemPoolCreate", with_pool),
    method("cuMemPoolSetAttribute", "cuMemPoolSetAttribute", with_pool),
    method("cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", with_pool),
    method("cuMemFreeAsync", "cuMemFreeAsync", with_pool),
    method("cuMemPoolTrimTo", "cuMemPoolTrimTo", with_pool),
    method("cuMemPoolDestroy", "cuMemPoolDestroy", with_pool),
    method("cuStreamCreate", "cuStreamCreate", |t| {
        t.cuda.drop_stream(t.cuda.new_stream()?)
    }),
    method("cuStreamDestroy_v2", "cuStreamDestroy", |t| {
        let stream = t.cuda.new_stream()?;
        twice(|| t.cuda.drop_stream(stream))
    }),
    method("cuStreamGetId", "cuStreamGetId", |t| {
        t.cuda.stream_id(t.stream).map(drop)
    }),
    method("cuStreamIsCapturing", "cuStreamIsCapturing", |t| {
        t.cuda.is_capturing(t.stream).map(drop)
    }),
    method("cuStreamGetCaptureInfo_v2", "cuStreamGetCaptureInfo", |t| {
        t.cuda.capture_id(t.stream).map(drop)
    }),
    method("cuStreamWaitEvent", "cuStreamWaitEvent", |t| {
        t.cuda.stream_wait(t.stream, t.event)
    }),
    method("cuEventCreate", "cuEventCreate", |t| {
        t.cuda.event_destroy(t.cuda.event_create()?)
    }),
    method("cuEventRecord", "cuEventRecord", |t| {
        t.cuda.event_record(t.event, t.stream)
    }),
    method("cuEventQuery", "cuEventQuery", |t| {
        t.cuda.event_query(t.event).map(drop)
    }),
    method("cuEventSynchronize", "cuEventSynchronize", |t| {
        t.cuda.event_synchronize(t.event, Duration::MAX).map(drop)
    }),
    method("cuEventDestroy_v2", "cuEventDestroy", |t| {
        let event = t.cuda.event_create()?;
        t.cuda
            .event_destroy(event)
            .inspect_err(|_| t.cuda.event_destroy(event).expect("a failed call changes nothing"))
    }),
    method("cuCtxSynchronize", "cuCtxSynchronize", |t| {
        t.cuda.synchronize(Duration::MAX).map(drop)
    }),
    method("cuMemHostAlloc", "cuMemHostAlloc", |t| {
        t.cuda.host_free(t.cuda.host_alloc(PAGE)?)
    }),
    method("cuMemFreeHost", "cuMemFreeHost", |t| {
        let addr = t.cuda.host_alloc(PAGE)?;
        t.cuda
            .host_free(addr)
            .inspect_err(|_| t.cuda.host_free(addr).expect("a failed free changes nothing"))
    }),
];

/// What a failed call leaves is cleaned up by a second try.
fn twice(run: impl Fn() -> DriverResult<()>) -> DriverResult<()> {
    run().inspect_err(|_| run().expect("a failed call changes nothing"))
}

/// The whole life of a pool of the driver's own.
fn with_pool(t: &Things) -> DriverResult<()> {
    let pool = t.cuda.pool_create(&PoolOptions::default())?;
    let slab = t.cuda.pool_alloc(pool, PAGE, t.stream);
    let used = slab.and_then(|addr| twice(|| t.cuda.pool_free(addr, t.stream)));
    let trimmed = t.cuda.pool_trim(pool, 0);
    used.and(trimmed).and(twice(|| t.cuda.pool_destroy(pool)))
}

/// A page's whole life.
fn with_page(t: &Things) -> DriverResult<()> {
    let addr = t.cuda.reserve(PAGE)?;
    let created = t.cuda.create(PAGE).and_then(|handle| {
        let mapped = t.cuda.map(addr, PAGE, handle).and_then(|()| {
            let used = t.cuda.set_access(addr, PAGE);
            used.and(twice(|| t.cuda.unmap(addr, PAGE)))
        });
        mapped.and(twice(|| t.cuda.release(handle)))
    });
    created.and(twice(|| t.cuda.unreserve(addr, PAGE)))
}

#[test]
fn a_device_says_what_it_is() {
    let settings = [("SIMCUDA_MEMORY", "1073741824"), ("SIMCUDA_DEVICES", "2")];
    with_driver(&Simulated, &settings, || {
        let cuda = Cuda::new(1).expect("the second device");
        let properties = cuda.properties();
        assert_eq!(
            (properties.ordinal, properties.total_bytes, properties.granularity),
            (1, 1024 * MIB, PAGE)
        );
        assert!(properties.virtual_memory && properties.memory_pools);
        assert!(properties.name.contains("Simulated"), "{}", properties.name);
    });
}

#[test]
fn only_devices_that_exist_are_opened() {
    with_driver(&Simulated, &[("SIMCUDA_DEVICES", "2")], || {
        assert_eq!(Cuda::device_count(), Ok(2));
        for device in [-1, 2, i32::MAX] {
            let error = Cuda::new(device).map(drop).expect_err("no such device");
            assert!(
                matches!(error, Error::NoSuchDevice { device: d, count: 2 } if d == device),
                "{error}"
            );
        }
    });
}

#[test]
fn slabs_come_from_the_device_and_go_back() {
    with_driver(&Simulated, &[("SIMCUDA_MEMORY", "67108864")], || {
        let cuda = cuda();
        let (free, total) = cuda.memory_info().expect("memory");
        assert_eq!(total, 64 * MIB);
        let addr = cuda.alloc(16 * MIB).expect("a slab");
        assert!(addr != 0 && addr.is_multiple_of(512), "{addr:#x}");
        assert_eq!(cuda.memory_info(), Ok((free - 16 * MIB, total)));
        let error = cuda.alloc(64 * MIB).expect_err("more than is left");
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(
            error.to_string(),
            "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (error 2)"
        );
        cuda.free(addr).expect("given back");
        assert_eq!(cuda.memory_info(), Ok((free, total)));
        assert_eq!(
            cuda.free(addr).expect_err("given back already").name,
            "CUDA_ERROR_INVALID_VALUE"
        );
    });
}

#[test]
fn pages_are_mapped_where_asked() {
    with_driver(&Simulated, &[], || {
        let cuda = cuda();
        let before = cuda.memory_info().expect("memory");
        let addr = cuda.reserve(4 * PAGE).expect("addresses");
        assert_eq!(addr % PAGE, 0);
        assert_eq!(cuda.memory_info(), Ok(before), "addresses are not memory");
        let handle = cuda.create(PAGE).expect("a page");
        assert_eq!(cuda.memory_info(), Ok((before.0 - PAGE, before.1)));
        cuda.map(addr + PAGE, PAGE, handle).expect("mapped");
        assert_eq!(cuda.map(addr + PAGE, PAGE, handle).expect_err("taken").call, "cuMemMap");
        cuda.set_access(addr + PAGE, PAGE).expect("accessible");
        cuda.unmap(addr + PAGE, PAGE).expect("unmapped");
        cuda.map(addr, PAGE, handle).expect("mapped elsewhere");
        cuda.unmap(addr, PAGE).expect("unmapped");
        cuda.release(handle).expect("given back");
        cuda.unreserve(addr, 4 * PAGE).expect("given back");
        assert_eq!(cuda.memory_info(), Ok(before));
    });
}

#[test]
fn pages_are_open_to_every_peer() {
    with_driver(&Simulated, &[("SIMCUDA_DEVICES", "3")], || {
        let cuda = Cuda::new(1).expect("a device");
        let addr = cuda.reserve(PAGE).expect("addresses");
        let handle = cuda.create(PAGE).expect("a page");
        cuda.map(addr, PAGE, handle).expect("mapped");
        enter(1);
        let allowed = |device| {
            let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            let mut flags = 0;
            // SAFETY: location and flags are locals.
            let code = unsafe { sys::cuMemGetAccess(&mut flags, &sys::CUmemLocation { type_, id: device }, addr) };
            assert_eq!(code, SUCCESS);
            flags
        };
        assert_eq!([0, 1, 2].map(allowed), [0, 0, 0], "mapping alone gives no access");
        cuda.set_access(addr, PAGE).expect("accessible");
        assert_eq!([0, 1, 2].map(allowed), [3, 3, 3], "read and write for each device");
    });
}

#[test]
fn streams_are_told_apart_and_events_order_them() {
    with_driver(&Simulated, &[], || {
        let (cuda, first, second) = (cuda(), stream(), stream());
        let id = cuda.stream_id(first).expect("an identity");
        assert_eq!(cuda.stream_id(first), Ok(id));
        assert_ne!(cuda.stream_id(second), Ok(id));
        assert_eq!(cuda.is_capturing(first), Ok(false));
        let event = cuda.event_create().expect("an event");
        for stream in [first, Stream::LEGACY, Stream::PER_THREAD] {
            cuda.event_record(event, stream).expect("recorded");
            cuda.stream_wait(second, event).expect("waits");
        }
        let long = Duration::from_secs(600);
        for most in [Duration::MAX, long] {
            assert_eq!(cuda.event_synchronize(event, most), Ok(true));
        }
        assert_eq!(cuda.event_query(event), Ok(true));
        for most in [Duration::MAX, long] {
            assert_eq!(cuda.synchronize(most), Ok(true));
        }
        cuda.event_destroy(event).expect("gone");
        assert_eq!(
            cuda.event_query(event).expect_err("gone").name,
            "CUDA_ERROR_INVALID_HANDLE"
        );
    });
}

#[test]
fn an_idle_device_is_synchronized_whatever_the_bound() {
    with_driver(&Simulated, &[], || {
        let things = Things::new();
        for most in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(600)] {
            assert_eq!(things.cuda.synchronize(most), Ok(true), "{most:?}");
            assert_eq!(things.cuda.event_synchronize(things.event, most), Ok(true), "{most:?}");
        }
    });
}

#[test]
fn more_threads_may_synchronize_than_may_wait_at_once() {
    with_driver(&Simulated, &[], || {
        let cuda = cuda();
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    for _ in 0..30 {
                        assert_eq!(cuda.synchronize(Duration::from_secs(600)), Ok(true));
                    }
                });
            }
        });
    });
}

#[test]
fn work_that_is_not_done_is_no_error() {
    with_driver(&Simulated, &[], || {
        let things = Things::new();
        fail_next("cuEventQuery", 600);
        assert_eq!(things.cuda.event_query(things.event), Ok(false));
    });
}

#[test]
fn host_memory_is_usable_and_given_back() {
    with_driver(&Simulated, &[], || {
        let cuda = cuda();
        let addr = cuda.host_alloc(PAGE).expect("pinned memory");
        assert_eq!(addr % 4096, 0);
        // SAFETY: the memory was just given, PAGE bytes long.
        let bytes = unsafe { std::slice::from_raw_parts_mut(addr as *mut u8, PAGE as usize) };
        bytes.fill(0x5a);
        assert!(bytes.iter().all(|&byte| byte == 0x5a));
        cuda.host_free(addr).expect("given back");
        assert_eq!(
            cuda.host_free(addr).expect_err("given back already").call,
            "cuMemFreeHost"
        );
    });
}

#[test]
fn every_method_leaves_the_callers_context() {
    with_driver(&Simulated, &[("SIMCUDA_DEVICES", "2")], || {
        let things = Things::new();
        assert_eq!(current(), 0);
        for ordinal in [None, Some(1), Some(0)] {
            if let Some(ordinal) = ordinal {
                enter(ordinal);
            }
            let before = current();
            for method in METHODS {
                (method.run)(&things).expect(method.call);
                assert_eq!(current(), before, "{} with context {ordinal:?}", method.call);
                fail_next(method.symbol, 1);
                (method.run)(&things).expect_err(method.call);
                assert_eq!(current(), before, "failed {} with context {ordinal:?}", method.call);
            }
            if ordinal.is_some() {
                leave();
            }
        }
        assert_eq!(current(), 0, "nothing is left on the stack of contexts");
    });
}

#[test]
fn no_method_ends_a_capture_or_changes_the_capture_mode() {
    with_driver(&Simulated, &[], || {
        let (things, capturing) = (Things::new(), stream());
        enter(0);
        for mode in [GLOBAL, THREAD_LOCAL] {
            exchange(mode);
            begin_capture(capturing);
            assert_eq!(things.cuda.is_capturing(capturing), Ok(true));
            for method in METHODS.iter().filter(|method| method.symbol != "cuCtxSynchronize") {
                (method.run)(&things).expect(method.call);
                assert_eq!(exchange(mode), mode, "after {}", method.call);
            }
            assert_eq!(end_capture(capturing), SUCCESS, "the capture is whole");
            assert_eq!(things.cuda.is_capturing(capturing), Ok(false));
        }
    });
}

#[test]
fn a_context_that_captures_cannot_be_waited_for() {
    with_driver(&Simulated, &[], || {
        let (cuda, capturing) = (cuda(), stream());
        enter(0);
        begin_capture(capturing);
        assert_eq!(
            cuda.synchronize(Duration::MAX).expect_err("illegal").name,
            "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
        );
        assert_eq!(exchange(GLOBAL), GLOBAL);
        assert_eq!(
            cuda.is_capturing(capturing),
            Ok(true),
            "a failed capture lasts until it is ended"
        );
        assert_ne!(end_capture(capturing), SUCCESS);
        assert_eq!(cuda.synchronize(Duration::MAX), Ok(true));
    });
}

#[test]
fn every_failed_call_is_a_typed_error_and_a_retry_succeeds() {
    with_driver(&Simulated, &[], || {
        let things = Things::new();
        let memory = things.cuda.memory_info();
        for method in METHODS {
            for (code, name) in [
                (2, "CUDA_ERROR_OUT_OF_MEMORY"),
                (719, "CUDA_ERROR_LAUNCH_FAILED"),
                (4321, "unknown error"),
            ] {
                fail_next(method.symbol, code);
                assert_eq!(
                    (method.run)(&things),
                    Err(DriverError {
                        call: method.call,
                        code,
                        name
                    })
                );
                assert_eq!((method.run)(&things), Ok(()));
            }
        }
        for symbol in [
            "cuCtxGetCurrent",
            "cuCtxPushCurrent_v2",
            "cuThreadExchangeStreamCaptureMode",
        ] {
            fail_next(symbol, 201);
            assert_eq!(
                things.cuda.alloc(PAGE).expect_err(symbol).name,
                "CUDA_ERROR_INVALID_CONTEXT"
            );
        }
        assert_eq!(things.cuda.memory_info(), memory, "nothing is lost");
    });
}

#[test]
fn a_device_that_cannot_be_opened_is_a_typed_error() {
    with_driver(&Simulated, &[("SIMCUDA_DEVICES", "2")], || {
        Cuda::device_count().expect("the driver starts");
        for (symbol, call) in [
            ("cuDeviceGet", "cuDeviceGet"),
            ("cuDeviceGetName", "cuDeviceGetName"),
            ("cuDeviceTotalMem_v2", "cuDeviceTotalMem"),
            ("cuDeviceGetAttribute", "cuDeviceGetAttribute"),
            ("cuDeviceCanAccessPeer", "cuDeviceCanAccessPeer"),
            ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain"),
            ("cuMemGetAllocationGranularity", "cuMemGetAllocationGranularity"),
            ("cuCtxPushCurrent_v2", "cuCtxPushCurrent"),
        ] {
            fail_next(symbol, 999);
            match Cuda::new(0).map(drop) {
                Err(Error::Driver(error)) => assert_eq!((error.call, error.code), (call, 999)),
                other => panic!("{symbol}: {other:?}"),
            }
            assert_eq!(current(), 0, "after {symbol}");
        }
        cuda();
    });
}

#[test]
fn without_a_driver_library_there_is_a_typed_answer() {
    with_driver(&Broken, &[], || {
        assert_eq!(Cuda::device_count(), Err(Unavailable::NoLibrary));
        let error = Cuda::new(0).map(drop).expect_err("no driver");
        assert!(matches!(error, Error::Unavailable(Unavailable::NoLibrary)), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("libcuda.so.1") && text.contains("LD_LIBRARY_PATH"),
            "{text}"
        );
    });
}

#[test]
fn a_library_without_a_needed_function_is_a_typed_answer() {
    with_driver(&Without(&["cuEventQuery"]), &[], || {
        assert_eq!(
            Cuda::device_count(),
            Err(Unavailable::MissingSymbol { name: "cuEventQuery" })
        );
    });
}

#[test]
fn without_a_device_there_is_a_typed_answer() {
    with_driver(&Simulated, &[("SIMCUDA_DEVICES", "0")], || {
        assert_eq!(Cuda::device_count(), Err(Unavailable::NoDevice));
        assert_eq!(Cuda::device_count(), Err(Unavailable::NoDevice));
        assert_eq!(calls("cuInit"), 1, "the answer is kept");
    });
}

#[test]
fn a_driver_that_does_not_start_is_a_typed_answer_with_advice() {
    with_driver(&Simulated, &[("SIMCUDA_FAIL", "cuInit:1:34")], || {
        let error = Cuda::device_count().expect_err("a stub");
        let cause = DriverError {
            call: "cuInit",
            code: 34,
            name: "CUDA_ERROR_STUB_LIBRARY",
        };
        assert_eq!(error, Unavailable::Init(cause));
        assert!(error.to_string().contains("stubs"), "{error}");
    });
}

#[test]
fn an_old_driver_has_slabs_only() {
    with_driver(
        &Without(&["cuMemCreate", "cuMemSetAccess"]),
        &[],
        || slabs_only(&cuda()),
    );
}

#[test]
fn a_device_without_virtual_memory_has_slabs_only() {
    with_driver(&Simulated, &[("SIMCUDA_ATTRIBUTES", "102=0")], || slabs_only(&cuda()));
}

#[test]
fn a_device_that_refuses_its_pages_has_slabs_only() {
    let refused = "cuMemSetAccess:1:999,cuMemSetAccess:2:999";
    with_driver(&Simulated, &[("SIMCUDA_FAIL", refused)], || slabs_only(&cuda()));
}

fn slabs_only(cuda: &Cuda) {
    let (free, total) = cuda.memory_info().expect("memory");
    assert_eq!(free, total, "the trial left nothing");
    assert!(!cuda.properties().virtual_memory);
    let error = cuda.create(PAGE).expect_err("no pages");
    assert_eq!((error.call, error.name), ("cuMemCreate", "CUDA_ERROR_NOT_SUPPORTED"));
    cuda.free(cuda.alloc(PAGE).expect("a slab")).expect("given back");
}

#[test]
fn pages_that_network_cards_cannot_use_are_pages_still() {
    // The first trial asks for pages that network cards may use, the second does not.
    with_driver(&Simulated, &[("SIMCUDA_FAIL", "cuMemSetAccess:1:999")], || {
        let things = Things::new();
        assert!(things.cuda.properties().virtual_memory);
        with_page(&things).expect("a page's whole life");
    });
}

#[test]
fn a_full_device_still_has_virtual_memory() {
    with_driver(&Simulated, &[("SIMCUDA_FAIL", "cuMemCreate:1:2")], || {
        assert!(cuda().properties().virtual_memory);
    });
}

#[test]
fn before_streams_had_identities_the_handle_stands_in() {
    with_driver(&Without(&["cuStreamGetId"]), &[], || {
        let (cuda, first, second) = (cuda(), stream(), stream());
        assert_eq!(cuda.stream_id(first).map(|id| id.0), Ok(first.0 as u64));
        assert_ne!(cuda.stream_id(first), cuda.stream_id(second));
    });
}

#[test]
fn each_capture_has_a_number_of_its_own() {
    with_driver(&Simulated, &[], || {
        let (cuda, capturing) = (cuda(), stream());
        enter(0);
        let numbers = [(), ()].map(|()| {
            begin_capture(capturing);
            let number = cuda.capture_id(capturing);
            assert_eq!(cuda.capture_id(capturing), number);
            assert_eq!(end_capture(capturing), SUCCESS);
            number.expect("it captures")
        });
        assert_ne!(numbers[0], numbers[1]);
        leave();
    });
}

#[test]
fn before_captures_had_numbers_the_streams_handle_stands_in() {
    with_driver(&Without(&["cuStreamGetCaptureInfo_v2"]), &[], || {
        let stream = stream();
        assert_eq!(cuda().capture_id(stream), Ok(stream.0 as u64));
    });
}

#[test]
fn threads_share_a_device() {
    with_driver(&Simulated, &[], || {
        let things = Things::new();
        let before = things.cuda.memory_info();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for method in METHODS {
                        (method.run)(&things).expect(method.call);
                    }
                    assert_eq!(current(), 0);
                });
            }
        });
        assert_eq!(things.cuda.memory_info(), before);
    });
}

#[test]
fn memory_is_filled_in_the_order_of_a_stream() {
    with_driver(&Simulated, &[], || {
        enter(0);
        let cuda = cuda();
        let addr = cuda.alloc(MIB).expect("memory");
        let own = cuda.new_stream().expect("a stream");
        for (value, stream) in [(0x5a, Stream::LEGACY), (0xa5, own)] {
            cuda.fill(addr, MIB, value, stream).expect("live");
            assert_eq!(cuda.synchronize(Duration::MAX), Ok(true));
            let mut data = vec![0_u8; MIB as usize];
            // SAFETY: the buffer is as long as the copy.
            let copied = unsafe { sys::cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), addr, data.len()) };
            assert_eq!(copied, SUCCESS);
            assert!(data.iter().all(|&byte| byte == value));
        }
        cuda.drop_stream(own).expect("live");
        cuda.free(addr).expect("memory");
        leave();
    });
}

#[test]
fn a_device_that_was_reset_says_so_and_nothing_hangs() {
    with_driver(&Simulated, &[], || {
        let pool = Pool::new(cuda(), Config::default()).expect("a pool");
        let stream = pool.driver().new_stream().expect("a stream");
        let block = pool.alloc(MIB, Stream::LEGACY).expect("memory");
        // SAFETY: nothing of the device is used but by what is tested.
        assert_eq!(unsafe { sys::cuDevicePrimaryCtxReset_v2(0) }, SUCCESS);
        let named = |result: Result<(), Error>| {
            let error = result.expect_err("the device was reset").to_string();
            assert!(error.contains("CUDA_ERROR_CONTEXT_IS_DESTROYED"), "{error}");
            assert!(error.contains("the device was reset"), "{error}");
        };
        named(pool.alloc(90 * MIB, Stream::LEGACY).map(drop));
        named(pool.alloc(MIB, stream).map(drop));
        named(pool.record_stream(block, stream));
        named(pool.trim(0).map(drop));
        named(pool.synchronize());
        pool.free(block).expect("a free never fails");
    });
}
