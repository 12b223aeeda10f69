//! What is measured: any allocator with torch's two C functions, and torch's own allocators, called by their addresses.

use std::ffi::{c_int, c_void};
use std::ptr;

type AllocFn = unsafe extern "C" fn(size: usize, device: c_int, stream: *mut c_void) -> *mut c_void;
type FreeFn = unsafe extern "C" fn(ptr: *mut c_void, size: usize, device: c_int, stream: *mut c_void);

/// An allocator to measure.
pub trait Allocator: Copy + Send + Sync {
    /// A block of `size` bytes, or None where there is no memory.
    fn alloc(&self, size: usize) -> Option<Block>;

    /// Gives a block back. A block is given back once, to the allocator that it came from.
    fn free(&self, block: Block);
}

/// An allocator with torch's two C functions. Everything goes to one device and one stream.
#[derive(Clone, Copy)]
pub struct Functions {
    alloc: AllocFn,
    free: FreeFn,
    device: c_int,
    stream: usize,
}

/// A block of the measured allocator.
#[derive(Clone, Copy)]
pub struct Block {
    ptr: *mut c_void,
    size: usize,
}

// SAFETY: the pointer is only handed back to the allocator, which takes it from any thread.
unsafe impl Send for Block {}

impl Block {
    pub fn new(ptr: *mut c_void, size: usize) -> Self {
        Self { ptr, size }
    }

    pub fn size(&self) -> usize {
        self.size
    }
}

impl Functions {
    /// An allocator by the addresses of its functions; None if one is null.
    ///
    /// # Safety
    /// The addresses are those of functions with these signatures, which stay loaded and may be called in any thread.
    pub unsafe fn from_addresses(alloc: usize, free: usize, device: c_int, stream: usize) -> Option<Self> {
        let alloc: *const c_void = ptr::with_exposed_provenance(alloc);
        let free: *const c_void = ptr::with_exposed_provenance(free);
        // SAFETY: an Option of a function pointer has the layout of a pointer, and null is None; else by the contract.
        let (alloc, free) = unsafe {
            (
                std::mem::transmute::<*const c_void, Option<AllocFn>>(alloc),
                std::mem::transmute::<*const c_void, Option<FreeFn>>(free),
            )
        };
        Some(Self {
            alloc: alloc?,
            free: free?,
            device,
            stream,
        })
    }

    fn stream(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.stream)
    }
}

impl Allocator for Functions {
    #[inline]
    fn alloc(&self, size: usize) -> Option<Block> {
        // SAFETY: by the contract of `from_addresses`.
        let ptr = unsafe { (self.alloc)(size, self.device, self.stream()) };
        if ptr.is_null() { None } else { Some(Block { ptr, size }) }
    }

    #[inline]
    fn free(&self, block: Block) {
        // SAFETY: by the contract of `from_addresses`; the block came from `alloc`.
        unsafe { (self.free)(block.ptr, block.size, self.device, self.stream()) };
    }
}

/// No allocator: what is measured of it is the measuring.
#[derive(Clone, Copy)]
pub struct Nothing;

impl Allocator for Nothing {
    #[inline]
    fn alloc(&self, size: usize) -> Option<Block> {
        let ptr = ptr::without_provenance_mut(size.max(1));
        Some(Block { ptr, size })
    }

    #[inline]
    fn free(&self, block: Block) {
        std::hint::black_box(block);
    }
}

type AllocMethod = unsafe extern "C-unwind" fn(this: *mut c_void, size: usize) -> *mut c_void;
type FreeMethod = unsafe extern "C-unwind" fn(this: *mut c_void, ptr: *mut c_void);

/// A C++ object with two methods: torch's allocator in use. Everything goes to the current device and stream.
#[derive(Clone, Copy)]
pub struct Object {
    this: *mut c_void,
    alloc: AllocMethod,
    free: FreeMethod,
}

// SAFETY: the object's methods may be called in any thread, by the contract of `from_addresses`.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// An object by its address and those of its methods; None if one is null.
    ///
    /// # Safety
    /// `this` is an object that stays alive, the others are methods of it with these signatures; they may be called in any
    /// thread, and an exception that they throw ends the process.
    pub unsafe fn from_addresses(this: usize, alloc: usize, free: usize) -> Option<Self> {
        let alloc: *const c_void = ptr::with_exposed_provenance(alloc);
        let free: *const c_void = ptr::with_exposed_provenance(free);
        // SAFETY: an Option of a function pointer has the layout of a pointer, and null is None; else by the contract.
        let (alloc, free) = unsafe {
            (
                std::mem::transmute::<*const c_void, Option<AllocMethod>>(alloc),
                std::mem::transmute::<*const c_void, Option<FreeMethod>>(free),
            )
        };
        (this != 0).then_some(Self {
            this: ptr::with_exposed_provenance_mut(this),
            alloc: alloc?,
            free: free?,
        })
    }
}

impl Allocator for Object {
    #[inline]
    fn alloc(&self, size: usize) -> Option<Block> {
        // SAFETY: by the contract of `from_addresses`.
        let ptr = unsafe { (self.alloc)(self.this, size) };
        if ptr.is_null() { None } else { Some(Block { ptr, size }) }
    }

    #[inline]
    fn free(&self, block: Block) {
        // SAFETY: by the contract of `from_addresses`; the block came from `alloc`.
        unsafe { (self.free)(self.this, block.ptr) };
    }
}
