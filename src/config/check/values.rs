//! Checks of single values: paths, names, addresses and numbers.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::Checker;
use crate::config::ListenAddress;
use crate::config::units::quoted;

/// Maximum length of the path of a Unix socket, in bytes: `sun_path` of Linux without its NUL
/// (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

impl Checker<'_> {
    /// The file or directory at `path`, which the value at `at` names. A relative path starts at
    /// the directory of the configuration.
    pub(super) fn path(&self, at: &str, path: &Path) -> PathBuf {
        let text = path.to_string_lossy();
        if text.is_empty() {
            self.invalid(at, "empty; give a path");
        } else if text.contains("-----BEGIN ") {
            // The text may be a private key.
            self.invalid(at, "PEM, and not a path; write the text into a file, and give its path");
        } else if text.contains('\0') {
            self.invalid(
                at,
                format!("{} has a NUL character; give a path without it", quoted(&text)),
            );
        }
        self.file.parent().map_or_else(|| path.to_owned(), |directory| directory.join(path))
    }

    /// The path of a Unix socket.
    pub(super) fn socket_path(&self, at: &str, path: &Path) -> PathBuf {
        let path = self.path(at, path);
        let length = path.as_os_str().len();
        if length > MAX_SOCKET_PATH {
            let problem = format!(
                "{} has {length} bytes; give a path for the socket with at most {MAX_SOCKET_PATH}",
                quoted(&path.to_string_lossy()).trim_matches('"')
            );
            self.invalid(at, problem);
        }
        path
    }

    pub(super) fn paths(&self, at: &str, paths: &[PathBuf]) -> Vec<PathBuf> {
        paths.iter().map(|path| self.path(at, path)).collect()
    }

    /// Checks that no two tables of an array have the same name.
    pub(super) fn names_once<'n>(&self, array: &str, names: impl Iterator<Item = &'n str>) {
        let mut known = HashSet::new();
        for (index, name) in names.enumerate() {
            if !known.insert(name) {
                let problem = format!(
                    "another of the {array} has the name {}; give each its own",
                    quoted(name)
                );
                self.invalid(format!("{array}[{index}].name"), problem);
            }
        }
    }

    /// Checks a name. Its characters need no quoting in metrics, logs and headers.
    pub(super) fn name(&self, path: &str, name: String) -> String {
        let plain =
            |character: char| character.is_ascii_alphanumeric() || ".-_".contains(character);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            let problem =
                format!("{}: a name has 1 to 64 letters, digits, '.', '-' and '_'", quoted(&name));
            self.invalid(format!("{path}.name"), problem);
        }
        name
    }

    /// A TCP address, or `unix:` and a path.
    pub(super) fn listen_address(&self, at: &str, listen: &str) -> ListenAddress {
        match listen.strip_prefix("unix:") {
            Some(path) => ListenAddress::Unix(self.socket_path(at, Path::new(path))),
            None => ListenAddress::Tcp(listen.parse().unwrap_or_else(|_| {
                let example = "\"127.0.0.1:9191\", or \"unix:/PATH\"";
                self.invalid(at, no_address(listen, example));
                SocketAddr::from(([0; 4], 0))
            })),
        }
    }

    pub(super) fn address(&self, path: &str, listen: &str) -> SocketAddr {
        listen.parse().unwrap_or_else(|_| {
            self.invalid(path, no_address(listen, "\"0.0.0.0:8443\" or \"[::]:8443\""));
            SocketAddr::from(([0; 4], 0))
        })
    }
}

fn no_address(listen: &str, example: &str) -> String {
    match port_above_maximum(listen) {
        Some(port) => format!("{}: {port} is not a port; give 1 to 65535", quoted(listen)),
        None => format!("{} is not an address and a port, such as {example}", quoted(listen)),
    }
}

/// The number behind the last colon, if it is above the last port.
pub(super) fn port_above_maximum(address: &str) -> Option<&str> {
    let (_, port) = address.rsplit_once(':')?;
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && port.parse::<u16>().is_err()).then_some(port)
}
