//! Captures and graphs: begun, ended, aborted, replayed and released; and streams that come and go.

use crate::actions::{Hand, Name};
use crate::machine::{Captured, LANES, Machine, Open, PASSING};
use flagstone::driver::sim::{CaptureMode, StreamKind};
use std::collections::BTreeMap;

impl Machine {
    pub fn begin(&mut self, lane: usize, name: Name, mode: CaptureMode) {
        // A capture on a stream that the pool cannot ask, because its handle may die, has to be announced.
        if self.lanes[lane].open.is_some() || (lane == PASSING && matches!(name, Name::Unannounced)) {
            return;
        }
        self.count += 1;
        let number = self.count;
        let shared = match name {
            Name::Shared(which) => self.pick_graph(which).filter(|&place| !self.graphs[place].released),
            _ => None,
        };
        let id = match (name, shared.and_then(|place| self.graphs[place].open.id)) {
            (Name::Unannounced, _) => None,
            (_, Some(id)) => Some(id),
            _ => Some((1, number)),
        };
        // torch refuses to capture into one pool twice at once.
        let mut open = self.lanes.iter().filter_map(|lane| lane.open.as_ref());
        if id.is_some() && open.any(|open| open.id == id) {
            return;
        }
        // Graphs that share a pool are not replayed at once, and one that was captured before another not after it.
        let sharing = self.graphs.iter().filter(|graph| id.is_some() && graph.open.id == id);
        let sharing: Vec<_> = sharing.map(|graph| graph.touched).collect();
        let touched = (0..LANES).filter(|&other| sharing.iter().any(|touched| touched[other]));
        if !touched.clone().all(|other| self.is_eager(other)) {
            return;
        }
        self.follow(lane, touched);
        for graph in &mut self.graphs {
            graph.usable &= id.is_none() || graph.open.id != id;
        }
        let stream = self.lanes[lane].stream;
        if let Some(id) = id {
            self.pool.begin_private(id, move |asked| asked == stream);
        }
        self.sim
            .stream_begin_capture(stream, mode)
            .expect("it does not capture");
        self.lanes[lane].open = Some(Open {
            number,
            id,
            stamps: BTreeMap::new(),
        });
        if id.is_none() {
            // It is found by what it asks for.
            self.alloc(lane, 1000, Hand::Own);
        }
    }

    pub fn end(&mut self, lane: usize) {
        let Some(open) = self.lanes[lane].open.take() else {
            return;
        };
        let graph = self
            .sim
            .stream_end_capture(self.lanes[lane].stream)
            .expect("nothing ended it");
        if let Some(id) = open.id {
            self.pool.end_private(id);
        }
        self.graphs.push(Captured {
            open,
            graph,
            usable: true,
            released: false,
            touched: [false; LANES],
        });
    }

    pub fn abort(&mut self, lane: usize) {
        let Some(open) = self.lanes[lane].open.take() else {
            return;
        };
        self.sim.abort_capture(self.lanes[lane].stream);
        if let Some(id) = open.id {
            self.pool.end_private(id);
            self.pool.release_private(id);
        }
    }

    pub fn replay(&mut self, place: usize, lane: usize) {
        let Captured {
            open, usable, touched, ..
        } = &self.graphs[place];
        let number = open.number;
        let blocks = || self.live.iter().filter(|(_, block)| block.capture == Some(number));
        let ordered = blocks().all(|(_, block)| {
            // Its own stream waits for the replay.
            self.can_follow(block, lane) && block.lane.is_some_and(|own| self.is_eager(own))
        });
        let touched = (0..LANES).filter(|&other| touched[other]);
        if !usable || !ordered || !self.is_eager(lane) || !touched.clone().all(|other| self.is_eager(other)) {
            return;
        }
        self.follow(lane, touched);
        let graph = self.graphs[place].graph.clone();
        self.on(lane, move |sim, stream| sim.graph_launch(&graph, stream))
            .expect("launched");
        for own in 0..LANES {
            if blocks().any(|(_, block)| block.lane == Some(own)) {
                self.follow(own, [lane]);
            }
        }
        let captured = &mut self.graphs[place];
        captured.touched = std::array::from_fn(|other| other == lane);
        for (addr, block) in self.live.iter_mut().filter(|(_, block)| block.capture == Some(number)) {
            block.stamp = captured.open.stamps.get(addr).copied();
            block.touched = std::array::from_fn(|other| other == lane || block.lane == Some(other));
        }
    }

    pub fn release(&mut self, place: usize) {
        let graph = &mut self.graphs[place];
        if !std::mem::replace(&mut graph.released, true) {
            graph.usable = false;
            if let Some(id) = graph.open.id {
                self.pool.release_private(id);
            }
        }
    }

    pub fn renew_stream(&mut self) {
        if self.lanes[PASSING].open.is_some() {
            return;
        }
        self.sim.stream_destroy(self.lanes[PASSING].stream).expect("live");
        self.lanes[PASSING].stream = self.sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        for block in self.live.values_mut() {
            block.lost |= std::mem::take(&mut block.touched[PASSING]);
            block.lane = block.lane.filter(|&lane| lane != PASSING);
        }
        for graph in &mut self.graphs {
            // Nothing can be ordered after what the stream had to do.
            graph.usable &= !std::mem::take(&mut graph.touched[PASSING]);
        }
    }
}
