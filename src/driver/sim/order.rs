//! Vector clocks: what is known to come before what.

use crate::driver::StreamId;

/// How far the work of each stream is known to come before something: the number of its last operation that does.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock(Vec<(StreamId, u64)>);

impl Clock {
    /// The stream's last operation that comes before; 0 when none is known to.
    pub fn get(&self, stream: StreamId) -> u64 {
        self.0
            .binary_search_by_key(&stream, |&(id, _)| id)
            .map_or(0, |at| self.0[at].1)
    }

    /// Learns that the stream's operations up to `last` come before.
    pub fn raise(&mut self, stream: StreamId, last: u64) {
        match self.0.binary_search_by_key(&stream, |&(id, _)| id) {
            Ok(at) => self.0[at].1 = self.0[at].1.max(last),
            Err(at) if last > 0 => self.0.insert(at, (stream, last)),
            Err(_) => {}
        }
    }

    /// Learns all that `other` knows.
    pub fn merge(&mut self, other: &Self) {
        for &(stream, last) in &other.0 {
            self.raise(stream, last);
        }
    }

    /// Drops what `known` covers, so that clocks stay as small as the number of streams with unfinished work.
    pub fn drop_known(&mut self, known: &Self) {
        self.0.retain(|&(stream, last)| last > known.get(stream));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_keeps_the_later_of_each() {
        let (a, b) = (StreamId(1), StreamId(2));
        let mut one = Clock::default();
        one.raise(b, 4);
        one.raise(a, 7);
        let mut other = Clock::default();
        other.raise(a, 9);
        other.raise(b, 1);
        one.merge(&other);
        assert_eq!((one.get(a), one.get(b), one.get(StreamId(3))), (9, 4, 0));
        one.drop_known(&other);
        assert_eq!((one.get(a), one.get(b)), (0, 4));
    }
}
