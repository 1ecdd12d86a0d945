//! Every write is sent twice with one `Idempotency-Key`, the service killed in between: the answer is the same, and
//! the effect is that of once, whatever has happened since.

use crate::program;
use crate::service::{Answer, Client, Service};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A request without its key.
#[derive(Clone, Debug)]
struct Request {
    method: &'static str,
    path: String,
    body: Value,
}

fn request(method: &'static str, path: &str, body: Value) -> Request {
    Request {
        method,
        path: path.into(),
        body,
    }
}

impl Request {
    fn send(&self, client: &Client, key: Option<&str>) -> Answer {
        let key = key.map(|key| ("Idempotency-Key", key));
        let json = (!self.body.is_null()).then_some(("Content-Type", "application/json"));
        let headers: Vec<_> = key.into_iter().chain(json).collect();
        let body = if self.body.is_null() {
            String::new()
        } else {
            self.body.to_string()
        };
        client
            .send(self.method, &self.path, &headers, body.as_bytes())
            .unwrap()
    }
}

/// A write that was sent once, with another request that its key must refuse.
struct Sent {
    key: String,
    request: Request,
    other: Option<Request>,
    answer: Answer,
}

/// Sends writes, each with a separate key.
struct Writes {
    client: Client,
    sent: Vec<Sent>,
}

impl Writes {
    fn send(&mut self, status: u16, request: Request, other: Option<Request>) -> Value {
        let key = format!("key-{}", self.sent.len());
        let answer = request.send(&self.client, Some(&key));
        assert_eq!(
            (answer.status, answer.replayed),
            (status, false),
            "{request:?}: {answer:?}"
        );
        let body = answer.body.clone();
        self.sent.push(Sent {
            key,
            request,
            other,
            answer,
        });
        body
    }

    /// A write whose key is tried with another body, too.
    fn write(
        &mut self,
        status: u16,
        method: &'static str,
        path: &str,
        body: Value,
        other: Value,
    ) -> Value {
        self.send(
            status,
            request(method, path, body),
            Some(request(method, path, other)),
        )
    }

    /// A write without a body. Its key is tried with another write of the same campaign or coupon.
    fn command(&mut self, path: &str, other: Request) -> Value {
        self.send(200, request("POST", path, Value::Null), Some(other))
    }

    fn delete(&mut self, path: &str) {
        // There is no other request of this kind and name.
        self.send(204, request("DELETE", path, Value::Null), None);
    }

    fn plain(&self, method: &'static str, path: &str, body: Value) {
        let answer = request(method, path, body).send(&self.client, None);
        assert!(
            (200..300).contains(&answer.status),
            "{method} {path}: {answer:?}"
        );
    }

    fn redeem(&mut self, status: u16, code: &str, reference: &str, hold_seconds: u64) -> String {
        let body = json!({ "code": code, "reference": reference, "hold_seconds": hold_seconds });
        let other =
            json!({ "code": code, "reference": "another-order", "hold_seconds": hold_seconds });
        let redemption = self.write(
            status,
            "POST",
            "/v1/coupons/welcome/redemptions",
            body,
            other,
        );
        format!(
            "/v1/coupons/welcome/redemptions/{}",
            redemption["id"].as_str().unwrap_or_default()
        )
    }

    fn campaigns(&mut self) {
        let spring = "/v1/campaigns/spring";
        self.write(
            201,
            "PUT",
            spring,
            json!({ "capacity": 100 }),
            json!({ "capacity": 200 }),
        );
        let ends = |year: u32| json!({ "ends_at": format!("{year}-01-01T00:00:00Z") });
        self.write(200, "PATCH", spring, ends(2100), ends(2101));
        let capacity = |capacity: u64| json!({ "capacity": capacity });
        self.write(200, "PATCH", spring, capacity(300), capacity(400));
        // Compact: without the key, each of these would do more a second time.
        let users = |users: &[&str]| json!({ "users": users });
        let path = format!("{spring}/users");
        self.write(
            200,
            "POST",
            &path,
            users(&["u1", "u1", "u1", "u2"]),
            users(&["u3"]),
        );
        let remove = format!("{spring}/users/remove");
        let one = self.write(200, "POST", &remove, users(&["u1"]), users(&["u2"]));
        assert_eq!(one["removed"], 1);
        let replace = format!("{spring}/users/replace");
        let pair = |to: &str| json!({ "replacements": [{ "from": "u1", "to": to }] });
        self.write(200, "POST", &replace, pair("u4"), pair("u5"));

        self.plain("PUT", "/v1/campaigns/summer", json!({ "capacity": 100 }));
        self.plain("POST", "/v1/campaigns/summer/users", users(&["u1", "u2"]));
        let add = request("POST", "/v1/campaigns/summer/users", users(&["u6"]));
        assert_eq!(
            self.command("/v1/campaigns/summer/clear", add)["removed"],
            2
        );
        self.plain("POST", "/v1/campaigns/summer/users", users(&["since"]));

        let full = json!({ "capacity": 1, "growth": "fixed", "mode": "strict" });
        self.plain("PUT", "/v1/campaigns/small", full);
        let many: Vec<String> = (0..100).map(|n| format!("many-{n}")).collect();
        let path = "/v1/campaigns/small/users";
        self.write(409, "POST", path, json!({ "users": many }), users(&["u1"]));

        self.plain("PUT", "/v1/campaigns/autumn", json!({ "capacity": 100 }));
        self.delete("/v1/campaigns/autumn");
        self.plain("PUT", "/v1/campaigns/autumn", json!({ "capacity": 100 }));
        self.plain("POST", "/v1/campaigns/autumn/users", users(&["since"]));
    }

    fn coupons(&mut self) {
        let welcome = "/v1/coupons/welcome";
        self.write(
            201,
            "PUT",
            welcome,
            json!({ "capacity": 100 }),
            json!({ "capacity": 200 }),
        );
        let starts = |year: u32| json!({ "starts_at": format!("{year}-01-01T00:00:00Z") });
        self.write(200, "PATCH", welcome, starts(2020), starts(2021));
        let list = |codes: &[&str]| json!({ "codes": codes });
        let codes = format!("{welcome}/codes");
        self.write(
            200,
            "POST",
            &codes,
            list(&["A", "B", "C", "D", "E", "F", "G"]),
            list(&["Z"]),
        );
        self.write(
            200,
            "POST",
            &format!("{codes}/remove"),
            list(&["F"]),
            list(&["A"]),
        );
        let pair = |to: &str| json!({ "replacements": [{ "from": "G", "to": to }] });
        self.write(
            200,
            "POST",
            &format!("{codes}/replace"),
            pair("H"),
            pair("I"),
        );
        // Several commands; one of the codes is withdrawn since.
        let generate = |count: u64| json!({ "count": count, "pattern": "SPRING-########" });
        let generated = self.write(
            200,
            "POST",
            &format!("{codes}/generate"),
            generate(5_000),
            generate(5_001),
        );
        let generated: Vec<&str> = generated
            .as_str()
            .unwrap()
            .split_terminator("\r\n")
            .collect();
        assert_eq!((generated.len(), generated[0]), (5_001, "code"));
        self.plain("POST", &format!("{codes}/remove"), list(&generated[1..2]));

        // Used, and cancelled since.
        let used = self.redeem(201, "A", "order-1", 0);
        self.plain("POST", &format!("{used}/cancel"), Value::Null);
        // Held, and held longer.
        self.redeem(201, "B", "order-2", 3_600);
        self.redeem(200, "B", "order-2", 7_200);
        self.redeem(409, "B", "order-3", 0);
        self.redeem(404, "NEVER", "order-3", 0);
        // Confirmed, and cancelled since.
        let held = self.redeem(201, "C", "order-4", 3_600);
        let add = request("POST", &codes, list(&["Z"]));
        assert_eq!(
            self.command(&format!("{held}/confirm"), add.clone())["status"],
            "redeemed"
        );
        self.plain("POST", &format!("{held}/cancel"), Value::Null);
        // Given back, and used by another since.
        let given_back = self.redeem(201, "D", "order-5", 0);
        assert_eq!(
            self.command(&format!("{given_back}/cancel"), add)["status"],
            "cancelled"
        );
        self.plain(
            "POST",
            &format!("{welcome}/redemptions"),
            json!({ "code": "D", "reference": "order-6" }),
        );
        // Revived, and used again since.
        self.redeem(201, "E", "order-7", 0);
        let revive = |code: &str| json!({ "codes": [code], "revive": true });
        let revived = self.write(200, "POST", &codes, revive("E"), revive("D"));
        assert_eq!(revived["outcomes"], json!(["revived"]));
        self.plain(
            "POST",
            &format!("{welcome}/redemptions"),
            json!({ "code": "E", "reference": "order-8" }),
        );

        self.plain("PUT", "/v1/coupons/summer", json!({ "capacity": 100 }));
        self.plain("POST", "/v1/coupons/summer/codes", list(&["A", "B"]));
        let add = request("POST", "/v1/coupons/summer/codes", list(&["C"]));
        assert_eq!(self.command("/v1/coupons/summer/clear", add)["removed"], 2);
        self.plain("POST", "/v1/coupons/summer/codes", list(&["since"]));

        self.plain("PUT", "/v1/coupons/autumn", json!({ "capacity": 100 }));
        self.delete("/v1/coupons/autumn");
        self.plain("PUT", "/v1/coupons/autumn", json!({ "capacity": 100 }));
    }

    fn line_ups(&mut self) {
        let of = |campaign: &str| json!({ "campaigns": [campaign] });
        self.write(201, "PUT", "/v1/line-ups/home", of("spring"), of("summer"));
        self.plain("PUT", "/v1/line-ups/home", of("summer"));
        self.plain("PUT", "/v1/line-ups/away", of("spring"));
        self.delete("/v1/line-ups/away");
        self.plain("PUT", "/v1/line-ups/away", of("autumn"));
    }
}

/// The parameter that the document's operations share.
const KEY: &str = "#/components/parameters/Idempotency-Key";

/// The writes that take a key, by the document that the service gives of itself, as `POST /v1/campaigns/*/users`.
fn documented(client: &Client) -> BTreeSet<String> {
    let document = client.get("/openapi.json").unwrap().body;
    let mut writes = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            if parameters
                .into_iter()
                .any(|parameter| parameter["$ref"] == KEY)
            {
                let steps = path
                    .split('/')
                    .map(|step| if step.starts_with('{') { "*" } else { step });
                writes.insert(format!(
                    "{} {}",
                    method.to_uppercase(),
                    steps.collect::<Vec<_>>().join("/")
                ));
            }
        }
    }
    writes
}

fn route(request: &Request) -> String {
    let mut steps: Vec<&str> = request.path.split('/').collect();
    for variable in [3, 5] {
        let is_id = variable == 3 || steps.get(4) == Some(&"redemptions");
        if let Some(step) = steps.get_mut(variable).filter(|_| is_id) {
            *step = "*";
        }
    }
    format!("{} {}", request.method, steps.join("/"))
}

/// Everything that a second effect would change.
fn effects(client: &Client) -> Value {
    let ask = |path: &str, body: Value| client.post(path, &body).unwrap().body;
    let names = ["u1", "u2", "u3", "u4", "u5", "u6", "since", "many-0"];
    let codes = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "Z", "since"];
    let redemptions = (1..=8).map(|n| {
        client
            .get(&format!(
                "/v1/coupons/welcome/redemptions?reference=order-{n}"
            ))
            .unwrap()
            .body
    });
    let counts = ["spring", "summer", "autumn", "small"].map(|campaign| {
        ask(
            &format!("/v1/campaigns/{campaign}/users/count"),
            json!({ "users": names }),
        )
    });
    let valid = ["welcome", "summer", "autumn"].map(|coupon| {
        ask(
            &format!("/v1/coupons/{coupon}/codes/check"),
            json!({ "codes": codes }),
        )
    });
    let lists =
        ["/v1/campaigns", "/v1/coupons", "/v1/line-ups"].map(|path| client.get(path).unwrap().body);
    json!([lists, counts, valid, redemptions.collect::<Vec<_>>()])
}

/// Sends everything again: nothing is done, and every response is the same. Those that changed something are the stored responses.
fn assert_replayed(client: &Client, writes: &Writes, effects_of_once: &Value) {
    for Sent {
        key,
        request,
        answer,
        ..
    } in &writes.sent
    {
        let again = request.send(client, Some(key));
        assert_eq!(
            again.replayed,
            answer.status < 400,
            "{request:?}: {again:?}"
        );
        assert_eq!(
            (again.status, without_request_id(&again)),
            (answer.status, without_request_id(answer))
        );
    }
    assert_eq!(effects(client), *effects_of_once);
}

/// A problem contains the ID of this request, not of the first.
fn without_request_id(answer: &Answer) -> Value {
    let mut body = answer.body.clone();
    if let Some(problem) = body.as_object_mut() {
        problem.remove("request_id");
    }
    body
}

#[test]
fn write_has_one_effect_across_kills() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = Service::start_ready(program(), &data, &[]);
    let mut writes = Writes {
        client: service.client(),
        sent: Vec::new(),
    };
    writes.campaigns();
    writes.coupons();
    writes.line_ups();
    let covered: BTreeSet<String> = writes
        .sent
        .iter()
        .map(|sent| route(&sent.request))
        .collect();
    assert_eq!(
        covered,
        documented(&service.client()),
        "sent on the left, documented on the right"
    );
    let effects_of_once = effects(&service.client());
    service.kill();

    // The responses are recovered from the log,
    let service = Service::start_ready(program(), &data, &[]);
    assert_replayed(&service.client(), &writes, &effects_of_once);
    assert_eq!(
        service
            .client()
            .post("/v1/snapshots", &json!({}))
            .unwrap()
            .status,
        200
    );
    service.kill();

    // and out of a snapshot.
    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    assert_replayed(&client, &writes, &effects_of_once);
    // A rejected write leaves its key unused.
    for sent in writes.sent.iter().filter(|sent| sent.answer.status < 400) {
        let Some(other) = &sent.other else { continue };
        let refused = other.send(&client, Some(&sent.key));
        let code = &refused.body["code"];
        assert_eq!(
            (refused.status, code),
            (422, &json!("idempotency-key-reused")),
            "{other:?}: {refused:?}"
        );
    }
    assert_eq!(effects(&client), effects_of_once);
}

#[test]
fn import_has_one_effect_across_kills() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    for path in [
        "/v1/campaigns/spring",
        "/v1/campaigns/summer",
        "/v1/coupons/welcome",
    ] {
        assert_eq!(
            client
                .put(path, &json!({ "capacity": 100 }))
                .unwrap()
                .status,
            201
        );
    }
    let send = |client: &Client, path: &str| {
        client
            .send("POST", path, &[("Content-Type", "text/plain")], b"a\nb\n\n")
            .unwrap()
    };
    let imports = [
        "/v1/campaigns/spring/imports?id=one",
        "/v1/campaigns/summer/imports?id=two&mode=replace",
        "/v1/coupons/welcome/imports?id=three",
    ];
    let first = imports.map(|path| {
        let answer = send(&client, path);
        assert_eq!(
            (answer.status, &answer.body["added"]),
            (200, &json!(2)),
            "{path}: {answer:?}"
        );
        answer.body
    });
    let counts = |client: &Client| {
        let users = json!({ "users": ["a", "b"] });
        client
            .post("/v1/campaigns/spring/users/count", &users)
            .unwrap()
            .body
    };
    assert_eq!(counts(&client), json!({ "counts": [1, 1] }));
    service.kill();

    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    for (path, first) in imports.iter().zip(first) {
        let again = send(&client, path);
        assert_eq!((again.status, again.body), (200, first), "{path}");
    }
    // Elsewhere or in another mode it is another import, which can't bear the id.
    for other in [
        "/v1/coupons/welcome/imports?id=one",
        "/v1/campaigns/spring/imports?id=one&mode=replace",
    ] {
        let refused = send(&client, other);
        assert_eq!(
            (refused.status, &refused.body["code"]),
            (409, &json!("import-differs")),
            "{other}"
        );
    }
    assert_eq!(counts(&client), json!({ "counts": [1, 1] }));
}
