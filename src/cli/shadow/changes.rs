//! Events of a key of Redis; and the effect of a command on it: a change that is mirrored, none, or one that can't be mirrored.

/// A command that a client has sent to Redis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The database it was sent to; `None` where that is not reported.
    pub database: Option<i64>,
    /// Its name and arguments.
    pub arguments: Vec<Vec<u8>>,
}

/// A kind of change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
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
pub enum Event {
    /// The connection to Redis broke.
    Broken(String),
    /// A command changes the key: the kind of change, and the items.
    Change(Act, Vec<Vec<u8>>),
    /// A command may change the key in a way that is not mirrored; its name.
    NotMirrored(String),
    /// The file can't be read further.
    Fault(String),
    /// There is nothing more, or a signal arrived.
    End,
}

/// Commands of a key that leave its items as they are.
const HARMLESS: &str = "cf.compact cf.count cf.exists cf.info cf.mexists cf.reserve cf.scandump copy dump exists persist pttl scard \
                        sdiff sinter sismember smembers smismember srandmember sscan sunion touch ttl type watch";

/// Commands that may change a key which is not their first. (MONITOR reports the commands of scripts as well.)
const ELSEWHERE: &str = "copy migrate mset msetnx rename renamenx smove sort";

/// Commands that name no key and change all.
const SWEEPING: &str = "flushall flushdb swapdb";

/// The commands that matter.
pub struct Interest {
    /// The key.
    pub key: Vec<u8>,
    /// The database; none for any.
    pub database: Option<i64>,
}

impl Interest {
    /// Returns the effect of a command on the key, if it has one.
    pub fn effect(&self, Command { database, arguments }: &Command) -> Option<Event> {
        let is_elsewhere = self.database.zip(*database).is_some_and(|(ours, other)| ours != other);
        let (name, rest) = arguments.split_first().filter(|_| !is_elsewhere)?;
        let (name, key) = (String::from_utf8_lossy(name).to_ascii_lowercase(), &self.key);
        let is_one_of = |commands: &str| commands.split(' ').any(|known| known == name);
        if is_one_of(SWEEPING) {
            return Some(Event::NotMirrored(name));
        }
        if !rest.contains(key) {
            return None;
        }
        // Commands of one key have it first; elsewhere it is an item that is called like it.
        let is_first = rest.first().is_some_and(|first| *first == *key);
        let items = rest.get(1..).unwrap_or_default();
        let change = |act, items: &[Vec<u8>]| Some(Event::Change(act, items.to_vec()));
        let add = |if_absent| Act::Add { if_absent };
        match name.as_str() {
            "del" | "unlink" => change(Act::Clear, &[]),
            "cf.add" if is_first => change(add(false), items),
            "cf.addnx" | "sadd" if is_first => change(add(true), items),
            "cf.insert" if is_first => change(add(false), after_options(items)),
            "cf.insertnx" if is_first => change(add(true), after_options(items)),
            "cf.del" | "srem" if is_first => change(Act::Remove, items),
            _ if is_first && is_one_of(HARMLESS) => None,
            _ if is_first || is_one_of(ELSEWHERE) => Some(Event::NotMirrored(name)),
            _ => None,
        }
    }
}

/// The items of CF.INSERT, which follow the word ITEMS.
fn after_options(arguments: &[Vec<u8>]) -> &[Vec<u8>] {
    let at = arguments.iter().position(|argument| argument.eq_ignore_ascii_case(b"ITEMS"));
    at.map_or(&[], |at| &arguments[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_effects_match_redis() {
        let interest = Interest { key: b"k".to_vec(), database: None };
        let of = |line: &str| {
            let arguments: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            interest.effect(&Command { database: None, arguments })
        };
        let items = |items: &[&str]| items.iter().map(|item| item.as_bytes().to_vec()).collect::<Vec<_>>();
        let change = |act, of: &[&str]| Some(Event::Change(act, items(of)));
        let add = |if_absent, of: &[&str]| change(Act::Add { if_absent }, of);
        let not_mirrored = |name: &str| Some(Event::NotMirrored(name.to_owned()));
        for (line, wanted) in [
            ("CF.ADD k a", add(false, &["a"])),
            ("cf.addnx k a", add(true, &["a"])),
            ("CF.INSERT k CAPACITY 9 NOCREATE items a b", add(false, &["a", "b"])),
            ("CF.INSERTNX k ITEMS ITEMS", add(true, &["ITEMS"])),
            ("SADD k a b k", add(true, &["a", "b", "k"])),
            ("SREM k a b", change(Act::Remove, &["a", "b"])),
            ("CF.DEL k a", change(Act::Remove, &["a"])),
            ("DEL other k", change(Act::Clear, &[])),
            ("unlink k", change(Act::Clear, &[])),
            ("SADD other k", None),
            ("CF.ADD other a", None),
            ("CF.EXISTS k a", None),
            ("SMEMBERS k", None),
            ("COPY k other", None),
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
        ] {
            assert_eq!(of(line), wanted, "{line}");
        }
        assert_eq!(interest.effect(&Command { database: None, arguments: Vec::new() }), None);
    }

    #[test]
    fn other_databases_are_ignored() {
        let command = |database| Command { database, arguments: vec![b"DEL".to_vec(), b"k".to_vec()] };
        let interest = |database| Interest { key: b"k".to_vec(), database };
        for (ours, other, matters) in [
            (Some(1), Some(1), true),
            (Some(1), Some(0), false),
            (Some(1), None, true),
            (None, Some(7), true),
        ] {
            let is_change = interest(ours).effect(&command(other)).is_some();
            assert_eq!(is_change, matters, "{ours:?} {other:?}");
        }
    }
}
