//! Subcommands: their help texts, and the error for unknown ones.

use super::failure::Failure;
use super::replies::Replies;

/// The subcommands of a command.
pub struct Subcommands {
    command: &'static str,
    /// The syntax of each, and its effect.
    all: &'static [(&'static str, &'static str)],
}

/// The subcommands of CLIENT.
pub static CLIENT: Subcommands = Subcommands {
    command: "CLIENT",
    all: &[
        ("GETNAME", "Return the name of the connection."),
        ("ID", "Return the ID of the connection."),
        ("INFO", "Return information about the connection."),
        (
            "LIST [TYPE type] [ID id ...]",
            "Return the same as INFO: other connections are not listed.",
        ),
        (
            "NO-EVICT (ON|OFF)",
            "Return OK. Without effect: any connection can be closed.",
        ),
        (
            "NO-TOUCH (ON|OFF)",
            "Return OK. Without effect: access times are not recorded.",
        ),
        (
            "SETINFO (LIB-NAME|LIB-VER) value",
            "Set the name or version of the client's library.",
        ),
        ("SETNAME name", "Set the name of the connection."),
    ],
};

/// The subcommands of COMMAND.
pub static COMMAND: Subcommands = Subcommands {
    command: "COMMAND",
    all: &[
        ("(no subcommand)", "Return details about all commands."),
        ("COUNT", "Return the number of commands."),
        (
            "DOCS [name ...]",
            "Return the summaries of commands, or of all.",
        ),
        (
            "INFO [name ...]",
            "Return details about commands, or about all.",
        ),
        ("LIST", "Return the names of all commands."),
    ],
};

/// The subcommands of MEMORY.
pub static MEMORY: Subcommands = Subcommands {
    command: "MEMORY",
    all: &[(
        "USAGE key [SAMPLES n]",
        "Return the memory of a filter in bytes.",
    )],
};

/// The subcommands of MODULE.
pub static MODULE: Subcommands = Subcommands {
    command: "MODULE",
    all: &[("LIST", "Return the module that clients require.")],
};

/// The subcommands of OBJECT.
pub static OBJECT: Subcommands = Subcommands {
    command: "OBJECT",
    all: &[
        ("ENCODING key", "Return `raw` for a filter."),
        ("IDLETIME key", "Return 0 for a filter."),
        ("REFCOUNT key", "Return 1 for a filter."),
    ],
};

impl Subcommands {
    /// Writes the reply to HELP, in Redis' form.
    pub fn help(&self, replies: &mut Replies) {
        let own = ("HELP", "Print this help.");
        replies.array(1 + 2 * (self.all.len() + 1));
        replies.simple(&format!(
            "{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            self.command
        ));
        for (syntax, effect) in self.all.iter().chain([&own]) {
            replies.simple(syntax);
            replies.simple(&format!("    {effect}"));
        }
    }

    /// Returns the error for an unknown subcommand.
    pub fn unknown(&self, other: &str) -> Failure {
        Failure::err(format!(
            "unknown subcommand '{other:.128}'. Try {} HELP.",
            self.command
        ))
    }
}
