//! The rows that a commit changes, as the checker knows them, and which jobs and workers they belong to.

use super::*;

/// The change of a run's active row.
pub(super) struct Report {
    pub job: JobKey,
    pub worker: String,
    pub old: Bytes,
    pub new: Bytes,
}

/// What the rows that a commit changes belong to.
#[derive(Default)]
pub(super) struct TouchedRows {
    /// Each job, with its record before the commit.
    pub jobs: BTreeMap<JobKey, Option<Job>>,
    pub workers: BTreeSet<JobKey>,
    pub reports: Vec<Report>,
    pub tenants: tenants::Touched,
    pub locks: locks::Touched,
    pub schedules: Vec<schedules::Change>,
    pub groups: Vec<groups::Change>,
}

impl TouchedRows {
    /// Adds a changed row to what the checker knows.
    pub fn note(
        &mut self,
        known: &mut CheckerState,
        commit: &mut Commit<'_>,
        change: &RowChange,
    ) -> Result<(), Broken> {
        let row = model::parse(&change.key);
        let row = row.ok_or_else(|| ("every key is known", show::row(&change.key, change.new.as_ref())))?;
        known.tenants.observe(&row, change, &mut self.tenants)?;
        known.counts.enter(&row, change.old.as_ref(), change.new.as_ref());
        let unreadable =
            |error| ("rows can be read", format!("{error}: {}", show::row(&change.key, change.new.as_ref())));
        if let Some(locks) = &mut known.locks {
            locks.observe(&row, change, &mut self.locks).map_err(unreadable)?;
        }
        if let Some(filters) = &mut known.filters {
            filters.observe(&row, change, commit.now_us).map_err(unreadable)?;
        }
        if let Row::Schedule(name) = &row {
            let change = schedules::Change::read(name, change.old.as_ref(), change.new.as_ref());
            self.schedules.push(change.map_err(unreadable)?);
        }
        if let (Row::Unique(hash), Some(old), None) = (&row, &change.old, &change.new)
            && let Some(until_us) = check::unique_end(old)
        {
            known.unique.cleared(hash, until_us, commit.clock_us(), commit.now_us);
        }
        known.groups.observe(&row, change, commit.now_us);
        if let Row::Group(tenant, name) = &row {
            let change = groups::Change::read((tenant.clone(), name.clone()), change);
            self.groups.push(change.map_err(unreadable)?);
        }
        if let Row::Job(job) = &row {
            known.changed_us.insert(job.clone(), commit.now_us);
        }
        match row {
            Row::Worker(worker, row) => {
                self.note_worker(known, commit, worker, row, change);
                Ok(())
            }
            row => self.note_job(&mut known.jobs, row, change).map_err(unreadable),
        }
    }

    fn note_worker(
        &mut self,
        known: &mut CheckerState,
        commit: &mut Commit<'_>,
        worker: JobKey,
        row: WorkerRow,
        change: &RowChange,
    ) {
        if row == WorkerRow::Member {
            commit.was_member.insert(worker.clone(), change.old.is_some());
        }
        let rows = known.workers.entry(worker.clone()).or_default();
        match &change.new {
            Some(value) => drop(rows.insert(row, value.clone())),
            None => drop(rows.remove(&row)),
        }
        self.workers.insert(worker);
    }

    /// Adds a changed row of a job. Other rows have no effect here.
    fn note_job(
        &mut self,
        jobs: &mut BTreeMap<JobKey, JobRows>,
        row: Row,
        change: &RowChange,
    ) -> Result<(), serde_json::Error> {
        match row {
            Row::Job(job) => self.touch(jobs, &job).set_record(&job, change.new.as_ref())?,
            Row::Options(job, n) => {
                let pieces = &mut jobs.entry(job).or_default().pieces;
                match &change.new {
                    Some(value) => drop(pieces.insert(n, value.len())),
                    None => drop(pieces.remove(&n)),
                }
            }
            Row::Output(job, kind, n) => {
                let output = &mut jobs.entry(job).or_default().output;
                match &change.new {
                    Some(value) => drop(output.insert((kind, n), value.len())),
                    None => drop(output.remove(&(kind, n))),
                }
            }
            Row::Follower(job, follower) => {
                // The row of a follower may change without the record.
                match (&change.new, jobs.get_mut(&job)) {
                    (Some(_), _) => drop(jobs.entry(job).or_default().followers.insert(follower)),
                    (None, Some(rows)) => drop(rows.followers.remove(&follower)),
                    // The job that it follows was removed before.
                    (None, None) => {}
                }
            }
            Row::Index(job, place) => {
                if let (model::IndexRow::Active(worker), Some(old), Some(new)) =
                    (&place, &change.old, &change.new)
                {
                    let (worker, old, new) = (worker.clone(), old.clone(), new.clone());
                    self.reports.push(Report { job: job.clone(), worker, old, new });
                }
                let places = &mut self.touch(jobs, &job).places;
                match &change.new {
                    Some(value) => drop(places.insert(place, value.clone())),
                    None => drop(places.remove(&place)),
                }
            }
            Row::Parked(job, at) => {
                let parked = &mut self.touch(jobs, &job).parked;
                match &change.new {
                    Some(_) => parked.insert(at),
                    None => parked.remove(&at),
                };
            }
            Row::Unwatched(job, at) => {
                let unwatched = &mut self.touch(jobs, &job).unwatched;
                match &change.new {
                    Some(_) => unwatched.insert(at),
                    None => unwatched.remove(&at),
                };
            }
            Row::Lifetime(job, at_us) => {
                let lifetimes = &mut self.touch(jobs, &job).lifetimes;
                match &change.new {
                    Some(_) => lifetimes.insert(at_us),
                    None => lifetimes.remove(&at_us),
                };
            }
            Row::Unique(hash) => {
                if let Some(job) = change.old.as_ref().and_then(|value| check::unique_holder(value)) {
                    self.touch(jobs, &job).unique.remove(&hash);
                }
                if let Some(job) = change.new.as_ref().and_then(|value| check::unique_holder(value)) {
                    self.touch(jobs, &job).unique.insert(hash);
                }
            }
            Row::Tag(ref job, ..)
            | Row::Lock(ref job, ..)
            | Row::LockQueue(ref job, ..)
            | Row::After(ref job, ..)
            | Row::Deadline(ref job, _)
            | Row::InBucket(ref job, ..) => {
                let rows = self.touch(jobs, job);
                match &row {
                    Row::Tag(_, tag, tenant) => drop(rows.tags.remove(&(tag.clone(), tenant.clone()))),
                    Row::Lock(_, spot, mode) => drop(rows.locks.remove(&(spot.clone(), *mode))),
                    Row::LockQueue(_, spot, at) => drop(rows.queued.remove(&(spot.clone(), *at))),
                    Row::After(_, on) => rows.after.retain(|(other, _)| other != on),
                    Row::InBucket(_, bucket) => drop(rows.buckets.remove(bucket)),
                    Row::Deadline(_, at_us) => drop(rows.deadlines.remove(at_us)),
                    _ => {}
                }
                if let Some(value) = &change.new {
                    rows.add(row, value)?;
                }
            }
            Row::Dependent(job, on, group) => {
                let back = &mut self.touch(jobs, &job).back;
                match &change.new {
                    Some(_) => back.insert((on, group)),
                    None => back.remove(&(on, group)),
                };
            }
            _ => {}
        }
        Ok(())
    }

    /// The rows of a job that the commit changes. Before the first change, this notes the record as it was.
    fn touch<'a>(&mut self, jobs: &'a mut BTreeMap<JobKey, JobRows>, job: &JobKey) -> &'a mut JobRows {
        let rows = jobs.entry(job.clone()).or_default();
        self.jobs.entry(job.clone()).or_insert_with(|| rows.record.clone());
        rows
    }
}
