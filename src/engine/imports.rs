//! The uploads that are running in this process, and how they are stopped. The log can't tell: an import whose upload died with the
//! process still looks running there.

use crate::domain::{Import, ImportId, ImportState, Name};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

/// The imports whose uploads are running.
#[derive(Clone, Debug, Default)]
pub struct LiveImports(Arc<Mutex<HashMap<ImportId, Stop>>>);

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
    /// The campaign or coupon that it goes to.
    pub name: Name,
    stopped: watch::Sender<bool>,
}

impl LiveImports {
    /// Claims an import into the filter of this name for one upload; `None` if another upload has it.
    pub fn begin(&self, id: ImportId, name: Name) -> Option<LiveImport> {
        let mut all = self.0.lock();
        if all.contains_key(&id) {
            return None;
        }
        let (sender, stopped) = watch::channel(false);
        all.insert(id.clone(), Stop { name, stopped: sender });
        Some(LiveImport { all: self.clone(), id, stopped })
    }

    /// What stops the import's upload, if one is running.
    pub fn stop(&self, id: &ImportId) -> Option<Stop> {
        self.0.lock().get(id).cloned()
    }

    /// The import with its true status: one that the log calls running, but that has no upload here, was interrupted.
    pub fn corrected(&self, import: &Import) -> Import {
        let mut import = import.clone();
        if import.state == ImportState::Running && !self.0.lock().contains_key(&import.id) {
            import.state = ImportState::Interrupted;
        }
        import
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
    /// Whether somebody has stopped the upload.
    pub fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Waits until somebody stops the upload.
    pub async fn stopped(&self) {
        let mut stopped = self.stopped.clone();
        // The sender is kept for as long as this is.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

impl Drop for LiveImport {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_import_has_one_upload_at_a_time() {
        let live = LiveImports::default();
        let (id, name) = (ImportId::new("nightly").unwrap(), Name::new("spring").unwrap());
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
