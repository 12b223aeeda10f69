//! Throws torch's own out-of-memory error from Rust, without a compiler and without linking to torch.
//!
//! The C++ functions are looked up in the libraries that the process has loaded already. An exception is made in two steps, so
//! that the frame that throws holds nothing to drop: [`prepare`] builds the C++ object, [`Prepared::throw`] throws it.
//! Layouts are those of the Itanium C++ ABI and of libstdc++'s `std::string`, on 64-bit Linux. Where a symbol is missing
//! the fallback is torch's check failure, a plain `RuntimeError`.

use crate::error::Error;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::OnceLock;

type New = unsafe extern "C" fn(usize) -> *mut c_void;
type Destructor = unsafe extern "C" fn(*mut c_void);
type CxaThrow = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, Option<Destructor>) -> !;
type Construct = unsafe extern "C" fn(*mut c_void, SourceLocation, *mut StdString);
type CheckFail = unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char) -> !;

/// `c10::SourceLocation`, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// libstdc++'s `std::string`.
#[repr(C)]
struct StdString {
    data: *mut u8,
    length: usize,
    capacity: usize,
    rest: usize,
}

/// Room for the exception object; `c10::OutOfMemoryError` has a few hundred bytes.
const OBJECT: usize = 1024;

struct OutOfMemory {
    new: New,
    allocate: New,
    throw: CxaThrow,
    construct: Construct,
    /// What the object gets as its table of virtual functions, where `construct` is that of its base class.
    table: Option<*const c_void>,
    type_info: *const c_void,
}

// SAFETY: addresses of functions and of a constant, the same for every thread.
unsafe impl Send for OutOfMemory {}
// SAFETY: as above.
unsafe impl Sync for OutOfMemory {}

/// What a failed allocation in torch turns into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Throws {
    /// `torch.OutOfMemoryError`.
    OutOfMemoryError,
    /// `RuntimeError`: this torch lacks a symbol that the other needs.
    RuntimeError,
    /// Nothing can be thrown: torch is not loaded.
    Nothing,
}

/// What a failed allocation turns into in this process.
pub fn throws() -> Throws {
    if out_of_memory().is_some() {
        Throws::OutOfMemoryError
    } else if check_fail().is_some() {
        Throws::RuntimeError
    } else {
        Throws::Nothing
    }
}

/// The address of a symbol in a library that is loaded already.
pub(super) fn symbol(library: &CStr, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both are C strings; nothing is loaded, and the handle's reference only keeps a library that stays anyway.
    unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        let address = libc::dlsym(library, name.as_ptr());
        (!address.is_null()).then_some(address)
    }
}

fn out_of_memory() -> Option<&'static OutOfMemory> {
    static FOUND: OnceLock<OutOfMemory> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(found);
    }
    const STD: &CStr = c"libstdc++.so.6";
    const C10: &CStr = c"libc10.so";
    const CONSTRUCT: &CStr =
        c"_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    const CONSTRUCT_BASE: &CStr =
        c"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    const TYPE_INFO: &CStr = c"_ZTIN3c1016OutOfMemoryErrorE";
    // Older versions of torch do not export the constructor. It is that of `c10::Error`, which the class adds nothing to but
    // its own virtual functions, and those are in the library that throws it.
    let (construct, table, type_info) = match symbol(C10, CONSTRUCT) {
        Some(construct) => (construct, None, symbol(C10, TYPE_INFO)?),
        None => {
            const C10_CUDA: &CStr = c"libc10_cuda.so";
            let table = symbol(C10_CUDA, c"_ZTVN3c1016OutOfMemoryErrorE")?;
            // An object points behind the first two entries.
            let table = table.wrapping_byte_add(2 * size_of::<usize>()).cast_const();
            (symbol(C10, CONSTRUCT_BASE)?, Some(table), symbol(C10_CUDA, TYPE_INFO)?)
        }
    };
    // SAFETY: the symbols have these types by the C++ ABI: `operator new(size_t)`, `__cxa_allocate_exception(size_t)`,
    // `__cxa_throw`, and the constructor of (SourceLocation, std::string), whose string comes by invisible reference.
    let found = unsafe {
        OutOfMemory {
            new: std::mem::transmute::<*mut c_void, New>(symbol(STD, c"_Znwm")?),
            allocate: std::mem::transmute::<*mut c_void, New>(symbol(STD, c"__cxa_allocate_exception")?),
            throw: std::mem::transmute::<*mut c_void, CxaThrow>(symbol(STD, c"__cxa_throw")?),
            construct: std::mem::transmute::<*mut c_void, Construct>(construct),
            table,
            type_info,
        }
    };
    // Not found is not remembered: torch may be imported later.
    Some(FOUND.get_or_init(|| found))
}

fn check_fail() -> Option<CheckFail> {
    let address = symbol(c"libc10.so", c"_ZN3c106detail14torchCheckFailEPKcS2_jS2_")?;
    // SAFETY: `torchCheckFail(const char*, const char*, uint32_t, const char*)` never returns.
    Some(unsafe { std::mem::transmute::<*mut c_void, CheckFail>(address) })
}

const FUNCTION: &CStr = c"flagstone_torch_alloc";
const FILE: &CStr = c"flagstone";

/// An exception that is ready to be thrown. Plain addresses: nothing to drop.
#[derive(Clone, Copy)]
pub(super) enum Prepared {
    OutOfMemory {
        object: *mut c_void,
        type_info: *const c_void,
        destructor: Option<Destructor>,
        throw: CxaThrow,
    },
    Failure {
        message: *const c_char,
        fail: CheckFail,
    },
}

/// Makes torch's exception of an error: out of memory for every size that cannot be had, a plain one otherwise. `None`
/// when torch is not loaded.
pub(super) fn prepare(error: Error) -> Option<Prepared> {
    let message = error.to_string();
    let no_memory = matches!(error, Error::OutOfMemory(_) | Error::TooLarge { .. });
    if let (true, Some(torch)) = (no_memory, out_of_memory()) {
        // SAFETY: the addresses are what `out_of_memory` says.
        return unsafe { torch.prepare(&message) };
    }
    let fail = check_fail()?;
    // Leaked: torch copies it while it throws, when we have no frame left to free it in. Errors of this kind are final.
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default().into_raw();
    Some(Prepared::Failure { message, fail })
}

impl OutOfMemory {
    /// # Safety
    /// The addresses must be of the functions that their types say.
    unsafe fn prepare(&self, message: &str) -> Option<Prepared> {
        // SAFETY: as the C++ code of a throw expression does it: the string's bytes come from `operator new`, since its new
        // owner frees them so; the object is constructed in memory from `__cxa_allocate_exception`.
        unsafe {
            let data = (self.new)(message.len() + 1).cast::<u8>();
            ptr::copy_nonoverlapping(message.as_ptr(), data, message.len());
            data.add(message.len()).write(0);
            let mut text = StdString {
                data,
                length: message.len(),
                capacity: message.len(),
                rest: 0,
            };
            let object = (self.allocate)(OBJECT);
            let location = SourceLocation {
                function: FUNCTION.as_ptr(),
                file: FILE.as_ptr(),
                line: line!(),
            };
            (self.construct)(object, location, &raw mut text);
            if let Some(table) = self.table {
                object.cast::<*const c_void>().write(table);
            }
            // The destructor is not exported: it is the first entry of the object's table of virtual functions.
            let table = object.cast::<*const Option<Destructor>>().read();
            Some(Prepared::OutOfMemory {
                object,
                type_info: self.type_info,
                destructor: table.read(),
                throw: self.throw,
            })
        }
    }
}

impl Prepared {
    /// Throws it.
    ///
    /// # Safety
    /// The caller's callers must be C++ that expects exceptions, or Rust frames of `extern "C-unwind"` functions that hold
    /// nothing to drop.
    pub(super) unsafe fn throw(self) -> ! {
        match self {
            Self::OutOfMemory {
                object,
                type_info,
                destructor,
                throw,
            } => {
                // SAFETY: the object was constructed by `prepare` and is thrown once.
                unsafe { throw(object, type_info, destructor) }
            }
            Self::Failure { message, fail } => {
                // SAFETY: all are C strings.
                unsafe { fail(FUNCTION.as_ptr(), FILE.as_ptr(), line!(), message) }
            }
        }
    }
}
