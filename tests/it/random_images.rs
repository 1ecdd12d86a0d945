//! Images of single filters as commands: taken of a state, and of states that random logs have led to.

use crate::random_log::RandomLog;
use cuckood::domain::{
    Chunk, Command, FilterId, ImageHead, ImagePart, Kind, Name, PlacedRedemption, UploadId,
};
use cuckood::state::{Export, RedemptionReader, State};
use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_64;

/// Chunks in a part.
const CHUNKS: usize = 3;

/// The image of a filter. Its checksums are the numbers of its parts.
pub struct Image {
    pub head: ImageHead,
    pub parts: Vec<ImagePart>,
    pub redemptions: u64,
}

impl Image {
    /// The image of a filter as it is now.
    pub fn of(state: &mut State, filter: FilterId) -> Image {
        let snapshot = state.begin_snapshot();
        let Export { head, tables, ordinals, ledger } =
            Export::find(&snapshot.head, filter).unwrap().expect("it is there");
        let (mut chunks, mut chunk) = (Vec::new(), Vec::new());
        for (table, count) in tables {
            for number in 0..count {
                assert!(state.take_chunk(table, number, &mut chunk));
                chunks.push(Chunk(chunk.clone()));
            }
        }
        let mut bits = Vec::new();
        for number in 0.. {
            if !ordinals.is_some_and(|ordinals| state.take_chunk(ordinals, number, &mut chunk)) {
                break;
            }
            bits.push(ImagePart::Ordinals(Chunk(chunk.clone())));
        }
        let (mut reader, mut redemptions) = (RedemptionReader::default(), Vec::<PlacedRedemption>::new());
        for number in 0.. {
            if !state.take_chunk(ledger, number, &mut chunk) {
                break;
            }
            reader.push(&chunk, &mut redemptions).unwrap();
        }
        assert!(reader.is_at_end());
        state.end_snapshot();
        let mut parts: Vec<ImagePart> =
            chunks.chunks(CHUNKS).map(|chunks| ImagePart::Chunks(chunks.to_vec())).collect();
        parts.extend(bits);
        parts.extend(redemptions.chunks(10).map(|some| ImagePart::Redemptions(some.to_vec())));
        Image { head, parts, redemptions: redemptions.len() as u64 }
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
                Command::ImagePart { upload, before, checksum: before + 1, part: self.parts[part].clone() }
            }
            Some(_) => Command::ImageEnd { upload, before, redemptions: self.redemptions },
        }
    }

    /// All its commands.
    pub fn all(&self, upload: UploadId, id: FilterId, name: &Name) -> Vec<Command> {
        let kind = self.head.kind;
        (0..self.commands()).map(|number| self.command(number, upload, id, kind, name)).collect()
    }
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
