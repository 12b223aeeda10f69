//! Slabs from a pool of the driver's own.
//!
//! A slab is allocated on the stream whose arena wants it, so that the driver's policies decide which memory that stream may
//! have. It is freed on a stream of our own, which has no other work: nothing on the device uses it by then, and the streams that
//! did may be gone.

use crate::driver::{DevicePtr, Driver, DriverResult, MemoryPool, PoolOptions, Stream};
use std::time::Duration;

pub(crate) struct DriverPool {
    pool: MemoryPool,
    own: Stream,
}

impl DriverPool {
    pub(crate) fn new(driver: &impl Driver, options: &PoolOptions) -> DriverResult<Self> {
        let own = driver.new_stream()?;
        match driver.pool_create(options) {
            Ok(pool) => Ok(Self { pool, own }),
            Err(error) => {
                // What a stream without work costs is little.
                let _ = driver.drop_stream(own);
                Err(error)
            }
        }
    }

    /// A slab for work of `stream`, which is live now. A stream that captures, or for which a capture may be under way, gets one
    /// that is there already: the host has waited for it.
    pub(super) fn alloc(&self, driver: &impl Driver, bytes: u64, stream: Stream) -> DriverResult<DevicePtr> {
        // Asked of the legacy stream too, whose work would end a capture of a blocking stream: that answers with an error.
        if driver.is_capturing(stream) == Ok(false) {
            return driver.pool_alloc(self.pool, bytes, stream);
        }
        let addr = driver.pool_alloc(self.pool, bytes, self.own)?;
        self.settle(driver).map(|()| addr).inspect_err(|_| {
            // If it is not taken back, the driver frees it with the pool.
            let _ = driver.pool_free(addr, self.own);
        })
    }

    /// Gives a slab back. Nothing on the device may still use it.
    pub(super) fn free(&self, driver: &impl Driver, addr: DevicePtr) -> DriverResult<()> {
        driver.pool_free(addr, self.own)
    }

    /// Gives what the driver keeps back to the device.
    pub(super) fn trim(&self, driver: &impl Driver) -> DriverResult<()> {
        self.settle(driver)?;
        driver.pool_trim(self.pool, 0)
    }

    /// Destroys the pool; slabs that are not freed yet stay until they are, or until the process ends.
    pub(super) fn destroy(&self, driver: &impl Driver) {
        // The driver's refusals have nobody to be told to any more.
        let _ = driver.pool_destroy(self.pool);
        let _ = driver.drop_stream(self.own);
    }

    /// Waits for the operations of our own stream: there is nothing in it that takes time.
    fn settle(&self, driver: &impl Driver) -> DriverResult<()> {
        let event = driver.event_create()?;
        let done = driver
            .event_record(event, self.own)
            .and_then(|()| driver.event_synchronize(event, Duration::MAX));
        let destroyed = driver.event_destroy(event);
        done.and(destroyed)
    }
}
