//! The image of one filter, as the commands by which it arrives.

use crate::domain::{
    Command, FilterHead, FilterId, ImageBegin, ImageBody, ImageChunk, ImagePart, ImageRecord, Kind,
    Name, UploadId,
};
use crate::{Export, State};

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
        let Export {
            head,
            sections,
            redemptions,
        } = Export::find(&snapshot.head, filter)
            .unwrap()
            .expect("it is there");
        let mut frozen: Vec<_> = snapshot.sections.into_iter().collect();
        let mut parts = Vec::<ImagePart>::new();
        let mut chunk = Vec::new();
        for (section, id) in sections {
            let at = frozen
                .iter()
                .position(|frozen| frozen.id == id)
                .expect("it is there");
            let mut frozen = frozen.swap_remove(at);
            while frozen.next_chunk(&mut chunk) {
                let chunk = ImageChunk(chunk.clone());
                match parts.last_mut() {
                    Some(part) if part.section == section && part.chunks.len() < CHUNKS => {
                        part.chunks.push(chunk);
                    }
                    _ => parts.push(ImagePart {
                        section,
                        chunks: vec![chunk],
                    }),
                }
            }
        }
        Image {
            head,
            parts,
            redemptions,
        }
    }

    /// How many commands it takes.
    pub fn commands(&self) -> usize {
        self.parts.len() + 2
    }

    /// A command of it, by number.
    pub fn command(
        &self,
        number: usize,
        upload: UploadId,
        id: FilterId,
        kind: Kind,
        name: &Name,
    ) -> Command {
        let before = number as u128;
        match number.checked_sub(1) {
            None => {
                let name = name.clone();
                let head = Box::new(self.head.clone());
                Command::ImageBegin(ImageBegin {
                    upload,
                    id,
                    kind,
                    name,
                    head,
                    checksum: 1,
                })
            }
            Some(part) if part < self.parts.len() => {
                let body = ImageBody::Part(self.parts[part].clone());
                Command::ImageRecord {
                    upload,
                    record: ImageRecord {
                        before,
                        checksum: before + 1,
                        body,
                        version: 0,
                    },
                }
            }
            Some(_) => {
                let body = ImageBody::End {
                    redemptions: self.redemptions,
                };
                Command::ImageRecord {
                    upload,
                    record: ImageRecord {
                        before,
                        checksum: before + 1,
                        body,
                        version: 0,
                    },
                }
            }
        }
    }

    /// All its commands.
    pub fn all(&self, upload: UploadId, id: FilterId, name: &Name) -> Vec<Command> {
        let kind = self.head.profile.kind;
        (0..self.commands())
            .map(|number| self.command(number, upload, id, kind, name))
            .collect()
    }
}
