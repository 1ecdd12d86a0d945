//! The main use on real input: two million lines are imported over HTTP, fifty clients compete for one code, and the service is
//! killed in the middle of another import and started again. Then an hour of an ad server is replayed. `make demo` runs it.

#![allow(clippy::print_stdout, missing_docs)] // A program that prints its results; nothing here is public outside.

mod replay;
#[path = "../../tests/support/service/mod.rs"]
#[allow(dead_code, unreachable_pub)] // Shared with the tests: the demo uses a part of it.
mod service;

use serde_json::{Value, json};
use service::{Client, Service};
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

const MILLION: u64 = 1_000_000;
const CLIENTS: usize = 50;
const FOUGHT_OVER: u64 = 123_456;

fn main() -> Result<(), Box<dyn Error>> {
    let program = PathBuf::from(
        std::env::args()
            .nth(1)
            .ok_or("name the program: demo target/release/cuckood")?,
    );
    let directory = tempfile::tempdir()?;
    if std::env::args().nth(2).as_deref() != Some("replay") {
        lose_nothing(&program, directory.path())?;
    }
    let service = Service::start_ready(&program, &directory.path().join("replay"), &[]);
    replay::replay(&service.client())?;
    ensure(service.terminate().success(), "it did not end well")?;
    println!("All well.");
    Ok(())
}

/// Much is imported, one code is fought over, and a kill in the middle takes nothing back.
fn lose_nothing(program: &Path, directory: &Path) -> Result<(), Box<dyn Error>> {
    let data = directory.join("data");

    let users = write_lines(&directory.join("users.txt"), 0..MILLION, user)?;
    let half = write_lines(&directory.join("half.txt"), 0..MILLION / 2, user)?;
    let further = write_lines(&directory.join("further.txt"), MILLION..2 * MILLION, user)?;
    let codes = write_lines(&directory.join("codes.txt"), 0..MILLION, code)?;

    let service = timed("start with an empty directory", || {
        Ok(Service::start_ready(program, &data, &[]))
    })?;
    let client = service.client();
    for (path, spec) in [
        (
            "/v1/campaigns/spring",
            json!({ "capacity": 2 * MILLION, "error_rate": 0.001 }),
        ),
        (
            "/v1/campaigns/summer",
            json!({ "capacity": MILLION, "error_rate": 0.001 }),
        ),
        (
            "/v1/campaigns/autumn",
            json!({ "capacity": 1_000, "mode": "strict" }),
        ),
        ("/v1/coupons/welcome", json!({ "capacity": MILLION })),
    ] {
        expect(201, client.put(path, &spec)?)?;
    }
    timed("import 1 000 000 users into campaign spring", || {
        import(&client, "campaigns/spring", "users", &users)
    })?;
    timed("import 500 000 users into campaign summer", || {
        import(&client, "campaigns/summer", "half", &half)
    })?;
    timed("import 1 000 000 codes into coupon welcome", || {
        import(&client, "coupons/welcome", "codes", &codes)
    })?;
    expect(
        200,
        client.post("/v1/campaigns/autumn/users", &json!({ "users": [user(7)] }))?,
    )?;

    timed(
        "ask 3 000 times which of three campaigns a user may see",
        || ask_eligibility(&client),
    )?;
    let winner = timed("redeem one code from 50 clients at once", || fight(&client))?;
    println!("   the winner is {} with redemption {}", winner.0, winner.1);

    let durable = timed("import further users, and SIGKILL in the middle", || {
        kill_in_import(service, &further)
    })?;
    println!("   the service had told of {durable} lines");
    let service = timed("start again", || {
        Ok(Service::start_ready(program, &data, &[]))
    })?;
    let client = service.client();
    let import_now = client.get("/v1/imports/further")?.body;
    let kept = import_now["lines"]
        .as_u64()
        .ok_or("the import is not on record")?;
    println!("   the import is {} at {kept} lines", import_now["state"]);
    ensure(kept >= durable, "acknowledged lines are lost")?;
    timed("check everything that was acknowledged", || {
        ensure(
            present(&client, 0..MILLION + kept)? == MILLION + kept,
            "users are lost",
        )?;
        let valid = valid_codes(&client)?;
        ensure(
            valid == MILLION - 1,
            "codes are lost, or the used one is back",
        )
    })?;
    timed("see that the winner is still the only one", || {
        still_the_winner(&client, &winner)
    })?;
    timed("continue the import", || {
        import(&client, "campaigns/spring", "further", &further)
    })?;
    ensure(
        present(&client, 0..2 * MILLION)? == 2 * MILLION,
        "users are lost",
    )?;
    let ended = timed("SIGTERM", || Ok(service.terminate()))?;
    ensure(ended.success(), "it did not end well")
}

fn user(number: u64) -> String {
    format!("user-{number:08}")
}

fn code(number: u64) -> String {
    // Looks like a code; an odd factor keeps the codes different.
    format!("SPRING-{:08X}", (number as u32).wrapping_mul(0x9E37_79B1))
}

fn write_lines(
    path: &Path,
    numbers: std::ops::Range<u64>,
    line: fn(u64) -> String,
) -> Result<PathBuf, Box<dyn Error>> {
    let mut file = BufWriter::new(File::create(path)?);
    for number in numbers {
        writeln!(file, "{}", line(number))?;
    }
    file.flush()?;
    Ok(path.into())
}

fn timed<T>(
    what: &str,
    work: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    let began = Instant::now();
    let done = work().map_err(|error| format!("{what}: {error}"))?;
    println!("{:>9.3} s  {what}", began.elapsed().as_secs_f64());
    Ok(done)
}

fn ensure(right: bool, otherwise: &str) -> Result<(), Box<dyn Error>> {
    if right { Ok(()) } else { Err(otherwise.into()) }
}

fn expect(status: u16, answer: service::Answer) -> Result<Value, Box<dyn Error>> {
    ensure(answer.status == status, &format!("{answer:?}"))?;
    Ok(answer.body)
}

fn import(client: &Client, into: &str, id: &str, file: &Path) -> Result<(), Box<dyn Error>> {
    let body = expect(
        200,
        client.import(&format!("/v1/{into}/imports?id={id}"), File::open(file)?)?,
    )?;
    ensure(
        body["state"] == "done" && body["rejected"] == 0,
        &body.to_string(),
    )?;
    let (lines, seconds) = (
        body["lines"].as_u64().unwrap_or(0),
        body["seconds"].as_f64().unwrap_or(0.0),
    );
    println!(
        "   {lines} lines durable, {:.0} a second",
        lines as f64 / seconds.max(1e-3)
    );
    Ok(())
}

/// Three thousand users: everyone is in spring, the first half in summer, one in autumn.
fn ask_eligibility(client: &Client) -> Result<(), Box<dyn Error>> {
    let mut surprises = 0;
    for asked in 0..3_000 {
        let number = asked * 333 + 7;
        let body = json!({ "user": user(number), "campaigns": ["autumn", "summer", "spring"] });
        let answer = expect(200, client.post("/v1/eligibility", &body)?)?;
        let wanted = match number {
            7 => "autumn",
            0..500_000 => "summer",
            _ => "spring",
        };
        // A compact filter may accept a user who was never added, but always accepts a member.
        ensure(
            answer["eligible"]
                .as_array()
                .is_some_and(|found| found.len() == 1),
            &answer.to_string(),
        )?;
        surprises += u32::from(answer["eligible"][0] != wanted);
    }
    println!("   {surprises} wrong yes (about 1.5 expected at 0.1 %)");
    ensure(surprises < 15, "far too many wrong answers")
}

fn fight(client: &Client) -> Result<(String, String), Box<dyn Error>> {
    let answers: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let client = client.another();
                scope.spawn(move || {
                    let reference = format!("order-{number}");
                    let body = json!({ "code": code(FOUGHT_OVER), "reference": reference });
                    client
                        .post("/v1/coupons/welcome/redemptions", &body)
                        .map(|answer| (reference, answer))
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join()).collect()
    });
    let mut winners = Vec::new();
    for answer in answers {
        let (reference, answer) = answer.map_err(|_| "a client panicked")??;
        match answer.status {
            201 => winners.push((
                reference,
                answer.body["id"].as_str().unwrap_or_default().to_string(),
            )),
            _ => ensure(
                answer.body["code"] == "code-redeemed",
                &format!("{answer:?}"),
            )?,
        }
    }
    ensure(winners.len() == 1, &format!("{} winners", winners.len()))?;
    Ok(winners.remove(0))
}

/// Kills the service once it has reported a third of the lines; returns the last number that it reported.
fn kill_in_import(service: Service, file: &Path) -> Result<u64, Box<dyn Error>> {
    let client = service.client();
    let (uploading, body) = (client.another(), File::open(file)?);
    let upload = std::thread::spawn(move || {
        uploading.import("/v1/campaigns/spring/imports?id=further", body)
    });
    let durable = loop {
        let lines = client.get("/v1/imports/further")?.body["lines"]
            .as_u64()
            .unwrap_or(0);
        if lines > MILLION / 3 {
            break lines;
        }
        ensure(
            !upload.is_finished(),
            "the import ended before it could be killed",
        )?;
    };
    service.kill();
    let ended = upload.join().map_err(|_| "the upload panicked")?;
    ensure(
        !matches!(ended, Ok(ref answer) if answer.status == 200),
        "the import was not in the middle",
    )?;
    Ok(durable)
}

fn present(client: &Client, numbers: std::ops::Range<u64>) -> Result<u64, Box<dyn Error>> {
    count(
        client,
        "/v1/campaigns/spring/users/check",
        "users",
        "present",
        numbers,
        user,
    )
}

fn valid_codes(client: &Client) -> Result<u64, Box<dyn Error>> {
    count(
        client,
        "/v1/coupons/welcome/codes/check",
        "codes",
        "valid",
        0..MILLION,
        code,
    )
}

fn count(
    client: &Client,
    path: &str,
    member: &str,
    answer: &str,
    numbers: std::ops::Range<u64>,
    item: fn(u64) -> String,
) -> Result<u64, Box<dyn Error>> {
    let numbers: Vec<u64> = numbers.collect();
    let mut found = 0;
    for chunk in numbers.chunks(10_000) {
        let items: Vec<String> = chunk.iter().map(|&number| item(number)).collect();
        let body = expect(200, client.post(path, &json!({ member: items }))?)?;
        let answers = body[answer].as_array().ok_or("no list")?;
        found += answers.iter().filter(|is| **is == true).count() as u64;
    }
    Ok(found)
}

fn still_the_winner(client: &Client, winner: &(String, String)) -> Result<(), Box<dyn Error>> {
    let path = "/v1/coupons/welcome/redemptions";
    let again = json!({ "code": code(FOUGHT_OVER), "reference": winner.0 });
    let body = expect(200, client.post(path, &again)?)?;
    ensure(body["id"] == *winner.1, "another redemption")?;
    for number in 0..CLIENTS {
        let reference = format!("order-{number}");
        if reference != winner.0 {
            let late = json!({ "code": code(FOUGHT_OVER), "reference": reference });
            expect(409, client.post(path, &late)?)?;
        }
    }
    Ok(())
}
