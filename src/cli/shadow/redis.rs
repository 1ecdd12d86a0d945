//! Redis, as `cuckood shadow` and `cuckood import` use it: in the clear or over TLS, with its password and database.

use crate::cli::unreadable;
use anyhow::{Context, anyhow, bail};
use indicatif::ProgressBar;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, Connection, ConnectionInfo, FromRedisValue, TlsCertificates, Value};
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::time::Duration;

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Idle time before the system probes the connection, which is also the time between two probes, and the number of probes.
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(5), 3);

/// Items read from a list with one command.
const LIST_ITEMS: isize = 1_000;

/// Types of keys whose members can be read, and the commands that return their number and a page of them.
const KINDS: [(&str, &str, &str); 4] = [
    ("set", "SCARD", "SSCAN"),
    ("zset", "ZCARD", "ZSCAN"),
    ("hash", "HLEN", "HSCAN"),
    ("list", "LLEN", "LRANGE"),
];

/// A connection to Redis.
pub struct Redis {
    connection: Connection,
    address: String,
}

/// Parses the URL of Redis. Its errors don't repeat it: it may contain a password.
///
/// # Errors
/// If it is no URL of Redis, or the certificates can't be read.
pub fn client(url: &str, cacert: Option<&Path>) -> anyhow::Result<Client> {
    let form = "it has the form redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]";
    let is_tls = url.starts_with("rediss://");
    if !is_tls && !url.starts_with("redis://") {
        bail!("--redis: the scheme is neither redis nor rediss; {form}");
    }
    let info: ConnectionInfo = url
        .parse()
        .map_err(|error| anyhow!("--redis: {error}; {form}"))?;
    let (time, retries) = KEEPALIVE;
    let keepalive = TcpKeepalive::new()
        .with_time(time)
        .with_interval(time)
        .with_retries(retries);
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
    let client = match cacert.filter(|_| is_tls) {
        Some(path) => {
            let pem = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
            Client::build_with_tls(
                info,
                TlsCertificates {
                    client_tls: None,
                    root_cert: Some(pem),
                },
            )
        }
        None => Client::open(info),
    };
    client.context("--redis")
}

impl Redis {
    /// Connects, presents the password and selects the database.
    ///
    /// # Errors
    /// If Redis can't be reached, or rejects the password.
    pub fn connect(client: &Client) -> anyhow::Result<Self> {
        let address = client.get_connection_info().addr().to_string();
        let connected = client
            .get_connection_with_timeout(CONNECT_TIMEOUT)
            .and_then(|connection| {
                connection.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
                connection.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
                Ok(connection)
            });
        let connection =
            connected.map_err(|error| anyhow!("redis {address}: {error}; is Redis running?"))?;
        Ok(Self {
            connection,
            address,
        })
    }

    /// Sends a command and reads its response.
    ///
    /// # Errors
    /// If Redis rejects it, or the connection breaks.
    pub fn query<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> anyhow::Result<T> {
        command
            .query(&mut self.connection)
            .map_err(|error| anyhow!("redis {}: {error}", self.address))
    }

    /// Returns how many calls of these commands, named in lower case, have failed since Redis was started.
    ///
    /// # Errors
    /// If the user may not read it, or Redis is older than 6.2 and does not count it.
    pub fn rejected_commands(&mut self, names: &[&str]) -> anyhow::Result<u64> {
        let text: String = self.query(redis::cmd("INFO").arg("commandstats"))?;
        let mut sum = 0;
        for line in text.lines() {
            let Some((name, values)) = line
                .strip_prefix("cmdstat_")
                .and_then(|line| line.split_once(':'))
            else {
                continue;
            };
            if names.contains(&name) {
                let failed = values
                    .split(',')
                    .find_map(|value| value.strip_prefix("failed_calls="));
                let failed: Option<u64> = failed.and_then(|count| count.parse().ok());
                sum += failed.with_context(|| {
                    format!(
                        "redis {}: INFO commandstats has no failed_calls",
                        self.address
                    )
                })?;
            }
        }
        Ok(sum)
    }

    /// Returns the type of a key.
    ///
    /// # Errors
    /// If there is no such key.
    pub fn type_of(&mut self, key: &str) -> anyhow::Result<String> {
        match self.query::<String>(redis::cmd("TYPE").arg(key))? {
            none if none == "none" => bail!("the key `{key}` in Redis does not exist"),
            kind => Ok(kind),
        }
    }

    /// Returns the type of a key whose members can be read, and the commands that count and read them.
    fn kind(&mut self, key: &str) -> anyhow::Result<(&'static str, &'static str, &'static str)> {
        let kind = self.type_of(key)?;
        KINDS.into_iter().find(|(known, ..)| *known == kind).with_context(|| {
            format!(
                "the key `{key}` in Redis is of the type {kind}, whose items can't be read back; mirror its writes with `cuckood shadow`"
            )
        })
    }

    /// Returns the number of members of a key.
    ///
    /// # Errors
    /// If there is no such key, or its members can't be read.
    pub fn length(&mut self, key: &str) -> anyhow::Result<u64> {
        let (_, command, _) = self.kind(key)?;
        self.query(redis::cmd(command).arg(key))
    }

    /// Returns the members of a key as NDJSON, read in pages so that Redis serves other clients in between.
    ///
    /// # Errors
    /// If there is no such key, or its members can't be read.
    pub fn members<'a>(
        &'a mut self,
        key: &'a str,
        progress: ProgressBar,
    ) -> anyhow::Result<Members<'a>> {
        let (kind, _, command) = self.kind(key)?;
        let mut scan = redis::cmd(command);
        scan.arg(key).cursor_arg(0).arg("COUNT").arg(LIST_ITEMS);
        let items: KeyMembers<'a> = match kind {
            "set" => Box::new(scan.iter(&mut self.connection)?.map(|member| Ok(member?))),
            // Members of a sorted set with their scores, or fields of a hash with their values.
            "zset" | "hash" => {
                let pairs = scan.iter::<(Vec<u8>, Vec<u8>)>(&mut self.connection)?;
                Box::new(pairs.map(|pair| Ok(pair?.0)))
            }
            _ => {
                let page = move |at: isize| -> Option<anyhow::Result<Vec<Vec<u8>>>> {
                    let range = redis::cmd(command)
                        .arg(key)
                        .arg(at)
                        .arg(at + LIST_ITEMS - 1)
                        .to_owned();
                    Some(self.query::<Vec<Vec<u8>>>(&range))
                        .filter(|page| !page.as_ref().is_ok_and(Vec::is_empty))
                };
                let pages = (0..).step_by(LIST_ITEMS as usize).map_while(page);
                Box::new(pages.flat_map(|page| match page {
                    Ok(members) => members.into_iter().map(Ok).collect(),
                    Err(error) => vec![Err(error)],
                }))
            }
        };
        Ok(Members {
            items,
            line: Cursor::default(),
            progress,
        })
    }

    /// Calls `line` with every command that any client sends, until it returns false or the connection breaks.
    ///
    /// # Errors
    /// Why the connection ended.
    pub fn monitor(mut self, mut line: impl FnMut(&str) -> bool) -> anyhow::Result<()> {
        let address = self.address.clone();
        let mut follow = || {
            self.connection.set_read_timeout(None)?;
            loop {
                if let Value::SimpleString(text) = self.connection.recv_response()?
                    && !line(&text)
                {
                    return Ok(());
                }
            }
        };
        follow().map_err(|error: redis::RedisError| anyhow!("redis {address}: {error}"))
    }
}

/// The members of a key.
type KeyMembers<'a> = Box<dyn Iterator<Item = anyhow::Result<Vec<u8>>> + 'a>;

/// The members of a key, a JSON string per line. A member that is not UTF-8 becomes null, which the service rejects and reports.
pub struct Members<'a> {
    items: KeyMembers<'a>,
    line: Cursor<Vec<u8>>,
    progress: ProgressBar,
}

impl Read for Members<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.line.position() == self.line.get_ref().len() as u64 {
            let Some(member) = self.items.next() else {
                return Ok(0);
            };
            let member = String::from_utf8(member.map_err(io::Error::other)?).ok();
            self.line = Cursor::new(serde_json::to_vec(&member)?);
            self.line.get_mut().push(b'\n');
            self.progress.inc(1);
        }
        self.line.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    /// A Redis that gives these replies, one for each command.
    fn fake(replies: &'static [&'static [u8]]) -> (String, std::thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            for reply in replies {
                let mut buffer = [0; 1 << 10];
                let read = stream.read(&mut buffer).unwrap();
                asked.extend_from_slice(&buffer[..read]);
                stream.write_all(reply).unwrap();
            }
            asked
        };
        (url, std::thread::spawn(serve))
    }

    fn members(replies: &'static [&'static [u8]]) -> (String, String) {
        let (url, server) = fake(replies);
        let mut redis = Redis::connect(&client(&url, None).unwrap()).unwrap();
        let mut text = String::new();
        redis
            .members("k", ProgressBar::hidden())
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        (text, String::from_utf8(server.join().unwrap()).unwrap())
    }

    #[test]
    fn sets_are_read_in_pages() {
        const FIRST: &[u8] = b"*2\r\n$1\r\n7\r\n*2\r\n$1\r\na\r\n$2\r\n\xff\xfe\r\n";
        let (text, asked) = members(&[
            b"+set\r\n",
            FIRST,
            b"*2\r\n$1\r\n0\r\n*1\r\n$3\r\n\"b\"\r\n",
        ]);
        assert_eq!(text, "\"a\"\nnull\n\"\\\"b\\\"\"\n");
        assert!(
            asked.contains("SSCAN") && asked.contains("\r\n7\r\n"),
            "{asked}"
        );
    }

    #[test]
    fn hashes_and_lists_are_read() {
        let (text, _) = members(&[
            b"+hash\r\n",
            b"*2\r\n$1\r\n0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n",
        ]);
        assert_eq!(text, "\"f\"\n");
        let (text, _) = members(&[b"+list\r\n", b"*2\r\n$1\r\na\r\n$1\r\na\r\n", b"*0\r\n"]);
        assert_eq!(text, "\"a\"\n\"a\"\n");
    }

    #[test]
    fn failed_calls_of_named_commands_are_summed() {
        const STATISTICS: &[u8] = b"$188\r\n# Commandstats\r\ncmdstat_sadd:calls=3,usec=1,rejected_calls=1,failed_calls=2\r\n\
            cmdstat_get:calls=3,usec=1,failed_calls=3\r\ncmdstat_srem:calls=3,usec=1\r\ncmdstat_cf.add:calls=9,failed_calls=4\r\n\r\n";
        let (url, _server) = fake(&[STATISTICS, STATISTICS]);
        let mut redis = Redis::connect(&client(&url, None).unwrap()).unwrap();
        assert_eq!(
            redis
                .rejected_commands(&["sadd", "scard", "cf.add"])
                .unwrap(),
            6
        );
        // Redis 6.0 counts calls only.
        let error = redis
            .rejected_commands(&["sadd", "srem"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("no failed_calls"), "{error}");
    }

    #[test]
    fn filters_can_not_be_read_back() {
        let (url, _server) = fake(&[b"+MBbloomCF\r\n"]);
        let error = Redis::connect(&client(&url, None).unwrap())
            .unwrap()
            .length("k")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("can't be read back") && error.contains("cuckood shadow"),
            "{error}"
        );
    }

    #[test]
    fn invalid_urls_are_rejected_without_repeating_them() {
        for url in [
            "http://:a-secret@h",
            "redis://:a-secret@",
            "redis://:a-secret@h:99999/x",
        ] {
            let error = client(url, None).err().unwrap().to_string();
            assert!(
                error.contains("redis://[USER:PASSWORD@]HOST") && !error.contains("a-secret"),
                "{error}"
            );
        }
    }
}
