//! An external worker for one test.

use serde_json::{Value, json};

use super::{Answer, TestServer};

/// An external worker that sends no requests by itself.
pub struct ExternalWorker<'a> {
    server: &'a TestServer,
    job_type: &'a str,
    pub id: String,
    pub path: String,
    /// The number of the last claim that it has received.
    received: u64,
}

impl<'a> ExternalWorker<'a> {
    pub async fn register(server: &'a TestServer, job_type: &'a str, slots: usize) -> ExternalWorker<'a> {
        let body = json!({ "slots": slots, "name": "tester" });
        let registered = server.post(&format!("/v1/workers/{job_type}"), &body).await;
        assert_eq!(registered.status, 201, "{}", registered.body);
        let id = registered.body["worker"].as_str().unwrap().to_owned();
        let path = format!("/v1/workers/{job_type}/{id}");
        ExternalWorker { server, job_type, id, path, received: 0 }
    }

    pub async fn call(&self, what: &str, body: Value) -> Answer {
        self.server.post(&format!("{}/{what}", self.path), &body).await
    }

    pub async fn ping(&self) -> Answer {
        self.server.post_empty(&format!("{}/ping", self.path)).await
    }

    /// Sets its mode, as an operator does.
    pub async fn set(&self, mode: &str) -> Value {
        let set = self.server.put(&self.path, &json!({ "mode": mode })).await;
        assert_eq!(set.status, 200, "{}", set.body);
        set.body
    }

    /// Asks for jobs, after this claim.
    pub async fn accept(&self, received: u64, limit: usize) -> Vec<Value> {
        let answer = self.call("accept", json!({ "received": received, "limit": limit })).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["jobs"].as_array().unwrap().clone()
    }

    /// Accepts the only available job.
    pub async fn take(&self, received: u64) -> Value {
        let mut jobs = self.accept(received, 1).await;
        assert_eq!(jobs.len(), 1);
        jobs.remove(0)
    }

    /// Waits for jobs, after the last one that it has received.
    pub async fn next(&mut self, limit: usize) -> Vec<Value> {
        self.within(10_000, limit).await
    }

    /// The same, as ids.
    pub async fn next_ids(&mut self, limit: usize) -> Vec<String> {
        ids(&self.next(limit).await)
    }

    /// The jobs that it gets without a wait.
    pub async fn now(&mut self) -> Vec<Value> {
        self.within(0, 100).await
    }

    /// The same, as ids.
    pub async fn now_ids(&mut self) -> Vec<String> {
        ids(&self.now().await)
    }

    async fn within(&mut self, wait_ms: u64, limit: usize) -> Vec<Value> {
        let body = json!({ "received": self.received, "limit": limit, "wait_ms": wait_ms });
        let accepted = self.call("accept", body).await;
        assert_eq!(accepted.status, 200, "{}", accepted.body);
        let jobs = accepted.body["jobs"].as_array().unwrap().clone();
        self.received = jobs.iter().map(|job| job["claim"].as_u64().unwrap()).max().unwrap_or(self.received);
        jobs
    }

    /// Ends a job that runs here.
    pub async fn end(&self, id: &str, how: &str, mut body: Value) -> Answer {
        let job = self.server.get(&format!("/v1/jobs/{}/{id}", self.job_type)).await;
        body["claim"] = job.body["claim"].clone();
        self.call(&format!("jobs/{id}/{how}"), body).await
    }

    /// Waits for one job, and ends its run.
    pub async fn run(&mut self, how: &str, mut body: Value) -> Value {
        let job = self.next(1).await.remove(0);
        body["claim"] = job["claim"].clone();
        let id = job["id"].as_str().unwrap().replace('/', "%2F");
        let ended = self.call(&format!("jobs/{id}/{how}"), body).await;
        assert_eq!(ended.status, 200, "{}", ended.body);
        job
    }
}

fn ids(jobs: &[Value]) -> Vec<String> {
    jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}
