//! The checker is checked itself: histories that it must accept, and corrupted ones that it must refuse.

use crate::checker::{Operation, check};
use crate::model::{Answer, Id, Request, Seen, Status};

/// When holds expire, in milliseconds. All moments without a second are long before.
const EXPIRY: i64 = 10_000;

const LATER: i64 = 12_000;

const SECOND: u64 = 1_000_000;

/// An operation between two moments.
fn op(called: u64, returned: u64, request: Request, answer: Answer) -> Operation {
    Operation {
        request,
        answer: Some(answer),
        called,
        returned,
    }
}

fn lost(called: u64, returned: u64, request: Request) -> Operation {
    Operation {
        request,
        answer: None,
        called,
        returned,
    }
}

fn redeem(reference: u32) -> Request {
    Request::Redeem {
        reference,
        hold: None,
    }
}

fn hold(reference: u32) -> Request {
    Request::Redeem {
        reference,
        hold: Some(1),
    }
}

fn seen(id: Id, reference: u32, status: Status) -> Seen {
    Seen {
        id,
        reference,
        status,
        expires_at: None,
    }
}

fn redeemed(id: Id, reference: u32) -> Seen {
    seen(id, reference, Status::Redeemed)
}

fn held(id: Id, reference: u32, expires_at: i64) -> Seen {
    Seen {
        expires_at: Some(expires_at),
        ..seen(id, reference, Status::Held)
    }
}

fn cancelled(id: Id, reference: u32) -> Answer {
    Answer::Found(seen(id, reference, Status::Cancelled))
}

#[track_caller]
fn accepted(history: &[Operation]) {
    assert_eq!(check(history, 0), Ok(()));
}

#[track_caller]
fn refused(history: &[Operation]) {
    assert!(check(history, 0).is_err(), "accepted: {history:#?}");
}

#[test]
fn two_winners_are_rejected() {
    let won = |reference, id| Answer::Created(redeemed(id, reference));
    accepted(&[
        op(0, 3, redeem(1), won(1, 11)),
        op(1, 2, redeem(2), Answer::CodeRedeemed),
    ]);
    // At once, one after the other, and whichever was first.
    refused(&[
        op(0, 3, redeem(1), won(1, 11)),
        op(1, 2, redeem(2), won(2, 12)),
    ]);
    refused(&[
        op(0, 1, redeem(1), won(1, 11)),
        op(2, 3, redeem(2), won(2, 12)),
    ]);
    // Two are fine with a cancellation that may have been in between, and only then.
    let cancel = Request::Cancel(11);
    let between = [
        op(0, 1, redeem(1), won(1, 11)),
        op(2, 5, cancel, cancelled(11, 1)),
        op(3, 4, redeem(2), won(2, 12)),
    ];
    accepted(&between);
    let mut too_late = between.clone();
    too_late[1].called = 5;
    too_late[1].returned = 6;
    refused(&too_late);
}

#[test]
fn loser_requires_winner() {
    refused(&[op(0, 1, redeem(1), Answer::CodeRedeemed)]);
    let winner = op(0, 5, redeem(2), Answer::Created(redeemed(12, 2)));
    accepted(&[winner.clone(), op(1, 2, redeem(1), Answer::CodeRedeemed)]);
    refused(&[
        Operation {
            called: 3,
            ..winner.clone()
        },
        op(1, 2, redeem(1), Answer::CodeRedeemed),
    ]);
    // Held is not redeemed.
    refused(&[winner, op(1, 2, redeem(1), Answer::CodeHeld)]);
}

#[test]
fn read_sees_completed_writes() {
    let made = op(0, 1, redeem(1), Answer::Created(redeemed(11, 1)));
    accepted(&[made.clone(), op(2, 3, Request::Check, Answer::Valid(false))]);
    refused(&[made.clone(), op(2, 3, Request::Check, Answer::Valid(true))]);
    // What one has seen the next must see too, though the writer has no answer yet.
    let slow = Operation {
        returned: 9,
        ..made
    };
    let check = |called, valid| op(called, called + 1, Request::Check, Answer::Valid(valid));
    accepted(&[
        slow.clone(),
        check(1, true),
        check(3, false),
        check(5, false),
    ]);
    refused(&[slow, check(1, false), check(3, true)]);
}

#[test]
fn hold_is_never_shortened_or_revived() {
    let made = op(0, 1, hold(1), Answer::Created(held(11, 1, EXPIRY)));
    let again = |called, expires_at| {
        op(
            called,
            called + 1,
            hold(1),
            Answer::Found(held(11, 1, expires_at)),
        )
    };
    accepted(&[
        made.clone(),
        again(2, EXPIRY),
        again(4, LATER),
        again(6, LATER),
    ]);
    refused(&[made.clone(), again(2, LATER), again(4, EXPIRY + 1)]);
    let confirm = op(6, 7, Request::Confirm(11), Answer::Found(redeemed(11, 1)));
    accepted(&[made.clone(), again(2, LATER), confirm.clone()]);
    refused(&[made.clone(), confirm.clone(), again(8, LATER)]);
    let cancel = op(4, 5, Request::Cancel(11), cancelled(11, 1));
    refused(&[made.clone(), cancel.clone(), confirm]);
    accepted(&[
        made,
        cancel,
        op(6, 7, Request::Confirm(11), Answer::RedemptionCancelled),
    ]);
}

#[test]
fn old_cancellation_spares_newer_redemption() {
    let first = [
        op(0, 1, redeem(1), Answer::Created(redeemed(11, 1))),
        op(2, 3, Request::Cancel(11), cancelled(11, 1)),
        op(4, 5, redeem(2), Answer::Created(redeemed(12, 2))),
        op(6, 7, Request::Cancel(11), cancelled(11, 1)),
    ];
    let then = |answer| [first.as_slice(), &[op(8, 9, redeem(3), answer)]].concat();
    accepted(&then(Answer::CodeRedeemed));
    refused(&then(Answer::Created(redeemed(13, 3))));
}

#[test]
fn lost_request_takes_effect_in_time_or_never() {
    let gone = lost(0, 4, redeem(1));
    accepted(&[gone.clone(), op(5, 6, redeem(2), Answer::CodeRedeemed)]);
    accepted(&[
        gone.clone(),
        op(5, 6, redeem(2), Answer::Created(redeemed(12, 2))),
    ]);
    let late = op(7, 8, Request::Check, Answer::Valid(false));
    refused(&[
        gone.clone(),
        op(5, 6, Request::Check, Answer::Valid(true)),
        late,
    ]);
    // Once seen it stays, under one id.
    let found = |called, id| {
        op(
            called,
            called + 1,
            redeem(1),
            Answer::Found(redeemed(id, 1)),
        )
    };
    accepted(&[gone.clone(), found(5, 11), found(7, 11)]);
    refused(&[gone.clone(), found(5, 11), found(7, 12)]);
    refused(&[
        gone,
        found(5, 11),
        op(7, 8, redeem(2), Answer::Created(redeemed(12, 2))),
    ]);
}

#[test]
fn acknowledged_redemption_survives_crash() {
    let won = op(0, 1, redeem(1), Answer::Created(redeemed(11, 1)));
    let others = lost(2, 4, redeem(2));
    accepted(&[
        won.clone(),
        others.clone(),
        op(5, 6, redeem(1), Answer::Found(redeemed(11, 1))),
    ]);
    refused(&[
        won.clone(),
        others.clone(),
        op(5, 6, redeem(3), Answer::Created(redeemed(13, 3))),
    ]);
    // A lost cancellation explains it.
    let cancel = lost(2, 4, Request::Cancel(11));
    accepted(&[
        won,
        others,
        cancel,
        op(5, 6, redeem(3), Answer::Created(redeemed(13, 3))),
    ]);
}

#[test]
fn hold_ends_in_time() {
    let made = op(0, 1, hold(1), Answer::Created(held(11, 1, EXPIRY)));
    let then = |second: u64, request, answer| {
        [
            made.clone(),
            op(second * SECOND, second * SECOND + 1, request, answer),
        ]
    };
    let won = Answer::Created(redeemed(12, 2));
    for (second, is_held) in [(9, true), (11, false)] {
        let judged = [refused, accepted as fn(&[Operation])];
        let [held, over] = [judged[usize::from(is_held)], judged[usize::from(!is_held)]];
        held(&then(second, redeem(2), Answer::CodeHeld));
        held(&then(second, Request::Check, Answer::Valid(false)));
        held(&then(
            second,
            Request::Confirm(11),
            Answer::Found(redeemed(11, 1)),
        ));
        held(&then(second, Request::Cancel(11), cancelled(11, 1)));
        over(&then(second, redeem(2), won));
        over(&then(second, Request::Check, Answer::Valid(true)));
        over(&then(second, Request::Confirm(11), Answer::HoldExpired));
        over(&then(
            second,
            Request::LookUp(11),
            Answer::Found(seen(11, 1, Status::Expired)),
        ));
    }
    // A reader may be late by as much as is said.
    let late = then(11, Request::Check, Answer::Valid(false));
    assert_eq!(
        (
            check(&late, SECOND).is_ok(),
            check(&late, SECOND / 2).is_ok()
        ),
        (true, false)
    );
    // Both are possible within the margin, and while an operation is in progress.
    for answer in [won, Answer::CodeHeld] {
        accepted(&[
            made.clone(),
            op(10 * SECOND, 10 * SECOND + 1, redeem(2), answer),
        ]);
        accepted(&[made.clone(), op(9 * SECOND, 11 * SECOND, redeem(2), answer)]);
        // Also while its creation is.
        accepted(&[
            Operation {
                returned: 13 * SECOND,
                ..made.clone()
            },
            op(9 * SECOND, 12 * SECOND, redeem(2), answer),
        ]);
    }
    // An extension moves the end, and a redemption ends in one way.
    let extended = op(2, 3, hold(1), Answer::Found(held(11, 1, LATER)));
    accepted(&[
        made.clone(),
        extended.clone(),
        op(11 * SECOND, 12 * SECOND - 1, redeem(2), Answer::CodeHeld),
    ]);
    refused(&[
        made.clone(),
        extended,
        op(13 * SECOND, 14 * SECOND, redeem(2), Answer::CodeHeld),
    ]);
    let expired = op(
        11 * SECOND,
        11 * SECOND + 1,
        Request::Confirm(11),
        Answer::HoldExpired,
    );
    refused(&[
        made.clone(),
        expired,
        op(
            12 * SECOND,
            12 * SECOND + 1,
            Request::LookUp(11),
            cancelled(11, 1),
        ),
    ]);
}

#[test]
fn lost_hold_lasts_its_minimum_time() {
    let gone = [lost(0, 4, hold(1)), op(2, 3, redeem(2), Answer::CodeHeld)];
    let then = |called| {
        [
            &gone[..],
            &[op(
                called,
                called + 1,
                redeem(2),
                Answer::Created(redeemed(12, 2)),
            )],
        ]
        .concat()
    };
    refused(&then(SECOND / 2));
    accepted(&then(SECOND * 3 / 2));
    // It may have been extended by another lost one.
    let still = |called| op(called, called + 1, redeem(2), Answer::CodeHeld);
    accepted(&[&gone[..], &[lost(5, 6, hold(1)), still(SECOND * 3 / 2)]].concat());
}

#[test]
fn code_is_added_and_removed() {
    let add = |called, is_new| op(called, called + 1, Request::Add, Answer::Changed(is_new));
    let remove = |called, was_there| {
        op(
            called,
            called + 1,
            Request::Remove,
            Answer::Changed(was_there),
        )
    };
    accepted(&[
        add(0, false),
        remove(2, true),
        remove(4, false),
        add(6, true),
        add(8, false),
    ]);
    refused(&[add(0, true)]);
    refused(&[remove(0, false)]);
    refused(&[remove(0, true), remove(2, true)]);
    accepted(&[remove(0, true), op(2, 3, redeem(1), Answer::CodeUnknown)]);
    refused(&[
        remove(0, true),
        op(2, 3, redeem(1), Answer::Created(redeemed(11, 1))),
    ]);
    refused(&[
        remove(0, true),
        add(2, true),
        op(4, 5, redeem(1), Answer::CodeUnknown),
    ]);
    // A redeemed code stays; a held one goes with its hold.
    let won = op(0, 1, redeem(1), Answer::Created(redeemed(11, 1)));
    accepted(&[won.clone(), remove(2, false)]);
    refused(&[won, remove(2, true)]);
    let made = op(0, 1, hold(1), Answer::Created(held(11, 1, EXPIRY)));
    accepted(&[
        made.clone(),
        remove(2, true),
        op(4, 5, Request::Confirm(11), Answer::RedemptionCancelled),
    ]);
    refused(&[
        made,
        remove(2, true),
        op(4, 5, Request::Confirm(11), Answer::Found(redeemed(11, 1))),
    ]);
}

/// Ten thousand operations are lost while the log has no leader, and none of them can be excluded until the end.
#[test]
fn many_lost_operations_are_decided() {
    const END: u64 = 100_000;
    let made = op(0, 1, redeem(1), Answer::Created(redeemed(11, 1)));
    let mut history = vec![made, op(2, 3, Request::Cancel(11), cancelled(11, 1))];
    for number in 0..10_000 {
        let reference = number as u32 % 4;
        let requests = [
            redeem(reference),
            hold(reference),
            Request::Cancel(11),
            Request::Confirm(11),
            Request::Add,
            Request::Remove,
        ];
        history.push(lost(
            10 + number,
            END,
            requests[number as usize % requests.len()],
        ));
    }
    for number in 0..100 {
        let called = 20_000 + number * 10;
        history.push(op(called, called + 5, redeem(9), Answer::CodeRedeemed));
        history.push(op(
            called + 2,
            called + 8,
            Request::Check,
            Answer::Valid(false),
        ));
    }
    accepted(&history);
    let late = |answer| [&history[..], &[op(END + 1, END + 2, redeem(2), answer)]].concat();
    accepted(&late(Answer::CodeRedeemed));
    accepted(&late(Answer::Found(redeemed(12, 2))));
    refused(&late(Answer::Found(redeemed(11, 2))));
}

#[test]
fn nonsense_is_refused() {
    refused(&[op(0, 1, redeem(1), Answer::Odd)]);
    // An id twice; an id of two references.
    let made = op(0, 1, redeem(1), Answer::Created(redeemed(11, 1)));
    refused(&[
        made.clone(),
        op(2, 3, Request::Cancel(11), cancelled(11, 1)),
        made.clone(),
    ]);
    refused(&[
        made,
        op(2, 3, Request::LookUp(11), Answer::Found(redeemed(11, 2))),
    ]);
}
