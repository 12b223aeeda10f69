//! Captured work that can be launched.

use std::sync::Arc;

use crate::driver::Stream;
use crate::driver::sim::device::Device;
use crate::driver::sim::work::Work;
use crate::driver::sim::{Call, CuResult};

/// Captured work, in an order that keeps all its dependencies.
#[derive(Debug, Clone)]
pub struct Graph {
    pub(super) works: Arc<[Work]>,
}

impl Graph {
    /// How many pieces of work it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.works.len()
    }

    /// Whether it has no work.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }
}

impl Device {
    /// Gives a stream the work of a graph, one piece after the other. Work that ran side by side in the capture does not
    /// do so here.
    ///
    /// # Errors
    /// As [`launch`](Self::launch); `STREAM_CAPTURE_UNSUPPORTED` on a capturing stream, which a real device allows.
    pub fn graph_launch(&self, graph: &Graph, stream: Stream) -> CuResult {
        let call = Call::GraphLaunch;
        self.call(call, 0, |state| {
            let id = state.stream(call, stream)?;
            state.refuse_capturing(call, id)?;
            state.before_operation(call, id)?;
            for work in graph.works.iter() {
                state.enqueue(id, work.clone());
            }
            Ok(())
        })
    }
}
