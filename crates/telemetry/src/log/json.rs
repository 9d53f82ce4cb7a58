//! Lines as JSON: one flat object per event.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The fields of a span or an event, in their order.
#[derive(Default)]
pub(super) struct Fields(pub Vec<(&'static str, Value)>);

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        let name = field.name();
        self.0.push((name.strip_prefix("r#").unwrap_or(name), value));
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
}

/// An event's line. A name that occurs more than once has its first value: the line's own members come first, then the event's, then those of
/// its spans from the innermost outwards.
pub(super) fn line<S>(event: &Event<'_>, context: &Context<'_, S>) -> String
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let mut time = String::new();
    // Writing to a text cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let metadata = event.metadata();
    let mut members = Map::new();
    members.insert("timestamp".to_owned(), time.into());
    members.insert("level".to_owned(), metadata.level().as_str().into());
    members.insert("target".to_owned(), metadata.target().into());
    let mut fields = Fields::default();
    event.record(&mut fields);
    for (name, value) in fields.0 {
        members.entry(name).or_insert(value);
    }
    for span in context.event_scope(event).into_iter().flatten() {
        if let Some(Fields(fields)) = span.extensions().get::<Fields>() {
            for (name, value) in fields {
                members.entry(*name).or_insert_with(|| value.clone());
            }
        }
    }
    let mut line = Value::Object(members).to_string();
    line.push('\n');
    line
}
