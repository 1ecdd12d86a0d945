//! What runs while the power is cut: the service's engine, with snapshots all the time; and what is checked once the power
//! is back.

use crate::log::{TIME, command, entry};
use cuckood::clock::{Clock, ClockLimits, ManualTime};
use cuckood::engine::recovery::recover;
use cuckood::engine::{Engine, EngineOptions, Status};
use cuckood::journal::{Durability, LocalJournal, LocalOptions};
use cuckood::state::{SectionId, State};
use cuckood::store::{Store, StoreOptions};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

fn options(defaults: StoreOptions) -> StoreOptions {
    StoreOptions {
        free_space_min_bytes: 0,
        ballast_bytes: 0,
        preallocate_bytes: 16 << 20,
        cache_bytes: 16 << 20,
        ..defaults
    }
}

/// Submits commands for ever; a line on the standard output for every position that was acknowledged.
pub async fn run(dir: &Path, durability: Durability) -> Result<(), Box<dyn Error>> {
    let journal = LocalOptions { segment_bytes: 1 << 20, ..LocalOptions::at(durability) };
    let mut engine_options = EngineOptions::new(dir).on_local_journal(journal);
    engine_options.store = options(engine_options.store);
    engine_options.snapshots.log_bytes_min = 256 << 10;
    engine_options.snapshots.log_bytes_max = 1 << 20;
    let engine =
        Engine::start(engine_options, Clock::new(Arc::new(ManualTime::at(TIME)), ClockLimits::default()));
    match engine.recovered().await {
        Status::Ready => {}
        status => return Err(format!("the engine does not start: {status:?}").into()),
    }
    let mut out = std::io::stdout();
    let mut next = engine.info().last_seq.0 + 1;
    loop {
        // Those that are submitted together may become one commit, and keep their order.
        let batch = next..next + 1 + next % 7;
        next = batch.end;
        for applied in join_all(batch.map(|position| engine.submit(command(position), None))).await {
            applied?;
        }
        writeln!(out, "{}", next - 1)?;
    }
}

/// Recovers the state, finds everything up to `acknowledged` in it, and nothing but what the log says.
pub fn check(dir: &Path, acknowledged: u64) -> Result<(), Box<dyn Error>> {
    let store = Arc::new(Store::open(dir, &options(StoreOptions::default()))?);
    let mut journal = LocalJournal::open(store.clone(), LocalOptions::default())?;
    let mut recovered = recover(&store, &mut journal, &mut |_| ())?;
    if let Some(damaged) = recovered.damaged.first() {
        return Err(format!("the snapshot at position {} is not whole", damaged.seq.0).into());
    }
    let last = recovered.state.applied().0;
    if last < acknowledged {
        return Err(format!("position {acknowledged} is gone, the last is {last}").into());
    }
    let mut wanted = State::new();
    for position in 1..=last {
        wanted.apply(entry(position));
    }
    let (wanted, found) = (image(&mut wanted), image(&mut recovered.state));
    if wanted.0 != found.0 {
        return Err(format!("at position {last} the head is not what the log makes of it").into());
    }
    match wanted.1.iter().find(|(id, chunks)| found.1.get(id) != Some(*chunks)) {
        Some((id, _)) => Err(format!("at position {last} {id:?} is not what the log makes of it").into()),
        None => Ok(()),
    }
}

/// A state's bytes: its head, and the chunks of every section.
fn image(state: &mut State) -> (Vec<u8>, BTreeMap<SectionId, Vec<Vec<u8>>>) {
    let image = state.begin_snapshot();
    let sections = image.sections.into_iter().map(|section| {
        let mut chunk = Vec::new();
        let chunks =
            (0..).map_while(|number| state.take_chunk(section.id, number, &mut chunk).then(|| chunk.clone()));
        (section.id, chunks.collect())
    });
    let sections = sections.collect();
    state.end_snapshot();
    (image.head, sections)
}
