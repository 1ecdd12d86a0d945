//! Imports of an engine that is stopped.

use crate::engines;
use cuckood_state::domain::{Command, Guards, ImportId, ImportMode, ImportState, Outcome, Target};
use cuckood_state::testing::commands::{NewFilter, import_begin, import_lines, target};

const TARGET: Target = target(1);

fn begin(import: &str, mode: ImportMode) -> Command {
    import_begin(TARGET, import, mode, Guards::default())
}

fn lines(import: &str, numbers: std::ops::Range<u64>) -> Command {
    import_lines(TARGET, import, numbers)
}

#[tokio::test]
async fn staged_table_of_crashed_upload_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let start = || engines::start(engines::options(dir.path()));
    let engine = start().await;
    engines::create(&engine, TARGET, &NewFilter::coupon(1_000)).await;
    let tables_bytes = engine.info().tables_bytes;
    for command in [
        begin("nightly", ImportMode::Replace),
        lines("nightly", 0..10),
        begin("more", ImportMode::Append),
        lines("more", 0..10),
    ] {
        engine.submit(None, command, None).await.unwrap();
    }
    assert!(engine.info().tables_bytes > tables_bytes);
    engine.shutdown().await;
    drop(engine);

    let engine = start().await;
    assert_eq!(engine.info().tables_bytes, tables_bytes);
    for import in ["nightly", "more"] {
        let import = engine
            .view()
            .import(&ImportId::new(import).unwrap())
            .unwrap();
        assert_eq!(import.state, ImportState::Interrupted);
    }
    let more = engine
        .submit(None, begin("more", ImportMode::Append), None)
        .await
        .unwrap()
        .outcome;
    assert!(
        matches!(more, Outcome::Import(import) if import.counts.lines == 10),
        "it is continued"
    );
    engine.shutdown().await;
}
