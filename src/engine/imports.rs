//! The uploads that are running in this process. The log can't tell: an import whose upload died with the process still looks
//! running there.

use crate::domain::{Import, ImportId, ImportState};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// The imports whose uploads are running.
#[derive(Clone, Debug, Default)]
pub struct LiveImports(Arc<Mutex<HashSet<ImportId>>>);

/// A running upload. It ends when this is dropped.
#[derive(Debug)]
pub struct LiveImport {
    all: LiveImports,
    id: ImportId,
}

impl LiveImports {
    /// Claims an import for one upload; `None` if another upload has it.
    pub fn begin(&self, id: ImportId) -> Option<LiveImport> {
        self.0.lock().insert(id.clone()).then(|| LiveImport { all: self.clone(), id })
    }

    /// The import with its true status: one that the log calls running, but that has no upload here, was interrupted.
    pub fn corrected(&self, import: &Import) -> Import {
        let mut import = import.clone();
        if import.state == ImportState::Running && !self.0.lock().contains(&import.id) {
            import.state = ImportState::Interrupted;
        }
        import
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

    #[test]
    fn an_import_has_one_upload_at_a_time() {
        let live = LiveImports::default();
        let id = ImportId::new("nightly").unwrap();
        let upload = live.begin(id.clone());
        assert!(upload.is_some() && live.begin(id.clone()).is_none());
        drop(upload);
        assert!(live.begin(id).is_some());
    }
}
