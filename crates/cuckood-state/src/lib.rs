//! The deterministic machine: commands in, outcomes out, and the read side for requests.
//!
//! [`State::apply`] sees only the state and the entry: no clock, no configuration, no memory size, no
//! randomness, no float, no I/O, no hash-map order. Replaying a log gives the same bytes on any machine.
//!
//! - [`domain`]: names, specs, commands, outcomes, redemptions; parsed once, then trusted. Imports nothing of the rest.
//! - [`frame`]: the frame around stored bytes.
//! - [`paged`]: pages that snapshots share with the state.
//! - The other modules are the machine itself.

pub mod domain;
pub mod frame;
pub mod paged;

mod agenda;
mod apply;
mod catalog;
mod discarded;
mod eligibility;
mod events;
mod filters;
mod idempotency;
mod import_records;
mod imports;
mod incoming;
mod index;
mod items;
mod ledger;
mod machine;
mod memory;
mod redemptions;
mod section;
mod snapshot;
mod staging;
mod statistics;
mod sweep;
mod tables;
#[cfg(feature = "testing")]
pub mod testing;
mod trial;
mod view;

pub use catalog::{Borrowed, NamedLineUp, Views};
pub use eligibility::{Eligibility, Explanation, Question, Uncountable};
pub use events::{Events, FreshEvents, NewEvent};
pub use idempotency::{FIXED_BYTES as IDEMPOTENCY_FIXED_BYTES, Lookup};
pub use ledger::{ChangeNumber, RedemptionOrder, RedemptionPage, RedemptionQuery};
pub use machine::{Sizes, State};
pub use memory::WaitingDemand;
pub use section::{Epoch, Section};
pub use snapshot::{Export, FrozenFilter, RestoreStateError, Sections, SnapshotParts, enabled_in};
pub use statistics::FilterStatistics;
pub use trial::ImportTrial;
pub use view::{CodeFound, CodeStatus, CodeUses, CustomerUses, FilterView, LISTED_MAX, LookUpScan};
