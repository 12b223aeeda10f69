//! Kernels: they are registered when a library is loaded, and launched by the address of their host function.
//!
//! The kernels of [`elementwise`](super::elementwise) do what they do on a device. All others take their time and change
//! nothing; their names are counted.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::{LazyLock, Mutex, PoisonError, RwLock};

use flagstone::driver::Stream;
use flagstone::driver::sim::{Code, CuResult, Work};

use super::{current_for, elementwise, runtime};
use crate::driver_api::{VERSION, write};
use crate::timing;

/// `dim3`
#[repr(C)]
#[derive(Clone, Copy)]
struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// `cudaLaunchConfig_t`
#[repr(C)]
struct LaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: usize,
    attributes: *const c_void,
    attribute_count: c_uint,
}

/// `cudaFuncAttributes`
#[repr(C)]
struct FunctionAttributes {
    shared_bytes: usize,
    constant_bytes: usize,
    local_bytes: usize,
    max_threads_per_block: c_int,
    registers: c_int,
    ptx_version: c_int,
    binary_version: c_int,
    cache_mode: c_int,
    max_dynamic_shared_bytes: c_int,
    rest: [c_int; 24],
}

/// `cudaErrorInvalidConfiguration`
const INVALID_CONFIGURATION: Code = Code(9);
/// `cudaErrorInvalidDeviceFunction`
const INVALID_DEVICE_FUNCTION: Code = Code(98);
/// The most threads of a block.
const BLOCK: u64 = 1024;

/// The addresses of the kernels' names, by that of the host function. Libraries that register kernels stay loaded.
static KERNELS: LazyLock<RwLock<HashMap<usize, usize>>> = LazyLock::new(RwLock::default);
/// How often each kernel was launched that has no effect here, by name.
static IDLE: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

type Configuration = (Dim3, Dim3, usize, usize);

thread_local! {
    /// Between `kernel<<<...>>>` and the call of its stub, which follows at once.
    static CONFIGURATION: Cell<Option<Configuration>> = const { Cell::new(None) };
}

/// The kernels that were launched and have no effect here, with how often, one on a line.
pub fn idle() -> String {
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    idle.iter().map(|(name, count)| format!("{name} {count}\n")).collect()
}

fn name(function: usize) -> CuResult<&'static CStr> {
    let kernels = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
    let &name = kernels.get(&function).ok_or(INVALID_DEVICE_FUNCTION)?;
    // SAFETY: whoever registered the kernel gave a string that lives as long as its library.
    Ok(unsafe { CStr::from_ptr(name as *const c_char) })
}

/// How long torch's kernel takes that only takes time (`torch.cuda._sleep`): the clock has a cycle each nanosecond. `None`
/// for all others.
///
/// # Safety
/// `arguments` are those of the kernel.
unsafe fn spin_ns(name: &str, arguments: *const *const c_void) -> Option<u64> {
    // SAFETY: that kernel has one argument, the cycles.
    name.contains("spin_kernel")
        .then(|| unsafe { arguments.read().cast::<u64>().read() })
}

/// # Safety
/// `arguments` are those of the kernel.
unsafe fn launch(function: usize, grid: Dim3, block: Dim3, arguments: *const *const c_void, stream: usize) -> CuResult {
    let volume = |dim: Dim3| u64::from(dim.x) * u64::from(dim.y) * u64::from(dim.z);
    if volume(grid) == 0 || volume(block) == 0 || volume(block) > BLOCK {
        return Err(INVALID_CONFIGURATION);
    }
    let name = name(function)?.to_string_lossy();
    let device = current_for(Stream(stream))?;
    // SAFETY: the caller's promise.
    if let Some(ns) = unsafe { spin_ns(&name, arguments) } {
        return device.launch(Stream(stream), Work::new().takes(ns));
    }
    // SAFETY: the caller's promise.
    let work = unsafe { elementwise::work(device, &name, arguments) }.unwrap_or_else(|| {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        *idle.entry(name.into_owned()).or_insert(0) += 1;
        Work::new()
    });
    device.launch(Stream(stream), work.takes(timing::kernel_ns()))
}

/// A handle for a library's kernels; nothing is kept about the library.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterFatBinary(_binary: *const c_void) -> *mut *mut c_void {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    HANDLE.as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) {}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaUnregisterFatBinary(_handle: *mut *mut c_void) {}

/// Nothing is loaded lazily.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaInitModule(_handle: *mut *mut c_void) -> c_char {
    1
}

/// # Safety
/// `name` is a string that lives as long as the function.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn __cudaRegisterFunction(
    _handle: *mut *mut c_void,
    function: *const c_char,
    _device_function: *mut c_char,
    name: *const c_char,
) {
    let mut kernels = KERNELS.write().unwrap_or_else(PoisonError::into_inner);
    kernels.insert(function as usize, name as usize);
}

/// Variables have no memory here: their addresses cannot be asked for.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterVar() {}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterHostVar() {}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaRegisterManagedVar() {}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared_bytes: usize, stream: usize) -> c_uint {
    CONFIGURATION.set(Some((grid, block, shared_bytes, stream)));
    0
}

runtime! {
    fn __cudaPopCallConfiguration(grid: *mut Dim3, block: *mut Dim3, shared_bytes: *mut usize, stream: *mut usize) {
        let configuration = CONFIGURATION.take().ok_or(INVALID_CONFIGURATION)?;
        // SAFETY: the caller's promise.
        unsafe {
            write(grid, configuration.0)?;
            write(block, configuration.1)?;
            write(shared_bytes, configuration.2)?;
            write(stream, configuration.3)
        }
    }

    /// A kernel's handle is the address of its host function.
    fn __cudaGetKernel(kernel: *mut usize, function: usize) {
        name(function)?;
        // SAFETY: the caller's promise.
        unsafe { write(kernel, function) }
    }

    fn __cudaLaunchKernel(
        kernel: usize,
        grid: Dim3,
        block: Dim3,
        arguments: *const *const c_void,
        _shared_bytes: usize,
        stream: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { launch(kernel, grid, block, arguments, stream) }
    }

    fn cudaLaunchKernel(
        function: usize,
        grid: Dim3,
        block: Dim3,
        arguments: *const *const c_void,
        _shared_bytes: usize,
        stream: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { launch(function, grid, block, arguments, stream) }
    }

    fn cudaLaunchKernelExC(config: *const LaunchConfig, function: usize, arguments: *const *const c_void) {
        // SAFETY: the caller's promises.
        unsafe {
            let config = config.as_ref().ok_or(Code::INVALID_VALUE)?;
            launch(function, config.grid, config.block, arguments, config.stream)
        }
    }

    fn cudaFuncGetAttributes(attributes: *mut FunctionAttributes, function: usize) {
        name(function)?;
        let found = FunctionAttributes {
            shared_bytes: 0,
            constant_bytes: 0,
            local_bytes: 0,
            max_threads_per_block: BLOCK as c_int,
            registers: 32,
            ptx_version: 80,
            binary_version: 80,
            cache_mode: 0,
            max_dynamic_shared_bytes: 48 << 10,
            rest: [0; 24],
        };
        // SAFETY: the caller's promise.
        unsafe { write(attributes, found) }
    }

    fn cudaFuncSetAttribute(function: usize, _attribute: u32, _value: c_int) {
        name(function).map(drop)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int,
        function: usize,
        block_threads: c_int,
        _shared_bytes: usize,
        _flags: c_uint,
    ) {
        name(function)?;
        // SAFETY: the caller's promise.
        unsafe { write(blocks, (2048 / block_threads.max(1)).clamp(1, 32)) }
    }
}

const _: () = assert!(size_of::<FunctionAttributes>() == 144 && VERSION / 1000 == 13);
