//! Images from a running engine: each has one filter as of its request, and waits for nothing else.

use crate::engines;
use cuckood::engine::{Engine, SubmitError, image_part};
use cuckood_filter::Growth;
use cuckood_log::store::archive::ImageReader;
use cuckood_state::domain::{Command, Kind, Name, Outcome, Target, UploadId};
use cuckood_state::testing::commands::{NewFilter, codes, insert, redeem, target};
use tempfile::TempDir;

const LARGE: Target = target(1);
const SMALL: Target = target(2);

/// Codes of the large coupon before the first image.
const CODES: u64 = 10_000;

/// An engine with a changed large coupon and a changed small one.
async fn start() -> (Engine, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let engine = engines::start(engines::options(directory.path())).await;
    let large = NewFilter {
        growth: Growth::Fixed,
        ..NewFilter::coupon(1_000_000)
    };
    engines::create(&engine, LARGE, &large).await;
    engines::create(&engine, SMALL, &NewFilter::coupon(10)).await;
    engine
        .submit(None, insert(LARGE, 0..CODES), None)
        .await
        .unwrap();
    engine.submit(None, insert(SMALL, [7]), None).await.unwrap();
    engine
        .submit(None, redeem(SMALL, 7, 1, "order", 0), None)
        .await
        .unwrap();
    (engine, directory)
}

async fn image(engine: &Engine, Target(filter): Target) -> Vec<u8> {
    let mut download = engine.image(filter).await.unwrap().unwrap();
    let mut bytes = Vec::new();
    loop {
        let parts = download.next().await.unwrap();
        if parts.is_empty() {
            return bytes;
        }
        bytes.extend(parts.concat());
    }
}

#[tokio::test]
async fn image_waits_for_no_other_filter() {
    let (engine, _directory) = start().await;
    let taken = image(&engine, SMALL).await;
    // No snapshot was started for it.
    let info = engine.info();
    assert_eq!(
        (info.snapshot, info.storage.snapshot_bytes_written),
        (None, 0)
    );
    // The image from a snapshot is the same.
    engine.snapshot().await.unwrap();
    assert!(image(&engine, SMALL).await == taken);
    let latest = engine.info().snapshot;
    engine.submit(None, insert(SMALL, [8]), None).await.unwrap();
    assert!(
        image(&engine, SMALL).await != taken,
        "an image has everything acknowledged before"
    );
    assert_eq!(engine.info().snapshot, latest);
    assert!(engine.image(target(3).0).await.unwrap().is_none());
    engine.shutdown().await;
}

/// Images take none of the disk space that is reserved for operations that free space.
#[tokio::test]
async fn image_is_rejected_below_watermark() {
    let (engine, directory) = start().await;
    engine.shutdown().await;
    drop(engine);
    let mut options = engines::options(directory.path());
    // More space than any disk has.
    options.store.free_space_min_bytes = u64::MAX / 2;
    let engine = engines::start(options).await;
    // The last snapshot has it.
    assert!(!image(&engine, LARGE).await.is_empty());
    engine
        .submit(None, Command::Clear { target: LARGE }, None)
        .await
        .unwrap();
    assert_eq!(
        engine.image(LARGE.0).await.err(),
        Some(SubmitError::DiskFull)
    );
    engine.shutdown().await;
}

/// Loads an image of a coupon under a new name, and returns its number of items.
async fn load(engine: &Engine, image: &[u8], number: u64) -> u64 {
    let name = Name::new(&format!("copy-{number}")).unwrap();
    let mut reader = ImageReader::default();
    reader.push(image);
    let mut last = None;
    while let Some(record) = reader.next_record().unwrap() {
        let command = image_part(UploadId(number.into()), Kind::Coupon, &name, record);
        last = Some(engine.submit(None, command, None).await.unwrap().outcome);
    }
    reader.finish().unwrap();
    let Some(Outcome::Created(made)) = last else {
        panic!("{last:?}")
    };
    made.stats.items
}

/// A snapshot and several images of one coupon are in progress, each as of another position, and the coupon changes.
#[tokio::test]
async fn snapshot_and_images_of_one_filter_are_independent() {
    const IMAGES: u64 = 3;
    let (engine, directory) = start().await;
    let snapshot = tokio::spawn({
        let engine = engine.clone();
        async move { engine.snapshot().await }
    });
    let mut images = Vec::new();
    for number in 0..IMAGES {
        let taker = engine.clone();
        images.push(tokio::spawn(async move { image(&taker, LARGE).await }));
        tokio::task::yield_now().await;
        for batch in 0..10 {
            let from = CODES + (number * 10 + batch) * 100;
            engine
                .submit(None, insert(LARGE, from..from + 100), None)
                .await
                .unwrap();
        }
    }
    snapshot.await.unwrap().unwrap();
    for (number, image) in (0..).zip(images) {
        let items = load(&engine, &image.await.unwrap(), number + 10).await;
        let position = (items - CODES) / 100;
        assert!(
            items >= CODES && (items - CODES).is_multiple_of(100) && position <= IMAGES * 10,
            "{items}"
        );
        assert!(
            position >= number * 10,
            "image {number} lacks what was acknowledged before: {items}"
        );
        let copy = engine.view().find(
            Kind::Coupon,
            &Name::new(&format!("copy-{}", number + 10)).unwrap(),
        );
        let copy = copy.unwrap();
        let now = engine.now();
        let found = codes(0..CODES + IMAGES * 1_000)
            .0
            .iter()
            .filter(|code| copy.count(**code, now) > 0)
            .count();
        assert_eq!(found as u64, items);
    }
    engine.shutdown().await;
    drop(engine);
    let engine = engines::start(engines::options(directory.path())).await;
    let filters = engine.view().list(Kind::Coupon, "", None, 100);
    let large = filters.iter().find(|filter| filter.id == LARGE.0).unwrap();
    assert_eq!(
        large.describe(engine.now()).stats.items,
        CODES + IMAGES * 1_000
    );
    engine.shutdown().await;
}
