//! What torch's simplest kernels do: filling, adding, multiplying, over contiguous memory.
//!
//! A kernel is known by its C++ name. Its arguments are the number of elements, a functor and an array of addresses, the first
//! one being that of the result.

use std::ffi::c_void;

use flagstone::driver::sim::{Device, Work};

use crate::peers::{reads, writes};
use crate::state::host_address;

/// What is done to each element.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    /// Set to the functor's bytes, so many of them.
    Fill(usize),
    /// `a + alpha * b`
    Add { alpha: f32 },
    /// `a + alpha * other`
    AddScalar { other: f32, alpha: f32 },
    /// `a * b`
    Multiply,
    /// `a * other`
    MultiplyScalar { other: f32 },
}

/// The most addresses that an operation has.
const OPERANDS: usize = 3;

/// The work of a kernel of the device's that is known; `None` for all others.
///
/// # Safety
/// `arguments` are those of the kernel.
pub unsafe fn work(device: &Device, name: &str, arguments: *const *const c_void) -> Option<Work> {
    let functor = functor(name)?;
    // SAFETY: such a kernel has three arguments; the functor has the fields that are read for its name.
    let (count, operation, addresses) = unsafe {
        let count = arguments.read().cast::<i32>().read();
        let operation = operation(functor, arguments.add(1).read().cast())?;
        (count, operation, arguments.add(2).read().cast::<u64>())
    };
    let count = usize::try_from(count).ok()?;
    let operands = match operation {
        Operation::Fill(_) => 1,
        Operation::AddScalar { .. } | Operation::MultiplyScalar { .. } => 2,
        Operation::Add { .. } | Operation::Multiply => 3,
    };
    let mut at = [0; OPERANDS];
    for (index, at) in at.iter_mut().enumerate().take(operands) {
        // SAFETY: the array has as many addresses as the operation has operands, the result included.
        *at = unsafe { addresses.add(index).read() };
    }
    let [result, inputs @ ..] = at;
    if let Operation::Fill(size) = operation {
        // SAFETY: a fill's functor is its value.
        let value = unsafe { std::slice::from_raw_parts(arguments.add(1).read().cast::<u8>(), size) };
        return Some(Work::new().stores(result, value.repeat(count)));
    }
    let bytes = (count * size_of::<f32>()) as u64;
    let inputs = inputs[..operands - 1].iter();
    let work = inputs.fold(Work::new(), |work, &addr| reads(work, device, addr, bytes));
    let work = writes(work, device, result, bytes);
    // What the operation does not have is null.
    let [result, inputs @ ..] = at.map(host_address);
    Some(work.calls(move || compute(operation, count, result, inputs)))
}

/// The functor of a kernel over contiguous memory.
fn functor(name: &str) -> Option<&str> {
    let after = name.split_once("vectorized_elementwise_kernelILi")?.1;
    after.split_once('E').map(|(_, functor)| functor)
}

/// # Safety
/// `fields` are those of the functor.
unsafe fn operation(functor: &str, fields: *const f32) -> Option<Operation> {
    let functor = functor.strip_prefix("NS0_")?;
    if let Some(kind) = functor.strip_prefix("11FillFunctorI") {
        return element_bytes(kind).map(Operation::Fill);
    }
    // SAFETY: the fields of a functor of each name; an empty first member takes as much as a `float`, by alignment.
    unsafe {
        if functor.starts_with("15CUDAFunctor_addIfE") {
            Some(Operation::Add { alpha: fields.read() })
        } else if functor.starts_with("21CUDAFunctorOnSelf_addIfE") {
            Some(Operation::AddScalar {
                other: fields.read(),
                alpha: fields.add(1).read(),
            })
        } else if functor.starts_with("13BinaryFunctorIfffNS0_15binary_internal10MulFunctorIfEE") {
            Some(Operation::Multiply)
        } else if functor.starts_with("13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEE")
            || functor.starts_with("13BUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEE")
        {
            Some(Operation::MultiplyScalar {
                other: fields.add(1).read(),
            })
        } else {
            None
        }
    }
}

/// Bytes of an element, by the C++ name of its type.
fn element_bytes(kind: &str) -> Option<usize> {
    const SIZES: &[(&str, usize)] = &[
        ("f", 4),
        ("d", 8),
        ("i", 4),
        ("l", 8),
        ("s", 2),
        ("a", 1),
        ("h", 1),
        ("b", 1),
        ("N3c104HalfE", 2),
        ("N3c108BFloat16E", 2),
    ];
    SIZES
        .iter()
        .find(|(name, _)| kind.starts_with(name))
        .map(|&(_, bytes)| bytes)
}

fn compute(operation: Operation, count: usize, result: u64, inputs: [u64; OPERANDS - 1]) {
    let (a, b, result) = (inputs[0] as *const f32, inputs[1] as *const f32, result as *mut f32);
    for index in 0..count {
        // SAFETY: the device has checked that it has memory at all elements of the operands that the operation has.
        unsafe {
            let left = a.add(index).read();
            result.add(index).write(match operation {
                Operation::Add { alpha } => left + alpha * b.add(index).read(),
                Operation::AddScalar { other, alpha } => left + alpha * other,
                Operation::Multiply => left * b.add(index).read(),
                Operation::MultiplyScalar { other } => left * other,
                Operation::Fill(_) => left,
            });
        }
    }
}
