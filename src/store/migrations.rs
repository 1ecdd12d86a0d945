//! The migrations of the on-disk format. Each has its file under `migrations/`, is compiled in, and runs once.

use super::backing::Change;
use super::directory::Format;
use super::{Store, StoreError, layout};
use std::path::Path;

#[path = "../../migrations/0001_first.rs"]
mod step_0001;

/// What a migration may use.
pub(super) struct Step {
    number: u32,
    run: fn(&Store) -> Result<(), StoreError>,
}

const STEPS: &[Step] = &[Step { number: 1, run: step_0001::run }];

/// The format number that this program writes.
pub(super) const FORMAT: u32 = STEPS[STEPS.len() - 1].number;

/// Rejects a directory whose format this version does not know.
///
/// # Errors
/// [`StoreError::Newer`], and [`StoreError::Damaged`] for format 0: a `format` file is written after the first migration only.
pub(super) fn refuse_unknown(path: &Path, found: u32) -> Result<(), StoreError> {
    match found {
        0 => Err(StoreError::damaged(path, "the format file says format 0, which does not exist")),
        1..=FORMAT => Ok(()),
        _ => Err(StoreError::Newer { path: path.to_owned(), found, known: FORMAT }),
    }
}

/// Runs the migrations that the directory has not had, in order. Each is durable before the `format` file records it. If this is
/// interrupted, the next start repeats the migration that was not recorded.
pub(super) fn run(store: &Store, format: Format) -> Result<(), StoreError> {
    let mut format = format;
    for step in STEPS {
        let key = layout::migration_key(step.number);
        let mut record = Vec::new();
        let recorded = store.run(store.backing().read(layout::META_TREE, &key, &mut record))?;
        if step.number <= format.number {
            if !recorded {
                let what = format!("tree meta: there is no record of migration {}", step.number);
                return Err(store.damaged(what));
            }
            continue;
        }
        if !recorded {
            (step.run)(store)?;
            let version = env!("CARGO_PKG_VERSION").as_bytes().to_vec();
            store.write(layout::META_TREE, vec![Change::Put(key, version)])?;
        }
        store.flush()?;
        store.sync()?;
        format.number = step.number;
        store.directory.write_format(format)?;
    }
    let mut identity = Vec::new();
    store.run(store.backing().read(layout::META_TREE, layout::IDENTITY_KEY, &mut identity))?;
    if identity != store.identity {
        return Err(store.damaged("sled's files belong to another directory than the format file"));
    }
    Ok(())
}
