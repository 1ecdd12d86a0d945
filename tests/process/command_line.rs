//! Output about the program's own command line: completions for shells, and manual pages.

use crate::program;
use crate::support::ports;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A command's output; it must succeed.
#[track_caller]
fn output(command: &mut Command) -> String {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The help of a command, whose words are `path`.
fn help(path: &[String]) -> String {
    output(Command::new(program()).args(path).arg("--help"))
}

/// The subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed
        .take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("   "));
    let names = names.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

/// All commands below the program, each with its help.
fn commands() -> Vec<(Vec<String>, String)> {
    let mut waiting = vec![Vec::new()];
    let mut found = Vec::new();
    while let Some(path) = waiting.pop() {
        let text = help(&path);
        waiting.extend(
            subcommands(&text)
                .into_iter()
                .map(|name| [path.clone(), vec![name]].concat()),
        );
        found.push((path, text));
    }
    found
}

/// The long options that a help text describes.
fn options(help: &str) -> BTreeSet<String> {
    let described = help
        .lines()
        .filter(|line| line.trim_start().starts_with('-'));
    let named =
        described.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
    named.map(ToOwned::to_owned).collect()
}

#[test]
fn manual_page_lists_all_options() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("share/man1");
    output(Command::new(program()).arg("man").arg(&pages));
    let mut expected = BTreeSet::new();
    for (path, help) in commands() {
        let name = format!(
            "{}.1",
            [vec!["cuckood".to_owned()], path].concat().join("-")
        );
        let page =
            fs::read_to_string(pages.join(&name)).unwrap_or_else(|_| panic!("there is no {name}"));
        let text = page.replace('\\', "");
        for option in options(&help) {
            assert!(text.contains(&option), "{name} lacks {option}");
        }
        expected.insert(name);
    }
    let found = fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(found.collect::<BTreeSet<_>>(), expected);
    assert!(expected.len() > 10, "{expected:?}");
}

#[test]
fn manual_pages_omit_environment_values() {
    let directory = tempfile::tempdir().unwrap();
    output(
        Command::new(program())
            .arg("man")
            .arg(directory.path())
            .env("CUCKOOD_KEY", "a-secret")
            .env("CUCKOOD_URL", "a-place"),
    );
    for entry in fs::read_dir(directory.path()).unwrap() {
        let page = fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(
            !page.contains("a-secret") && !page.contains("a-place"),
            "{page}"
        );
    }
}

#[test]
fn completions_cover_all_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = output(Command::new(program()).args(["completions", shell]));
        for (path, _) in commands() {
            let last = path.last().map_or("cuckood", String::as_str);
            assert!(script.contains(last), "{shell} does not know {path:?}");
        }
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let script = output(Command::new(program()).args(["completions", "bash"]));
    let complete = |words: &str| {
        let count = words.split(' ').count() - 1;
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}) COMP_CWORD={count}\n_cuckood cuckood \"${{COMP_WORDS[{count}]}}\" \"\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        output(Command::new("bash").args(["--noprofile", "--norc", "-c", &ask]))
    };
    assert_eq!(complete("cuckood he").trim(), "healthcheck\nhelp");
    assert_eq!(complete("cuckood import --max-s").trim(), "--max-shrink");
    assert_eq!(complete("cuckood completions z").trim(), "zsh");
}

#[test]
fn unwritable_page_is_named() {
    let place = Path::new("/dev/null/man");
    let refused = Command::new(program())
        .arg("man")
        .arg(place)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        String::from_utf8(refused.stderr)
            .unwrap()
            .contains("/dev/null/man")
    );
}

/// A place for failing commands: `DIR` in an argument or a message is its path, `URL` an address at which nothing listens.
struct Failing {
    dir: tempfile::TempDir,
    url: String,
}

impl Failing {
    fn new() -> Failing {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("letter"), "Dear Sir or Madam").unwrap();
        fs::write(path("rows.csv"), "id\nu1\n").unwrap();
        fs::write(path("plan.toml"), "filters = 7").unwrap();
        fs::write(path("bad.toml"), "[limits]\nmemory = 0\n").unwrap();
        for name in ["empty", "foreign", "damaged"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("foreign/photo"), "").unwrap();
        fs::write(
            path("damaged/format"),
            "cuckood data directory\nformat 1\nidentity 00\n",
        )
        .unwrap();
        fs::write(path("damaged/acknowledged"), "").unwrap();
        fs::create_dir(path("damaged/sled")).unwrap();
        let url = format!("http://127.0.0.1:{}", ports::free(1)[0]);
        Failing { dir, url }
    }

    fn fill(&self, text: &str) -> String {
        text.replace("DIR", self.dir.path().to_str().unwrap())
            .replace("URL", &self.url)
    }

    /// Runs a command that fails. Returns its message in the same terms.
    fn message(&self, arguments: &str, variables: &[(&str, &str)]) -> String {
        let arguments = self.fill(arguments);
        let mut command = Command::new(program());
        for known in [
            "CUCKOOD_URL",
            "CUCKOOD_KEY",
            "CUCKOOD_CONFIG",
            "CUCKOOD_CACERT",
        ] {
            command.env_remove(known);
        }
        for (name, value) in variables {
            command.env(name, self.fill(value));
        }
        let ended = command.args(arguments.split(' ')).output().unwrap();
        let message = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{arguments}: {message}");
        let message = message
            .replace(self.dir.path().to_str().unwrap(), "DIR")
            .replace(&self.url, "URL");
        message.trim_end().to_owned()
    }
}

/// Checks what all messages have in common: one line, no panic, no names from the code, and the right number.
#[track_caller]
fn assert_readable(arguments: &str, message: &str) {
    assert!(
        message.starts_with("cuckood: ") && message.lines().count() == 1,
        "{arguments}: {message}"
    );
    assert!(!message.contains("panicked"), "{arguments}: {message}");
    let words = || message.split(|letter: char| !letter.is_ascii_alphanumeric());
    for word in words() {
        let joins = word.as_bytes().windows(3).any(|letters| {
            letters[0].is_ascii_lowercase()
                && letters[1].is_ascii_uppercase()
                && letters[2].is_ascii_lowercase()
        });
        // Sizes, and the names of protocols and products.
        assert!(
            !joins || word.ends_with("iB"),
            "{arguments}: {word} in {message}"
        );
    }
    let words: Vec<&str> = message.split_whitespace().collect();
    for pair in words.windows(2) {
        let is_plural = pair[1].trim_end_matches([',', ';', ':']).ends_with('s');
        assert!(pair[0] != "1" || !is_plural, "{arguments}: {message}");
    }
}

/// What each command line fails with: arguments, object, cause and next step.
type Failure = (&'static str, &'static str, &'static str, &'static str);

const BACKUP: &str = "name a file that `cuckood backup FILE` wrote";
const DATA: &str = "name the directory of storage.path";
const RUNNING: &str = "is the service running, and --url right?";

const FAILURES: &[Failure] = &[
    (
        "restore DIR/letter DIR/absent",
        "DIR/letter",
        "is not a cuckood backup: it has another format",
        BACKUP,
    ),
    (
        "restore DIR/letter DIR/empty",
        "DIR/letter",
        "is not a cuckood backup",
        BACKUP,
    ),
    (
        "restore DIR/nothing DIR/absent/deep",
        "DIR/nothing",
        "it does not exist",
        BACKUP,
    ),
    (
        "restore DIR/foreign DIR/empty",
        "DIR/foreign",
        "it is a directory",
        BACKUP,
    ),
    (
        "restore DIR/letter DIR/foreign",
        "DIR/foreign",
        "it holds photo",
        "an empty or absent directory",
    ),
    (
        "restore DIR/letter",
        "1 path",
        "expected a backup and a directory",
        "--into-cluster",
    ),
    (
        "restore DIR/letter --into-cluster",
        "journal.kind",
        "expected \"nats\"",
        "set it",
    ),
    (
        "verify DIR/letter",
        "DIR/letter",
        "1 fault;",
        "take another backup with `cuckood backup FILE`",
    ),
    ("verify DIR/absent", "DIR/absent", "it does not exist", DATA),
    ("verify DIR/empty", "DIR/empty", "it holds no data", DATA),
    (
        "verify DIR/foreign",
        "DIR/foreign",
        "is not a cuckood data directory",
        DATA,
    ),
    (
        "verify DIR/damaged",
        "DIR/damaged",
        "is damaged",
        "restore a backup with `cuckood restore FILE DIR`",
    ),
    (
        "backup DIR/letter --url URL",
        "DIR/letter",
        "exists",
        "name a new file",
    ),
    (
        "backup DIR/new --url URL",
        "URL/v1/backup",
        "refused",
        RUNNING,
    ),
    (
        "backup DIR/new --from DIR/absent",
        "DIR/absent",
        "it does not exist",
        DATA,
    ),
    (
        "backup DIR/new --from DIR/empty",
        "DIR/empty",
        "it holds no data",
        DATA,
    ),
    (
        "backup DIR/new --from DIR/damaged",
        "DIR/damaged",
        "is damaged",
        "run `cuckood verify DIR/damaged`",
    ),
    (
        "repair clock DIR/absent",
        "DIR/absent",
        "it does not exist",
        DATA,
    ),
    (
        "repair clock DIR/foreign",
        "DIR/foreign",
        "is not a cuckood data directory",
        DATA,
    ),
    (
        "repair skip --entry 1 DIR/empty",
        "DIR/empty",
        "it holds no data",
        DATA,
    ),
    (
        "import spring DIR/rows.csv",
        "`spring`",
        "is neither campaigns/NAME nor coupons/NAME",
        "such as campaigns/spring",
    ),
    (
        "import campaigns/spring DIR/nothing",
        "DIR/nothing",
        "No such file",
        "name another file",
    ),
    (
        "import campaigns/spring DIR/rows.csv --url URL",
        "URL/v1/campaigns/spring",
        "refused",
        RUNNING,
    ),
    (
        "move spring --from URL --to URL",
        "`spring`",
        "is neither campaigns/NAME nor coupons/NAME",
        "such as campaigns/spring",
    ),
    (
        "move campaigns/spring --from URL --to URL",
        "URL/v1/campaigns/spring",
        "refused",
        RUNNING,
    ),
    (
        "shadow --redis http://h --key k --into campaigns/x",
        "--redis",
        "the scheme",
        "redis://",
    ),
    (
        "shadow --redis redis://h --key k --into spring --url URL",
        "--into",
        "`spring` is neither campaigns/NAME nor coupons/NAME",
        "such as campaigns/spring",
    ),
    (
        "shadow --commands DIR/rows.csv --key k --into campaigns/x --url URL",
        "URL/v1/campaigns/x",
        "refused",
        RUNNING,
    ),
    (
        "cluster init",
        "journal.kind",
        "is \"local\", expected \"nats\"",
        "set it",
    ),
    (
        "plan --workload DIR/nothing",
        "DIR/nothing",
        "No such file",
        "name another file",
    ),
    (
        "plan --workload DIR/plan.toml",
        "DIR/plan.toml, line 1",
        "invalid type",
        "docs/SCALE.md has an example",
    ),
    (
        "plan --capacity 0",
        "capacity",
        "not 0",
        "must be between 1 and",
    ),
    (
        "bench filter --items 10 --fingerprint-bits 99",
        "fingerprint_bits",
        "not 99",
        "must be between 4 and 32",
    ),
    ("healthcheck --url URL", "URL/readyz", "refused", RUNNING),
    (
        "healthcheck --config DIR/nothing",
        "DIR/nothing",
        "No such file",
        "name",
    ),
    (
        "serve --config DIR/nothing",
        "DIR/nothing",
        "No such file",
        "name",
    ),
    (
        "serve --config DIR/bad.toml",
        "limits.memory",
        "is 0B",
        "expected 1MiB to",
    ),
    (
        "man /dev/null/man",
        "/dev/null/man",
        "Not a directory",
        "name another directory",
    ),
];

/// Every failure names the object and its cause, and the next step.
#[test]
fn failures_name_object_cause_and_next_step() {
    let failing = Failing::new();
    for &(arguments, object, cause, next) in FAILURES {
        let message = failing.message(arguments, &[]);
        assert_readable(arguments, &message);
        for part in [object, cause, next] {
            assert!(message.contains(part), "{arguments}: {part:?} in {message}");
        }
    }
    let left = |name: &str| fs::read_dir(failing.dir.path().join(name)).unwrap().count();
    assert_eq!(
        (left("empty"), left("foreign")),
        (0, 1),
        "a rejected restore leaves something"
    );
    assert!(!failing.dir.path().join("absent").exists());
}

#[test]
fn unusable_certificate_is_described() {
    let failing = Failing::new();
    let [pair, other] = [(); 2].map(|()| crate::certificates::pair());
    for (name, content) in [
        ("cert.pem", pair.certificate.pem()),
        ("key.pem", pair.key),
        ("other.pem", other.key),
        ("none.pem", String::new()),
        ("cut.pem", pair.certificate.pem()[..200].to_owned()),
        (
            "wrong.pem",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(),
        ),
    ] {
        fs::write(failing.dir.path().join(name), content).unwrap();
    }
    for (cert, key, parts) in [
        (
            "nothing.pem",
            "key.pem",
            [
                "server.tls_cert: DIR/nothing.pem",
                "No such file",
                "name a PEM file",
            ],
        ),
        (
            "none.pem",
            "key.pem",
            ["server.tls_cert: DIR/none.pem", "it has", "name a PEM file"],
        ),
        (
            "letter",
            "key.pem",
            ["server.tls_cert: DIR/letter", "it has", "name a PEM file"],
        ),
        (
            "cut.pem",
            "key.pem",
            [
                "server.tls_cert: DIR/cut.pem",
                "it is damaged",
                "name a PEM file",
            ],
        ),
        (
            "cert.pem",
            "cert.pem",
            [
                "server.tls_key: DIR/cert.pem",
                "it has no PEM section",
                "the private key",
            ],
        ),
        (
            "cert.pem",
            "other.pem",
            [
                "DIR/cert.pem",
                "belongs to another certificate",
                "name its own",
            ],
        ),
        (
            "wrong.pem",
            "key.pem",
            ["DIR/wrong.pem", "it is damaged", "issue it again"],
        ),
    ] {
        let settings = [
            ("CUCKOOD__SERVER__TLS_CERT", format!("DIR/{cert}")),
            ("CUCKOOD__SERVER__TLS_KEY", format!("DIR/{key}")),
            ("CUCKOOD__SERVER__LISTEN", "127.0.0.1:0".to_owned()),
            ("CUCKOOD__STORAGE__PATH", "DIR/data".to_owned()),
        ];
        let settings = settings
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        let message = failing.message("serve", &settings);
        assert_readable(cert, &message);
        for part in parts {
            assert!(
                message.contains(part),
                "{cert} {key}: {part:?} in {message}"
            );
        }
    }
}
