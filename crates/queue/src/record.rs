//! The job record as it is stored: one flat JSON object.
//!
//! *Form.* A field with its default value is not written. A time that the history states is not written either. Claims and
//! events are arrays: `["worker", 4]`, `[1795655074175928, "crashed", "it had no network"]`.
//!
//! *Fields of a place* are beside the fields of the job. Fields of other places are ignored on reading ([`crate::check`]
//! reports them).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use turnwise_policy::eligibility::concurrency::{Bucket, Limit};
use turnwise_policy::predictive_queue::locks::Requests;

use crate::deadlines::Timeouts;
use crate::input::Inputs;
use crate::job::{Event, EventKind, Hidden, JobFields, Parked, State, Then};
use crate::lifetime::Lifetime;
use crate::locks::{Held, Waits};
use crate::member::{Callback, Member};
use crate::place::{End, Holder, Next, Place, Run};
use crate::spec::{JobSpec, Scheduled, is_no_summary};
use crate::stored_result::StoredResult;
use crate::terms::{Retry, Terms};
use crate::trace::TraceContext;
use crate::unique_key::{Key, Unique};
use crate::{Claim, Job};

/// Defines [`Record`]: the state, and these fields in this order. A field is not written where `unless` holds, and then has its default
/// value. A field that is marked `@spec` is the [`JobSpec`]'s of its name; this is the only place that reads and writes it. One that is
/// marked `@null` is there even if it is null.
///
/// Written out, where `serde` derives the same: what is derived reads a record into many variables first, also one of positions, and asks
/// of each field twice whether it is written.
macro_rules! record {
    ($($(#[$doc:meta])* $(@spec $spec:ident)? $(@null $null:ident)? $($field:ident)?: $type:ty $(, unless $omitted:path)?;)+) => {
        /// The fields of a record; it borrows them from the job that is written.
        #[derive(Clone)]
        pub(crate) struct Record<'a> {
            state: State,
            $($(#[$doc])* $($spec: Cow<'a, $type>)? $($null: $type)? $($field: $type)?,)+
        }

        /// The name of a field.
        #[derive(Deserialize)]
        #[serde(field_identifier)]
        #[expect(non_camel_case_types, reason = "these are the names in the record")]
        enum Field {
            state,
            $($($spec)? $($null)? $($field)?,)+
            #[serde(other)]
            Unknown,
        }

        impl<'a> Record<'a> {
            /// A record with what the client has stated. The other fields are empty.
            fn new(state: State, spec: &'a JobSpec) -> Self {
                Record {
                    state,
                    $($($spec: Cow::Borrowed(&spec.$spec),)? $($null: Default::default(),)? $($field: Default::default(),)?)+
                }
            }

            /// The record with what the client has stated.
            fn with_spec(mut self, spec: &'a JobSpec) -> Self {
                $($(self.$spec = Cow::Borrowed(&spec.$spec);)?)+
                self
            }
        }

        impl Serialize for Record<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut fields = serializer.serialize_map(None)?;
                fields.serialize_entry("state", &self.state)?;
                $({
                    let name = concat!($(stringify!($spec))? $(stringify!($null))? $(stringify!($field))?);
                    let value = $(&self.$spec)? $(&self.$null)? $(&self.$field)?;
                    if true $(&& !$omitted(value))? {
                        fields.serialize_entry(name, value)?;
                    }
                })+
                fields.end()
            }
        }

        impl<'de> Visitor<'de> for &mut ReadRecord {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a record of a job")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
                let ReadRecord { record, job } = self;
                let spec = &mut job.spec;
                let mut has_state = false;
                while let Some(field) = fields.next_key()? {
                    match field {
                        Field::state => {
                            record.state = fields.next_value()?;
                            has_state = true;
                        }
                        $(
                            $(Field::$spec => spec.$spec = fields.next_value()?,)?
                            $(Field::$null => record.$null = Some(fields.next_value()?),)?
                            $(Field::$field => record.$field = fields.next_value()?,)?
                        )+
                        Field::Unknown => drop(fields.next_value::<IgnoredAny>()?),
                    }
                }
                match (has_state, spec.tenant.as_str()) {
                    (false, _) => Err(A::Error::missing_field("state")),
                    (true, "") => Err(A::Error::missing_field("tenant")),
                    (true, _) => Ok(()),
                }
            }
        }
    };
}

/// A record that is read: without what the client has stated, and a job that has only this so far.
#[derive(Clone)]
pub(crate) struct ReadRecord {
    record: Record<'static>,
    job: Job,
}

impl<'de> Deserialize<'de> for ReadRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        static NOTHING: LazyLock<JobSpec> = LazyLock::new(JobSpec::default);
        let spec = JobSpec { tenant: String::new(), ..JobSpec::default() };
        let job = JobFields::new(String::new(), String::new(), spec, 0).into();
        let mut read = ReadRecord { record: Record::new(State::Pending, &NOTHING), job };
        deserializer.deserialize_map(&mut read)?;
        Ok(read)
    }
}

record! {
    /// The time of the place ([`Job::order_us`]).
    order_us: i64, unless is_default;
    parked: Option<Cow<'a, Parked>>, unless Option::is_none;
    unmet: u32, unless is_default;
    paused: Option<Cow<'a, str>>, unless Option::is_none;
    limited: Option<Cow<'a, Limit>>, unless Option::is_none;
    keyed: bool, unless is_default;
    reserved: Option<i64>, unless Option::is_none;
    claim: Option<ShortClaim<'a>>, unless Option::is_none;
    terms: Cow<'a, Terms>, unless is_default;
    /// The terms are [`Terms::usual`].
    usual_terms: bool, unless is_default;
    held: Option<Cow<'a, Held>>, unless Option::is_none;
    waits: Option<Cow<'a, Waits>>, unless Option::is_none;
    buckets: Cow<'a, [Bucket]>, unless is_empty;
    cancel_requested: bool, unless is_default;
    then: Then, unless is_default;
    next_refused: Option<Cow<'a, str>>, unless Option::is_none;
    next_locks: Option<Cow<'a, Requests>>, unless Option::is_none;

    @spec tenant: String;
    @spec user: Option<String>, unless Option::is_none;
    @spec task: Option<String>, unless Option::is_none;
    @spec tags: BTreeSet<String>, unless is_default;
    @spec continuous: bool, unless is_default;
    /// By default, the time of the latest event `added`.
    added_us: Option<i64>, unless Option::is_none;
    /// By default, the time of the latest event `started`; null if it has never started.
    @null started_us: Option<Option<i64>>, unless Option::is_none;
    /// By default, the time of the latest event.
    changed_us: Option<i64>, unless Option::is_none;
    awaited: Option<i64>, unless Option::is_none;
    followed: bool, unless is_default;
    hold: Option<Holder>, unless Option::is_none;
    @spec reasons: Vec<String>, unless is_empty;
    refused: Option<Cow<'a, str>>, unless Option::is_none;
    /// [`JobFields::priority`].
    class: i8, unless is_default;
    /// [`JobFields::sort_key`].
    priority: Option<f64>, unless Option::is_none;
    @spec locks: Requests, unless is_none;
    crashes: u32, unless is_default;
    attempts: u32, unless is_default;
    snoozes: u32, unless is_default;
    due_us: Option<i64>, unless Option::is_none;
    @spec max_attempts: Option<u32>, unless Option::is_none;
    @spec timeouts: Timeouts, unless Timeouts::is_none;
    @spec retry: Retry, unless Retry::is_none;
    @spec lifetime: Lifetime, unless Lifetime::is_none;
    @spec unique: Option<Unique>, unless Option::is_none;
    @spec inputs: Inputs, unless is_default;
    unique_key: Option<Cow<'a, Key>>, unless Option::is_none;
    ended_claim: Option<ShortClaim<'a>>, unless Option::is_none;
    history: Cow<'a, [Event]>;
    @spec summary: Box<RawValue>, unless is_no_summary;
    info: Option<Cow<'a, RawValue>>, unless Option::is_none;
    result: Option<Cow<'a, RawValue>>, unless Option::is_none;
    stored_result: Option<Cow<'a, StoredResult>>, unless Option::is_none;
    error_class: Option<Cow<'a, str>>, unless Option::is_none;
    has_output: bool, unless is_default;
    options_changes: u32, unless is_default;
    @spec forgets_options: bool, unless is_default;
    @spec trace: Option<TraceContext>, unless Option::is_none;
    @spec schedule: Option<Scheduled>, unless Option::is_none;
    @spec group: Option<Member>, unless Option::is_none;
    @spec callback: Option<Callback>, unless Option::is_none;
    /// Null once the job has forgotten them.
    @null options: Option<Cow<'a, RawValue>>, unless Option::is_none;
}

/// What a client has stated of jobs, as a part of another row: in the form of a record that has nothing else.
pub(crate) mod spec_alone {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(spec: &JobSpec, serializer: S) -> Result<S::Ok, S::Error> {
        Record::new(State::Pending, spec).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<JobSpec, D::Error> {
        Ok(ReadRecord::deserialize(deserializer)?.job.into_fields().spec)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_empty<T: Clone>(list: &[T]) -> bool {
    list.is_empty()
}

fn is_none(locks: &Requests) -> bool {
    locks.is_none()
}

/// When the latest event of a kind happened, in µs; the history is newest first.
fn latest(history: &[Event], is_of_kind: impl Fn(&EventKind) -> bool) -> Option<i64> {
    history.iter().find(|event| is_of_kind(&event.kind)).map(|event| event.at_us)
}

fn latest_added(history: &[Event]) -> Option<i64> {
    latest(history, |kind| matches!(kind, EventKind::Added))
}

fn latest_started(history: &[Event]) -> Option<i64> {
    latest(history, |kind| matches!(kind, EventKind::Started))
}

fn latest_change(history: &[Event]) -> Option<i64> {
    history.first().map(|event| event.at_us)
}

/// The value, unless it is what a reader assumes.
fn unless<T: PartialEq>(value: T, assumed: &T) -> Option<T> {
    Some(value).filter(|value| value != assumed)
}

impl<'a> From<&'a Job> for Record<'a> {
    fn from(job: &'a Job) -> Self {
        let history = job.history.as_slice();
        let raw = |json: &'a Option<Box<RawValue>>| json.as_deref().map(Cow::Borrowed);
        // Its fields are set in place: a record is large.
        let mut record = Record::new(job.state(), &job.spec);
        record.added_us = unless(Some(job.added_us), &latest_added(history)).flatten();
        record.started_us = unless(job.started_us, &latest_started(history));
        record.changed_us = unless(Some(job.changed_us), &latest_change(history)).flatten();
        record.awaited = job.awaited;
        record.followed = job.followed;
        record.hold = job.hold;
        record.refused = job.refused.as_deref().map(Cow::Borrowed);
        record.class = job.priority;
        record.priority = job.sort_key;
        record.crashes = job.crashes;
        record.attempts = job.attempts;
        record.snoozes = job.snoozes;
        record.due_us = job.due_us;
        record.unique_key = job.unique_key.as_ref().map(Cow::Borrowed);
        record.ended_claim = job.ended_claim.as_ref().map(ShortClaim::of);
        record.history = Cow::Borrowed(history);
        record.info = raw(&job.info);
        record.result = raw(&job.result);
        record.stored_result = job.stored_result.as_ref().map(Cow::Borrowed);
        record.error_class = job.error_class.as_deref().map(Cow::Borrowed);
        record.has_output = job.has_output;
        record.options_changes = job.options_changes;
        record.options = job.options.as_ref().map(|Hidden(options)| Cow::Borrowed(&**options));
        record.set_place(&job.place);
        record
    }
}

impl<'a> Record<'a> {
    /// States the fields of a place, in a record that has those of none.
    fn set_place(&mut self, place: &'a Place) {
        match place {
            Place::Pending { order_us, keyed, reserved } => {
                (self.order_us, self.keyed, self.reserved) = (*order_us, *keyed, *reserved);
            }
            Place::Delayed { until_us } | Place::Crashing { until_us } => self.order_us = *until_us,
            Place::Parked { until_us, at } => {
                (self.order_us, self.parked) = (*until_us, Some(Cow::Borrowed(at)));
            }
            Place::Blocked { until_us, unmet } => (self.order_us, self.unmet) = (*until_us, *unmet),
            Place::Paused { order_us, filter } => {
                (self.order_us, self.paused) = (*order_us, Some(Cow::Borrowed(filter.as_ref())));
            }
            Place::Limited { order_us, limit } => {
                (self.order_us, self.limited) = (*order_us, Some(Cow::Borrowed(limit)));
            }
            Place::Active(run) => {
                let Run { claim, terms, held, waits, buckets, cancel_requested, then, next } = &**run;
                let Next { not_before_us, unmet, refused, locks } = next;
                self.order_us = *not_before_us;
                self.claim = Some(ShortClaim::of(claim));
                self.usual_terms = *terms == *Terms::usual();
                if !self.usual_terms {
                    self.terms = Cow::Borrowed(terms);
                }
                self.held = held.as_ref().map(Cow::Borrowed);
                self.waits = waits.as_ref().map(Cow::Borrowed);
                self.buckets = Cow::Borrowed(buckets);
                self.cancel_requested = *cancel_requested;
                self.then = *then;
                self.unmet = *unmet;
                self.next_refused = refused.as_deref().map(Cow::Borrowed);
                self.next_locks = locks.as_ref().map(Cow::Borrowed);
            }
            Place::Ended(_) => {}
        }
    }

    /// States also the times that the history states, so that two records of the same job are equal.
    fn with_all_times(&mut self, job: &Job) {
        self.added_us = Some(job.added_us);
        self.started_us = Some(job.started_us);
        self.changed_us = Some(job.changed_us);
    }
}

impl ReadRecord {
    /// Whether the record has fields of another place than the one that it states.
    pub(crate) fn contradicts_itself(&self) -> bool {
        let Ok(job) = self.clone().into_job() else { return true };
        let as_stored = |mut record: Record<'_>| {
            record.with_all_times(&job);
            crate::rows::encode(&record)
        };
        as_stored(self.record.clone().with_spec(&self.job.spec)) != as_stored(Record::from(&job))
    }

    /// The job. Its type and its id are in the key; the caller fills them in.
    fn into_job(self) -> Result<Job, &'static str> {
        let ReadRecord { record, mut job } = self;
        let owned = |json: Option<Cow<'_, RawValue>>| json.map(Cow::into_owned);
        let history = record.history.into_owned();
        let added_us = record.added_us.or_else(|| latest_added(&history));
        let changed_us = record.changed_us.or_else(|| latest_change(&history));
        let until_us = record.order_us;
        let order_us = record.order_us;
        let place = match record.state {
            State::Pending => Place::Pending { order_us, keyed: record.keyed, reserved: record.reserved },
            State::Crashing => Place::Crashing { until_us },
            State::Delayed => match (record.unmet, record.paused, record.limited, record.parked) {
                (1.., ..) => Place::Blocked { until_us, unmet: record.unmet },
                (0, Some(filter), ..) => Place::Paused { order_us, filter: filter.into_owned() },
                (0, None, Some(limit), _) => Place::Limited { order_us, limit: limit.into_owned() },
                (0, None, None, Some(at)) => Place::Parked { until_us, at: at.into_owned() },
                (0, None, None, None) => Place::Delayed { until_us },
            },
            State::Running | State::Waiting => Place::Active(Arc::new(Run {
                claim: record.claim.ok_or("it is running, and has no claim")?.0.into_owned(),
                terms: if record.usual_terms { Terms::usual().clone() } else { record.terms.into_owned() },
                held: record.held.map(Cow::into_owned),
                waits: record.waits.map(Cow::into_owned),
                buckets: record.buckets.into_owned(),
                cancel_requested: record.cancel_requested,
                then: record.then,
                next: Next {
                    not_before_us: order_us,
                    unmet: record.unmet,
                    refused: record.next_refused.map(Cow::into_owned),
                    locks: record.next_locks.map(Cow::into_owned),
                },
            })),
            State::Completed => Place::Ended(End::Completed),
            State::Failed => Place::Ended(End::Failed),
            State::Cancelled => Place::Ended(End::Cancelled),
        };
        let fields = &mut *job;
        fields.place = place;
        fields.added_us = added_us.ok_or("it states no time of its adding")?;
        fields.started_us = record.started_us.unwrap_or_else(|| latest_started(&history));
        fields.changed_us = changed_us.ok_or("it states no time of its last change")?;
        fields.awaited = record.awaited;
        fields.followed = record.followed;
        fields.hold = record.hold;
        fields.refused = record.refused.map(Cow::into_owned);
        fields.priority = record.class;
        fields.sort_key = record.priority;
        fields.crashes = record.crashes;
        fields.attempts = record.attempts;
        fields.snoozes = record.snoozes;
        fields.due_us = record.due_us;
        fields.unique_key = record.unique_key.map(Cow::into_owned);
        fields.ended_claim = record.ended_claim.map(|claim| claim.0.into_owned());
        fields.info = owned(record.info);
        fields.result = owned(record.result);
        fields.stored_result = record.stored_result.map(Cow::into_owned);
        fields.error_class = record.error_class.map(Cow::into_owned);
        fields.has_output = record.has_output;
        fields.options_changes = record.options_changes;
        fields.options = record.options.map(|options| Hidden(options.into_owned()));
        fields.history = history;
        Ok(job)
    }
}

impl Job {
    /// Changes whenever the record or the options change. What a running job's worker reports does not count. Made without the options and
    /// the unique key: a hash of them would tell a client whether it guessed hidden ones.
    pub fn version(&self) -> String {
        let record = crate::rows::encode(&Record { options: None, unique_key: None, ..Record::from(self) });
        let hash = record.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

impl Serialize for Job {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Record::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Job {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ReadRecord::deserialize(deserializer)?.into_job().map_err(D::Error::custom)
    }
}

/// A claim as `["worker", 4]`.
#[derive(Clone)]
struct ShortClaim<'a>(Cow<'a, Claim>);

impl<'a> ShortClaim<'a> {
    fn of(claim: &'a Claim) -> Self {
        ShortClaim(Cow::Borrowed(claim))
    }
}

impl Serialize for ShortClaim<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.0.worker, self.0.number).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ShortClaim<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (worker, number) = Deserialize::deserialize(deserializer)?;
        Ok(ShortClaim(Cow::Owned(Claim { worker, number })))
    }
}

/// `[at_us, "kind"]`, or `[at_us, "kind", "reason"]`.
impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.kind.reason() {
            Some(reason) => (self.at_us, self.kind.name(), reason).serialize(serializer),
            None => (self.at_us, self.kind.name()).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Parts<'a>(i64, #[serde(borrow)] Cow<'a, str>, #[serde(default)] Option<String>);
        let Parts(at_us, name, reason) = Parts::deserialize(deserializer)?;
        let kind = EventKind::named(&name, reason).ok_or_else(|| D::Error::custom("no such event"))?;
        Ok(Event { at_us, kind })
    }
}

#[cfg(test)]
mod tests {
    //! The form of records: what is read again is the same.

    use serde_json::{Value, json};
    use turnwise_policy::eligibility::concurrency::Bucket;

    use super::*;

    fn read(fields: Value) -> Result<Job, serde_json::Error> {
        // Through text: `RawValue` is read from text only.
        serde_json::from_str(&fields.to_string())
    }

    fn written(job: &Job) -> Value {
        serde_json::from_slice(&serde_json::to_vec(job).unwrap()).unwrap()
    }

    fn record(more: Value) -> Value {
        let mut fields = json!({"tenant": "t", "history": [[5, "added"]]});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields
    }

    #[test]
    fn every_place_is_written_as_fields_beside_those_of_the_job() {
        let limit = json!({"bucket": {"reason": "a"}, "most": 2});
        let limited = Limit { bucket: Bucket::Reason("a".into()), most: 2 };
        let claim = Claim { worker: "w".into(), number: 4 };
        let mut run = Run::new(claim, Terms::default(), None, vec![Bucket::Reason("a".into())]);
        let plain = Place::Active(Arc::new(run.clone()));
        (run.then, run.cancel_requested) = (Then::Again, true);
        run.next = Next { not_before_us: 9, unmet: 1, refused: Some("no".into()), ..Next::default() };
        let parked = Parked { group: "g".into(), key: "k".into() };
        let places = [
            (Place::pending(3), json!({"state": "pending", "order_us": 3})),
            (
                Place::Pending { order_us: 3, keyed: true, reserved: Some(7) },
                json!({"state": "pending", "order_us": 3, "keyed": true, "reserved": 7}),
            ),
            (Place::Delayed { until_us: 3 }, json!({"state": "delayed", "order_us": 3})),
            (Place::Crashing { until_us: 3 }, json!({"state": "crashing", "order_us": 3})),
            (
                Place::Parked { until_us: 3, at: parked },
                json!({"state": "delayed", "order_us": 3, "parked": {"group": "g", "key": "k"}}),
            ),
            (
                Place::Blocked { until_us: 3, unmet: 2 },
                json!({"state": "delayed", "order_us": 3, "unmet": 2}),
            ),
            (
                Place::Paused { order_us: 3, filter: "f".into() },
                json!({"state": "delayed", "order_us": 3, "paused": "f"}),
            ),
            (
                Place::Limited { order_us: 3, limit: limited },
                json!({"state": "delayed", "order_us": 3, "limited": limit}),
            ),
            (plain, json!({"state": "running", "claim": ["w", 4], "buckets": [{"reason": "a"}]})),
            (
                Place::Active(Arc::new(run)),
                json!({"state": "running", "claim": ["w", 4], "buckets": [{"reason": "a"}], "order_us": 9,
                    "then": "again", "cancel_requested": true, "unmet": 1, "next_refused": "no"}),
            ),
            (Place::Ended(End::Completed), json!({"state": "completed"})),
            (Place::Ended(End::Failed), json!({"state": "failed"})),
            (Place::Ended(End::Cancelled), json!({"state": "cancelled"})),
        ];
        for (place, fields) in places {
            let fields = record(fields);
            let job = read(fields.clone()).unwrap();
            assert_eq!(job.place, place);
            assert_eq!(written(&job), fields);
        }
    }

    #[test]
    fn a_run_by_the_usual_terms_does_not_repeat_them() {
        let fields =
            record(json!({"state": "running", "claim": ["w", 4], "usual_terms": true, "options": null}));
        let job: Job = serde_json::from_value(fields.clone()).unwrap();
        assert_eq!(job.run().unwrap().terms, *Terms::usual());
        assert_eq!(written(&job), fields);
    }

    #[test]
    fn the_bytes_of_a_row_are_the_same_after_it_is_read_and_written() {
        let row = [
            r#"{"state":"pending","order_us":3,"tenant":"t","user":"u","tags":["a","b"],"continuous":true,"awaited":8,"reasons":["r"],"#,
            r#""refused":"no","class":-3,"priority":1.5,"locks":{"node":{"exclusive":["n"]}},"crashes":1,"attempts":2,"#,
            r#""max_attempts":4,"timeouts":{"run_us":5},"ended_claim":["w",4],"history":[[5,"added"]],"#,
            r#""summary":{"s": 1},"info":1,"result":{ },"forgets_options":true,"#,
            r#""trace":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","options":{"o": 2}}"#,
        ]
        .concat();
        let job: Job = serde_json::from_str(&row).unwrap();
        assert_eq!(serde_json::to_string(&job).unwrap(), row);
    }

    #[test]
    fn a_trace_is_kept_and_a_job_without_one_has_no_bytes_for_it() {
        let fields = record(
            json!({"state": "failed", "trace": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}),
        );
        let mut job = read(fields.clone()).unwrap();
        assert_eq!(written(&job), fields);
        job.spec.trace = None;
        assert_eq!(written(&job), record(json!({"state": "failed"})));
        assert!(read(record(json!({"state": "failed", "trace": "00-1"}))).is_err());
    }

    #[test]
    fn null_is_kept_where_it_means_something() {
        let fields = record(json!({"state": "completed", "summary": null, "options": null}));
        let job = read(fields.clone()).unwrap();
        assert_eq!((job.summary.get(), job.has_pieces()), ("null", false));
        assert_eq!(written(&job), fields);
        assert!(read(record(json!({"state": "completed"}))).unwrap().has_pieces());
    }

    #[test]
    fn times_that_the_history_does_not_state_are_written() {
        let times = |added: i64, started: Value, changed: i64| {
            let history = json!([[9, "started"], [5, "added"]]);
            json!({"state": "pending", "order_us": 3, "tenant": "t", "history": history,
                "added_us": added, "started_us": started, "changed_us": changed})
        };
        for (added, started, changed) in [(4, json!(8), 10), (5, json!(null), 9), (6, json!(9), 9)] {
            let job = read(times(added, started.clone(), changed)).unwrap();
            assert_eq!(
                (job.added_us, json!(job.started_us), job.changed_us),
                (added, started.clone(), changed)
            );
            let again: Job = serde_json::from_slice(&serde_json::to_vec(&job).unwrap()).unwrap();
            assert_eq!((again.added_us, again.changed_us), (added, changed));
            assert_eq!(again.started_us, job.started_us);
        }
        assert!(read(json!({"state": "completed", "tenant": "t", "history": []})).is_err(), "no time at all");
    }

    #[test]
    fn contradictory_fields_are_refused_or_found() {
        let contradicts = |fields: Value| {
            let text = fields.to_string();
            serde_json::from_str::<ReadRecord>(&text).unwrap().contradicts_itself()
        };
        assert!(read(record(json!({"state": "running"}))).is_err(), "no claim");
        assert!(!contradicts(record(json!({"state": "pending", "order_us": 3}))));
        // Fields of another place are ignored; `store check` reports them.
        let stray = record(json!({"state": "pending", "order_us": 3, "paused": "f"}));
        assert_eq!(read(stray.clone()).unwrap().place, Place::pending(3));
        assert!(contradicts(stray));
        let waits_for_nothing = record(json!({"state": "waiting", "claim": ["w", 4]}));
        assert_eq!(read(waits_for_nothing.clone()).unwrap().state(), State::Running);
        assert!(contradicts(waits_for_nothing));
        let ended = record(json!({"state": "failed", "order_us": 3}));
        assert_eq!(read(ended.clone()).unwrap().order_us(), 0);
        assert!(contradicts(ended));
        // A time that the history states, too.
        assert!(!contradicts(record(json!({"state": "failed", "changed_us": 5}))));
    }

    #[test]
    fn malformed_claims_and_events_are_refused() {
        for claim in
            [json!([]), json!(["w"]), json!(["w", 1, 2]), json!(["w", -1]), json!({"worker": "w"}), json!(4)]
        {
            assert!(serde_json::from_value::<ShortClaim<'_>>(claim.clone()).is_err(), "{claim}");
        }
        for event in [
            json!([]),
            json!([1]),
            json!([1, "exploded"]),
            json!([1, "crashed"]),
            json!([1, "added", "x"]),
            json!([1, "crashed", "x", "y"]),
            json!({"type": "added"}),
        ] {
            assert!(serde_json::from_str::<Event>(&event.to_string()).is_err(), "{event}");
        }
        let stopped: Event = serde_json::from_str(r#"[1, "stopped", "its worker left"]"#).unwrap();
        assert_eq!(stopped.kind.reason(), Some("its worker left"));
    }
}
