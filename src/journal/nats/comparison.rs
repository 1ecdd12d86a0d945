//! Whether this node has come to the same state as the others: their hashes, beside its own.
//!
//! A hash has everything before it in it. So two nodes whose hashes differ at a position have diverged by then, and differ at every
//! later one; two whose hashes agree have agreed at every earlier one. Which of two is right nobody can tell but by their number: the
//! fewer have to stop.

use crate::domain::{Seq, StateHash};
use std::collections::{BTreeMap, BTreeSet};

/// Positions of which hashes are kept, for each node.
const POSITIONS_MAX: usize = 64;

/// The most other nodes whose hashes are kept.
const NODES_MAX: usize = 256;

/// The hashes of one node, by position.
type Hashes = BTreeMap<Seq, u128>;

/// The hashes that are known.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    own: Hashes,
    told: BTreeMap<String, Hashes>,
}

/// What the hashes at a position show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// This node has no hash of the position, or nobody else has told one.
    Unknown,
    /// Nobody differs from this node.
    Same,
    /// These differ from it, and are the fewer.
    OthersDiffer(Vec<String>),
    /// It is among the fewer, or as many differ from it as agree: it must not go on.
    Diverged(Vec<String>),
    /// These differ, and nodes that have not told their hash may decide it.
    Open(Vec<String>),
}

impl Comparison {
    /// Notes this node's own hash.
    pub(super) fn note_own(&mut self, hash: StateHash) {
        note(&mut self.own, hash);
    }

    /// Notes what another node has told. If there are too many nodes, the one that is furthest behind is forgotten.
    pub(super) fn note(&mut self, node: &str, hash: StateHash) {
        if !self.told.contains_key(node) && self.told.len() >= NODES_MAX {
            let last = |told: &Hashes| told.last_key_value().map(|(at, _)| *at);
            let behind = self.told.iter().min_by_key(|(_, told)| last(told));
            if let Some(behind) = behind.map(|(behind, _)| behind.clone()) {
                self.told.remove(&behind);
            }
        }
        note(self.told.entry(node.to_owned()).or_default(), hash);
    }

    /// This node's last hash.
    pub(super) fn last(&self) -> Option<StateHash> {
        self.own.last_key_value().map(|(&at, &hash)| StateHash { at, hash })
    }

    /// Whether a node has told another hash than this node's, where both are known; `None` if they nowhere are.
    pub(super) fn differs(&self, node: &str) -> Option<bool> {
        let mut told = self.told.get(node)?.iter().rev();
        told.find_map(|(at, theirs)| Some(theirs != self.own.get(at)?))
    }

    /// The hash that a node had at a position: what it has told, or this node's, if they agree at a later one.
    fn hash_at(&self, node: &str, at: Seq, own: u128) -> Option<u128> {
        let told = self.told.get(node)?;
        let agrees = told.range(at..).any(|(at, theirs)| self.own.get(at) == Some(theirs));
        if agrees { Some(own) } else { told.get(&at).copied() }
    }

    /// What the hashes at a position show. Those that are present have their say first, unless it `is_final`, or they can't change it.
    pub(super) fn verdict(&self, at: Seq, present: &BTreeSet<String>, is_final: bool) -> Verdict {
        let Some(&own) = self.own.get(&at) else { return Verdict::Unknown };
        let (mut ours, mut undecided) = (1, 0);
        let (mut others, mut differing) = (BTreeMap::<u128, usize>::new(), Vec::new());
        for node in self.told.keys().chain(present).collect::<BTreeSet<_>>() {
            match self.hash_at(node, at, own) {
                Some(hash) if hash == own => ours += 1,
                Some(hash) => {
                    *others.entry(hash).or_default() += 1;
                    differing.push(node.clone());
                }
                None if present.contains(node) => undecided += 1,
                None => {}
            }
        }
        match others.into_values().max() {
            None if ours == 1 => Verdict::Unknown,
            None => Verdict::Same,
            Some(most) if most >= ours + undecided => Verdict::Diverged(differing),
            Some(most) if ours > most + undecided => Verdict::OthersDiffer(differing),
            Some(_) if !is_final => Verdict::Open(differing),
            Some(most) if ours > most => Verdict::OthersDiffer(differing),
            Some(_) => Verdict::Diverged(differing),
        }
    }
}

/// Notes a hash, and forgets the oldest when there are too many.
fn note(hashes: &mut Hashes, hash: StateHash) {
    hashes.insert(hash.at, hash.hash);
    while hashes.len() > POSITIONS_MAX {
        hashes.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Seq = Seq(1 << 16);
    const LATER: Seq = Seq(2 << 16);

    fn comparison(own: u128, told: &[(&str, u128)]) -> Comparison {
        let mut comparison = Comparison::default();
        comparison.note_own(StateHash { at: AT, hash: own });
        for (node, hash) in told {
            comparison.note(node, StateHash { at: AT, hash: *hash });
        }
        comparison
    }

    fn present(nodes: &[&str]) -> BTreeSet<String> {
        nodes.iter().map(|node| node.to_string()).collect()
    }

    fn verdict(own: u128, told: &[(&str, u128)], nodes: &[&str], is_final: bool) -> Verdict {
        comparison(own, told).verdict(AT, &present(nodes), is_final)
    }

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn the_odd_one_of_three_stops_and_the_others_go_on() {
        let all = ["a", "b", "c"];
        assert_eq!(verdict(1, &[("b", 1), ("c", 1)], &all[1..], false), Verdict::Same);
        let differs = Verdict::OthersDiffer(named(&["c"]));
        assert_eq!(verdict(1, &[("b", 1), ("c", 2)], &all[1..], false), differs);
        let diverged = Verdict::Diverged(named(&["a", "b"]));
        assert_eq!(verdict(2, &[("a", 1), ("b", 1)], &all[..2], false), diverged);
    }

    #[test]
    fn it_is_open_while_those_who_have_not_told_may_decide_it() {
        assert_eq!(verdict(1, &[("c", 2)], &["b", "c"], false), Verdict::Open(named(&["c"])));
        assert_eq!(verdict(1, &[("c", 2)], &["b", "c"], true), Verdict::Diverged(named(&["c"])));
        // Two of five have told the same, and the others may yet agree with this one.
        let five = ["b", "c", "d", "e"];
        assert_eq!(verdict(1, &[("b", 2), ("c", 2)], &five, false), Verdict::Open(named(&["b", "c"])));
        let most = [("b", 2), ("c", 2), ("d", 2)];
        assert_eq!(verdict(1, &most, &five, false), Verdict::Diverged(named(&["b", "c", "d"])));
        let most = [("b", 1), ("c", 1), ("d", 2)];
        assert_eq!(verdict(1, &most, &five, false), Verdict::OthersDiffer(named(&["d"])));
        let most = [("b", 1), ("d", 2)];
        assert_eq!(verdict(1, &most, &five, false), Verdict::Open(named(&["d"])));
        assert_eq!(verdict(1, &most, &five, true), Verdict::OthersDiffer(named(&["d"])));
    }

    /// One that has told and died has had its say. It is not one of those that are still to speak.
    #[test]
    fn those_who_have_told_count_whether_they_are_present_or_not() {
        let gone = [("gone", 2), ("c", 2)];
        assert_eq!(verdict(1, &gone, &["b", "c", "d"], false), Verdict::Open(named(&["c", "gone"])));
        assert_eq!(verdict(1, &[("gone", 1), ("c", 2)], &["c"], false), Verdict::OthersDiffer(named(&["c"])));
        assert_eq!(verdict(1, &[("gone", 2)], &["b", "c"], false), Verdict::Open(named(&["gone"])));
    }

    /// Nobody can tell which of two is right, so neither may go on.
    #[test]
    fn where_as_many_differ_as_agree_all_stop() {
        assert_eq!(verdict(1, &[("b", 2)], &["b"], false), Verdict::Diverged(named(&["b"])));
        let three = [("b", 2), ("c", 3)];
        assert_eq!(verdict(1, &three, &["b", "c"], false), Verdict::Diverged(named(&["b", "c"])));
        let two_and_two = [("b", 1), ("c", 2), ("d", 2)];
        assert_eq!(verdict(1, &two_and_two, &["b", "c", "d"], false), Verdict::Diverged(named(&["c", "d"])));
    }

    /// A node tells its last hash alone, so it may pass over a position.
    #[test]
    fn whoever_agrees_later_has_agreed_before() {
        let mut comparison = comparison(1, &[("c", 2)]);
        comparison.note_own(StateHash { at: LATER, hash: 6 });
        comparison.note("b", StateHash { at: LATER, hash: 7 });
        let all = present(&["b", "c"]);
        assert_eq!(comparison.verdict(AT, &all, false), Verdict::Open(named(&["c"])), "it may differ since");
        comparison.note("b", StateHash { at: LATER, hash: 6 });
        assert_eq!(comparison.verdict(AT, &all, false), Verdict::OthersDiffer(named(&["c"])));
        assert_eq!(comparison.verdict(LATER, &all, false), Verdict::Same);
        // It was replaced.
        comparison.note("c", StateHash { at: LATER, hash: 6 });
        assert_eq!(comparison.verdict(AT, &all, false), Verdict::Same);
    }

    #[test]
    fn what_a_node_tells_anew_replaces_what_it_told_and_only_common_positions_count() {
        let mut comparison = comparison(1, &[("b", 2)]);
        assert_eq!(comparison.differs("b"), Some(true));
        comparison.note("b", StateHash { at: AT, hash: 1 });
        assert_eq!(comparison.differs("b"), Some(false));
        assert_eq!(comparison.verdict(AT, &present(&["b"]), false), Verdict::Same);
        comparison.note("b", StateHash { at: LATER, hash: 7 });
        assert_eq!((comparison.differs("b"), comparison.differs("c")), (Some(false), None));
        assert_eq!(comparison.verdict(LATER, &present(&["b"]), true), Verdict::Unknown);
        comparison.note_own(StateHash { at: LATER, hash: 6 });
        assert_eq!(comparison.differs("b"), Some(true));
        assert_eq!(comparison.verdict(Seq(3 << 16), &present(&["b"]), true), Verdict::Unknown);
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
        assert_eq!((comparison.own.len(), comparison.told.len()), (POSITIONS_MAX, NODES_MAX));
        assert_eq!(comparison.told["b"].len(), POSITIONS_MAX);
        assert_eq!(comparison.last().unwrap().at, Seq(999 << 16));
    }
}
