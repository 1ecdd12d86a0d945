//! The cost of growth: bits per user and lookup time of filters of five capacities that grow up to a thousandfold, as a picture: `cargo
//! bench -p cuckood-filter --bench growth [-- ITEMS_MAX] > docs/pictures/growth.svg`.

// A benchmark prints its results and stops at the first error.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use cuckood_filter::{Digest, Filter, Growth, Layout, Mode};
use std::hint::black_box;
use std::time::Instant;

const ERROR_RATE: f64 = 0.001;
const CAPACITIES: [u64; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
const COLORS: [&str; 5] = ["#1b6ca8", "#2a9d8f", "#e9a820", "#d1495b", "#6d597a"];

/// Points of a curve for each doubling.
const POINTS: f64 = 8.0;

/// Checks of a point, at least.
const CHECKS: usize = 200_000;

struct Point {
    factor: f64,
    bits: f64,
    nanoseconds: f64,
}

fn main() {
    let most = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .next()
        .unwrap_or(20_000_000);
    let curves: Vec<Vec<Point>> = CAPACITIES
        .iter()
        .map(|&capacity| curve(capacity, most))
        .collect();
    let width = 900.0;
    let height = 820.0;
    println!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">"#
    );
    println!(r#"<rect width="{width}" height="{height}" fill="white"/>"#);
    let bits = Plot {
        top: 40.0,
        title: "Bits per user, at an error rate of 0.1%",
        most: 50.0,
        step: 10.0,
    };
    bits.draw(&curves, |point| point.bits);
    let slowest = curves
        .iter()
        .flatten()
        .map(|point| point.nanoseconds)
        .fold(0.0, f64::max);
    let step = (slowest / 5.0).ceil();
    let times = Plot {
        top: 430.0,
        title: "Nanoseconds per user of a batched check",
        most: 5.0 * step,
        step,
    };
    times.draw(&curves, |point| point.nanoseconds);
    for (number, (capacity, color)) in CAPACITIES.iter().zip(COLORS).enumerate() {
        let x = 80.0 + 160.0 * number as f64;
        println!(
            r#"<line x1="{x}" x2="{}" y1="800" y2="800" stroke="{color}" stroke-width="3"/>"#,
            x + 24.0
        );
        println!(
            r#"<text x="{}" y="804">capacity {capacity}</text>"#,
            x + 30.0
        );
    }
    println!("</svg>");
}

fn digest(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

fn curve(capacity: u64, most: u64) -> Vec<Point> {
    let layout = Layout::compact(capacity, ERROR_RATE, Growth::Auto).unwrap();
    let mut filter = Filter::new(Mode::Compact, layout, Growth::Auto, None);
    let mut held = 0;
    let mut points = Vec::new();
    for step in 0.. {
        let factor = (f64::from(step) / POINTS).exp2();
        let items = (capacity as f64 * factor) as u64;
        if factor > 1_000.0 || items > most {
            break;
        }
        for from in (held..items).step_by(1 << 16) {
            let digests: Vec<Digest> = (from..items.min(from + (1 << 16))).map(digest).collect();
            filter.insert_many(&digests, false).unwrap();
        }
        held = items;
        let stats = filter.reader().view(0).stats();
        eprintln!("{capacity} x {factor:.2}: {} tables", stats.segments.len());
        let bits = stats.memory_bytes as f64 * 8.0 / items as f64;
        points.push(Point {
            factor,
            bits,
            nanoseconds: batched_check(&filter, items),
        });
    }
    points
}

/// The time of a check, half of the users being members.
fn batched_check(filter: &Filter, items: u64) -> f64 {
    let users: Vec<Digest> = (0..items.min(1 << 20))
        .map(|number| digest(number * 2 % (2 * items)))
        .collect();
    let reader = filter.reader();
    let mut found = Vec::new();
    let passes = CHECKS.div_ceil(users.len());
    let rounds = (0..3).map(|_| {
        let since = Instant::now();
        for users in (0..passes).flat_map(|_| users.chunks(1_024)) {
            reader.view(0).contains_many(users, &mut found);
            black_box(&found);
        }
        since.elapsed().as_nanos() as f64 / (passes * users.len()) as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}

/// A part of the picture, over growth from 1 to 1,000 on a logarithmic scale.
struct Plot {
    top: f64,
    title: &'static str,
    most: f64,
    step: f64,
}

impl Plot {
    const LEFT: f64 = 80.0;
    const WIDTH: f64 = 780.0;
    const HEIGHT: f64 = 300.0;

    fn x(factor: f64) -> f64 {
        Self::LEFT + Self::WIDTH * factor.log10() / 3.0
    }

    fn y(&self, value: f64) -> f64 {
        self.top + Self::HEIGHT * (1.0 - value / self.most)
    }

    fn draw(&self, curves: &[Vec<Point>], value: impl Fn(&Point) -> f64) {
        println!(
            r#"<text x="{}" y="{}" font-size="16">{}</text>"#,
            Self::LEFT,
            self.top - 12.0,
            self.title
        );
        let mut line = 0.0;
        while line <= self.most {
            let y = self.y(line);
            println!(
                r##"<line x1="{}" x2="{}" y1="{y:.1}" y2="{y:.1}" stroke="#ddd"/>"##,
                Self::LEFT,
                Self::LEFT + Self::WIDTH
            );
            println!(
                r#"<text x="{}" y="{:.1}" text-anchor="end">{line}</text>"#,
                Self::LEFT - 8.0,
                y + 4.0
            );
            line += self.step;
        }
        for factor in [1.0, 10.0, 100.0, 1_000.0] {
            let x = Self::x(factor);
            let bottom = self.top + Self::HEIGHT;
            println!(
                r##"<line x1="{x:.1}" x2="{x:.1}" y1="{}" y2="{bottom}" stroke="#ddd"/>"##,
                self.top
            );
            println!(
                r#"<text x="{x:.1}" y="{}" text-anchor="middle">{factor} ×</text>"#,
                bottom + 18.0
            );
        }
        for (points, color) in curves.iter().zip(COLORS) {
            let path: Vec<String> = points
                .iter()
                .map(|point| format!("{:.1},{:.1}", Self::x(point.factor), self.y(value(point))))
                .collect();
            println!(
                r#"<polyline fill="none" stroke="{color}" stroke-width="2" points="{}"/>"#,
                path.join(" ")
            );
        }
    }
}
