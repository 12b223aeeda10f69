//! Rust structs as keyword arguments of Python classes.

/// Sets every field of a struct in a dictionary, under its own name, and leaves those behind `;` to the caller, as
/// variables. A field that is not listed does not compile.
macro_rules! set_fields {
    ($dict:expr, $value:expr => $kind:ident { $($name:ident),+ $(,)? $(; $($left:ident),+)? }) => {
        let $kind { $($name),+ $(, $($left),+)? } = $value;
        $($dict.set_item(pyo3::intern!($dict.py(), stringify!($name)), $name)?;)+
    };
}

pub(super) use set_fields;
