//! Commands and images of random logs with one field set to any value: what decodes can be applied. Nothing panics in the twenty commands
//! that follow, and the state is the same after a restart.

#![no_main]
#![allow(dead_code, unused_imports, unreachable_pub)]

#[path = "../../crates/cuckood-state/tests/state/forged_commands.rs"]
mod forged_commands;
#[path = "../../crates/cuckood-state/tests/state/images.rs"]
mod images;

use images::{Forgery, boundaries, send_forged};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

// The forged part, the sample, the field, and the value: a boundary, a number or a string.
fuzz_target!(|input: (u8, u16, u8, u8, u64)| {
    let (forged, sample, field, sort, number) = input;
    let value = match sort % 3 {
        0 => boundaries().swap_remove(number as usize % boundaries().len()),
        1 => Value::from(number),
        _ => Value::from(number.to_string()),
    };
    let (sample, field) = (usize::from(sample), usize::from(field));
    let images = cuckood_state::testing::random_images::images();
    match forged % 8 {
        0 => drop(send_forged(
            &images[sample % images.len()],
            Forgery::Head,
            field,
            &value,
        )),
        1 => drop(send_forged(
            &images[sample % images.len()],
            Forgery::Redemption,
            field,
            &value,
        )),
        2 => drop(send_forged(
            &images[sample % images.len()],
            Forgery::Copy,
            field,
            &value,
        )),
        _ => drop(forged_commands::apply_forged_sample(sample, field, &value)),
    }
});
