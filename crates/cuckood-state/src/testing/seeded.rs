//! Random bytes of a simulation: its thread draws them from a seed instead of the operating system.

use super::random::Random;
use std::cell::RefCell;

thread_local! {
    static SOURCE: RefCell<Option<Random>> = const { RefCell::new(None) };
}

/// This thread draws from the seed until that is dropped.
pub struct Seeded;

/// Draws from a seed in this thread.
pub fn seed(seed: u64) -> Seeded {
    SOURCE.set(Some(Random::new(seed)));
    Seeded
}

impl Drop for Seeded {
    fn drop(&mut self) {
        SOURCE.set(None);
    }
}

/// Fills the bytes from the seed of this thread. Returns `false` if it has none.
pub fn fill(bytes: &mut [u8]) -> bool {
    SOURCE.with_borrow_mut(|source| {
        let Some(random) = source else {
            return false;
        };
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&random.next().to_le_bytes()[..part.len()]);
        }
        true
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn seed_decides_bytes_until_dropped() {
        let draw = |number| {
            let _seeded = super::seed(number);
            let mut bytes = [0; 20];
            assert!(super::fill(&mut bytes));
            bytes
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(!super::fill(&mut [0]));
    }
}
