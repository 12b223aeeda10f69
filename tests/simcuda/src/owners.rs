//! Which device a stream or an event is of. The numbers of both are unique in the process and stay with their device.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use flagstone::driver::sim::{CuResult, Device, StreamKind};
use flagstone::driver::{Event, Stream};

/// The ordinals of the devices, by handle.
type Owners = LazyLock<Mutex<HashMap<usize, i32>>>;

static STREAMS: Owners = LazyLock::new(Mutex::default);
static EVENTS: Owners = LazyLock::new(Mutex::default);

/// Makes a stream of the device.
pub fn own_stream(device: &Device, kind: StreamKind) -> CuResult<Stream> {
    let stream = device.stream_create(kind)?;
    own(&STREAMS, stream.0, device);
    Ok(stream)
}

/// Makes an event of the device.
pub fn own_event(device: &Device, timing: bool) -> CuResult<Event> {
    let event = device.event_create(timing)?;
    own(&EVENTS, event.0, device);
    Ok(event)
}

/// The ordinal of the device that the stream is or was of; none for default streams and handles that never were.
pub fn of_stream(stream: Stream) -> Option<i32> {
    find(&STREAMS, stream.0)
}

/// The ordinal of the device that the event is or was of.
pub fn of_event(event: Event) -> Option<i32> {
    find(&EVENTS, event.0)
}

fn own(owners: &Owners, handle: usize, device: &Device) {
    let mut owners = owners.lock().unwrap_or_else(PoisonError::into_inner);
    owners.insert(handle, device.properties().ordinal);
}

fn find(owners: &Owners, handle: usize) -> Option<i32> {
    owners
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&handle)
        .copied()
}
