//! `POST …/codes/generate`: random codes, derived from the coupon's secret and the request, never stored.
//!
//! Candidates are added in batches, each by one command. Its stored outcome shows a repeated request which of them were new. So a repeat
//! returns the same codes, also after a failure between two batches. A candidate that the pool already holds is skipped.
//!
//! The seed of a request with an idempotency key depends on the *period* in which it arrived. A period is as long as every stored outcome
//! remains. Once an outcome is deleted, its period is over, so the same request has other candidates: it never adds a code again that was
//! withdrawn since. A repeat finds the period by the time at which the first outcome was stored.

use super::call::{Call, Decided, Resource, Write, hash_of};
use super::request::body::StreamedBody;
use super::request::json;
use super::response::outgoing::{STREAM_BYTES, counted};
use super::response::success::LineFormat;
use super::response::{Code, HandlerResult, Problem, mark_replayed};
use crate::budget::BudgetShare;
use crate::turn::Turn;
use axum::extract::{Path, Request};
use axum::response::Response;
use cuckood_filter::{Digest, Growth};
use cuckood_log::journal::random;
use cuckood_state::domain::{
    Command, Digests, Inserted, ItemOutcome, Kind, Outcome, Target, Timestamp,
};
use cuckood_state::{FilterView, Lookup};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::ops::Range;
use std::sync::Arc;
use utoipa::ToSchema;

const KIND: Kind = Kind::Coupon;

/// The characters of a `#`: no vowels (nor Y), so no words, and no 0 and 1.
const ALPHABET: &[u8; 28] = b"23456789BCDFGHJKLMNPQRSTVWXZ";

/// The characters of 0.1.0, for the repeat of a request that a node of that version has executed.
const ALPHABET_BEFORE: &[u8; 32] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZ";

/// Maximum number of codes per request.
const COUNT_MAX: u32 = 1_000_000;

/// Maximum length of a pattern in bytes.
const PATTERN_BYTES_MAX: usize = 128;

/// Maximum number of `#` in a pattern.
const PLACES_MAX: usize = 32;

/// Minimum number of matching guesses per valid code.
const GUESSES_PER_HIT: u128 = 1_000_000;

/// The most `#` that are required: 64 bits of count and 20 bits of guesses take no more.
const REQUIRED_MAX: u32 = 18;

/// Candidates per command.
const BATCH: u64 = 4_096;

/// Commands of a request that need not add anything. In a compact pool with the highest error rate, two thirds of the candidates collide.
const SPARE_BATCHES: u64 = 256;

/// The columns of the response as CSV.
const COLUMNS: &str = "code";

/// Codes to generate.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"count": 10_000, "pattern": "SUMMER-####-####"}))]
struct CodesToGenerate {
    /// Number of codes.
    #[schema(minimum = 1, maximum = 1_000_000)]
    count: u32,
    /// 1 to 128 bytes without control characters. Each `#`, at most 32, becomes one of the 28 characters
    /// `23456789BCDFGHJKLMNPQRSTVWXZ`.
    #[schema(min_length = 1, max_length = 128)]
    pattern: String,
}

/// A line of the response.
#[derive(Serialize)]
struct GeneratedCode {
    code: String,
}

impl CodesToGenerate {
    fn check_form(&self) -> Result<(), Problem> {
        let Self { count, pattern } = self;
        Problem::unless_within("/count", *count, 1..=COUNT_MAX)?;
        let is_text = !pattern.chars().any(char::is_control);
        if !is_text || !(1..=PATTERN_BYTES_MAX).contains(&pattern.len()) {
            let detail =
                format!("expected 1 to {PATTERN_BYTES_MAX} bytes without control characters");
            return Err(Problem::invalid_at("/pattern", detail));
        }
        Ok(())
    }

    /// Rejects a pattern whose codes could be guessed. All `valid` codes of the pool may have it.
    fn check_guessing(&self, valid: u64) -> Result<(), Problem> {
        let places = self.pattern.matches('#').count();
        let required = required_places(valid);
        if !(required..=PLACES_MAX).contains(&places) {
            let detail = format!(
                "expected {required} to {PLACES_MAX} '#' for {valid} codes, so that one guess in a million is valid at \
                 most; found {places}"
            );
            return Err(Problem::invalid_at("/pattern", detail));
        }
        Ok(())
    }
}

/// Returns how many `#` a pattern has at least for this number of valid codes.
fn required_places(valid: u64) -> usize {
    let guesses = u128::from(valid) * GUESSES_PER_HIT;
    let is_enough = |places: &u32| (ALPHABET.len() as u128).pow(*places) >= guesses;
    (1..REQUIRED_MAX).find(is_enough).unwrap_or(REQUIRED_MAX) as usize
}

/// The endless sequence of candidates of one request.
#[derive(Clone)]
struct Candidates {
    seed: [u8; 32],
    alphabet: &'static [u8],
    pattern: Arc<str>,
    /// The period of its seed; `None` without an idempotency key, and as 0.1.0 has seeded requests.
    period: Option<u64>,
}

impl Candidates {
    fn code(&self, index: u64) -> String {
        let mut random = RandomCharacters {
            candidates: self,
            index,
            block: 0,
            bytes: self.block(index, 0),
            taken: 0,
        };
        let mut code = String::with_capacity(self.pattern.len());
        for c in self.pattern.chars() {
            code.push(if c == '#' { random.take_character() } else { c });
        }
        code
    }

    /// The random bytes of a candidate, in blocks. The first one has no number: that of 0.1.0.
    fn block(&self, index: u64, block: u64) -> [u8; 32] {
        let mut hash = Sha256::new()
            .chain_update(self.seed)
            .chain_update(index.to_le_bytes());
        if block > 0 {
            hash.update(block.to_le_bytes());
        }
        hash.finalize().into()
    }

    /// Returns the digests of candidates.
    ///
    /// # Errors
    /// If nothing is left of a code after normalization. Its places always are.
    async fn digests(
        &self,
        view: &FilterView,
        indexes: Range<u64>,
    ) -> Result<Vec<Digest>, Problem> {
        let mut turn = Turn::default();
        let mut digests = Vec::with_capacity((indexes.end - indexes.start) as usize);
        for index in indexes {
            let code = self.code(index);
            digests.push(view.digest(&code).map_err(Problem::at("/pattern"))?);
            turn.work(code.len()).await;
        }
        Ok(digests)
    }

    /// The part of the request under which the outcome of a batch is stored. A later request with the same key has other parts.
    fn part(&self, batch: u64) -> String {
        match (batch, self.period) {
            (0, _) => String::new(),
            (batch, None) => batch.to_string(),
            (batch, Some(period)) => format!("{batch} {period}"),
        }
    }
}

/// The endless sequence of random characters of one candidate.
struct RandomCharacters<'a> {
    candidates: &'a Candidates,
    index: u64,
    block: u64,
    bytes: [u8; 32],
    /// Bytes of the block that are used up.
    taken: usize,
}

impl RandomCharacters<'_> {
    /// Takes the next character. Each one of the alphabet is as likely as the others: bytes after the last multiple of its length are skipped.
    fn take_character(&mut self) -> char {
        let characters = self.candidates.alphabet.len();
        let usable = 256 - 256 % characters;
        loop {
            let byte = usize::from(self.take_byte());
            if byte < usable {
                return char::from(self.candidates.alphabet[byte % characters]);
            }
        }
    }

    fn take_byte(&mut self) -> u8 {
        if self.taken == self.bytes.len() {
            self.block += 1;
            self.bytes = self.candidates.block(self.index, self.block);
            self.taken = 0;
        }
        self.taken += 1;
        self.bytes[self.taken - 1]
    }
}

/// The codes that a request has generated.
struct Generated {
    candidates: Candidates,
    /// The candidates that the request has added.
    chosen: Vec<u64>,
    /// Whether an earlier request has added all of them.
    replayed: bool,
}

/// A request that generates codes.
struct Generation<'a> {
    call: &'a Call<Write>,
    coupon: &'a str,
    view: &'a FilterView,
    wanted: &'a CodesToGenerate,
    /// The idempotency key of the request, or a random value: it distinguishes the request from all others of its caller.
    identity: &'a [u8],
}

impl Generation<'_> {
    async fn run(&self) -> Result<Generated, Problem> {
        if !self.call.may_repeat() {
            self.admit(self.items())?;
            return self.add(self.candidates(None), false).await;
        }
        let period_seconds = self
            .call
            .api
            .engine
            .idempotency_retention_min_seconds()
            .await?;
        let mut is_second_try = false;
        loop {
            // Counted before the look-up: if nothing is stored, none of the items is the request's own.
            let items = self.items();
            let current = self.candidates(Some(period_of(self.now(), period_seconds)));
            let earlier = self.earlier(&current, period_seconds).await?;
            let is_repeat = earlier.is_some();
            if !is_repeat {
                self.admit(items)?;
            }
            match self.add(earlier.unwrap_or(current), is_repeat).await {
                // Another node has executed the request in another period. This one has applied that by now.
                Err(problem)
                    if problem.code == Code::IdempotencyKeyReused
                        && !is_repeat
                        && !is_second_try =>
                {
                    is_second_try = true;
                }
                added => return added,
            }
        }
    }

    /// The time that the next entry has at least.
    fn now(&self) -> Timestamp {
        let engine = &self.call.api.engine;
        engine.now().max(engine.logged_at())
    }

    /// Items of the pool.
    fn items(&self) -> u64 {
        self.view.describe(self.call.api.engine.now()).stats.items
    }

    /// Rejects a new request whose codes could be guessed among the pool's items, or can't fit.
    fn admit(&self, items: u64) -> Result<(), Problem> {
        let valid = items + u64::from(self.wanted.count);
        self.wanted.check_guessing(valid)?;
        if self.view.spec.growth == Growth::Fixed && valid > self.view.spec.capacity {
            return Err(Code::FilterFull.into());
        }
        Ok(())
    }

    /// Derives the candidates from the coupon's secret and the request.
    fn candidates(&self, period: Option<u64>) -> Candidates {
        let CodesToGenerate { count, pattern } = self.wanted;
        let count = count.to_le_bytes();
        let name = self.call.caller.name();
        let secret = &self.view.secret.as_bytes()[..];
        let parts = [
            secret,
            pattern.as_bytes(),
            &count,
            name.as_bytes(),
            self.identity,
        ];
        let period_bytes = period.map(u64::to_le_bytes);
        let seed = hash_of(
            parts
                .into_iter()
                .chain(period_bytes.as_ref().map(|bytes| &bytes[..])),
        );
        Candidates {
            seed,
            alphabet: ALPHABET,
            pattern: pattern.as_str().into(),
            period,
        }
    }

    /// The candidates that a node of 0.1.0 derives from the request.
    fn candidates_before(&self) -> Candidates {
        Candidates {
            alphabet: ALPHABET_BEFORE,
            ..self.candidates(None)
        }
    }

    /// Finds the candidates of the stored request that this one repeats.
    ///
    /// # Errors
    /// `idempotency-key-reused` if another request is stored.
    async fn earlier(
        &self,
        current: &Candidates,
        period_seconds: u64,
    ) -> Result<Option<Candidates>, Problem> {
        let stored_at = match self
            .recorded(current, 0, u64::from(self.wanted.count))
            .await?
        {
            Lookup::New => return Ok(None),
            Lookup::Answered(_) => return Ok(Some(current.clone())),
            Lookup::Reused(stored_at) => stored_at,
        };
        let stored_in = period_of(stored_at, period_seconds);
        // It may have arrived just before, or on a node whose clock is ahead, or at a node that runs 0.1.0.
        for candidates in [
            self.candidates(Some(stored_in)),
            self.candidates(Some(stored_in.saturating_sub(1))),
            self.candidates(Some(stored_in + 1)),
            self.candidates_before(),
        ] {
            match self
                .recorded(&candidates, 0, u64::from(self.wanted.count))
                .await?
            {
                Lookup::New => return Ok(None),
                Lookup::Answered(_) => return Ok(Some(candidates)),
                Lookup::Reused(_) => tokio::task::yield_now().await,
            }
        }
        Err(Code::IdempotencyKeyReused.into())
    }

    /// The command that adds a batch of candidates while `missing` codes are missing.
    async fn command(
        &self,
        candidates: &Candidates,
        batch: u64,
        missing: u64,
    ) -> Result<Command, Problem> {
        let start = batch * BATCH;
        let indexes = start..start + missing.min(BATCH);
        let digests = candidates.digests(self.view, indexes).await?;
        Ok(Command::Insert {
            target: Target(self.view.id),
            digests: Digests(digests),
            if_absent: true,
            revive: false,
        })
    }

    /// Looks up what is stored for a batch.
    async fn recorded(
        &self,
        candidates: &Candidates,
        batch: u64,
        missing: u64,
    ) -> Result<Lookup, Problem> {
        let command = self.command(candidates, batch, missing).await?;
        self.call
            .recorded(
                Resource::Filter(KIND, self.coupon),
                &candidates.part(batch),
                command,
            )
            .await
    }

    /// Adds candidates until the pool has got as many codes as the request wants.
    async fn add(&self, candidates: Candidates, is_repeat: bool) -> Result<Generated, Problem> {
        let count = u64::from(self.wanted.count);
        let batches_max = 4 * count.div_ceil(BATCH) + SPARE_BATCHES;
        let chosen = Vec::with_capacity(self.wanted.count as usize);
        let mut generated = Generated {
            candidates,
            chosen,
            replayed: true,
        };
        let mut is_repeat = is_repeat;
        for batch in 0..batches_max {
            let missing = count - generated.chosen.len() as u64;
            let decided = self
                .decide(&generated.candidates, batch, missing, is_repeat)
                .await?;
            is_repeat |= decided.replayed;
            generated.replayed &= decided.replayed;
            let Decided {
                outcome: Outcome::Inserted(Inserted { outcomes, .. }),
                ..
            } = &decided
            else {
                return Err(decided.unexpected());
            };
            let indexes = (batch * BATCH..).zip(outcomes);
            let added = indexes.filter(|(_, outcome)| **outcome == ItemOutcome::Added);
            generated.chosen.extend(added.map(|(index, _)| index));
            if generated.chosen.len() as u64 == count {
                return Ok(generated);
            }
            tokio::task::yield_now().await;
        }
        Err(Problem::new(
            Code::FilterFull,
            "nearly all new codes collide with codes of this compact coupon",
        ))
    }

    /// Decides which candidates of a batch are new. A repeat executes a batch only if no attempt before has: its outcome is not stored,
    /// while that of the first batch still is. Outcomes are deleted in the order in which they were stored.
    async fn decide(
        &self,
        candidates: &Candidates,
        batch: u64,
        missing: u64,
        is_repeat: bool,
    ) -> Result<Decided, Problem> {
        if is_repeat {
            match self.recorded(candidates, batch, missing).await? {
                Lookup::Answered(outcome) => {
                    return Ok(Decided {
                        outcome,
                        replayed: true,
                    });
                }
                Lookup::Reused(_) => return Err(Code::IdempotencyKeyReused.into()),
                Lookup::New => {}
            }
            let first = self
                .recorded(candidates, 0, u64::from(self.wanted.count))
                .await?;
            if !matches!(first, Lookup::Answered(_)) {
                let detail =
                    "the stored outcome of this request has just expired; retry it as a new one";
                return Err(Problem::new(Code::Overloaded, detail));
            }
        }
        let command = self.command(candidates, batch, missing).await?;
        let part = candidates.part(batch);
        self.call
            .submit_part(Resource::Filter(KIND, self.coupon), &part, command)
            .await
    }
}

/// The period of a time.
fn period_of(at: Timestamp, seconds: u64) -> u64 {
    at.0 / seconds.saturating_mul(1_000).max(1)
}

/// Generate codes
///
/// The codes are added to the coupon and durable before the response starts; it has one code per line. They are derived from a secret
/// and the request, and never stored: a repeat with the same `Idempotency-Key` returns the same codes. Without that header, a lost
/// response can't be requested again, and its codes remain in the pool. If the request fails in between, the codes that were added
/// remain; a repeat with the same key continues. It adds no code again that was withdrawn. After `idempotency.retention`, it is a new
/// request with new codes.
#[utoipa::path(
    post, path = "/v1/coupons/{coupon}/codes/generate", operation_id = "generate_codes", tag = "codes",
    request_body = CodesToGenerate,
    responses(
        (
            status = 200,
            description = "The codes, one per line: CSV with the header `code`, or NDJSON (`{\"code\":…}`) if `Accept` prefers it",
            content(
                (String = "text/csv"),
                (inline(StreamedBody) = "application/x-ndjson"),
            )
        ),
        (status = 409, description = "`filter-full`: a coupon of fixed size has too little capacity; `requires-added-codes`"),
        (status = 422, description = "`invalid-request`: also if the pattern has too few `#`; the detail states how many are required"),
    )
)]
pub(crate) async fn generate(
    call: Call<Write>,
    Path(coupon): Path<String>,
    request: Request,
) -> HandlerResult {
    let view = call.filter(KIND, &coupon)?;
    let lines =
        LineFormat::preferred(request.headers(), COLUMNS).unwrap_or(LineFormat::Csv(COLUMNS));
    let wanted: CodesToGenerate = json::parse(&call.body(request).await?)?;
    wanted.check_form()?;
    // A pattern with few places names codes, so nothing is looked up for it.
    if let Err(guessable) = wanted.check_guessing(wanted.count.into()) {
        let items = view.describe(call.api.engine.now()).stats.items;
        return Err(wanted
            .check_guessing(items + u64::from(wanted.count))
            .err()
            .unwrap_or(guessable));
    }
    if view.spec.supply.is_open_pool() {
        return Err(Code::RequiresAddedCodes.into());
    }
    let memory = call.reserve(u64::from(wanted.count) * size_of::<u64>() as u64)?;
    let room = call.reserve(STREAM_BYTES)?;
    let nonce = random::<16>();
    let identity = call.idempotency_key().unwrap_or(&nonce);
    let generation = Generation {
        call: &call,
        coupon: &coupon,
        view: &view,
        wanted: &wanted,
        identity,
    };
    let Generated {
        candidates,
        chosen,
        replayed,
    } = generation.run().await?;
    let chosen = Chosen {
        indexes: chosen,
        _memory: memory,
    };
    Ok(mark_replayed(
        counted(respond(lines, candidates, chosen), room),
        replayed,
    ))
}

/// Codes that are written together.
const WRITTEN: usize = 256;

/// Indexes of the chosen candidates, and their memory.
struct Chosen {
    indexes: Vec<u64>,
    _memory: BudgetShare,
}

/// Streams the chosen candidates, one per line.
fn respond(lines: LineFormat, candidates: Candidates, chosen: Chosen) -> Response {
    lines.stream(stream::unfold(0, move |from| {
        let batch = chosen.indexes.iter().skip(from).take(WRITTEN);
        let codes: Vec<_> = batch
            .map(|&index| GeneratedCode {
                code: candidates.code(index),
            })
            .collect();
        async move {
            tokio::task::yield_now().await;
            let next = from + codes.len();
            (next > from).then_some((Ok(codes), next))
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(alphabet: &'static [u8], pattern: &str) -> Candidates {
        Candidates {
            seed: [7; 32],
            alphabet,
            pattern: pattern.into(),
            period: None,
        }
    }

    #[test]
    fn alphabet_has_no_vowels_zero_one() {
        let distinct: std::collections::BTreeSet<u8> = ALPHABET.iter().copied().collect();
        assert_eq!(distinct.len(), 28);
        assert!(b"AEIOUY01".iter().all(|c| !distinct.contains(c)));
    }

    /// Pearson's chi-squared test with 27 degrees of freedom: 55.5 is exceeded once in a thousand seeds, and this seed is fixed. The last
    /// places of most codes take a second block.
    #[test]
    fn characters_are_uniform_at_each_place() {
        let candidates = candidates(ALPHABET, &"#".repeat(32));
        let codes: Vec<String> = (0..28_000).map(|index| candidates.code(index)).collect();
        for place in [0, 1, 16, 30, 31] {
            let mut counts = [0_f64; 128];
            codes
                .iter()
                .for_each(|code| counts[usize::from(code.as_bytes()[place])] += 1.0);
            let deviation = |&c: &u8| (counts[usize::from(c)] - 1_000.0).powi(2) / 1_000.0;
            let chi_squared: f64 = ALPHABET.iter().map(deviation).sum();
            assert!(chi_squared < 55.5, "place {place}: {chi_squared}");
        }
    }

    /// A request that a node of 0.1.0 has executed has stored these.
    #[test]
    fn codes_of_first_release_remain() {
        let candidates = candidates(ALPHABET_BEFORE, &"#".repeat(32));
        assert_eq!(candidates.code(0), "W95SLUTY6YNTVDPJQ5JZ4N2VKB3FAADU");
    }

    #[test]
    fn pattern_must_fit_its_codes() {
        let check = |count, pattern: &str, held| {
            let wanted = CodesToGenerate {
                count,
                pattern: pattern.into(),
            };
            wanted
                .check_form()
                .and_then(|()| wanted.check_guessing(u64::from(count) + held))
                .is_ok()
        };
        // 28^5 is 17.2 million.
        assert!(check(1, "A-#####", 16));
        assert!(!check(1, "A-#####", 17));
        assert!(!check(1, "A-####", 0));
        // 28^8 is 377,801.998 million.
        assert!(check(377_801, "########", 0));
        assert!(!check(377_801, "########", 1));
        assert!(check(1_000_000, &"#".repeat(18), u64::MAX - 1_000_000));
        assert!(!check(1_000_000, &"#".repeat(17), u64::MAX - 1_000_000));
        assert!(!check(1, &"#".repeat(33), 0));
        assert!(!check(1, "####\n", 0));
        assert!(!check(0, "########", 0));
        assert!(!check(1_000_001, "############", 0));
    }
}
