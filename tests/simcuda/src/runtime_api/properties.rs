//! What a device says about itself in one structure, which CUDA 13 made shorter.

use std::ffi::c_int;

use flagstone::driver::sim::{Code, CuResult};

use super::runtime;
use crate::driver_api::{attribute, uuid};
use crate::state::{self, machine};

/// A version of `cudaDeviceProp`: which of the offsets below are its own, and its bytes.
#[derive(Clone, Copy)]
enum Version {
    Cuda12,
    Cuda13,
}

const LONGEST: usize = 1032;

impl Version {
    const fn bytes(self) -> usize {
        match self {
            Self::Cuda12 => LONGEST,
            Self::Cuda13 => 1008,
        }
    }

    const fn offset(self, [cuda12, cuda13]: [usize; 2]) -> usize {
        match self {
            Self::Cuda12 => cuda12,
            Self::Cuda13 => cuda13,
        }
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
/// `properties` is null or has room for a `cudaDeviceProp` of the version.
unsafe fn write_properties(properties: *mut u8, device: c_int, version: Version) -> CuResult {
    state::start()?;
    let own = machine()?.device(device)?.properties();
    if properties.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let mut bytes = [0u8; LONGEST];
    let mut set = |at: [usize; 2], value: &[u8]| {
        let at = version.offset(at);
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
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), properties, version.bytes()) };
    Ok(())
}

runtime! {
    fn cudaGetDeviceProperties(properties: *mut u8, device: c_int) {
        // SAFETY: a caller that was built for CUDA 13 promises it. One for CUDA 12 calls the other function.
        unsafe { write_properties(properties, device, Version::Cuda13) }
    }

    fn cudaGetDeviceProperties_v2(properties: *mut u8, device: c_int) {
        // SAFETY: a caller that was built for CUDA 12 promises it; CUDA 13 has no such function.
        unsafe { write_properties(properties, device, Version::Cuda12) }
    }
}
