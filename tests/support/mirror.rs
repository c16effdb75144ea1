//! A server of files: nginx over TLS, as an operator would run a mirror.

use std::fs::{File, read, read_to_string, remove_file, write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};

use super::keygate::BINARY;
use super::pki::Pki;
use super::program::{Program, reserved_address};
use super::skip;
use super::wait::{wait_for, wait_until};

/// Bytes that a slow mirror sends at once; then it sends a thousand a second.
pub const AT_ONCE: u64 = 64 << 10;

/// nginx with the files of a directory.
pub struct Mirror {
    directory: PathBuf,
    files: PathBuf,
    address: SocketAddr,
    other: SocketAddr,
    nginx: Option<Program>,
}

impl Mirror {
    /// Starts nginx with the certificate `server.pem`; `None` skips the test.
    pub fn start(pki: &Pki) -> Option<Self> {
        if skip::without("nginx") {
            return None;
        }
        let files = pki.path("mirror");
        std::fs::create_dir(&files).unwrap();
        let directory = pki.directory().to_owned();
        let (address, other) = (reserved_address(), reserved_address());
        let slow = pki.path("slow");
        let text = format!(
            r#"daemon off; master_process off; pid nginx.pid; error_log error.log;
events {{}}
http {{
    log_format requests '$uri $status range=$http_range if-range=$http_if_range if-none-match=$http_if_none_match sent=$body_bytes_sent port=$server_port auth=$http_authorization client=$ssl_client_verify args=$args';
    access_log requests.log requests;
    client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    ssl_certificate server.pem; ssl_certificate_key server.key;
    ssl_client_certificate ca.pem; ssl_verify_client optional;
    server {{ listen {other} ssl; root {files}; }}
    server {{
        listen {address} ssl;
        root {files};
        set $rate 0;
        if (-f {slow}) {{ set $rate 1000; }}
        limit_rate $rate; limit_rate_after {AT_ONCE};
        location /moved/ {{ rewrite ^/moved/(.*)$ /$1 permanent; }}
        location /elsewhere/ {{ return 302 https://{other}/lost.pkbf?sig=secret; }}
        location /loop/ {{ return 302 https://{address}$uri; }}
        location /clear/ {{ return 302 http://{other}/lost.pkbf; }}
        location /private/ {{
            if ($http_authorization != "Bearer abc") {{ return 401; }}
            if ($ssl_client_verify != SUCCESS) {{ return 403; }}
            alias {files}/;
        }}
    }}
}}
"#,
            files = files.display(),
            slow = slow.display()
        );
        write(pki.path("nginx.conf"), text).unwrap();
        let mut mirror = Self { directory, files, address, other, nginx: None };
        mirror.restart();
        Some(mirror)
    }

    /// Kills nginx, so that its connections break off.
    pub fn kill(&mut self) {
        self.nginx = None;
    }

    pub fn restart(&mut self) {
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&self.directory).arg("-c").arg(self.directory.join("nginx.conf"));
        self.nginx = Some(Program::start(&mut command).listening_on(self.address));
    }

    /// Sends a signal to nginx.
    pub fn signal(&self, signal: &str) {
        let id = self.nginx.as_ref().unwrap().id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap();
        assert!(sent.success());
    }

    /// From now on responses stop after [`AT_ONCE`] bytes, or no longer do.
    pub fn slow_down(&self, is_slow: bool) {
        let flag = self.directory.join("slow");
        if is_slow { write(flag, "").unwrap() } else { remove_file(flag).unwrap() }
    }

    /// Dates each file by its content: the entity tag of nginx is the size and the time in seconds,
    /// so that two versions of one second would be the same.
    pub fn date_files(&self) {
        for entry in walkdir::WalkDir::new(&self.files) {
            let entry = entry.unwrap();
            if entry.file_type().is_file() {
                let file = File::options().write(true).open(entry.path()).unwrap();
                let sha256 = digest(&SHA256, &read(entry.path()).unwrap());
                let [a, b, c, ..] = *sha256.as_ref() else { unreachable!() };
                let seconds = u64::from(u32::from_be_bytes([0, a, b, c]));
                file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds))
                    .unwrap();
            }
        }
    }

    pub fn url(&self, name: &str) -> String {
        format!("https://{}/{name}", self.address)
    }

    /// Address of a second server with the same files.
    pub fn other(&self) -> SocketAddr {
        self.other
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.files.join(name)
    }

    /// The lines about requests that were completed, of which there must be this many.
    pub fn requests(&self, count: usize) -> Vec<String> {
        wait_for("the requests", || {
            let log = read_to_string(self.directory.join("requests.log")).unwrap();
            let lines: Vec<_> = log.lines().map(str::to_owned).collect();
            if lines.len() == count { Ok(lines) } else { Err(log) }
        })
    }
}

/// A `keygate fetch` that runs. It is killed when it is dropped.
pub struct Fetch(Option<Child>);

impl Fetch {
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        command.arg("fetch").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    /// Waits until this many bytes of a download are on disk.
    pub fn wait_for_part(&self, target: &Path, length: u64) {
        let name = format!(".{}.fetch", target.file_name().unwrap().to_str().unwrap());
        let part = target.with_file_name(name).join("part");
        wait_until("the part", || std::fs::metadata(&part).is_ok_and(|it| it.len() >= length));
    }

    pub fn signal(&self, signal: &str) {
        let id = self.0.as_ref().unwrap().id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end.
    pub fn ended(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        let mut child = self.0.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
