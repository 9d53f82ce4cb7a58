//! Writes each event as a line: as text, or as JSON.

use std::io::{self, Write};
use std::sync::atomic::Ordering::Relaxed;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::IS_JSON;
use super::json::{self, Fields};

/// Where lines go.
type Writer = fn() -> io::Stderr;

/// The layer of the log.
pub(super) struct Lines<S = Registry, W = Writer> {
    text: fmt::Layer<S, DefaultFields, Format, W>,
    json: W,
}

impl Lines {
    /// Lines on stderr, so that stdout has only results.
    pub fn new(colours: bool) -> Self {
        let writer: Writer = io::stderr;
        Lines { text: fmt::layer().with_writer(writer).with_ansi(colours), json: writer }
    }
}

impl<S, W> Layer<S> for Lines<S, W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if !IS_JSON.load(Relaxed) {
            return self.text.on_new_span(attributes, id, context);
        }
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if !IS_JSON.load(Relaxed) {
            return self.text.on_record(id, values, context);
        }
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if !IS_JSON.load(Relaxed) {
            return self.text.on_event(event, context);
        }
        // One write per line, so that lines of several threads do not mix. A closed stderr is no error.
        let _ = self.json.make_writer_for(event.metadata()).write_all(json::line(event, &context).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_of_json_has_the_fields_of_its_event_and_of_the_spans_around_it() {
        let written = Written::default();
        let writer = {
            let written = written.clone();
            move || written.clone()
        };
        let text = fmt::layer().with_writer(writer.clone()).with_ansi(false);
        let lines = Lines::<Registry, _> { text, json: writer };
        IS_JSON.store(true, Relaxed);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let worker = tracing::error_span!("worker", worker = "w", job_type = "mail").entered();
            let run = tracing::error_span!(parent: &worker, "run", job = %"7", tenant = "a \"b\"").entered();
            tracing::warn!(
                job = 8,
                crashes = 2_u32,
                level = 9,
                ok = true,
                part = 0.5,
                "crashed:\n{}",
                "no network"
            );
            drop(run);
            tracing::info!(r#type = ?Some(1), "done");
        });
        IS_JSON.store(false, Relaxed);
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for line in &mut lines {
            let time = line.as_object_mut().unwrap().remove("timestamp").unwrap();
            assert!(time.as_str().is_some_and(|time| time.ends_with('Z') && time.contains('T')), "{time}");
        }
        let target = module_path!();
        let expected = json!([
            {"level": "WARN", "target": target, "message": "crashed:\nno network", "job": 8, "crashes": 2,
                "ok": true, "part": 0.5, "tenant": "a \"b\"", "worker": "w", "job_type": "mail"},
            {"level": "INFO", "target": target, "message": "done", "type": "Some(1)", "worker": "w",
                "job_type": "mail"},
        ]);
        assert_eq!(Value::Array(lines), expected);
    }
}
