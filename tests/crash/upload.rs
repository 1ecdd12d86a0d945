//! An upload that stays open while other requests continue: its lines are sent on demand.

use crate::service::{Answer, Client};
use std::io::{self, Read};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

/// An import whose upload has begun. Dropped, it breaks off.
pub struct Upload {
    pieces: Sender<Piece>,
    answer: JoinHandle<Result<Answer, ureq::Error>>,
}

enum Piece {
    Lines(String),
    End,
}

impl Upload {
    /// Starts an upload with these lines, over a separate connection.
    pub fn begin(client: &Client, path: String, lines: String) -> Upload {
        let (pieces, body) = mpsc::channel();
        let client = client.another();
        let body = Body {
            pieces: body,
            piece: io::Cursor::default(),
            ended: false,
        };
        let upload = Upload {
            pieces,
            answer: std::thread::spawn(move || client.import(&path, body)),
        };
        upload.send(lines);
        upload
    }

    /// Further lines.
    pub fn send(&self, lines: String) {
        // The receiver is gone once the service is; the response shows it.
        let _ = self.pieces.send(Piece::Lines(lines));
    }

    /// Ends the upload and waits for its answer.
    pub fn end(self) -> Result<Answer, ureq::Error> {
        let _ = self.pieces.send(Piece::End);
        self.answer.join().expect("an upload does not panic")
    }

    /// Whether it was answered, or broke, before its end.
    pub fn is_over(&self) -> bool {
        self.answer.is_finished()
    }

    /// Breaks the connection off in the middle of the body, and waits until that is done.
    pub fn break_off(self) {
        drop(self.pieces);
        let broken = self.answer.join().expect("an upload does not panic");
        // The service may have answered before, as when the filter is gone.
        assert!(
            !broken.is_ok_and(|answer| answer.status == 200),
            "half an upload was taken for a whole one"
        );
    }
}

/// The request's body.
struct Body {
    pieces: Receiver<Piece>,
    piece: io::Cursor<String>,
    ended: bool,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.ended {
            let read = self.piece.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            match self.pieces.recv() {
                Ok(Piece::Lines(lines)) => self.piece = io::Cursor::new(lines),
                Ok(Piece::End) => self.ended = true,
                Err(_) => return Err(io::Error::new(io::ErrorKind::BrokenPipe, "broken off")),
            }
        }
        Ok(0)
    }
}
