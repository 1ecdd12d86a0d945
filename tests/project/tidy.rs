//! The code's rules as a test: allowed imports, allowed I/O, and forbidden constructs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The sources of each package. Packages hold the layers: the filter imports nothing of ours, the state the filter, the log the state,
/// the replicated log both. What follows is only what packages can't hold: the layers inside them, and the use of other crates.
const ROOTS: [&str; 5] = ["src", FILTER, STATE, LOG, NATS];

const FILTER: &str = "crates/cuckood-filter/src";
const STATE: &str = "crates/cuckood-state/src";
const LOG: &str = "crates/cuckood-log/src";
const NATS: &str = "crates/cuckood-nats/src";

/// The modules that each module may import, inside its package. The composition modules may import anything.
const LAYERS: &[(&str, &[&str])] = &[
    ("domain", &["frame"]),
    ("frame", &[]),
    ("paged", &["frame"]),
    ("store", &[]),
    ("journal", &["store"]),
    ("clock", &[]),
    ("access", &["budget"]),
    ("engine", &["clock"]),
    ("budget", &[]),
    ("socket", &["budget", "turn"]),
    ("tally", &[]),
    ("turn", &[]),
    (
        "http",
        &[
            "access", "budget", "clock", "engine", "socket", "tally", "turn",
        ],
    ),
    (
        "resp",
        &[
            "access", "budget", "clock", "engine", "socket", "tally", "turn",
        ],
    ),
];

/// The rooms that put the others together.
const TOP: &[&str] = &["main", "lib", "server", "tls", "config", "telemetry", "cli"];

/// The packages of ours that a module of the service may name. The protocols use the log's types, but not its disk.
const PACKAGES: &[(&str, &[&str])] = &[
    ("clock", &["cuckood_state"]),
    ("access", &["cuckood_state"]),
    (
        "engine",
        &[
            "cuckood_filter",
            "cuckood_state",
            "cuckood_log",
            "cuckood_nats",
        ],
    ),
    ("budget", &[]),
    ("socket", &[]),
    ("tally", &[]),
    ("turn", &[]),
    ("http", &["cuckood_filter", "cuckood_state", "cuckood_log"]),
    ("resp", &["cuckood_filter", "cuckood_state", "cuckood_log"]),
];

/// Paths of other crates that only some modules may name: everything that touches the world. A package is named by its folder.
const FENCED: &[(&str, &[&str])] = &[
    ("axum::", &["http", "server"]),
    ("hyper::", &["http", "server"]),
    ("tower_http::", &["http"]),
    (
        "utoipa",
        &[
            "cuckood-filter",
            "cuckood-state",
            "cuckood-log",
            "engine",
            "http",
            "cli",
        ],
    ),
    ("rustls::", &["server", "tls", "cli"]),
    ("ureq::", &["cli"]),
    ("redis::", &["cli"]),
    ("clap::", &["cli", "main"]),
    ("toml::", &["config", "cli"]),
    (
        "tokio::",
        &[
            "cuckood-nats",
            "engine",
            "http",
            "resp",
            "server",
            "socket",
            "turn",
            "tls",
            "cli",
        ],
    ),
    (
        "tracing::",
        &[
            "cuckood-nats",
            "cuckood-log",
            "engine",
            "http",
            "resp",
            "server",
            "tls",
            "cli",
        ],
    ),
    (
        "std::fs",
        &[
            "cuckood-log",
            "cuckood-nats",
            "server",
            "http",
            "config",
            "cli",
        ],
    ),
    (
        "std::net",
        &[
            "access", "socket", "http", "resp", "server", "config", "cli",
        ],
    ),
    ("std::env", &["cli", "config"]),
    (
        "std::thread",
        // `tally` asks for the number of processors.
        &[
            "cuckood-log",
            "cuckood-nats",
            "engine",
            "server",
            "tally",
            "cli",
        ],
    ),
    ("std::time::SystemTime", &["clock"]),
];

/// The service has no façade: a module names the package that a type comes from.
const REEXPORTS: &[&str] = &["pub use cuckood_", "pub use crate::"];

const LINES_MAX: usize = 1_100;

struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// The package that it belongs to; `src` for the service.
    fn root(&self) -> &'static str {
        let root = ROOTS.iter().find(|root| self.path.starts_with(root));
        root.copied().unwrap_or("src")
    }

    /// The top module of its package that it belongs to.
    fn module(&self) -> String {
        let inside = self.path.strip_prefix(self.root()).unwrap_or(&self.path);
        let first = inside.components().next().expect("a file has a path");
        Path::new(first.as_os_str())
            .file_stem()
            .expect("a file has a name")
            .to_string_lossy()
            .into_owned()
    }

    /// The package's folder, or the module of the service.
    fn home(&self) -> String {
        match self.root().strip_prefix("crates/") {
            Some(package) => package.trim_end_matches("/src").to_owned(),
            None => self.module(),
        }
    }

    /// The code without comments and unit tests.
    fn code(&self) -> String {
        let before_tests = self
            .text
            .split("#[cfg(test)]\nmod tests")
            .next()
            .unwrap_or_default();
        let lines = before_tests
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Files that are compiled for unit tests alone: their module's `mod.rs` says so.
fn is_for_tests_alone(path: &Path) -> bool {
    let read = |name| fs::read_to_string(path.with_file_name(name)).ok();
    let module = read("mod.rs").or_else(|| read("lib.rs"));
    let stem = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    module.is_some_and(|module| module.contains(&format!("#[cfg(test)]\nmod {stem};")))
}

fn sources(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join(folder)];
    let mut found = Vec::new();
    let is_root = ROOTS.contains(&folder);
    while let Some(folder) = folders.pop() {
        // Not every folder is there from the first day.
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                if is_root && is_for_tests_alone(&path) {
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap();
                found.push(Source {
                    path: path.strip_prefix(root).unwrap().to_owned(),
                    text,
                });
            }
        }
    }
    found
}

/// The modules of ours that some code names: `crate::a`, and each of `crate::{a::…, b}`.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, start) in code.match_indices("crate::") {
        let preceded = code[..at]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_');
        let rest = &code[at + start.len()..];
        if preceded {
            continue;
        }
        match rest.strip_prefix('{') {
            None => found.extend(first_word(rest)),
            Some(list) => {
                let mut depth = 0;
                let mut names = String::new();
                for character in list.chars() {
                    match character {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        _ if depth == 0 => names.push(character),
                        _ => {}
                    }
                }
                found.extend(names.split(',').filter_map(|name| first_word(name.trim())));
            }
        }
    }
    found
}

fn first_word(text: &str) -> Option<String> {
    let word: String = text
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (!word.is_empty()).then_some(word)
}

fn assert_none(offences: Vec<String>) {
    assert!(offences.is_empty(), "\n{}", offences.join("\n"));
}

#[test]
fn modules_import_only_lower_layers() {
    let mut offences = Vec::new();
    for source in ROOTS.into_iter().flat_map(sources) {
        let path = source.path.display();
        let module = source.module();
        let code = source.code();
        let allowed = LAYERS.iter().find(|(name, _)| *name == module);
        if let Some((_, allowed)) = allowed {
            for import in imports(&code) {
                if import != module && !allowed.contains(&import.as_str()) {
                    offences.push(format!("{path}: {module} may not import {import}"));
                }
            }
        } else if source.root() == "src" && !TOP.contains(&module.as_str()) {
            offences.push(format!("{path}: module {module} has no place in LAYERS"));
        }
        if source.root() != "src" {
            continue;
        }
        let Some((_, packages)) = PACKAGES.iter().find(|(name, _)| *name == module) else {
            continue;
        };
        for package in [
            "cuckood_filter",
            "cuckood_state",
            "cuckood_log",
            "cuckood_nats",
        ] {
            if code.contains(&format!("{package}::")) && !packages.contains(&package) {
                offences.push(format!("{path}: {module} may not use {package}"));
            }
        }
    }
    assert_none(offences);
}

#[test]
fn service_has_no_facade() {
    let mut offences = Vec::new();
    for source in sources("src") {
        let code = source.code();
        for reexport in REEXPORTS {
            if code.contains(reexport) {
                offences.push(format!("{}: {reexport}", source.path.display()));
            }
        }
    }
    assert_none(offences);
}

#[test]
fn side_effects_stay_in_allowed_modules() {
    let mut offences = Vec::new();
    for source in ROOTS.into_iter().flat_map(sources) {
        let module = source.home();
        let code = source.code();
        for (path, allowed) in FENCED {
            if code.contains(path) && !allowed.contains(&module.as_str()) {
                offences.push(format!(
                    "{}: {module} may not use {path}",
                    source.path.display()
                ));
            }
        }
    }
    assert_none(offences);
}

#[test]
fn files_are_short_and_documented() {
    let mut offences = Vec::new();
    for source in ["src", "crates", "tests", "benches", "examples"]
        .into_iter()
        .flat_map(sources)
    {
        let path = source.path.display();
        if !source.text.starts_with("//! ") {
            offences.push(format!("{path}: the first line is not `//! …`"));
        }
        let lines = source.text.lines().count();
        if lines > LINES_MAX {
            offences.push(format!("{path}: {lines} lines"));
        }
    }
    assert_none(offences);
}

/// The public structs of some code that derive `Deserialize`: the name, whether a field is private, and whether `try_from` decodes it.
fn decoded_structs(code: &str) -> Vec<(String, bool, bool)> {
    let mut found = Vec::new();
    for item in code.split("#[derive(").skip(1) {
        let Some((derived, rest)) = item.split_once(")]") else {
            continue;
        };
        let Some((attributes, rest)) = rest.split_once("pub struct ") else {
            continue;
        };
        let is_next = attributes
            .lines()
            .all(|line| line.is_empty() || line.starts_with("#["));
        if !derived.contains("Deserialize") || !is_next {
            continue;
        }
        let name = first_word(rest).unwrap_or_default();
        let is_private = match rest[name.len()..].chars().next() {
            Some('(') => !rest[name.len() + 1..]
                .split(");")
                .next()
                .is_some_and(|field| field.contains("pub ")),
            _ => {
                let fields = rest.split("\n}").next().unwrap_or_default().lines().skip(1);
                let mut fields = fields
                    .map(str::trim)
                    .filter(|line| line.ends_with(',') && !line.starts_with('#'));
                fields.any(|field| !field.starts_with("pub "))
            }
        };
        found.push((name, is_private, attributes.contains("try_from")));
    }
    found
}

/// A private field means that a constructor checks it. Bytes from a log, a snapshot or an image must pass the same check.
#[test]
fn domain_types_with_rules_decode_through_constructors() {
    let known = decoded_structs(
        "#[derive(Clone, Deserialize)]\n#[serde(try_from = \"u32\")]\npub struct A(u32);\n\
         #[derive(Deserialize)]\npub struct B(u32);\n#[derive(Deserialize)]\npub struct C(pub u32);\n\
         #[derive(Deserialize)]\npub struct D {\n    pub a: u8,\n    b: u8,\n}\n#[derive(Clone)]\npub struct E(u8);\n",
    );
    let known = known
        .iter()
        .map(|(name, is_private, checks)| (name.as_str(), *is_private, *checks));
    let expected = [
        ("A", true, true),
        ("B", true, false),
        ("C", false, false),
        ("D", true, false),
    ];
    assert_eq!(known.collect::<Vec<_>>(), expected);
    let mut offences = Vec::new();
    let mut checked = 0;
    for source in sources("crates/cuckood-state/src/domain") {
        for (name, is_private, checks) in decoded_structs(&source.code()) {
            checked += usize::from(checks);
            if is_private && !checks {
                offences.push(format!(
                    "{}: {name} decodes without try_from",
                    source.path.display()
                ));
            }
        }
    }
    assert_none(offences);
    // Besides those that `text_type` defines.
    let texts = std::fs::read_to_string("crates/cuckood-state/src/domain/text.rs").unwrap();
    assert!(
        texts.contains(r#"#[serde(try_from = "Box<str>")]"#),
        "short texts decode unchecked"
    );
    assert!(checked >= 3, "{checked} types decode through constructors");
}

#[test]
fn unsafe_code_is_limited_to_few_files() {
    let allowed = ["crates/cuckood-filter/src/memory.rs", "src/server/heap.rs"];
    let offences = ROOTS
        .into_iter()
        .flat_map(sources)
        .filter(|source| !allowed.iter().any(|path| source.path == Path::new(path)))
        .filter(|source| {
            let code = source.code();
            ["unsafe {", "unsafe fn", "unsafe impl", "allow(unsafe_code)"]
                .iter()
                .any(|word| code.contains(word))
        })
        .map(|source| format!("{}: unsafe", source.path.display()))
        .collect();
    assert_none(offences);
}

#[test]
fn all_import_forms_are_found() {
    let code = "use crate::a::B;\nuse crate::{c::{D, crate_name}, e,\n f::G};\nfn x() -> crate::h::I { my_crate::j() }";
    let found: Vec<String> = imports(code).into_iter().collect();
    assert_eq!(found, ["a", "c", "e", "f", "h"]);
}

/// Type names that several files define, each for itself: code names them with their module.
const REPEATED_NAMES: &[&str] = &["Args", "Error", "Result"];

/// The type that a line of a module's top level defines.
fn defined_type(line: &str) -> Option<String> {
    let public = line
        .strip_prefix("pub")
        .map_or(line, |rest| match rest.strip_prefix('(') {
            Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
            None => rest,
        });
    let (keyword, rest) = public.trim_start().split_once(' ')?;
    let is_definition =
        !line.starts_with(' ') && matches!(keyword, "struct" | "enum" | "trait" | "type" | "union");
    if is_definition {
        first_word(rest)
    } else {
        None
    }
}

#[test]
fn type_name_stands_for_one_thing() {
    let mut homes: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for source in ROOTS.into_iter().flat_map(sources) {
        // A table of words for tests takes the place of the real one.
        if source
            .path
            .components()
            .any(|part| part.as_os_str() == "tests")
        {
            continue;
        }
        for name in source.code().lines().filter_map(defined_type) {
            homes.entry(name).or_default().insert(source.path.clone());
        }
    }
    assert!(homes.len() > 400, "only {} types were found", homes.len());
    let mut offences = Vec::new();
    for (name, files) in homes {
        if files.len() > 1 && !REPEATED_NAMES.contains(&name.as_str()) {
            offences.push(format!("{name} is defined in {files:?}"));
        }
    }
    assert_none(offences);
}

/// A newcomer who searches for an operation or a path finds its handler.
#[test]
fn operations_and_paths_are_written_out() {
    let code: String = sources("src").iter().map(Source::code).collect();
    let document = include_str!("../../openapi/openapi.json");
    let document: serde_json::Value = serde_json::from_str(document).unwrap();
    let mut offences = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let ids = operations.as_object().unwrap().values();
        let ids = ids.filter_map(|operation| operation["operationId"].as_str());
        for literal in ids.chain([path.as_str()]) {
            if !code.contains(&format!("\"{literal}\""))
                && !code.contains(&format!("fn {literal}("))
            {
                offences.push(format!("{literal} appears nowhere in src"));
            }
        }
    }
    assert_none(offences);
}

/// The engine and the journal take time from their callers and from the engine's clock, so that a simulation can decide it. One line reads
/// the clock of the runtime whose tasks hold the connection to the replicated log.
#[test]
fn engine_and_journal_read_no_clock() {
    let allowed = "tokio::time::Instant::now().into_std()";
    let mut offences = Vec::new();
    let mut reads_of_runtime = 0;
    let folders = ["src/engine", "crates/cuckood-log/src/journal", NATS];
    for source in folders.into_iter().flat_map(sources) {
        let code = source.code();
        reads_of_runtime += code.matches(allowed).count();
        let code = code.replace(allowed, "");
        for read in ["Instant::now", "SystemTime::now", ".elapsed()"] {
            if code.contains(read) {
                offences.push(format!("{}: {read}", source.path.display()));
            }
        }
    }
    assert_none(offences);
    assert_eq!(reads_of_runtime, 1);
}

/// Files of these folders that import each other can't be read one after the other.
const ACYCLIC: &[&str] = &[STATE, "src/engine", "src/http/response"];

#[test]
fn files_import_no_importer_of_theirs() {
    for folder in ACYCLIC {
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for source in sources(folder)
            .iter()
            .filter(|source| source.path.parent() == Some(Path::new(folder)))
        {
            let code = source.code();
            let imported = ["super::", "crate::"]
                .into_iter()
                .flat_map(|prefix| code.match_indices(prefix))
                .filter_map(|(at, start)| first_word(&code[at + start.len()..]));
            let stem = source
                .path
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .into_owned();
            imports.insert(stem, imported.collect());
        }
        assert!(imports.len() > 3, "{folder} has {} files", imports.len());
        let mut left: BTreeSet<String> = imports.keys().cloned().collect();
        loop {
            let is_free = |file: &String| {
                !imports[file]
                    .iter()
                    .any(|other| other != file && left.contains(other))
            };
            let free: Vec<String> = left.iter().filter(|file| is_free(file)).cloned().collect();
            if free.is_empty() {
                break;
            }
            left.retain(|file| !free.contains(file));
        }
        assert!(
            left.is_empty(),
            "{folder}: a cycle of imports passes through {left:?}"
        );
    }
}
