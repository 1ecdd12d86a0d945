//! The uploads running in this process, and how they are stopped. The log doesn't know them: there, an import whose process crashed still
//! looks running.

use cuckood_state::domain::{Import, ImportId, ImportState, Name, Timestamp};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tokio::sync::watch;

/// Among several nodes, an import that has made progress within this time may be running on another one.
pub const ELSEWHERE_IDLE_SECONDS: u64 = 60;

/// The imports whose uploads are running.
#[derive(Clone, Debug, Default)]
pub struct LiveImports {
    here: Arc<Mutex<HashMap<ImportId, Stop>>>,
    /// Whether other nodes take uploads as well.
    is_shared: bool,
}

/// A running upload. It ends when this is dropped.
#[derive(Debug)]
pub struct LiveImport {
    all: LiveImports,
    id: ImportId,
    stopped: watch::Receiver<bool>,
}

/// Stops an upload.
#[derive(Clone, Debug)]
pub struct Stop {
    /// The import's campaign or coupon.
    pub name: Name,
    stopped: watch::Sender<bool>,
}

impl LiveImports {
    /// None yet; `is_shared` if other nodes take uploads as well.
    pub fn new(is_shared: bool) -> LiveImports {
        LiveImports {
            here: Arc::default(),
            is_shared,
        }
    }

    /// Whether the upload of this import, which the log calls running, may be running on another node.
    pub fn may_run_elsewhere(&self, import: &Import, now: Timestamp) -> bool {
        let is_recent = import.changed_at.plus_seconds(ELSEWHERE_IDLE_SECONDS) > now;
        self.is_shared && is_recent && self.has_no_upload_here(import)
    }

    fn has_no_upload_here(&self, import: &Import) -> bool {
        import.state == ImportState::Running && !self.here.lock().contains_key(&import.id)
    }

    /// Claims an import into the filter of this name for one upload; `None` if another upload has it.
    pub fn begin(&self, id: ImportId, name: Name) -> Option<LiveImport> {
        let (sender, stopped) = watch::channel(false);
        match self.here.lock().entry(id.clone()) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => place.insert(Stop {
                name,
                stopped: sender,
            }),
        };
        Some(LiveImport {
            all: self.clone(),
            id,
            stopped,
        })
    }

    /// The handle that stops the import's upload, if one is running.
    pub fn stop(&self, id: &ImportId) -> Option<Stop> {
        self.here.lock().get(id).cloned()
    }

    /// The import with its true status: one that the log calls running, but that has no upload here nor elsewhere, was interrupted.
    pub fn corrected(&self, import: &Import, now: Timestamp) -> Import {
        match self.has_no_upload_here(import) && !self.may_run_elsewhere(import, now) {
            true => Import {
                state: ImportState::Interrupted,
                ..import.clone()
            },
            false => import.clone(),
        }
    }
}

impl Stop {
    /// Stops the upload, and waits until it has ended.
    pub async fn stop(self) {
        self.stopped.send_replace(true);
        self.stopped.closed().await;
    }
}

impl LiveImport {
    /// Whether the upload was stopped.
    pub fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Waits until the upload is stopped.
    pub async fn stopped(&self) {
        let mut stopped = self.stopped.clone();
        // The sender has the same lifetime.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

impl Drop for LiveImport {
    fn drop(&mut self) {
        self.all.here.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuckood_state::domain::{FilterId, ImportCounts, ImportMode, KeyName, Kind};

    #[test]
    fn active_import_may_run_on_another_node() {
        let import = |state| Import {
            state,
            ..running_import()
        };
        let alone = LiveImports::new(false);
        let among = LiveImports::new(true);
        let running = import(ImportState::Running);
        let soon = Timestamp(running.changed_at.0 + 59_999);
        let late = running.changed_at.plus_seconds(60);
        assert!(among.may_run_elsewhere(&running, soon));
        assert!(!among.may_run_elsewhere(&running, late));
        assert!(!alone.may_run_elsewhere(&running, soon));
        assert!(!among.may_run_elsewhere(&import(ImportState::Done), soon));
        assert_eq!(among.corrected(&running, soon).state, ImportState::Running);
        assert_eq!(
            among.corrected(&running, late).state,
            ImportState::Interrupted
        );
        assert_eq!(
            alone.corrected(&running, soon).state,
            ImportState::Interrupted
        );
        let _here = among
            .begin(running.id.clone(), running.name.clone())
            .unwrap();
        assert!(!among.may_run_elsewhere(&running, soon));
        assert_eq!(among.corrected(&running, late).state, ImportState::Running);
    }

    fn running_import() -> Import {
        Import {
            id: ImportId::new("nightly").unwrap(),
            owner: KeyName::default(),
            is_named: true,
            filter: FilterId(1),
            kind: Kind::Campaign,
            name: Name::new("spring").unwrap(),
            mode: ImportMode::Append,
            if_absent: false,
            guards: ImportMode::Append.guards(),
            state: ImportState::Running,
            started_at: Timestamp(1_000),
            changed_at: Timestamp(2_000),
            counts: ImportCounts::default(),
            errors: Vec::new(),
            chain: 0,
            upload: None,
            warnings: Vec::new(),
            is_overtaken: false,
        }
    }

    #[tokio::test]
    async fn import_has_one_upload_at_a_time() {
        let live = LiveImports::default();
        let id = ImportId::new("nightly").unwrap();
        let name = Name::new("spring").unwrap();
        let upload = live.begin(id.clone(), name.clone());
        assert!(upload.is_some() && live.begin(id.clone(), name.clone()).is_none());
        drop(upload);
        assert!(live.stop(&id).is_none());
        let upload = live.begin(id.clone(), name).unwrap();
        assert!(!upload.is_stopped());
        let stop = tokio::spawn(live.stop(&id).unwrap().stop());
        upload.stopped().await;
        assert!(upload.is_stopped() && !stop.is_finished());
        drop(upload);
        stop.await.unwrap();
        assert!(live.stop(&id).is_none());
    }
}
