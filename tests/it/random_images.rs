//! Images of single filters as commands: taken of a state, and of states that random logs have led to.

use crate::random_log::RandomLog;
use cuckood::domain::{
    Chunk, Command, FilterHead, FilterId, ImageBody, ImagePart, ImageRecord, ImageSection, Kind, Name,
    Redemption, UploadId,
};
use cuckood::state::{Export, State};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_64;

/// Chunks in a part.
const CHUNKS: usize = 3;

/// The image of a filter. Its checksums are the numbers of its parts.
pub struct Image {
    pub head: FilterHead,
    pub parts: Vec<ImagePart>,
    pub redemptions: u64,
}

impl Image {
    /// The image of a filter as it is now.
    pub fn of(state: &mut State, filter: FilterId) -> Image {
        let snapshot = state.begin_snapshot();
        let Export { head, sections, redemptions } =
            Export::find(&snapshot.head, filter).unwrap().expect("it is there");
        let mut frozen: Vec<_> = snapshot.sections.into_iter().collect();
        let (mut parts, mut chunk) = (Vec::<ImagePart>::new(), Vec::new());
        for (section, id) in sections {
            let at = frozen.iter().position(|frozen| frozen.id == id).expect("it is there");
            let mut frozen = frozen.swap_remove(at);
            while frozen.next_chunk(&mut chunk) {
                let chunk = Chunk(chunk.clone());
                match parts.last_mut() {
                    Some(part) if part.section == section && part.chunks.len() < CHUNKS => {
                        part.chunks.push(chunk);
                    }
                    _ => parts.push(ImagePart { section, chunks: vec![chunk] }),
                }
            }
        }
        Image { head, parts, redemptions }
    }

    /// How many commands it takes.
    pub fn commands(&self) -> usize {
        self.parts.len() + 2
    }

    /// A command of it, by number.
    pub fn command(&self, number: usize, upload: UploadId, id: FilterId, kind: Kind, name: &Name) -> Command {
        let before = number as u128;
        match number.checked_sub(1) {
            None => {
                let (name, head) = (name.clone(), Box::new(self.head.clone()));
                Command::ImageBegin { upload, id, kind, name, head, checksum: 1 }
            }
            Some(part) if part < self.parts.len() => {
                let body = ImageBody::Part(self.parts[part].clone());
                Command::ImageRecord { upload, record: ImageRecord { before, checksum: before + 1, body } }
            }
            Some(_) => {
                let body = ImageBody::End { redemptions: self.redemptions };
                Command::ImageRecord { upload, record: ImageRecord { before, checksum: before + 1, body } }
            }
        }
    }

    /// All its commands.
    pub fn all(&self, upload: UploadId, id: FilterId, name: &Name) -> Vec<Command> {
        let kind = self.head.profile.kind;
        (0..self.commands()).map(|number| self.command(number, upload, id, kind, name)).collect()
    }
}

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
    for Chunk(chunk) in &part.chunks {
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
        Chunk(values.iter().fold(taken.to_le_bytes().to_vec(), encode))
    });
    part.chunks = pages.collect();
    true
}

/// Images of all filters at several moments of a random log.
pub fn images() -> &'static [Image] {
    static IMAGES: LazyLock<Vec<Image>> = LazyLock::new(|| {
        let (mut log, mut state, mut images) = (RandomLog::without_images(), State::new(), Vec::new());
        for entry in log.beginning() {
            state.apply(entry);
        }
        for number in 0..800_u64 {
            let random = |which: u64| xxh3_64(&[number.to_le_bytes(), which.to_le_bytes()].concat());
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
