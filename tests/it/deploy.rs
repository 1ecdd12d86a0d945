//! What is shipped for operators agrees with the program: alerts and the dashboard name only metrics that exist, and every alert is
//! explained.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ALERTS: &str = "deploy/prometheus/alerts.yml";
const DASHBOARD: &str = "deploy/grafana/cuckood.json";

/// Endings of series that are not part of the name which a metric is registered under.
const SUFFIXES: [&str; 5] = ["_bucket", "_sum", "_count", "_total", "_info"];

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

/// Names of series in a text, without the prefix that all have.
fn series(text: &str) -> BTreeSet<String> {
    let is_of_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let names = text.split("cuckood_").skip(1).map(|rest| {
        let end = rest.find(|letter| !is_of_name(letter)).unwrap_or(rest.len());
        rest[..end].to_owned()
    });
    names.collect()
}

#[test]
fn alerts_and_dashboard_name_only_metrics_that_exist() {
    let mut files = Vec::new();
    sources(Path::new("src"), &mut files);
    let code: String = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let exists = |name: &str| code.contains(&format!("\"{name}\""));
    for file in [ALERTS, DASHBOARD] {
        let named = series(&fs::read_to_string(file).unwrap());
        assert!(named.len() > 10, "{file} names only {named:?}");
        for name in named {
            let base = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
            let is_known = exists(&name) || base.is_some_and(exists);
            assert!(is_known, "{file} names cuckood_{name}, which is no metric");
        }
    }
}

#[test]
fn every_alert_is_explained() {
    let rules = fs::read_to_string(ALERTS).unwrap();
    let manual = fs::read_to_string("docs/OPERATIONS.md").unwrap();
    let alerts: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let explained: BTreeSet<&str> = manual
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .filter(|title| title.starts_with("Cuckood"))
        .collect();
    assert!(!alerts.is_empty());
    assert_eq!(alerts, explained);
}

#[test]
fn the_dashboard_is_valid_json() {
    let dashboard: serde_json::Value = serde_json::from_str(&fs::read_to_string(DASHBOARD).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
}
