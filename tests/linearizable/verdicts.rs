//! The checker is checked itself: histories that it must accept, and corrupted ones that it must refuse.

use crate::checker::{Operation, check};
use crate::model::{Answer, Id, Request, Seen, Status};

/// An operation between two moments.
fn op(called: u64, returned: u64, request: Request, answer: Answer) -> Operation {
    Operation { request, answer: Some(answer), called, returned }
}

fn lost(called: u64, returned: u64, request: Request) -> Operation {
    Operation { request, answer: None, called, returned }
}

fn redeem(reference: u32) -> Request {
    Request::Redeem { reference, hold: false }
}

fn hold(reference: u32) -> Request {
    Request::Redeem { reference, hold: true }
}

fn seen(id: Id, reference: u32, status: Status) -> Seen {
    Seen { id, reference, status, expires_at: None }
}

fn redeemed(id: Id, reference: u32) -> Seen {
    seen(id, reference, Status::Redeemed)
}

fn held(id: Id, reference: u32, expires_at: i64) -> Seen {
    Seen { expires_at: Some(expires_at), ..seen(id, reference, Status::Held) }
}

fn cancelled(id: Id, reference: u32) -> Answer {
    Answer::Found(seen(id, reference, Status::Cancelled))
}

#[track_caller]
fn accepted(history: &[Operation]) {
    assert_eq!(check(history), Ok(()));
}

#[track_caller]
fn refused(history: &[Operation]) {
    assert!(check(history).is_err(), "accepted: {history:#?}");
}

#[test]
fn two_winners_are_rejected() {
    let won = |reference, id| Answer::Created(redeemed(id, reference));
    accepted(&[op(0, 3, redeem(1), won(1, 11)), op(1, 2, redeem(2), Answer::CodeRedeemed)]);
    // At once, one after the other, and whichever was first.
    refused(&[op(0, 3, redeem(1), won(1, 11)), op(1, 2, redeem(2), won(2, 12))]);
    refused(&[op(0, 1, redeem(1), won(1, 11)), op(2, 3, redeem(2), won(2, 12))]);
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
    refused(&[Operation { called: 3, ..winner.clone() }, op(1, 2, redeem(1), Answer::CodeRedeemed)]);
    // Held is not redeemed.
    refused(&[winner, op(1, 2, redeem(1), Answer::CodeHeld)]);
}

#[test]
fn read_sees_completed_writes() {
    let made = op(0, 1, redeem(1), Answer::Created(redeemed(11, 1)));
    accepted(&[made.clone(), op(2, 3, Request::Check, Answer::Valid(false))]);
    refused(&[made.clone(), op(2, 3, Request::Check, Answer::Valid(true))]);
    // What one has seen the next must see too, though the writer has no answer yet.
    let slow = Operation { returned: 9, ..made };
    let check = |called, valid| op(called, called + 1, Request::Check, Answer::Valid(valid));
    accepted(&[slow.clone(), check(1, true), check(3, false), check(5, false)]);
    refused(&[slow, check(1, false), check(3, true)]);
}

#[test]
fn hold_is_never_shortened_or_revived() {
    let made = op(0, 1, hold(1), Answer::Created(held(11, 1, 100)));
    let again = |called, expires_at| op(called, called + 1, hold(1), Answer::Found(held(11, 1, expires_at)));
    accepted(&[made.clone(), again(2, 100), again(4, 120), again(6, 120)]);
    refused(&[made.clone(), again(2, 120), again(4, 110)]);
    let confirm = op(6, 7, Request::Confirm(11), Answer::Found(redeemed(11, 1)));
    accepted(&[made.clone(), again(2, 120), confirm.clone()]);
    refused(&[made.clone(), confirm.clone(), again(8, 120)]);
    let cancel = op(4, 5, Request::Cancel(11), cancelled(11, 1));
    refused(&[made.clone(), cancel.clone(), confirm]);
    accepted(&[made, cancel, op(6, 7, Request::Confirm(11), Answer::RedemptionCancelled)]);
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
    accepted(&[gone.clone(), op(5, 6, redeem(2), Answer::Created(redeemed(12, 2)))]);
    let late = op(7, 8, Request::Check, Answer::Valid(false));
    refused(&[gone.clone(), op(5, 6, Request::Check, Answer::Valid(true)), late]);
    // Once seen it stays, under one id.
    let found = |called, id| op(called, called + 1, redeem(1), Answer::Found(redeemed(id, 1)));
    accepted(&[gone.clone(), found(5, 11), found(7, 11)]);
    refused(&[gone.clone(), found(5, 11), found(7, 12)]);
    refused(&[gone, found(5, 11), op(7, 8, redeem(2), Answer::Created(redeemed(12, 2)))]);
}

#[test]
fn acknowledged_redemption_survives_crash() {
    let won = op(0, 1, redeem(1), Answer::Created(redeemed(11, 1)));
    let others = lost(2, 4, redeem(2));
    accepted(&[won.clone(), others.clone(), op(5, 6, redeem(1), Answer::Found(redeemed(11, 1)))]);
    refused(&[won.clone(), others.clone(), op(5, 6, redeem(3), Answer::Created(redeemed(13, 3)))]);
    // A lost cancellation explains it.
    let cancel = lost(2, 4, Request::Cancel(11));
    accepted(&[won, others, cancel, op(5, 6, redeem(3), Answer::Created(redeemed(13, 3)))]);
}

#[test]
fn impossible_history_is_rejected() {
    refused(&[op(0, 1, redeem(1), Answer::Odd)]);
    // An id twice; an id of two references.
    let made = op(0, 1, redeem(1), Answer::Created(redeemed(11, 1)));
    refused(&[made.clone(), op(2, 3, Request::Cancel(11), cancelled(11, 1)), made.clone()]);
    refused(&[made, op(2, 3, Request::LookUp(11), Answer::Found(redeemed(11, 2)))]);
}
