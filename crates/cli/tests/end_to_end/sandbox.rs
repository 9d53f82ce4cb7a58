//! What commands of a server may do: as which user they run, what they reach, and that nothing of them is left.

use serde_json::{Value, json};

use crate::server::{Home, Server, clean, turnwise};

/// Whether this test runs as root.
fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

async fn ended(server: &Server, script: &str) -> Value {
    let body = json!({ "options": { "argv": ["sh", "-c", script] } });
    let added = server.post("/v1/jobs/command", &body).await;
    let path = format!("/v1/jobs/command/{}", added["id"].as_str().unwrap());
    server.until(&path, |job| job["state"] == "completed").await
}

#[tokio::test]
async fn a_server_whose_commands_have_the_wrong_user_does_not_start() {
    let cases: &[(&str, &str)] = match is_root() {
        true => &[
            ("", "would run as root: set [command] user = NAME"),
            ("user = root", "would run as root: set [command] user = NAME"),
            ("user = no-such-user", "[command] user = no-such-user: this machine has no such user"),
        ],
        false => &[
            ("user = root", "would run as root"),
            ("user = root\nallow_root = true", "only root can run commands as another user"),
            ("user = no-such-user", "[command] user = no-such-user: this machine has no such user"),
        ],
    };
    for (settings, says) in cases {
        let home = Home::new(&format!("[command]\nenabled = true\n{settings}\n"));
        let mut command = turnwise();
        command.args(["serve", "--listen", "127.0.0.1:0", "--insecure-no-auth"]);
        command.arg("--store").arg(format!("embedded:{}", home.data_dir().display()));
        command.arg("--config").arg(home.config());
        let output = clean(command.kill_on_drop(true).output().await.unwrap());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{settings}: {text}");
        assert!(text.contains(says), "{settings}: {text}");
        assert!(!home.data_dir().exists(), "it touched the store before it knew");
    }
}

#[tokio::test]
async fn commands_of_another_user_reach_neither_the_server_nor_its_store() {
    if !is_root() {
        println!("not root: left out are commands of another user");
        return;
    }
    let home = Home::new("[command]\nenabled = true\nuser = nobody\nmax_open_files = 77\n");
    let server = home.serve().await;
    let (pid, store) = (server.pid().await, home.data_dir().join("store"));
    let refused = |what: &str| format!("({what}) >/dev/null 2>&1 && echo reached || echo refused");
    let script = format!(
        "id -un; pwd; ulimit -n; {}; {}; {}; {}",
        refused(&format!("cat /proc/{pid}/environ")),
        refused(&format!("kill -0 {pid}")),
        refused("kill -0 $PPID"),
        refused(&format!("ls {}", store.display())),
    );
    let job = ended(&server, &script).await;
    assert_eq!(job["result"]["stdout"], "nobody\n/\n77\nrefused\nrefused\nrefused\nrefused\n", "{job}");
    // What `nobody` cannot execute is the job's mistake, and not the server's.
    let body = json!({ "id": "a", "options": { "argv": ["sh"], "cwd": store } });
    server.post("/v1/jobs/command", &body).await;
    let job = server.until("/v1/jobs/command/a", |job| job["state"] == "failed").await;
    assert!(job["reason"].as_str().unwrap().contains("the user of commands has no permission"), "{job}");
}

/// A server that is not root, and its commands: processes of the same user.
#[tokio::test]
async fn commands_of_the_same_user_cannot_read_the_servers_memory() {
    let home = Home::new("[command]\nenabled = true\n");
    let Some(server) = home.serve_as(64_321).await else {
        println!(
            "not root, or the binary is in a folder of root's own: left out is a server of another user"
        );
        return;
    };
    let pid = server.pid().await;
    let read =
        |what: &str| format!("head -c 1 /proc/{pid}/{what} >/dev/null 2>&1 && echo read || echo refused");
    let script = format!(
        "id -u; {}; {}; ls /proc/{pid}/fd >/dev/null 2>&1 || echo refused",
        read("environ"),
        read("mem")
    );
    let job = ended(&server, &script).await;
    assert_eq!(job["result"]["stdout"], "64321\nrefused\nrefused\nrefused\n", "{job}");
}
