//! Parameters of a feed that only save time. If a feed fails with them, it is opened without them.
//!
//! A gateway may refuse a parameter that it does not know, with any status. The reader then tries each combination once. The first
//! feed that delivers shows which parameters are refused. If none does, they are not the reason.

use turnwise_outbound::{Error, Optional, Peer, Side};

/// The parameters of one opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// Documents come with their rows (`include_docs`).
    pub docs: bool,
    /// Only some rows have a sequence (`seq_interval`).
    pub few_seqs: bool,
}

/// What the reader does after a feed that failed before its first row.
pub(super) enum Next {
    /// Open it immediately, with other parameters.
    Open,
    /// The parameters are not the reason for this error.
    Fail(Error),
}

/// The search for the parameters that are refused.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The parameters of the latest opening.
    latest: Extras,
    /// Those with which it failed first, the error, and the combinations to try; `None` if nothing has failed.
    failed: Option<(Extras, Error, Vec<Extras>)>,
}

impl Search {
    /// The parameters of the next opening, where `wanted` would save time.
    pub fn open(&mut self, wanted: Extras, source: &Peer) -> Extras {
        self.latest = match &mut self.failed {
            Some((.., untried)) => untried.pop().unwrap_or_default(),
            None => Extras {
                docs: wanted.docs && source.may_use(Optional::IncludeDocs),
                few_seqs: wanted.few_seqs && source.may_use(Optional::SeqInterval),
            },
        };
        self.latest
    }

    /// The feed delivers.
    pub fn succeeded(&mut self, source: &Peer) {
        let Some((first, error, _)) = self.failed.take() else { return };
        if first.docs && !self.latest.docs {
            source.refuses(Optional::IncludeDocs, &error);
        }
        if first.few_seqs && !self.latest.few_seqs {
            source.refuses(Optional::SeqInterval, &error);
        }
    }

    /// The feed failed before its first row.
    pub fn failed(&mut self, error: Error) -> Next {
        let answered = error.concerns_one_request() && error.may_concern_request();
        if error.side() != Some(Side::Source) || !answered {
            self.failed = None;
            return Next::Fail(error);
        }
        let (first, first_error, untried) = self.failed.take().unwrap_or_else(|| {
            let Extras { docs, few_seqs } = self.latest;
            // The last one is tried first.
            let less =
                [Extras::default(), Extras { docs, few_seqs: false }, Extras { docs: false, few_seqs }];
            let mut untried: Vec<Extras> = less.into_iter().filter(|less| *less != self.latest).collect();
            untried.dedup();
            (self.latest, error, untried)
        });
        if untried.is_empty() {
            return Next::Fail(first_error);
        }
        self.failed = Some((first, first_error, untried));
        Next::Open
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::spec::{Defaults, Replication};
    use turnwise_outbound::Client;
    use turnwise_outbound::Fault;

    const BOTH: Extras = Extras { docs: true, few_seqs: true };

    fn source(client: &Client) -> Peer {
        let body = json!({"source": "http://h/a", "target": "http://h/b"});
        let replication = Replication::parse(body.as_object().unwrap(), &Defaults::default()).unwrap();
        replication.peer(Side::Source, client)
    }

    fn refused(source: &Peer, status: u16) -> Error {
        let (error, reason) = ("no".to_owned(), status.to_string());
        source.fault(
            http::Method::GET,
            "_changes",
            Fault::Status { status, error, reason, of_couchdb: true, retry_after: None },
        )
    }

    /// The openings until a source that refuses some parameters delivers, or fails for good.
    fn openings(wanted: Extras, status: u16, refuses: impl Fn(Extras) -> bool) -> (Vec<Extras>, bool, Peer) {
        let source = source(&Client::new().unwrap());
        let (mut search, mut opened) = (Search::default(), Vec::new());
        loop {
            opened.push(search.open(wanted, &source));
            if !refuses(*opened.last().unwrap()) {
                search.succeeded(&source);
                return (opened, true, source);
            }
            if let Next::Fail(_) = search.failed(refused(&source, status)) {
                return (opened, false, source);
            }
        }
    }

    #[test]
    fn the_parameter_that_is_refused_is_found_and_left_out_from_then_on() {
        let (docs, seqs) = (Extras { few_seqs: false, ..BOTH }, Extras { docs: false, ..BOTH });
        let none = Extras::default();
        for status in [400, 403, 413, 500, 503] {
            let (opened, delivers, source) = openings(BOTH, status, |extras| extras.docs);
            assert_eq!((opened, delivers), (vec![BOTH, seqs], true));
            assert_eq!(Search::default().open(BOTH, &source), seqs);
            let (opened, delivers, source) = openings(BOTH, status, |extras| extras.few_seqs);
            assert_eq!((opened, delivers), (vec![BOTH, seqs, docs], true));
            assert_eq!(Search::default().open(BOTH, &source), docs);
            let (opened, delivers, source) = openings(BOTH, status, |extras| extras != none);
            assert_eq!((opened, delivers), (vec![BOTH, seqs, docs, none], true));
            assert_eq!(Search::default().open(BOTH, &source), none);
            let (opened, delivers, _) = openings(docs, status, |extras| extras.docs);
            assert_eq!((opened, delivers), (vec![docs, none], true));
        }
    }

    #[test]
    fn a_source_that_fails_in_every_way_or_is_throttled_has_refused_nothing() {
        let (opened, delivers, source) = openings(BOTH, 503, |_| true);
        assert_eq!((opened.len(), delivers), (4, false));
        assert_eq!(Search::default().open(BOTH, &source), BOTH);
        assert_eq!(openings(BOTH, 429, |_| true).0.len(), 1);
        assert_eq!(openings(Extras::default(), 403, |_| true).0.len(), 1);
    }
}
