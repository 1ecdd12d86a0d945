//! Removes trees in small steps, so that commits never wait long. sled reads each leaf of a tree that it drops. A segment of the
//! log with small commits has a thousand, which takes a tenth of a second. So the tree is first read into sled's cache, a little
//! at a time. Dropping it then only marks its pages as free, which takes some microseconds each.

use super::{Store, StoreError};
use std::ops::ControlFlow;

/// The cost of visiting a key, expressed in bytes of values that could be read in the same time.
pub(crate) const KEY_COST_BYTES: u64 = 4 << 10;

/// How far a tree has been read.
pub(super) struct Traversal {
    tree: String,
    from: Vec<u8>,
}

impl Traversal {
    pub(super) fn new(tree: String) -> Traversal {
        Traversal { tree, from: Vec::new() }
    }

    /// The tree.
    pub(super) fn tree(&self) -> &str {
        &self.tree
    }

    /// Visits the next keys, at least one, until `budget` bytes are spent; `true` once no key is left.
    pub(super) fn step(
        &mut self,
        store: &Store,
        budget: u64,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<bool, StoreError> {
        let (mut spent, mut whole) = (0, true);
        let from = std::mem::take(&mut self.from);
        store.run(store.backing().scan(&self.tree, &from, &mut |key, value| {
            visit(key);
            spent += value.len() as u64 + KEY_COST_BYTES;
            if spent < budget {
                return ControlFlow::Continue(());
            }
            whole = false;
            // The smallest key after this one.
            self.from = [key, &[0]].concat();
            ControlFlow::Break(())
        }))?;
        Ok(whole)
    }
}

/// A tree that is being removed.
pub(crate) struct Removal(Traversal);

impl Removal {
    pub(crate) fn new(tree: String) -> Removal {
        Removal(Traversal::new(tree))
    }

    /// Reads about `budget` more bytes of the tree; once all is read, drops it. `true` as long as the tree exists.
    pub(crate) fn step(&mut self, store: &Store, budget: u64) -> Result<bool, StoreError> {
        if !self.0.step(store, budget, |_| ())? {
            return Ok(true);
        }
        store.drop_tree(self.0.tree())?;
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;
    use crate::store::backing::Change;

    /// A commit waits for one step at most: each step stays within its budget, and the tree is complete until the last one.
    #[test]
    fn a_tree_goes_in_small_steps() {
        const TREE: &str = "log/0000000000000001";
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { free_space_min_bytes: 0, ballast_bytes: 0, ..StoreOptions::default() };
        let store = Store::open(dir.path(), &options).unwrap();
        let key = |number: u64| number.to_be_bytes().to_vec();
        let put = |number| Change::Put(key(number), vec![0; 100]);
        store.write(TREE, (0..100).map(put).collect()).unwrap();
        let visits = |budget| {
            let (mut traversal, mut steps) = (Traversal::new(TREE.to_owned()), Vec::new());
            let mut whole = false;
            while !whole {
                let mut visited = Vec::new();
                whole = traversal.step(&store, budget, |key| visited.push(key.to_vec())).unwrap();
                steps.push(visited);
            }
            steps
        };
        let all: Vec<Vec<u8>> = (0..100).map(key).collect();
        for (budget, most) in [(0, 1), (1, 1), (2 * KEY_COST_BYTES, 2), (20 * KEY_COST_BYTES, 20)] {
            let steps = visits(budget);
            assert_eq!(steps.concat(), all);
            assert!(steps.iter().all(|visited| visited.len() <= most));
            assert!(steps.len() <= 100 / most + 1);
        }
        let mut removal = Removal::new(TREE.to_owned());
        for _ in 0..100 {
            assert!(store.backing().tree_names().contains(&TREE.to_owned()));
            assert!(removal.step(&store, 1).unwrap());
        }
        assert!(!removal.step(&store, 1).unwrap());
        assert!(!store.backing().tree_names().contains(&TREE.to_owned()));
    }
}
