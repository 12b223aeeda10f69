//! Private pools that objects of the user hold for their lifetime, on every device on which they are used.

use super::process;
use crate::driver::Stream;
use crate::error::Result;
use crate::pool::PrivateId;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The pools that are held, with the devices on which they were begun.
static HELD: Mutex<BTreeMap<PrivateId, Vec<i32>>> = Mutex::new(BTreeMap::new());

/// Holds a private pool until [`release`]. An object holds an id that no other has.
pub fn hold(id: PrivateId) {
    lock(&HELD).entry(id).or_default();
}

/// [`Pool::begin_private`](crate::Pool::begin_private) in a device's pool; the first time for a pool that is held, it gets its
/// holder there.
///
/// # Errors
/// As [`process::pool`].
pub fn begin(device: i32, id: PrivateId, filter: impl Fn(Stream) -> bool + Send + 'static) -> Result<()> {
    let pool = process::pool(device)?;
    pool.begin_private(id, filter);
    if let Some(devices) = lock(&HELD).get_mut(&id)
        && !devices.contains(&device)
    {
        devices.push(device);
        pool.hold_private(id);
    }
    Ok(())
}

/// Lets go of a private pool on every device. Ids that are not held are ignored.
pub fn release(id: PrivateId) {
    let devices = lock(&HELD).remove(&id).unwrap_or_default();
    for pool in devices.into_iter().filter_map(process::existing) {
        pool.release_private(id);
    }
}
