//! A browser without a window.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{output_text, system, wait_for};

/// A browser that is driven through WebDriver. Ends with the test.
pub struct Browser {
    driver: Child,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// A driver with its port. It chooses a free port of IPv4, and ends if another program has that
    /// port of IPv6.
    fn start_driver() -> (Child, u16) {
        wait_for("chromedriver", || {
            let mut driver = Command::new("chromedriver")
                .arg("--port=0")
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| error.to_string())?;
            let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
            let mut printed = String::new();
            let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
                printed.push_str(&line);
                let (_, port) = line.split_once("started successfully on port ")?;
                port.trim_end_matches('.').parse::<u16>().ok()
            });
            std::thread::spawn(move || lines.count()); // so that it never waits for us
            port.map(|port| (driver, port)).ok_or(printed)
        })
    }

    pub fn start() -> Self {
        let (driver, port) = Self::start_driver();
        let driver_url = format!("http://127.0.0.1:{port}");
        let profile = tempfile::tempdir().unwrap();
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            &format!("--user-data-dir={}", profile.path().display()),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let made = call("POST", &format!("{driver_url}/session"), &wanted);
        let session = format!("{driver_url}/session/{}", made["sessionId"].as_str().unwrap());
        Self { driver, session, _profile: profile }
    }

    pub fn post(&self, command: &str, body: &Value) -> Value {
        call("POST", &format!("{}/{command}", self.session), body)
    }

    pub fn run(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Opens an address.
    pub fn open(&self, url: &str) {
        self.post("url", &json!({"url": url}));
    }

    /// Gives the page this width, in CSS pixels.
    pub fn resize(&self, width: u64) {
        let screen =
            json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false});
        let command = json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": screen});
        self.post("goog/cdp/execute", &command);
    }

    /// The visible text of the page.
    pub fn text(&self) -> String {
        self.run("return document.querySelector('main').innerText").as_str().unwrap().to_owned()
    }

    /// Waits until the page shows `what`, without loading it again.
    pub fn wait_for(&self, what: &str) {
        wait_for(&format!("{what:?} on the page"), || {
            let text = self.text();
            if text.contains(what) { Ok(()) } else { Err(text) }
        });
    }

    pub fn background(&self, scheme: &str) -> String {
        let feature = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let command = json!({"cmd": "Emulation.setEmulatedMedia", "params": {"features": feature}});
        self.post("goog/cdp/execute", &command);
        let color = self.run("return getComputedStyle(document.body).backgroundColor");
        color.as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = system("curl", &["-s", "-X", "DELETE", &self.session]); // the browser ends with it
        let _ = self.driver.kill(); // it may have ended
        let _ = self.driver.wait();
    }
}

fn call(method: &str, url: &str, body: &Value) -> Value {
    let json = ["-H", "content-type: application/json", "-d", &body.to_string()].map(str::to_owned);
    let mut arguments = vec!["-s", "-X", method, url];
    arguments.extend(json.iter().map(String::as_str));
    let response = system("curl", &arguments);
    let response: Value = serde_json::from_slice(&response.stdout).unwrap_or_else(|error| {
        panic!("{url}: {error}: {}", output_text(&response));
    });
    assert!(response["value"]["error"].is_null(), "{url}: {response}");
    response["value"].clone()
}
