//! keygate: a TLS-terminating reverse proxy that checks the keys of client certificates.
//!
//! The key of every client is looked up in filters of keys whose private halves have leaked.
//!
//! [`keygate_core`] reads lists and keys, and decides about clients. [`keygate_wire`] has the bytes on
//! connections. The modules here are the proxy and the command line. Each uses only these crates and
//! modules above it in this table:
//!
//! | module | contents |
//! | --- | --- |
//! | `shell` | commands of keygate as text for a shell |
//! | [`blocking`] | blocking calls on threads that exist from the start |
//! | [`log_writer`] | log lines between the threads and a reader that may stall |
//! | [`resolver`] | look-ups of host names on threads of their own |
//! | [`config`] | the configuration, parsed and checked once |
//! | [`process`] | the process and its host: sandbox, service manager, inherited sockets |
//! | `files` | reading and writing of files with a deadline |
//! | `http_client` | one HTTP request over a connection of its own |
//! | [`metrics`] | all metrics, as typed handles |
//! | [`key_uses`] | recent clients with their key exchange and key algorithm, in bounded memory |
//! | [`recent_hits`] | recently rejected or flagged clients, in bounded memory |
//! | [`saved_state`] | the state directory: what outlives a restart |
//! | [`sources`] | the files of a configuration, with the last good value of each |
//! | [`snapshot`] | the state that a reload can change, as one immutable value |
//! | [`confirm`] | questions to a source of proofs: whether a probably compromised key is compromised |
//! | [`traces`] | spans of sampled requests, exported over OTLP/HTTP |
//! | [`fetch`] | downloads of filters and lists for `keygate fetch` |
//! | `client_log` | log lines about rejected, flagged and failed clients, limited in rate |
//! | [`listen`] | listening sockets, one per worker and address |
//! | [`dialect`] | client certificates and addresses in header fields: writing and reading |
//! | [`proxy`] | the data path: the life of a connection |
//! | `ask` | authorizers: the questions of other proxies about their clients |
//! | [`workers`] | the worker threads, which serve `proxy` and `ask` |
//! | [`admin`] | metrics, liveness, readiness and status over HTTP |
//! | [`server`] | the whole proxy in one process |
//! | [`cli`] | the command line, one file for each subcommand |
//!
//! A connection takes these steps: `accept`, ClientHello, service by SNI, handshake, identity,
//! HTTP. The handshake verifies the chain and the proof of possession, then calls
//! [`keygate_core::guard::Guard::judge`]. The identity is judged again, because a resumed session has no
//! verification. A changed file settles, is loaded and checked, and becomes part of the next
//! [`snapshot::Snapshot`]. Each snapshot has new ticket keys, so that old sessions do not resume.

pub mod admin;
#[doc(hidden)]
pub mod ask;
pub mod blocking;
pub mod cli;
mod client_log;
pub mod config;
pub mod confirm;
pub mod dialect;
pub mod fetch;
mod files;
mod http_client;
pub mod key_uses;
pub mod listen;
pub mod log_writer;
pub mod metrics;
pub mod process;
pub mod proxy;
pub mod recent_hits;
pub mod resolver;
pub mod saved_state;
pub mod server;
mod shell;
pub mod snapshot;
pub mod sources;
pub mod traces;
pub mod workers;
