//! Storage that fails while an engine runs.

use crate::engines::defaults;
use cuckood::clock::{Clock, ClockLimits};
use cuckood::engine::{Engine, EngineStatus, SubmitError};
use futures_util::future::join_all;

#[tokio::test]
async fn snapshot_callers_learn_of_storage_failure() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(defaults(dir.path()), Clock::system(ClockLimits::default()));
    assert_eq!(engine.recovered().await, EngineStatus::Ready);
    // No sync succeeds next to it.
    std::fs::write(dir.path().join("sled/blobs/1"), "").unwrap();
    for outcome in join_all((0..3).map(|_| engine.snapshot())).await {
        assert_eq!(outcome, Err(SubmitError::StorageFailed));
    }
    assert!(matches!(engine.status(), EngineStatus::Failed(_)));
    assert_eq!(engine.snapshot().await, Err(SubmitError::StorageFailed));
}
