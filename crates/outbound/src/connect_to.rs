//! `connect_to`: servers whose connections go elsewhere than their URL states.
//!
//! As with curl's `--connect-to`, only the connection changes. The request, the name in the check of the server's
//! certificate, and the replication id stay those of the URL. It applies to every connection that replications open, to
//! peers and to proxies. It does not change the connections that a proxy opens.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};

/// The most rules.
const MAX_RULES: usize = 100;

/// The rules; the first one that matches applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectTo(Vec<Rule>);

/// `pattern:port:target:port`
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// A host, `*.` and the end of one, or `*`.
    pattern: String,
    /// `None`: all ports.
    port: Option<u16>,
    /// `None`: the same host.
    target: Option<String>,
    /// `None`: the same port.
    target_port: Option<u16>,
}

impl ConnectTo {
    /// The address for a connection to the server in `at`.
    pub(crate) fn redirected(&self, at: &Uri) -> Uri {
        let host = at.host().unwrap_or_default();
        let port = port(at);
        let matches =
            |rule: &&Rule| matches_host(&rule.pattern, host) && rule.port.is_none_or(|only| only == port);
        let Some(rule) = self.0.iter().find(matches) else { return at.clone() };
        let host = rule.target.as_deref().unwrap_or(host);
        let authority = format!("{host}:{}", rule.target_port.unwrap_or(port));
        let mut parts = at.clone().into_parts();
        parts.authority = Some(authority.parse().expect("checked when it was parsed"));
        Uri::from_parts(parts).expect("only another authority")
    }
}

impl FromStr for ConnectTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        rules(text).map(Self)
    }
}

/// The rules of a setting, which are separated by commas.
pub(crate) fn rules<R: FromStr<Err = String>>(text: &str) -> Result<Vec<R>, String> {
    let rules: Vec<R> = text.split(',').map(|rule| rule.trim().parse()).collect::<Result<_, _>>()?;
    match rules.len() {
        ..=MAX_RULES => Ok(rules),
        _ => Err(format!("at most {MAX_RULES} rules")),
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let right = || {
            "pattern:port:target:port, like `*.example.com:443:10.0.0.7:8443`; where the second host or a port is left \
             out, it stays as it is"
                .to_owned()
        };
        let [pattern, port, target, target_port] = fields(text)[..] else { return Err(right()) };
        let parsed = |port: &str| match port {
            "" => Ok(None),
            port => port.parse().ok().filter(|port| *port > 0).map(Some).ok_or_else(right),
        };
        let host = pattern.strip_prefix("*.").unwrap_or(pattern);
        if !matches!(pattern, "" | "*") && !is_host(host) || !target.is_empty() && !is_host(target) {
            return Err(right());
        }
        Ok(Self {
            pattern: if pattern.is_empty() { "*" } else { pattern }.to_owned(),
            port: parsed(port)?,
            target: (!target.is_empty()).then(|| target.to_owned()),
            target_port: parsed(target_port)?,
        })
    }
}

/// The port of a URL, also if that does not state it.
pub(crate) fn port(at: &Uri) -> u16 {
    at.port_u16().unwrap_or(if at.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 })
}

/// Whether a host is the one of a pattern: a host, `*.` and the end of one, or `*`.
pub(crate) fn matches_host(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        None => host.eq_ignore_ascii_case(pattern),
        Some("") => true,
        Some(end) => {
            // The star stands for at least one label.
            let start = host.len().checked_sub(end.len()).filter(|start| *start > 0);
            start.is_some_and(|start| host.get(start..).is_some_and(|host| host.eq_ignore_ascii_case(end)))
        }
    }
}

/// Whether the text is only a host, as it appears in a URL.
pub(crate) fn is_host(text: &str) -> bool {
    !text.contains(['*', '@']) && text.parse::<Authority>().is_ok_and(|authority| authority.host() == text)
}

/// The parts between colons. Colons inside an address in brackets do not count.
pub(crate) fn fields(text: &str) -> Vec<&str> {
    let mut in_brackets = false;
    text.split(|character| {
        match character {
            '[' => in_brackets = true,
            ']' => in_brackets = false,
            _ => {}
        }
        character == ':' && !in_brackets
    })
    .collect()
}

impl fmt::Display for ConnectTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, rule) in self.0.iter().enumerate() {
            let port = |port: Option<u16>| port.map(|port| port.to_string()).unwrap_or_default();
            let target = rule.target.as_deref().unwrap_or_default();
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}:{target}:{}", rule.pattern, port(rule.port), port(rule.target_port))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn to(rules: &str, at: &str) -> String {
        rules.parse::<ConnectTo>().unwrap().redirected(&at.parse().unwrap()).to_string()
    }

    #[test]
    fn a_host_is_reached_elsewhere_and_the_rest_of_the_url_stays() {
        let rules = "db.example.com:5984:10.0.0.7:8080";
        assert_eq!(to(rules, "http://DB.example.com:5984/x"), "http://10.0.0.7:8080/x");
        assert_eq!(to(rules, "http://db.example.com/x"), "http://db.example.com/x");
        assert_eq!(to(rules, "http://other.example.com:5984/"), "http://other.example.com:5984/");
    }

    #[test]
    fn a_star_stands_for_one_label_or_more() {
        let rules = "*.example.com:443:proxy.local:8443";
        assert_eq!(to(rules, "https://a.b.example.com/"), "https://proxy.local:8443/");
        assert_eq!(to(rules, "https://example.com/"), "https://example.com/");
        assert_eq!(to(rules, "https://badexample.com/"), "https://badexample.com/");
        assert_eq!(to("*::127.0.0.1:", "http://any:5984/"), "http://127.0.0.1:5984/");
    }

    #[test]
    fn omitted_parts_stay_and_the_first_matching_rule_applies() {
        assert_eq!(to("a:80::81, a:80::82", "http://a/"), "http://a:81/");
        assert_eq!(to(":5984:b:", "http://a:5984/"), "http://b:5984/");
        assert_eq!(to("[::1]:80:[fe80::2]:81", "http://[::1]/"), "http://[fe80::2]:81/");
    }

    #[test]
    fn it_is_shown_as_it_was_written() {
        let rules = "*.example.com:443:10.0.0.7:8443,a::[::1]:";
        assert_eq!(rules.parse::<ConnectTo>().unwrap().to_string(), rules);
    }

    #[test]
    fn invalid_rules_are_refused() {
        for wrong in [
            "",
            "a",
            "a:80:b",
            "a:80:b:c",
            "a:0:b:1",
            "a:80:b:1:2",
            "a*:80:b:1",
            "a:80:*:1",
            "u@a:80:b:1",
            "a:x:b:1",
        ] {
            assert!(wrong.parse::<ConnectTo>().is_err(), "{wrong}");
        }
    }
}
