//! Requests about schedules.

use reqwest::Method;
use turnwise_protocol::schedules::check_schedule_name;
use turnwise_protocol::{
    Backfill, Backfilled, FiredSchedule, PreviewSchedule, PutSchedule, RemovedSchedule, Schedule,
    SchedulePreview, Schedules,
};

use crate::client::{Repeat, Request};
use crate::jobs::Pages;
use crate::{Client, Result};

impl Client {
    /// Creates a schedule, or replaces the one with this name.
    ///
    /// # Errors
    /// The server refuses the schedule, or does not answer.
    pub async fn put_schedule(&self, name: &str, schedule: &PutSchedule) -> Result<Schedule> {
        check_schedule_name(name)?;
        self.put(&["schedules", name], schedule).await
    }

    /// The schedules that this identity may read, by name, in pages: of a tenant, or of all.
    pub fn schedules(&self, tenant: Option<&str>, page: Option<usize>) -> Pages<Schedules, Schedule> {
        let request = Request::new(Method::GET, &["schedules"]).query("tenant", tenant).query("limit", page);
        Pages::new(self, request, |page: Schedules| (page.schedules, page.next))
    }

    /// A schedule, with its last fires.
    ///
    /// # Errors
    /// There is no such schedule, or the server does not answer.
    pub async fn schedule(&self, name: &str) -> Result<Schedule> {
        check_schedule_name(name)?;
        self.read(&["schedules", name]).await
    }

    /// The next fires of a schedule: up to `count`, 10 by default.
    ///
    /// # Errors
    /// There is no such schedule, or the server does not answer.
    pub async fn preview_schedule(&self, name: &str, count: Option<usize>) -> Result<SchedulePreview> {
        check_schedule_name(name)?;
        let request = Request::new(Method::GET, &["schedules", name, "preview"]).query("count", count);
        self.call(&request, Repeat::Harmless).await
    }

    /// The fires of a schedule that is not stored.
    ///
    /// # Errors
    /// The server refuses the specification, or does not answer.
    pub async fn preview(&self, schedule: &PreviewSchedule) -> Result<SchedulePreview> {
        let request = Request::new(Method::POST, &["schedule_preview"]).json(schedule)?;
        self.call(&request, Repeat::Harmless).await
    }

    /// Pauses a schedule, which fires no more until it is resumed.
    ///
    /// # Errors
    /// There is no such schedule, or the server does not answer.
    pub async fn pause_schedule(&self, name: &str) -> Result<Schedule> {
        self.act(name, "pause", Repeat::Harmless).await
    }

    /// Resumes a schedule, which fires from now on.
    ///
    /// # Errors
    /// There is no such schedule, an operator has paused it, or the server does not answer.
    pub async fn resume_schedule(&self, name: &str) -> Result<Schedule> {
        self.act(name, "resume", Repeat::Harmless).await
    }

    /// Fires a schedule now. The client repeats the request only while it cannot have taken effect.
    ///
    /// # Errors
    /// There is no such schedule, or the server does not answer.
    pub async fn fire_schedule(&self, name: &str) -> Result<FiredSchedule> {
        self.act(name, "fire", Repeat::IfUnsent).await
    }

    async fn act<T: serde::de::DeserializeOwned>(&self, name: &str, what: &str, repeat: Repeat) -> Result<T> {
        check_schedule_name(name)?;
        self.call(&Request::new(Method::POST, &["schedules", name, what]), repeat).await
    }

    /// Makes fires of the past, each of which adds its job once, however often this is repeated.
    ///
    /// # Errors
    /// There is no such schedule, there are too many fires, or the server does not answer.
    pub async fn backfill_schedule(&self, name: &str, backfill: Backfill) -> Result<Backfilled> {
        check_schedule_name(name)?;
        let request = Request::new(Method::POST, &["schedules", name, "backfill"]).json(&backfill)?;
        self.call(&request, Repeat::Harmless).await
    }

    /// Removes a schedule. Its jobs stay.
    ///
    /// # Errors
    /// There is no such schedule, or the server does not answer.
    pub async fn remove_schedule(&self, name: &str) -> Result<()> {
        check_schedule_name(name)?;
        let request = Request::new(Method::DELETE, &["schedules", name]);
        self.call::<RemovedSchedule>(&request, Repeat::IfUnsent).await.map(drop)
    }
}
