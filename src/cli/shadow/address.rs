//! Where Redis is, and who asks: the URL of `--redis`.

use percent_encoding::percent_decode_str;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use url::Url;

const PORT: u16 = 6379;

/// An address in Redis' customary form.
#[derive(Clone)]
pub struct Address {
    /// Name or address of the machine.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether to speak TLS.
    pub tls: bool,
    /// The user; empty for the default one.
    pub user: String,
    /// The password; empty for none.
    pub password: String,
    /// The database's number.
    pub database: u32,
}

/// Why an address can't be used. It does not repeat it: there may be a password in it.
#[derive(Debug, Error)]
#[error("--redis: {0}")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let fault = |what: &str| {
            AddressError(format!("{what}; it has the form redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]"))
        };
        let url = Url::parse(text).map_err(|error| fault(&error.to_string()))?;
        let tls = match url.scheme() {
            "redis" => false,
            "rediss" => true,
            scheme => return Err(fault(&format!("`{scheme}` is neither redis nor rediss"))),
        };
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| fault("there is no host"))?;
        let database = match url.path().trim_start_matches('/') {
            "" => 0,
            number => number.parse().map_err(|_| fault("the database is no number"))?,
        };
        let decoded = |text: &str| {
            let text = percent_decode_str(text).decode_utf8();
            text.map(|text| text.into_owned()).map_err(|_| fault("user and password must be UTF-8"))
        };
        Ok(Self {
            // An IPv6 address stands in brackets.
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: url.port().unwrap_or(PORT),
            tls,
            user: decoded(url.username())?,
            password: decoded(url.password().unwrap_or_default())?,
            database,
        })
    }
}

/// Without user and password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_all_their_forms() {
        let read = |text: &str| {
            let Address { host, port, tls, user, password, database } = text.parse().ok()?;
            Some((host, port, tls, user, password, database))
        };
        let wanted = |host: &str, port, tls, user: &str, password: &str, database| {
            Some((host.to_owned(), port, tls, user.to_owned(), password.to_owned(), database))
        };
        assert_eq!(read("redis://localhost"), wanted("localhost", 6379, false, "", "", 0));
        assert_eq!(read("redis://:p%40ss@10.0.0.1:7000/3"), wanted("10.0.0.1", 7000, false, "", "p@ss", 3));
        assert_eq!(read("rediss://shop:secret@[::1]/"), wanted("::1", 6379, true, "shop", "secret", 0));
    }

    #[test]
    fn a_faulty_address_is_told_without_its_password() {
        for text in [
            "http://:secret@a",
            "redis://:secret@a/b",
            "redis://:secret@",
            "secret",
            "redis://:secret@a:99999",
        ] {
            let error = text.parse::<Address>().err().map(|error| error.to_string());
            let error = error.unwrap_or_else(|| panic!("{text} is taken"));
            assert!(!error.contains("secret") && error.starts_with("--redis: "), "{error}");
        }
    }
}
