//! The CUDA driver and pools on it, run against the simulated `libcuda.so.1`: each test in a process of its own.
#![cfg(feature = "cuda")]

#[macro_use]
#[path = "../contract/mod.rs"]
mod contract;

mod driver;
#[path = "../common/libcuda.rs"]
mod libcuda;
mod pools;
mod program;
