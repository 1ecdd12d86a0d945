//! Which files of `src/` import which, and the circles among them. A folder counts as one among its neighbours, so that
//! no two folders import each other either, whatever files they do it by.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module's path from the crate's root: none for `lib.rs`, `["http", "gate"]` for `http/gate.rs`.
type Module = Vec<String>;

/// A source file's path under `src/`, and its code without comments and unit tests.
pub struct File {
    pub path: PathBuf,
    pub code: String,
}

/// Entries of one folder that import each other in a circle.
pub struct Circle {
    /// Files and folders, each with its path under `src/`.
    pub entries: BTreeSet<PathBuf>,
    /// `from -> to` of the files that tie them.
    pub ties: Vec<String>,
}

/// All circles, folder by folder.
pub fn circles(files: &[File]) -> Vec<Circle> {
    let arrows = arrows(files);
    let folders: BTreeSet<&Path> = files.iter().flat_map(|file| file.path.ancestors().skip(1)).collect();
    folders.into_iter().flat_map(|folder| circles_in(folder, &arrows)).collect()
}

fn circles_in(folder: &Path, arrows: &BTreeSet<(PathBuf, PathBuf)>) -> Vec<Circle> {
    let mut next: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
    let mut ties: BTreeMap<(PathBuf, PathBuf), Vec<String>> = BTreeMap::new();
    for (from, to) in arrows {
        let (Some(from_entry), Some(to_entry)) = (entry(folder, from), entry(folder, to)) else { continue };
        if from_entry != to_entry {
            next.entry(from_entry.clone()).or_default().insert(to_entry.clone());
            let tie = format!("{} -> {}", from.display(), to.display());
            ties.entry((from_entry, to_entry)).or_default().push(tie);
        }
    }
    let reachable: BTreeMap<&PathBuf, BTreeSet<PathBuf>> =
        next.keys().map(|entry| (entry, reachable(entry, &next))).collect();
    let mut found = BTreeSet::new();
    for (entry, reached) in &reachable {
        // Entries that it reaches and that reach it.
        let back = |other: &&PathBuf| reachable.get(*other).is_some_and(|reached| reached.contains(*entry));
        let circle: BTreeSet<PathBuf> = reached.iter().filter(back).cloned().collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    let circle = |entries: BTreeSet<PathBuf>| {
        let inside = ties.iter().filter(|((from, to), _)| entries.contains(from) && entries.contains(to));
        let ties = inside.flat_map(|(_, ties)| ties.clone()).collect();
        Circle { entries, ties }
    };
    found.into_iter().map(circle).collect()
}

/// The entry of a folder that contains a file.
fn entry(folder: &Path, file: &Path) -> Option<PathBuf> {
    let inside = file.strip_prefix(folder).ok()?;
    Some(folder.join(inside.components().next()?))
}

fn reachable(from: &PathBuf, next: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> BTreeSet<PathBuf> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(at) = waiting.pop() {
        for to in next.get(at).into_iter().flatten() {
            if reached.insert(to.clone()) {
                waiting.push(to);
            }
        }
    }
    reached
}

/// The code of a file, in which `super` of its inline modules is the file itself.
fn flattened(file: &File) -> File {
    let lines = file.code.lines().map(|line| match line.strip_prefix("    ") {
        Some(indented) => indented.replace("super::", "self::"),
        None => line.to_owned(),
    });
    File { path: file.path.clone(), code: lines.collect::<Vec<_>>().join("\n") }
}

/// The imports between files. A name that a module only re-exports is imported from its definition.
fn arrows(files: &[File]) -> BTreeSet<(PathBuf, PathBuf)> {
    let files: Vec<File> = files.iter().map(flattened).collect();
    let by_module: BTreeMap<Module, &File> = files.iter().map(|file| (module(&file.path), file)).collect();
    let passed_on: BTreeMap<(Module, String), Module> = files
        .iter()
        .flat_map(|file| {
            let own = module(&file.path);
            uses(&file.code).into_iter().filter(|used| used.is_passed_on).filter_map(move |used| {
                let name = used.alias.or_else(|| used.path.last().cloned())?;
                Some(((own.clone(), name), absolute(&own, &used.path)?))
            })
        })
        .collect();
    let mut arrows = BTreeSet::new();
    for file in &files {
        let own = module(&file.path);
        let children = children(&file.code);
        let used = uses(&file.code).into_iter().filter(|used| !used.is_passed_on).map(|used| used.path);
        for path in used.chain(inline_paths(&file.code)) {
            let is_relative = path.first().is_some_and(|first| children.contains(first));
            let path = if is_relative { Some([own.clone(), path].concat()) } else { absolute(&own, &path) };
            let defined = path.and_then(|path| defining(&by_module, &passed_on, path));
            if let Some(to) = defined.filter(|to| *to != file.path) {
                arrows.insert((file.path.clone(), to));
            }
        }
    }
    arrows
}

/// The file that defines a path.
fn defining(
    by_module: &BTreeMap<Module, &File>,
    passed_on: &BTreeMap<(Module, String), Module>,
    mut path: Module,
) -> Option<PathBuf> {
    // Each step follows one re-export; there are no longer chains.
    for _ in 0..8 {
        let depth = (0..=path.len()).rev().find(|depth| by_module.contains_key(&path[..*depth]))?;
        let onward = path.get(depth).and_then(|name| passed_on.get(&(path[..depth].to_vec(), name.clone())));
        match onward {
            Some(onward) => path = [onward.clone(), path[depth + 1..].to_vec()].concat(),
            None => return by_module.get(&path[..depth]).map(|file| file.path.clone()),
        }
    }
    None
}

fn module(path: &Path) -> Module {
    let mut parts: Module =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if matches!(parts.last().map(String::as_str), Some("mod")) || parts == ["lib"] {
        parts.pop();
    }
    parts
}

/// A path from the crate's root; none for a path of another crate, or of this file.
fn absolute(own: &[String], path: &[String]) -> Option<Module> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    match path.first().map(String::as_str)? {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([own, &path[1..]].concat()),
        "super" => Some([&own[..own.len().checked_sub(supers)?], &path[supers..]].concat()),
        // A child's name in its parent.
        _ => Some([own, path].concat()),
    }
}

/// A name that a file takes from elsewhere.
struct Used {
    path: Vec<String>,
    alias: Option<String>,
    /// `pub use`: the file doesn't need it, but passes it on.
    is_passed_on: bool,
}

/// The names of all `use` items, groups taken apart.
fn uses(code: &str) -> Vec<Used> {
    let mut found = Vec::new();
    for item in code.split(';') {
        let Some((before, tree)) = split_word(item, "use") else { continue };
        let is_passed_on = before.split_whitespace().last().is_some_and(|word| word.starts_with("pub"))
            || before.trim_end().ends_with(')');
        let mut paths = Vec::new();
        take_apart(&[], tree, &mut paths);
        found.extend(paths.into_iter().map(|(path, alias)| Used { path, alias, is_passed_on }));
    }
    found
}

/// The text before and after the last `word` that starts an item.
fn split_word<'a>(text: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let with_space = format!("{word} ");
    let at = text.rfind(&with_space)?;
    let begins = text[..at].chars().next_back().is_none_or(|c| c.is_whitespace());
    begins.then(|| (&text[..at], &text[at + with_space.len()..]))
}

fn take_apart(before: &[String], tree: &str, found: &mut Vec<(Vec<String>, Option<String>)>) {
    let tree = tree.trim();
    match tree.split_once('{') {
        Some((head, group)) => {
            let head: Vec<String> = before.iter().cloned().chain(parts(head)).collect();
            let group = group.trim_end().strip_suffix('}').unwrap_or(group);
            for branch in branches(group) {
                take_apart(&head, branch, found);
            }
        }
        None if tree.is_empty() => {}
        None => {
            let (path, alias) =
                tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name)));
            let mut path: Vec<String> = before.iter().cloned().chain(parts(path)).collect();
            if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            found.push((path, alias.map(|name| name.trim().to_owned())));
        }
    }
}

fn parts(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// What commas outside inner groups divide.
fn branches(group: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut found) = (0, 0, Vec::new());
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&group[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(&group[begin..]);
    found
}

/// Paths in the midst of code: `crate::a::b`, `super::c`.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            // `pub(in crate::a)` limits visibility, and imports nothing.
            let is_visibility = code[..at].ends_with("(in ");
            if !is_visibility && before.is_none_or(|c| !is_path(c)) {
                let path: String = code[at..].chars().take_while(|c| is_path(*c)).collect();
                // A group is a `use` item's.
                if !path.ends_with(':') {
                    found.push(parts(&path));
                }
            }
        }
    }
    found
}

/// The modules that a file declares.
fn children(code: &str) -> BTreeSet<String> {
    let items = code.split(';').filter_map(|item| split_word(item, "mod"));
    items.map(|(_, name)| name.trim().to_owned()).filter(|name| !name.contains(char::is_whitespace)).collect()
}

#[test]
fn import_cycles_of_all_forms_are_found() {
    let file = |path: &str, code: &str| File { path: path.into(), code: code.into() };
    let found = |files: &[File]| -> Vec<Vec<String>> {
        let of = |circle: &Circle| circle.entries.iter().map(|entry| entry.display().to_string()).collect();
        circles(files).iter().map(of).collect()
    };
    let two = [
        file("a/mod.rs", "mod b;\nmod c;\npub use b::B;"),
        file("a/b.rs", "use super::{c::{self, C}, d};"),
        file("a/c.rs", "fn f(b: super::B) {}"),
    ];
    assert_eq!(found(&two), [["a/b.rs", "a/c.rs"]], "by a name that is passed on");
    let folders = [
        file("lib.rs", "mod a;\nmod b;"),
        file("a/x.rs", "use crate::b::y::Y;"),
        file("a/z.rs", ""),
        file("b/y.rs", ""),
        file("b/w.rs", "fn f() { crate::a::z::g() }"),
    ];
    assert_eq!(found(&folders), [["a", "b"]], "of folders, by different files");
    let parent = [file("a/mod.rs", "mod b;\nuse b::B;\nstruct A(B);"), file("a/b.rs", "use super::A;")];
    assert_eq!(found(&parent), [["a/b.rs", "a/mod.rs"]], "of a module and its own");
    let none = [
        file("a/mod.rs", "mod b;\nmod c;\npub use b::B;\npub(crate) use c::C;"),
        file("a/b.rs", "use std::fmt;\nuse super::c;"),
        file("a/c.rs", "use crate::d::D;"),
        file("d.rs", ""),
        file("e/mod.rs", "mod f;\nuse f::F;"),
        file("e/f.rs", "pub(in crate::e) struct F;"),
    ];
    assert_eq!(found(&none), Vec::<Vec<String>>::new());
}
