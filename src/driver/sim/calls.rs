//! The driver functions that the simulated device has, and a figure for each.

macro_rules! calls {
    ($($call:ident = $name:literal,)*) => {
        /// A driver function. Counts, prices and faults are kept for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Call {
            $(#[doc = concat!("`", $name, "`")] $call,)*
        }

        impl Call {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$call,)*];

            /// The name of the function in the CUDA driver.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$call => $name,)*
                }
            }
        }
    };
}

calls! {
    MemGetInfo = "cuMemGetInfo",
    MemAlloc = "cuMemAlloc",
    MemFree = "cuMemFree",
    MemAddressReserve = "cuMemAddressReserve",
    MemAddressFree = "cuMemAddressFree",
    MemCreate = "cuMemCreate",
    MemRelease = "cuMemRelease",
    MemMap = "cuMemMap",
    MemSetAccess = "cuMemSetAccess",
    MemUnmap = "cuMemUnmap",
    MemGetAddressRange = "cuMemGetAddressRange",
    MemsetD8Async = "cuMemsetD8Async",
    MemHostAlloc = "cuMemHostAlloc",
    MemFreeHost = "cuMemFreeHost",
    MemPoolCreate = "cuMemPoolCreate",
    MemPoolDestroy = "cuMemPoolDestroy",
    MemPoolSetAttribute = "cuMemPoolSetAttribute",
    MemPoolTrimTo = "cuMemPoolTrimTo",
    MemAllocFromPoolAsync = "cuMemAllocFromPoolAsync",
    MemFreeAsync = "cuMemFreeAsync",
    StreamCreate = "cuStreamCreate",
    StreamDestroy = "cuStreamDestroy",
    StreamGetId = "cuStreamGetId",
    StreamQuery = "cuStreamQuery",
    StreamSynchronize = "cuStreamSynchronize",
    StreamWaitEvent = "cuStreamWaitEvent",
    StreamIsCapturing = "cuStreamIsCapturing",
    StreamBeginCapture = "cuStreamBeginCapture",
    StreamEndCapture = "cuStreamEndCapture",
    EventCreate = "cuEventCreate",
    EventRecord = "cuEventRecord",
    EventQuery = "cuEventQuery",
    EventSynchronize = "cuEventSynchronize",
    EventElapsedTime = "cuEventElapsedTime",
    EventDestroy = "cuEventDestroy",
    CtxSynchronize = "cuCtxSynchronize",
    LaunchKernel = "cuLaunchKernel",
    GraphLaunch = "cuGraphLaunch",
}

impl Call {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The function of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|call| call.name() == name)
    }

    /// Whether the call fails, and invalidates the capture, when made during a capture by a thread that is not in
    /// relaxed mode. Virtual memory calls do not: PyTorch makes them during captures unguarded.
    #[must_use]
    pub const fn is_unsafe_in_capture(self) -> bool {
        matches!(
            self,
            Self::MemAlloc
                | Self::MemFree
                | Self::MemHostAlloc
                | Self::MemFreeHost
                | Self::StreamQuery
                | Self::StreamSynchronize
                | Self::EventQuery
                | Self::EventSynchronize
                | Self::CtxSynchronize
        )
    }
}

/// A figure for each driver function: how often it was called, or how long it took in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerCall([u64; Call::COUNT]);

impl PerCall {
    pub(super) const fn new() -> Self {
        Self([0; Call::COUNT])
    }

    pub(super) fn add(&mut self, call: Call, amount: u64) {
        self.0[call as usize] = self.0[call as usize].saturating_add(amount);
    }

    /// The figure of one function.
    #[must_use]
    pub const fn get(&self, call: Call) -> u64 {
        self.0[call as usize]
    }

    /// The sum over several functions.
    #[must_use]
    pub fn sum(&self, calls: &[Call]) -> u64 {
        calls.iter().map(|&call| self.get(call)).sum()
    }

    /// The sum over all functions.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Name and figure of each function whose figure is not zero.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Call::ALL
            .iter()
            .map(|&call| (call.name(), self.get(call)))
            .filter(|&(_, figure)| figure != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for &call in Call::ALL {
            assert_eq!(Call::from_name(call.name()), Some(call));
        }
        assert_eq!(Call::from_name("cuInit"), None);
    }

    #[test]
    fn figures_are_kept_apart() {
        let mut figures = PerCall::new();
        figures.add(Call::MemMap, 2);
        figures.add(Call::GraphLaunch, 3);
        assert_eq!(
            figures.iter().collect::<Vec<_>>(),
            [("cuMemMap", 2), ("cuGraphLaunch", 3)]
        );
        assert_eq!((figures.total(), figures.sum(&[Call::MemMap, Call::MemUnmap])), (5, 2));
    }
}
