//! Trees are looked through and dropped in small steps, so that whoever commits meanwhile never waits long. sled reads each
//! leaf of a tree that it drops: of small commits a segment of the log has a thousand, which takes a tenth of a second. So the
//! tree is read before, a little at a time, into sled's cache. To drop it is then to note that its pages are free, some
//! microseconds for each.

use super::{Store, StoreError};
use std::ops::ControlFlow;

/// What it costs to visit a key, in the bytes of values that could be read meanwhile.
pub(crate) const KEY_COST_BYTES: u64 = 4 << 10;

/// How far a tree has been looked through.
pub(super) struct Progress {
    tree: String,
    from: Vec<u8>,
}

impl Progress {
    pub(super) fn new(tree: String) -> Progress {
        Progress { tree, from: Vec::new() }
    }

    /// The tree.
    pub(super) fn tree(&self) -> &str {
        &self.tree
    }

    /// Visits the next keys until `budget` bytes are spent, one of them at least; true once there is none left.
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
            // The key that comes next, whatever it is.
            self.from = [key, &[0]].concat();
            ControlFlow::Break(())
        }))?;
        Ok(whole)
    }
}

/// A tree on its way out.
pub(crate) struct Removal(Progress);

impl Removal {
    pub(crate) fn new(tree: String) -> Removal {
        Removal(Progress::new(tree))
    }

    /// Reads on, `budget` bytes at the most but for one value; once all is read, drops the tree. True as long as it is there.
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

    /// Whoever commits waits for one step: none does more than it may, and the tree stays whole until the last.
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
            let (mut progress, mut steps) = (Progress::new(TREE.to_owned()), Vec::new());
            let mut whole = false;
            while !whole {
                let mut visited = Vec::new();
                whole = progress.step(&store, budget, |key| visited.push(key.to_vec())).unwrap();
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
