//! Threads that do what they are told.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A number below 2^31, and the next time another one.
pub fn next(random: &mut u64) -> usize {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) as usize
}

/// A thread that does what it is told.
pub struct Worker {
    jobs: Sender<Box<dyn FnOnce() + Send>>,
    thread: JoinHandle<()>,
}

impl Worker {
    pub fn new() -> Self {
        let (jobs, received) = channel::<Box<dyn FnOnce() + Send>>();
        let thread = std::thread::spawn(move || received.into_iter().for_each(|job| job()));
        Self { jobs, thread }
    }

    /// Begins a job; what it gives comes when it is done.
    pub fn begins<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (done, result) = channel();
        let job = move || done.send(job()).expect("somebody waits for it");
        self.jobs.send(Box::new(job)).expect("the thread is there");
        result
    }

    /// What the job gives, once it is done.
    pub fn does<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.begins(job).recv().expect("no panic")
    }

    /// Ends the thread, and waits for what it does at its end.
    pub fn end(self) {
        drop(self.jobs);
        self.thread.join().expect("no panic");
    }
}
