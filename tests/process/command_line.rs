//! Output about the program's own command line: completions for shells, and manual pages.

use crate::program;
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
    let names = listed.take_while(|line| line.starts_with("  ")).filter(|line| !line.starts_with("   "));
    let names = names.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

/// All commands below the program, each with its help.
fn commands() -> Vec<(Vec<String>, String)> {
    let mut waiting = vec![Vec::new()];
    let mut found = Vec::new();
    while let Some(path) = waiting.pop() {
        let text = help(&path);
        waiting.extend(subcommands(&text).into_iter().map(|name| [path.clone(), vec![name]].concat()));
        found.push((path, text));
    }
    found
}

/// The long options that a help text describes.
fn options(help: &str) -> BTreeSet<String> {
    let described = help.lines().filter(|line| line.trim_start().starts_with('-'));
    let named = described.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
    named.map(ToOwned::to_owned).collect()
}

#[test]
fn manual_page_lists_all_options() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("share/man1");
    output(Command::new(program()).arg("man").arg(&pages));
    let mut expected = BTreeSet::new();
    for (path, help) in commands() {
        let name = format!("{}.1", [vec!["cuckood".to_owned()], path].concat().join("-"));
        let page = fs::read_to_string(pages.join(&name)).unwrap_or_else(|_| panic!("there is no {name}"));
        let text = page.replace('\\', "");
        for option in options(&help) {
            assert!(text.contains(&option), "{name} lacks {option}");
        }
        expected.insert(name);
    }
    let found = fs::read_dir(&pages).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
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
        assert!(!page.contains("a-secret") && !page.contains("a-place"), "{page}");
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
    let refused = Command::new(program()).arg("man").arg(place).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("/dev/null/man"));
}
