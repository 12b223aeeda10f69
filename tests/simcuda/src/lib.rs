//! A simulated `libcuda.so.1`: NVIDIA's driver interface in front of flagstone's simulated device, for tests; and, in the same
//! file, the runtimes of CUDA 12 and 13 as torch and CuPy use them, and a little of NVML and of cuBLAS. Loaded ahead of torch
//! its functions take the place of those of libcudart and libcublas: `tests/torch/standins.py` makes an empty library of
//! libcudart's name that brings this one along, to be preloaded (`LD_PRELOAD`). Numba and cuda.core ask it for the driver's
//! functions by name.
//!
//! | environment variable | what it sets, when the driver starts | default |
//! |---|---|---|
//! | `SIMCUDA_DEVICES` | how many devices there are | 1 |
//! | `SIMCUDA_MEMORY` | memory of each device, in bytes | 16 GiB |
//! | `SIMCUDA_STRICT` | 0: the host can touch device memory, at its own address; by default that is a segmentation fault | 1 |
//! | `SIMCUDA_ATTRIBUTES` | device attributes by number, as `102=0,110=1` | see `driver_api/init.rs` |
//! | `SIMCUDA_FAIL` | calls to fail, as `cuMemAlloc_v2:3:2`: the third such call returns code 2 | none |
//! | `SIMCUDA_TIMING` | nanoseconds for a kernel, and for a MiB copied or filled, as `2000,40000` | 0,0 |
//! | `SIMCUDA_COUNTS` | a file for the counts of all calls, and of kernels without effect (`idle:`), at the process's end | none |
//!
//! The same process can also ask for the count of calls and for failures: see [`control`].

mod blas;
mod callers;
mod calls;
mod control;
mod driver_api;
mod nvml;
mod owners;
mod peers;
mod replay;
mod runtime_api;
mod settings;
mod state;
mod timing;
