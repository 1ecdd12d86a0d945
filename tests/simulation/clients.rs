//! The clients: they redeem contested codes, send random commands, repeat requests, give up, and check each answer against what they and
//! the others know.

use crate::history::{History, STRICT_SCOPE};
use crate::node::{EPOCH, Node};
use cuckood::engine::SubmitError;
use cuckood_log::testing::simulated_time::SimulatedTime;
use cuckood_state::domain::{
    Applied, Command, FORMAT_VERSION, IdempotencyKey, KeyName, Kind, Meaning, Outcome,
    RedemptionId, RedemptionStatus, Refusal, Seq, Supply, Target,
};
use cuckood_state::testing::commands::{NewFilter, code, insert, name_of, redeem_for, target};
use cuckood_state::testing::random::Random;
use cuckood_state::testing::random_log::RandomLog;
use cuckood_state::{CodeFound, LookUpScan};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// The coupon whose codes are contested.
const CONTEST: Target = target(50);

/// Its codes.
const CODES: u64 = 40;

/// The customers of a coupon that limits their uses.
const CUSTOMERS: u64 = 12;

/// In half of the histories, codes have several uses and customers a limit.
const LIMITED: Supply = Supply {
    stock: None,
    uses: 3,
    per_customer: Some(7),
};

/// The numbers of the clients' redemptions: random commands have lower ones.
const REDEMPTIONS: u64 = 1 << 40;

/// What a client wants done. It repeats the request until it knows the outcome, or gives up.
#[derive(Clone)]
struct Operation {
    command: Command,
    key: Option<IdempotencyKey>,
    /// What it contests, if it redeems a code.
    contest: Option<Contested>,
    /// The first outcome under its key.
    first: Option<Outcome>,
}

impl Operation {
    /// A command without a key, which contests nothing.
    fn plain(command: Command) -> Operation {
        Operation {
            command,
            key: None,
            contest: None,
            first: None,
        }
    }
}

/// A use of a contested code.
#[derive(Clone)]
struct Contested {
    code: u64,
    reference: String,
    /// If the uses of customers are limited.
    customer: Option<u64>,
}

type Response = Pin<Box<dyn Future<Output = Result<Applied, SubmitError>> + Send>>;

/// A request that is not answered.
struct Attempt {
    name: String,
    node: usize,
    response: Response,
}

#[derive(Default)]
struct Client {
    operation: Option<Operation>,
    attempt: Option<Attempt>,
    /// It does nothing before.
    waits_until: Duration,
}

/// A redemption that was answered.
struct Redemption {
    id: RedemptionId,
    position: Seq,
}

/// A barrier that was requested at a node, and the position that it must reach.
struct Barrier {
    node: usize,
    passed: oneshot::Receiver<Result<(), SubmitError>>,
    floor: Seq,
}

/// How often each thing happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientCounts {
    pub attempts: u64,
    pub acknowledged: u64,
    pub rejected: u64,
    pub unknown: u64,
    pub repeats: u64,
    pub barriers: u64,
    pub reads: u64,
}

impl ClientCounts {
    pub fn add(&mut self, other: &ClientCounts) {
        self.attempts += other.attempts;
        self.acknowledged += other.acknowledged;
        self.rejected += other.rejected;
        self.unknown += other.unknown;
        self.repeats += other.repeats;
        self.barriers += other.barriers;
        self.reads += other.reads;
    }
}

pub struct Clients {
    time: SimulatedTime,
    history: History,
    random: Random,
    clients: Vec<Client>,
    /// What is done before anything else, one after the other.
    preparation: VecDeque<Command>,
    log: RandomLog,
    /// The number that has decided the kind and the filter of the last random command.
    last_kind: u8,
    /// Whether settings change, too; then outcomes are not stored for long.
    is_wild: bool,
    /// How often codes and customers win.
    supply: Supply,
    /// The references that have each contested code.
    winners: BTreeMap<u64, BTreeSet<String>>,
    /// The references that each customer has won with.
    customers: BTreeMap<u64, BTreeSet<String>>,
    redemptions: Vec<Redemption>,
    repeatable: Vec<Operation>,
    barriers: Vec<Barrier>,
    operations: u64,
    /// The nodes that have answered a write since the faults have ended.
    proven: BTreeSet<usize>,
    pub counts: ClientCounts,
    pub is_verbose: bool,
}

impl Clients {
    pub fn new(
        count: usize,
        time: SimulatedTime,
        history: History,
        seed: u64,
        is_wild: bool,
    ) -> Clients {
        let mut random = Random::new(seed);
        let mut log = match random.below(2) {
            0 => RandomLog::new(),
            _ => RandomLog::without_images(),
        };
        log.pass(EPOCH.0);
        let mut preparation = VecDeque::new();
        let mut coupon = NewFilter::coupon(1_000);
        if random.below(2) == 0 {
            let version = FORMAT_VERSION;
            preparation.push_back(Command::Enable { version });
            coupon.supply = LIMITED;
        }
        preparation.extend([coupon.create(CONTEST), insert(CONTEST, 0..CODES)]);
        let beginning = log.beginning().into_iter();
        let beginning = beginning.map(|entry| entry.proposal.command);
        preparation.extend(beginning.filter(|command| is_allowed(command, is_wild)));
        Clients {
            time,
            history,
            random,
            clients: (0..count).map(|_| Client::default()).collect(),
            preparation,
            log,
            last_kind: 0,
            is_wild,
            supply: coupon.supply,
            winners: BTreeMap::new(),
            customers: BTreeMap::new(),
            redemptions: Vec::new(),
            repeatable: Vec::new(),
            barriers: Vec::new(),
            operations: 0,
            proven: BTreeSet::new(),
            counts: ClientCounts::default(),
            is_verbose: false,
        }
    }

    /// Lets a random client act.
    pub fn step(&mut self, nodes: &[Node], runtime: &Runtime) {
        let number = self.random.below(self.clients.len() as u64) as usize;
        if self.clients[number].waits_until > self.time.passed() {
            return;
        }
        if self.clients[number].attempt.is_some() {
            // It stops waiting. The operation may still take effect.
            if self.random.below(100) == 0 {
                self.clients[number].attempt = None;
            }
            return;
        }
        let Some(node) = self.choose_node(nodes) else {
            return;
        };
        if self.clients[number].operation.is_none() {
            self.clients[number].operation = self.next_operation(&nodes[node], node);
        }
        self.attempt(number, node, nodes, runtime);
    }

    fn choose_node(&mut self, nodes: &[Node]) -> Option<usize> {
        let running: Vec<usize> = (0..nodes.len())
            .filter(|node| nodes[*node].engine.is_some())
            .collect();
        let number = self.random.below(running.len().max(1) as u64) as usize;
        running.get(number).copied()
    }

    fn next_operation(&mut self, node: &Node, number: usize) -> Option<Operation> {
        if let Some(command) = self.preparation.pop_front() {
            return Some(Operation::plain(command));
        }
        if self.random.below(200) == 0 {
            let version = FORMAT_VERSION;
            return Some(Operation::plain(Command::Enable { version }));
        }
        match self.random.below(100) {
            0..45 => Some(self.redemption()),
            45..80 => self.random_command(),
            80..92 if !self.repeatable.is_empty() => {
                self.counts.repeats += 1;
                let at = self.random.below(self.repeatable.len() as u64) as usize;
                Some(self.repeatable[at].clone())
            }
            92..96 => {
                let floor = self.history.acknowledged();
                let passed = node.engine.as_ref()?.barrier()?;
                self.barriers.push(Barrier {
                    node: number,
                    passed,
                    floor,
                });
                None
            }
            _ => None,
        }
    }

    /// A redemption of a contested code, often with an idempotency key.
    fn redemption(&mut self) -> Operation {
        self.operations += 1;
        let number = self.operations;
        let code = self.random.below(CODES);
        let reference = format!("order-{number}");
        let is_limited = self.supply.per_customer.is_some();
        let customer = is_limited.then(|| self.random.below(CUSTOMERS));
        let is_keyed = !self.is_wild && self.random.below(2) == 0;
        let serial = REDEMPTIONS + number;
        Operation {
            command: redeem_for(CONTEST, code, serial, &reference, 0, customer),
            key: is_keyed.then(|| IdempotencyKey {
                scope: STRICT_SCOPE + u128::from(number),
                request: number,
            }),
            contest: Some(Contested {
                code,
                reference,
                customer,
            }),
            first: None,
        }
    }

    fn random_command(&mut self) -> Option<Operation> {
        let (mut a, b) = (self.random.next(), self.random.next());
        let mut kind = self.random.next() as u8;
        if self.random.below(12) == 0 {
            // The filter of the last command is cleared: while it is uploaded, that overtakes the upload.
            kind = self.last_kind & 0xf0 | 14;
            a = a / 13 * 13;
        }
        self.last_kind = kind;
        let entry = self.log.next((kind, a, b, self.random.next() as u16));
        is_allowed(&entry.proposal.command, self.is_wild).then_some(Operation {
            command: entry.proposal.command,
            key: entry.proposal.idempotency,
            contest: None,
            first: None,
        })
    }

    fn attempt(&mut self, number: usize, node: usize, nodes: &[Node], runtime: &Runtime) {
        let (Some(operation), Some(engine)) =
            (&self.clients[number].operation, &nodes[node].engine)
        else {
            return;
        };
        self.counts.attempts += 1;
        let name = format!("a{}", self.counts.attempts);
        self.history.begin_attempt(&name);
        let _entered = runtime.enter();
        let response = engine.engine().submit(
            Some(KeyName::new(&name).unwrap()),
            operation.command.clone(),
            operation.key,
        );
        if self.is_verbose {
            println!(
                "  client {number}: {name} at {}: {}",
                nodes[node].name,
                operation.command.word()
            );
        }
        self.clients[number].attempt = Some(Attempt {
            name,
            node,
            response: Box::pin(response),
        });
    }

    /// Takes the answers that a node has given.
    pub fn take_answers(&mut self, node: usize, nodes: &[Node]) {
        for number in 0..self.clients.len() {
            let Some(attempt) = &mut self.clients[number].attempt else {
                continue;
            };
            if attempt.node != node {
                continue;
            }
            let context = &mut Context::from_waker(Waker::noop());
            let Poll::Ready(answer) = attempt.response.as_mut().poll(context) else {
                continue;
            };
            let name = attempt.name.clone();
            self.clients[number].attempt = None;
            self.take(number, node, &name, answer);
        }
        self.take_barriers(node, nodes);
        self.read(&nodes[node]);
    }

    fn take(
        &mut self,
        number: usize,
        node: usize,
        attempt: &str,
        answer: Result<Applied, SubmitError>,
    ) {
        if self.is_verbose {
            println!("  client {number}: {attempt}: {answer:?}");
        }
        let pause = Duration::from_millis(self.random.below(200));
        match answer {
            Ok(applied) => {
                self.counts.acknowledged += 1;
                self.proven.insert(node);
                let position = self.history.acknowledge(attempt, &applied);
                if let Some(operation) = self.clients[number].operation.take() {
                    self.note(operation, applied, position);
                }
            }
            Err(error) => {
                if error == SubmitError::StorageFailed {
                    self.counts.unknown += 1;
                } else {
                    self.counts.rejected += 1;
                    self.history.reject(attempt);
                }
                self.clients[number].waits_until = self.time.passed() + pause;
                // Nothing can be contested before everything is prepared.
                if self.preparation.is_empty() && self.random.below(8) == 0 {
                    self.clients[number].operation = None;
                }
            }
        }
    }

    /// Checks an answer against those that any client has.
    fn note(&mut self, mut operation: Operation, applied: Applied, position: Seq) {
        if let Some(contested) = &operation.contest {
            self.note_contest(contested, &applied.outcome, position);
        }
        if let Some(key) = operation.key.filter(|key| key.scope >= STRICT_SCOPE) {
            match &operation.first {
                Some(first) => {
                    assert_eq!(first, &applied.outcome, "the repeat under {key:?}");
                    assert!(applied.replayed, "the repeat under {key:?}");
                }
                None if matches!(applied.outcome, Outcome::Refused(_)) => {}
                None => {
                    operation.first = Some(applied.outcome);
                    self.repeatable.push(operation);
                }
            }
        }
    }

    /// Each code has as many winners as uses, and no customer wins more often than allowed.
    fn note_contest(&mut self, contested: &Contested, outcome: &Outcome, position: Seq) {
        let Contested {
            code,
            reference,
            customer,
        } = contested;
        let winners = self.winners.entry(*code).or_default();
        match outcome {
            Outcome::Redeemed(redemption) | Outcome::Settled(redemption) => {
                assert_eq!(redemption.reference.as_str(), reference);
                assert_eq!(redemption.status, RedemptionStatus::Redeemed);
                winners.insert(reference.clone());
                let uses = self.supply.uses as usize;
                assert!(winners.len() <= uses, "code {code} is used by {winners:?}");
                let id = redemption.id;
                self.redemptions.push(Redemption { id, position });
                if let (Some(customer), Some(max)) = (customer, self.supply.per_customer) {
                    let won = self.customers.entry(*customer).or_default();
                    won.insert(reference.clone());
                    let is_within = won.len() <= max as usize;
                    assert!(is_within, "customer {customer} has won with {won:?}");
                }
            }
            Outcome::Refused(Refusal::CodeRedeemed | Refusal::CustomerLimit) => {
                let has_won = winners.contains(reference);
                assert!(!has_won, "a winner of {code} is refused: {outcome:?}");
            }
            // In a log that has lost the preparation's operation.
            Outcome::Refused(Refusal::FilterGone | Refusal::CodeUnknown) => {}
            other => panic!("a redemption: {other:?}"),
        }
    }

    fn take_barriers(&mut self, node: usize, nodes: &[Node]) {
        let position = nodes[node].position();
        self.barriers.retain_mut(|barrier| {
            if barrier.node != node {
                return true;
            }
            match barrier.passed.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => true,
                Ok(Ok(())) => {
                    self.counts.barriers += 1;
                    let floor = barrier.floor;
                    assert!(
                        // It may have been killed since.
                        position.is_none_or(|position| position >= floor),
                        "a barrier at {position:?} after {floor:?}"
                    );
                    false
                }
                // The process has ended.
                Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => false,
            }
        });
    }

    /// Reads a redemption that was answered, on a node that has its position.
    fn read(&mut self, node: &Node) {
        if self.redemptions.is_empty() || self.is_wild {
            return;
        }
        let at = self.random.below(self.redemptions.len() as u64) as usize;
        let redemption = &self.redemptions[at];
        if node.position() >= Some(redemption.position) {
            self.counts.reads += 1;
            check_redemption(node, redemption.id);
        }
    }

    /// Lets a client write to each node, however often it must try. Returns whether each has answered a write since `begin_proof`.
    pub fn prove(&mut self, nodes: &[Node], runtime: &Runtime) -> bool {
        self.clients
            .resize_with(self.clients.len().max(nodes.len()), Client::default);
        let mut is_proven = true;
        for node in 0..nodes.len() {
            if self.proven.contains(&node) {
                continue;
            }
            is_proven = false;
            if self.clients[node].attempt.is_none()
                && let Some(engine) = &nodes[node].engine
            {
                // The faults may have ended before the version of a customer's redemption could be enabled.
                let operation = if self.supply == LIMITED && !engine.engine().has(Meaning::Uses) {
                    Operation::plain(insert(CONTEST, 0..1))
                } else {
                    self.redemption()
                };
                self.clients[node].operation = Some(operation);
                self.attempt(node, node, nodes, runtime);
            }
        }
        is_proven
    }

    /// From here on, each node must answer a write.
    pub fn begin_proof(&mut self) {
        self.proven.clear();
    }

    /// Whether a request is not answered, or something must be prepared.
    pub fn is_busy(&self) -> bool {
        let is_waiting = |client: &Client| client.attempt.is_some();
        self.clients.iter().any(is_waiting)
    }

    /// Checks that nodes at the end of the log have everything that was answered, and all winners of each code.
    pub fn check_end(&self, nodes: &[Node]) {
        if self.is_wild {
            return;
        }
        for node in nodes {
            for redemption in &self.redemptions {
                check_redemption(node, redemption.id);
            }
            let Some(engine) = &node.engine else { continue };
            let Some(coupon) = engine.engine().view().find(Kind::Coupon, &name_of(CONTEST)) else {
                assert!(self.redemptions.is_empty());
                continue;
            };
            let now = engine.engine().now();
            for (contested, winners) in &self.winners {
                let digests = [code(*contested)];
                let found = match self.supply.uses {
                    1 => match coupon.look_up(&digests, now).unwrap().remove(0) {
                        CodeFound::Redeemed(redemption) => Vec::from_iter(redemption),
                        CodeFound::Absent | CodeFound::Available | CodeFound::Held(_) => Vec::new(),
                    },
                    _ => {
                        let scan = &mut LookUpScan::at(now);
                        coupon.look_up_uses(&digests, scan).remove(0).redemptions
                    }
                };
                let found: BTreeSet<_> = found.iter().map(|it| it.reference.as_str()).collect();
                let has_winners = winners.iter().all(|winner| found.contains(winner.as_str()));
                assert!(has_winners, "code {contested} of {winners:?}: {found:?}");
                assert!(found.len() <= self.supply.uses as usize, "{found:?}");
            }
        }
    }
}

fn check_redemption(node: &Node, id: RedemptionId) {
    let Some(engine) = &node.engine else { return };
    let engine = engine.engine();
    let coupon = engine.view().find(Kind::Coupon, &name_of(CONTEST)).unwrap();
    let found = coupon.redemption(&id, engine.now());
    let status = found.map(|redemption| redemption.status);
    assert_eq!(
        status,
        Some(RedemptionStatus::Redeemed),
        "{id} on {}",
        node.name
    );
}

/// Whether a random command may be sent.
fn is_allowed(command: &Command, is_wild: bool) -> bool {
    match command {
        Command::Configure(_) => is_wild,
        // Operators alone make these, and the log of a running node never has them.
        Command::Restored { .. } | Command::TurnBack | Command::Enable { .. } => false,
        _ => true,
    }
}
