//! The messages of etcd's API, version 3, as far as this engine uses it.
//!
//! They are declared by hand. etcd's own definitions would need the protocol compiler on every machine that builds
//! turnwise. There are only two dozen messages, whose numbers etcd has promised not to change. Fields that the engine
//! neither sends nor reads are omitted; readers of protocol buffers skip unknown fields. A message without fields is `()`.

use bytes::Bytes;

/// The paths of the calls.
pub(super) mod path {
    pub(in super::super) const RANGE: &str = "/etcdserverpb.KV/Range";
    pub(in super::super) const TXN: &str = "/etcdserverpb.KV/Txn";
    pub(in super::super) const COMPACT: &str = "/etcdserverpb.KV/Compact";
    pub(in super::super) const WATCH: &str = "/etcdserverpb.Watch/Watch";
    pub(in super::super) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
    pub(in super::super) const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
}

/// Declares messages. Before the name of a field is what prost has to know of it.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* [$($prost:tt)*] $field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct $name {
            $($(#[$of])* #[prost($($prost)*)] pub $field: $type,)*
        })*
    };
}

messages! {
    /// The header of every response.
    ResponseHeader {
        /// The revision of the store when the request was answered.
        [int64, tag = "3"] revision: i64,
    }

    /// A row.
    KeyValue {
        [bytes = "bytes", tag = "1"] key: Bytes,
        /// The revision of its latest change.
        [int64, tag = "3"] mod_revision: i64,
        /// How often it was set since it was created.
        [int64, tag = "4"] version: i64,
        [bytes = "bytes", tag = "5"] value: Bytes,
    }

    RangeRequest {
        [bytes = "bytes", tag = "1"] key: Bytes,
        /// Exclusive. Empty: `key` alone.
        [bytes = "bytes", tag = "2"] range_end: Bytes,
        [int64, tag = "3"] limit: i64,
        /// 0: the newest revision.
        [int64, tag = "4"] revision: i64,
        [enumeration = "SortOrder", tag = "5"] sort_order: i32,
        /// Whether the member answers from its local state, without asking the other members whether that is the newest.
        [bool, tag = "7"] serializable: bool,
        [bool, tag = "8"] keys_only: bool,
    }

    RangeResponse {
        [message, optional, tag = "1"] header: Option<ResponseHeader>,
        [message, repeated, tag = "2"] kvs: Vec<KeyValue>,
        /// Whether the limit has cut off rows.
        [bool, tag = "3"] more: bool,
    }

    PutRequest {
        [bytes = "bytes", tag = "1"] key: Bytes,
        [bytes = "bytes", tag = "2"] value: Bytes,
    }

    DeleteRangeRequest {
        [bytes = "bytes", tag = "1"] key: Bytes,
        /// Exclusive. Empty: `key` alone.
        [bytes = "bytes", tag = "2"] range_end: Bytes,
    }

    /// A condition on a row, or on every row of a range. A range without rows counts as one row whose numbers are all 0.
    Compare {
        [enumeration = "CompareResult", tag = "1"] result: i32,
        [enumeration = "CompareTarget", tag = "2"] target: i32,
        [bytes = "bytes", tag = "3"] key: Bytes,
        [oneof = "CompareWith", tags = "4, 6"] with: Option<CompareWith>,
        [bytes = "bytes", tag = "64"] range_end: Bytes,
    }

    RequestOp {
        [oneof = "Request", tags = "1, 2, 3, 4"] request: Option<Request>,
    }

    /// If all of `compare` holds, `success` is executed, otherwise `failure`; all of it in one revision.
    TxnRequest {
        [message, repeated, tag = "1"] compare: Vec<Compare>,
        [message, repeated, tag = "2"] success: Vec<RequestOp>,
        [message, repeated, tag = "3"] failure: Vec<RequestOp>,
    }

    TxnResponse {
        [message, optional, tag = "1"] header: Option<ResponseHeader>,
        [bool, tag = "2"] succeeded: bool,
        [message, repeated, tag = "3"] responses: Vec<ResponseOp>,
    }

    ResponseOp {
        [oneof = "Response", tags = "1, 4"] response: Option<Response>,
    }

    CompactionRequest {
        [int64, tag = "1"] revision: i64,
        /// Whether the response waits until the history is removed.
        [bool, tag = "2"] physical: bool,
    }

    WatchRequest {
        [oneof = "WatchDo", tags = "1, 2, 3"] what: Option<WatchDo>,
    }

    WatchCreate {
        [bytes = "bytes", tag = "1"] key: Bytes,
        /// Chosen by this client, unique within the stream, not 0.
        [int64, tag = "7"] watch_id: i64,
    }

    WatchCancel {
        [int64, tag = "1"] watch_id: i64,
    }

    WatchResponse {
        [int64, tag = "2"] watch_id: i64,
        [bool, tag = "3"] created: bool,
        [bool, tag = "4"] canceled: bool,
        [string, tag = "6"] cancel_reason: String,
        [message, repeated, tag = "11"] events: Vec<Event>,
    }

    Event {
        [enumeration = "EventType", tag = "1"] r#type: i32,
        [message, optional, tag = "2"] kv: Option<KeyValue>,
    }

    AuthenticateRequest {
        [string, tag = "1"] name: String,
        [string, tag = "2"] password: String,
    }

    AuthenticateResponse {
        [string, tag = "2"] token: String,
    }

    AlarmResponse {
        [message, repeated, tag = "2"] alarms: Vec<Alarm>,
    }

    Alarm {
        /// 1: no space is left. 2: members disagree about the stored data.
        [int32, tag = "2"] alarm: i32,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum SortOrder {
    None = 0,
    Descend = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum CompareResult {
    Equal = 0,
    Less = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum CompareTarget {
    Version = 0,
    Mod = 2,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum CompareWith {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Response {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum WatchDo {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
    /// Requests a response, to check that the stream is alive.
    #[prost(message, tag = "3")]
    Progress(()),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum EventType {
    Put = 0,
    Delete = 1,
}
