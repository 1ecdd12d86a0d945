#!/usr/bin/env python3
"""Runs `helm lint` and `helm template` by Helm's library on PyPI, for check.sh on machines without the program."""

import argparse
import sys
from pathlib import Path

from helm_python import Chart, HelmError, lint, parse_set_string, values_from_yaml


def merged(base: dict, other: dict) -> dict:
    """Return the values of both; those of the other one take precedence."""
    both = {**base, **other}
    nested = {key for key in base.keys() & other.keys() if isinstance(base[key], dict) and isinstance(other[key], dict)}
    return both | {key: merged(base[key], other[key]) for key in nested}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--values", type=Path)
    parser.add_argument("--set", default="")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--kube-version")
    parser.add_argument("command", choices=["lint", "template"])
    parser.add_argument("release", nargs="?", default="shop")
    parser.add_argument("chart")
    arguments = parser.parse_intermixed_args()
    values = values_from_yaml(arguments.values.read_text()) if arguments.values else {}
    values = merged(values, parse_set_string(arguments.set) if arguments.set else {})
    if arguments.command == "lint":
        report = lint(arguments.chart, values, strict=arguments.strict, kube_version=arguments.kube_version)
        print(*(message["error"] for message in report["messages"]), sep="\n")
        sys.exit("\n".join(report["errors"]) or None)
    chart = Chart.load(arguments.chart)
    chart.validate_schema(values)
    for name, manifest in chart.render(values, name=arguments.release).items():
        if name.endswith(".yaml") and manifest.strip():
            print(f"---\n{manifest}")


try:
    main()
except HelmError as error:
    sys.exit(f"Error: {error}")
