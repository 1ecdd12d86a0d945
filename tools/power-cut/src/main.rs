//! `power-cut CUTS [fsync|flush]`: runs a load on a data directory, cuts the power at random moments, and checks the remaining data. The
//! directory is on ext4 on a loop device; the disk below has a volatile cache. The load makes every command of a log, while its clock runs.
//! Each cut continues in the directory of the cut before or, sometimes, in one that is restored from a backup of it. A restore may be cut
//! short, too.
//!
//! `flush` is the control: there the disk must be seen to lose acknowledged writes.
//! Needs root, `/dev/fuse` and loop devices; without them it says so and does nothing.

mod check;
mod disk;
mod load;
mod log;

use cuckood_log::journal::Durability;
use disk::{Disk, DiskFile, Fate};
use log::Log;
use parking_lot::Mutex;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const DISK_BYTES: usize = 384 << 20;

/// Cuts before a new directory is created: after each, the check makes the complete log again.
const CUTS_PER_DIRECTORY: u64 = 20;

/// Average number of cuts per one that interrupts a restore or the following recovery.
const RESTORE_EVERY: u64 = 4;

/// Maximum number of commands that are acknowledged before a cut.
const POSITIONS_MAX: u64 = 1_000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match act(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn act(arguments: &[&str]) -> Result<()> {
    match *arguments {
        ["load", dir, level, ref restored @ ..] => {
            load::run(Path::new(dir), durability(level), Log::parse(restored)?)
        }
        ["restore", source, dir, level, ref restored @ ..] => {
            let source = Path::new(source);
            let dir = Path::new(dir);
            let level = durability(level);
            let log = load::restore(source, dir, level, Log::parse(restored)?)?;
            load::run(dir, level, log)
        }
        ["check", dir, last, ref restored @ ..] => {
            let found = check::check(Path::new(dir), last.parse()?, &Log::parse(restored)?)?;
            found.iter().for_each(|last| println!("{last}"));
            Ok(())
        }
        [cuts] => run(cuts.parse()?, "fsync"),
        [cuts, level] => run(cuts.parse()?, level),
        _ => Err("usage: power-cut CUTS [fsync|flush]".into()),
    }
}

fn durability(level: &str) -> Durability {
    if level == "flush" {
        Durability::Flush
    } else {
        Durability::Fsync
    }
}

fn run(cuts: u64, level: &str) -> Result<()> {
    if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        println!("SKIPPED: there is no /dev/fuse or no loop device here");
        return Ok(());
    }
    let parent = tempfile::tempdir()?;
    let host = parent.path().join("host");
    let mount = parent.path().join("mount");
    std::fs::create_dir(&host)?;
    std::fs::create_dir(&mount)?;
    let disk = Arc::new(Mutex::new(Disk::new(DISK_BYTES)));
    let session = match fuser::spawn_mount(DiskFile(disk.clone()), &host, &fuser::Config::default())
    {
        Ok(session) => session,
        Err(error) => {
            println!("SKIPPED: a FUSE file system can't be mounted here: {error}");
            return Ok(());
        }
    };
    let result = cut_repeatedly(cuts, level, &disk, &host.join(disk::NAME), &mount);
    drop(session);
    result
}

/// A data directory, and its expected content.
#[derive(Clone)]
struct Data {
    dir: PathBuf,
    acknowledged: u64,
    log: Log,
}

fn cut_repeatedly(
    cuts: u64,
    level: &str,
    disk: &Mutex<Disk>,
    file: &Path,
    mount: &Path,
) -> Result<()> {
    let mut random = random(0x5EED);
    tool("mkfs.ext4", &["-q", "-F", path(file)])?;
    let folder = mount.join("data");
    let new = |cut: u64| Data {
        dir: folder.join(cut.to_string()),
        acknowledged: 0,
        log: Log::default(),
    };
    let mut data = new(0);
    let mut lost = 0;
    let mut unflushed_writes = 0;
    let mut positions = 0;
    let mut restored = 0;
    let mut cut_short = 0;
    for cut in 0..cuts {
        let device = Mounted::new(file, mount)?;
        let is_restore = data.acknowledged > 0 && random().is_multiple_of(RESTORE_EVERY);
        let target = is_restore.then(|| new(cut).dir);
        let (progress, failure) =
            load_until_cut(&data, target.as_deref(), level, disk, &mut random)?;
        drop(device);
        let fate = [Fate::Lost, Fate::Kept, Fate::Torn, Fate::Torn][(random() % 4) as usize];
        let unflushed = disk.lock().power_on(fate, &mut random);
        unflushed_writes += unflushed;
        let _device = Mounted::new(file, mount)?;
        let last = progress.last.load(Relaxed);
        positions += last - data.acknowledged;
        let source = data.dir.clone();
        let left = find_left(
            Data {
                acknowledged: last,
                ..data
            },
            target,
            &progress,
        );
        let is_over = left.is_err() || cut % CUTS_PER_DIRECTORY == CUTS_PER_DIRECTORY - 1;
        match &left {
            Ok(left) if left.dir != source => restored += 1,
            Ok(_) => cut_short += u64::from(progress.restoring.load(Relaxed) > 0),
            Err(why) => {
                lost += 1;
                println!(
                    "cut {cut}: {fate:?}, {unflushed} writes unflushed, {last} acknowledged: {why}"
                );
                println!("the load ended with: {failure}");
            }
        }
        if is_over {
            std::fs::remove_dir_all(&folder)?;
        }
        data = left
            .ok()
            .filter(|_| !is_over)
            .unwrap_or_else(|| new(cut + 1));
    }
    let flushes = disk.lock().flushes;
    println!(
        "{level}: {cuts} cuts, {lost} lost something; {positions} commands acknowledged, {restored} restores \
         completed and {cut_short} cut short, {unflushed_writes} writes unflushed at a cut, {flushes} flushes"
    );
    match (level, lost) {
        _ if positions == 0 => Err("nothing was acknowledged: nothing was tried".into()),
        ("flush", 0) => Err("the control lost nothing: this disk does not forget".into()),
        ("flush", _) | (_, 0) => Ok(()),
        _ => Err("acknowledged writes were lost".into()),
    }
}

/// Checks the directory that was restored, if one was. If it is incomplete and was not acknowledged, the backup's source is still there.
/// Returns the directory that remains, and removes the other one.
fn find_left(source: Data, target: Option<PathBuf>, progress: &Progress) -> Result<Data> {
    let restoring = progress.restoring.load(Relaxed);
    if let Some(dir) = target {
        let mut target = Data {
            dir,
            ..source.clone()
        };
        target.log.0.push(restoring);
        if let Some(last) = check(&target)? {
            std::fs::remove_dir_all(&source.dir)?;
            return Ok(Data {
                acknowledged: last,
                ..target
            });
        }
        if (1..=source.acknowledged).contains(&restoring) {
            return Err("a restored directory is gone".into());
        }
        if target.dir.exists() {
            std::fs::remove_dir_all(&target.dir)?;
        }
    }
    let last = check(&source)?.ok_or("the directory is gone")?;
    Ok(Data {
        acknowledged: last,
        ..source
    })
}

fn check(
    Data {
        dir,
        acknowledged,
        log,
    }: &Data,
) -> Result<Option<u64>> {
    let numbers: Vec<String> = [acknowledged]
        .into_iter()
        .chain(&log.0)
        .map(u64::to_string)
        .collect();
    let arguments: Vec<&str> = ["check", path(dir)]
        .into_iter()
        .chain(numbers.iter().map(String::as_str))
        .collect();
    Ok(tool(path(&std::env::current_exe()?), &arguments)?
        .trim()
        .parse()
        .ok())
}

/// The output of a load.
#[derive(Default)]
struct Progress {
    /// The last position that was acknowledged.
    last: AtomicU64,
    /// The position at which the directory is restored; 0 before the restore.
    restoring: AtomicU64,
}

/// Runs the load for a random time, and cuts the power. Returns its progress, and how it failed.
fn load_until_cut(
    data: &Data,
    target: Option<&Path>,
    level: &str,
    disk: &Mutex<Disk>,
    random: &mut impl FnMut() -> u64,
) -> Result<(Arc<Progress>, String)> {
    let dir = path(&data.dir);
    let mut child = Command::new(std::env::current_exe()?)
        .args(target.map_or(vec!["load", dir], |target| {
            vec!["restore", dir, path(target)]
        }))
        .arg(level)
        .args(data.log.0.iter().map(u64::to_string))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let progress = Arc::new(Progress {
        last: data.acknowledged.into(),
        ..Progress::default()
    });
    let printed = progress.clone();
    let reader = std::thread::spawn(move || {
        for line in lines.map_while(|line| line.ok()) {
            let (value, text) = match line.strip_prefix(load::RESTORING) {
                Some(text) => (&printed.restoring, text),
                None => (&printed.last, line.as_str()),
            };
            if let Ok(position) = text.parse() {
                value.store(position, Relaxed);
            }
        }
    });
    wait_for_cut(&mut child, &progress, target.is_some(), random)?;
    disk.lock().cut();
    // Whatever it still prints, it had synced before the cut.
    std::thread::sleep(Duration::from_millis(50));
    child.kill()?;
    let output = child.wait_with_output()?;
    reader.join().map_err(|_| "the reader panicked")?;
    Ok((
        progress,
        String::from_utf8_lossy(&output.stderr).into_owned(),
    ))
}

/// Waits until the power is cut: at times while directories are opened, otherwise during a restore, or commits, snapshots and the removal
/// of segments.
fn wait_for_cut(
    child: &mut Child,
    progress: &Progress,
    is_restore: bool,
    random: &mut impl FnMut() -> u64,
) -> Result<()> {
    let delay = Duration::from_micros(random() % 200_000);
    if !random().is_multiple_of(4) {
        let (reached, enough) = match is_restore && random().is_multiple_of(2) {
            true => (&progress.restoring, 1),
            false => (
                &progress.last,
                progress.last.load(Relaxed) + 1 + random() % POSITIONS_MAX,
            ),
        };
        while reached.load(Relaxed) < enough {
            if let Some(status) = child.try_wait()? {
                let mut why = String::new();
                child
                    .stderr
                    .take()
                    .ok_or("no output")?
                    .read_to_string(&mut why)?;
                return Err(format!("the load ended, {status}: {why}").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    std::thread::sleep(delay);
    Ok(())
}

/// An ext4 on a loop device, mounted.
struct Mounted {
    device: String,
    mount: PathBuf,
}

impl Mounted {
    fn new(file: &Path, mount: &Path) -> Result<Mounted> {
        let device = tool("losetup", &["-f", "--show", path(file)])?
            .trim()
            .to_owned();
        let mounted = Mounted {
            device,
            mount: mount.to_owned(),
        };
        tool("mount", &["-t", "ext4", &mounted.device, path(mount)])?;
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After a cut the unmounting has nothing to write to and says so.
        let _ = tool("umount", &[path(&self.mount)]);
        let _ = tool("losetup", &["-d", &self.device]);
    }
}

fn tool(name: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(name).args(arguments).output()?;
    if !output.status.success() {
        return Err(format!(
            "{name} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn path(path: &Path) -> &str {
    path.to_str()
        .expect("temporary directories have plain names")
}

/// SplitMix64: the same cuts each time, within the machine's timing.
fn random(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = state;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }
}
