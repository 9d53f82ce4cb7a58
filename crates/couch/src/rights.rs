//! What each target needs. The compiler checks that every one has a right.

use axum::http::Method;
use turnwise_web::access::rights::Right::{self, Anyone, Metrics, Operate, Read, Write};

use crate::route::{Part, Target};

/// What a request to CouchDB's API needs. `HEAD` counts as `GET`.
pub fn needed(target: &Target, method: &Method) -> Right {
    let reads = *method == Method::GET;
    match target {
        Target::Root | Target::Up | Target::Uuids | Target::Session | Target::Unknown => Anyone,
        Target::AllDbs
        | Target::ActiveTasks
        | Target::SchedulerJobs
        | Target::SchedulerJob(_)
        | Target::SchedulerDocs(_)
        | Target::SchedulerDoc(..) => Read,
        Target::Membership | Target::Node(..) => Operate,
        Target::Metrics(..) => Metrics,
        Target::Replicate => Write,
        Target::Db(_, part) => match part {
            // These read, also where a body names what.
            Part::AllDocs | Part::BulkGet | Part::Changes | Part::EnsureFullCommit | Part::RevsDiff => Read,
            Part::Itself
            | Part::BulkDocs
            | Part::Security
            | Part::Doc(_)
            | Part::Local(_)
            | Part::Attachment
            | Part::Unknown(_) => {
                if reads {
                    Read
                } else {
                    Write
                }
            }
        },
    }
}
