//! Where traces go: `[otel]`, and the environment variables of OpenTelemetry where it states nothing.

use percent_encoding::percent_decode_str;
use tonic::metadata::{Ascii, MetadataKey, MetadataValue};
use turnwise_outbound::Secret;
use url::Url;

/// The name of the service in traces, unless the settings have another one.
const SERVICE_NAME: &str = "turnwise";
/// Maximum number of headers.
const MAX_HEADERS: usize = 20;

/// `[otel]`
#[derive(Debug, Clone, PartialEq)]
pub struct OtelSettings {
    /// `endpoint`: the collector. Without one, nothing is traced.
    pub endpoint: Option<String>,
    /// `headers`: what each export sends, as `name=value` pairs.
    pub headers: Option<Secret>,
    /// `service_name`: the name of the service in traces.
    pub service_name: Option<String>,
    /// `sample_ratio`: which part of the jobs is traced whose client sends no context.
    pub sample_ratio: f64,
    /// `trace_url`: the page that shows a trace, with `{trace_id}` in the place of its id.
    pub trace_url: Option<String>,
}

impl Default for OtelSettings {
    fn default() -> Self {
        OtelSettings { endpoint: None, headers: None, service_name: None, sample_ratio: 1.0, trace_url: None }
    }
}

/// The header of an export.
pub(super) type Header = (MetadataKey<Ascii>, MetadataValue<Ascii>);

/// What exports need.
#[derive(Clone)]
pub struct Target {
    /// The URL of the collector.
    pub endpoint: String,
    /// The name of the service in traces.
    pub service_name: String,
    pub(super) headers: Vec<Header>,
}

impl Target {
    /// The target that the settings name, or the environment. `None` if neither names one.
    ///
    /// # Errors
    /// What is wrong, without any value that may be secret.
    pub fn new(
        settings: &OtelSettings,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Target>, String> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let first = |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, set(name)?)));
        let wrong = |name: &'static str| move |right: String| format!("{name}: expected {right}");
        let from_env = first(["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]);
        let endpoint = match (&settings.endpoint, from_env) {
            (Some(endpoint), _) => endpoint.clone(),
            (None, None) => return Ok(None),
            (None, Some((name, url))) => {
                let endpoint = endpoint(&url).map_err(wrong(name))?;
                let protocol = first(["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]);
                if let Some((name, _)) = protocol.filter(|(_, protocol)| protocol != "grpc") {
                    let right = "grpc, which is the protocol that turnwise exports with";
                    return Err(wrong(name)(right.to_owned()));
                }
                endpoint
            }
        };
        let from_env = first(["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"]);
        let headers = match (&settings.headers, from_env) {
            (Some(headers), _) => self::headers(headers.reveal())?,
            (None, None) => Vec::new(),
            (None, Some((name, text))) => self::headers(&text).map_err(wrong(name))?,
        };
        let service_name = settings.service_name.clone().or_else(|| set("OTEL_SERVICE_NAME"));
        let service_name = service_name.unwrap_or_else(|| SERVICE_NAME.to_owned());
        Ok(Some(Target { endpoint, service_name, headers }))
    }
}

/// A collector's URL.
///
/// # Errors
/// What would be valid.
pub fn endpoint(text: &str) -> Result<String, String> {
    let right = || "a collector's URL for OTLP over gRPC, like http://127.0.0.1:4317".to_owned();
    let url = Url::parse(text).map_err(|_| right())?;
    let is_plain = url.username().is_empty() && url.password().is_none();
    let has_no_path = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
    let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
    if is_plain && has_no_path && is_web { Ok(text.to_owned()) } else { Err(right()) }
}

/// The headers of exports, as `name=value` pairs whose values are percent-encoded.
///
/// # Errors
/// What would be valid.
pub fn headers(text: &str) -> Result<Vec<Header>, String> {
    let right = || {
        format!(
            "up to {MAX_HEADERS} headers as name=value, separated by commas, with %XX for special characters"
        )
    };
    let header = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let name = MetadataKey::from_bytes(name.trim().to_ascii_lowercase().as_bytes()).ok()?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let mut value = MetadataValue::try_from(value.as_ref()).ok()?;
        // It is not shown, also where a library logs what it sends.
        value.set_sensitive(true);
        Some((name, value))
    };
    let headers: Option<Vec<Header>> = text.split(',').map(header).collect();
    headers.filter(|headers| headers.len() <= MAX_HEADERS).ok_or_else(right)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn target(settings: &OtelSettings, env: &[(&str, &str)]) -> Result<Option<Target>, String> {
        let value =
            |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Target::new(settings, value)
    }

    #[test]
    fn settings_come_before_the_environment_and_without_an_endpoint_nothing_is_traced() {
        let mut settings = OtelSettings::default();
        let env = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://other:4317"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, X-B=c"),
            ("OTEL_SERVICE_NAME", "jobs"),
        ];
        assert!(target(&settings, &[]).unwrap().is_none());
        assert!(target(&settings, &env[1..]).unwrap().is_none());
        let from_env = target(&settings, &env).unwrap().unwrap();
        assert_eq!((&*from_env.endpoint, &*from_env.service_name), ("http://other:4317", "jobs"));
        let [(name, value), (other, _)] = &from_env.headers[..] else { panic!("two headers") };
        assert_eq!((name.as_str(), value.to_str().unwrap(), other.as_str()), ("api-key", "a b", "x-b"));
        assert!(!format!("{value:?}").contains("a b"));

        settings.endpoint = Some("https://collector.example".into());
        settings.headers = Some(Secret::new("api-key=hunter2"));
        settings.service_name = Some("mine".into());
        let set = target(&settings, &env).unwrap().unwrap();
        assert_eq!((&*set.endpoint, &*set.service_name), ("https://collector.example", "mine"));
        assert_eq!((set.headers.len(), set.headers[0].1.to_str().unwrap()), (1, "hunter2"));
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_the_value() {
        let settings = OtelSettings::default();
        let wrong = |more: (&str, &str)| {
            let env = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://other:4317"), more];
            target(&settings, &env).err().unwrap()
        };
        for (name, value, problem) in [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "hunter2", "a collector's URL"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2", "headers as name=value"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "expected grpc"),
        ] {
            let error = wrong((name, value));
            assert!(error.starts_with(name) && error.contains(problem), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        for url in [
            "collector:4317",
            "ftp://a",
            "http://u:p@a:4317",
            "http://a:4317/v1/traces",
            "http://",
            "http://a/?b",
        ] {
            assert!(endpoint(url).is_err(), "{url}");
        }
        for wrong in ["", "a", "a b=c", "a=%ff", "a=%0a"] {
            assert!(headers(wrong).is_err(), "{wrong}");
        }
    }
}
