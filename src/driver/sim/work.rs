//! Work for a stream: a simulated kernel or copy.

use std::sync::Arc;

use crate::driver::{DevicePtr, Stream, StreamId};

use super::device::{Device, State};
use super::mappings::end_of;
use super::timeline::Op;
use super::touches::Touch;
use super::{Call, Code, CuResult, Violation};

/// What a kernel or copy does: the memory it touches, how long it takes on the device's clock, and what it changes.
///
/// ```
/// use flagstone::driver::sim::Work;
/// let kernel = Work::new().reads(0x1000, 512).writes(0x2000, 512).takes(5_000);
/// ```
#[derive(Clone, Default)]
pub struct Work {
    pub(super) touched: Vec<Access>,
    pub(super) duration_ns: u64,
    pub(super) until_ns: u64,
    pub(super) effects: Vec<Effect>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    pub addr: DevicePtr,
    pub bytes: u64,
    pub write: bool,
}

#[derive(Clone)]
pub(super) enum Effect {
    Fill { addr: DevicePtr, bytes: u64, value: u8 },
    Write { addr: DevicePtr, data: Arc<[u8]> },
    Copy { to: DevicePtr, from: DevicePtr, bytes: u64 },
    Call(Arc<dyn Fn() + Send + Sync>),
}

impl Work {
    /// Work that touches nothing and takes no time.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// It reads `bytes` at `addr`.
    #[must_use]
    pub fn reads(self, addr: DevicePtr, bytes: u64) -> Self {
        self.touches(addr, bytes, false)
    }

    /// It writes `bytes` at `addr`.
    #[must_use]
    pub fn writes(self, addr: DevicePtr, bytes: u64) -> Self {
        self.touches(addr, bytes, true)
    }

    /// It takes that many nanoseconds from the moment its stream reaches it.
    #[must_use]
    pub fn takes(mut self, ns: u64) -> Self {
        self.duration_ns = ns;
        self
    }

    /// It is done at that moment of the device's clock at the earliest.
    #[must_use]
    pub fn until(mut self, ns: u64) -> Self {
        self.until_ns = ns;
        self
    }

    /// At its end every byte of the range has the value. Needs backed memory.
    #[must_use]
    pub fn fills(self, addr: DevicePtr, bytes: u64, value: u8) -> Self {
        self.writes(addr, bytes).effect(Effect::Fill { addr, bytes, value })
    }

    /// At its end the data is at `addr`. Needs backed memory.
    #[must_use]
    pub fn stores(self, addr: DevicePtr, data: impl Into<Arc<[u8]>>) -> Self {
        let data = data.into();
        self.writes(addr, data.len() as u64)
            .effect(Effect::Write { addr, data })
    }

    /// At its end the bytes at `from` are at `to` too; device memory or pinned host memory of the device. Needs backed
    /// memory.
    #[must_use]
    pub fn copies(self, to: DevicePtr, from: DevicePtr, bytes: u64) -> Self {
        self.reads(from, bytes)
            .writes(to, bytes)
            .effect(Effect::Copy { to, from, bytes })
    }

    /// Calls the function at its end, with the device locked: the function must not call the device. It finds device memory
    /// at [`host_address`](Device::host_address), to be asked for beforehand.
    #[must_use]
    pub fn calls(self, function: impl Fn() + Send + Sync + 'static) -> Self {
        self.effect(Effect::Call(Arc::new(function)))
    }

    pub(super) fn needs_backing(&self) -> bool {
        self.effects.iter().any(|effect| !matches!(effect, Effect::Call(_)))
    }

    fn touches(mut self, addr: DevicePtr, bytes: u64, write: bool) -> Self {
        self.touched.push(Access { addr, bytes, write });
        self
    }

    fn effect(mut self, effect: Effect) -> Self {
        self.effects.push(effect);
        self
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("touched", &self.touched)
            .field("duration_ns", &self.duration_ns)
            .field("until_ns", &self.until_ns)
            .field("effects", &self.effects.len())
            .finish()
    }
}

impl Device {
    /// Gives a stream work. Part of a capture, the work is recorded and not carried out.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for a stream that does not exist; `INVALID_VALUE` for a range that wraps around; `NOT_SUPPORTED` for
    /// work that changes bytes where memory is not backed; capture errors. Memory that the work cannot access when
    /// its stream reaches it breaks the context (`ILLEGAL_ADDRESS`).
    pub fn launch(&self, stream: Stream, work: Work) -> CuResult {
        self.give_work(Call::LaunchKernel, stream, work)
    }

    /// Fills memory when the stream has done what it was given before. Memory without bytes is touched.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn memset_d8_async(&self, addr: DevicePtr, value: u8, bytes: u64, stream: Stream) -> CuResult {
        let work = match self.options().backed {
            true => Work::new().fills(addr, bytes, value),
            false => Work::new().writes(addr, bytes),
        };
        self.give_work(Call::MemsetD8Async, stream, work)
    }

    fn give_work(&self, call: Call, stream: Stream, work: Work) -> CuResult {
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            if work.needs_backing() && !state.physical.backed() {
                return Err(Code::NOT_SUPPORTED);
            }
            for access in work.touched.iter().filter(|access| access.bytes > 0) {
                end_of(access.addr, access.bytes)?;
            }
            if let Some(capture) = state.capturing(id)? {
                state.captures.add_work(capture, id, work);
            } else {
                state.before_operation(call, id)?;
                state.enqueue(id, work);
            }
            Ok(())
        })
    }
}

impl State {
    /// Puts work at the end of a stream that is not capturing, and looks for races with earlier work.
    pub fn enqueue(&mut self, id: StreamId, work: Work) {
        let op = self.streams.get(id).enqueued + 1;
        for &Access { addr, bytes, write } in work.touched.iter().filter(|access| access.bytes > 0) {
            let end = addr.saturating_add(bytes);
            if let Some((at, user)) = self.unordered(id, addr, end, write) {
                self.violations.add(Violation::Race {
                    addr: at,
                    stream: id,
                    user,
                });
            }
            self.touches.add(addr, end, Touch { stream: id, op, write }, &self.seen);
        }
        self.push(id, Op::Work(work));
    }

    /// Does what work does when its stream has reached it.
    pub fn carry_out(&mut self, id: StreamId, work: &Work) {
        if self.faults.sticky.is_some() {
            return;
        }
        for &Access { addr, bytes, .. } in &work.touched {
            if !self.accessible(addr, bytes) {
                self.violations.add(Violation::IllegalAddress {
                    addr,
                    bytes,
                    stream: id,
                });
                self.faults.sticky = Some(Code::ILLEGAL_ADDRESS);
                return;
            }
        }
        for effect in &work.effects {
            self.carry_out_effect(effect);
        }
    }

    /// Changes memory, or calls the caller's function.
    fn carry_out_effect(&self, effect: &Effect) {
        let host = |addr: u64| self.host_address(addr) as *mut u8;
        match effect {
            Effect::Fill { addr, bytes, value } => {
                // SAFETY: `carry_out` has checked that the device has memory with access at each range that the work
                // touches, which includes this one; launch has checked that the memory has bytes; and it cannot go
                // while the state is locked.
                unsafe { std::ptr::write_bytes(host(*addr), *value, *bytes as usize) };
            }
            Effect::Write { addr, data } => {
                // SAFETY: as above.
                unsafe { std::ptr::copy(data.as_ptr(), host(*addr), data.len()) };
            }
            Effect::Copy { to, from, bytes } => {
                // SAFETY: as above, for both ranges.
                unsafe { std::ptr::copy(host(*from).cast_const(), host(*to), *bytes as usize) };
            }
            Effect::Call(function) => function(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::driver::sim::{Options, StreamKind};

    /// A device with some memory and two streams that are not blocking.
    fn scene() -> (Device, DevicePtr, Stream, Stream) {
        let device = Device::new(Options::default());
        let addr = device.mem_alloc(4096).expect("memory");
        let stream = || device.stream_create(StreamKind::NonBlocking).expect("a stream");
        let (a, b) = (stream(), stream());
        (device, addr, a, b)
    }

    #[test]
    fn work_takes_effect_when_its_stream_reaches_it() {
        let (device, addr, a, b) = scene();
        let calls = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&calls);
        device
            .launch(a, Work::new().takes(10).fills(addr, 4, 1))
            .expect("a launch");
        device
            .launch(a, Work::new().takes(10).stores(addr, [5, 6]).copies(addr + 2, addr, 2))
            .expect("a launch");
        device
            .launch(
                b,
                Work::new().takes(15).calls(move || counter.store(1, Ordering::Relaxed)),
            )
            .expect("a launch");
        let mut seen = [0; 4];
        for (time, bytes, called) in [(9, [0, 0, 0, 0], 0), (10, [1, 1, 1, 1], 0), (20, [5, 6, 5, 6], 1)] {
            device.set_time(time);
            device.read(addr, &mut seen).expect("memory");
            assert_eq!((seen, calls.load(Ordering::Relaxed)), (bytes, called), "at {time} ns");
        }
        let unbacked = Device::new(Options {
            backed: false,
            ..Options::default()
        });
        assert_eq!(
            unbacked.launch(Stream::LEGACY, Work::new().fills(addr, 1, 1)),
            Err(Code::NOT_SUPPORTED)
        );
        assert_eq!(
            device.launch(a, Work::new().reads(u64::MAX, 2)),
            Err(Code::INVALID_VALUE)
        );
    }

    #[test]
    fn touching_no_memory_breaks_the_context() {
        let (device, addr, a, _) = scene();
        device
            .launch(a, Work::new().takes(5).writes(addr + (1 << 30), 1))
            .expect("launching shows nothing");
        assert_eq!(device.stream_synchronize(a), Err(Code::ILLEGAL_ADDRESS));
        assert!(matches!(
            device.take_violations()[..],
            [Violation::IllegalAddress { .. }]
        ));
        assert_eq!(
            device.mem_alloc(1),
            Err(Code::ILLEGAL_ADDRESS),
            "and every call after it"
        );
    }
}
