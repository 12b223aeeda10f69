//! What the pool knows of the memory it manages, all of it on the host: records of blocks, and where they are found.

mod append;
mod block;
mod store;
mod table;
mod zeroed;

pub(crate) use append::Append;
pub(crate) use block::{Block, Blocks, State};
pub(crate) use store::Store;
pub(crate) use table::{Entry, Table, covers};
pub(crate) use zeroed::Zeroed;
