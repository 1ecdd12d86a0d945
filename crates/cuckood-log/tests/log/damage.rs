//! sled's files cut off at many places, and bits flipped in them. The directory opens with everything that was
//! acknowledged, or is refused with a message that names the path and the command to run; nothing in between.
//!
//! sled may panic, hang or ask for absurd amounts of memory over a damaged file, so each opening is a separate process.
//! `CUCKOOD_DAMAGE_CASES` sets a larger number than CI has time for.

use cuckood_log::journal::{Durability, Journal, JournalError};
use cuckood_log::store::{Manifest, Store, StoreError, StoreOptions};
use cuckood_log::testing::stores::copy_dir;
use cuckood_log::testing::stores::{append, entries, open_journal, options, proposal};
use cuckood_state::domain::{SectionId, Seq, Timestamp};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const DIRECTORY: &str = "CUCKOOD_DAMAGED_DIRECTORY";
const ENTRIES: u64 = 100;
const FILTERS: u64 = 12;

/// Time for sled to open, before it counts as hanging: longer than a busy machine's disk stalls.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a child may take, in which a damaged directory is opened twice.
const CHILD_TIMEOUT: Duration = Duration::from_secs(180);

fn key(filter: u64) -> SectionId {
    SectionId {
        owner: filter,
        part: 0,
    }
}

fn chunk(filter: u64, changes: u64, index: u32) -> Vec<u8> {
    (0..60_000u64)
        .map(|at| ((at ^ filter << 3 ^ changes).wrapping_mul(u64::from(index) * 2 + 1) >> 2) as u8)
        .collect()
}

/// A directory with a log pruned after two snapshots that share sections.
fn prepare(dir: &Path) {
    let options = StoreOptions {
        preallocate_bytes: 16 << 20,
        ..options(Durability::Fsync)
    };
    let store = Arc::new(Store::open(dir, &options).unwrap());
    let mut journal = open_journal(&store).unwrap();
    let mut sections = Vec::new();
    for number in 1..=ENTRIES {
        append(&mut journal, vec![proposal(number, 5_000)]).unwrap();
        if number % 20 == 0 {
            let mut writer = store.begin_snapshot(Seq(number)).unwrap();
            for filter in 0..FILTERS {
                if number > 20 && filter % 2 == 0 {
                    writer.carry_over(&sections[filter as usize]);
                    continue;
                }
                for index in 0..6 {
                    writer
                        .put_chunk(&store, key(filter), &chunk(filter, number, index))
                        .unwrap();
                }
                writer.end_section(key(filter), number);
            }
            sections = writer
                .finish(&store, Timestamp(number), vec![number as u8; 100_000])
                .unwrap()
                .sections;
            let mut sweep = store.sweep().unwrap();
            while journal.prune(sweep.log_through, 20 << 10).unwrap() {}
            while sweep.step(&store, 28 << 10).unwrap() {}
        }
    }
    for number in ENTRIES + 1..=ENTRIES + 5 {
        append(&mut journal, vec![proposal(number, 3)]).unwrap();
    }
    journal.settle().unwrap();
}

/// The engine's startup: load the newest complete snapshot, and replay the log after it.
fn recover(dir: &Path) -> Result<(), JournalError> {
    let options = StoreOptions {
        open_timeout: OPEN_TIMEOUT,
        ..options(Durability::Fsync)
    };
    let store = Arc::new(Store::open(dir, &options)?);
    let mut journal = open_journal(&store)?;
    let manifests = store.manifests()?;
    let whole = manifests
        .iter()
        .find(|manifest| whole(&store, manifest).is_ok());
    let after = whole.map_or(0, |manifest| manifest.seq.0);
    if let Some(manifest) = whole {
        assert!(after % 20 == 0 && after > 0 && manifest.meta == vec![after as u8; 100_000]);
        assert_eq!(manifest.sections.len() as u64, FILTERS);
    }
    let mut next = after;
    for entry in entries(&mut journal, after)? {
        next += 1;
        let digests = if next > ENTRIES { 3 } else { 5_000 };
        assert_eq!(
            (entry.seq, &entry.proposal),
            (Seq(next), &proposal(next, digests))
        );
    }
    assert_eq!(next, ENTRIES + 5, "something acknowledged is gone");
    append(&mut journal, vec![proposal(0, 1)])?;
    Ok(())
}

fn whole(store: &Store, manifest: &Manifest) -> Result<(), StoreError> {
    let mut out = Vec::new();
    for section in &manifest.sections {
        for index in 0..section.chunks {
            store.read_chunk(section, index, &mut out)?;
            assert_eq!(
                out,
                chunk(section.key.owner, section.changes, index),
                "a chunk of something else"
            );
        }
    }
    Ok(())
}

#[test]
#[ignore = "runs as the child of the others"]
fn child() {
    let Some(dir) = std::env::var_os(DIRECTORY) else {
        return;
    };
    if let Err(error) = recover(Path::new(&dir)) {
        eprintln!("REFUSED {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

/// Whether it opened; panics if it did neither that nor refuse as it should.
fn opens(dir: &Path, what: &str) -> bool {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "damage::child", "--ignored", "--nocapture"])
        .env(DIRECTORY, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = receiver.recv_timeout(CHILD_TIMEOUT) else {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        panic!("{what}: no answer within {CHILD_TIMEOUT:?}");
    };
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return true;
    }
    let refusal = errors.lines().find(|line| line.starts_with("REFUSED"));
    let refusal =
        refusal.unwrap_or_else(|| panic!("{what}: {} without a refusal\n{errors}", output.status));
    assert!(refusal.contains(dir.to_str().unwrap()), "{what}: {refusal}");
    assert!(
        refusal.contains("cuckood verify") || refusal.contains("cuckood restore"),
        "{what}: {refusal}"
    );
    false
}

fn cases() -> u64 {
    std::env::var("CUCKOOD_DAMAGE_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(30)
}

/// Spoils a fresh copy in many ways; both ends, opened and refused, should be met.
fn spoil_many(spoil: impl Fn(&Path, u64) -> String) {
    let parent = tempfile::tempdir().unwrap();
    let sound = parent.path().join("sound");
    prepare(&sound);
    let mut opened = 0;
    let mut refused = 0;
    for case in 0..cases() {
        let dir = parent.path().join(format!("case-{case}"));
        copy_dir(&sound, &dir);
        let what = spoil(&dir, case);
        match opens(&dir, &what) {
            true => opened += 1,
            false => refused += 1,
        }
        fs::remove_dir_all(&dir).unwrap();
    }
    println!("{opened} opened with everything, {refused} were refused");
    assert!(refused > 0, "nothing was damaged");
}

/// Numbers that look random and are the same each time (SplitMix64).
fn scatter(case: u64) -> u64 {
    let mut x = case.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// The bytes of the file that were ever written: the tail of sled's last segment is a hole.
fn used_bytes(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1
}

#[test]
fn sound_directory_opens() {
    let parent = tempfile::tempdir().unwrap();
    prepare(&parent.path().join("sound"));
    assert!(opens(&parent.path().join("sound"), "sound"));
}

#[test]
fn truncated_file_is_detected() {
    spoil_many(|dir, case| {
        let path = dir.join("sled/db");
        let used = used_bytes(&path);
        let length = if case % 4 == 0 {
            used - 1 - scatter(case) % 2_000
        } else {
            scatter(case) % used
        };
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(length)
            .unwrap();
        format!("db cut off at {length} of {used}")
    });
}

#[test]
fn flipped_bit_is_detected() {
    spoil_many(|dir, case| {
        let path = dir.join("sled/db");
        let used = used_bytes(&path);
        let offset = if case % 4 == 0 {
            scatter(case) % 4_096
        } else {
            scatter(case) % used
        };
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        byte[0] ^= 1 << (case % 8);
        file.write_all_at(&byte, offset).unwrap();
        format!("bit {} flipped at {offset} of {used}", case % 8)
    });
}

#[test]
fn truncated_or_altered_small_file_is_detected() {
    spoil_many(|dir, case| {
        let names = ["sled/conf", "acknowledged", "format"];
        let snapshots = fs::read_dir(dir.join("sled"))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> = snapshots
            .filter(|path| path.to_string_lossy().contains("snap."))
            .collect();
        paths.extend(names.map(|name| dir.join(name)));
        let path = &paths[case as usize % paths.len()];
        let mut bytes = fs::read(path).unwrap();
        let offset = (scatter(case) % bytes.len() as u64) as usize;
        if case % 2 == 0 {
            bytes.truncate(offset)
        } else {
            bytes[offset] ^= 1 << (case % 8)
        }
        fs::write(path, bytes).unwrap();
        format!("{} spoilt at {offset}", path.display())
    });
}
