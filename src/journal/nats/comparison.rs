//! Whether this node has come to the same state as the others: their hashes, beside its own.
//!
//! A hash has everything before it in it. So two nodes whose hashes differ at a position have diverged by then, and differ at every
//! later one. Which of them is right nobody can tell but by their number: the fewer have to stop.

use crate::domain::{Seq, StateHash};
use std::collections::BTreeMap;

/// Positions of which hashes are kept.
const POSITIONS_MAX: usize = 64;

/// The most nodes whose hashes are kept for a position.
const NODES_MAX: usize = 256;

/// The hashes that are known.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    own: BTreeMap<Seq, u128>,
    told: BTreeMap<Seq, BTreeMap<String, u128>>,
}

/// What the hashes at a position show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nobody differs from this node.
    Same,
    /// These differ from it, and are the fewer.
    OthersDiffer(Vec<String>),
    /// It is among the fewer, or as many differ from it as agree, and nobody else is left to tell: it must not go on.
    Diverged(Vec<String>),
    /// Somebody differs, and others who have not told their hash may decide it.
    Open(Vec<String>),
}

impl Comparison {
    /// Notes this node's own hash.
    pub(super) fn note_own(&mut self, hash: StateHash) {
        self.own.insert(hash.at, hash.hash);
        trim(&mut self.own);
    }

    /// Notes what another node has told.
    pub(super) fn note(&mut self, node: &str, hash: StateHash) {
        let told = self.told.entry(hash.at).or_default();
        if told.len() < NODES_MAX || told.contains_key(node) {
            told.insert(node.to_owned(), hash.hash);
        }
        trim(&mut self.told);
    }

    /// This node's last hash.
    pub(super) fn last(&self) -> Option<StateHash> {
        self.own.last_key_value().map(|(&at, &hash)| StateHash { at, hash })
    }

    /// Whether a node has told another hash than this node's, where both are known; `None` if they nowhere are.
    pub(super) fn differs(&self, node: &str) -> Option<bool> {
        let mut common =
            self.told.iter().rev().filter_map(|(at, told)| Some((told.get(node)?, self.own.get(at)?)));
        common.next().map(|(theirs, ours)| theirs != ours)
    }

    /// What the hashes at a position show, while so many nodes are there, this one included. If `is_final`, nobody is waited for.
    pub(super) fn verdict(&self, at: Seq, nodes: usize, is_final: bool) -> Verdict {
        let (Some(own), Some(told)) = (self.own.get(&at), self.told.get(&at)) else { return Verdict::Same };
        let mut others = BTreeMap::<u128, usize>::new();
        for hash in told.values().filter(|hash| *hash != own) {
            *others.entry(*hash).or_default() += 1;
        }
        let Some(&most) = others.values().max() else { return Verdict::Same };
        let ours = 1 + told.values().filter(|hash| *hash == own).count();
        let differing = told.iter().filter(|(_, hash)| *hash != own).map(|(node, _)| node.clone()).collect();
        // More than half of all there are decide at once. Otherwise everybody who is there has his say first.
        let is_decided = is_final || most.max(ours) * 2 > nodes || told.len() + 1 >= nodes;
        match is_decided {
            false => Verdict::Open(differing),
            true if ours > most => Verdict::OthersDiffer(differing),
            true => Verdict::Diverged(differing),
        }
    }
}

/// Forgets the oldest positions when there are too many.
fn trim<T>(positions: &mut BTreeMap<Seq, T>) {
    while positions.len() > POSITIONS_MAX {
        positions.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Seq = Seq(1 << 16);

    fn comparison(own: u128, told: &[(&str, u128)]) -> Comparison {
        let mut comparison = Comparison::default();
        comparison.note_own(StateHash { at: AT, hash: own });
        for (node, hash) in told {
            comparison.note(node, StateHash { at: AT, hash: *hash });
        }
        comparison
    }

    fn verdict(own: u128, told: &[(&str, u128)], nodes: usize, is_final: bool) -> Verdict {
        comparison(own, told).verdict(AT, nodes, is_final)
    }

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn the_odd_one_of_three_stops_and_the_others_go_on() {
        assert_eq!(verdict(1, &[("b", 1), ("c", 1)], 3, false), Verdict::Same);
        assert_eq!(verdict(1, &[("b", 1), ("c", 2)], 3, false), Verdict::OthersDiffer(named(&["c"])));
        assert_eq!(verdict(2, &[("a", 1), ("b", 1)], 3, false), Verdict::Diverged(named(&["a", "b"])));
    }

    #[test]
    fn while_somebody_has_not_told_it_is_open_until_that_takes_too_long() {
        assert_eq!(verdict(1, &[("c", 2)], 3, false), Verdict::Open(named(&["c"])));
        assert_eq!(verdict(1, &[("c", 2)], 3, true), Verdict::Diverged(named(&["c"])));
        // Two of five have told the same, and the others may yet agree with this one.
        assert_eq!(verdict(1, &[("b", 2), ("c", 2)], 5, false), Verdict::Open(named(&["b", "c"])));
        let most = [("b", 2), ("c", 2), ("d", 2)];
        assert_eq!(verdict(1, &most, 5, false), Verdict::Diverged(named(&["b", "c", "d"])));
    }

    /// Nobody can tell which of two is right, so neither may go on.
    #[test]
    fn where_as_many_differ_as_agree_all_stop() {
        assert_eq!(verdict(1, &[("b", 2)], 2, false), Verdict::Diverged(named(&["b"])));
        assert_eq!(verdict(1, &[("b", 2), ("c", 3)], 3, false), Verdict::Diverged(named(&["b", "c"])));
        let two_and_two = [("b", 1), ("c", 2), ("d", 2)];
        assert_eq!(verdict(1, &two_and_two, 4, false), Verdict::Diverged(named(&["c", "d"])));
    }

    #[test]
    fn what_a_node_tells_anew_replaces_what_it_told_and_only_common_positions_count() {
        let mut comparison = comparison(1, &[("b", 2)]);
        assert_eq!(comparison.differs("b"), Some(true));
        comparison.note("b", StateHash { at: AT, hash: 1 });
        assert_eq!((comparison.differs("b"), comparison.verdict(AT, 2, false)), (Some(false), Verdict::Same));
        comparison.note("b", StateHash { at: Seq(2 << 16), hash: 7 });
        assert_eq!((comparison.differs("b"), comparison.differs("c")), (Some(false), None));
        assert_eq!(comparison.verdict(Seq(2 << 16), 2, true), Verdict::Same);
        comparison.note_own(StateHash { at: Seq(2 << 16), hash: 6 });
        assert_eq!(comparison.differs("b"), Some(true));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut comparison = Comparison::default();
        for number in 0..1_000u64 {
            let hash = StateHash { at: Seq(number << 16), hash: 1 };
            comparison.note_own(hash);
            comparison.note("b", hash);
            comparison.note(&format!("n{number}"), StateHash { at: AT, hash: 1 });
        }
        assert_eq!((comparison.own.len(), comparison.told.len()), (POSITIONS_MAX, POSITIONS_MAX));
        assert!(comparison.told.values().all(|told| told.len() <= NODES_MAX));
        assert_eq!(comparison.last().unwrap().at, Seq(999 << 16));
    }
}
