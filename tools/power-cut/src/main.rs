//! `power-cut CUTS [fsync|flush]`: runs a load on a data directory on ext4 on a loop device on a disk with a
//! volatile cache, cuts the power at random moments and looks what is left. Each cut goes on where the one before
//! left the directory, but for a new one now and then.
//!
//! With `flush` it is the control: there the disk must be seen to lose acknowledged writes.
//! Needs root, `/dev/fuse` and loop devices; without them it says so and does nothing.

mod disk;
mod load;
mod log;

use cuckood::journal::Durability;
use disk::{Disk, DiskFile, Fate};
use parking_lot::Mutex;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const DISK_BYTES: usize = 384 << 20;

/// Cuts before a new directory is begun: after each the whole log is made anew to compare with.
const CUTS_PER_DIRECTORY: u64 = 20;

/// Commands that are acknowledged before a cut, at most.
const POSITIONS_MAX: u64 = 1_000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["load", dir, level] => load::run(Path::new(dir), durability(level)),
        ["check", dir, last] => {
            last.parse().map_err(Into::into).and_then(|last| load::check(Path::new(dir), last))
        }
        [cuts] => cuts.parse().map_err(Into::into).and_then(|cuts| run(cuts, "fsync")),
        [cuts, level] => cuts.parse().map_err(Into::into).and_then(|cuts| run(cuts, level)),
        _ => Err("usage: power-cut CUTS [fsync|flush]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn durability(level: &str) -> Durability {
    if level == "flush" { Durability::Flush } else { Durability::Fsync }
}

fn run(cuts: u64, level: &str) -> Result<()> {
    if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        println!("SKIPPED: there is no /dev/fuse or no loop device here");
        return Ok(());
    }
    let parent = tempfile::tempdir()?;
    let (host, mount) = (parent.path().join("host"), parent.path().join("mount"));
    std::fs::create_dir(&host)?;
    std::fs::create_dir(&mount)?;
    let disk = Arc::new(Mutex::new(Disk::new(DISK_BYTES)));
    let session = match fuser::spawn_mount(DiskFile(disk.clone()), &host, &fuser::Config::default()) {
        Ok(session) => session,
        Err(error) => {
            println!("SKIPPED: a FUSE file system can't be mounted here: {error}");
            return Ok(());
        }
    };
    let result = cut_again_and_again(cuts, level, &disk, &host.join(disk::NAME), &mount);
    drop(session);
    result
}

fn cut_again_and_again(cuts: u64, level: &str, disk: &Mutex<Disk>, file: &Path, mount: &Path) -> Result<()> {
    let mut random = random(0x5EED);
    tool("mkfs.ext4", &["-q", "-F", path(file)])?;
    let (mut lost, mut unflushed_writes, mut positions) = (0, 0, 0);
    let mut acknowledged = 0;
    for cut in 0..cuts {
        let device = Mounted::new(file, mount)?;
        let dir = mount.join("data");
        let before = acknowledged;
        let (after, failure) = load_until_cut(&dir, level, disk, acknowledged, &mut random)?;
        acknowledged = after;
        drop(device);
        let fate = [Fate::Lost, Fate::Kept, Fate::Torn, Fate::Torn][(random() % 4) as usize];
        let unflushed = disk.lock().power_on(fate, &mut random);
        unflushed_writes += unflushed;
        let _device = Mounted::new(file, mount)?;
        let checked = Command::new(std::env::current_exe()?)
            .args(["check", path(&dir), &acknowledged.to_string()])
            .stderr(Stdio::piped())
            .output()?;
        if !checked.status.success() {
            lost += 1;
            let why = String::from_utf8_lossy(&checked.stderr);
            println!("cut {cut}: {fate:?}, {unflushed} writes unflushed, {acknowledged} acknowledged: {why}");
            println!("the load had ended with: {failure}");
        }
        positions += acknowledged - before;
        if !checked.status.success() || cut % CUTS_PER_DIRECTORY == CUTS_PER_DIRECTORY - 1 {
            std::fs::remove_dir_all(&dir)?;
            acknowledged = 0;
        }
    }
    let flushes = disk.lock().flushes;
    println!(
        "{level}: {cuts} cuts, {lost} lost something; {positions} commands acknowledged, {unflushed_writes} writes \
         unflushed at a cut, {flushes} flushes"
    );
    match (level, lost) {
        _ if positions == 0 => Err("nothing was acknowledged: nothing was tried".into()),
        ("flush", 0) => Err("the control lost nothing: this disk does not forget".into()),
        ("flush", _) | (_, 0) => Ok(()),
        _ => Err("acknowledged writes were lost".into()),
    }
}

/// Runs the load for a random while, cuts the power, and tells the last position that was acknowledged.
fn load_until_cut(
    dir: &Path,
    level: &str,
    disk: &Mutex<Disk>,
    before: u64,
    random: &mut impl FnMut() -> u64,
) -> Result<(u64, String)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["load", path(dir), level])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(child.stdout.take().ok_or("no output")?);
    let last = Arc::new(AtomicU64::new(before));
    let reader = {
        let last = last.clone();
        std::thread::spawn(move || {
            for line in lines.lines().map_while(|line| line.ok()) {
                if let Ok(position) = line.parse() {
                    last.store(position, Relaxed);
                }
            }
        })
    };
    wait_for_cut(&mut child, &last, random)?;
    disk.lock().cut();
    // Whatever it still says it had synced before the cut, or the cut is no cut.
    std::thread::sleep(Duration::from_millis(50));
    child.kill()?;
    let output = child.wait_with_output()?;
    reader.join().map_err(|_| "the reader panicked")?;
    Ok((last.load(Relaxed), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Waits until the power is to be cut: into the opening at times, else into commits, snapshots or the dropping of segments.
fn wait_for_cut(child: &mut Child, last: &AtomicU64, random: &mut impl FnMut() -> u64) -> Result<()> {
    let delay = Duration::from_micros(random() % 300_000);
    if !random().is_multiple_of(4) {
        let enough = last.load(Relaxed) + 1 + random() % POSITIONS_MAX;
        while last.load(Relaxed) < enough {
            if let Some(status) = child.try_wait()? {
                let mut why = String::new();
                child.stderr.take().ok_or("no output")?.read_to_string(&mut why)?;
                return Err(format!("the load ended by itself, {status}: {why}").into());
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
        let device = tool("losetup", &["-f", "--show", path(file)])?.trim().to_owned();
        let mounted = Mounted { device, mount: mount.to_owned() };
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
        return Err(format!("{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

/// SplitMix64: the same cuts each time, as far as the machine's timing goes.
fn random(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = state;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }
}
