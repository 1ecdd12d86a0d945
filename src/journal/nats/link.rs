//! The connection to the servers, and the checks without which no node may rely on them.

use super::options::NatsOptions;
use super::order::LogId;
use super::outbox::MESSAGE_BYTES_MAX;
use super::replication::Replication;
use crate::journal::{JournalError, random};
use async_nats::connection::State;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, ContextBuilder, GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a server may take to acknowledge a message, unless the servers are far away.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a server may take to answer the reader, unless the servers are far away. Without a leader there is no answer.
const READER_TIMEOUT: Duration = Duration::from_millis(500);

/// A response may take this many times as long as the first one took.
const SLOWER: u32 = 4;

/// How long a server may take to answer anything else.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// At most one event of the connection is logged in this time.
const EVENT_PAUSE: Duration = Duration::from_secs(1);

/// A connection whose server is silent for three of these is given up for another one.
const PING_EVERY: Duration = Duration::from_secs(2);

/// The oldest server that is relied on: earlier ones can't sync, or have lost whole streams.
const SERVER_MIN: [u64; 3] = [2, 10, 23];

/// Where the stream's metadata has the log's identity.
const LOG_ID_KEY: &str = "cuckood-log";

/// Where it has the name of the cluster that has created it.
const CLUSTER_KEY: &str = "cuckood-cluster";

const NOT_OURS: &str = "its metadata has no identity of a log: it was not made by this service";

/// The connection, and the stream of the log.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) client: Client,
    /// Waits for `ack_timeout`.
    pub(super) publishing: Context,
    pub(super) ack_timeout: Duration,
    /// How long the reader waits for a response.
    pub(super) patience: Duration,
    pub(super) stream: Stream,
    pub(super) subject: String,
    pub(super) log: LogId,
}

impl Link {
    /// Connects, checks the servers, and opens the stream; creates it if there is none and that is allowed. Tries again until
    /// [`NatsOptions::connect_timeout`] is over.
    ///
    /// # Errors
    /// [`JournalError::Failed`], which says what is wrong.
    pub(super) async fn open(
        options: &NatsOptions,
        may_create: bool,
        status: &Arc<Mutex<Replication>>,
    ) -> Result<Link, JournalError> {
        patiently(options, async || attempt(options, may_create, status).await).await
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }
}

/// Connects once more, for transfers that must not hold up the log. Tries again as long as [`Link::open`].
///
/// # Errors
/// As [`Link::open`].
pub(super) async fn connect_beside(options: &NatsOptions) -> Result<Context, JournalError> {
    patiently(options, async || context(options).await).await
}

async fn context(options: &NatsOptions) -> Result<Context, JournalError> {
    let client = connect(options, None).await?;
    check_server(&client)?;
    Ok(ContextBuilder::new().timeout(ANSWER_TIMEOUT).build(client))
}

/// The stream and the identity of its log; `None` if there is no such stream.
///
/// # Errors
/// [`JournalError::Failed`]; [`JournalError::Damaged`] if it was not made by this service.
pub(super) async fn find_stream(
    context: &Context,
    options: &NatsOptions,
) -> Result<Option<(Stream, LogId)>, JournalError> {
    match context.get_stream(&options.stream).await {
        Ok(stream) => match log_id(&stream.cached_info().config) {
            Some(log) => Ok(Some((stream, log))),
            None => Err(JournalError::Damaged(NOT_OURS.to_owned())),
        },
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(retry(error)),
    }
}

/// Creates a stream, and the object store whose presence shows from now on that there is a log of this name. Returns the stream that exists
/// if another node was faster.
///
/// # Errors
/// [`JournalError::Failed`].
pub(super) async fn create_stream(
    context: &Context,
    options: &NatsOptions,
    wanted: stream::Config,
) -> Result<(Stream, LogId), JournalError> {
    let created = context.get_or_create_stream(wanted).await;
    let stream = created.map_err(|error| {
        let why = error.to_string();
        let too_many = options.replicas > 1 && (why.contains("replicas") || why.contains("peers"));
        let hint = if too_many { "; set nats.replicas to the number of servers" } else { "" };
        JournalError::Failed(format!("{why}{hint}"))
    })?;
    let log = log_id(&stream.cached_info().config);
    let log = log.ok_or_else(|| JournalError::Damaged(NOT_OURS.to_owned()))?;
    ensure_bucket(context, options).await?;
    Ok((stream, log))
}

/// Creates the object store of shared snapshots, unless it exists.
///
/// # Errors
/// [`JournalError::Failed`].
pub(super) async fn ensure_bucket(context: &Context, options: &NatsOptions) -> Result<Stream, JournalError> {
    let bucket = format!("{}-snapshots", options.stream);
    let config = stream::Config {
        name: format!("OBJ_{bucket}"),
        subjects: vec![format!("$O.{bucket}.C.>"), format!("$O.{bucket}.M.>")],
        description: Some("snapshots that cuckood's nodes share".to_owned()),
        discard: DiscardPolicy::New,
        allow_rollup: true,
        // An upload is read back immediately, and servers other than the leader may not have it yet.
        allow_direct: false,
        num_replicas: options.replicas,
        ..stream::Config::default()
    };
    context.get_or_create_stream(config).await.map_err(retry)
}

/// A stream that indicates an earlier log of this name, if there is one.
///
/// # Errors
/// [`JournalError::Failed`] if that can't be determined.
async fn find_trace(context: &Context, options: &NatsOptions) -> Result<Option<String>, JournalError> {
    let name = format!("OBJ_{}-snapshots", options.stream);
    match context.get_stream(&name).await {
        Ok(_) => Ok(Some(name)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(retry(error)),
    }
}

fn is_not_found(error: &GetStreamError) -> bool {
    matches!(error.kind(), GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

/// Creates an empty log deliberately: `cuckood cluster init`. Returns its identity.
///
/// # Errors
/// [`JournalError::Failed`] if there is a stream of this name already, or the servers can't be used.
pub(super) async fn init(options: &NatsOptions) -> Result<LogId, JournalError> {
    patiently(options, async || {
        let context = context(options).await?;
        if find_stream(&context, options).await?.is_some() {
            return Err(JournalError::Unusable(
                "it exists; remove it first, or set nats.stream to another name".to_owned(),
            ));
        }
        create_stream(&context, options, wanted_stream(options)).await.map(|(_, log)| log)
    })
    .await
}

/// Tries again until [`NatsOptions::connect_timeout`] is over: servers that were just started have no leader yet.
///
/// # Errors
/// [`JournalError::Failed`].
pub(super) async fn patiently<T>(
    options: &NatsOptions,
    attempt: impl AsyncFn() -> Result<T, JournalError>,
) -> Result<T, JournalError> {
    let until = Instant::now() + options.connect_timeout;
    let mut told = String::new();
    loop {
        let why = match attempt().await {
            Ok(made) => return Ok(made),
            Err(JournalError::Failed(why)) => why,
            Err(error) => return Err(failed(options, &error.to_string())),
        };
        if Instant::now() >= until {
            return Err(failed(options, &why));
        }
        if why != told {
            tracing::warn!(servers = ?options.servers, why, "the replicated log can't be opened yet");
            told = why;
        }
        sleep(Duration::from_millis(250)).await;
    }
}

fn failed(options: &NatsOptions, why: &str) -> JournalError {
    let (stream, servers) = (&options.stream, options.servers.join(", "));
    JournalError::Failed(format!("the stream {stream} on {servers} can't be used: {why}"))
}

/// A failure that another attempt may be spared.
pub(super) fn retry(error: impl std::fmt::Display) -> JournalError {
    JournalError::Failed(error.to_string())
}

async fn attempt(
    options: &NatsOptions,
    may_create: bool,
    status: &Arc<Mutex<Replication>>,
) -> Result<Link, JournalError> {
    let client = connect(options, Some(status)).await?;
    check_server(&client)?;
    let context = |timeout| ContextBuilder::new().timeout(timeout).build(client.clone());
    let stream = open_stream(&context(ANSWER_TIMEOUT), options, may_create).await?;
    let began = Instant::now();
    stream.get_info().await.map_err(retry)?;
    let round_trip = began.elapsed();
    let info = stream.cached_info();
    let log = check_stream(&info.config, options).map_err(JournalError::Unusable)?;
    let server = client.server_info();
    tracing::info!(
        server = server.server_name,
        version = server.version,
        stream = options.stream,
        replicas = info.config.num_replicas,
        last = info.state.last_sequence,
        "opened the replicated log"
    );
    tracing::warn!(
        "whether the servers sync before they acknowledge can't be read over this connection: every one needs `sync_interval: always` in \
         its `jetstream` block, else a power cut of all of them loses acknowledged writes"
    );
    let (max_bytes, max_messages) = (info.config.max_bytes, info.config.max_messages);
    if max_bytes > 0 || max_messages > 0 {
        tracing::warn!(max_bytes, max_messages, "the stream is limited: it refuses writes once it is full");
    }
    tracing::info!(
        "storage.durability does not apply: the servers of the log decide when a write is durable"
    );
    if info.config.num_replicas < 3 {
        tracing::warn!(
            replicas = info.config.num_replicas,
            "the log has fewer than three replicas: writes end with the death of one server, and a lost disk loses acknowledged writes"
        );
    }
    {
        let mut known = status.lock();
        (known.server, known.server_version) = (server.server_name, server.version);
        (known.replicas, known.disconnected_since) = (info.config.num_replicas, None);
    }
    let subject = format!("{}.log", options.stream);
    let (ack_timeout, patience) =
        (ACK_TIMEOUT.max(round_trip * SLOWER), READER_TIMEOUT.max(round_trip * SLOWER));
    Ok(Link { publishing: context(ack_timeout), ack_timeout, patience, stream, subject, log, client })
}

/// Opens the stream. A node whose directory is empty creates it, unless something indicates an earlier log: nodes that have that log would
/// stop, and what they acknowledged would be undone.
async fn open_stream(
    context: &Context,
    options: &NatsOptions,
    may_create: bool,
) -> Result<Stream, JournalError> {
    if let Some((stream, _)) = find_stream(context, options).await? {
        ensure_bucket(context, options).await?;
        return Ok(stream);
    }
    let trace = match may_create {
        true => find_trace(context, options).await?,
        false => Some("this node's directory".to_owned()),
    };
    match trace {
        None => Ok(create_stream(context, options, wanted_stream(options)).await?.0),
        // Servers that were just started may not have found the stream yet, and another node may be creating it.
        Some(trace) => Err(JournalError::Failed(format!(
            "stream not found, but {trace} belongs to an earlier log; see docs/CLUSTER.md, The stream is gone, or begin an empty log with \
             `cuckood cluster init`"
        ))),
    }
}

/// Connects; `status` is told how the connection is.
async fn connect(
    options: &NatsOptions,
    status: Option<&Arc<Mutex<Replication>>>,
) -> Result<Client, JournalError> {
    let (watched, login, tls) = (status.cloned(), &options.login, &options.tls);
    let logged = Arc::new(Mutex::new(None));
    let mut connecting = ConnectOptions::new()
        .name(format!("cuckood {}", options.node))
        .connection_timeout(ANSWER_TIMEOUT)
        .ping_interval(PING_EVERY)
        .reconnect_delay_callback(|attempt| Duration::from_millis(50 * (attempt as u64).min(20)))
        .event_callback(move |event| {
            let (watched, logged) = (watched.clone(), logged.clone());
            async move {
                let is_connected = match &event {
                    Event::Connected => Some(true),
                    Event::Disconnected | Event::Closed => Some(false),
                    _ => None,
                };
                if let (Some(is_connected), Some(watched)) = (is_connected, &watched) {
                    watched.lock().note_connection(is_connected);
                }
                // A wrong password makes an event with each attempt to connect.
                let mut last = logged.lock();
                if last.is_none_or(|at: Instant| at.elapsed() >= EVENT_PAUSE) {
                    *last = Some(Instant::now());
                    tracing::info!(%event, "connection to the replicated log");
                }
            }
        });
    if !login.user.is_empty() {
        connecting = connecting.user_and_password(login.user.clone(), login.password.clone());
    }
    if !login.token.is_empty() {
        connecting = connecting.token(login.token.clone());
    }
    if !login.credentials.as_os_str().is_empty() {
        let path = login.credentials.display().to_string();
        let added = connecting.credentials_file(&login.credentials).await;
        connecting = added.map_err(|error| JournalError::Unusable(format!("{path}: {error}")))?;
    }
    if !tls.ca.as_os_str().is_empty() {
        connecting = connecting.add_root_certificates(tls.ca.clone()).require_tls(true);
    }
    if !tls.cert.as_os_str().is_empty() {
        connecting = connecting.add_client_certificate(tls.cert.clone(), tls.key.clone()).require_tls(true);
    }
    let servers: Result<Vec<ServerAddr>, _> = options.servers.iter().map(|server| server.parse()).collect();
    let servers =
        servers.map_err(|error| JournalError::Unusable(format!("{error}: {:?}", options.servers)))?;
    connecting.connect(servers).await.map_err(retry)
}

fn check_server(client: &Client) -> Result<(), JournalError> {
    let server = client.server_info();
    let numbers = server.version.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    let version: Vec<u64> = numbers.take(3).collect();
    if version[..] < SERVER_MIN[..] {
        let [major, minor, patch] = SERVER_MIN;
        return Err(JournalError::Unusable(format!(
            "server {} has version {}, and earlier ones than {major}.{minor}.{patch} lose data",
            server.server_name, server.version
        )));
    }
    if server.max_payload < MESSAGE_BYTES_MAX {
        return Err(JournalError::Unusable(format!(
            "server {} allows messages of {} bytes only: set max_payload to 1MB",
            server.server_name, server.max_payload
        )));
    }
    Ok(())
}

/// The stream as it is created.
pub(super) fn wanted_stream(options: &NatsOptions) -> stream::Config {
    stream::Config {
        name: options.stream.clone(),
        subjects: vec![format!("{}.log", options.stream)],
        description: Some("cuckood's log: don't publish to it, delete from it or purge it".to_owned()),
        storage: StorageType::File,
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        num_replicas: options.replicas,
        deny_delete: true,
        allow_direct: true,
        metadata: [
            (LOG_ID_KEY.to_owned(), hex::encode(random::<16>())),
            (CLUSTER_KEY.to_owned(), options.cluster.clone()),
        ]
        .into(),
        ..stream::Config::default()
    }
}

/// Checks that the stream is of this cluster and retains what is acknowledged. Returns the log's identity.
fn check_stream(config: &stream::Config, options: &NatsOptions) -> Result<LogId, String> {
    let Some(log) = log_id(config) else { return Err(NOT_OURS.to_owned()) };
    let (subject, replicas) = (format!("{}.log", options.stream), options.replicas);
    let cluster = config.metadata.get(CLUSTER_KEY).map_or("", String::as_str);
    let faults = [
        (
            cluster != options.cluster,
            format!(
                "it belongs to the cluster `{cluster}`, and cluster.name is `{}`: set nats.stream to another name, so that each cluster \
                 has its own log",
                options.cluster
            ),
        ),
        (
            config.subjects != [subject.as_str()],
            format!("its subjects are {:?}, not {subject}", config.subjects),
        ),
        (config.storage != StorageType::File, "it is not stored in files".to_owned()),
        (config.retention != RetentionPolicy::Limits, "its retention is not `limits`".to_owned()),
        (config.discard != DiscardPolicy::New, "it discards old messages when it is full".to_owned()),
        (!config.max_age.is_zero(), "it has a limit of age, which would remove what nodes need".to_owned()),
        (config.max_messages_per_subject > 0, "it has a limit of messages per subject".to_owned()),
        (
            usize::try_from(config.max_message_size).is_ok_and(|max| (1..MESSAGE_BYTES_MAX).contains(&max)),
            format!(
                "it allows messages of {} bytes only, not of {MESSAGE_BYTES_MAX}",
                config.max_message_size
            ),
        ),
        (
            config.num_replicas < replicas,
            format!("it has {} replicas, and nats.replicas is {replicas}", config.num_replicas),
        ),
    ];
    match faults.into_iter().find(|(is_fault, _)| *is_fault) {
        Some((_, fault)) => Err(fault),
        None => Ok(log),
    }
}

/// The log's identity, which the stream's metadata has.
pub(super) fn log_id(config: &stream::Config) -> Option<LogId> {
    let id = hex::decode(config.metadata.get(LOG_ID_KEY)?).ok()?;
    Some(LogId(u128::from_be_bytes(id.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_could_lose_entries_is_refused() {
        let options = NatsOptions { replicas: 3, ..NatsOptions::new("nats://localhost", "shop", "a") };
        let good = wanted_stream(&options);
        let check = |config: &stream::Config| check_stream(config, &options);
        assert!(check(&good).is_ok());
        let bad: [fn(&mut stream::Config); 9] = [
            |config| drop(config.metadata.insert(CLUSTER_KEY.to_owned(), "staging".to_owned())),
            |config| config.max_message_size = 1 << 16,
            |config| config.storage = StorageType::Memory,
            |config| config.retention = RetentionPolicy::WorkQueue,
            |config| config.discard = DiscardPolicy::Old,
            |config| config.max_age = Duration::from_secs(1),
            |config| config.num_replicas = 1,
            |config| config.metadata.clear(),
            |config| config.subjects.push("more".to_owned()),
        ];
        for spoil in bad {
            let mut config = good.clone();
            spoil(&mut config);
            assert!(check(&config).is_err(), "{config:?}");
        }
    }
}
