//! A build whose messages have another format: it can't use the log, says so, and does no harm.

use crate::cluster::{settled, strong};
use crate::nats::Servers;
use crate::service::Service;
use crate::timeouts::{TIMEOUT, wait_until};
use serde_json::json;
use std::path::{Path, PathBuf};

/// One of two builds over one log.
struct Build {
    program: PathBuf,
    /// What it says about messages of the other one.
    rejects: &'static str,
}

impl Build {
    fn start(&self, servers: &Servers, dir: &Path, name: &str) -> Service {
        let servers = servers.urls().join(",");
        let settings = [
            ("CUCKOOD__JOURNAL__KIND", "nats"),
            ("CUCKOOD__NATS__SERVERS", servers.as_str()),
            ("CUCKOOD__NATS__REPLICAS", "1"),
            ("CUCKOOD__CLUSTER__NODE", name),
            ("CUCKOOD__STORAGE__BALLAST", "0"),
            ("CUCKOOD__STORAGE__FREE_SPACE_MIN", "0"),
        ];
        Service::start(&self.program, dir, &settings)
    }

    fn start_ready(&self, servers: &Servers, dir: &Path, name: &str) -> Service {
        let service = self.start(servers, dir, name);
        wait_until("a start", || {
            service
                .client()
                .get("/readyz")
                .is_ok_and(|ready| ready.status == 200)
        });
        service
    }

    /// Starts a node that can't use the log, and waits until it says why.
    fn start_rejected(&self, servers: &Servers, dir: &Path, name: &str) {
        let service = self.start(servers, dir, name);
        let said = service.output().wait_for(TIMEOUT, |line| {
            line.contains(self.rejects).then(|| line.to_owned())
        });
        println!(
            "{name}: {}",
            said.unwrap_or_else(|| panic!("{:#?}", service.output().so_far()))
        );
        assert_ne!(
            service
                .client()
                .get("/readyz")
                .map(|ready| ready.status)
                .ok(),
            Some(200)
        );
    }
}

/// Redeems codes through all nodes, and sees that all of them have every redemption.
fn sell(nodes: &[Service], from: usize, count: usize) {
    for number in from..from + count {
        let client = nodes[number % nodes.len()].client();
        let body =
            json!({"code": format!("code-{number}"), "reference": format!("order-{number}")});
        let sold = settled(|| client.post("/v1/coupons/sale/redemptions", &body));
        assert!([200, 201].contains(&sold.status), "{sold:?}");
    }
    for node in nodes {
        let stats = settled(|| strong(&node.client(), "/v1/coupons/sale")).body["stats"].clone();
        assert_eq!(stats["redeemed"], from + count);
    }
}

/// `CUCKOOD_BEFORE` is a program whose messages have another format; `tools/test-long.sh` builds it.
#[test]
#[ignore = "needs an earlier program: make test-long WHAT=cluster"]
fn builds_with_other_messages_do_no_harm() {
    let before =
        std::env::var_os("CUCKOOD_BEFORE").expect("CUCKOOD_BEFORE names the earlier program");
    let earlier = Build {
        program: before.into(),
        rejects: "later version",
    };
    let present = Build {
        program: env!("CARGO_BIN_EXE_cuckood").into(),
        rejects: "run one version of cuckood on all nodes",
    };
    for [first, second] in [[&earlier, &present], [&present, &earlier]] {
        let servers = Servers::start(1);
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let mut nodes: Vec<Service> = ["a", "b"]
            .iter()
            .zip(&dirs)
            .map(|(name, dir)| first.start_ready(&servers, dir.path(), name))
            .collect();
        let client = nodes[0].client();
        assert!(
            settled(|| client.put("/v1/coupons/sale", &json!({"capacity": 1_000}))).status < 300
        );
        let codes: Vec<String> = (0..60).map(|number| format!("code-{number}")).collect();
        settled(|| client.post_once("/v1/coupons/sale/codes", &json!({"codes": codes}), "all"));
        sell(&nodes, 0, 20);

        println!("another build joins with an empty directory");
        second.start_rejected(&servers, dirs[2].path(), "c");
        sell(&nodes, 20, 20);
        println!("another build starts in the directory of a node");
        nodes.pop().unwrap().terminate();
        second.start_rejected(&servers, dirs[1].path(), "b");
        sell(&nodes, 40, 10);
        nodes.push(first.start_ready(&servers, dirs[1].path(), "b"));
        sell(&nodes, 50, 10);
    }
}
