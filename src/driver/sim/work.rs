//! Work for a stream: a simulated kernel or copy.

use std::sync::Arc;

use crate::driver::DevicePtr;

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

    /// Calls the function at its end, with the device locked: the function must not call the device.
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
