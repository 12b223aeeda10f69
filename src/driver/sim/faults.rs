//! Failures on demand.

use super::{Call, Code};

/// Calls that are to fail. They fail before they have done anything.
///
/// Calls are counted from the moment the fault is set: 1 is the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The function, or none for any function.
    pub call: Option<Call>,
    /// The first call that fails, from 1.
    pub first: u64,
    /// How many calls fail.
    pub times: u64,
    /// What they give.
    pub code: Code,
}

impl Fault {
    /// The `n`-th call from now of one function fails.
    #[must_use]
    pub const fn nth(call: Call, n: u64, code: Code) -> Self {
        Self {
            call: Some(call),
            first: n,
            times: 1,
            code,
        }
    }

    /// The `n`-th call from now of one function and all its later calls fail.
    #[must_use]
    pub const fn from_nth(call: Call, n: u64, code: Code) -> Self {
        Self {
            call: Some(call),
            first: n,
            times: u64::MAX,
            code,
        }
    }

    /// The `n`-th call from now fails, whatever its function.
    #[must_use]
    pub const fn any(n: u64, code: Code) -> Self {
        Self {
            call: None,
            first: n,
            times: 1,
            code,
        }
    }
}

/// The faults that are set.
#[derive(Default)]
pub(super) struct Faults {
    set: Vec<(Fault, u64)>,
    /// An error after which nothing works any more.
    pub sticky: Option<Code>,
}

impl Faults {
    pub fn add(&mut self, fault: Fault) {
        self.set.push((fault, 0));
    }

    pub fn clear(&mut self) {
        self.set.clear();
        self.sticky = None;
    }

    /// Counts the call and says whether it fails.
    pub fn check(&mut self, call: Call) -> Result<(), Code> {
        if let Some(code) = self.sticky {
            return Err(code);
        }
        let mut failed = Ok(());
        for (fault, seen) in &mut self.set {
            if fault.call.is_none_or(|function| function == call) {
                *seen += 1;
                if *seen >= fault.first && *seen - fault.first < fault.times {
                    failed = Err(fault.code);
                }
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(fault: Fault, calls: &[Call]) -> Vec<bool> {
        let mut faults = Faults::default();
        faults.add(fault);
        calls.iter().map(|&call| faults.check(call).is_ok()).collect()
    }

    #[test]
    fn only_the_chosen_calls_fail() {
        use Call::{MemCreate, MemMap};
        let calls = [MemMap, MemCreate, MemCreate, MemMap, MemCreate];
        let code = Code::OUT_OF_MEMORY;
        assert_eq!(
            outcomes(Fault::nth(MemCreate, 2, code), &calls),
            [true, true, false, true, true]
        );
        assert_eq!(
            outcomes(Fault::from_nth(MemCreate, 2, code), &calls),
            [true, true, false, true, false]
        );
        assert_eq!(outcomes(Fault::any(4, code), &calls), [true, true, true, false, true]);
    }
}
