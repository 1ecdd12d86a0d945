//! Files for operators agree with the program: alerts and the dashboard name only existing metrics, every alert has a runbook entry, and
//! units, image, chart and package only set existing settings.

use regex_lite::Regex;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ALERTS: &str = "deploy/prometheus/alerts.yml";
const DASHBOARD: &str = "deploy/grafana/cuckood.json";

/// How code registers a metric, and the suffixes of its series. The formatter may put the name on a separate line.
const REGISTRATIONS: [(&str, &[&str]); 7] = [
    (r#"\.(?:gauges?|labelled)\(\s*"([a-z0-9_]+)""#, &[""]),
    (r#"\beach\(\s*"([a-z0-9_]+)""#, &[""]),
    (r#"\.counter\(\s*"([a-z0-9_]+)""#, &["_total"]),
    // A row of a table: name, help, value.
    (r#"[({;]\s*"([a-z0-9_]+)",\s*"[A-Z0-9]"#, &["", "_total"]),
    (
        r#"[({;]\s*"([a-z0-9_]+)",\s*"[^"]*" => [a-z_]+: Histogram"#,
        &["_bucket", "_sum", "_count"],
    ),
    // What kind it is, is said elsewhere.
    (
        r#"\.(?:register|encode_descriptor)\(\s*"([a-z0-9_]+)""#,
        &["", "_total", "_bucket", "_sum", "_count", "_info"],
    ),
    (
        r#"let name = "([a-z0-9_]+)";"#,
        &["", "_total", "_bucket", "_sum", "_count"],
    ),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Names of series in a text: ours without the prefix that they have, and the standard ones of a process.
fn series(text: &str) -> BTreeSet<String> {
    let ours = Regex::new(r"\bcuckood_([a-z0-9_]+)").unwrap();
    let standard = Regex::new(r"\b(process_[a-z0-9_]+)").unwrap();
    let names = ours.captures_iter(text).chain(standard.captures_iter(text));
    names.map(|name| name[1].to_owned()).collect()
}

/// The series of all metrics that code registers, without the prefix that all have.
fn registered(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (registration, suffixes) in REGISTRATIONS {
        for name in Regex::new(registration).unwrap().captures_iter(code) {
            found.extend(
                suffixes
                    .iter()
                    .map(|suffix| format!("{}{suffix}", &name[1])),
            );
        }
    }
    found
}

#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let mut files = Vec::new();
    for root in ["src", "crates"] {
        sources(Path::new(root), &mut files);
    }
    let texts = files.iter().map(|path| fs::read_to_string(path).unwrap());
    // Tests register other metrics.
    let code: String = texts
        .map(|text| {
            text.split("#[cfg(test)]\nmod tests")
                .next()
                .unwrap()
                .to_owned()
        })
        .collect();
    let series_of_ours = registered(&code);
    assert!(series_of_ours.len() > 100, "only {series_of_ours:?}");
    for file in [ALERTS, DASHBOARD] {
        let named = series(&fs::read_to_string(file).unwrap());
        assert!(named.len() > 10, "{file} names only {named:?}");
        for name in named {
            assert!(
                series_of_ours.contains(&name),
                "{file} names cuckood_{name}, which is no metric"
            );
        }
    }
}

#[test]
fn every_alert_has_runbook_entry() {
    let rules = fs::read_to_string(ALERTS).unwrap();
    let manual = fs::read_to_string("docs/OPERATIONS.md").unwrap();
    let alerts: BTreeSet<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    let explained: BTreeSet<&str> = manual
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .filter(|title| title.starts_with("Cuckood"))
        .collect();
    assert!(!alerts.is_empty());
    assert_eq!(alerts, explained);
}

/// All files that run the program on a system.
fn shipped() -> Vec<(PathBuf, String)> {
    let mut folders = vec![PathBuf::from("deploy")];
    let mut files = vec![PathBuf::from("Dockerfile")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                // What Python leaves where it has run.
                true if path.ends_with("__pycache__") => {}
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files
        .into_iter()
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect()
}

#[test]
fn shipped_files_use_existing_settings() {
    let defaults: toml::Table = fs::read_to_string("config.toml").unwrap().parse().unwrap();
    let mut count = 0;
    for (path, text) in shipped() {
        for rest in text.split("CUCKOOD__").skip(1) {
            let is_of_name = |letter: char| {
                letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_'
            };
            let end = rest
                .find(|letter| !is_of_name(letter))
                .unwrap_or(rest.len());
            let (section, key) = rest[..end].split_once("__").unwrap();
            let is_setting = defaults
                .get(&section.to_lowercase())
                .and_then(|s| s.get(key.to_lowercase()));
            assert!(
                is_setting.is_some(),
                "{}: CUCKOOD__{} is no setting",
                path.display(),
                &rest[..end]
            );
            count += 1;
        }
    }
    assert!(count > 8, "only {count} were found");
}

/// `make version` sets all of them.
#[test]
fn version_is_consistent() {
    let version = env!("CARGO_PKG_VERSION");
    // A lock file of npm names its package after its own version.
    let package =
        format!("\n      \"version\": \"{version}\",\n      \"license\": \"MIT OR Apache-2.0\",\n");
    let lock = fs::read_to_string("Cargo.lock").unwrap();
    for name in [
        "cuckood",
        "cuckood-filter",
        "cuckood-log",
        "cuckood-nats",
        "cuckood-state",
    ] {
        let line = format!("\nname = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&line), "Cargo.lock has no{line}");
    }
    for (file, line) in [
        ("Cargo.toml", format!("\nversion = \"{version}\"\n")),
        (
            "clients/python/pyproject.toml",
            format!("\nversion = \"{version}\"\n"),
        ),
        (
            "clients/typescript/package.json",
            format!("\n  \"version\": \"{version}\",\n"),
        ),
        (
            "clients/typescript/package-lock.json",
            format!("\n  \"version\": \"{version}\",\n"),
        ),
        ("clients/typescript/package-lock.json", package.clone()),
        (
            "console/package.json",
            format!("\n  \"version\": \"{version}\",\n"),
        ),
        (
            "console/package-lock.json",
            format!("\n  \"version\": \"{version}\",\n"),
        ),
        ("console/package-lock.json", package),
        (
            "openapi/openapi.json",
            format!("\n    \"version\": \"{version}\"\n"),
        ),
        (
            "deploy/helm/cuckood/Chart.yaml",
            format!("\nversion: {version}\n"),
        ),
        (
            "deploy/helm/cuckood/Chart.yaml",
            format!("\nappVersion: {version}\n"),
        ),
        ("deploy/debian/changelog", format!("cuckood ({version}-1) ")),
        ("CHANGELOG.md", format!("\n## {version} ")),
        ("README.md", format!(" cuckood:{version}\n")),
        ("README.zh-CN.md", format!(" cuckood:{version}\n")),
    ] {
        assert!(
            fs::read_to_string(file).unwrap().contains(&line),
            "{file} does not contain {line:?}"
        );
    }
}

/// Each step can also run on a developer's machine.
#[test]
fn workflows_run_only_makefile_targets() {
    let makefile = fs::read_to_string("Makefile").unwrap();
    let mut count = 0;
    for entry in fs::read_dir(".github/workflows").unwrap() {
        let workflow = fs::read_to_string(entry.unwrap().path()).unwrap();
        for command in workflow
            .lines()
            .filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("run: "))
        {
            let target = command
                .strip_prefix("make ")
                .unwrap_or_else(|| panic!("{command}"));
            let target = target.split(' ').next().unwrap();
            assert!(
                makefile.contains(&format!("\n{target}: ")),
                "there is no target {target}"
            );
            count += 1;
        }
    }
    assert!(count > 1, "only {count} were found");
}

#[test]
fn image_and_chart_agree_on_user() {
    let image = fs::read_to_string("Dockerfile").unwrap();
    let pod = fs::read_to_string("deploy/helm/cuckood/templates/_helpers.tpl").unwrap();
    let (user, group) = image
        .lines()
        .find_map(|line| line.strip_prefix("USER "))
        .unwrap()
        .split_once(':')
        .unwrap();
    assert!(pod.contains(&format!("runAsUser: {user}\n")));
    assert!(
        pod.contains(&format!("runAsGroup: {group}\n"))
            && pod.contains(&format!("fsGroup: {group}\n"))
    );
}

#[test]
fn dashboard_is_valid_json() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(DASHBOARD).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
}
