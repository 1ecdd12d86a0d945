//! A child process's output, line by line, for others to wait for.

use parking_lot::{Condvar, Mutex};
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The lines of both streams so far; clones share them.
#[derive(Clone, Default)]
pub struct Output(Arc<(Mutex<Lines>, Condvar)>);

#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    /// Streams that are still open.
    open: usize,
}

impl Output {
    /// Collects a stream's output from now on.
    pub fn collect(&self, stream: impl Read + Send + 'static) {
        let shared = self.0.clone();
        shared.0.lock().open += 1;
        std::thread::spawn(move || {
            let (lines, news) = &*shared;
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream
                .read_until(b'\n', &mut line)
                .is_ok_and(|bytes| bytes > 0)
            {
                let text = String::from_utf8_lossy(&line).trim_end().to_string();
                line.clear();
                lines.lock().lines.push(text);
                news.notify_all();
            }
            lines.lock().open -= 1;
            news.notify_all();
        });
    }

    /// The first line accepted by `find`; `None` after the timeout or the end.
    pub fn wait_for<T>(&self, timeout: Duration, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (lines, news) = &*self.0;
        let deadline = Instant::now() + timeout;
        let mut lines = lines.lock();
        let mut read = 0;
        loop {
            if let Some(found) = lines.lines[read..].iter().find_map(|line| find(line)) {
                return Some(found);
            }
            read = lines.lines.len();
            if lines.open == 0 || news.wait_until(&mut lines, deadline).timed_out() {
                return None;
            }
        }
    }

    /// What there is by now.
    pub fn so_far(&self) -> Vec<String> {
        self.0.0.lock().lines.clone()
    }

    /// Everything, once both streams are closed.
    pub fn whole(&self) -> Vec<String> {
        let (lines, news) = &*self.0;
        let mut lines = lines.lock();
        news.wait_while(&mut lines, |lines| lines.open > 0);
        lines.lines.clone()
    }
}
