//! Commands by the arguments that matter to a test. A filter is known by the number of its ID and named `f` and that number; users, codes
//! and redemptions are known by numbers.

use crate::domain::{
    AnnotationsChange, Command, Digests, Ending, FilterId, Forget, Guards, ImportBegin, ImportEnd,
    ImportId, ImportLines, ImportMode, KeyName, Kind, Name, Normalization, Redeem, RedemptionId,
    Reference, Sizing, Spec, Supply, Target, Update, UploadDigest, Window,
};
use cuckood_filter::{Digest, Growth, Mode, Secret};

/// A filter to create.
#[derive(Clone, Debug)]
pub struct NewFilter {
    pub kind: Kind,
    pub capacity: u64,
    pub growth: Growth,
    pub sizing: Sizing,
    pub normalization: Normalization,
    pub supply: Supply,
    pub forget: Option<Forget>,
    pub window: Window,
}

impl NewFilter {
    /// A coupon that grows.
    pub fn coupon(capacity: u64) -> NewFilter {
        let growth = Growth::Auto;
        let sizing = Sizing::Exact;
        let kind = Kind::Coupon;
        let window = Window::default();
        NewFilter {
            kind,
            capacity,
            growth,
            sizing,
            normalization: Normalization::Exact,
            supply: Supply::default(),
            forget: None,
            window,
        }
    }

    /// An open pool that grows.
    pub fn pool(capacity: u64, stock: u64) -> NewFilter {
        NewFilter {
            supply: Supply::of_stock(stock),
            ..NewFilter::coupon(capacity)
        }
    }

    /// A compact campaign that grows.
    pub fn campaign(capacity: u64, error_rate: f64) -> NewFilter {
        let kind = Kind::Campaign;
        let sizing = Sizing::ErrorRate(error_rate);
        NewFilter {
            kind,
            sizing,
            ..NewFilter::coupon(capacity)
        }
    }

    /// The command that creates it. All filters have one secret.
    pub fn create(&self, target: Target) -> Command {
        let NewFilter {
            kind,
            capacity,
            growth,
            sizing,
            normalization,
            supply,
            forget,
            window,
        } = *self;
        let mode = if sizing == Sizing::Exact {
            Mode::Strict
        } else {
            Mode::Compact
        };
        let spec = Spec {
            capacity,
            mode,
            growth,
            sizing,
            normalization,
            supply,
            forget,
        };
        Command::Create {
            kind,
            name: name_of(target),
            id: target.0,
            secret: Secret::new([7; 192]),
            layout: spec.layout().unwrap(),
            spec,
            window,
            annotations: AnnotationsChange::default(),
        }
    }
}

pub const fn target(filter: u64) -> Target {
    Target(FilterId(filter))
}

pub fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// The name of a filter.
pub fn name_of(Target(filter): Target) -> Name {
    name(&format!("f{}", filter.0))
}

pub fn code(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

pub fn codes(numbers: impl IntoIterator<Item = u64>) -> Digests {
    Digests(numbers.into_iter().map(code).collect())
}

pub fn redemption(serial: u64) -> RedemptionId {
    RedemptionId(u128::from(serial).to_be_bytes())
}

pub fn insert(target: Target, numbers: impl IntoIterator<Item = u64>) -> Command {
    Command::Insert {
        target,
        digests: codes(numbers),
        if_absent: false,
        revive: false,
    }
}

pub fn remove(target: Target, numbers: impl IntoIterator<Item = u64>) -> Command {
    Command::Remove {
        target,
        digests: codes(numbers),
        all: false,
    }
}

pub fn replace(
    target: Target,
    from: impl IntoIterator<Item = u64>,
    to: impl IntoIterator<Item = u64>,
) -> Command {
    Command::Replace {
        target,
        from: codes(from),
        to: codes(to),
    }
}

/// A hold, or a redemption if `hold_seconds` is 0.
pub fn redeem(
    target: Target,
    number: u64,
    serial: u64,
    reference: &str,
    hold_seconds: u64,
) -> Command {
    redeem_for(target, number, serial, reference, hold_seconds, None)
}

/// The same, for a customer if one is given.
pub fn redeem_for(
    target: Target,
    number: u64,
    serial: u64,
    reference: &str,
    hold_seconds: u64,
    customer: Option<u64>,
) -> Command {
    let redeem = Redeem {
        target,
        digest: code(number),
        redemption: redemption(serial),
        reference: Reference::new(reference).unwrap(),
        hold_seconds,
    };
    match customer.map(code) {
        None => Command::Redeem(redeem),
        Some(customer) => Command::RedeemFor { redeem, customer },
    }
}

pub fn set_stock(target: Target, stock: u64) -> Command {
    let starts_at = None;
    let ends_at = None;
    let capacity = None;
    let annotations = Default::default();
    Command::Update(Update {
        target,
        starts_at,
        ends_at,
        capacity,
        stock: Some(stock),
        annotations,
    })
}

pub fn import_begin(target: Target, import: &str, mode: ImportMode, guards: Guards) -> Command {
    let import = ImportId::new(import).unwrap();
    let owner = KeyName::default();
    Command::ImportBegin(ImportBegin {
        target,
        import,
        mode,
        if_absent: false,
        guards,
        owner,
        is_named: true,
    })
}

pub fn import_lines(
    target: Target,
    import: &str,
    numbers: impl IntoIterator<Item = u64>,
) -> Command {
    let import = ImportId::new(import).unwrap();
    let digests = codes(numbers);
    let lines = digests.0.len() as u64;
    Command::ImportLines(ImportLines {
        target,
        import,
        digests,
        lines,
        rejected: 0,
        errors: Vec::new(),
        chain: 0,
    })
}

/// The end of a complete upload.
pub fn import_end(target: Target, import: &str, entries_max: u32) -> Command {
    let ending = Ending::Whole {
        upload: UploadDigest { bytes: 0, hash: 0 },
        warnings: Vec::new(),
    };
    Command::ImportEnd(ImportEnd {
        target,
        import: ImportId::new(import).unwrap(),
        ending,
        entries_max,
    })
}
