//! The driver functions that are called, as tables of function pointers looked up by name.
//!
//! cudarc's own wrappers panic where a symbol is missing and return an enum that cannot hold the codes of newer drivers.
//! Its library handle and its types are used here; the lookup is ours, a missing symbol is a value, and a result is a number.

use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream};

use super::result::check;
use crate::driver::DriverResult;

/// One table: a struct of function pointers, its lookup, and one checked method for each function.
macro_rules! table {
    (
        $(#[$doc:meta])* $table:ident {
            $( $symbol:literal $function:ident($($argument:ident: $kind:ty),* $(,)?); )*
        }
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case)] // the driver's names
        pub(super) struct $table {
            $( $function: unsafe extern "C" fn($($kind),*) -> u32, )*
        }

        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl $table {
            /// Looks every function up; the error is the name of one that the library lacks.
            ///
            /// # Safety
            /// The driver library is there (`sys::is_culib_present`) and is NVIDIA's, or keeps its signatures.
            pub(super) unsafe fn load() -> Result<Self, &'static str> {
                // SAFETY: the library is there, so that this does not panic.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    $( $function: {
                        type Function = unsafe extern "C" fn($($kind),*) -> u32;
                        // SAFETY: the type is the documented signature of this symbol, `CUresult` being a 32-bit number.
                        *unsafe { library.get::<Function>(concat!($symbol, "\0").as_bytes()) }.map_err(|_| $symbol)?
                    }, )*
                })
            }

            $(
                /// Calls the driver function of this name.
                ///
                /// # Safety
                /// Pointers are valid as that function wants them. Handles and addresses may be wrong where it checks them.
                pub(super) unsafe fn $function(&self, $($argument: $kind),*) -> DriverResult<()> {
                    // SAFETY: the pointer was looked up by this name; the caller answers for the arguments.
                    check(stringify!($function), unsafe { (self.$function)($($argument),*) })
                }
            )*
        }
    };
}

table! {
    /// What every supported driver has (CUDA 11 and newer).
    Api {
        "cuInit" cuInit(flags: c_uint);
        "cuDeviceGetCount" cuDeviceGetCount(count: *mut c_int);
        "cuDeviceGet" cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        "cuDeviceGetName" cuDeviceGetName(name: *mut c_char, bytes: c_int, device: CUdevice);
        "cuDeviceTotalMem_v2" cuDeviceTotalMem(bytes: *mut usize, device: CUdevice);
        "cuDeviceGetAttribute" cuDeviceGetAttribute(value: *mut c_int, attribute: u32, device: CUdevice);
        "cuDeviceCanAccessPeer" cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
        "cuDevicePrimaryCtxRetain" cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        "cuCtxGetCurrent" cuCtxGetCurrent(context: *mut CUcontext);
        "cuCtxPushCurrent_v2" cuCtxPushCurrent(context: CUcontext);
        "cuCtxPopCurrent_v2" cuCtxPopCurrent(context: *mut CUcontext);
        "cuCtxSynchronize" cuCtxSynchronize();
        "cuThreadExchangeStreamCaptureMode" cuThreadExchangeStreamCaptureMode(mode: *mut u32);
        "cuMemGetInfo_v2" cuMemGetInfo(free: *mut usize, total: *mut usize);
        "cuMemAlloc_v2" cuMemAlloc(address: *mut CUdeviceptr, bytes: usize);
        "cuMemFree_v2" cuMemFree(address: CUdeviceptr);
        "cuMemsetD8Async" cuMemsetD8Async(address: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);
        "cuMemHostAlloc" cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
        "cuMemFreeHost" cuMemFreeHost(address: *mut c_void);
        "cuStreamCreate" cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        "cuStreamDestroy_v2" cuStreamDestroy(stream: CUstream);
        "cuStreamIsCapturing" cuStreamIsCapturing(stream: CUstream, status: *mut u32);
        "cuStreamWaitEvent" cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        "cuEventCreate" cuEventCreate(event: *mut CUevent, flags: c_uint);
        "cuEventRecord" cuEventRecord(event: CUevent, stream: CUstream);
        "cuEventQuery" cuEventQuery(event: CUevent);
        "cuEventSynchronize" cuEventSynchronize(event: CUevent);
        "cuEventDestroy_v2" cuEventDestroy(event: CUevent);
    }
}

table! {
    /// Virtual memory management (CUDA 10.2 and newer).
    PageApi {
        "cuMemGetAllocationGranularity" cuMemGetAllocationGranularity(
            bytes: *mut usize, properties: *const sys::CUmemAllocationProp, option: u32,
        );
        "cuMemAddressReserve" cuMemAddressReserve(
            address: *mut CUdeviceptr, bytes: usize, alignment: usize, hint: CUdeviceptr, flags: c_ulonglong,
        );
        "cuMemAddressFree" cuMemAddressFree(address: CUdeviceptr, bytes: usize);
        "cuMemCreate" cuMemCreate(
            handle: *mut u64, bytes: usize, properties: *const sys::CUmemAllocationProp, flags: c_ulonglong,
        );
        "cuMemRelease" cuMemRelease(handle: u64);
        "cuMemMap" cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong);
        "cuMemSetAccess" cuMemSetAccess(
            address: CUdeviceptr, bytes: usize, access: *const sys::CUmemAccessDesc, count: usize,
        );
        "cuMemUnmap" cuMemUnmap(address: CUdeviceptr, bytes: usize);
    }
}

table! {
    /// Stream-ordered pools (CUDA 11.2 and newer).
    PoolApi {
        "cuMemPoolCreate" cuMemPoolCreate(pool: *mut sys::CUmemoryPool, properties: *const sys::CUmemPoolProps);
        "cuMemPoolDestroy" cuMemPoolDestroy(pool: sys::CUmemoryPool);
        "cuMemPoolSetAttribute" cuMemPoolSetAttribute(pool: sys::CUmemoryPool, attribute: u32, value: *mut c_void);
        "cuMemPoolSetAccess" cuMemPoolSetAccess(
            pool: sys::CUmemoryPool, access: *const sys::CUmemAccessDesc, count: usize,
        );
        "cuMemPoolTrimTo" cuMemPoolTrimTo(pool: sys::CUmemoryPool, keep: usize);
        "cuMemAllocFromPoolAsync" cuMemAllocFromPoolAsync(
            address: *mut CUdeviceptr, bytes: usize, pool: sys::CUmemoryPool, stream: CUstream,
        );
        "cuMemFreeAsync" cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    }
}

table! {
    /// The identity of streams (CUDA 12.0 and newer).
    StreamIdApi {
        "cuStreamGetId" cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
    }
}

table! {
    /// The identity of captures (CUDA 11.3 and newer).
    CaptureIdApi {
        "cuStreamGetCaptureInfo_v2" cuStreamGetCaptureInfo(
            stream: CUstream, status: *mut u32, id: *mut c_ulonglong, graph: *mut c_void, nodes: *mut c_void,
            count: *mut usize,
        );
    }
}
