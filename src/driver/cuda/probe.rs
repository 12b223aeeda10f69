//! Is CUDA there? Asked once in a process; the answer is typed and says what to do.

use core::ffi::c_int;
use std::sync::OnceLock;

use cudarc::driver::sys;

use super::api::{Api, CaptureIdApi, PageApi, PoolApi, StreamIdApi};
use super::result::NO_DEVICE;
use crate::driver::DriverError;
use crate::error::Unavailable;

/// The loaded driver.
pub(super) struct Library {
    /// What every driver has.
    pub(super) api: Api,
    /// Virtual memory management, where the driver has it.
    pub(super) pages: Option<PageApi>,
    /// Stream-ordered pools, where the driver has them.
    pub(super) pools: Option<PoolApi>,
    /// The identity of streams, where the driver has it.
    pub(super) stream_ids: Option<StreamIdApi>,
    /// The identity of captures, where the driver has it.
    pub(super) capture_ids: Option<CaptureIdApi>,
    /// How many devices there are, at least 1.
    pub(super) devices: i32,
}

/// The driver, loaded and started at the first call.
pub(super) fn library() -> Result<&'static Library, Unavailable> {
    static LIBRARY: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Library, Unavailable> {
    // SAFETY: loading runs the library's initialisers, as in every program that uses CUDA.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoLibrary);
    }
    // SAFETY: the library is there, and a library of this name keeps the driver's signatures.
    let (api, pages, pools, stream_ids, capture_ids) = unsafe {
        let (pages, pools) = (PageApi::load().ok(), PoolApi::load().ok());
        let (stream_ids, capture_ids) = (StreamIdApi::load().ok(), CaptureIdApi::load().ok());
        (Api::load(), pages, pools, stream_ids, capture_ids)
    };
    let api = api.map_err(|name| Unavailable::MissingSymbol { name })?;
    let devices = start(&api).map_err(|error| match error.code {
        NO_DEVICE => Unavailable::NoDevice,
        _ => Unavailable::Init(error),
    })?;
    match devices {
        1.. => Ok(Library {
            api,
            pages,
            pools,
            stream_ids,
            capture_ids,
            devices,
        }),
        _ => Err(Unavailable::NoDevice),
    }
}

/// Starts the driver and counts the devices.
fn start(api: &Api) -> Result<c_int, DriverError> {
    let mut devices = 0;
    // SAFETY: the count is written to a local.
    unsafe {
        api.cuInit(0)?;
        api.cuDeviceGetCount(&mut devices)?;
    }
    Ok(devices)
}
