//! Events of a key of Redis; and the effect of a command on it: a change that is mirrored, none, or one that can't be mirrored.

/// A command that a client has sent to Redis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisCommand {
    /// The database it was sent to; `None` where that is not reported.
    pub database: Option<i64>,
    /// Its name and arguments.
    pub arguments: Vec<Vec<u8>>,
}

/// A kind of change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyChangeKind {
    /// Items are added.
    Add {
        /// Each once, if it was not there.
        if_absent: bool,
    },
    /// Items are removed, one copy of each.
    Remove,
    /// The key is deleted.
    Clear,
}

/// An event of the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyEvent {
    /// The connection to Redis broke.
    Broken(String),
    /// A command changes the key: the kind of change, and the items.
    Change(KeyChangeKind, Vec<Vec<u8>>),
    /// A command may change the key in a way that is not mirrored; its name.
    NotMirrored(String),
    /// A command has no effect: its arguments, or the type of the key, show that Redis rejects it.
    Rejected,
    /// A command changes a key of the same name in this other database, and no database was named.
    OtherDatabase(i64),
    /// The file can't be read further.
    Fault(String),
    /// There is nothing more, or a signal arrived.
    End,
}

/// Commands with items that are mirrored.
pub const MIRRORED: [&str; 7] = [
    "cf.add",
    "cf.addnx",
    "cf.insert",
    "cf.insertnx",
    "cf.del",
    "sadd",
    "srem",
];

/// Commands that don't change the items of their first argument, a key of any type: in another database, the key may have another type.
const HARMLESS: &str = "bf.exists bf.info bf.mexists bf.scandump bitcount bitfield_ro bitpos cf.compact cf.count cf.exists cf.info \
                        cf.mexists cf.scandump copy dump exists expiretime geodist geohash geopos georadius_ro \
                        georadiusbymember_ro geosearch get getbit getrange hexists hexpiretime hget hgetall hkeys hlen hmget \
                        hpexpiretime hpttl hrandfield hscan hstrlen httl hvals json.get json.mget json.type lcs lindex llen lpos \
                        lrange mget persist pexpiretime pfcount pttl scard sdiff sinter sismember smembers smismember sort_ro \
                        srandmember sscan strlen substr sunion touch ttl type watch xlen xpending xrange xrevrange zcard zcount \
                        zdiff zinter zlexcount zmscore zrandmember zrange zrangebylex zrangebyscore zrank zrevrange \
                        zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion";

/// Commands whose first argument is a database, a channel, a message or a pattern, and may be spelled like the key.
const KEYLESS: &str = "acl client config echo hello info keys ping psubscribe publish punsubscribe select spublish ssubscribe subscribe \
                       sunsubscribe unsubscribe";

/// Commands that may change a key which is not their first. (MONITOR reports the commands of scripts as well.)
const ELSEWHERE: &str = "copy migrate mset msetnx rename renamenx smove sort";

/// Commands without a key that change their entire database.
const SWEEPING: &str = "flushdb";

/// Commands without a key that change several databases.
const SWEEPING_ALL: &str = "flushall swapdb";

/// Commands that can write to another database.
const CROSSING: &str = "copy move";

/// The smallest capacity that Redis accepts in CF.INSERT.
const CAPACITY_MIN: i64 = 4;

/// The type of the key in Redis. A command for the other type has no effect there: Redis rejects it with WRONGTYPE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyType {
    /// Not known: the first change decides.
    Unknown,
    /// There is no such key.
    Missing,
    /// A cuckoo filter.
    Filter {
        /// Whether the type is certain. Otherwise Redis may have rejected the command that implies it.
        is_certain: bool,
    },
    /// A set. Without its last member, Redis deletes it, so a filter may take its place.
    Set,
}

impl KeyType {
    /// The type that Redis returns for TYPE.
    pub fn named(name: &str) -> Self {
        match name {
            "none" => Self::Missing,
            "MBbloomCF" => Self::Filter { is_certain: true },
            "set" => Self::Set,
            _ => Self::Unknown,
        }
    }
}

/// The commands that matter.
pub struct Interest {
    /// The key.
    pub key: Vec<u8>,
    /// The database; if none was named, 0 is mirrored, and changes in others are reported.
    pub database: Option<i64>,
    /// The type of the key after the commands so far.
    pub key_type: KeyType,
}

impl Interest {
    /// Returns the effect of a command on the key, if it has one.
    pub fn effect(&mut self, command: &RedisCommand) -> Option<KeyEvent> {
        let (name, rest) = command.arguments.split_first()?;
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let is_one_of = |commands: &str| commands.split(' ').any(|known| known == name);
        if is_one_of(SWEEPING_ALL) {
            self.key_type = KeyType::Unknown;
            return Some(KeyEvent::NotMirrored(name));
        }
        let ours = self.database.unwrap_or(0);
        // Commands whose database is not reported are typed ones.
        match command.database.filter(|other| *other != ours) {
            Some(_) if is_one_of(CROSSING) && rest.contains(&self.key) => {
                Some(KeyEvent::NotMirrored(name))
            }
            Some(_) if is_one_of(SWEEPING) => None,
            Some(other) => {
                let mut there = Interest {
                    key: self.key.clone(),
                    database: None,
                    key_type: KeyType::Unknown,
                };
                let effect = there
                    .effect_here(&name, rest)
                    .filter(|effect| *effect != KeyEvent::Rejected);
                effect
                    .filter(|_| self.database.is_none())
                    .map(|_| KeyEvent::OtherDatabase(other))
            }
            None => self.effect_here(&name, rest),
        }
    }

    /// Returns the effect of a command in the database of the key.
    fn effect_here(&mut self, name: &str, rest: &[Vec<u8>]) -> Option<KeyEvent> {
        let is_one_of = |commands: &str| commands.split(' ').any(|known| known == name);
        let not_mirrored = || Some(KeyEvent::NotMirrored(name.to_owned()));
        if is_one_of(SWEEPING) {
            self.key_type = KeyType::Unknown;
            return not_mirrored();
        }
        if !rest.contains(&self.key) {
            return None;
        }
        // Commands of one key have it first; elsewhere it is an item that is called like it.
        let is_first = rest.first() == Some(&self.key);
        let items = rest.get(1..).unwrap_or_default();
        let add = |if_absent| KeyChangeKind::Add { if_absent };
        match name {
            "del" | "unlink" => {
                self.key_type = KeyType::Missing;
                Some(KeyEvent::Change(KeyChangeKind::Clear, Vec::new()))
            }
            "cf.add" if is_first => self.change_one(name, add(false), items),
            "cf.addnx" if is_first => self.change_one(name, add(true), items),
            "cf.del" if is_first => self.change_one(name, KeyChangeKind::Remove, items),
            "cf.insert" if is_first => self.insert(name, add(false), items),
            "cf.insertnx" if is_first => self.insert(name, add(true), items),
            "sadd" if is_first => self.change_set(name, add(true), items),
            "srem" if is_first => self.change_set(name, KeyChangeKind::Remove, items),
            "cf.reserve" if is_first => {
                // Redis rejects it if its options are invalid, or the key exists.
                if self.key_type == KeyType::Missing {
                    self.key_type = KeyType::Unknown;
                }
                None
            }
            _ if is_first && (is_one_of(HARMLESS) || is_one_of(KEYLESS)) => None,
            _ if is_first || is_one_of(ELSEWHERE) => {
                self.key_type = KeyType::Unknown;
                not_mirrored()
            }
            _ => None,
        }
    }

    /// The effect of CF.INSERT or CF.INSERTNX with these arguments after the key.
    fn insert(
        &mut self,
        name: &str,
        act: KeyChangeKind,
        arguments: &[Vec<u8>],
    ) -> Option<KeyEvent> {
        match InsertArguments::parse(arguments) {
            Some(InsertArguments { items, creates })
                if creates || self.key_type != KeyType::Missing =>
            {
                self.change_filter(name, act, items)
            }
            Some(_) | None => Some(KeyEvent::Rejected),
        }
    }

    /// The effect of a command that takes one item.
    fn change_one(
        &mut self,
        name: &str,
        act: KeyChangeKind,
        items: &[Vec<u8>],
    ) -> Option<KeyEvent> {
        match items {
            [_] => self.change_filter(name, act, items),
            _ => Some(KeyEvent::Rejected),
        }
    }

    fn change_filter(
        &mut self,
        name: &str,
        act: KeyChangeKind,
        items: &[Vec<u8>],
    ) -> Option<KeyEvent> {
        match self.key_type {
            KeyType::Set => return Some(KeyEvent::NotMirrored(name.to_owned())),
            KeyType::Missing if act == KeyChangeKind::Remove => return Some(KeyEvent::Rejected),
            KeyType::Missing => self.key_type = KeyType::Filter { is_certain: true },
            KeyType::Unknown => self.key_type = KeyType::Filter { is_certain: false },
            KeyType::Filter { .. } => {}
        }
        Some(KeyEvent::Change(act, items.to_vec()))
    }

    fn change_set(
        &mut self,
        name: &str,
        act: KeyChangeKind,
        items: &[Vec<u8>],
    ) -> Option<KeyEvent> {
        if items.is_empty() {
            return None;
        }
        match self.key_type {
            KeyType::Filter { is_certain: true } => return Some(KeyEvent::Rejected),
            KeyType::Filter { is_certain: false } => {
                return Some(KeyEvent::NotMirrored(name.to_owned()));
            }
            KeyType::Missing if act == KeyChangeKind::Remove => return None,
            KeyType::Missing | KeyType::Unknown | KeyType::Set => self.key_type = KeyType::Set,
        }
        Some(KeyEvent::Change(act, items.to_vec()))
    }
}

/// The arguments of CF.INSERT after the key.
struct InsertArguments<'a> {
    items: &'a [Vec<u8>],
    /// Whether a missing filter is created.
    creates: bool,
}

impl<'a> InsertArguments<'a> {
    /// Parses `[CAPACITY n] [NOCREATE] ITEMS item …`; `None` if Redis rejects it.
    fn parse(mut arguments: &'a [Vec<u8>]) -> Option<Self> {
        let mut creates = true;
        loop {
            let (option, rest) = arguments.split_first()?;
            arguments = rest;
            match option.to_ascii_uppercase().as_slice() {
                b"ITEMS" => {
                    return (!rest.is_empty()).then_some(Self {
                        items: rest,
                        creates,
                    });
                }
                b"NOCREATE" => creates = false,
                b"CAPACITY" => {
                    let (capacity, rest) = rest.split_first()?;
                    let capacity: i64 = str::from_utf8(capacity).ok()?.parse().ok()?;
                    if capacity < CAPACITY_MIN {
                        return None;
                    }
                    arguments = rest;
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interest(database: Option<i64>, key_type: KeyType) -> Interest {
        Interest {
            key: b"k".to_vec(),
            database,
            key_type,
        }
    }

    fn command(database: Option<i64>, line: &str) -> RedisCommand {
        RedisCommand {
            database,
            arguments: line
                .split(' ')
                .map(|word| word.as_bytes().to_vec())
                .collect(),
        }
    }

    #[test]
    fn command_effects_match_redis() {
        let of = |line: &str| interest(None, KeyType::Unknown).effect(&command(None, line));
        let items = |items: &[&str]| {
            items
                .iter()
                .map(|item| item.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        let change = |act, of: &[&str]| Some(KeyEvent::Change(act, items(of)));
        let add = |if_absent, of: &[&str]| change(KeyChangeKind::Add { if_absent }, of);
        let not_mirrored = |name: &str| Some(KeyEvent::NotMirrored(name.to_owned()));
        for (line, wanted) in [
            ("CF.ADD k a", add(false, &["a"])),
            ("cf.addnx k a", add(true, &["a"])),
            (
                "CF.INSERT k CAPACITY 9 NOCREATE items a b",
                add(false, &["a", "b"]),
            ),
            ("CF.INSERTNX k ITEMS ITEMS", add(true, &["ITEMS"])),
            ("SADD k a b k", add(true, &["a", "b", "k"])),
            ("SREM k a b", change(KeyChangeKind::Remove, &["a", "b"])),
            ("CF.DEL k a", change(KeyChangeKind::Remove, &["a"])),
            ("DEL other k", change(KeyChangeKind::Clear, &[])),
            ("unlink k", change(KeyChangeKind::Clear, &[])),
            ("SADD other k", None),
            ("CF.ADD other a", None),
            ("CF.EXISTS k a", None),
            ("SMEMBERS k", None),
            ("COPY k other", None),
            ("GET k", None),
            ("ZRANGE k 0 9", None),
            ("SELECT k", None),
            ("PUBLISH k news", None),
            ("GETDEL k", not_mirrored("getdel")),
            ("PUBLISH news k", None),
            ("SPOP k", not_mirrored("spop")),
            ("COPY other k", not_mirrored("copy")),
            ("RENAME a k", not_mirrored("rename")),
            ("SUNIONSTORE k a b", not_mirrored("sunionstore")),
            ("CF.LOADCHUNK k 1 x", not_mirrored("cf.loadchunk")),
            ("MSET other v k v", not_mirrored("mset")),
            ("MIGRATE host 6379 k 0 100", not_mirrored("migrate")),
            ("FLUSHALL", not_mirrored("flushall")),
            ("PING", None),
            ("CF.ADD k", Some(KeyEvent::Rejected)),
            ("CF.ADD k a b", Some(KeyEvent::Rejected)),
            ("CF.DEL k a b", Some(KeyEvent::Rejected)),
            ("CF.INSERT k a b", Some(KeyEvent::Rejected)),
            ("CF.INSERT k ITEMS", Some(KeyEvent::Rejected)),
            ("CF.INSERT k CAPACITY ITEMS a", Some(KeyEvent::Rejected)),
            ("CF.INSERT k CAPACITY 3 ITEMS a", Some(KeyEvent::Rejected)),
            ("CF.INSERT k ERROR 1 ITEMS a", Some(KeyEvent::Rejected)),
            ("SADD k", None),
        ] {
            assert_eq!(of(line), wanted, "{line}");
        }
        let empty = RedisCommand {
            database: None,
            arguments: Vec::new(),
        };
        assert_eq!(interest(None, KeyType::Unknown).effect(&empty), None);
    }

    /// The effects of commands, one after the other: `+` for a change, `?` for one that may be missing, `!` for a rejected command, `-` for
    /// none.
    fn effects(key_type: &str, lines: &[&str]) -> String {
        let mut interest = interest(None, KeyType::named(key_type));
        let effects = lines
            .iter()
            .map(|line| match interest.effect(&command(None, line)) {
                Some(KeyEvent::Change(..)) => '+',
                Some(KeyEvent::Rejected) => '!',
                Some(_) => '?',
                None => '-',
            });
        effects.collect()
    }

    #[test]
    fn commands_for_other_type_are_not_mirrored() {
        for (key_type, lines, wanted) in [
            (
                "MBbloomCF",
                &["SADD k a", "SREM k a", "CF.ADD k a"][..],
                "!!+",
            ),
            ("set", &["CF.ADD k a", "SADD k a"], "?+"),
            ("string", &["CF.ADD k a", "SADD k a"], "+?"),
            // Redis has rejected one of the two, and it is not known which.
            (
                "unknown",
                &["CF.ADD k a", "SADD k a", "DEL k", "SADD k a"],
                "+?++",
            ),
            ("unknown", &["SADD k a", "CF.ADD k a"], "+?"),
            (
                "none",
                &["CF.INSERT k NOCREATE ITEMS a", "CF.DEL k a", "SREM k a"],
                "!!-",
            ),
            (
                "none",
                &["CF.ADD k a", "SADD k a", "CF.INSERT k NOCREATE ITEMS a"],
                "+!+",
            ),
            (
                "none",
                &["CF.RESERVE k 100", "CF.INSERT k NOCREATE ITEMS a"],
                "-+",
            ),
            ("MBbloomCF", &["DEL k", "CF.DEL k a", "SADD k a"], "+!+"),
            ("MBbloomCF", &["RENAME k other", "SADD k a"], "?+"),
        ] {
            assert_eq!(effects(key_type, lines), wanted, "{key_type} {lines:?}");
        }
    }

    #[test]
    fn other_databases_are_not_mirrored() {
        let change = || Some(KeyEvent::Change(KeyChangeKind::Clear, Vec::new()));
        let not_mirrored = |name: &str| Some(KeyEvent::NotMirrored(name.to_owned()));
        for (ours, other, line, wanted) in [
            (Some(1), Some(1), "DEL k", change()),
            (Some(1), Some(0), "DEL k", None),
            (Some(1), None, "DEL k", change()),
            (None, Some(0), "DEL k", change()),
            (None, Some(7), "DEL k", Some(KeyEvent::OtherDatabase(7))),
            (None, Some(7), "SPOP k", Some(KeyEvent::OtherDatabase(7))),
            (None, Some(7), "SET k v", Some(KeyEvent::OtherDatabase(7))),
            (None, Some(7), "GET k", None),
            (None, Some(7), "HGETALL k", None),
            (None, Some(7), "SELECT k", None),
            (None, Some(7), "CF.EXISTS k a", None),
            (None, Some(7), "CF.ADD other a", None),
            (None, Some(7), "CF.ADD k a b", None),
            (None, Some(7), "FLUSHDB", None),
            // These concern the key in any case.
            (Some(1), Some(0), "FLUSHALL", not_mirrored("flushall")),
            (Some(1), Some(0), "SWAPDB 0 1", not_mirrored("swapdb")),
            (Some(1), Some(0), "FLUSHDB", None),
            (Some(1), Some(0), "MOVE k 1", not_mirrored("move")),
            (Some(1), Some(0), "COPY other k DB 1", not_mirrored("copy")),
        ] {
            let effect = interest(ours, KeyType::Unknown).effect(&command(other, line));
            assert_eq!(effect, wanted, "{ours:?} {other:?} {line}");
        }
    }
}
