//! The connection to the servers, and the checks without which no node may rely on them.

use super::options::NatsOptions;
use super::order::LogId;
use super::outbox::MESSAGE_BYTES_MAX;
use async_nats::Event;
use async_nats::connection::State;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, ContextBuilder, GetStreamErrorKind};
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr};
use cuckood_log::journal::Replication;
use cuckood_log::journal::{JournalError, Result, random};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How long a server may take to acknowledge a message, unless the servers are far away.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for a server to answer the reader, unless the servers are far away. Without a leader there is no response.
const READER_TIMEOUT: Duration = Duration::from_millis(400);

/// A response may take this many times as long as the first one took.
const SLOWER: u32 = 4;

/// Time for a server to answer any other request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection whose server is silent for three of these is replaced.
const PING_EVERY: Duration = Duration::from_secs(1);

/// How long a server may take to accept a connection, unless none is that fast. One that hangs never does.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The oldest supported server: earlier ones can't sync, or have lost complete streams.
const SERVER_MIN: (i64, i64, i64) = (2, 10, 23);

/// Where the stream's metadata has the log's identity.
const LOG_ID_KEY: &str = "cuckood-log";

/// Where it has the name of the cluster that has created it.
const CLUSTER_KEY: &str = "cuckood-cluster";

const NOT_OURS: &str = "its metadata has no identity of a log: it was not made by this service";

/// Returns the monotonic time of the connection's tasks: that of their runtime, which their timeouts and pauses follow, too. So a test that
/// stops the runtime's clock stops all of them. The writer's thread has the same clock, or a simulated log.
pub(super) fn now_in_runtime() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The connection to the log.
pub(super) struct Link {
    pub(super) options: NatsOptions,
    /// The state of the log's replication.
    pub(super) status: Arc<Mutex<Replication>>,
    pub(super) client: Client,
    /// Waits for `ack_timeout`.
    pub(super) context: Context,
    pub(super) ack_timeout: Duration,
    /// How long the reader waits for a response.
    pub(super) reader_timeout: Duration,
    pub(super) subject: String,
    pub(super) log: LogId,
    /// Number of the stream's first message.
    pub(super) first_message: u64,
}

impl Link {
    /// Connects, checks the servers, and opens the stream; creates it if there is none and that is allowed. Tries again until
    /// [`NatsOptions::connect_timeout`] is over.
    ///
    /// # Errors
    /// [`JournalError::Failed`] with the reason.
    pub(super) async fn open(options: &NatsOptions, may_create: bool) -> Result<Link> {
        with_retries(options, async || attempt(options, may_create).await).await
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Waits for the servers' response to the reader, up to a limit: without a leader there is none.
    pub(super) async fn respond<T>(&self, response: impl Future<Output = Result<T>>) -> Result<T> {
        let in_time = timeout(self.reader_timeout, response).await;
        in_time.unwrap_or_else(|_| Err(retry("the servers do not respond")))
    }
}

/// Connects without following the log, such as for transfers that must not hold it up.
///
/// # Errors
/// [`JournalError::Failed`] or [`JournalError::Unusable`] with the reason.
pub(super) async fn connect_separately(options: &NatsOptions) -> Result<Context> {
    let client = connect(options, &Arc::default()).await?;
    Ok(ContextBuilder::new().timeout(ANSWER_TIMEOUT).build(client))
}

/// The stream and the identity of its log; `None` if there is no such stream.
///
/// # Errors
/// [`JournalError::Failed`]; [`JournalError::Damaged`] if it was not made by this service.
pub(super) async fn find_stream(
    context: &Context,
    options: &NatsOptions,
) -> Result<Option<(Stream, LogId)>> {
    let Some(stream) = get_stream(context, &options.stream).await? else {
        return Ok(None);
    };
    let log = log_id(&stream.cached_info().config)?;
    Ok(Some((stream, log)))
}

async fn get_stream(context: &Context, name: &str) -> Result<Option<Stream>> {
    match context.get_stream(name).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(error)
                if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(None)
            }
            _ => Err(retry(error)),
        },
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
) -> Result<(Stream, LogId)> {
    let created = context.get_or_create_stream(wanted).await;
    let stream = created.map_err(|error| {
        let why = error.to_string();
        let too_many = options.replicas > 1 && (why.contains("replicas") || why.contains("peers"));
        let hint = if too_many {
            "; set nats.replicas to the number of servers"
        } else {
            ""
        };
        JournalError::Failed(format!("{why}{hint}"))
    })?;
    let log = log_id(&stream.cached_info().config)?;
    ensure_bucket(context, options).await?;
    Ok((stream, log))
}

/// Creates the object store of shared snapshots, unless it exists.
///
/// # Errors
/// [`JournalError::Failed`].
pub(super) async fn ensure_bucket(context: &Context, options: &NatsOptions) -> Result<Stream> {
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

/// Creates an empty log deliberately: `cuckood cluster init`. Returns its identity.
///
/// # Errors
/// [`JournalError::Failed`] if there is a stream of this name already, or the servers can't be used.
pub(super) async fn init(options: &NatsOptions) -> Result<LogId> {
    with_retries(options, async || {
        let context = connect_separately(options).await?;
        if find_stream(&context, options).await?.is_some() {
            return Err(JournalError::Unusable(
                "it exists; remove it first, or set nats.stream to another name".to_owned(),
            ));
        }
        create_stream(&context, options, stream_config(options))
            .await
            .map(|(_, log)| log)
    })
    .await
}

/// Tries again until [`NatsOptions::connect_timeout`] is over: servers that were just started have no leader yet.
///
/// # Errors
/// [`JournalError::Failed`].
pub(super) async fn with_retries<T>(
    options: &NatsOptions,
    attempt: impl AsyncFn() -> Result<T>,
) -> Result<T> {
    let until = now_in_runtime() + options.connect_timeout;
    let mut logged = String::new();
    loop {
        let error = match attempt().await {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        let why = error.to_string();
        if !matches!(error, JournalError::Failed(_)) || now_in_runtime() >= until {
            let stream = &options.stream;
            let servers = options.servers.join(", ");
            let what = format!("the stream {stream} on {servers} can't be used: {why}");
            return Err(JournalError::Failed(what));
        }
        if why != logged {
            tracing::warn!(servers = ?options.servers, why, "the replicated log can't be opened yet");
            logged = why;
        }
        sleep(Duration::from_millis(250)).await;
    }
}

/// A failure that another attempt may be spared.
pub(super) fn retry(error: impl std::fmt::Display) -> JournalError {
    JournalError::Failed(error.to_string())
}

async fn attempt(options: &NatsOptions, may_create: bool) -> Result<Link> {
    let status = Arc::default();
    let client = connect(options, &status).await?;
    let context = |timeout| ContextBuilder::new().timeout(timeout).build(client.clone());
    let (stream, log) = open_stream(&context(ANSWER_TIMEOUT), options, may_create).await?;
    let began = now_in_runtime();
    let info = stream.get_info().await.map_err(retry)?;
    let round_trip = now_in_runtime().saturating_duration_since(began);
    if info.config.subjects == [beginning(options)] {
        return Err(retry(
            "a restore is beginning this log; if it broke off, remove the stream and repeat it",
        ));
    }
    check_stream(&info.config, options).map_err(JournalError::Unusable)?;
    let server = client.server_info();
    let replicas = info.config.num_replicas;
    tracing::info!(
        server = server.server_name,
        version = server.version,
        stream = options.stream,
        replicas,
        last = info.state.last_sequence,
        "opened the replicated log"
    );
    tracing::warn!(
        "storage.durability does not apply: the servers of the log decide when a write is durable. Every one needs \
         `sync_interval: always` in its `jetstream` block, else a power cut of all of them loses acknowledged writes"
    );
    let max_bytes = info.config.max_bytes;
    let max_messages = info.config.max_messages;
    if max_bytes > 0 || max_messages > 0 {
        tracing::warn!(
            max_bytes,
            max_messages,
            "the stream is limited: it rejects writes once it is full"
        );
    }
    if replicas < 3 {
        tracing::warn!(
            replicas,
            "the log has fewer than three replicas: one lost server stops writes or loses acknowledged ones"
        );
    }
    let mut known = status.lock();
    (known.node, known.stream, known.replicas) =
        (options.node.clone(), options.stream.clone(), replicas);
    (known.server, known.server_version) = (server.server_name, server.version);
    known.known_end = info.state.last_sequence;
    drop(known);
    let limit = |least: Duration| least.max(round_trip * SLOWER);
    let ack_timeout = limit(ACK_TIMEOUT);
    let reader_timeout = limit(READER_TIMEOUT);
    Ok(Link {
        context: context(ack_timeout),
        ack_timeout,
        reader_timeout,
        subject: subject(options),
        log,
        first_message: info.state.first_sequence,
        options: options.clone(),
        status,
        client,
    })
}

/// Opens the stream. A node whose directory is empty creates it, unless something indicates an earlier log: nodes that have that log would
/// stop, and acknowledged writes would be undone.
async fn open_stream(
    context: &Context,
    options: &NatsOptions,
    may_create: bool,
) -> Result<(Stream, LogId)> {
    if let Some(found) = find_stream(context, options).await? {
        // The log alone is enough to serve, and each use of the object store tries again.
        if let Err(error) = ensure_bucket(context, options).await {
            tracing::warn!(%error, "the object store of shared snapshots does not respond; continuing without it");
        }
        return Ok(found);
    }
    let bucket = format!("OBJ_{}-snapshots", options.stream);
    if may_create && get_stream(context, &bucket).await?.is_none() {
        return create_stream(context, options, stream_config(options)).await;
    }
    let trace = if may_create {
        &*bucket
    } else {
        "this node's directory"
    };
    // Servers that were just started may not have found the stream yet, and another node may be creating it.
    Err(JournalError::Failed(format!(
        "stream not found, but {trace} belongs to an earlier log; see docs/CLUSTER.md, Start a new log, or begin an empty log with \
         `cuckood cluster init`"
    )))
}

/// Connects and checks the server; reports the state of the connection to `status`.
async fn connect(options: &NatsOptions, status: &Arc<Mutex<Replication>>) -> Result<Client> {
    let watched = status.clone();
    let login = &options.login;
    let tls = &options.tls;
    let mut connecting = ConnectOptions::new()
        .name(format!("cuckood {}", options.node))
        .ping_interval(PING_EVERY)
        .reconnect_delay_callback(|attempt| Duration::from_millis(50 * (attempt as u64).min(20)))
        .event_callback(move |event| {
            if note_event(&mut watched.lock(), &event, now_in_runtime()) {
                tracing::info!(%event, "connection to the replicated log");
            }
            async {}
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
        connecting = connecting
            .add_root_certificates(tls.ca.clone())
            .require_tls(true);
    }
    if !tls.cert.as_os_str().is_empty() {
        connecting = connecting
            .add_client_certificate(tls.cert.clone(), tls.key.clone())
            .require_tls(true);
    }
    let servers: Result<Vec<ServerAddr>, _> = options
        .servers
        .iter()
        .map(|server| server.parse())
        .collect();
    let servers = servers.map_err(|error| {
        JournalError::Unusable(format!(
            "nats.servers: {}: {error}",
            options.servers.join(", ")
        ))
    })?;
    let connect = async |timeout| {
        connecting
            .clone()
            .connection_timeout(timeout)
            .connect(&servers[..])
            .await
    };
    let client = match connect(CONNECT_TIMEOUT).await {
        Ok(client) => client,
        Err(error) if error.kind() == ConnectErrorKind::TimedOut => {
            connect(ANSWER_TIMEOUT).await.map_err(retry)?
        }
        Err(error) => return Err(retry(error)),
    };
    let server = client.server_info();
    let (major, minor, patch) = SERVER_MIN;
    if !client.is_server_compatible(major, minor, patch) {
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
    Ok(client)
}

fn subject(options: &NatsOptions) -> String {
    format!("{}.log", options.stream)
}

/// The stream as it is created.
pub(super) fn stream_config(options: &NatsOptions) -> stream::Config {
    stream::Config {
        name: options.stream.clone(),
        subjects: vec![subject(options)],
        description: Some(
            "cuckood's log: don't publish to it, delete from it or purge it".to_owned(),
        ),
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

/// The subject of a stream while a restore starts its log.
pub(super) fn beginning(options: &NatsOptions) -> String {
    format!("{}.beginning", options.stream)
}

/// Checks that the stream is of this cluster and retains acknowledged messages.
fn check_stream(config: &stream::Config, options: &NatsOptions) -> Result<(), String> {
    let cluster = config.metadata.get(CLUSTER_KEY).map_or("", String::as_str);
    if cluster != options.cluster {
        return Err(format!(
            "it belongs to the cluster `{cluster}`, and cluster.name is `{}`: set nats.stream to another name, so that each cluster has a separate log",
            options.cluster
        ));
    }
    let limit = |set: i64| usize::try_from(set).ok().filter(|limit| *limit > 0);
    let retains = |config: &stream::Config| {
        [
            ("subjects", format!("{:?}", config.subjects)),
            ("storage", format!("{:?}", config.storage)),
            ("retention", format!("{:?}", config.retention)),
            ("discard", format!("{:?}", config.discard)),
            ("max_age", format!("{:?}", config.max_age)),
            (
                "max_msgs_per_subject",
                format!("{:?}", limit(config.max_messages_per_subject)),
            ),
        ]
    };
    let settings = retains(config)
        .into_iter()
        .zip(retains(&stream_config(options)));
    if let Some(((setting, is), (_, wanted))) =
        settings.into_iter().find(|(is, wanted)| is != wanted)
    {
        return Err(format!(
            "its {setting} is {is}, not {wanted}: it would lose what nodes need"
        ));
    }
    if let Some(max) = limit(config.max_message_size.into()).filter(|max| *max < MESSAGE_BYTES_MAX)
    {
        return Err(format!(
            "it allows messages of {max} bytes only, not of {MESSAGE_BYTES_MAX}"
        ));
    }
    if config.num_replicas < options.replicas {
        let has = config.num_replicas;
        let wanted = options.replicas;
        return Err(format!(
            "it has {has} replicas, and nats.replicas is {wanted}"
        ));
    }
    Ok(())
}

/// The log's identity, which the stream's metadata has.
pub(super) fn log_id(config: &stream::Config) -> Result<LogId> {
    let id = config
        .metadata
        .get(LOG_ID_KEY)
        .and_then(|id| hex::decode(id).ok()?.try_into().ok());
    id.map(|id| LogId(u128::from_be_bytes(id)))
        .ok_or_else(|| JournalError::Damaged(NOT_OURS.to_owned()))
}

/// Notes whether the connection was made or lost. Returns whether to log the event.
fn note_event(known: &mut Replication, event: &Event, now: Instant) -> bool {
    match event {
        Event::Connected => known.note_connected(),
        Event::Disconnected | Event::Closed => known.note_disconnected(now),
        _ => {}
    }
    known.may_report(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{NatsLogin, NatsTls, OPEN_TIME};

    #[test]
    fn stream_that_could_lose_entries_is_rejected() {
        let options = NatsOptions {
            servers: vec!["nats://127.0.0.1:4222".to_owned()],
            stream: "shop".to_owned(),
            cluster: "production".to_owned(),
            replicas: 3,
            node: "node-1".to_owned(),
            login: NatsLogin::default(),
            tls: NatsTls::default(),
            connect_timeout: Duration::from_secs(1),
            log_margin: 1 << 30,
            open_time: OPEN_TIME,
        };
        let good = stream_config(&options);
        let check = |config: &stream::Config| check_stream(config, &options);
        assert!(check(&good).is_ok());
        let bad: [fn(&mut stream::Config); 9] = [
            |config| {
                drop(
                    config
                        .metadata
                        .insert(CLUSTER_KEY.to_owned(), "staging".to_owned()),
                )
            },
            |config| config.max_message_size = 1 << 16,
            |config| config.storage = StorageType::Memory,
            |config| config.retention = RetentionPolicy::WorkQueue,
            |config| config.discard = DiscardPolicy::Old,
            |config| config.max_age = Duration::from_secs(1),
            |config| config.max_messages_per_subject = 7,
            |config| config.num_replicas = 1,
            |config| config.subjects.push("more".to_owned()),
        ];
        assert!(log_id(&good).is_ok() && log_id(&stream::Config::default()).is_err());
        let unlimited = stream::Config {
            max_message_size: -1,
            max_messages_per_subject: -1,
            ..good.clone()
        };
        assert!(check(&unlimited).is_ok());
        for spoil in bad {
            let mut config = good.clone();
            spoil(&mut config);
            assert!(check(&config).is_err(), "{config:?}");
        }
    }
}
