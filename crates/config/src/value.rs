//! Parses the text of settings.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use turnwise_identity::Patterns;
use turnwise_outbound::{AuthPlugin, EgressRules, Secret, SocketOptions};
use turnwise_policy::backoff::OnLost;
use turnwise_policy::predictive_queue::contention::Weight;
use turnwise_policy::predictive_queue::locks::MAX_NAME_BYTES;
use turnwise_replicator::upstream::Address;
use turnwise_telemetry::otel;

use super::cors;
use super::slots::Slots;
use crate::authority::Authority;

/// No limit, in Erlang's spelling.
pub(super) const INFINITY: &str = "infinity";

/// Maximum number of texts in a list.
const MAX_LIST: usize = 100;

/// A description of the valid values.
pub(super) type Right = String;

/// A setting's text.
#[derive(Clone, Copy)]
pub(super) struct Value<'a>(pub &'a str);

impl Value<'_> {
    pub fn number<T>(self, allowed: RangeInclusive<T>) -> Result<T, Right>
    where
        T: FromStr + PartialOrd + std::fmt::Display,
    {
        let number = self.0.parse().ok().filter(|number| allowed.contains(number));
        number.ok_or_else(|| format!("a whole number from {} to {}", allowed.start(), allowed.end()))
    }

    /// A number of slots, or the bounds of one that follows the demand.
    pub fn slots(self, allowed: RangeInclusive<usize>) -> Result<Slots, Right> {
        let (least, most) = (*allowed.start(), *allowed.end());
        Slots::parse(self.0, allowed).ok_or_else(|| {
            format!("a whole number from {least} to {most}, or two of them with .. between them, as in 4..64")
        })
    }

    pub fn optional_number(self, allowed: RangeInclusive<usize>) -> Result<Option<usize>, Right> {
        self.number(allowed).map(Some)
    }

    /// A whole number, or [`INFINITY`].
    pub fn number_or_infinity(self, allowed: RangeInclusive<usize>) -> Result<Option<usize>, Right> {
        if self.0 == INFINITY {
            return Ok(None);
        }
        self.number(allowed).map(Some).map_err(|right| format!("{right}, or {INFINITY}"))
    }

    /// A number, possibly with decimals.
    pub fn decimal(self, allowed: RangeInclusive<f64>) -> Result<f64, Right> {
        // Excludes other notations that Rust parses as a number: `inf`, `NaN`, `1e-3`.
        let plain = self.0.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number = self.0.parse().ok().filter(|number| plain && allowed.contains(number));
        number.ok_or_else(|| format!("a number from {} to {}", allowed.start(), allowed.end()))
    }

    /// A job's weight, with a precision of thousandths.
    pub fn weight(self) -> Result<Weight, Right> {
        let weight = self.decimal(0.001..=1_000.0)?;
        Weight::new(weight).ok_or_else(|| "a number from 0.001 to 1000".to_owned())
    }

    /// What has a parser of its own, which says what is valid.
    pub fn parsed<T: FromStr<Err = Right>>(self) -> Result<T, Right> {
        self.0.parse()
    }

    /// The same, where it does not say so.
    pub fn parsed_as<T: FromStr>(self, right: &str) -> Result<T, Right> {
        self.0.parse().map_err(|_| right.to_owned())
    }

    /// Milliseconds.
    pub fn ms(self, allowed: RangeInclusive<u64>) -> Result<Duration, Right> {
        self.number(allowed).map(Duration::from_millis)
    }

    /// Milliseconds, or [`INFINITY`].
    pub fn ms_or_infinity(self, allowed: RangeInclusive<u64>) -> Result<Option<Duration>, Right> {
        if self.0 == INFINITY {
            return Ok(None);
        }
        self.ms(allowed).map(Some).map_err(|right| format!("{right}, or {INFINITY}"))
    }

    /// A file of this machine. A relative path would depend on the working directory.
    pub fn file(self) -> Result<Option<PathBuf>, Right> {
        if self.0.starts_with('/') { Ok(Some(self.0.into())) } else { Err("an absolute path".to_owned()) }
    }

    pub fn egress_rules(self) -> Result<EgressRules, Right> {
        self.0.parse()
    }

    /// Text without white space.
    pub fn word(self) -> Result<Option<String>, Right> {
        let is_word = (1..=200).contains(&self.0.len()) && !self.0.contains(char::is_whitespace);
        if is_word {
            Ok(Some(self.0.to_owned()))
        } else {
            Err("up to 200 bytes without white space".to_owned())
        }
    }

    /// Names with wildcards.
    pub fn patterns(self) -> Result<Patterns, Right> {
        let right = "names with commas between them; * stands for any characters";
        Patterns::parse(self.0).map_err(|_| right.to_owned())
    }

    /// The URL of a collector.
    pub fn trace_url(self) -> Result<Option<String>, Right> {
        let is_url = url::Url::parse(self.0).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
        match is_url && self.0.contains("{trace_id}") {
            true => Ok(Some(self.0.to_owned())),
            false => Err("a URL with http or https, and with {trace_id} in it".to_owned()),
        }
    }

    pub fn otel_endpoint(self) -> Result<Option<String>, Right> {
        otel::endpoint(self.0).map(Some)
    }

    /// The headers of exports.
    pub fn otel_headers(self) -> Result<Option<Secret>, Right> {
        otel::headers(self.0).map(|_| Some(Secret::new(self.0)))
    }

    /// What is not stated by default.
    pub fn optional_parsed<T: FromStr<Err = Right>>(self) -> Result<Option<T>, Right> {
        self.0.parse().map(Some)
    }

    pub fn socket_options(self) -> Result<SocketOptions, Right> {
        SocketOptions::default().with(self.0)
    }

    /// Seconds, as µs.
    pub fn seconds_us(self) -> Result<i64, Right> {
        Ok(self.number::<i64>(0..=i64::from(u32::MAX))? * 1_000_000)
    }

    /// Milliseconds, as µs.
    pub fn ms_us(self, allowed: RangeInclusive<i64>) -> Result<i64, Right> {
        Ok(self.number(allowed)? * 1_000)
    }

    /// Milliseconds, as µs.
    pub fn optional_ms_us(self, allowed: RangeInclusive<i64>) -> Result<Option<i64>, Right> {
        self.ms_us(allowed).map(Some)
    }

    /// A duration in seconds, with up to three decimals. Its bounds are in ms.
    pub fn seconds(self, allowed_ms: RangeInclusive<u64>) -> Result<Duration, Right> {
        let (whole, decimals) = self.0.split_once('.').unwrap_or((self.0, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let ms = match (digits(whole), digits(decimals) && decimals.len() <= 3) {
            (true, true) => format!("{whole}{decimals:0<3}").parse().ok(),
            _ => None,
        };
        let ms = ms.filter(|ms| allowed_ms.contains(ms)).ok_or_else(|| {
            let seconds = |ms: &u64| Duration::from_millis(*ms).as_secs_f64();
            format!("seconds from {} to {}", seconds(allowed_ms.start()), seconds(allowed_ms.end()))
        })?;
        Ok(Duration::from_millis(ms))
    }

    /// What happens to a job that is lost with its worker.
    pub fn on_lost(self) -> Result<OnLost, Right> {
        let known = OnLost::ALL.into_iter().find(|known| known.name() == self.0);
        known.ok_or_else(|| OnLost::ALL.map(OnLost::name).join(" or "))
    }

    pub fn boolean(self) -> Result<bool, Right> {
        match self.0 {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("true or false".to_owned()),
        }
    }

    /// One or more of a few words, separated by commas.
    pub fn choices(self, allowed: &[&str]) -> Result<Vec<String>, Right> {
        let chosen: Vec<String> = self.0.split(',').map(|word| word.trim().to_ascii_lowercase()).collect();
        if chosen.iter().all(|word| allowed.contains(&word.as_str())) {
            Ok(chosen)
        } else {
            Err(format!("one or more of {}, separated by commas", allowed.join(", ")))
        }
    }

    /// Authentication plugins, separated by commas, under turnwise's or CouchDB's names.
    pub fn auth_plugins(self) -> Result<Vec<AuthPlugin>, Right> {
        let right = |_| "session,basic, or one of the two".to_owned();
        let plugins: Vec<AuthPlugin> =
            self.0.split(',').map(str::parse).collect::<Result<_, _>>().map_err(right)?;
        if plugins.len() <= AuthPlugin::ALL.len() { Ok(plugins) } else { Err(right(String::new())) }
    }

    /// One or more texts, separated by commas.
    fn list(self) -> Result<Vec<String>, Right> {
        let list: Vec<String> = self.0.split(',').map(|text| text.trim().to_owned()).collect();
        let right = list.len() <= MAX_LIST && list.iter().all(|text| !text.is_empty());
        if right { Ok(list) } else { Err(format!("up to {MAX_LIST} texts, separated by commas")) }
    }

    /// Names of hosts, in lower case and without ports; or `*`.
    pub fn host_names(self) -> Result<Vec<String>, Right> {
        let right = || format!("up to {MAX_LIST} host names without ports, separated by commas, or *");
        let name = |text: String| match text.as_str() {
            "*" => Some(text),
            _ => Authority::parse(&text).filter(|host| host.port.is_none()).map(|host| host.name),
        };
        self.list().map_err(|_| right())?.into_iter().map(name).collect::<Option<_>>().ok_or_else(right)
    }

    /// Origins of pages, in lower case, as browsers send them; or `*`. Apps have schemes of their own: `capacitor://localhost`.
    pub fn origins(self) -> Result<Vec<String>, Right> {
        let right =
            || format!("up to {MAX_LIST} origins like https://app.example:8443, separated by commas, or *");
        let is_origin = |origin: &String| match origin.split_once("://") {
            None => origin == cors::ANY,
            Some((scheme, host)) => is_token(scheme) && Authority::parse(host).is_some(),
        };
        let origins = self.list().map_err(|_| right())?;
        let origins: Vec<String> = origins.iter().map(|origin| origin.to_ascii_lowercase()).collect();
        if origins.iter().all(is_origin) { Ok(origins) } else { Err(right()) }
    }

    /// Names of headers, in lower case.
    pub fn header_names(self) -> Result<Vec<String>, Right> {
        self.tokens("names of headers")
            .map(|names| names.iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Methods of HTTP, which have a case.
    pub fn methods(self) -> Result<Vec<String>, Right> {
        self.tokens("methods of HTTP")
    }

    fn tokens(self, kind: &str) -> Result<Vec<String>, Right> {
        let right = || format!("up to {MAX_LIST} {kind}, separated by commas");
        self.list().ok().filter(|list| list.iter().all(|text| is_token(text))).ok_or_else(right)
    }

    /// Programs: names or absolute paths. A relative path would depend on the working directory.
    pub fn programs(self) -> Result<Option<Vec<String>>, Right> {
        let list = self.list()?;
        let right = list.iter().all(|text| text.starts_with('/') || !text.contains('/'));
        if right { Ok(Some(list)) } else { Err("names, or absolute paths, separated by commas".to_owned()) }
    }

    /// Names of environment variables, or prefixes that end with `*`.
    pub fn variables(self) -> Result<Option<Vec<String>>, Right> {
        let list = self.list()?;
        let name = |text: &str| {
            let name = text.strip_suffix('*').unwrap_or(text);
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let right = "names of letters, digits and _, or their beginnings and *, separated by commas";
        if list.iter().all(|text| name(text)) { Ok(Some(list)) } else { Err(right.to_owned()) }
    }

    /// A server's URL, with a login.
    pub fn server(self) -> Result<Option<Address>, Right> {
        Address::parse(self.0).map(Some).map_err(|error| {
            format!("a server's URL like http://user:password@host:5984/: this one {}", error.problem)
        })
    }

    /// URLs of servers, with logins.
    pub fn servers(self) -> Result<Vec<Address>, Right> {
        let list = self.list()?;
        let servers: Vec<Address> = list
            .iter()
            .map(|url| Value(url).server())
            .flat_map(Result::transpose)
            .collect::<Result<_, _>>()?;
        let mut names: Vec<&str> = servers.iter().map(Address::name).collect();
        names.sort_unstable();
        match names.windows(2).any(|two| two[0] == two[1])
            || names.iter().any(|name| name.len() > MAX_NAME_BYTES)
        {
            true => Err(format!("different servers, with hosts and paths of up to {MAX_NAME_BYTES} bytes")),
            false => Ok(servers),
        }
    }

    pub fn optional_patterns(self) -> Result<Option<Patterns>, Right> {
        self.patterns().map(Some)
    }

    pub fn uuid(self) -> Result<Option<String>, Right> {
        let is_hex = self.0.len() == 32 && self.0.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hex { Ok(Some(self.0.to_owned())) } else { Err("32 hexadecimal digits".to_owned()) }
    }
}

/// Whether the text is a token of HTTP, without the rare characters.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_+.".contains(&byte))
}
