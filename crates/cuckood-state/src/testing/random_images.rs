//! Images of filters of states that random logs have led to, and changes to them.

use super::filter_image::Image;
use super::random_log::RandomLog;
use crate::State;
use crate::domain::{ImageChunk, ImagePart, ImageSection, Kind, Redemption};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_64;

/// A redemption, with the position of its last change among all of its coupon.
#[derive(Clone, Serialize, Deserialize)]
pub struct Placed {
    pub redemption: Redemption,
    pub change: u64,
}

/// Changes the redemptions of a part, if it has any. Returns whether it does.
pub fn change_redemptions(part: &mut ImagePart, change: impl FnOnce(&mut Vec<Placed>)) -> bool {
    if part.section != ImageSection::Redemptions {
        return false;
    }
    let mut all = Vec::new();
    for ImageChunk(chunk) in &part.chunks {
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            let (taken, mut values) = rest.split_first_chunk().unwrap();
            for _ in 0..u64::from_le_bytes(*taken).count_ones() {
                let (value, after) = postcard::take_from_bytes::<Placed>(values).unwrap();
                all.push(value);
                values = after;
            }
            rest = values;
        }
    }
    change(&mut all);
    let pages = all.chunks(64).map(|values| {
        let taken = u64::MAX >> (64 - values.len());
        let encode = |bytes, value| postcard::to_extend(value, bytes).unwrap();
        ImageChunk(values.iter().fold(taken.to_le_bytes().to_vec(), encode))
    });
    part.chunks = pages.collect();
    true
}

/// Images of all filters at several moments of a random log.
pub fn images() -> &'static [Image] {
    static IMAGES: LazyLock<Vec<Image>> = LazyLock::new(|| {
        let mut log = RandomLog::without_images();
        let mut state = State::default();
        let mut images = Vec::new();
        for entry in log.beginning() {
            state.apply(entry);
        }
        for number in 0..800_u64 {
            let random =
                |which: u64| xxh3_64(&[number.to_le_bytes(), which.to_le_bytes()].concat());
            state.apply(log.next((random(0) as u8, random(1), random(2), random(3) as u16)));
            if number % 40 == 39 {
                state.publish();
                let view = state.view();
                for kind in [Kind::Campaign, Kind::Coupon] {
                    for filter in view.list(kind, "", None, usize::MAX) {
                        images.push(Image::of(&mut state, filter.id));
                    }
                }
            }
        }
        images
    });
    &IMAGES
}
