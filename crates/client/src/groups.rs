//! Requests about groups.

use reqwest::Method;
use turnwise_protocol::names::{check_group, check_name};
use turnwise_protocol::{Group, GroupState, GroupWhy, Groups, NewGroup, RemovedGroup};

use crate::client::{Repeat, Request};
use crate::jobs::Pages;
use crate::{Client, Result};

impl Client {
    /// Creates a group. Repeating the request creates it once.
    ///
    /// # Errors
    /// The server refuses the group, or does not answer.
    pub async fn create_group(&self, group: &NewGroup) -> Result<Group> {
        check_group("name", &group.name)?;
        self.call(&Request::new(Method::POST, &["groups"]).json(group)?, Repeat::Harmless).await
    }

    /// The groups that this identity may read, by tenant and name, in pages: of a tenant, or of all; in a state, or in any.
    pub fn groups(
        &self,
        tenant: Option<&str>,
        state: Option<GroupState>,
        page: Option<usize>,
    ) -> Pages<Groups, Group> {
        let request = Request::new(Method::GET, &["groups"]).query("tenant", tenant);
        let request = request.query("state", state.map(GroupState::as_str)).query("limit", page);
        Pages::new(self, request, |page: Groups| (page.groups, page.next))
    }

    /// A group, with the numbers of its jobs.
    ///
    /// # Errors
    /// There is no such group, or the server does not answer.
    pub async fn group(&self, tenant: &str, name: &str) -> Result<Group> {
        self.read(&["groups", checked_tenant(tenant)?, checked(name)?]).await
    }

    /// Why a group has not ended: what some of its jobs wait for.
    ///
    /// # Errors
    /// There is no such group, or the server does not answer.
    pub async fn why_group(&self, tenant: &str, name: &str) -> Result<GroupWhy> {
        self.read(&["groups", checked_tenant(tenant)?, checked(name)?, "why"]).await
    }

    /// Closes a group: it ends with the last of its jobs.
    ///
    /// # Errors
    /// There is no such group, or the server does not answer.
    pub async fn close_group(&self, tenant: &str, name: &str) -> Result<Group> {
        let path = ["groups", checked_tenant(tenant)?, checked(name)?, "close"];
        self.call(&Request::new(Method::POST, &path), Repeat::Harmless).await
    }

    /// Removes a group that has ended. Its jobs stay.
    ///
    /// # Errors
    /// There is no such group, it has not ended, or the server does not answer.
    pub async fn remove_group(&self, tenant: &str, name: &str) -> Result<()> {
        let path = ["groups", checked_tenant(tenant)?, checked(name)?];
        self.call::<RemovedGroup>(&Request::new(Method::DELETE, &path), Repeat::IfUnsent).await.map(drop)
    }
}

fn checked(name: &str) -> Result<&str> {
    check_group("group", name)?;
    Ok(name)
}

fn checked_tenant(tenant: &str) -> Result<&str> {
    check_name("tenant", tenant)?;
    Ok(tenant)
}
