//! Spans in the form of OTLP.
//!
//! Every job may be traced, so a span is encoded once, without a copy of its constant texts, and repeated requests share it. The messages
//! below have the fields of OTLP's that turnwise sets. A text, and a message that is encoded already, have the form of bytes.

use std::borrow::Cow;

use bytes::Bytes;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue as Any, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as Kind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use turnwise_worker::{Span, SpanKind, SpanValue};

/// The W3C trace flag "sampled".
const SAMPLED: u32 = 1;

/// `ExportTraceServiceRequest`. Cheap to clone.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExportRequest {
    #[prost(message, optional, tag = "1")]
    spans: Option<ResourceSpans>,
}

/// `ResourceSpans`.
#[derive(Clone, PartialEq, prost::Message)]
struct ResourceSpans {
    /// An encoded `Resource`.
    #[prost(bytes = "bytes", tag = "1")]
    resource: Bytes,
    #[prost(message, optional, tag = "2")]
    spans: Option<ScopeSpans>,
}

/// `ScopeSpans`.
#[derive(Clone, PartialEq, prost::Message)]
struct ScopeSpans {
    /// An encoded `InstrumentationScope`.
    #[prost(bytes = "bytes", tag = "1")]
    scope: Bytes,
    /// Each an encoded [`OtlpSpan`].
    #[prost(bytes = "bytes", repeated, tag = "2")]
    spans: Vec<Bytes>,
}

/// `Span`.
#[derive(Clone, PartialEq, prost::Message)]
struct OtlpSpan {
    #[prost(bytes = "bytes", tag = "1")]
    trace_id: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    span_id: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    parent_span_id: Bytes,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(enumeration = "Kind", tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
    #[prost(message, optional, tag = "15")]
    status: Option<OtlpStatus>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

/// `Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct OtlpStatus {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(enumeration = "StatusCode", tag = "3")]
    code: i32,
}

/// `KeyValue`.
#[derive(Clone, PartialEq, prost::Message)]
struct Attribute {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(message, optional, tag = "2")]
    value: Option<AttributeValue>,
}

/// `AnyValue`.
#[derive(Clone, PartialEq, prost::Message)]
struct AttributeValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(bytes = "bytes", tag = "1")]
    Text(Bytes),
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// What all requests of an exporter share.
pub(super) struct Origin {
    resource: Bytes,
    scope: Bytes,
}

impl Origin {
    /// This node.
    pub fn new(service_name: &str, node: &str) -> Origin {
        let attribute = |key: &str, value: &str| KeyValue {
            key: key.to_owned(),
            value: Some(Any { value: Some(AnyValue::StringValue(value.to_owned())) }),
            ..KeyValue::default()
        };
        let attributes = vec![
            attribute("service.name", service_name),
            attribute("service.instance.id", node),
            attribute("service.version", env!("CARGO_PKG_VERSION")),
        ];
        let scope = InstrumentationScope {
            name: "turnwise".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let resource = Resource { attributes, ..Resource::default() };
        Origin { resource: resource.encode_to_vec().into(), scope: scope.encode_to_vec().into() }
    }

    /// A request with these spans.
    pub fn request(&self, spans: Vec<Span>) -> ExportRequest {
        let spans = spans.into_iter().map(|span| otlp(span).encode_to_vec().into()).collect();
        let spans = ScopeSpans { scope: self.scope.clone(), spans };
        ExportRequest { spans: Some(ResourceSpans { resource: self.resource.clone(), spans: Some(spans) }) }
    }
}

fn text(text: Cow<'static, str>) -> Bytes {
    match text {
        Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
        Cow::Owned(text) => text.into(),
    }
}

fn attribute((key, value): (&'static str, SpanValue)) -> Attribute {
    let value = match value {
        SpanValue::Text(value) => Value::Text(text(value)),
        SpanValue::Number(number) => Value::Number(number),
    };
    let value = Some(AttributeValue { value: Some(value) });
    Attribute { key: Bytes::from_static(key.as_bytes()), value }
}

fn otlp(span: Span) -> OtlpSpan {
    let Span { context, parent, name, kind, start_us, end_us, attributes, error } = span;
    let kind = match kind {
        SpanKind::Internal => Kind::Internal,
        SpanKind::Client => Kind::Client,
        SpanKind::Producer => Kind::Producer,
        SpanKind::Consumer => Kind::Consumer,
    };
    let nanos = |us: i64| u64::try_from(us).unwrap_or(0).saturating_mul(1_000);
    OtlpSpan {
        trace_id: Bytes::copy_from_slice(&context.trace_id),
        span_id: Bytes::copy_from_slice(&context.span_id),
        parent_span_id: parent.map_or_else(Bytes::new, |parent| Bytes::copy_from_slice(&parent)),
        name,
        kind: kind.into(),
        start_time_unix_nano: nanos(start_us),
        // Another node's clock may have given the beginning.
        end_time_unix_nano: nanos(end_us.max(start_us)),
        attributes: attributes.into_iter().map(attribute).collect(),
        status: error.map(|message| OtlpStatus { message, code: StatusCode::Error.into() }),
        flags: SAMPLED,
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Official, Status};
    use turnwise_queue::trace::TraceContext;

    use super::*;

    #[test]
    fn a_request_is_that_of_the_official_definition() {
        let context = TraceContext::root(|| 0x0102_0304_0506_0708);
        let span = |attributes, parent, error| Span {
            context,
            parent,
            name: "run mail".to_owned(),
            kind: SpanKind::Consumer,
            start_us: 5,
            end_us: 7,
            attributes,
            error,
        };
        let attributes = vec![
            ("messaging.system", "turnwise".into()),
            ("turnwise.tenant", SpanValue::copied("ä")),
            ("empty", "".into()),
            ("turnwise.attempt", SpanValue::Number(-3)),
        ];
        let spans =
            vec![span(attributes, Some([9; 8]), Some("why".to_owned())), span(Vec::new(), None, None)];
        let request = Origin::new("jobs", "node-1").request(spans);
        let read = ExportTraceServiceRequest::decode(&*request.encode_to_vec()).expect("OTLP");

        let attribute = |key: &str, value| KeyValue {
            key: key.to_owned(),
            value: Some(Any { value: Some(value) }),
            ..KeyValue::default()
        };
        let words = |key: &str, value: &str| attribute(key, AnyValue::StringValue(value.to_owned()));
        let version = env!("CARGO_PKG_VERSION");
        let official = |parent_span_id, attributes, status| Official {
            trace_id: context.trace_id.to_vec(),
            span_id: context.span_id.to_vec(),
            parent_span_id,
            name: "run mail".to_owned(),
            kind: Kind::Consumer.into(),
            start_time_unix_nano: 5_000,
            end_time_unix_nano: 7_000,
            attributes,
            status,
            flags: 1,
            ..Official::default()
        };
        let attributes = vec![
            words("messaging.system", "turnwise"),
            words("turnwise.tenant", "ä"),
            words("empty", ""),
            attribute("turnwise.attempt", AnyValue::IntValue(-3)),
        ];
        let status = Some(Status { message: "why".to_owned(), code: StatusCode::Error.into() });
        let spans = vec![official(vec![9; 8], attributes, status), official(Vec::new(), Vec::new(), None)];
        let scope = InstrumentationScope {
            name: "turnwise".to_owned(),
            version: version.to_owned(),
            ..InstrumentationScope::default()
        };
        let resource = Resource {
            attributes: vec![
                words("service.name", "jobs"),
                words("service.instance.id", "node-1"),
                words("service.version", version),
            ],
            ..Resource::default()
        };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
        let expected = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
        assert_eq!(read, ExportTraceServiceRequest { resource_spans: vec![expected] });
    }
}
