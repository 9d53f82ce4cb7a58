//! Spans in the form of OTLP.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as Kind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Otlp, Status};
use turnwise_worker::{Span, SpanKind, SpanValue};

/// The W3C trace flag "sampled".
const SAMPLED: u32 = 1;

fn attribute(key: &str, value: SpanValue) -> KeyValue {
    let value = match value {
        SpanValue::Text(text) => Value::StringValue(text),
        SpanValue::Number(number) => Value::IntValue(number),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// What exported the spans: this node.
pub(super) fn resource(service_name: &str, node: &str) -> Resource {
    let attributes = vec![
        attribute("service.name", service_name.into()),
        attribute("service.instance.id", node.into()),
        attribute("service.version", env!("CARGO_PKG_VERSION").into()),
    ];
    Resource { attributes, ..Resource::default() }
}

pub(super) fn request(resource: &Resource, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope {
        name: "turnwise".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans = vec![ScopeSpans {
        scope: Some(scope),
        spans: spans.into_iter().map(otlp).collect(),
        schema_url: String::new(),
    }];
    let spans = ResourceSpans { resource: Some(resource.clone()), scope_spans, schema_url: String::new() };
    ExportTraceServiceRequest { resource_spans: vec![spans] }
}

fn otlp(span: Span) -> Otlp {
    let Span { context, parent, name, kind, start_us, end_us, attributes, error } = span;
    let kind = match kind {
        SpanKind::Internal => Kind::Internal,
        SpanKind::Client => Kind::Client,
        SpanKind::Producer => Kind::Producer,
        SpanKind::Consumer => Kind::Consumer,
    };
    let nanos = |us: i64| u64::try_from(us).unwrap_or(0).saturating_mul(1_000);
    let status = error.map(|message| Status { message, code: StatusCode::Error.into() });
    Otlp {
        trace_id: context.trace_id.to_vec(),
        span_id: context.span_id.to_vec(),
        parent_span_id: parent.map_or_else(Vec::new, |parent| parent.to_vec()),
        flags: SAMPLED,
        name,
        kind: kind.into(),
        start_time_unix_nano: nanos(start_us),
        // Another node's clock may have given the beginning.
        end_time_unix_nano: nanos(end_us.max(start_us)),
        attributes: attributes.into_iter().map(|(key, value)| attribute(key, value)).collect(),
        status,
        ..Otlp::default()
    }
}
