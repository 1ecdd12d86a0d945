//! The stream of a log as the servers have it. Tests read its messages and publish to it, past all nodes.

use crate::nats::Servers;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::stream::Stream;
use bytes::Bytes;
use cuckood_state::frame::FrameFormat;
use std::future::Future;
use tokio::runtime::Runtime;

const FORMAT: FrameFormat = FrameFormat {
    magic: *b"cknl",
    version: 3,
    oldest: 3,
    payload_max: 1 << 20,
};

pub struct Raw {
    runtime: Runtime,
    context: Context,
    name: String,
}

impl Raw {
    pub fn of(servers: &Servers, name: &str) -> Raw {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let client = runtime
            .block_on(async_nats::connect(servers.urls()))
            .unwrap();
        let context = runtime.block_on(async { async_nats::jetstream::new(client) });
        Raw {
            runtime,
            context,
            name: name.to_owned(),
        }
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    fn stream(&self) -> Stream {
        self.wait(self.context.get_stream(&self.name)).unwrap()
    }

    /// The number of the last message.
    pub fn last(&self) -> u64 {
        self.stream().cached_info().state.last_sequence
    }

    pub fn message(&self, number: u64) -> Bytes {
        self.wait(self.stream().get_raw_message(number))
            .unwrap()
            .payload
    }

    pub fn publish(&self, message: Bytes) {
        let subject = format!("{}.log", self.name);
        self.wait(async {
            self.context
                .publish(subject, message)
                .await
                .unwrap()
                .await
                .unwrap()
        });
    }

    pub fn is_there(&self) -> bool {
        self.wait(self.context.get_stream(&self.name)).is_ok()
    }

    pub fn delete(&self) {
        self.wait(self.context.delete_stream(&self.name)).unwrap();
    }
}

/// A message of a build with an earlier format.
pub fn earlier() -> Bytes {
    let mut bytes = Vec::new();
    FrameFormat {
        version: FORMAT.version - 1,
        oldest: FORMAT.version - 1,
        ..FORMAT
    }
    .seal(0, 0, b"whatever", &mut bytes);
    bytes.into()
}

/// The message by which a node that has read the log up to message `read` begins a session.
pub fn begin(node: &str, session: u128, read: u64) -> Bytes {
    // The session's first message, and the first kind of body.
    FORMAT.pack(&(session, 0u64, 0u32, node, read)).into()
}
