// SPDX-License-Identifier: Apache-2.0
//! Drives a real browser through its debugging pipe: opens a page, collects its errors and its
//! network requests, and runs scripts in it.

use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page; killed when it is dropped.
pub(crate) struct Devtools {
    child: Child,
    to: File,
    messages: mpsc::Receiver<Value>,
    last_id: u64,
    session: Option<String>,
    /// The events that the page reported, in order.
    pub(crate) events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Devtools {
    /// Starts a browser with an empty page.
    pub(crate) fn start(program: &Path) -> Devtools {
        let profile = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["to", "from"].map(|name| profile.path().join(name));
        let made = Command::new("mkfifo").args([&ours, &theirs]).status().unwrap();
        assert!(made.success());
        // The browser reads descriptor 3 and writes to descriptor 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<\"$TO\" 4>\"$FROM\""]).arg(program);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
        command.args(["--disable-background-networking", "--disable-sync"]);
        command.args(["--disable-component-update", "--disable-dev-shm-usage"]);
        command.args(["--remote-debugging-pipe", "--window-size=1280,900"]);
        command.arg(format!("--user-data-dir={}", profile.path().join("profile").display()));
        command.env("TO", &ours).env("FROM", &theirs);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let to = OpenOptions::new().write(true).open(&ours).unwrap();
        let from = File::open(&theirs).unwrap();
        let messages = listen(from);
        let mut devtools = Devtools {
            child,
            to,
            messages,
            last_id: 0,
            session: None,
            events: Vec::new(),
            _profile: profile,
        };
        let target = devtools.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = devtools.call("Target.attachToTarget", attach);
        devtools.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            devtools.call(&format!("{domain}.enable"), json!({}));
        }
        devtools
    }

    /// Calls a method and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let answer = self.receive();
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn receive(&self) -> Value {
        self.messages.recv_timeout(PATIENCE).expect("the browser answers")
    }

    /// Opens a file and returns once it is loaded.
    pub(crate) fn open(&mut self, file: &Path) -> String {
        let url = format!("file://{}", file.canonicalize().unwrap().display());
        self.call("Page.navigate", json!({"url": url}));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.receive();
            self.events.push(event);
        }
        url
    }

    /// The value of an expression in the page, which may be a promise.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression:.200}: {result:#}");
        result["result"]["value"].clone()
    }

    /// Switches the page to the light or dark theme.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Lays the page out for a printer with paper of this width, while the system's theme is dark.
    pub(crate) fn print_on(&mut self, width: u32) {
        let features = json!([{"name": "prefers-color-scheme", "value": "dark"}]);
        self.call("Emulation.setEmulatedMedia", json!({"media": "print", "features": features}));
        let size = json!({"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Presses a key.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let params = json!({"type": kind, "key": key, "code": key,
                                "windowsVirtualKeyCode": if key == "Tab" { 9 } else { 0 }});
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// What the page reported as wrong: errors and warnings of the console, exceptions, violations
    /// of the page's policy.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        let is_one = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Log.entryAdded") => true,
            Some("Runtime.consoleAPICalled") => {
                matches!(event["params"]["type"].as_str(), Some("error" | "warning" | "assert"))
            }
            _ => false,
        };
        self.events.iter().filter(is_one).collect()
    }

    /// The addresses that the page requested.
    pub(crate) fn requests(&self) -> Vec<&str> {
        let of = |event: &Value| event["method"] == "Network.requestWillBeSent";
        let requests = self.events.iter().filter(|event| of(event));
        requests.filter_map(|event| event["params"]["request"]["url"].as_str()).collect()
    }
}

/// Reads messages, each of which ends with a zero byte.
fn listen(from: File) -> mpsc::Receiver<Value> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for message in BufReader::new(from).split(0).map_while(Result::ok) {
            let value = serde_json::from_slice(&message).unwrap();
            if send.send(value).is_err() {
                break;
            }
        }
    });
    receive
}

impl Drop for Devtools {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
