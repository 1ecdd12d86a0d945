//! Servers: fresh processes on the first processor, their use of resources, and calls that prepare them.

use crate::reply::frame;
use crate::request::{Request, append_line, http_head, item};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Lines of an import, and items of a command that fills a filter, that are sent together.
const CHUNK: u32 = 1_000;

/// The processors of the servers, and those of the load.
pub struct Processors {
    first: CpuSet,
    others: CpuSet,
}

impl Processors {
    pub fn split() -> Result<Self> {
        let mut others = sched_getaffinity(None)?;
        let mut first = others;
        if let Some(cpu) = (0..CpuSet::MAX_CPU)
            .find(|&cpu| others.is_set(cpu))
            .filter(|_| others.count() > 1)
        {
            first.clear();
            first.set(cpu);
            others.unset(cpu);
        }
        Ok(Self { first, others })
    }

    /// All processors for both.
    pub fn shared() -> Result<Self> {
        let all = sched_getaffinity(None)?;
        Ok(Self {
            first: all,
            others: all,
        })
    }

    /// Starts `command` on the first processor: a child inherits it.
    fn spawn(&self, command: &mut Command) -> Result<Child> {
        sched_setaffinity(None, &self.first)?;
        let child = command.spawn();
        sched_setaffinity(None, &self.others)?;
        child.map_err(|error| {
            format!("can't start {}: {error}", command.get_program().display()).into()
        })
    }
}

/// A running server with an empty directory. It is killed when it is dropped.
pub struct Server {
    command: Command,
    child: Child,
    pub http: u16,
    pub resp: u16,
    _folder: tempfile::TempDir,
    /// The server that it asks, if it is only a gateway.
    backend: Option<Box<Server>>,
}

impl Server {
    /// Starts cuckood at durability `fsync`, its default.
    pub fn cuckood(program: &Path, processors: &Processors) -> Result<Self> {
        Self::cuckood_with(program, processors, &[])
    }

    /// Starts cuckood with these settings in its environment.
    pub fn cuckood_with(
        program: &Path,
        processors: &Processors,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        let http = free_port()?;
        let resp = free_port()?;
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(program);
        command
            .env("CUCKOOD__SERVER__LISTEN", format!("127.0.0.1:{http}"))
            .env("CUCKOOD__RESP__LISTEN", format!("127.0.0.1:{resp}"))
            .env("CUCKOOD__STORAGE__PATH", folder.path().join("data"))
            .env("CUCKOOD__LOG__LEVEL", "warn")
            .envs(settings.iter().copied());
        let mut server = Self {
            child: processors.spawn(&mut command)?,
            command,
            http,
            resp,
            _folder: folder,
            backend: None,
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let http = self.http;
        self.wait_until(|| {
            Client::connect(http)?
                .call(&Request::http("GET", "/readyz", "", 200))
                .map(drop)
        })
    }

    /// Kills the process and starts it again, with the same directory.
    pub fn restart(&mut self, processors: &Processors) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = processors.spawn(&mut self.command)?;
        self.wait_until_ready()
    }

    /// Starts `bare`, which was built next to this program.
    pub fn bare(processors: &Processors) -> Result<Self> {
        let http = free_port()?;
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(std::env::current_exe()?.with_file_name("bare"));
        command.arg(http.to_string());
        let mut server = Self {
            child: processors.spawn(&mut command)?,
            command,
            http,
            resp: 0,
            _folder: folder,
            backend: None,
        };
        server.wait_until(|| Client::connect(http).map(drop))?;
        Ok(server)
    }

    /// Starts Redis with RedisBloom, which writes each command to the disk before it replies.
    pub fn redis(files: &Path, processors: &Processors) -> Result<Self> {
        let resp = free_port()?;
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(files.join("redis-server"));
        command
            .args(["--bind", "127.0.0.1", "--port", &resp.to_string(), "--dir"])
            .arg(folder.path());
        command.args([
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--loadmodule",
        ]);
        command
            .arg(files.join("redisbloom.so"))
            .stdout(Stdio::null());
        let mut server = Self {
            child: processors.spawn(&mut command)?,
            command,
            http: 0,
            resp,
            _folder: folder,
            backend: None,
        };
        server.wait_until(|| {
            Client::connect(resp)?
                .command(&["CF.EXISTS", "bench", "u"])
                .map(drop)
        })?;
        Ok(server)
    }

    /// Starts webdis, an HTTP gateway, before Redis.
    pub fn webdis(redis: Self, processors: &Processors) -> Result<Self> {
        let http = free_port()?;
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("webdis.json");
        let redis_port = redis.resp;
        fs::write(
            &config,
            format!(
                r#"{{"redis_host": "127.0.0.1", "redis_port": {redis_port}, "http_host": "127.0.0.1", "http_port": {http},
                "threads": 2, "pool_size": 20, "daemonize": false, "verbosity": 0, "logfile": "/dev/null"}}"#
            ),
        )?;
        let mut command = Command::new("webdis");
        command.arg(config);
        let mut server = Self {
            child: processors.spawn(&mut command)?,
            command,
            http,
            resp: 0,
            _folder: folder,
            backend: Some(Box::new(redis)),
        };
        server.wait_until(|| {
            Client::connect(http)?
                .call(&Request::http("GET", "/CF.EXISTS/bench/u", "", 200))
                .map(drop)
        })?;
        Ok(server)
    }

    fn wait_until(&mut self, is_ready: impl Fn() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        while let Err(error) = is_ready() {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("the server ended: {status}").into());
            }
            if start.elapsed() > Duration::from_secs(30) {
                return Err(format!("the server is not ready after 30 s: {error}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns the processor time that the process has used, and the one that it asks.
    pub fn processor_time(&self) -> Result<Duration> {
        let behind = match &self.backend {
            Some(backend) => backend.processor_time()?,
            None => Duration::ZERO,
        };
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let ticks = processor_ticks(&stat).ok_or("invalid /proc/PID/stat")?;
        let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        Ok(behind + Duration::from_secs_f64(seconds))
    }

    /// Returns the bytes of memory that the process uses.
    pub fn resident(&self) -> Result<u64> {
        Ok(self.memory()?[0])
    }

    /// Returns the bytes of memory that the process uses, and their maximum.
    pub fn memory(&self) -> Result<[u64; 2]> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let read = |name| -> Result<u64> {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .ok_or(name)?;
            Ok(line.trim_end_matches("kB").trim().parse::<u64>()? << 10)
        };
        Ok([read("VmRSS:")?, read("VmHWM:")?])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns `utime` and `stime`, fields 14 and 15. Field 2 is the program's name, in parentheses.
fn processor_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Returns the folder with redis-server and redisbloom.so; creates it at first.
pub fn redis_files() -> Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../redis.sh");
    let output = Command::new(script).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("tools/redis.sh failed: {}", output.status).into());
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// A connection for one call after the other.
pub struct Client(TcpStream);

impl Client {
    pub fn connect(port: u16) -> Result<Self> {
        Ok(Self(TcpStream::connect(("127.0.0.1", port))?))
    }

    /// Connects; this and every call fails if it takes longer than `patience`.
    pub fn connect_within(port: u16, patience: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(
            &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into(),
            patience,
        )?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self(stream))
    }

    pub fn call(&mut self, request: &Request) -> Result<String> {
        self.0.write_all(&request.bytes)?;
        self.read(request.status)
    }

    pub fn command(&mut self, words: &[&str]) -> Result<String> {
        self.call(&Request::resp(words))
    }

    /// Creates a campaign or a coupon.
    pub fn put(&mut self, path: &str, json: &str) -> Result<()> {
        self.call(&Request::http("PUT", path, json, 201)).map(drop)
    }

    /// Imports the items with numbers below `count`, in a mode.
    pub fn import(&mut self, campaign: &str, mode: &str, count: u32) -> Result<()> {
        let path = format!("/v1/campaigns/{campaign}/imports?mode={mode}");
        let length = count as usize * (item(0).len() + 1);
        self.0
            .write_all(http_head("POST", &path, "text/plain", length).as_bytes())?;
        let mut lines = Vec::new();
        for from in (0..count).step_by(CHUNK as usize) {
            lines.clear();
            (from..count.min(from + CHUNK)).for_each(|number| append_line(number, &mut lines));
            self.0.write_all(&lines)?;
        }
        self.read(Some(200)).map(drop)
    }

    /// Sends the head and the body of a request, and reads the response.
    pub fn send(&mut self, head: &[u8], body: &[u8]) -> Result<String> {
        self.0.write_all(head)?;
        self.0.write_all(body)?;
        self.read(Some(200))
    }

    /// Adds the items with numbers below `count`, after the words of `command`.
    pub fn fill(&mut self, command: &[&str], count: u32) -> Result<()> {
        for from in (0..count).step_by(CHUNK as usize) {
            let items: Vec<String> = (from..count.min(from + CHUNK)).map(item).collect();
            let words: Vec<&str> = command
                .iter()
                .copied()
                .chain(items.iter().map(String::as_str))
                .collect();
            self.command(&words)?;
        }
        Ok(())
    }

    fn read(&mut self, status: Option<u16>) -> Result<String> {
        let mut input = Vec::new();
        let mut buffer = [0; 16 << 10];
        while frame(&input, status)?.is_none() {
            let count = self.0.read(&mut buffer)?;
            if count == 0 {
                return Err("the server closed the connection".into());
            }
            input.extend_from_slice(&buffer[..count]);
        }
        Ok(String::from_utf8_lossy(&input).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::processor_ticks;

    #[test]
    fn processor_ticks_skip_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 900 0 3 0 120 34 0 0 20 0 5 0 100 1000 10";
        assert_eq!(processor_ticks(stat), Some(154));
        assert_eq!(processor_ticks("7 (a) S 1"), None);
    }
}
