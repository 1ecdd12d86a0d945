//! Arbitrary bytes as lists of items: acceptance and digests agree with serde_json and a loop.

#![no_main]

use cuckood::http::fuzzing;
use cuckood::http::problem::{Code, Problem};
use cuckood_filter::{Digest, Growth, Layout, Mode, Secret};
use cuckood_state::FilterView;
use cuckood_state::State;
use cuckood_state::domain::{
    Command, Entry, FilterId, Kind, Name, Normalization, Proposal, Seq, Sizing, Spec, Timestamp,
    Unusable, Window,
};
use libfuzzer_sys::fuzz_target;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock};

/// Few, so that short inputs reach the limit.
const ITEMS_MAX: usize = 5;

static VIEWS: LazyLock<[Arc<FilterView>; 4]> = LazyLock::new(|| {
    [
        Normalization::Exact,
        Normalization::Ascii,
        Normalization::Case,
        Normalization::Code,
    ]
    .map(view)
});

// The first byte chooses the body and the filter; the rest is the body.
fuzz_target!(|bytes: &[u8]| {
    let [choice, body @ ..] = bytes else { return };
    let view = &VIEWS[usize::from(choice >> 1 & 3)];
    if choice & 1 == 0 {
        agree(
            body,
            fuzzing::items(body, view, ITEMS_MAX),
            users(body, view),
        );
    } else {
        agree(
            body,
            fuzzing::replacements(body, view, ITEMS_MAX),
            replacements(body, view),
        );
    }
});

fn agree<T: PartialEq + Debug>(body: &[u8], found: Result<T, Problem>, expected: Option<T>) {
    match found {
        Ok(found) => assert_eq!(Some(found), expected),
        Err(problem) => {
            assert_eq!(expected, None, "{problem:?}");
            match problem.code {
                Code::MalformedJson => assert!(
                    serde_json::from_slice::<Value>(body).is_err(),
                    "{problem:?}"
                ),
                Code::InvalidRequest => {
                    assert!(
                        serde_json::from_slice::<IgnoredAny>(body).is_ok(),
                        "{problem:?}"
                    );
                    assert!((1..=100).contains(&problem.faults.len()));
                }
                _ => panic!("{problem:?}"),
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Users {
    users: Vec<String>,
    #[serde(default)]
    if_absent: bool,
}

fn users(body: &[u8], view: &FilterView) -> Option<(Vec<Digest>, bool)> {
    if !serde_json::from_slice::<Value>(body).is_ok_and(|body| body.is_object()) {
        return None;
    }
    let Users { users, if_absent } = serde_json::from_slice(body).ok()?;
    Some((digests(users, view)?, if_absent))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Replacements {
    replacements: Vec<Pair>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    from: String,
    to: String,
}

fn replacements(body: &[u8], view: &FilterView) -> Option<(Vec<Digest>, Vec<Digest>)> {
    // A derived struct would also be read from a list.
    let value = serde_json::from_slice::<Value>(body).ok()?;
    if !value
        .get("replacements")?
        .as_array()?
        .iter()
        .all(Value::is_object)
    {
        return None;
    }
    let Replacements { replacements } = serde_json::from_slice(body).ok()?;
    let (from, to) = replacements
        .into_iter()
        .map(|pair| (pair.from, pair.to))
        .unzip();
    Some((digests(from, view)?, digests(to, view)?))
}

fn digests(items: Vec<String>, view: &FilterView) -> Option<Vec<Digest>> {
    let fits = |item: &String| (1..=512).contains(&item.len());
    let fit = (1..=ITEMS_MAX).contains(&items.len()) && items.iter().all(fits);
    let digests = || -> Result<Vec<Digest>, Unusable> {
        items.iter().map(|item| view.digest(item)).collect()
    };
    fit.then(digests)?.ok()
}

fn view(normalization: Normalization) -> Arc<FilterView> {
    let (kind, name) = (Kind::Coupon, Name::new("spring").expect("a name"));
    let mut state = State::default();
    let create = Command::Create {
        kind,
        name: name.clone(),
        id: FilterId(1),
        secret: Secret::new([7; 192]),
        spec: Spec {
            capacity: 8,
            mode: Mode::Strict,
            growth: Growth::Fixed,
            sizing: Sizing::Exact,
            normalization,
            supply: Default::default(),
            forget: None,
        },
        layout: Layout::strict(8).expect("a layout"),
        window: Window::default(),
        annotations: Default::default(),
    };
    state.apply(Entry {
        seq: Seq(1),
        proposal: Proposal::new(Timestamp(0), create),
    });
    state.publish();
    state.view().find(kind, &name).expect("it was just made")
}
