//! The checks: a filter as the service has it against the model of it.

use crate::model::{Filter, Item, Kind, Status, now};
use crate::service::Client;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Items asked for at once.
const ITEMS_MAX: usize = 10_000;

/// Longer than one batch is written, even to a busy disk.
const READERS_STOP_MAX: Duration = Duration::from_secs(20);

/// Where the service and the model differ.
#[derive(Debug)]
pub struct Difference {
    pub what: String,
    /// The item concerned, if it is about one.
    pub item: Option<Item>,
}

impl From<String> for Difference {
    fn from(what: String) -> Difference {
        Difference { what, item: None }
    }
}

/// Compares everything that the client knows of a filter: whether it exists, each item, and each redemption. Learns values that no response
/// has contained.
///
/// # Errors
/// The first difference.
pub fn compare(filter: &mut Filter, client: &Client) -> Result<(), Difference> {
    let path = filter.path();
    let shown = client.get(&path).expect("the service is up");
    let standing = shown.status;
    let capacity = &shown.body["capacity"];
    if standing != if filter.stands { 200 } else { 404 } {
        return Err(format!(
            "it must {}be there: {standing}",
            if filter.stands { "" } else { "not " }
        )
        .into());
    }
    if !filter.stands {
        return Ok(());
    }
    if *capacity != filter.capacity
        || shown.body["stats"]["capacity_now"].as_u64() < Some(filter.capacity)
    {
        return Err(format!("its capacity must be {}: {}", filter.capacity, shown.body).into());
    }
    if filter.kind == Kind::OpenPool && shown.body["stock"] != filter.stock {
        return Err(format!("its stock must be {}: {}", filter.stock, shown.body).into());
    }
    compare_items(filter, client)?;
    for index in 0..filter.redemptions.len() {
        if filter.redemptions[index].id.is_none() {
            find_redemption(filter, index, client)?;
        }
        compare_redemption(filter, index, client)?;
    }
    filter.was_compared();
    Ok(())
}

/// Whether a filter is as the first model says; else it is as the second.
///
/// # Errors
/// It is as neither of them.
pub fn resembles(
    one: &mut Filter,
    other: &mut Filter,
    client: &Client,
) -> Result<bool, Difference> {
    // A compact filter may seem to hold items that it doesn't, and so to be as both. Fewer differences decide.
    let is_compact = one.kind == Kind::CompactCampaign && one.stands && other.stands;
    let is_one = !is_compact || surplus(one, client)? <= surplus(other, client)?;
    let difference = match is_one.then(|| compare(one, client)) {
        Some(Ok(())) => return Ok(true),
        Some(Err(difference)) => Some(difference),
        None => None,
    };
    compare(other, client)
        .map(|()| false)
        .map_err(|undone| match difference {
            Some(done) => Difference {
                what: format!("{}; or else {}", done.what, undone.what),
                ..done
            },
            None => undone,
        })
}

/// How many copies of items a filter has that its model doesn't.
fn surplus(filter: &Filter, client: &Client) -> Result<u64, Difference> {
    let known: Vec<Item> = filter.known.iter().copied().collect();
    let mut surplus = 0;
    for items in known.chunks(ITEMS_MAX) {
        let counts = ask(filter, items, "count", client)?;
        let wanted = items.iter().map(|&item| u64::from(filter.copies(item)));
        surplus += counts
            .iter()
            .zip(wanted)
            .map(|(count, wanted)| count.as_u64().unwrap_or(0).saturating_sub(wanted))
            .sum::<u64>();
    }
    Ok(surplus)
}

/// Asks about items, one answer for each.
fn ask(
    filter: &Filter,
    items: &[Item],
    what: &str,
    client: &Client,
) -> Result<Vec<Value>, Difference> {
    let (list, field) = filter.words();
    let path = format!("{}/{list}/{what}", filter.path());
    let answer = client
        .post(&path, &json!({ field: filter.names(items) }))
        .expect("the service is up");
    let word = match (what, filter.kind.is_coupon()) {
        ("count", _) => "counts",
        (_, true) => "valid",
        (_, false) => "present",
    };
    let answers = answer.body[word]
        .as_array()
        .filter(|answers| answers.len() == items.len());
    answers
        .cloned()
        .ok_or_else(|| format!("{what} of {} items: {answer:?}", items.len()).into())
}

/// A compact filter may take a stranger for a member, and never a member for a stranger.
fn compare_items(filter: &Filter, client: &Client) -> Result<(), Difference> {
    let compact = filter.kind == Kind::CompactCampaign;
    let known: Vec<Item> = filter.known.iter().copied().collect();
    for items in known.chunks(ITEMS_MAX) {
        let before = now();
        let valid = ask(filter, items, "check", client)?;
        let after = now();
        for (&item, valid) in items.iter().zip(valid) {
            let wanted = filter.is_valid(item, before, after);
            if wanted.is_some_and(|wanted| valid != wanted && (wanted || !compact)) {
                let what = format!("{} is {valid} and must be {wanted:?}", filter.item(item));
                return Err(Difference {
                    what,
                    item: Some(item),
                });
            }
        }
        if filter.kind == Kind::StrictCampaign {
            continue;
        }
        let before = now();
        let counts = ask(filter, items, "count", client)?;
        let after = now();
        let counts = items
            .iter()
            .zip(counts)
            .filter(|(item, _)| filter.is_surely_counted(**item, before, after));
        for (&item, count) in counts {
            let wanted = filter.copies(item);
            let count = count.as_u64().unwrap_or_default();
            if count != u64::from(wanted) && (count < u64::from(wanted) || !compact) {
                let what = format!(
                    "{} has {count} copies and must have {wanted}",
                    filter.item(item)
                );
                return Err(Difference {
                    what,
                    item: Some(item),
                });
            }
        }
    }
    Ok(())
}

/// Finds, by its reference, a redemption whose request was not answered.
fn find_redemption(filter: &mut Filter, index: usize, client: &Client) -> Result<(), Difference> {
    let redemption = &filter.redemptions[index];
    let code = redemption.code;
    let reference = redemption.reference.clone();
    let found = client.get(&format!(
        "{}/redemptions?reference={reference}",
        filter.path()
    ));
    let found = found.expect("the service is up");
    let known = |id: &Value| {
        filter
            .redemptions
            .iter()
            .any(|other| id.as_str() == other.id.as_deref())
    };
    let new = found.body["redemptions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|found| !known(&found["id"]));
    match new.cloned() {
        Some(new) => {
            filter.redemptions[index].learn(&new);
            Ok(())
        }
        None => Err(Difference {
            what: format!("{reference} is not there: {found:?}"),
            item: Some(code),
        }),
    }
}

fn compare_redemption(
    filter: &mut Filter,
    index: usize,
    client: &Client,
) -> Result<(), Difference> {
    let id = filter.redemptions[index].id.clone().expect("it was found");
    let path = format!("{}/redemptions/{id}", filter.path());
    // The time of reads stops while a batch is being written, and goes on with the next read after it.
    let deadline = Instant::now() + READERS_STOP_MAX;
    loop {
        let before = now();
        let answer = client.get(&path).expect("the service is up");
        filter.redemptions[index].learn(&answer.body);
        let mut redemption = filter.redemptions[index].clone();
        let has_run_out = match redemption.status {
            Status::Held => redemption.has_run_out(before, now()),
            Status::Redeemed | Status::Cancelled | Status::Expired => Some(false),
        };
        let is_shown_expired = answer.body["status"] == "expired";
        if has_run_out == Some(true) && !is_shown_expired && Instant::now() < deadline {
            continue;
        }
        if has_run_out == Some(true) || (has_run_out.is_none() && is_shown_expired) {
            redemption.status = Status::Expired;
        }
        if answer.status == 200 && redemption.is_shown_as(&answer.body) {
            return Ok(());
        }
        let what = format!("{redemption:?} is shown as {answer:?}");
        return Err(Difference {
            what,
            item: Some(redemption.code),
        });
    }
}

/// Compares the totals of a filter with its clients' combined knowledge.
///
/// # Errors
/// The first difference.
pub fn compare_figures(parts: &[&Filter], client: &Client) -> Result<(), Difference> {
    let Some(first) = parts.first().filter(|first| first.stands) else {
        return Ok(());
    };
    let before = now();
    let answer = client.get(&first.path()).expect("the service is up");
    let stats = &answer.body["stats"];
    let figure = |name: &str| stats[name].as_u64().unwrap_or(u64::MAX);
    let mut items: u64 = parts.iter().map(|part| part.total()).sum();
    let right = if first.kind.is_coupon() {
        let counts = first.counts();
        let held_min = first.held_throughout(before, now());
        let available = figure("available");
        let held = figure("held");
        let is_right =
            figure("redeemed") == counts.redeemed && (held_min..=counts.held).contains(&held);
        is_right
            && if first.kind == Kind::OpenPool {
                // Expired holds are absent there.
                items = counts.redeemed + held;
                available == first.stock.saturating_sub(items)
            } else {
                available + held == counts.available + counts.held
            }
    } else {
        figure("adds").wrapping_sub(figure("removes")) == items
    };
    if right && figure("items") == items {
        return Ok(());
    }
    let counts: Vec<_> = parts.iter().map(|part| part.counts()).collect();
    Err(format!("there must be {items} items, {counts:?}: {stats}").into())
}
