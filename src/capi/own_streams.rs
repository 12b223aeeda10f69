//! Which streams are torch's own: those of its pool of streams, which are never destroyed. To a hook they look like any others, so
//! torch is asked for the handles of its pool, once.

use super::throw::symbol;
use std::ffi::c_void;
use std::sync::OnceLock;

/// `c10::cuda::CUDAStream`: the kind of device, its ordinal, and the stream's number.
#[repr(C)]
struct CudaStream {
    device: [i8; 2],
    id: i64,
}

type Handle = unsafe extern "C" fn(*const CudaStream) -> *mut c_void;

/// `c10::DeviceType::CUDA`.
const CUDA: i8 = 1;
/// Of each priority a device has so many streams, which torch makes all at once.
const STREAMS: usize = 32;
/// The default priority and the high one, which every device has.
const PRIORITIES: usize = 2;
/// The most devices that torch serves is 120.
const DEVICES: usize = 128;

type Handles = [usize; STREAMS * PRIORITIES];

/// The handles of a device's streams, once torch has made them.
fn handles(device: usize) -> Option<&'static Handles> {
    static FOUND: [OnceLock<Handles>; DEVICES] = [const { OnceLock::new() }; DEVICES];
    let found = FOUND.get(device)?;
    if let Some(handles) = found.get() {
        return Some(handles);
    }
    let function = symbol(c"libc10_cuda.so", c"_ZNK3c104cuda10CUDAStream6streamEv")?;
    // SAFETY: `cudaStream_t CUDAStream::stream() const` has this type by the C++ ABI.
    let function = unsafe { std::mem::transmute::<*mut c_void, Handle>(function) };
    let handle = |place: usize| {
        // Note "StreamId assignment" in c10/cuda/CUDAStream.cpp: index, priority from 1 on, and a bit that says "of the pool".
        let (index, priority) = (place / PRIORITIES, place % PRIORITIES + 1);
        let stream = CudaStream {
            device: [CUDA, device as i8],
            id: (index << 5 | priority << 1 | 1) as i64,
        };
        // SAFETY: it looks up a table that has these places, and throws for no others.
        unsafe { function(&raw const stream) }.addr()
    };
    // The last that torch makes: with it all are there. Until then nothing is remembered.
    if handle(STREAMS * PRIORITIES - 1) == 0 {
        return None;
    }
    Some(found.get_or_init(|| std::array::from_fn(handle)))
}

/// Whether `stream` is one of torch's own for that device.
///
/// # Safety
/// Torch must have used the device already.
pub(super) unsafe fn is_torchs(stream: usize, device: i32) -> bool {
    usize::try_from(device)
        .ok()
        .and_then(handles)
        .is_some_and(|handles| handles.contains(&stream))
}
