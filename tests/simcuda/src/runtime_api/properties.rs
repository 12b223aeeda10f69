//! What a device says about itself in one structure, which CUDA 13 made shorter.

use std::ffi::c_int;

use flagstone::driver::sim::{Code, CuResult};

use super::major::Major;
use super::runtime;
use crate::driver_api::{attribute, uuid};
use crate::state::{self, machine};

const LONGEST: usize = 1032;

/// The bytes of `cudaDeviceProp`.
const fn size(major: Major) -> usize {
    match major {
        Major::Cuda12 => LONGEST,
        Major::Cuda13 => 1008,
    }
}

/// Which of the offsets below is the one.
const fn offset([cuda12, cuda13]: [usize; 2], major: Major) -> usize {
    match major {
        Major::Cuda12 => cuda12,
        Major::Cuda13 => cuda13,
    }
}

/// The fields that are not 0 and the same for all devices: offsets in CUDA 12 and 13, and value as an `int`.
const FIELDS: &[([usize; 2], c_int)] = &[
    ([304; 2], 65_536),     // regsPerBlock
    ([308; 2], 32),         // warpSize
    ([320; 2], 1024),       // maxThreadsPerBlock
    ([324; 2], 1024),       // maxThreadsDim[0]
    ([328; 2], 1024),       // maxThreadsDim[1]
    ([332; 2], 64),         // maxThreadsDim[2]
    ([336; 2], c_int::MAX), // maxGridSize[0]
    ([340; 2], 65_535),     // maxGridSize[1]
    ([344; 2], 65_535),     // maxGridSize[2]
    ([400, 392], 1),        // canMapHostMemory
    ([576, 560], 1),        // concurrentKernels
    ([600, 584], 3),        // asyncEngineCount
    ([604, 588], 1),        // unifiedAddressing
    ([612, 592], 5120),     // memoryBusWidth
    ([616, 596], 40 << 20), // l2CacheSize
    ([624, 604], 2048),     // maxThreadsPerMultiProcessor
    ([648, 632], 65_536),   // regsPerMultiprocessor
    ([688, 668], 1),        // cooperativeLaunch
    ([712, 688], 32),       // maxBlocksPerMultiProcessor
];

/// As above, fields that are a `size_t`.
const SIZES: &[([usize; 2], usize)] = &[
    ([296; 2], 48 << 10),            // sharedMemPerBlock
    ([312; 2], c_int::MAX as usize), // memPitch
    ([352; 2], 64 << 10),            // totalConstMem
    ([368; 2], 512),                 // textureAlignment
    ([640, 624], 164 << 10),         // sharedMemPerMultiprocessor
    ([696, 672], 163 << 10),         // sharedMemPerBlockOptin
    ([720, 696], 1 << 10),           // reservedSharedMemPerBlock
];

/// # Safety
/// `properties` is null or has room for a `cudaDeviceProp` of the version, if that is the process's.
unsafe fn write_properties(properties: *mut u8, device: c_int, major: Major) -> CuResult {
    major.only()?;
    state::start()?;
    let own = machine()?.device(device)?.properties();
    if properties.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let mut bytes = [0u8; LONGEST];
    let mut set = |at: [usize; 2], value: &[u8]| {
        let at = offset(at, major);
        bytes[at..at + value.len()].copy_from_slice(value);
    };
    set([0; 2], &own.name.as_bytes()[..own.name.len().min(255)]);
    set([256; 2], &uuid(device));
    set([288; 2], &own.total_bytes.to_ne_bytes());
    for &(at, value) in FIELDS {
        set(at, &value.to_ne_bytes());
    }
    for &(at, value) in SIZES {
        set(at, &value.to_ne_bytes());
    }
    set([360; 2], &attribute(75, device)?.to_ne_bytes()); // major
    set([364; 2], &attribute(76, device)?.to_ne_bytes()); // minor
    set([388, 384], &attribute(16, device)?.to_ne_bytes()); // multiProcessorCount
    set([584, 568], &(device + 1).to_ne_bytes()); // pciBusID
    // SAFETY: by the contract.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), properties, size(major)) };
    Ok(())
}

runtime! {
    /// That of CUDA 13. The one of CUDA 12 gives the shorter structure of CUDA 11.
    fn cudaGetDeviceProperties(properties: *mut u8, device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { write_properties(properties, device, Major::Cuda13) }
    }

    /// That of CUDA 12.
    fn cudaGetDeviceProperties_v2(properties: *mut u8, device: c_int) {
        // SAFETY: the caller's promise.
        unsafe { write_properties(properties, device, Major::Cuda12) }
    }
}
