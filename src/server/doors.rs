//! Both doors: HTTP, and that for Redis clients if it is open. They share the workers, the certificate and the time-outs.

use super::connections::Connections;
use super::http_door::HttpDoor;
use super::resp_door::RespDoor;
use super::watch::Timeouts;
use super::workers::Workers;
use crate::config::Config;
use crate::http::HttpService;
use crate::resp;
use crate::tls::Tls;
use std::future::pending;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The sockets to serve.
#[derive(Debug)]
pub struct Listeners {
    /// For HTTP.
    pub http: TcpListener,
    /// For Redis clients, if they are served.
    pub resp: Option<TcpListener>,
}

/// Both doors, and the listeners that lead to them until they are closed.
pub(super) struct Doors {
    http: Connections<HttpDoor>,
    resp: Connections<RespDoor>,
    http_listener: Option<TcpListener>,
    resp_listener: Option<TcpListener>,
}

impl Doors {
    /// Opens them, each with so many places.
    pub(super) fn new(
        config: &Config,
        listeners: Listeners,
        [http_places, resp_places]: [usize; 2],
        workers: Arc<Workers>,
        tls: Option<Arc<Tls>>,
        (service, door): (HttpService, resp::Door),
    ) -> Self {
        let server = &config.server;
        let timeouts = Timeouts {
            header: server.header_timeout,
            idle: server.idle_timeout,
            write: server.write_timeout,
        };
        let resp_timeouts = Timeouts { idle: config.resp.idle_timeout(), ..timeouts };
        let (http, resp) = (HttpDoor::new(service, server.header_bytes_max), RespDoor::new(door));
        Self {
            http: Connections::new(http, workers.clone(), tls.clone(), http_places, timeouts),
            resp: Connections::new(resp, workers, tls, resp_places, resp_timeouts),
            http_listener: Some(listeners.http),
            resp_listener: listeners.resp,
        }
    }

    /// Accepts connections. Never returns.
    pub(super) async fn accept(&mut self) {
        let Self { http, resp, http_listener, resp_listener } = self;
        let http = async {
            match http_listener {
                Some(listener) => http.accept(listener).await,
                None => pending().await,
            }
        };
        let resp = async {
            match resp_listener {
                Some(listener) => resp.accept(listener).await,
                None => pending().await,
            }
        };
        tokio::join!(http, resp);
    }

    /// Lets nobody new in.
    pub(super) fn close(&mut self) {
        (self.http_listener, self.resp_listener) = (None, None);
    }

    /// Lets running requests finish. Returns once no connection is left.
    pub(super) async fn drain(&mut self) {
        tokio::join!(self.http.drain(), self.resp.drain());
    }
}
